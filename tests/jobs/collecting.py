"""Computes batches in this process as a run does, with the rows kept in memory where a run writes files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windowmill.jobs.schedulers.local.memory import MemoryBatch, MemoryWriter
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.schedulers.local.parts import compute_parts
from windowmill.jobs.ways.base import Loaded, Part
from windowmill.jobs.ways.input import Input


class LimitedInput(Input):
    """A batch that Spark would compute if it were too large for this process."""

    is_limited: Any = True


class BackfillInput(Input):
    """The rows of a backfill's range, whose windows have been shown before."""

    recomputes_range: Any = True


@dataclass(frozen=True)
class Done:
    """What a batch has made: result rows, state rows and judged rows, null for none, and counts."""

    rows: pa.Table | None
    state: pa.Table | None
    judged: pa.Table | None
    rows_applied: int
    rows_late: int
    new_state: int

    @classmethod
    def of(cls, batch: MemoryBatch) -> Done:
        tables = batch.results, batch.state
        rows, state = (pa.concat_tables(each, promote_options="default") if each else None for each in tables)
        judged, counts = None if batch.judged is None else batch.judged.table, batch.counts
        return cls(rows, state, judged, counts.rows_applied, counts.rows_late, counts.new_state)


def computed(new: NewRows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input) -> Done:
    """Compute the ``loaded`` batch of each part."""
    writer = MemoryWriter()
    counts, judged = compute_parts(new, parts, loaded, batch, writer)
    return Done.of(MemoryBatch(writer.tables("sink"), writer.tables("state"), judged, counts))
