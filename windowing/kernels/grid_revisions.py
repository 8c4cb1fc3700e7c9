"""Versions of a grid's windows for late rows that arrived before the window was closed: one version for those that arrived together.

Rows are in order of their start; their greatest end so far (:func:`reaches`) ascends with them, so that a bisection finds the first row
that may still last into a window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.arrays import bisect_right
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inner, njit
from windowmill.windowing.kernels.grid_arithmetic import NumberedWindows, end_of, first_after, is_listed_past, start_of
from windowmill.windowing.kernels.rows import Rows


class Arrivals(NamedTuple):
    """Instants at each row's arrival; shapes (n_rows,).

    Attributes
    ----------
    watermark, closed
        The watermark, and the instant through which windows were closed.
    before_first, before_last
        Span of the key's rows; ``before_last <= before_first`` if it had none.
    """

    watermark: Ints
    closed: Ints
    before_first: Ints
    before_last: Ints


class Revisions(NamedTuple):
    """Versions of windows.

    Attributes
    ----------
    key, window, revision
        Of each version; shapes (n_versions,).
    member_offsets, members
        Offsets of the rows of each version, shape (n_versions + 1,), and those rows: on-time ones first, then late ones by arrival.
    """

    key: Ints
    window: Ints
    revision: Ints
    member_offsets: Ints
    members: Ints


@njit
def reaches(offsets: Ints, stop: Ints) -> Ints:
    """The greatest end of each row and those of its key before it: rows up to one whose reach is not past a start end before it."""
    reach = stop.copy()
    for key in range(len(offsets) - 1):
        for row in range(offsets[key] + 1, offsets[key + 1]):
            reach[row] = max(reach[row], reach[row - 1])
    return reach


@njit
def first_late(grid: NumberedWindows, rows: Rows, watermark: Ints, closed: Ints, key: Ints, window: Ints) -> Ints:
    """The first row that arrived in each window (key, number) after the watermark had passed it and before it was closed; −1 for none."""
    offsets, time, stop, moment = rows
    found = np.full(len(key), -1, np.int64)
    reach = reaches(offsets, stop)
    for index in range(len(key)):
        begin, finish = offsets[key[index]], offsets[key[index] + 1]
        start, end = start_of(grid, window[index]), end_of(grid, window[index])
        for row in range(bisect_right(reach, start, begin, finish), finish):
            if time[row] >= end:
                break
            late = watermark[row] >= end and closed[row] < end and stop[row] > start
            if late and (found[index] < 0 or moment[row] < moment[found[index]]):
                found[index] = row
    return found


@njit
def late_revisions(
    grid: NumberedWindows, rows: Rows, watermark: Ints, closed: Ints, new: Bools, before_first: Ints, before_last: Ints
) -> Any:
    """Make a version of a window for each moment at which new rows arrived after the watermark had passed it and before it was closed.

    Parameters
    ----------
    before_first, before_last
        As in :class:`Arrivals`: a window without on-time rows that overlaps this span was emitted empty before its first late row.

    Returns
    -------
    tuple
        The columns of :class:`Revisions`.
    """
    met, reach, none = Arrivals(watermark, closed, before_first, before_last), reaches(rows.offsets, rows.stop), np.empty(0, np.int64)
    n, n_members = _revise(grid, rows, met, new, reach, False, Revisions(none, none, none, none, none))
    key, window, revision = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    # Rows of a version are listed before it is known whether another row has brought it: room for one version more.
    member_offsets, members = np.zeros(n + 1, np.int64), np.empty(n_members + len(rows.time), np.int64)
    _revise(grid, rows, met, new, reach, True, Revisions(key, window, revision, member_offsets, members))
    return key, window, revision, member_offsets, members[:n_members]


@helper
def _revise(grid: NumberedWindows, rows: Rows, met: Arrivals, new: Bools, reach: Ints, write: bool, out: Revisions) -> Any:
    """Number of versions and of their rows; filled in only where ``write``."""
    n = n_members = 0
    for key in range(len(rows.offsets) - 1):
        begin, finish = rows.offsets[key], rows.offsets[key + 1]
        for late in range(begin, finish):
            if not new[late]:
                continue
            window = first_after(grid, max(rows.time[late], met.closed[late]))
            while not is_listed_past(grid, window):
                start, end = start_of(grid, window), end_of(grid, window)
                if start >= rows.stop[late] or end > met.watermark[late] or end < start:
                    break
                first = bisect_right(reach, start, begin, finish)
                held, on_time, earliest, is_first = _list_held(rows, met, late, first, finish, start, end, write, out.members, n_members)
                if write and is_first:
                    shown = on_time > 0 or _stood(met, earliest, start, end)
                    out.key[n], out.window[n] = key, window
                    out.member_offsets[n + 1] = n_members + held
                    moments = _late_last(out.members[n_members : n_members + held], on_time, rows.moment, met.watermark, end)
                    out.revision[n] = moments - 1 + (1 if shown else 0)
                if is_first:
                    n_members += held
                    n += 1
                window += 1
    return n, n_members


@inner
def _list_held(
    rows: Rows, met: Arrivals, late: int, first: int, finish: int, start: int, end: int, write: bool, members: Ints, begun: int
) -> Any:
    """List the rows of [start, end) that had arrived by ``late``.

    Returns their number, that of on-time ones, the first late row, and whether no late row before ``late`` arrived together with it.
    """
    held = on_time = 0
    earliest, is_first = late, True
    for row in range(first, finish):
        if rows.time[row] >= end:
            break
        if rows.stop[row] > start and rows.moment[row] <= rows.moment[late] and met.closed[row] < end:
            if write:
                members[begun + held] = row
            held += 1
            if met.watermark[row] < end:
                on_time += 1
            elif rows.moment[row] < rows.moment[earliest]:
                earliest = row
            elif row < late and rows.moment[row] == rows.moment[late]:
                is_first = False
    return held, on_time, earliest, is_first


@inner
def _stood(met: Arrivals, earliest: int, start: int, end: int) -> Any:
    """Whether the window was emitted empty before its first late row: it overlapped the span of its key's rows then."""
    first, last = met.before_first[earliest], met.before_last[earliest]
    return first < last and first < end and last > start


@helper
def _late_last(members: Ints, on_time: int, moment: Ints, watermark: Ints, end: int) -> Any:
    """Move on-time rows to the front in their order, followed by late rows in order of arrival; returns the number of moments of these."""
    late, arrival = np.empty(len(members) - on_time, np.int64), np.empty(len(members) - on_time, np.int64)
    n_late = 0
    for place in range(len(members)):
        row = members[place]
        if watermark[row] < end:
            members[place - n_late] = row
        else:
            late[n_late], arrival[n_late] = row, moment[row]
            n_late += 1
    moments = 0
    for rank, index in enumerate(np.argsort(arrival, kind="mergesort")):
        members[on_time + rank] = late[index]
        if rank == 0 or moment[late[index]] != moment[members[on_time + rank - 1]]:
            moments += 1
    return moments
