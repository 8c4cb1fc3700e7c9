"""Windows that are ranges of a sequence of leaves, over arenas: by subtract-on-evict where an atom is exact, else by two stacks.

Both bounds of [lo, hi) ascend from window to window of a key.

*Subtract-on-evict.* Atoms of whole numbers (counts, votes, histograms, sums of whole numbers and of decimals) add up modulo a power of two
that no sum reaches. So a running total that adds the leaves that enter and deducts those that leave has the bits of a fresh sum: two
operations a leaf. Floating point is never deducted (docs/numerics.md), and neither is anything that depends on order.

*Two stacks.*

::

    leaves   [a][b][c][d]|[e][f]        front: suffix aggregates abcd, bcd, cd, d; back: one running aggregate ef
    window       [b c d   e f]          = front at b ⊕ back

Every leaf is combined at most twice for windows of any length, and every window costs one more combine. The end of the front (the
*middle*) is kept between batches, so the partials of a window are combined in the same order however the input is split into batches, and
results are bit-identical.

References
----------
Hazelcast, Sliding window aggregation: combine the leading frame, deduct the trailing one.
Tangwongsan, Hirzel and Schneider (2017), Low-latency sliding-window aggregation in worst-case constant time, section 3 (two-stacks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.combine import SIGN, Bools, Floats, Ints, clear_atom, combine, combine_atom, copy_atom, set_identity
from windowmill.windowing.kernels.compilation import inlined, inner, njit


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
) -> None:
    """Combine the leaves of each window into ``out_ints`` and ``out_floats``, one row per window; amortised O(1) per leaf and window.

    Parameters
    ----------
    ints, floats
        Partials of the leaves.
    sequence
        Leaves in the order in which windows insert and evict them.
    offsets
        Key k's windows are ``offsets[k]:offsets[k + 1]``; int64, shape (n_keys + 1,).
    lo, hi
        Each window holds ``sequence[lo:hi]``; shapes (n_windows,). A range that begins or ends before the previous one is combined leaf by
        leaf.
    middles
        End of each key's front after the previous batch, as an index into ``sequence``; −1 for none.
    """
    longest = 0
    for window in range(len(lo)):
        longest = max(longest, hi[window] - lo[window])
        if hi[window] <= lo[window]:
            set_identity(program, out_ints, out_floats, window)
    front_ints, front_floats = np.empty((longest, ints.shape[1]), np.int64), np.empty((longest, floats.shape[1]), np.float64)
    back_ints, back_floats = np.empty((1, ints.shape[1]), np.int64), np.empty((1, floats.shape[1]), np.float64)
    given = (ints, floats, sequence, offsets, lo, hi, middles)
    stacks, out = (front_ints, front_floats, back_ints, back_floats), (out_ints, out_floats)
    for line in range(len(program)):
        _one_atom(program[line], given, stacks, out)


@njit
def flips_of(offsets: Ints, lo: Ints, hi: Ints, middles: Ints) -> Ints:
    """The window at which :func:`fifo_ranges` last rebuilds each key's front, whose ``hi`` is the new middle; −1 if it does not."""
    flips = np.full(len(offsets) - 1, -1, np.int64)
    for key in range(len(offsets) - 1):
        middle, begun, low, reached = middles[key], False, -1, -1
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = lo[window], hi[window]
            if first >= stop or first < low or stop < reached or (not begun and stop < middle):
                continue
            if first >= middle:
                middle, flips[key] = stop, window
            begun, low, reached = True, first, stop
    return flips


@inner
def _one_atom(line: Ints, given: Any, stacks: Any, out: Any) -> None:
    """Compute all windows of one atom. Calls with constants are specialized, and run up to twice as fast."""
    i, f = line[1], line[2]
    if line[0] == op.ADD and line[3] == 1:
        _slide(1, i, given, out)
    elif line[0] == op.ADD:
        _slide_columns(i, line[3], given, out)
    elif line[0] == op.WIDE:
        _slide(2, i, given, out)
    elif line[0] == op.WIDER:
        _slide(3, i, given, out)
    elif line[0] == op.MOMENTS:
        _sweep(op.MOMENTS, i, f, 1, 3, given, stacks, out)
    elif line[0] == op.PICK_GREATEST:
        _sweep(op.PICK_GREATEST, i, f, 2, 0, given, stacks, out)
    elif line[0] == op.PICK_LEAST:
        _sweep(op.PICK_LEAST, i, f, 2, 0, given, stacks, out)
    else:
        _sweep(line[0], i, f, line[3], line[4], given, stacks, out)


@inlined
def _continues(last: int, low: int, reached: int, first: int, stop: int) -> Any:
    """Whether [``first``, ``stop``) follows from the total of window ``last``, [``low``, ``reached``), in fewer operations than afresh."""
    return last >= 0 and low <= first and reached <= stop and first - low <= reached - first


@inlined
def _slide(limbs: int, i: int, given: Any, out: Any) -> None:
    """Compute all windows of one atom that is a whole number of one to three limbs of 64 bits, by a running total in registers."""
    ints, _, sequence, offsets, lo, hi, _ = given
    out_ints, _ = out
    for key in range(len(offsets) - 1):
        last = low = reached = -1
        a = b = c = np.int64(0)
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = lo[window], hi[window]
            if first >= stop:
                continue
            if _continues(last, low, reached, first, stop):
                begin = reached
            else:
                begin, low = first, first
                a = b = c = np.int64(0)
            for place in range(begin, stop):
                leaf = sequence[place]
                x = ints[leaf, i]
                a += x
                if limbs > 1:
                    carry = 1 if (a ^ SIGN) < (x ^ SIGN) else 0
                    b, y = b + carry, ints[leaf, i + 1]
                    if limbs > 2:
                        # A limb carries by taking in a carry, or by the sum, and never by both.
                        carry = 1 if carry == 1 and b == 0 else 0
                    b += y
                    if limbs > 2:
                        carry += 1 if (b ^ SIGN) < (y ^ SIGN) else 0
                        c += ints[leaf, i + 2] + carry
            for place in range(low, first):
                leaf = sequence[place]
                x = ints[leaf, i]
                if limbs > 1:
                    borrow = 1 if (a ^ SIGN) < (x ^ SIGN) else 0
                    y = ints[leaf, i + 1]
                    if limbs > 2:
                        c -= ints[leaf, i + 2] + (1 if (b ^ SIGN) < (y ^ SIGN) or (borrow == 1 and b == y) else 0)
                    b -= y + borrow
                a -= x
            out_ints[window, i] = a
            if limbs > 1:
                out_ints[window, i + 1] = b
            if limbs > 2:
                out_ints[window, i + 2] = c
            last, low, reached = window, first, stop


@inlined
def _slide_columns(i: int, n_ints: int, given: Any, out: Any) -> None:
    """As :func:`_slide`, of ``n_ints`` whole numbers of one limb; the total is kept in the row of each window."""
    ints, _, sequence, offsets, lo, hi, _ = given
    out_ints, _ = out
    for key in range(len(offsets) - 1):
        last = low = reached = -1
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = lo[window], hi[window]
            if first >= stop:
                continue
            if _continues(last, low, reached, first, stop):
                begin = reached
                for column in range(i, i + n_ints):
                    out_ints[window, column] = out_ints[last, column]
            else:
                begin, low = first + 1, first
                for column in range(i, i + n_ints):
                    out_ints[window, column] = ints[sequence[first], column]
            # As many leaves mostly enter as leave: both in one pass.
            both = min(stop - begin, first - low)
            for step in range(both):
                for column in range(i, i + n_ints):
                    out_ints[window, column] += ints[sequence[begin + step], column] - ints[sequence[low + step], column]
            for place in range(begin + both, stop):
                for column in range(i, i + n_ints):
                    out_ints[window, column] += ints[sequence[place], column]
            for place in range(low + both, first):
                for column in range(i, i + n_ints):
                    out_ints[window, column] -= ints[sequence[place], column]
            last, low, reached = window, first, stop


@inlined
def _sweep(operation: int, i: int, f: int, n_ints: int, n_floats: int, given: Any, stacks: Any, out: Any) -> None:
    ints, floats, sequence, offsets, lo, hi, middles = given
    front_ints, front_floats, back_ints, back_floats = stacks
    out_ints, out_floats = out
    for key in range(len(offsets) - 1):
        middle, base, low, reached = middles[key], -1, -1, -1
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = lo[window], hi[window]
            if first >= stop:
                continue
            if first < low or stop < reached or (base < 0 <= middle and stop < middle):
                clear_atom(operation, i, f, n_ints, n_floats, out_ints, out_floats, window)
                for place in range(first, stop):
                    leaf = sequence[place]
                    combine_atom(operation, i, f, n_ints, out_ints, out_floats, window, ints, floats, leaf, out_ints, out_floats, window)
                continue
            low = first
            if first >= middle or base < 0:
                if first >= middle:
                    middle = stop
                base = first
                # Row p of the front holds the combination of leaves base + p through the middle.
                copy_atom(i, f, n_ints, n_floats, ints, floats, sequence[middle - 1], front_ints, front_floats, middle - 1 - base)
                for row in range(middle - 2 - base, -1, -1):
                    leaf = sequence[base + row]
                    combine_atom(
                        operation, i, f, n_ints, ints, floats, leaf, front_ints, front_floats, row + 1, front_ints, front_floats, row
                    )
                clear_atom(operation, i, f, n_ints, n_floats, back_ints, back_floats, 0)
                reached = middle
            for place in range(reached, stop):
                leaf = sequence[place]
                combine_atom(operation, i, f, n_ints, back_ints, back_floats, 0, ints, floats, leaf, back_ints, back_floats, 0)
            reached = stop
            top = first - base
            if reached == middle:
                copy_atom(i, f, n_ints, n_floats, front_ints, front_floats, top, out_ints, out_floats, window)
            else:
                combine_atom(
                    operation, i, f, n_ints, front_ints, front_floats, top, back_ints, back_floats, 0, out_ints, out_floats, window
                )


@njit
def add_members(
    program: Ints, ints: Ints, floats: Floats, offsets: Ints, members: Ints, continues: Bools, out_ints: Ints, out_floats: Floats
) -> None:
    """Combine ``members[offsets[w]:offsets[w + 1]]`` into window w, leaf by leaf; one combine per member.

    Partials of leaves include their position, so a late row may be combined last. A window that ``continues`` the one before it, and holds
    nothing so far, first takes what that one has; ``continues`` is empty if none does.
    """
    for window in range(len(offsets) - 1):
        if len(continues) and continues[window]:
            combine(program, out_ints, out_floats, window, out_ints, out_floats, window - 1, out_ints, out_floats, window)
        for place in range(offsets[window], offsets[window + 1]):
            combine(program, out_ints, out_floats, window, ints, floats, members[place], out_ints, out_floats, window)


_SPLITTER = 2.0**27 + 1.0


@njit
def clipped_means(
    values: Floats,
    counted: Bools,
    time: Ints,
    stop: Ints,
    start: Ints,
    end: Ints,
    sequence: Ints,
    lo: Ints,
    hi: Ints,
    member_offsets: Ints,
    members: Ints,
) -> Any:
    """Sum of value · weight over sum of weights of each window; the weight of a leaf is its [time, stop) clipped to the window.

    Returns
    -------
    tuple
        The means, and a mask of the windows whose weights sum to zero, which have none; shapes (n_windows,).
    """
    means, missing = np.zeros(len(start), np.float64), np.ones(len(start), np.bool_)
    for window in range(len(start)):
        total, error = 0.0, 0.0
        length = 0
        ranged = hi[window] - lo[window]
        for place in range(ranged + member_offsets[window + 1] - member_offsets[window]):
            leaf = sequence[lo[window] + place] if place < ranged else members[member_offsets[window] + place - ranged]
            if not counted[leaf]:
                continue
            weight = min(stop[leaf], end[window]) - max(time[leaf], start[window])
            length += weight
            x, y = values[leaf], float(weight)
            product = x * y
            split = _SPLITTER * x
            top_x = split - (split - x)
            split = _SPLITTER * y
            top_y = split - (split - y)
            low = ((top_x * top_y - product) + top_x * (y - top_y) + (x - top_x) * top_y) + (x - top_x) * (y - top_y)
            both = total + product
            part = both - total
            low += (total - (both - part)) + (product - part)
            total = both
            error += low if low - low == 0.0 else 0.0
        if length != 0:
            missing[window] = False
            means[window] = (total + error) / float(length)
    return means, missing
