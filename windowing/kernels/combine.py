"""Combines two partials in arenas, atom by atom; the left operand is the older one.

An *arena* is an array with one partial per row: int64 columns in one, float64 columns in another. Functions take the arenas and the index
of the row, because a view of a row would cost more than most combines.

A *program* has one line per atom: operation, first int column, first float column, number of int columns, number of float columns; int64,
shape (n_atoms, 5). The identity of every operation is a row of zeros, except for −1 (no row) in the row columns of the extremes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from windowmill.windowing.kernels.compilation import inlined, inner

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

ADD, SUM, MOMENTS, GREATEST, LEAST, WIDE, MOMENTS4, COMOMENTS, PRODUCT, PICK_GREATEST, PICK_LEAST = range(11)
COUNT_GREATEST, COUNT_LEAST, WIDER = range(11, 14)
#: Int columns of GREATEST and LEAST: order key, time, rank among ties, and the source row (−1: none).
KEY, AT, TIE, ROW = 0, 1, 2, 3
#: Second int column of PICK_* (row, −1: none; the smaller row wins a tie) and of COUNT_* (number of occurrences of the extreme).
PICKED, TIMES = 1, 1
#: One unit of a sum's carry: half the span of float64's exponents, so that two parts below it never overflow when added.
CARRY_UNIT = 2.0**1023
_SPLITTER = 2.0**27 + 1.0
#: The sign bit: exclusive-or with it has signed comparisons compare 64-bit numbers as unsigned ones.
SIGN = np.iinfo(np.int64).min


@inner
def set_identity(program: Ints, ints: Ints, floats: Floats, row: int) -> None:
    """Set ``row`` to the identity of every atom."""
    for line in range(program.shape[0]):
        operation, i, f, n_ints, n_floats = program[line, 0], program[line, 1], program[line, 2], program[line, 3], program[line, 4]
        clear_atom(operation, i, f, n_ints, n_floats, ints, floats, row)


@inlined
def clear_atom(operation: int, i: int, f: int, n_ints: int, n_floats: int, ints: Ints, floats: Floats, row: int) -> None:
    """Set ``row`` to the identity of one atom."""
    for column in range(i, i + n_ints):
        ints[row, column] = 0
    for column in range(f, f + n_floats):
        floats[row, column] = 0.0
    if operation in (GREATEST, LEAST):
        ints[row, i + ROW] = -1
    elif operation in (PICK_GREATEST, PICK_LEAST):
        ints[row, i + PICKED] = -1


@inner
def copy_atom(
    i: int, f: int, n_ints: int, n_floats: int, from_ints: Ints, from_floats: Floats, source: int, ints: Ints, floats: Floats, row: int
) -> None:
    for column in range(i, i + n_ints):
        ints[row, column] = from_ints[source, column]
    for column in range(f, f + n_floats):
        floats[row, column] = from_floats[source, column]


@inner
def _add_sums(
    f: int, i: int, left_ints: Ints, left: Floats, old: int, right_ints: Ints, right: Floats, new: int, ints: Ints, floats: Floats, row: int
) -> None:
    """Sum of two compensated sums, high + low + carry · 2**1023; relative error 2**-104 of the sum of magnitudes.

    ``abs(high) < 2**1023`` always, and ``carry`` counts what goes beyond: 1e308 + 1e308 - 1e308 is 1e308, in any order. Infinities and
    NaN are in ``high`` with ``low`` zero, so that they stay what IEEE 754 makes of them. Knuth, The Art of Computer Programming 2, 4.2.2.
    """
    x, y = left[old, f], right[new, f]
    total = x + y
    if total - total != 0.0:
        floats[row, f], floats[row, f + 1], ints[row, i] = total, 0.0, 0
        return
    part = total - x
    low = (left[old, f + 1] + right[new, f + 1]) + ((x - (total - part)) + (y - part))
    high = total + low
    low -= high - total
    carry = left_ints[old, i] + right_ints[new, i]
    if high >= CARRY_UNIT:
        high, carry = high - CARRY_UNIT, carry + 1
    elif high <= -CARRY_UNIT:
        high, carry = high + CARRY_UNIT, carry - 1
    floats[row, f], floats[row, f + 1], ints[row, i] = high, low, carry


@inner
def _multiply(
    f: int, i: int, left_ints: Ints, left: Floats, old: int, right_ints: Ints, right: Floats, new: int, ints: Ints, floats: Floats, row: int
) -> None:
    """Product of two scaled products, (high + low) · 2**exponent with 0.5 <= abs(high) < 1; relative error 2**-100, and no overflow.

    ``ints`` are the number of factors, the number of zeros, and the exponent. Dekker (1971), doi:10.1007/BF01397083.
    """
    if right_ints[new, i] == 0:
        copy_atom(i, f, 3, 2, left_ints, left, old, ints, floats, row)
        return
    if left_ints[old, i] == 0:
        copy_atom(i, f, 3, 2, right_ints, right, new, ints, floats, row)
        return
    a, b = left[old, f], right[new, f]
    low_a, low_b = left[old, f + 1], right[new, f + 1]
    exponent = left_ints[old, i + 2] + right_ints[new, i + 2]
    ints[row, i], ints[row, i + 1] = left_ints[old, i] + right_ints[new, i], left_ints[old, i + 1] + right_ints[new, i + 1]
    high = a * b
    if high == 0.0 or high - high != 0.0:
        floats[row, f], floats[row, f + 1], ints[row, i + 2] = high, 0.0, 0
        return
    split = _SPLITTER * a
    top_a = split - (split - a)
    rest_a = a - top_a
    split = _SPLITTER * b
    top_b = split - (split - b)
    rest_b = b - top_b
    error = ((top_a * top_b - high) + top_a * rest_b + rest_a * top_b) + rest_a * rest_b
    low = error + (a * low_b + low_a * b)
    total = high + low
    low -= total - high
    mantissa, shift = math.frexp(total)
    ints[row, i + 2] = exponent + shift
    floats[row, f], floats[row, f + 1] = mantissa, math.ldexp(low, -shift)


@inner
def _moments4(
    f: int, i: int, left_ints: Ints, left: Floats, old: int, right_ints: Ints, right: Floats, new: int, ints: Ints, floats: Floats, row: int
) -> None:
    """Merge sums of the second to fourth power of deviations; ``floats`` are anchor, delta, m2, m3, m4; the mean is anchor + delta.

    Pebay, Terriberry, Kolla and Bennett (2016), doi:10.1007/s00180-015-0637-z.
    """
    n_a, n_b = left_ints[old, i], right_ints[new, i]
    if n_a == 0:
        copy_atom(i, f, 1, 5, right_ints, right, new, ints, floats, row)
        return
    if n_b == 0:
        copy_atom(i, f, 1, 5, left_ints, left, old, ints, floats, row)
        return
    n = float(n_a) + float(n_b)
    d = (right[new, f] - left[old, f]) + (right[new, f + 1] - left[old, f + 1])
    a, b = float(n_a) / n, float(n_b) / n
    between = d * d * (float(n_a) * b)
    m2_a, m2_b, m3_a, m3_b = left[old, f + 2], right[new, f + 2], left[old, f + 3], right[new, f + 3]
    m3 = m3_a + m3_b + between * d * (a - b) + 3.0 * d * (a * m2_b - b * m2_a)
    m4 = left[old, f + 4] + right[new, f + 4] + between * d * d * (a * a - a * b + b * b)
    m4 += 6.0 * d * d * (a * a * m2_b + b * b * m2_a) + 4.0 * d * (a * m3_b - b * m3_a)
    anchor, delta = left[old, f], left[old, f + 1] + d * b
    ints[row, i] = n_a + n_b
    floats[row, f], floats[row, f + 1], floats[row, f + 2] = anchor, delta, m2_a + m2_b + between
    floats[row, f + 3], floats[row, f + 4] = m3, m4


@inner
def _comoments(
    f: int, i: int, left_ints: Ints, left: Floats, old: int, right_ints: Ints, right: Floats, new: int, ints: Ints, floats: Floats, row: int
) -> None:
    """Merge sums of products of deviations; ``floats`` are anchor and delta of x and of y, m_xx, m_xy, m_yy."""
    n_a, n_b = left_ints[old, i], right_ints[new, i]
    if n_a == 0:
        copy_atom(i, f, 1, 7, right_ints, right, new, ints, floats, row)
        return
    if n_b == 0:
        copy_atom(i, f, 1, 7, left_ints, left, old, ints, floats, row)
        return
    share = float(n_b) / (float(n_a) + float(n_b))
    weight = float(n_a) * share
    d_x = (right[new, f] - left[old, f]) + (right[new, f + 1] - left[old, f + 1])
    d_y = (right[new, f + 2] - left[old, f + 2]) + (right[new, f + 3] - left[old, f + 3])
    ints[row, i] = n_a + n_b
    floats[row, f], floats[row, f + 1] = left[old, f], left[old, f + 1] + d_x * share
    floats[row, f + 2], floats[row, f + 3] = left[old, f + 2], left[old, f + 3] + d_y * share
    floats[row, f + 4] = left[old, f + 4] + right[new, f + 4] + d_x * d_x * weight
    floats[row, f + 5] = left[old, f + 5] + right[new, f + 5] + d_x * d_y * weight
    floats[row, f + 6] = left[old, f + 6] + right[new, f + 6] + d_y * d_y * weight


@inner
def _add_wider(i: int, left_ints: Ints, old: int, right_ints: Ints, new: int, ints: Ints, row: int) -> None:
    """Add three limbs of 64 bits, all but the highest one unsigned; a limb that takes in a carry may itself carry by that alone."""
    carry = 0
    for limb in range(i, i + 3):
        left = left_ints[old, limb]
        total = left + right_ints[new, limb]
        after = 1 if (total ^ SIGN) < (left ^ SIGN) else 0
        if carry == 1:
            total += 1
            after = 1 if total == 0 else after
        ints[row, limb], carry = total, after


@inner
def combine(
    program: Ints,
    left_ints: Ints,
    left_floats: Floats,
    old: int,
    right_ints: Ints,
    right_floats: Floats,
    new: int,
    ints: Ints,
    floats: Floats,
    row: int,
) -> None:
    """Write left ⊕ right into ``row``: row ``old`` of the left arenas, row ``new`` of the right arenas; ``row`` may be an operand."""
    for line in range(program.shape[0]):
        operation, i, f, n_ints = program[line, 0], program[line, 1], program[line, 2], program[line, 3]
        combine_atom(operation, i, f, n_ints, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)


@inlined
def combine_atom(
    operation: int,
    i: int,
    f: int,
    n_ints: int,
    left_ints: Ints,
    left_floats: Floats,
    old: int,
    right_ints: Ints,
    right_floats: Floats,
    new: int,
    ints: Ints,
    floats: Floats,
    row: int,
) -> None:
    """Combine one atom, one line of a program.

    References
    ----------
    Knuth, The Art of Computer Programming 2, 4.2.2 (two-sum). Chan, Golub and LeVeque (1983), doi:10.1080/00031305.1983.10483115.
    """
    if operation == ADD:
        for column in range(i, i + n_ints):
            ints[row, column] = left_ints[old, column] + right_ints[new, column]
    elif operation == SUM:
        _add_sums(f, i, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)
    elif operation in (PICK_GREATEST, PICK_LEAST):
        key, picked, right_key, right_picked = (
            left_ints[old, i],
            left_ints[old, i + PICKED],
            right_ints[new, i],
            right_ints[new, i + PICKED],
        )
        # Without branches: the processor cannot predict which operand wins.
        wins = right_key > key if operation == PICK_GREATEST else right_key < key
        take_right = (right_picked >= 0) & ((picked < 0) | wins | ((right_key == key) & (right_picked < picked)))
        ints[row, i], ints[row, i + PICKED] = right_key if take_right else key, right_picked if take_right else picked
    elif operation == MOMENTS:
        n, m = left_ints[old, i], right_ints[new, i]
        anchor, mean, m2 = left_floats[old, f], left_floats[old, f + 1], left_floats[old, f + 2]
        right_anchor, right_mean, right_m2 = right_floats[new, f], right_floats[new, f + 1], right_floats[new, f + 2]
        if n == 0:
            anchor, mean, m2 = right_anchor, right_mean, right_m2
        elif m != 0:
            # Means are stored relative to an anchor, so that their difference does not lose digits when both are large.
            delta = (right_anchor - anchor) + (right_mean - mean)
            whole = float(n) + float(m)
            m2 = m2 + right_m2 + delta * delta * (float(n) * float(m) / whole)
            mean += delta * (float(m) / whole)
        ints[row, i] = n + m
        floats[row, f], floats[row, f + 1], floats[row, f + 2] = anchor, mean, m2
    else:
        _combine_rare(operation, i, f, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)


@inner
def _combine_rare(
    operation: int,
    i: int,
    f: int,
    left_ints: Ints,
    left_floats: Floats,
    old: int,
    right_ints: Ints,
    right_floats: Floats,
    new: int,
    ints: Ints,
    floats: Floats,
    row: int,
) -> None:
    """Combine one atom by an operation that is too rare to inline into every caller."""
    if operation == WIDE:
        # Two limbs of 64 bits, the low one unsigned: its sum carries if it is less than an operand.
        left_low = left_ints[old, i]
        low = left_low + right_ints[new, i]
        carry = 1 if (low ^ SIGN) < (left_low ^ SIGN) else 0
        high = left_ints[old, i + 1] + right_ints[new, i + 1] + carry
        ints[row, i], ints[row, i + 1] = low, high
    elif operation == WIDER:
        _add_wider(i, left_ints, old, right_ints, new, ints, row)
    elif operation == MOMENTS4:
        _moments4(f, i, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)
    elif operation == COMOMENTS:
        _comoments(f, i, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)
    elif operation == PRODUCT:
        _multiply(f, i, left_ints, left_floats, old, right_ints, right_floats, new, ints, floats, row)
    elif operation in (COUNT_GREATEST, COUNT_LEAST):
        key, times, right_key, right_times = (left_ints[old, i], left_ints[old, i + TIMES], right_ints[new, i], right_ints[new, i + TIMES])
        if times > 0 and right_times > 0 and key == right_key:
            times += right_times
        elif right_times > 0 and (times == 0 or (right_key > key) == (operation == COUNT_GREATEST)):
            key, times = right_key, right_times
        ints[row, i], ints[row, i + TIMES] = key, times
    else:
        take_right = right_ints[new, i + ROW] >= 0
        if take_right and left_ints[old, i + ROW] >= 0:
            if left_ints[old, i + KEY] != right_ints[new, i + KEY]:
                take_right = (right_ints[new, i + KEY] > left_ints[old, i + KEY]) == (operation == GREATEST)
            elif left_ints[old, i + AT] != right_ints[new, i + AT]:
                take_right = right_ints[new, i + AT] < left_ints[old, i + AT]
            else:
                take_right = right_ints[new, i + TIE] < left_ints[old, i + TIE]
        if take_right:
            copy_atom(i, f, 4, 0, right_ints, right_floats, new, ints, floats, row)
        else:
            copy_atom(i, f, 4, 0, left_ints, left_floats, old, ints, floats, row)
