"""Grids of windows along the axis: bounds of a window by its number, and the non-empty windows as ranges of rows.

Hopping windows are numbered by arithmetic. Calendar windows are listed, and found by bisection.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.arrays import Rows, bisect_left, bisect_right
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import inlined, inner, njit
from windowmill.windowing.watermark import BEFORE

HOPPING, CUMULATIVE, LISTED = 0, 1, 2


class NumberedWindows(NamedTuple):
    """Windows numbered along the axis, in ticks."""

    #: Mode, origin, hop, size, step, steps per period; shape (6,). Windows are numbered from the origin (HOPPING: one per hop; CUMULATIVE:
    #: ``steps`` per period of ``size``) or listed (LISTED: calendars).
    rule: Ints
    #: Bounds of listed windows, ends ascending; empty in other modes.
    starts: Ints
    ends: Ints


@inner
def start_of(grid: NumberedWindows, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3]
    return grid.starts[window]


@inner
def end_of(grid: NumberedWindows, window: int) -> Any:
    rule = grid.rule
    if rule[0] == HOPPING:
        return rule[1] + window * rule[2] + rule[3]
    if rule[0] == CUMULATIVE:
        return rule[1] + window // rule[5] * rule[3] + (window % rule[5] + 1) * rule[4]
    return grid.ends[window]


@inner
def is_listed_past(grid: NumberedWindows, window: int) -> Any:
    """Whether ``window`` lies past the end of a listed grid; other grids are unbounded."""
    return grid.rule[0] == LISTED and window >= len(grid.ends)


@inner
def first_after(grid: NumberedWindows, instant: int) -> Any:
    """The first window that ends after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return (instant - rule[3] - rule[1]) // rule[2] + 1
    if rule[0] == CUMULATIVE:
        period = (instant - rule[1]) // rule[3]
        return period * rule[5] + (instant - rule[1] - period * rule[3]) // rule[4]
    return bisect_right(grid.ends, instant, 0, len(grid.ends))


@inner
def first_from(grid: NumberedWindows, instant: int) -> Any:
    """The first window that starts at or after ``instant``."""
    rule = grid.rule
    if rule[0] == HOPPING:
        return -((rule[1] - instant) // rule[2])
    if rule[0] == CUMULATIVE:
        return -((rule[1] - instant) // rule[3]) * rule[5]
    return bisect_left(grid.starts, instant, 0, len(grid.starts))


class RowWindows(NamedTuple):
    """In which windows each row counts; shapes (n_rows,)."""

    regular: Bools  #: Rows that count in every window that they overlap.
    seen: Ints  #: Number of regular rows before each row; shape (n_rows + 1,).
    marks: Ints  #: Other rows count in windows that end after their mark.


class Ranges(NamedTuple):
    """Windows as ranges among the regular rows."""

    #: Of each window; shapes (n_windows,).
    key: Ints
    number: Ints
    lo: Ints
    hi: Ints
    #: Offsets of each window's further rows, shape (n_windows + 1,), and the rows: regular ones that begin before the window, and others.
    member_offsets: Ints
    members: Ints


@njit
def grid_windows(grid: NumberedWindows, rows: Rows, intervals: bool, regular: Bools, marks: Ints, after: int, through: int) -> Any:
    """Find every window with end in (``after``, ``through``] that holds a row; for points O(number of rows and windows).

    Parameters
    ----------
    intervals
        Whether rows are intervals; otherwise their ends are not read.
    regular, marks
        As in :class:`RowWindows`.

    Returns
    -------
    tuple
        The columns of :class:`Ranges`.
    """
    n, none = len(rows.time), np.empty(0, np.int64)
    seen = np.zeros(n + 1, np.int64)
    for row in range(n):
        seen[row + 1] = seen[row] + (1 if regular[row] else 0)
    counted, active = RowWindows(regular, seen, marks), np.empty(n, np.int64)
    windows, listed = _sweep(grid, rows, counted, intervals, after, through, active, False, Ranges(none, none, none, none, none, none))
    key, number, lo, hi = np.empty(windows, np.int64), np.empty(windows, np.int64), np.empty(windows, np.int64), np.empty(windows, np.int64)
    member_offsets, members = np.zeros(windows + 1, np.int64), np.empty(listed, np.int64)
    out = Ranges(key, number, lo, hi, member_offsets, members)
    _sweep(grid, rows, counted, intervals, after, through, active, True, out)
    return key, number, lo, hi, member_offsets, members


@inner
def _sweep(
    grid: NumberedWindows,
    rows: Rows,
    counted: RowWindows,
    intervals: bool,
    after: int,
    through: int,
    active: Ints,
    write: bool,
    out: Ranges,
) -> Any:
    """Numbers of windows and of their further rows; fills ``out`` only if ``write``. ``active`` is scratch space, shape (n_rows,)."""
    time, seen = rows.time, counted.seen
    n_windows = n_members = 0
    for key in range(len(rows.offsets) - 1):
        first, last = rows.offsets[key], rows.offsets[key + 1]
        if first == last:
            continue
        lo = hi = first
        n_active = 0  # rows that began before the window, and last into it
        before = ended = BEFORE
        window = first_after(grid, max(after, time[first]))
        while not is_listed_past(grid, window):
            start, end = start_of(grid, window), end_of(grid, window)
            if end > through or end < ended:  # beyond int64 there are no windows
                break
            ended = end
            while hi < last and time[hi] < end:
                hi += 1
            if start < before:  # where the clocks go forward, a later window of a calendar may start earlier
                lo, n_active = first if intervals else bisect_left(time, start, first, hi), 0
            while lo < hi and time[lo] < start:
                if intervals:
                    active[first + n_active] = lo
                    n_active += 1
                lo += 1
            before = start
            n_active = _last_into(start, rows.stop, active, first, n_active)
            listed = _list_further(counted, active, first, n_active, lo, hi, end, write, out.members, n_members)
            if seen[hi] - seen[lo] + listed > 0:
                n_members += listed
                if write:
                    out.key[n_windows], out.number[n_windows], out.lo[n_windows], out.hi[n_windows] = key, window, seen[lo], seen[hi]
                    out.member_offsets[n_windows + 1] = n_members
                n_windows += 1
            elif lo == hi and n_active == 0:
                if hi == last:
                    break
                window = max(window + 1, first_after(grid, time[hi]))
                continue
            window += 1
    return n_windows, n_members


@inlined
def _last_into(start: int, stop: Ints, active: Ints, first: int, n_active: int) -> Any:
    """Keep the rows of ``active[first:first + n_active]`` that end after ``start``; returns their number."""
    kept = 0
    for place in range(first, first + n_active):
        row = active[place]
        if stop[row] > start:
            active[first + kept] = row
            kept += 1
    return kept


@inlined
def _list_further(
    counted: RowWindows, active: Ints, first: int, n_active: int, lo: int, hi: int, end: int, write: bool, members: Ints, n_members: int
) -> Any:
    """List the active rows and irregular rows of lo:hi that count in a window that ends at ``end``; returns their number."""
    regular, marks = counted.regular, counted.marks
    listed = 0
    for place in range(first, first + n_active):
        row = active[place]
        if regular[row] or marks[row] < end:
            if write:
                members[n_members + listed] = row
            listed += 1
    if counted.seen[hi] - counted.seen[lo] < hi - lo:
        for row in range(lo, hi):
            if not regular[row] and marks[row] < end:
                if write:
                    members[n_members + listed] = row
                listed += 1
    return listed


@njit
def empty_windows(grid: NumberedWindows, first: Ints, last: Ints, old_first: Ints, old_last: Ints, after: int, through: int) -> Any:
    """Windows that overlap [first, last) of a key and end at or before ``through``, without those listed before.

    Earlier calls listed those that overlap [old_first, old_last) and end at or before ``after``. There are none if ``last <= first``.
    """
    out_key, out_number = np.empty(0, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n = 0
        for key in range(len(first)):
            if last[key] <= first[key]:
                continue
            window = first_after(grid, first[key])
            while not is_listed_past(grid, window):
                start, end = start_of(grid, window), end_of(grid, window)
                if start >= last[key] or end > through or end < start:
                    break
                if end > after or start >= old_last[key] or end <= old_first[key]:
                    if write:
                        out_key[n], out_number[n] = key, window
                    n += 1
                    window += 1
                elif grid.rule[0] == LISTED:
                    window += 1
                else:
                    # All windows up to there have been listed, too.
                    window = max(window + 1, min(first_after(grid, after), first_from(grid, old_last[key])))
        if not write:
            out_key, out_number = np.empty(n, np.int64), np.empty(n, np.int64)
    return out_key, out_number


@njit
def known_span(rows: Rows, counted: Bools, first: Ints, last: Ints) -> Any:
    """The span of a key's counted rows before each row arrived; O(n log n).

    Parameters
    ----------
    counted
        The new rows that some window has counted.
    first, last
        Least start and greatest end of each key's counted rows before this batch; shapes (n_keys,). Updated in place.

    Returns
    -------
    tuple
        Least start and greatest end before each row of ``counted``; undefined for others. Shapes (n_rows,).
    """
    offsets, time, stop, moment = rows
    arrived = np.flatnonzero(counted)
    arrived = arrived[np.argsort(moment[arrived], kind="mergesort")]
    key = np.empty(len(time), np.int64)
    for index in range(len(offsets) - 1):
        key[offsets[index] : offsets[index + 1]] = index
    before_first, before_last = np.zeros(len(time), np.int64), np.zeros(len(time), np.int64)
    begin = 0
    while begin < len(arrived):
        end = begin
        while end < len(arrived) and moment[arrived[end]] == moment[arrived[begin]]:
            row = arrived[end]
            before_first[row], before_last[row] = first[key[row]], last[key[row]]
            end += 1
        for row in arrived[begin:end]:
            first[key[row]] = min(first[key[row]], time[row])
            last[key[row]] = max(last[key[row]], stop[row])
        begin = end
    return before_first, before_last
