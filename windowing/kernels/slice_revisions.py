"""Versions of a grid's windows that late rows bring, over slices: of each window one for each moment at which late rows arrived.

::

    window             [-----------)  shown, not closed yet
    slices in time      [a][b]  [c]   revision 0: a b c, and what came late in earlier batches
    late rows           1     2   3   1, then 2 and 3 together: a b c 1, a b c 1 2 3

A row that is late for a window brings a revision as long as the window is not closed. Nothing that has arrived before is too late for such
a window, so a version holds all of the key's slices between its bounds that came until then. Only revision numbers need to know which of
them came late for the window, and at which moments.

Late rows that last have several slices: those where they begin, those that they cross, in which they count as no rows, and those into which
they reach, where windows begin.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.arrays import bisect_left, distinct
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inner, njit
from windowmill.windowing.kernels.grid_arithmetic import LISTED, NumberedWindows, end_of, first_after, is_listed_past, start_of
from windowmill.windowing.watermark import BEFORE


class SortedSlices(NamedTuple):
    """Slices of all keys, sorted by key, start, reaching, mark and moment; shapes (n_slices,) but for offsets.

    Attributes
    ----------
    offsets
        Key k's slices are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    starts
        Start of each slice.
    reaching
        1 for rows that began before their slice and last into it, else 0: they are of the windows that begin with the slice.
    marks
        Rows of the slice came late for windows that end at or before this instant; ``BEFORE``: for none.
    moments
        Moment at which the rows of a slice with a mark arrived; less than all of these for other slices.
    first, last
        Of slices with a mark, the span of the key before their rows arrived: starts of the first and last slice that are counted.
        ``first`` is after ``last`` where nothing was counted before, or windows that hold nothing are not shown.
    """

    offsets: Ints
    starts: Ints
    reaching: Ints
    marks: Ints
    moments: Ints
    first: Ints
    last: Ints


@njit
def late_windows(grid: NumberedWindows, arrived: SortedSlices, since: int, lateness: int, after: int, through: int) -> Any:
    """The windows that each slice of late rows of the batch revises: those that hold it, had been shown when it came, and were not closed.

    Of rows that last those into which they reach from before their start are left out.

    Parameters
    ----------
    since
        Slices that arrived at this moment or later are the batch's late rows.
    lateness
        A row with the mark m comes too late for windows that end at or before m − ``lateness``.
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
                window = first_after(grid, max(time, mark - lateness, after))
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
    """The revision number and the slices of each version: of the first version of a window all, of those that follow only the late rows.

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
    """List what a window holds beside its range, of which ``late`` is the first late slice in the batch.

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
