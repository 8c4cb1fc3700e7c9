"""Versions of a grid's windows that late rows bring, over slices: one version per late row and window that it revises.

::

    window             [-----------)  shown, not closed yet
    slices in time      [a][b]  [c]   revision 0: a b c, and what came late in earlier batches
    late rows           1     2       one revision each, in order of arrival: a b c 1, a b c 1 2

A row that is late for a window brings a revision as long as the window is not closed. Nothing that has arrived before is too late for such
a window, so a version holds all of the key's slices between its bounds that came until then. Only revision numbers need to know which of
them came late for the window.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit
from windowmill.windowing.kernels.grid_arithmetic import LISTED, Grid, end_of, first_after, is_listed_past, start_of
from windowmill.windowing.kernels.slice_windows import NEVER_CLOSED


class Arrived(NamedTuple):
    """Slices of all keys, sorted by key, start, mark and turn; shapes (n_slices,) but for offsets.

    Attributes
    ----------
    offsets
        Key k's slices are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    starts, rows
        Start of each slice, and number of rows in it.
    marks
        Rows of the slice came late for windows that end at or before this instant; ``NEVER_CLOSED``: for none.
    turns
        Ascends in order of arrival among the slices with a mark; greater than that of all others for late rows of the batch.
    first, last
        Of slices with a mark, the span of the key before their first row arrived: starts of the first and last slice that are counted.
        ``first`` is after ``last`` where nothing was counted before, or windows that hold nothing are not shown.
    """

    offsets: Ints
    starts: Ints
    rows: Ints
    marks: Ints
    turns: Ints
    first: Ints
    last: Ints


@njit
def late_windows(grid: Grid, arrived: Arrived, batch: int, lateness: int, after: int, through: int) -> Any:
    """The windows that each late row of the batch revises: those that hold it, had been shown at its arrival, and were not closed.

    Parameters
    ----------
    batch
        Slices of a greater turn are late rows of the batch, one each.
    lateness
        A row with the mark m comes too late for windows that end at or before m − ``lateness``.
    after, through
        Leaves out windows that do not end in (``after``, ``through``].

    Returns
    -------
    tuple
        Key index, window number and slice of each pair of a window and a late row, in order of slices; shapes (n_versions,).
    """
    keys, windows, slices = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n = 0
        for key in range(len(arrived.offsets) - 1):
            for late in range(arrived.offsets[key], arrived.offsets[key + 1]):
                if arrived.turns[late] <= batch:
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
def versions(grid: Grid, arrived: Arrived, batch: int, keys: Ints, windows: Ints, slices: Ints, continues: Bools) -> Any:
    """The revision number and the slices of each version: of the first version of a window all, of those that follow only the late row.

    Parameters
    ----------
    keys, windows, slices
        The pairs of :func:`late_windows`, sorted by key, window and turn.
    continues
        Mask of the versions that follow another one of the same window.

    Returns
    -------
    tuple
        Revision, shape (n_versions,); the slices of earlier batches and of rows in time as ranges [lo, hi) of ``sequence``; late rows of
        the batch as ``members[member_offsets[v]:member_offsets[v + 1]]``. As (revision, sequence, lo, hi, member_offsets, members).
    """
    starts, rows, marks, turns = arrived.starts, arrived.rows, arrived.marks, arrived.turns
    sequence, marked, in_time = np.flatnonzero(turns <= batch), np.flatnonzero(marks != NEVER_CLOSED), np.flatnonzero(marks == NEVER_CLOSED)
    n = len(keys)
    revision, lo, hi = np.empty(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    member_offsets, members = np.zeros(n + 1, np.int64), np.empty(0, np.int64)
    for write in (False, True):
        n_members = 0
        for version in range(n):
            if continues[version]:
                revision[version] = revision[version - 1] + 1
            else:
                start, end = start_of(grid, windows[version]), end_of(grid, windows[version])
                low, high = _between(starts, arrived.offsets[keys[version]], arrived.offsets[keys[version] + 1], start, end)
                lo[version], hi[version] = np.searchsorted(sequence, low), np.searchsorted(sequence, high)
                shown, n_late = np.searchsorted(in_time, low) < np.searchsorted(in_time, high), 0
                # Spans grow: that of the first late row lies within those of all others.
                first, last = arrived.first[slices[version]], arrived.last[slices[version]]
                for place in range(np.searchsorted(marked, low), np.searchsorted(marked, high)):
                    other = marked[place]
                    if marks[other] < end:
                        shown = True
                        if turns[other] > batch:
                            if write:
                                members[n_members] = other
                            n_members += 1
                    elif turns[other] <= batch:
                        n_late += rows[other]
                        first, last = max(first, arrived.first[other]), min(last, arrived.last[other])
                between = first <= last and first < end and last >= start
                revision[version] = n_late + (1 if shown or between else 0)
            if write:
                members[n_members] = slices[version]
            n_members += 1
            member_offsets[version + 1] = n_members
        if not write:
            members = np.empty(n_members, np.int64)
    return revision, sequence, lo, hi, member_offsets, members


@njit
def _between(starts: Ints, first: int, last: int, start: int, end: int) -> Any:
    """The slices of ``first:last`` that start in [``start``, ``end``)."""
    within = starts[first:last]
    return first + np.searchsorted(within, start), first + np.searchsorted(within, end)
