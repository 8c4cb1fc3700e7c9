"""Selects the rows of a table of slices or sessions that a batch needs: by condition, by file statistics, and up to a limit.

A condition is both SQL, for Spark and DataFusion, and an Arrow expression, for rows in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow.compute as pc

from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, GAP, LAST, LEVEL, REACHING, SLICE
from windowmill.windowing.nodes import Selection, Span


@dataclass(frozen=True, slots=True)
class OpenSessions:
    """The stored fragments of sessions with these ``gaps`` that are not closed at the instant ``closed``."""

    gaps: tuple[int, ...]
    closed: int

    def last_after(self, gap: int) -> int:
        """The instant after which the last event of an open session of ``gap`` lies."""
        # No event comes before the axis; further back a long gap would leave 64 bits.
        return max(self.closed - gap, AXIS_BEGIN) - 1


@dataclass(frozen=True, slots=True)
class WithSpans:
    """Stored slices and nodes, null for none, and the spans of all keys; a row of spans has at least one of ``columns``."""

    slices: Span | Selection | None
    columns: tuple[str, ...]


Wanted = Span | Selection | OpenSessions | WithSpans


@dataclass(frozen=True)
class Condition:
    """One condition on rows in two forms."""

    sql: str
    expression: pc.Expression


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """Limits on what this process reads of the state table without Spark.

    Attributes
    ----------
    span_bytes
        Size of the files that may hold a span of slices, open sessions, or live rows; a read takes most of them.
    searched_bytes
        Size of the files that are searched for nodes; a read takes little of them, because a level's rows are stored together. Of windows
        over positions: size of the row groups that are searched, before compression.
    rows
        Number of rows read, or of rows in the files that may hold a span, open sessions or live rows, or in a row group that is searched.
    """

    span_bytes: int
    searched_bytes: int
    rows: int

    def is_exceeded(self, wanted: Wanted, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files``, which are all files that may hold ``wanted`` rows, exceed the limits."""
        size = sum(int(file["size_bytes"]) for file in files)
        if isinstance(wanted, WithSpans):
            # The spans of a file lie together: a read takes little of it besides.
            slices = wanted.slices
            few = slices is None or not self.is_exceeded(slices, [file for file in files if may_hold(file, slices)])
            return size > self.searched_bytes or not few
        if isinstance(wanted, Selection):
            return size > self.searched_bytes
        return self.is_exceeded_by(files)

    def is_exceeded_by(self, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files`` are too large for this process to read most of them."""
        size = sum(int(file["size_bytes"]) for file in files)
        return size > self.span_bytes or sum(int(file["num_records"]) for file in files) > self.rows


def condition(wanted: Wanted, *, before_batch: int) -> Condition:
    """The condition for the ``wanted`` rows of the batches before ``before_batch``."""
    within = _within(wanted)
    return Condition(f"{BATCH} < {before_batch} AND {within.sql}", (pc.field(BATCH) < before_batch) & within.expression)


def rows_of_part(wanted: Wanted) -> pc.Expression:
    """The expression for all rows of the part that has the ``wanted`` ones, in a table that may have rows of others."""
    if isinstance(wanted, OpenSessions):
        return pc.field(GAP).is_valid()
    marks = (SLICE, *wanted.columns) if isinstance(wanted, WithSpans) else (SLICE,)
    return reduce(or_, (pc.field(name).is_valid() for name in marks))


def _within(wanted: Wanted) -> Condition:
    match wanted:
        case WithSpans():
            own = reduce(or_, (pc.field(column).is_valid() for column in wanted.columns)) & pc.field(SLICE).is_null()
            sql = span_condition(wanted.columns)
            if wanted.slices is None:
                return Condition(sql, own)
            slices = _within(wanted.slices)
            return Condition(f"({slices.sql} OR {sql})", slices.expression | own)
        case OpenSessions():
            return _open(wanted)
        case Selection():
            return _with_reaching(_selected(wanted), wanted)
        case Span():
            return _with_reaching(_starting_in(wanted), wanted)


def _with_reaching(begun: Condition, wanted: Span | Selection) -> Condition:
    """The condition for the ``wanted`` rows, given that for those whose events begin in their slice."""
    if wanted.reaching is None:
        return begun
    reaching, start = pc.field(REACHING), pc.field(SLICE)
    parts = [
        f"({REACHING} = 0 AND {begun.sql})",
        *(f"({REACHING} = 1 AND {SLICE} >= {low} AND {SLICE} < {high})" for low, high in wanted.reaching),
    ]
    within = [(reaching == 1) & (start >= low) & (start < high) for low, high in wanted.reaching]
    return Condition(f"({' OR '.join(parts)})", reduce(or_, within, (reaching == 0) & begun.expression))


def span_condition(columns: Sequence[str]) -> str:
    """The SQL condition for rows that hold spans, of which each has at least one of ``columns``."""
    return f"({SLICE} IS NULL AND ({' OR '.join(f'{column} IS NOT NULL' for column in columns)}))"


def _open(wanted: OpenSessions) -> Condition:
    gap, last = pc.field(GAP), pc.field(LAST)
    parts = [(gap == each) & (last > wanted.last_after(each)) for each in wanted.gaps]
    return Condition(f"({open_condition(wanted)})", reduce(or_, parts))


def open_condition(wanted: OpenSessions) -> str:
    """The SQL condition for the ``wanted`` fragments."""
    return " OR ".join(f"({GAP} = {gap} AND {LAST} > {wanted.last_after(gap)})" for gap in wanted.gaps)


def _starting_in(span: Span) -> Condition:
    start = pc.field(SLICE)
    return Condition(f"{SLICE} >= {span.low} AND {SLICE} < {span.high}", (start >= span.low) & (start < span.high))


def _selected(wanted: Selection) -> Condition:
    start, level = pc.field(SLICE), pc.field(LEVEL)
    slices = [(start >= low) & (start < high) for low, high in wanted.slices]
    slices.append((pc.field(CLOSED) > wanted.late_after) & (start >= wanted.late_from))
    parts = [(level == 0) & reduce(or_, slices)]
    parts += [(level == number) & start.isin(list(starts)) for number, starts in wanted.nodes]
    return Condition(f"({condition_of(wanted)})", reduce(or_, parts))


def condition_of(wanted: Selection) -> str:
    """The SQL condition for the ``wanted`` rows."""
    spans = [f"({SLICE} >= {low} AND {SLICE} < {high})" for low, high in wanted.slices]
    late = f"({CLOSED} > {wanted.late_after} AND {SLICE} >= {wanted.late_from})"
    slices = f"({LEVEL} = 0 AND ({' OR '.join([*spans, late])}))"
    nodes = [f"({LEVEL} = {level} AND {SLICE} IN ({', '.join(map(str, starts))}))" for level, starts in wanted.nodes]
    return " OR ".join([slices, *nodes])


def may_hold(file: Mapping[str, Any], wanted: Wanted) -> bool:
    """Whether the statistics of ``file`` allow ``wanted`` rows in it."""
    if isinstance(wanted, WithSpans):
        spans = any(file.get(f"null_count.{column}") != file["num_records"] for column in wanted.columns)
        return spans or (wanted.slices is not None and may_hold(file, wanted.slices))
    mark = GAP if isinstance(wanted, OpenSessions) else SLICE
    if file.get(f"null_count.{mark}") == file["num_records"]:
        return False  # all rows are of other parts
    if isinstance(wanted, OpenSessions):
        latest = file.get(f"max.{LAST}")
        return latest is None or any(latest > wanted.last_after(gap) for gap in wanted.gaps)
    if isinstance(wanted, Span):
        low, high = file.get(f"min.{SLICE}"), file.get(f"max.{SLICE}")
        return low is None or high is None or (low < wanted.high and high >= wanted.low)
    lowest, highest, first, last = (file.get(f"{bound}.{column}") for column in (LEVEL, SLICE) for bound in ("min", "max"))
    if lowest is None or highest is None or first is None or last is None:
        return True
    if any(low <= last and high > first for low, high in wanted.reaching or ()):
        return True
    if lowest == 0:
        latest = file.get(f"max.{CLOSED}")
        has_late = file.get(f"null_count.{CLOSED}") != file["num_records"] and (latest is None or latest > wanted.late_after)
        if (has_late and last >= wanted.late_from) or any(low <= last and high > first for low, high in wanted.slices):
            return True
    return any(lowest <= level <= highest and any(first <= start <= last for start in starts) for level, starts in wanted.nodes)
