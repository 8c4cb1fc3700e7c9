"""Assigns rows to slices, and combines the stored slices of many keys into hopping windows and their revisions.

The cost depends neither on missing slices nor on the windows' length (:mod:`windowmill.windowing.kernels.two_stacks`). Only the windows of
a key with late rows are combined one by one, because such rows count in some windows of a range and not in others.

::

    window             [-----------)  shown, not closed yet
    slices in time      [a][b]  [c]   revision 0: a b c, and what came late in earlier batches
    late rows           1     2   3   1, then 2 and 3 together: a b c 1, a b c 1 2 3

A row that is late for a window brings a revision as long as the window is not closed. Nothing that has arrived before is too late for such
a window, so a version holds all of the key's slices between its bounds that came until then. Only revision numbers need to know which of
them came late for the window, and at which moments.

Late rows of interval events have several slices: those where they begin, those that they cross, in which they count as no rows, and those
into which they reach, where windows begin.

References
----------
Krishnamurthy, Wu and Franklin (2006), On-the-fly sharing for streamed aggregation, section 3 (paired windows).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.arrays import bisect_left, distinct, put
from windowmill.windowing.kernels.combine import Bools, Floats, Ints, combine, combine_atom, copy_atom
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit
from windowmill.windowing.kernels.grid_ranges import LISTED, NumberedWindows, end_of, first_after, is_listed_past, start_of
from windowmill.windowing.kernels.two_stacks import fifo_ranges
from windowmill.windowing.watermark import BEFORE


@njit
def slice_starts(time: Ints, periods: Ints, phases: Ints) -> Ints:
    """:meth:`windowmill.windowing.slicing.edges.Edges.slice_start` of each instant."""
    starts = np.empty(len(time), np.int64)
    for row in range(len(time)):
        t = time[row]
        start = t - (t - phases[0]) % periods[0]
        for train in range(1, len(periods)):
            start = max(start, t - (t - phases[train]) % periods[train])
        starts[row] = start
    return starts


@njit
def by_key(codes: Ints, n_keys: int) -> Any:
    """Stable order of rows by key code, and each key's offset, shape (n_keys + 1,). A counting sort, O(n)."""
    offsets = np.zeros(n_keys + 1, np.int64)
    for code in codes:
        offsets[code + 1] += 1
    for key in range(n_keys):
        offsets[key + 1] += offsets[key]
    place, order = offsets[:-1].copy(), np.empty(len(codes), np.int64)
    for row in range(len(codes)):
        order[place[codes[row]]] = row
        place[codes[row]] += 1
    return order, offsets


@njit
def along_axis(offsets: Ints, starts: Ints, closed: Ints, batches: Ints) -> Ints:
    """Stable order of rows by (start, closed, batch) within each key; empty if they are sorted already.

    Rows arrive nearly in order: a key whose rows are sorted costs one comparison per row.
    """
    order = np.empty(0, np.int64)
    for key in range(len(offsets) - 1):
        ascending = True
        for b in range(offsets[key] + 1, offsets[key + 1]):
            a = b - 1
            if starts[a] != starts[b]:
                ascending = starts[a] < starts[b]
            elif closed[a] != closed[b]:
                ascending = closed[a] < closed[b]
            else:
                ascending = batches[a] <= batches[b]
            if not ascending:
                break
        if ascending:
            continue
        if not len(order):
            order = np.arange(len(starts))
        rows = order[offsets[key] : offsets[key + 1]]
        for column in (batches, closed, starts):
            rows = rows[np.argsort(column[rows], kind="mergesort")]
        put(rows, order[offsets[key] :])
    return order


@njit
def runs(offsets: Ints, starts: Ints, closed: Ints, batches: Ints) -> Ints:
    """Offsets of the runs of rows with equal key, start, closed and batch; shape (n_runs + 1,). O(n)."""
    bounds, n = np.empty(len(starts) + 1, np.int64), 0
    for key in range(len(offsets) - 1):
        for row in range(offsets[key], offsets[key + 1]):
            first = row == offsets[key]
            if first or starts[row] != starts[row - 1] or closed[row] != closed[row - 1] or batches[row] != batches[row - 1]:
                bounds[n] = row
                n += 1
    bounds[n] = len(starts)
    return bounds[: n + 1].copy()


@njit
def combine_runs(program: Ints, begins: Ints, ends: Ints, ints: Ints, floats: Floats) -> Any:
    """Combine the rows [begin, end) of each run in order; returns arenas with one row per run. O(n)."""
    n = len(begins)
    out_ints, out_floats = np.empty((n, ints.shape[1]), np.int64), np.empty((n, floats.shape[1]), np.float64)
    for line in range(len(program)):
        _one_atom(program[line], (begins, ends), (ints, floats), (out_ints, out_floats))
    return out_ints, out_floats


@inner
def _one_atom(line: Ints, runs_of: Any, given: Any, out: Any) -> None:
    """Combine all runs of one atom; calls with constants are specialized, as in :mod:`windowmill.windowing.kernels.two_stacks`."""
    i, f = line[1], line[2]
    if line[0] == op.ADD and line[3] == 1:
        _fold(op.ADD, i, f, 1, 0, runs_of, given, out)
    elif line[0] == op.MOMENTS:
        _fold(op.MOMENTS, i, f, 1, 3, runs_of, given, out)
    elif line[0] == op.SUM:
        _fold(op.SUM, i, f, 1, 2, runs_of, given, out)
    elif line[0] == op.PICK_GREATEST:
        _fold(op.PICK_GREATEST, i, f, 2, 0, runs_of, given, out)
    else:
        _fold(line[0], i, f, line[3], line[4], runs_of, given, out)


@inlined
def _fold(operation: int, i: int, f: int, n_ints: int, n_floats: int, runs_of: Any, given: Any, out: Any) -> None:
    begins, ends = runs_of
    ints, floats = given
    out_ints, out_floats = out
    for run in range(len(begins)):
        copy_atom(i, f, n_ints, n_floats, ints, floats, begins[run], out_ints, out_floats, run)
        for row in range(begins[run] + 1, ends[run]):
            combine_atom(operation, i, f, n_ints, out_ints, out_floats, run, ints, floats, row, out_ints, out_floats, run)


@njit
def hopping_windows(
    program: Ints,
    offsets: Ints,
    starts: Ints,
    closed: Ints,
    ints: Ints,
    floats: Floats,
    size: int,
    hop: int,
    origin: int,
    after: int,
    through: int,
) -> Any:
    """Every non-empty window [e − size, e) with e in (``after``, ``through``].

    Parameters
    ----------
    offsets
        Key k's slices are rows ``offsets[k]:offsets[k + 1]``; int64, shape (n_keys + 1,).
    starts
        Start of each slice, ascending within a key; several rows of one slice are combined in their order.
    closed
        A slice of late rows counts only in windows that end after this instant; ``BEFORE``: in all.
    ints, floats
        The slices' partials, one row per slice.

    Returns
    -------
    tuple
        Key index and end of each window, int64, shapes (n_windows,), and the windows' partials as rows of two arenas.
    """
    none = np.empty(0, np.int64)
    windows = _ranges(offsets, starts, closed, size, hop, origin, after, through, none, none, none)
    n = windows[-1]
    ends, lo, hi = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    _ranges(offsets, starts, closed, size, hop, origin, after, through, ends, lo, hi)
    out_ints, out_floats = np.empty((n, ints.shape[1]), np.int64), np.empty((n, floats.shape[1]), np.float64)
    n_keys = len(offsets) - 1
    fifo_ranges(program, ints, floats, np.arange(len(starts)), windows, lo, hi, np.full(n_keys, -1, np.int64), out_ints, out_floats)
    keys = np.empty(n, np.int64)
    for key in range(n_keys):
        keys[windows[key] : windows[key + 1]] = key
        if _restricted(closed, offsets[key], offsets[key + 1], after):
            low = offsets[key]
            for window in range(windows[key], windows[key + 1]):
                while starts[low] < ends[window] - size:
                    low += 1
                row = low
                while row < offsets[key + 1] and starts[row] < ends[window]:
                    if closed[row] < ends[window]:
                        combine(program, out_ints, out_floats, window, ints, floats, row, out_ints, out_floats, window)
                    row += 1
    return keys, ends, out_ints, out_floats


@helper
def _restricted(closed: Ints, first: int, stop: int, after: int) -> bool:
    """Whether one of the slices ``first:stop`` counts in some windows that end after ``after``, and not in others."""
    for row in range(first, stop):  # noqa: SIM110 - numba has no generators in `any`
        if closed[row] > after:
            return True
    return False


@helper
def _ranges(
    offsets: Ints, starts: Ints, closed: Ints, size: int, hop: int, origin: int, after: int, through: int, ends: Ints, lo: Ints, hi: Ints
) -> Ints:
    """Offsets of each key's windows, shape (n_keys + 1,); fills in each window's end and range of slices unless those arrays are empty.

    The ranges of a restricted key's windows are empty.
    """
    windows, count = np.empty(len(offsets), np.int64), 0
    write = len(ends) > 0
    for key in range(len(offsets) - 1):
        windows[key] = count
        first, stop = offsets[key], offsets[key + 1]
        if first == stop:
            continue
        restricted = _restricted(closed, first, stop, after)
        low = high = first
        end = origin + ((max(after, starts[first]) - size - origin) // hop + 1) * hop + size
        while end <= through:
            while high < stop and starts[high] < end:
                high += 1
            while low < high and starts[low] < end - size:
                low += 1
            if low == high:
                if high == stop:
                    break
                end = origin + ((starts[high] - size - origin) // hop + 1) * hop + size
                continue
            holds = not restricted
            for row in range(low, high):
                if holds:
                    break
                holds = closed[row] < end
            if holds:
                if write:
                    ends[count], lo[count], hi[count] = end, low, low if restricted else high
                count += 1
            end += hop
    windows[-1] = count
    return windows


class SortedSlices(NamedTuple):
    """Slices of all keys, sorted by key, start, reaching, mark and moment; shapes (n_slices,) but for offsets."""

    offsets: Ints  #: Key k's slices are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    starts: Ints  #: Start of each slice.
    reaching: Ints  #: 1 for rows that began before their slice and last into it, else 0: they are of the windows that begin with the slice.
    marks: Ints  #: Rows of the slice came late for windows that end at or before this instant; ``BEFORE``: for none.
    moments: Ints  #: Moment at which the rows of a slice with a mark arrived; less than all of these for other slices.
    #: For slices with a mark, the span of the key before their rows arrived: starts of the first and last slice that are counted. ``first``
    #: is after ``last`` where nothing was counted before, or windows that hold nothing are not shown.
    first: Ints
    last: Ints


@njit
def late_windows(grid: NumberedWindows, arrived: SortedSlices, since: int, lateness: int, most: int, after: int, through: int) -> Any:
    """The windows that each slice of late rows of the batch revises: those that hold it, had been shown when it came, and were not closed.

    Of rows that last those into which they reach from before their start are left out.

    Parameters
    ----------
    since
        Slices that arrived at this moment or later are the batch's late rows.
    lateness, most
        A row with the mark m comes too late for windows that end at or before m − ``lateness``, and ``most``.
    after, through
        Leaves out windows that do not end in (``after``, ``through``].

    Returns
    -------
    tuple
        Key index, window number and slice of each pair of a window and a slice of late rows, in order of slices; shapes (n_pairs,).
    """
    keys, windows, slices = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n = 0
        for key in range(len(arrived.offsets) - 1):
            for late in range(arrived.offsets[key], arrived.offsets[key + 1]):
                if arrived.moments[late] < since or arrived.reaching[late]:
                    continue
                mark, time = arrived.marks[late], arrived.starts[late]
                window = first_after(grid, max(time, min(mark - lateness, most), after))
                while not is_listed_past(grid, window):
                    start, end = start_of(grid, window), end_of(grid, window)
                    if end > min(mark, through) or end < start:
                        break
                    if start > time:
                        if grid.rule[0] != LISTED:
                            break
                        # Where the clocks go forward, a later window of a calendar may start earlier.
                        window += 1
                        continue
                    if write:
                        keys[n], windows[n], slices[n] = key, window, late
                    n += 1
                    window += 1
        if not write:
            keys, windows, slices = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    return keys, windows, slices


@njit
def versions(grid: NumberedWindows, arrived: SortedSlices, since: int, keys: Ints, windows: Ints, slices: Ints, continues: Bools) -> Any:
    """The revision number and the slices of each version: all slices for a window's first version, only late ones for those that follow.

    Parameters
    ----------
    keys, windows, slices
        Key index and window number of each version, and a slice of its late rows: the one into which they reach, if there is one. Sorted
        by key, window and moment.
    continues
        Mask of the versions that follow another one of the same window.

    Returns
    -------
    tuple
        Revision, shape (n_versions,); the slices of earlier batches and of rows in time as ranges [lo, hi) of ``sequence``; late rows of
        the batch, and slices that reach into the window, as ``members[member_offsets[v]:member_offsets[v + 1]]``. As (revision, sequence,
        lo, hi, member_offsets, members).
    """
    moments, offsets, begun = arrived.moments, arrived.offsets, arrived.reaching == 0
    sequence, in_time = np.flatnonzero(begun & (moments < since)), np.flatnonzero(begun & (arrived.marks == BEFORE))
    marked, late = np.flatnonzero(begun & (arrived.marks != BEFORE)), np.flatnonzero(begun & (moments >= since))
    key_of = np.empty(len(moments), np.int64)
    for key in range(len(offsets) - 1):
        key_of[offsets[key] : offsets[key + 1]] = key
    # The batch's late slices by key, moment and start.
    late = late[np.argsort(moments[late], kind="mergesort")]
    late = late[np.argsort(key_of[late], kind="mergesort")]
    late_keys, late_moments, late_starts = key_of[late], moments[late], arrived.starts[late]
    n = len(keys)
    revision, lo, hi = np.empty(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    member_offsets, members = np.zeros(n + 1, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n_members = 0
        for version in range(n):
            start, end = start_of(grid, windows[version]), end_of(grid, windows[version])
            if continues[version]:
                revision[version] = revision[version - 1] + 1
            else:
                low, high = _between(arrived.starts, offsets[keys[version]], offsets[keys[version] + 1], start, end)
                lo[version], hi[version] = _between(sequence, 0, len(sequence), low, high)
                timely, tagged = _between(in_time, 0, len(in_time), low, high), _between(marked, 0, len(marked), low, high)
                others = marked[tagged[0] : tagged[1]]
                into = _between(arrived.starts, low, high, start, start + 1)
                window = start, end, others, into, timely[0] < timely[1]
                revision[version], n_members = _list_earlier(arrived, since, slices[version], window, write, members, n_members)
            moment = moments[slices[version]]
            own = _between(late_keys, 0, len(late), keys[version], keys[version] + 1)
            own = _between(late_moments, own[0], own[1], moment, moment + 1)
            own = _between(late_starts, own[0], own[1], start, end)
            reaches = arrived.reaching[slices[version]] == 1
            n_members = _list_together(slices[version], reaches, late[own[0] : own[1]], write, members, n_members)
            member_offsets[version + 1] = n_members
        if not write:
            members = np.empty(n_members, np.int64)
    return revision, sequence, lo, hi, member_offsets, members


@helper
def _list_earlier(arrived: SortedSlices, since: int, late: int, window: Any, write: bool, members: Ints, n_members: int) -> Any:
    """List what a window holds outside its range; ``late`` is its first late slice in the batch.

    ``window`` is its start and end; the slices between them with a mark that reach into none; the places of the slices that start with the
    window; and whether a slice between its bounds has no mark. Returns the revision that ``late`` brings, and the number of members.
    """
    start, end, marked, into, shown = window
    first, last = arrived.first[late], arrived.last[late]
    earlier, n_late = np.empty(len(marked) + into[1] - into[0], np.int64), 0
    for place in range(len(earlier)):
        reaches = place >= len(marked)
        other = into[0] + place - len(marked) if reaches else marked[place]
        if reaches and not arrived.reaching[other]:
            continue
        in_time, stored = arrived.marks[other] < end, arrived.moments[other] < since
        if in_time:
            shown = True
        elif stored:
            earlier[n_late] = arrived.moments[other]
            n_late += 1
            # Spans grow: that of the first late row lies within those of all others.
            first, last = max(first, arrived.first[other]), min(last, arrived.last[other])
        # What is stored and begins in the window is in its range; late rows of the batch bring versions of their own.
        if (in_time or stored) and (reaches or not stored):
            if write:
                members[n_members] = other
            n_members += 1
    between = first <= last and first < end and last >= start
    return len(distinct(earlier[:n_late])) + (1 if shown or between else 0), n_members


@helper
def _list_together(slice_: int, reaches: bool, within: Ints, write: bool, members: Ints, n_members: int) -> Any:
    """List the slices of late rows that came together: those ``within`` a window, and ``slice_`` if they reach into the window there.

    Returns the number of members.
    """
    for other in within:
        if write:
            members[n_members] = other
        n_members += 1
    if reaches:
        if write:
            members[n_members] = slice_
        n_members += 1
    return n_members


@inner
def _between(values: Ints, first: int, last: int, low: int, high: int) -> Any:
    """The places of ``first:last`` whose value, which ascends, lies in [``low``, ``high``)."""
    return bisect_left(values, low, first, last), bisect_left(values, high, first, last)
