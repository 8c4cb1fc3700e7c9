"""The ruling on a held batch, and the result of a run for each batch that it committed, with warnings about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windowmill.checkpoints.batches import Commit, Plan
from windowmill.checkpoints.places import Places
from windowmill.expectations.rule import quarantined_rate
from windowmill.windowing.spec import Pipeline

#: Publish the held batch anyway, or commit it without its rows.
Ruling = Literal["release", "discard"]


@dataclass(frozen=True)
class CommittedBatch:
    """A committed batch."""

    plan: Plan
    commit: Commit


def warnings_of(commit: Commit, pipeline: Pipeline, places: Places) -> list[str]:
    """The warnings, one line each: what happened, where to look and what to do."""
    lines, most = [], pipeline.quarantine.warn
    rate = quarantined_rate(commit.rows_read, commit.rows_quarantined)
    if most is not None and rate > most:
        lines.append(
            f"{commit.rows_quarantined:,} of {commit.rows_read:,} rows read ({rate:.1%}) were quarantined, see the reasons in "
            f"{places.quarantine}; if they came too late, raise time.disorder or time.lateness, or read history that was loaded in "
            "bulk with `--arrival event_time` (run into a new sink, or backfill)"
        )
    if commit.rows_ignored:
        lines.append(
            f"{commit.rows_ignored:,} rows that the source updated or removed were ignored (source.changes: ignore): windows already "
            "computed still count them as they were"
        )
    return lines
