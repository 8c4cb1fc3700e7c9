"""Measures how many rows of a source runs can use: reads some of them as runs do. No JVM."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.batch.losses import remedies_of
from windowmill.jobs.column_names import REASON, UNREAD
from windowmill.jobs.commands.source_look import arrived
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, batches_of
from windowmill.jobs.sources.unread_rows import details_of
from windowmill.windowing.fields import percentage

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Rows that are read, of the first and the last files to arrive.
_ROWS, _FILES = 100_000, 16
#: Values of the time column that are shown, and characters of one.
_EXAMPLES, _SHOWN = 3, 60
_OF_TIMES = ("null_time", "bad_time", "time_out_of_range", "future_time", "end_before_time")


@dataclass(frozen=True)
class Measured:
    """What a sample of a source's rows is to a pipeline.

    Attributes
    ----------
    rows, files
        How many were read.
    reasons
        Reasons for which a run would quarantine rows -> how many.
    readable
        Times, keys and arguments of aggregates -> rows that have a value of the column, which can be read.
    examples
        Some of the lines, or of the times, that cannot be read.
    """

    rows: int
    files: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    readable: Mapping[str, int] = field(default_factory=dict)
    examples: Sequence[str] = ()

    @property
    def unusable(self) -> int:
        """Rows that a run would quarantine, whatever its watermark."""
        return sum(self.reasons.values())

    def as_json(self) -> dict[str, Any]:
        """Its values by name, with the number of usable rows."""
        return asdict(self) | {"usable": self.rows - self.unusable}

    def describe(self) -> str:
        """What was found, in one line."""
        if not self.rows:
            return "the source has no rows yet"
        readable = ", ".join(f"{name} in {count:,}" for name, count in self.readable.items())
        lost = f"; not usable: {self._reasons()}" if self.reasons else ""
        return f"{self.rows:,} rows of the source read; readable: {readable}{lost}"

    def problem(self, pipeline: Pipeline) -> tuple[str, str] | None:
        """The field that is wrong, and what to do, where every batch of such rows would be held; null for none."""
        most = pipeline.quarantine.hold
        if most is None or self.unusable <= most * self.rows:
            return None
        share = percentage(round(self.unusable / self.rows, 3))
        worst = max(self.reasons, key=lambda reason: self.reasons[reason])
        what = f"{share} of {self.rows:,} rows that were read cannot be used, more than {percentage(most)} (quarantine.hold)"
        remedies = "".join(f"; {remedy}" for remedy in remedies_of(self.reasons, pipeline))
        return "time.column" if worst in _OF_TIMES else "source", f"{what}: {self._reasons()}{remedies}"

    def _reasons(self) -> str:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.reasons.items())
        return reasons + (f" (such as {', '.join(self.examples)})" if self.examples else "")


def measured(pipeline: Pipeline, source: SourceTable) -> Measured | None:
    """What some rows of its ``source`` are to ``pipeline``; null if only Spark can read them."""
    files = arrived(source, held=True)
    chosen = files if len(files) <= _FILES else [*files[: _FILES // 2], *files[-_FILES // 2 :]]
    if not chosen:
        return Measured(0, 0)
    plain = PlainRows.of(pipeline, source, Reading(tuple(chosen)))
    if plain is None:
        return None
    try:
        return _of_rows(pipeline, _sample(plain, pipeline), len(chosen))
    except NotPlainError:
        return None


def _columns(pipeline: Pipeline, known: Mapping[str, pa.DataType]) -> list[str]:
    """The columns of which results are made: times, keys, and arguments of aggregates."""
    named = [pipeline.time.column, pipeline.time.end or pipeline.time.column, *pipeline.keys]
    named += [name for aggregate in pipeline.aggregates.values() for name in aggregate.columns]
    return [name for name in dict.fromkeys(named) if name in known]


def _sample(plain: PlainRows, pipeline: Pipeline) -> pa.Table:
    columns, most = _columns(pipeline, plain.types), -(-_ROWS // len(plain.files))
    latest = pipeline.time.latest(time.time_ns() // 1_000)
    parts: list[pa.Table] = []
    for file in plain.files:
        left = most
        for batch in batches_of(file, plain.form, plain.needed(columns)):
            rows = pa.Table.from_batches([batch.slice(0, left)])
            parts.append(plain.evaluated(rows, columns, [], latest))
            left -= rows.num_rows
            if left <= 0:
                break
    return (
        pa.concat_tables(parts) if parts else pa.table({name: pa.nulls(0, plain.types[name]) for name in columns} | {REASON: pa.nulls(0)})
    )


def _of_rows(pipeline: Pipeline, rows: pa.Table, files: int) -> Measured:
    reason = rows.column(REASON)
    reasons = Counter({each["values"]: each["counts"] for each in reason.drop_null().value_counts().to_pylist()})
    axis, timed = (pipeline.time.column, pipeline.time.end), pc.invert(pc.is_in(reason, pa.array(_OF_TIMES)))
    readable = {}
    for name in _columns(pipeline, dict.fromkeys(rows.column_names)):
        known = pc.is_valid(rows.column(name))
        readable[name] = pc.sum(pc.and_(known, timed) if name in axis else known, min_count=0).as_py()
    return Measured(rows.num_rows, files, dict(reasons.most_common()), readable, _examples(pipeline, rows))


def _examples(pipeline: Pipeline, rows: pa.Table) -> list[str]:
    """Lines that could not be read, with their places; else times that could not."""
    if UNREAD in rows.column_names and rows.column(UNREAD).null_count < rows.num_rows:
        return [text for text in details_of(rows.column(UNREAD).drop_null().slice(0, _EXAMPLES)) if text is not None]
    odd = rows.filter(pc.is_in(rows.column(REASON), pa.array(["bad_time", "time_out_of_range", "future_time"])))
    return [repr(str(value)[:_SHOWN]) for value in odd.column(pipeline.time.column).unique().slice(0, _EXAMPLES).to_pylist()]
