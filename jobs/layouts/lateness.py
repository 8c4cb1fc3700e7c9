"""The order in which rows arrive, and how they are judged by the watermark at their arrival.

Rows are numbered in order of arrival over all batches. The state keeps these numbers, so they are the same on Spark and in this process.
The high bits of a number are the number of the row's commit (:data:`windowmill.windowing.watermark.COMMIT_SHIFT`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.unusable_rows import with_too_late
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import (
    ARRIVAL,
    CLOSED,
    FILE,
    LATE,
    MISSED,
    NUMBER_OF,
    ORDER,
    REASON,
    REFUSED,
    ROW,
    TIME,
    UNTIL_OF,
    WATERMARK_OF,
)
from windowmill.windowing.errors import LimitExceededError
from windowmill.windowing.grids import closing_of
from windowmill.windowing.slicing.edges import WindowGrid
from windowmill.windowing.watermark import AFTER, BEFORE, COMMIT_SHIFT, LatenessRule, commits_of

if TYPE_CHECKING:
    from windowmill.jobs.layouts.input import Input
    from windowmill.windowing.kernels.combine import Ints

#: Greatest number of a commit.
_MAX_COMMIT = (1 << 62 - COMMIT_SHIFT) - 1
#: Columns of a new row that decide whether it is too late.
JUDGED_BY = pa.schema([*((name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, CLOSED)), (LATE, pa.bool_())])


def starts_of(rows: Sequence[int], commits: Sequence[int], first_row: int = 0) -> Ints:
    """Number before the first row of each file; int64, shape (n_files,).

    - ``rows``: for each file, one more than the greatest index of a row in it.
    - ``commits``: the number of each file's commit, ascending; empty if each file is a commit.
    - ``first_row``: the place of the first row among those of its commit.
    """
    through, commit = np.cumsum(np.array(rows, np.int64)), np.array((commits or range(len(rows)))[: len(rows)], np.int64)
    before = through - np.array(rows, np.int64)
    before -= before[np.searchsorted(commit, commit)]
    before[commit == commit[:1]] += first_row
    if len(rows) and int((before + rows).max()) > 1 << COMMIT_SHIFT:
        raise LimitExceededError(f"a commit of the source has more than {1 << COMMIT_SHIFT:,} rows; append them in several commits")
    if len(rows) and int(commit[-1]) > _MAX_COMMIT:
        raise LimitExceededError(
            f"version {int(commit[-1]):,} of the source: rows can be numbered up to version {_MAX_COMMIT:,}; copy them into a new "
            "table, or number the versions of a source of your own from 0"
        )
    return (commit << COMMIT_SHIFT) + before


def numbers_of(rows: pa.Table, batch: Input) -> Ints:
    if NUMBER_OF in rows.column_names:
        return np.asarray(rows.column(NUMBER_OF).to_numpy(), np.int64)
    file, row = rows.column(FILE).to_numpy(), rows.column(ROW).to_numpy()
    counts = np.zeros(int(file.max()) + 1 if len(file) else 0, np.int64)
    np.maximum.at(counts, file, row + 1)
    return np.asarray(starts_of(counts.tolist(), batch.commits, batch.first_row)[file] + row, np.int64)


def seen_after(rows: pa.Table, seen: int | None) -> int | None:
    """Greatest event time after ``rows``, given ``seen`` before them; null if no row ever had one."""
    highest = pc.max(usable_times(rows)).as_py()
    return max((time for time in (seen, highest) if time is not None), default=None)


def arrived(rows: pa.Table, batch: Input) -> pa.Table:
    """Add numbers and the watermark at arrival to all rows in order of arrival; some of the rows alone must have both. O(n)."""
    if WATERMARK_OF in rows.column_names:
        return rows
    files, times = rows.column(FILE).to_numpy(), pc.fill_null(usable_times(rows), BEFORE).to_numpy()
    numbers = numbers_of(rows, batch)
    return with_arrival(rows, numbers, watermarks_at_arrival(files, commits_of(numbers), times, batch))


def with_arrival(rows: pa.Table, numbers: Ints, watermarks: Ints | None) -> pa.Table:
    """Add these ``numbers``, and ``watermarks`` at the rows' arrival, which are null if none of the rows can be late."""
    found = pa.nulls(rows.num_rows, pa.int64()) if watermarks is None else pa.array(watermarks)
    if NUMBER_OF not in rows.column_names:
        rows = rows.append_column(NUMBER_OF, pa.array(numbers))
    return rows.append_column(WATERMARK_OF, found)


def watermarks_at_arrival(files: Ints, commits: Ints, highs: Ints, batch: Input) -> Ints:
    """The watermark that each of several groups of rows of ``batch`` finds; int64, shape (n_groups,).

    It is the greatest event time of earlier commits minus the disorder, and ``AXIS_BEGIN`` for a snapshot, whose rows count as arrived in
    order of event time; or that of the interval's end, if the orchestrator guarantees intervals.

    ``files``, ``commits``: the index of each group's file, and the number of its commit; ascending. ``highs``: the greatest event time of
    each group; ``BEFORE`` if it has none.
    """
    if batch.closed_by_file is not None:
        return np.clip(np.array(batch.closed_by_file, np.int64)[files] + batch.rule.lateness, *batch.rule.watermarks)
    return np.asarray(np.where(files < batch.snapshot_files, AXIS_BEGIN, batch.rule.at_arrival(commits, highs, batch.seen)))


def marked(rows: pa.Table, rule: LatenessRule) -> pa.Table:
    """Add ``_late``, and ``_closed``, through which windows were closed, by the watermark at arrival; points end at their time."""
    watermark = rows.column(WATERMARK_OF)
    rows = rows.append_column(LATE, pc.fill_null(pc.less(usable_times(rows), watermark), False))
    closed = pc.subtract(watermark, rule.lateness)
    if rule.closings != (BEFORE, AFTER):
        least, most = rule.closings
        closed = pc.max_element_wise(pc.min_element_wise(closed, most, skip_nulls=False), least, skip_nulls=False)
    rows = rows.append_column(CLOSED, closed)
    return rows if UNTIL_OF in rows.column_names else rows.append_column(UNTIL_OF, rows.column(TIME))


def judged(rows: pa.Table, batch: Input, grids: Sequence[WindowGrid]) -> pa.Table:
    """As :func:`judged_at`, of the rows of ``batch`` in order of arrival; the rows themselves if none of them is late."""
    own = arrived(rows, batch)
    if not pc.any(pc.less(usable_times(own), own.column(WATERMARK_OF))).as_py():
        return rows
    return judged_at(own, batch.rule, grids)


def judged_at(rows: pa.Table, rule: LatenessRule, grids: Sequence[WindowGrid]) -> pa.Table:
    """Add ``_late`` and ``_closed`` to rows for windows on ``grids``, and the reason ``too_late`` to those for which no window was open.

    ``_late`` is whether the row arrived behind the watermark. ``_closed`` is null if every window that contains the row was open at its
    arrival. Otherwise it is a slice edge, and the row counts in the windows of ``grids`` that end after it.

    ``_refused`` marks those rows, and ``_ missed 0``, ``_ missed 1``, … for each grid those that came too late for one of its windows.

    Where late rows bring revisions, ``_closed`` is null if no window that contains the row had been shown at its arrival. Otherwise it is
    the instant through which windows had been, the watermark, and ``_arrival`` is the number of the row's commit. ``_order`` is that number
    of every row.

    ``rows``: rows from :func:`with_arrival`; the result lacks the columns that it added.
    """
    watermark = pc.fill_null(rows.column(WATERMARK_OF), AXIS_BEGIN).to_numpy()
    closed = np.clip(
        watermark - rule.lateness, *rule.closings
    )  # never past the watermark, so only rows behind the watermark can be late for a window
    times = pc.fill_null(usable_times(rows), AXIS_END).to_numpy()
    late = times < watermark
    behind = np.flatnonzero(late)
    found = closing_of(grids, times[behind], closed[behind], last_instants(rows.take(pa.array(behind))))
    too_late, shut, edges = np.zeros(len(times), np.bool_), np.zeros(len(times), np.bool_), np.zeros(len(times), np.int64)
    too_late[behind] = (found.last_end > times[behind]) & (found.last_end <= closed[behind])
    if rule.revises:
        shown = np.minimum(watermark[behind], rule.shown)
        shut[behind], edges[behind] = found.first_end <= shown, shown
    else:
        shut[behind], edges[behind] = found.first_end <= closed[behind], found.edge
    done = with_too_late(rows, pa.array(too_late)).drop_columns([NUMBER_OF, WATERMARK_OF])
    done = done.append_column(LATE, pa.array(late)).append_column(CLOSED, pa.array(edges, mask=~shut))
    done = done.append_column(REFUSED, pa.array(too_late))
    for index, missed in enumerate(found.missed):
        marks = np.zeros(len(times), np.bool_)
        marks[behind] = missed
        done = done.append_column(f"{MISSED} {index}", pa.array(marks))
    if not rule.revises:
        return done
    commits = commits_of(rows.column(NUMBER_OF).to_numpy())
    return done.append_column(ARRIVAL, pa.array(commits, mask=~shut)).append_column(ORDER, pa.array(commits))


def too_late_among(rows: pa.Table, refused: Ints | None, grids: Sequence[WindowGrid]) -> Ints:
    """Numbers of those of the usable ``rows`` that came too late for all parts.

    - ``rows``: rows with the columns of ``JUDGED_BY``.
    - ``refused``: numbers of the rows that all refusing parts refuse; null if no part refuses rows.
    - ``grids``: the grids of the other parts.
    """
    rows = rows.filter(rows.column(LATE) if refused is None else pc.is_in(rows.column(NUMBER_OF), pa.array(refused)))
    number, time = (rows.column(name).to_numpy() for name in (NUMBER_OF, TIME))
    closed = pc.fill_null(rows.column(CLOSED), AXIS_BEGIN).to_numpy()
    if not len(number) or not grids:
        return np.asarray(number, np.int64)
    last_end = closing_of(grids, time, closed, last_instants(rows)).last_end
    uncounted = last_end <= np.maximum(time, closed)
    return np.asarray(number[uncounted if refused is not None else uncounted & (last_end > time)], np.int64)


def revised_after(judged: pa.Table | None, lateness: int) -> int | None:
    """Lower bound of the ends of the windows that ``judged`` rows revise; null if they revise none."""
    if judged is None or ARRIVAL not in judged.column_names:
        return None
    late = judged.filter(pc.and_(pc.is_valid(judged.column(ARRIVAL)), pc.is_null(judged.column(REASON))))
    after = pc.max_element_wise(late.column(TIME), pc.subtract(late.column(CLOSED), lateness))
    least: int | None = pc.min(after).as_py()
    return least


def usable(rows: pa.Table) -> pa.Table:
    """Those of ``rows`` without a quarantine reason."""
    reason = rows.column(REASON)
    return rows if reason.null_count == rows.num_rows else rows.filter(pc.is_null(reason))


def to_lift(rows: pa.Table) -> pa.Table:
    """The usable ``rows`` and those that came too late, which are to be counted; without the columns of reasons and places."""
    chosen = pc.is_null(rows.column(REASON))
    if REFUSED in rows.column_names:
        chosen = pc.or_(chosen, rows.column(REFUSED))
    own = [name for name in rows.column_names if name not in (FILE, ROW, REASON)]
    return (rows if rows.column(REASON).null_count == len(rows) else rows.filter(chosen)).select(own)


def last_instants(rows: pa.Table) -> Ints | None:
    """The last instant of each row's event; null if events are points."""
    if UNTIL_OF not in rows.column_names:
        return None
    until, time = (rows.column(name).to_numpy() for name in (UNTIL_OF, TIME))
    return np.asarray(np.maximum(until - 1, time), np.int64)


def usable_times(rows: pa.Table) -> pa.ChunkedArray:
    """The event time of each row; null for a row with a quarantine reason."""
    if REASON not in rows.column_names:
        return rows.column(TIME)
    return pc.if_else(pc.is_null(rows.column(REASON)), rows.column(TIME), pa.scalar(None, pa.int64()))
