"""Hopping windows of many keys from their slices: two stacks over the slices that exist, whatever the window's length.

::

    slices   [a][b][c][d]|[e][f]        front: suffix aggregates abcd, bcd, cd, d; back: one running aggregate ef
    window       [b c d   e f]          = front at b ⊕ back

Every slice is combined at most three times; a window costs one combine more. Slices that do not exist cost nothing.

References
----------
Tangwongsan, Hirzel and Schneider (2017), Low-latency sliding-window aggregation in worst-case constant time, section 3 (two-stacks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowing.kernels.combine import Floats, Ints, combine, copy_row, njit, set_identity

#: ``closed`` of a slice whose rows count in every window that holds it.
NEVER_CLOSED = np.iinfo(np.int64).min


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
        The slice counts only in windows that end after this instant (rows that came late); ``NEVER_CLOSED``: in all.
    ints, floats
        The slices' partials, a row each.

    Returns
    -------
    tuple
        Key index and end of each window, int64, shape (n_windows,); its partial as rows of two arenas;
        false, since 128-bit sums do not overflow: :func:`~windowing.kernels.lower.lower` checks that results fit.
    """
    rows = _sweep(
        program,
        offsets,
        starts,
        closed,
        ints,
        floats,
        size,
        hop,
        origin,
        after,
        through,
        False,
        ints[:0, 0],
        ints[:0, 0],
        ints[:0],
        floats[:0],
    )
    keys, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    out_ints, out_floats = np.empty((rows, ints.shape[1]), np.int64), np.empty((rows, floats.shape[1]), np.float64)
    _sweep(program, offsets, starts, closed, ints, floats, size, hop, origin, after, through, True, keys, ends, out_ints, out_floats)
    return keys, ends, out_ints, out_floats, False


@njit
def _sweep(
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
    write: bool,
    keys: Ints,
    ends: Ints,
    out_ints: Ints,
    out_floats: Floats,
) -> Any:
    count = 0
    # Suffix aggregates of the front stack live beside the slices they begin at; only a writing sweep needs them.
    suffix_ints, suffix_floats = np.empty_like(ints if write else ints[:0]), np.empty_like(floats if write else floats[:0])
    back_ints, back_floats = np.empty((1, ints.shape[1]), np.int64), np.empty((1, floats.shape[1]), np.float64)
    for key in range(len(offsets) - 1):
        first, stop = offsets[key], offsets[key + 1]
        if first == stop:
            continue
        restricted = False
        for row in range(first, stop):
            restricted |= closed[row] > after
        low = high = middle = first
        set_identity(program, back_ints, back_floats, 0)
        end = origin + ((max(after, starts[first]) - size - origin) // hop + 1) * hop + size
        while end <= through:
            while high < stop and starts[high] < end:
                if write and not restricted:
                    combine(program, back_ints, back_floats, 0, ints, floats, high, back_ints, back_floats, 0)
                high += 1
            while low < high and starts[low] < end - size:
                low += 1
            if low == high:
                if high == stop:
                    break
                end = origin + ((starts[high] - size - origin) // hop + 1) * hop + size
                low = middle = high
                set_identity(program, back_ints, back_floats, 0)
                continue
            if restricted:
                # Late rows leave and enter in no fixed order: combine anew, a key at a time, only in the batch that brings them.
                holds = False
                set_identity(program, back_ints, back_floats, 0)
                for row in range(low, high):
                    if closed[row] < end:
                        holds = True
                        if write:
                            combine(program, back_ints, back_floats, 0, ints, floats, row, back_ints, back_floats, 0)
                if not holds:
                    end += hop
                    continue
                if write:
                    copy_row(back_ints, back_floats, 0, out_ints, out_floats, count)
            elif write:
                if low >= middle:
                    copy_row(ints, floats, high - 1, suffix_ints, suffix_floats, high - 1)
                    for row in range(high - 2, low - 1, -1):
                        combine(program, ints, floats, row, suffix_ints, suffix_floats, row + 1, suffix_ints, suffix_floats, row)
                    middle = high
                    set_identity(program, back_ints, back_floats, 0)
                combine(program, suffix_ints, suffix_floats, low, back_ints, back_floats, 0, out_ints, out_floats, count)
            if write:
                keys[count], ends[count] = key, end
            count += 1
            end += hop
    return count
