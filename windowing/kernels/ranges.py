"""Windows that are ranges of a sequence of leaves: two stacks, whatever made the ranges.

::

    leaves   [a][b][c][d]|[e][f]        front: suffix aggregates abcd, bcd, cd, d; back: one running aggregate ef
    window       [b c d   e f]          = front at b ⊕ back

From window to window of a key both bounds of [lo, hi) ascend, so every leaf is combined at most three times, whatever the windows'
length, and a window costs one combine more. Where the front ends (the *middle*) is kept from batch to batch: with it the partials
of a window are combined in one order however the input was cut, so results are the same to the bit.

References
----------
Tangwongsan, Hirzel and Schneider (2017), Low-latency sliding-window aggregation in worst-case constant time, section 3 (two-stacks).
"""

from __future__ import annotations

import numpy as np

from windowing.kernels.combine import Floats, Ints, combine, njit, set_identity


@njit
def fifo_ranges(
    program: Ints,
    ints: Ints,
    floats: Floats,
    sequence: Ints,
    offsets: Ints,
    lo: Ints,
    hi: Ints,
    middles: Ints,
    out_ints: Ints,
    out_floats: Floats,
) -> Ints:
    """Combine the leaves of each window into ``out_ints`` and ``out_floats``, a row a window.

    Parameters
    ----------
    ints, floats
        Partials of the leaves.
    sequence
        Leaves in the order in which windows take them in and drop them.
    offsets
        Key k's windows are ``offsets[k]:offsets[k + 1]``; int64, shape (n_keys + 1,).
    lo, hi
        Each window holds ``sequence[lo:hi]``. A range that falls back behind one before it is combined by itself.
    middles
        Where each key's front ended after the batch before, as an index into ``sequence``; −1 at first.

    Returns
    -------
    int64 array, shape (n_keys,)
        The window at which each key's front was last made anew, so that its middle is now that window's ``hi``; −1 if none was.
    """
    longest = 0
    for window in range(len(lo)):
        longest = max(longest, hi[window] - lo[window])
    front_ints, front_floats = np.empty((longest, ints.shape[1]), np.int64), np.empty((longest, floats.shape[1]), np.float64)
    back_ints, back_floats = np.empty(ints.shape[1], np.int64), np.empty(floats.shape[1], np.float64)
    flips = np.full(len(offsets) - 1, -1, np.int64)
    for key in range(len(offsets) - 1):
        middle, base, low, reached = middles[key], -1, -1, -1
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = lo[window], hi[window]
            if first >= stop:
                set_identity(program, out_ints[window], out_floats[window])
                continue
            if first < low or stop < reached or (base < 0 <= middle and stop < middle):
                _fold(program, ints, floats, sequence, first, stop, out_ints[window], out_floats[window])
                continue
            low = first
            if first >= middle or base < 0:
                if first >= middle:
                    middle = stop
                    flips[key] = window
                base = first
                _stack(program, ints, floats, sequence, first, middle, front_ints, front_floats)
                set_identity(program, back_ints, back_floats)
                reached = middle
            for place in range(reached, stop):
                leaf = sequence[place]
                combine(program, back_ints, back_floats, ints[leaf], floats[leaf], back_ints, back_floats)
            reached = stop
            top = first - base
            if reached == middle:
                out_ints[window], out_floats[window] = front_ints[top], front_floats[top]
            else:
                combine(program, front_ints[top], front_floats[top], back_ints, back_floats, out_ints[window], out_floats[window])
    return flips


@njit
def _stack(
    program: Ints, ints: Ints, floats: Floats, sequence: Ints, first: int, stop: int, front_ints: Ints, front_floats: Floats
) -> None:
    """Fill the front: row p holds the leaves from ``first + p`` to ``stop`` combined."""
    last = stop - 1 - first
    front_ints[last], front_floats[last] = ints[sequence[stop - 1]], floats[sequence[stop - 1]]
    for row in range(last - 1, -1, -1):
        leaf = sequence[first + row]
        combine(program, ints[leaf], floats[leaf], front_ints[row + 1], front_floats[row + 1], front_ints[row], front_floats[row])


@njit
def _fold(program: Ints, ints: Ints, floats: Floats, sequence: Ints, first: int, stop: int, out_ints: Ints, out_floats: Floats) -> None:
    set_identity(program, out_ints, out_floats)
    for place in range(first, stop):
        leaf = sequence[place]
        combine(program, out_ints, out_floats, ints[leaf], floats[leaf], out_ints, out_floats)


@njit
def add_members(program: Ints, ints: Ints, floats: Floats, offsets: Ints, members: Ints, out_ints: Ints, out_floats: Floats) -> None:
    """Combine ``members[offsets[w]:offsets[w + 1]]`` onto window w, leaf by leaf.

    Partials of leaves know their place, so a late row may come last.
    """
    for window in range(len(offsets) - 1):
        for place in range(offsets[window], offsets[window + 1]):
            leaf = members[place]
            combine(program, out_ints[window], out_floats[window], ints[leaf], floats[leaf], out_ints[window], out_floats[window])
