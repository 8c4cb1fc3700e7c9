"""The windows of a grid that hold something, key by key, as ranges of rows.

A grid is six numbers and a table: mode, origin, hop, size, step, steps a period. Windows are numbered from origin (HOPPING: one a hop;
CUMULATIVE: ``steps`` a period of ``size``) or listed in ``starts`` and ``ends`` (LISTED: calendars), ends ascending.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit

HOPPING, CUMULATIVE, LISTED = 0, 1, 2


@njit
def start_of(grid: Ints, starts: Ints, window: int) -> Any:
    if grid[0] == HOPPING:
        return grid[1] + window * grid[2]
    if grid[0] == CUMULATIVE:
        return grid[1] + window // grid[5] * grid[3]
    return starts[window]


@njit
def end_of(grid: Ints, ends: Ints, window: int) -> Any:
    if grid[0] == HOPPING:
        return grid[1] + window * grid[2] + grid[3]
    if grid[0] == CUMULATIVE:
        return grid[1] + window // grid[5] * grid[3] + (window % grid[5] + 1) * grid[4]
    return ends[window]


@njit
def first_after(grid: Ints, ends: Ints, instant: int) -> Any:
    """The first window that ends after ``instant``."""
    if grid[0] == HOPPING:
        return (instant - grid[3] - grid[1]) // grid[2] + 1
    if grid[0] == CUMULATIVE:
        period = (instant - grid[1]) // grid[3]
        return period * grid[5] + (instant - grid[1] - period * grid[3]) // grid[4]
    return np.searchsorted(ends, instant, side="right")


@njit
def first_from(grid: Ints, starts: Ints, instant: int) -> Any:
    """The first window that starts at or after ``instant``."""
    if grid[0] == HOPPING:
        return -((grid[1] - instant) // grid[2])
    if grid[0] == CUMULATIVE:
        return -((grid[1] - instant) // grid[3]) * grid[5]
    return np.searchsorted(starts, instant, side="left")


@njit
def firsts_after(grid: Ints, starts: Ints, ends: Ints, instants: Ints) -> Any:
    """Start and end of the first window that ends after each instant; a start and end beyond the instant where there is none."""
    first_starts, first_ends = np.empty_like(instants), np.empty_like(instants)
    for row in range(len(instants)):
        window = first_after(grid, ends, instants[row])
        if grid[0] == LISTED and window == len(ends):
            first_starts[row] = first_ends[row] = np.iinfo(np.int64).max
        else:
            first_starts[row], first_ends[row] = start_of(grid, starts, window), end_of(grid, ends, window)
            if first_ends[row] < first_starts[row]:
                first_ends[row] = np.iinfo(np.int64).max
    return first_starts, first_ends


@njit
def grid_windows(
    grid: Ints,
    starts: Ints,
    ends: Ints,
    offsets: Ints,
    time: Ints,
    stop: Ints,
    intervals: bool,
    regular: Bools,
    marks: Ints,
    after: int,
    through: int,
) -> Any:
    """Every window with end in (``after``, ``through``] that holds a row.

    Parameters
    ----------
    offsets
        Key k's rows are ``offsets[k]:offsets[k + 1]``, in order of time.
    time, stop
        Each row lasts [time, stop); only looked at where ``intervals``.
    regular
        Rows that count in every window that they overlap.
    marks
        The others count in windows that end after their mark.

    Returns
    -------
    tuple
        Key, number, lo and hi of each window, as ranges among the regular rows; where each window's further rows begin, and those:
        regular ones that begin before the window, and others.
    """
    seen = np.zeros(len(time) + 1, np.int64)
    for row in range(len(time)):
        seen[row + 1] = seen[row] + (1 if regular[row] else 0)
    none = np.empty(0, np.int64)
    active = np.empty(len(time), np.int64)
    rows = (grid, starts, ends, offsets, time, stop, intervals, regular, seen, marks, after, through, active)
    windows, members = _sweep(*rows, False, none, none, none, none, none, none)
    key, number, lo, hi = np.empty(windows, np.int64), np.empty(windows, np.int64), np.empty(windows, np.int64), np.empty(windows, np.int64)
    member_offsets, listed = np.zeros(windows + 1, np.int64), np.empty(members, np.int64)
    _sweep(*rows, True, key, number, lo, hi, member_offsets, listed)
    return key, number, lo, hi, member_offsets, listed


@njit
def _sweep(  # noqa: PLR0915 - one loop over rows and windows; numba would not inline its parts
    grid: Ints,
    starts: Ints,
    ends: Ints,
    offsets: Ints,
    time: Ints,
    stop: Ints,
    intervals: bool,
    regular: Bools,
    seen: Ints,
    marks: Ints,
    after: int,
    through: int,
    active: Ints,
    write: bool,
    out_key: Ints,
    out_number: Ints,
    out_lo: Ints,
    out_hi: Ints,
    member_offsets: Ints,
    members: Ints,
) -> Any:
    n_windows = n_members = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        lo = hi = first
        n_active = 0  # rows that began before the window, and last into it
        before = ended = np.iinfo(np.int64).min
        window = first_after(grid, ends, max(after, time[first]))
        while grid[0] != LISTED or window < len(ends):
            start, end = start_of(grid, starts, window), end_of(grid, ends, window)
            if end > through or end < ended:  # beyond int64 there are no windows
                break
            ended = end
            while hi < last and time[hi] < end:
                hi += 1
            if start < before:  # where the clocks go forward, a later window of a calendar may start earlier
                lo = first + np.searchsorted(time[first:hi], start, side="left")
                n_active = 0
                if intervals:
                    for row in range(first, lo):
                        active[first + n_active] = row
                        n_active += 1
            while lo < hi and time[lo] < start:
                if intervals:
                    active[first + n_active] = lo
                    n_active += 1
                lo += 1
            before = start
            kept = 0
            for place in range(first, first + n_active):
                row = active[place]
                if stop[row] > start:
                    active[first + kept] = row
                    kept += 1
            n_active = kept
            held = seen[hi] - seen[lo]
            listed = 0
            for place in range(first, first + n_active):
                row = active[place]
                if regular[row] or marks[row] < end:
                    if write:
                        members[n_members + listed] = row
                    listed += 1
            if held < hi - lo:
                for row in range(lo, hi):
                    if not regular[row] and marks[row] < end:
                        if write:
                            members[n_members + listed] = row
                        listed += 1
            if held + listed > 0:
                n_members += listed
                if write:
                    out_key[n_windows], out_number[n_windows], out_lo[n_windows], out_hi[n_windows] = key, window, seen[lo], seen[hi]
                    member_offsets[n_windows + 1] = n_members
                n_windows += 1
            elif lo == hi and n_active == 0:
                if hi == last:
                    break
                window = max(window + 1, first_after(grid, ends, time[hi]))
                continue
            window += 1
    return n_windows, n_members


@njit
def empty_windows(
    grid: Ints, starts: Ints, ends: Ints, first: Ints, last: Ints, old_first: Ints, old_last: Ints, after: int, through: int
) -> Any:
    """Windows that overlap [first, last) of a key and end at or before ``through``, without those already told of.

    Told of are those that overlap [old_first, old_last) and end at or before ``after``. Where ``last <= first`` there are none.
    """
    out_key, out_number = np.empty(0, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n = 0
        for key in range(len(first)):
            if last[key] <= first[key]:
                continue
            window = first_after(grid, ends, first[key])
            if first[key] == old_first[key] and grid[0] != LISTED and after > np.iinfo(np.int64).min:
                window = max(window, min(first_after(grid, ends, after), first_from(grid, starts, old_last[key])))
            while grid[0] != LISTED or window < len(ends):
                start, end = start_of(grid, starts, window), end_of(grid, ends, window)
                if start >= last[key] or end > through or end < start:
                    break
                if not (end <= after and start < old_last[key] and end > old_first[key]):
                    if write:
                        out_key[n], out_number[n] = key, window
                    n += 1
                window += 1
        if not write:
            out_key, out_number = np.empty(n, np.int64), np.empty(n, np.int64)
    return out_key, out_number


@njit
def known_span(offsets: Ints, time: Ints, stop: Ints, number: Ints, counted: Bools, first: Ints, last: Ints) -> Any:
    """From where to where a key's counted rows reached before each row arrived.

    Parameters
    ----------
    counted
        The new rows that some window has counted.
    first, last
        Least start and greatest end of each key's counted rows before this batch; shape (n_keys,). Brought up to date in place.

    Returns
    -------
    tuple
        Least start and greatest end before each row of ``counted``; undefined for others. Shapes (n_rows,).
    """
    rows = np.flatnonzero(counted)
    rows = rows[np.argsort(number[rows])]
    key = np.empty(len(time), np.int64)
    for index in range(len(offsets) - 1):
        key[offsets[index] : offsets[index + 1]] = index
    before_first, before_last = np.zeros(len(time), np.int64), np.zeros(len(time), np.int64)
    for row in rows:
        before_first[row], before_last[row] = first[key[row]], last[key[row]]
        first[key[row]] = min(first[key[row]], time[row])
        last[key[row]] = max(last[key[row]], stop[row])
    return before_first, before_last


@njit
def first_late(
    grid: Ints,
    starts: Ints,
    ends: Ints,
    offsets: Ints,
    time: Ints,
    stop: Ints,
    number: Ints,
    watermark: Ints,
    closed: Ints,
    key: Ints,
    window: Ints,
) -> Ints:
    """The row that came first to each window (key, number) after the watermark had passed it, and before it was closed; −1 for none."""
    found = np.full(len(key), -1, np.int64)
    reach = reaches(offsets, stop)
    for index in range(len(key)):
        begin, finish = offsets[key[index]], offsets[key[index] + 1]
        start, end = start_of(grid, starts, window[index]), end_of(grid, ends, window[index])
        for row in range(begin + np.searchsorted(reach[begin:finish], start, side="right"), finish):
            if time[row] >= end:
                break
            late = watermark[row] >= end and closed[row] < end and stop[row] > start
            if late and (found[index] < 0 or number[row] < number[found[index]]):
                found[index] = row
    return found


@njit
def reaches(offsets: Ints, stop: Ints) -> Ints:
    """The greatest end of each row and those of its key before it: rows up to one whose reach is not past a start end before it."""
    reach = stop.copy()
    for key in range(len(offsets) - 1):
        for row in range(offsets[key] + 1, offsets[key + 1]):
            reach[row] = max(reach[row], reach[row - 1])
    return reach


@njit
def late_revisions(
    grid: Ints,
    starts: Ints,
    ends: Ints,
    offsets: Ints,
    time: Ints,
    stop: Ints,
    number: Ints,
    watermark: Ints,
    closed: Ints,
    new: Bools,
    before_first: Ints,
    before_last: Ints,
) -> Any:
    """A version of a window for each new row that came after the watermark had passed it and before it was closed.

    Parameters
    ----------
    before_first, before_last
        From where to where the key's rows reached when a row came, so that windows which held nothing in time, but stood within that
        span, had been shown before their first late row; ``before_last`` at ``before_first`` or less where they were not.

    Returns
    -------
    tuple
        Key, window and revision of each version; where its rows begin, and those: rows in time first, then late ones by arrival.
    """
    out_key, out_number, out_revision = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    member_offsets, members = np.zeros(1, np.int64), np.empty(0, np.int64)
    reach = reaches(offsets, stop)
    for write in (False, True):
        n = n_members = 0
        for key in range(len(offsets) - 1):
            begin, finish = offsets[key], offsets[key + 1]
            for late in range(begin, finish):
                if not new[late]:
                    continue
                window = first_after(grid, ends, max(time[late], closed[late]))
                while grid[0] != LISTED or window < len(ends):
                    start, end = start_of(grid, starts, window), end_of(grid, ends, window)
                    if start >= stop[late] or end > watermark[late] or end < start:
                        break
                    begun = n_members
                    on_time = 0
                    earliest = late
                    for row in range(begin + np.searchsorted(reach[begin:finish], start, side="right"), finish):
                        if time[row] >= end:
                            break
                        if stop[row] > start and number[row] <= number[late] and closed[row] < end:
                            if write:
                                # Rows in time sort before late ones, which sort by arrival.
                                members[n_members] = row
                            n_members += 1
                            if watermark[row] < end:
                                on_time += 1
                            elif number[row] < number[earliest]:
                                earliest = row
                    if write:
                        shown = on_time > 0 or (
                            before_first[earliest] < before_last[earliest]
                            and before_first[earliest] < end
                            and before_last[earliest] > start
                        )
                        out_key[n], out_number[n] = key, window
                        out_revision[n] = n_members - begun - on_time - 1 + (1 if shown else 0)
                        member_offsets[n + 1] = n_members
                        held = members[begun:n_members].copy()
                        at_front, rank = begun, np.empty(n_members - begun - on_time, np.int64)
                        others = 0
                        for row in held:
                            if watermark[row] < end:
                                members[at_front] = row
                                at_front += 1
                            else:
                                rank[others] = number[row]
                                members[begun + on_time + others] = row
                                others += 1
                        behind = members[begun + on_time : n_members].copy()
                        for place, index in enumerate(np.argsort(rank)):
                            members[begun + on_time + place] = behind[index]
                    n += 1
                    window += 1
        if not write:
            out_key, out_number, out_revision = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
            member_offsets, members = np.zeros(n + 1, np.int64), np.empty(n_members, np.int64)
    return out_key, out_number, out_revision, member_offsets, members


@njit
def places_of(offsets: Ints, time: Ints, seen: Ints, keys: Ints, instants: Ints) -> Ints:
    """For each of ``keys``, how many regular rows stand before the first row of the key that is not before its instant."""
    found = np.empty(len(keys), np.int64)
    for index in range(len(keys)):
        first, last = offsets[keys[index]], offsets[keys[index] + 1]
        found[index] = seen[first + np.searchsorted(time[first:last], instants[keys[index]], side="left")]
    return found
