"""Finds the late rows of a small batch in this process, as :mod:`windowmill.jobs.ways.lateness_on_spark` does in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.columns import FILE, REASON
from windowmill.jobs.ways.row_numbers import numbers_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, WindowGrid
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LATE, ORDER, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.grids import closing_of
from windowmill.windowing.watermark import BEFORE, Clock, moments_of

if TYPE_CHECKING:
    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.kernels.combine import Ints


class Rule(Protocol):
    """What decides which rows are late, in ticks of the axis: those of an :class:`.Input`, or of rows that tasks read."""

    @property
    def lateness(self) -> int: ...

    @property
    def by_row(self) -> bool: ...

    @property
    def revises(self) -> bool: ...


def seen_after(rows: pa.Table, seen: int | None) -> int | None:
    """Greatest event time after ``rows``, given ``seen`` before them; null if no row ever had one."""
    highest = pc.max(_usable_times(rows)).as_py()
    return max((time for time in (seen, highest) if time is not None), default=None)


def watermarks(rows: pa.Table, batch: Input) -> Ints:
    """The watermark at the arrival of each of the ``rows`` of ``batch``, in order of arrival; int64, shape (n_rows,). O(n)."""
    files = rows.column(FILE).to_numpy()
    if batch.closed_by_file is not None:
        return np.asarray(np.array(batch.closed_by_file, np.int64)[files] + batch.lateness, np.int64)
    clock = Clock(batch.disorder, 0, seen=BEFORE if batch.seen is None else batch.seen, by_row=batch.by_row)
    times = pc.fill_null(_usable_times(rows), BEFORE).to_numpy()
    _, found = clock.arrive(times, times > BEFORE, numbers_of(rows, batch))
    return np.where(files < batch.settled, AXIS_BEGIN, np.maximum(found, AXIS_BEGIN))


def marked(rows: pa.Table, batch: Input) -> pa.Table:
    """Add to rows in order of arrival the watermark at arrival, ``_closed`` (through which windows were closed), and ``_late``."""
    return marked_at(rows, watermarks(rows, batch), batch.lateness)


def marked_at(rows: pa.Table, watermark: Ints, lateness: int) -> pa.Table:
    """As :func:`marked`, with this ``watermark`` at the arrival of each row."""
    late = pc.less(pc.fill_null(_usable_times(rows), AXIS_END), pa.array(watermark))
    own = {LATE: late, CLOSED: pa.array(watermark - lateness), WATERMARK_OF: pa.array(watermark)}
    for name, column in own.items():
        rows = rows.append_column(name, column)
    return rows


def judged(rows: pa.Table, batch: Input, grids: Sequence[WindowGrid]) -> pa.Table:
    """Judge the rows of ``batch``, in order of arrival, as :func:`windowmill.jobs.ways.lateness_on_spark.judged`."""
    watermark = watermarks(rows, batch)
    if not (pc.fill_null(_usable_times(rows), AXIS_END).to_numpy() < watermark).any():
        return rows
    return judged_at(rows, watermark, numbers_of(rows, batch), batch, grids)


def judged_at(rows: pa.Table, watermark: Ints, numbers: Ints, rule: Rule, grids: Sequence[WindowGrid]) -> pa.Table:
    """As :func:`judged`, with this ``watermark`` at each row's arrival, and these ``numbers``; always adds ``_late`` and the others."""
    closed = watermark - rule.lateness  # never past the watermark, so only rows behind the watermark can be late for a window
    times = pc.fill_null(_usable_times(rows), AXIS_END).to_numpy()
    late = times < watermark
    behind = np.flatnonzero(late)
    found = closing_of(grids, times[behind], closed[behind], last_instants(rows.take(pa.array(behind))))
    too_late, shut, edges = np.zeros(len(times), np.bool_), np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    too_late[behind] = (found.last_end > times[behind]) & (found.last_end <= closed[behind])
    if rule.revises:
        shut[behind], edges[behind] = found.first_end <= watermark[behind], watermark[behind]
    else:
        shut[behind], edges[behind] = found.first_end <= closed[behind], found.edge
    reason = pc.if_else(pa.array(too_late), "too_late", rows.column(REASON))
    judged = rows.set_column(rows.schema.get_field_index(REASON), REASON, reason)
    judged = judged.append_column(LATE, pa.array(late)).append_column(CLOSED, pa.array(edges, mask=~shut))
    if not rule.revises:
        return judged
    moments = moments_of(numbers, by_row=rule.by_row)
    return judged.append_column(ARRIVAL, pa.array(moments, mask=~shut)).append_column(ORDER, pa.array(moments))


def revised_after(judged: pa.Table, lateness: int) -> int | None:
    """An instant after which all windows end that ``judged`` rows revise; null if none does."""
    if ARRIVAL not in judged.column_names:
        return None
    late = judged.filter(pc.and_(pc.is_valid(judged.column(ARRIVAL)), pc.is_null(judged.column(REASON))))
    after = pc.max_element_wise(late.column(TIME), pc.subtract(late.column(CLOSED), lateness))
    least: int | None = pc.min(after).as_py()
    return least


def last_instants(rows: pa.Table) -> Ints | None:
    """The last instant of each row's event; null if events are points."""
    if UNTIL_OF not in rows.column_names:
        return None
    until, time = (rows.column(name).to_numpy() for name in (UNTIL_OF, TIME))
    return np.asarray(np.maximum(until - 1, time), np.int64)


def _usable_times(rows: pa.Table) -> pa.ChunkedArray:
    return pc.if_else(pc.is_null(rows.column(REASON)), rows.column(TIME), pa.scalar(None, pa.int64()))
