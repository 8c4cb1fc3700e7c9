"""Paired windows: combines stored slices of many keys into hopping windows, each a range of slices, by two stacks.

The cost depends neither on missing slices nor on the windows' length (:mod:`windowmill.windowing.kernels.two_stacks`). Only the windows of
a key with late rows are combined one by one, because such rows count in some windows of a range and not in others.

References
----------
Krishnamurthy, Wu and Franklin (2006), On-the-fly sharing for streamed aggregation, section 3 (paired windows).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Floats, Ints, combine
from windowmill.windowing.kernels.compilation import helper, njit
from windowmill.windowing.kernels.two_stacks import fifo_ranges


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
    offsets: Ints,
    starts: Ints,
    closed: Ints,
    size: int,
    hop: int,
    origin: int,
    after: int,
    through: int,
    ends: Ints,
    lo: Ints,
    hi: Ints,
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
