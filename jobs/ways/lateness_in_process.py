"""Finds the late rows of a small batch in this process, as :mod:`windowmill.jobs.ways.lateness_on_spark` does in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.columns import FILE, REASON
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, WindowGrid
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LATE, ORDER, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.grids import closing_of

if TYPE_CHECKING:
    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.kernels.combine import Ints


def seen_after(rows: pa.Table, seen: int | None) -> int | None:
    """Greatest event time after ``rows``, given ``seen`` before them; null if no row ever had one."""
    highest = pc.max(_usable_times(rows)).as_py()
    return max((time for time in (seen, highest) if time is not None), default=None)


def judged(rows: pa.Table, batch: Input, grids: Sequence[WindowGrid]) -> pa.Table:
    """Judge the rows of ``batch``, in order of arrival, as :func:`windowmill.jobs.ways.lateness_on_spark.judged`; O(n)."""
    if batch.closed_by_file is not None:
        closed = _closed_by_file(rows, batch.closed_by_file)
        return judge_by(rows, closed, lateness=batch.lateness, grids=grids, revises=batch.revises)
    return judge(
        rows,
        seen=batch.seen,
        disorder=batch.disorder,
        lateness=batch.lateness,
        grids=grids,
        settled=batch.settled,
        revises=batch.revises,
    )


def revised_after(judged: pa.Table, lateness: int) -> int | None:
    """An instant after which all windows end that ``judged`` rows revise; null if none does."""
    if ARRIVAL not in judged.column_names:
        return None
    late = judged.filter(pc.and_(pc.is_valid(judged.column(ARRIVAL)), pc.is_null(judged.column(REASON))))
    after = pc.max_element_wise(late.column(TIME), pc.subtract(late.column(CLOSED), lateness))
    least: int | None = pc.min(after).as_py()
    return least


def marked(rows: pa.Table, batch: Input) -> pa.Table:
    """Add to rows in order of arrival the watermark at arrival, ``_closed`` (through which windows were closed), and ``_late``; O(n)."""
    if batch.closed_by_file is not None:
        watermark = _closed_by_file(rows, batch.closed_by_file) + batch.lateness
    else:
        before, _ = _before_and_through(rows, batch.seen, batch.settled)
        watermark = before - batch.disorder
    late = pc.less(pc.fill_null(_usable_times(rows), AXIS_END), pa.array(watermark))
    own = {LATE: late, CLOSED: pa.array(watermark - batch.lateness), WATERMARK_OF: pa.array(watermark)}
    for name, column in own.items():
        rows = rows.append_column(name, column)
    return rows


def judge(
    rows: pa.Table,
    *,
    seen: int | None,
    disorder: int,
    lateness: int,
    grids: Sequence[WindowGrid],
    settled: int = 0,
    revises: bool = False,
) -> pa.Table:
    """Judge rows that follow others with event times up to ``seen``; rows of the first ``settled`` files are never late."""
    _, greatest = _before_and_through(rows, seen, settled)
    return _close(rows, greatest - (disorder + lateness), greatest - disorder, grids, revises=revises)


def judge_by(rows: pa.Table, closed: Ints, *, lateness: int, grids: Sequence[WindowGrid], revises: bool = False) -> pa.Table:
    """Judge rows, given the instant through which windows were closed at each row's arrival; ``closed`` has shape (n_rows,)."""
    return _close(rows, closed, closed + lateness, grids, revises=revises)


def last_instants(rows: pa.Table) -> Ints | None:
    """The last instant of each row's event; null if events are points."""
    if UNTIL_OF not in rows.column_names:
        return None
    until, time = (rows.column(name).to_numpy() for name in (UNTIL_OF, TIME))
    return np.asarray(np.maximum(until - 1, time), np.int64)


def _before_and_through(rows: pa.Table, seen: int | None, settled: int) -> tuple[Ints, Ints]:
    """Greatest event time before each row, and through it; before all others in the first ``settled`` files."""
    times = pc.fill_null(_usable_times(rows), AXIS_BEGIN).to_numpy()
    greatest = np.maximum.accumulate(np.append(AXIS_BEGIN if seen is None else seen, times))
    counts = rows.column(FILE).to_numpy() >= settled
    return np.where(counts, greatest[:-1], AXIS_BEGIN), np.where(counts, greatest[1:], AXIS_BEGIN)


def _closed_by_file(rows: pa.Table, by_file: Sequence[int]) -> Ints:
    """The instant through which windows were closed at each row's arrival, by vouched time."""
    closed: Ints = np.array(by_file, np.int64)[rows.column(FILE).to_numpy()]
    return closed


def _usable_times(rows: pa.Table) -> pa.ChunkedArray:
    return pc.if_else(pc.is_null(rows.column(REASON)), rows.column(TIME), pa.scalar(None, pa.int64()))


def _close(rows: pa.Table, closed: Ints, watermark: Ints, grids: Sequence[WindowGrid], *, revises: bool) -> pa.Table:
    """Mark late rows. ``closed`` never passes the watermark, so only rows behind the watermark can be late for a window."""
    times = pc.fill_null(_usable_times(rows), AXIS_END).to_numpy()
    late = times < watermark
    if not late.any():
        return rows
    behind = np.flatnonzero(late)
    found = closing_of(grids, times[behind], closed[behind], last_instants(rows.take(pa.array(behind))))
    too_late, shut, edges = np.zeros(len(times), np.bool_), np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    too_late[behind] = (found.last_end > times[behind]) & (found.last_end <= closed[behind])
    if revises:
        shut[behind], edges[behind] = found.first_end <= watermark[behind], watermark[behind]
    else:
        shut[behind], edges[behind] = found.first_end <= closed[behind], found.edge
    reason = pc.if_else(pa.array(too_late), "too_late", rows.column(REASON))
    judged = rows.set_column(rows.schema.get_field_index(REASON), REASON, reason)
    judged = judged.append_column(LATE, pa.array(late)).append_column(CLOSED, pa.array(edges, mask=~shut))
    if not revises:
        return judged
    order = np.arange(len(times))
    return judged.append_column(ARRIVAL, pa.array(order, mask=~shut)).append_column(ORDER, pa.array(order))
