"""Summarizes quarantined rows of a batch: counts by reason, examples, and the setting that would accept them.

Works from the quarantine rows alone, a part at a time, so its cost and memory do not depend on which engine judged them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.expectations.rule import Loss
from windowmill.jobs.reasons import BAD_CONDITION, TOO_LATE, remedies_of
from windowmill.windowing.durations import DAY_US, SECOND_US
from windowmill.windowing.redaction import redacted
from windowmill.windowing.watermark import LatenessRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from windowmill.windowing.durations import Duration
    from windowmill.windowing.spec import Pipeline

#: Columns of the quarantine table that are read.
COLUMNS = ("reason", "detail", "event_time", "watermark", "row")
#: Share of the rows that may still be too late under the delay that a remedy names.
_STILL_LATE = 0.001
#: Examples in all, and characters of a text in one.
_MAX_EXAMPLES, _SHOWN = 5, 80
#: Units of a delay that a person would write; the largest is taken of which the delay has at least three.
_UNITS = (("day", DAY_US), ("hour", 3_600 * SECOND_US), ("minute", 60 * SECOND_US), ("second", SECOND_US))


def loss_of(parts: Iterable[pa.RecordBatch], pipeline: Pipeline, *, rows_read: int, seen: int | None, first: bool) -> Loss:
    """Summarize the quarantine rows of a batch.

    Parameters
    ----------
    parts
        The rows, with :data:`COLUMNS` at least.
    seen
        Greatest event time after the batch, in ticks of the axis.
    first
        Whether no batch has been committed, so that the definition may still change in place.
    """
    reasons: Counter[str] = Counter()
    details: Counter[str] = Counter()
    examples: list[Mapping[str, Any]] = []
    lags = Lags(asserted=pipeline.time.watermark == "data_interval_end")
    for part in parts:
        for counted in part.column("reason").value_counts().to_pylist():
            # Two examples of a reason where it first occurs, so that a frequent one leaves room for others.
            taken = 1 if counted["values"] in reasons else 2
            reasons[counted["values"]] += counted["counts"]
            examples += _examples(part, counted["values"], pipeline, min(taken, _MAX_EXAMPLES - len(examples)))
        lags.add(part, pipeline, seen)
        bad = part.filter(pc.equal(part.column("reason"), BAD_CONDITION))
        details.update({each["values"]: each["counts"] for each in bad.column("detail").value_counts().to_pylist()})
    remedies = [lags.remedy(pipeline, rows_read - (reasons.total() - reasons[TOO_LATE]), first=first)] if reasons[TOO_LATE] else []
    if details:
        remedies.append(f"{BAD_CONDITION}: {details.most_common(1)[0][0]}; use try_cast, or correct the condition or the source")
    remedies += remedies_of(reasons, pipeline)
    return Loss(dict(reasons), tuple(remedy for remedy in remedies if remedy), tuple(examples))


@dataclass
class Lags:
    """How much later each late row came than it may, in three digits rounded up: a thousand counts at most for each power of ten.

    Attributes
    ----------
    asserted
        Whether the orchestrator asserts the watermark: then ``lateness`` alone can keep a row, else a longer ``disorder`` does.
    """

    asserted: bool
    counts: Counter[int] = field(default_factory=Counter)

    def add(self, part: pa.RecordBatch, pipeline: Pipeline, seen: int | None) -> None:
        """Count the late rows of ``part``; one whose watermark is not known is compared with ``seen``."""
        late = part.filter(pc.and_(pc.equal(part.column("reason"), TOO_LATE), pc.is_valid(part.column("event_time"))))
        if not late.num_rows:
            return
        rule = LatenessRule.of(pipeline)
        known = late.column("watermark").cast(pa.int64())
        watermark = pc.fill_null(known, rule.watermark(seen or 0)).to_numpy(zero_copy_only=False)
        lags = watermark - late.column("event_time").cast(pa.int64()).to_numpy(zero_copy_only=False)
        if not self.asserted:
            lags = lags + rule.disorder - (0 if _by_policies_alone(pipeline) else rule.lateness)
        grain = 10 ** np.maximum(np.floor(np.log10(np.maximum(lags, 1))).astype(np.int64) - 2, 0)
        values, counts = np.unique(-(-np.maximum(lags, 1) // grain) * grain, return_counts=True)
        self.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def remedy(self, pipeline: Pipeline, rows: int, *, first: bool) -> str | None:
        """The delay that would keep nearly all of the ``rows`` that were applied or too late; null if too few were late, or none would."""
        spare, chosen = int(rows * _STILL_LATE), None
        for lag in sorted(self.counts, reverse=True):
            spare -= self.counts[lag]
            if spare < 0:
                chosen = lag
                break
        if chosen is None or (self.asserted and _by_policies_alone(pipeline)):
            return None
        length, text = (chosen, str(chosen)) if pipeline.time.integer_axis else _readable(chosen)
        lost = sum(count for lag, count in self.counts.items() if lag > length)
        kept = "all" if not lost else f"{np.floor((rows - lost) / rows * 1_000) / 10:g} %"
        name = "lateness" if self.asserted else "disorder"
        present: Duration = getattr(pipeline.time, name)
        remedy = f"{TOO_LATE}: time.{name}: {text} would keep {kept} (now {0 if present.is_zero else present})"
        if not first:
            return f"{remedy}; for the rows of earlier batches too, give the pipeline a new sink and backfill it there"
        bulk = "" if self.asserted else "; history loaded in bulk: run --arrival event_time, which finds no row late"
        return f"{remedy}: `windowmill abandon` the batch, set it and run again{bulk}"


def _by_policies_alone(pipeline: Pipeline) -> bool:
    """Whether all windows have policies, for which ``lateness`` has no effect."""
    return all(window.follows_policies for window in pipeline.windows)


def _readable(ticks: int) -> tuple[int, str]:
    """``ticks`` of microseconds rounded up to whole units, and its text."""
    name, unit = next((pair for pair in _UNITS if ticks >= 3 * pair[1]), _UNITS[-1])
    count = -(-ticks // unit)
    return count * unit, f"{count} {name}{'s' * (count != 1)}"


def _examples(part: pa.RecordBatch, reason: str, pipeline: Pipeline, count: int) -> list[dict[str, Any]]:
    """Key, time and reason of up to ``count`` rows of ``part`` that have this ``reason``, as the quarantine table shows them."""
    if count <= 0:
        return []
    chosen = part.filter(pc.equal(part.column("reason"), reason)).slice(0, count)
    names = [*pipeline.keys, pipeline.time.column, *([pipeline.time.end] if pipeline.time.end else [])]
    rows = [json.loads(row) for row in chosen.column("row").to_pylist()]
    return [{name: _shown(row.get(name)) for name in names} | {"reason": reason} for row in rows]


def _shown(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = redacted(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
