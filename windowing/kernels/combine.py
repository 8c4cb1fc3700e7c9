"""Combining two partials in the arenas, atom by atom; the left operand is the older one.

A *program* has one line an atom: operation, first int column, first float column, number of int columns. The identity of every
operation is a row of zeros, but for the ROW columns of the extremes, where −1 says that there is none.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

ADD, SUM, MOMENTS, GREATEST, LEAST, WIDE, MOMENTS4, COMOMENTS, PRODUCT, PICK_GREATEST, PICK_LEAST, COUNT_GREATEST, COUNT_LEAST = range(13)
#: Int columns of GREATEST and LEAST: order key, time, rank among ties, and the row it came from (−1: none).
KEY, AT, TIE, ROW = 0, 1, 2, 3
#: Second int column of PICK_* (row, −1: none; the smaller row wins a tie) and of COUNT_* (how often the extreme occurs).
PICKED, TIMES = 1, 1
#: One unit of a sum's carry; see windowing.numerics.
CARRY_UNIT = 2.0**1023
_SPLITTER = 2.0**27 + 1.0
_SIGN = np.iinfo(np.int64).min


def njit(function: Any) -> Any:
    """Compile with numba, keeping the code on disk; no fast-math: results must not depend on the machine."""
    return numba.njit(cache=True, nogil=True)(function)


@njit
def set_identity(program: Ints, ints: Ints, floats: Floats) -> None:
    """Make the row (``ints``, ``floats``) the identity of every atom."""
    ints[:] = 0
    floats[:] = 0.0
    for line in range(program.shape[0]):
        operation = program[line, 0]
        if operation in (GREATEST, LEAST):
            ints[program[line, 1] + ROW] = -1
        elif operation in (PICK_GREATEST, PICK_LEAST):
            ints[program[line, 1] + PICKED] = -1


@njit
def _add_sums(f: int, i: int, left_ints: Ints, left: Floats, right_ints: Ints, right: Floats, ints: Ints, floats: Floats) -> None:
    """:func:`windowing.numerics.add_sums`."""
    x, y = left[f], right[f]
    total = x + y
    if total - total != 0.0:
        floats[f], floats[f + 1], ints[i] = total, 0.0, 0
        return
    part = total - x
    low = (left[f + 1] + right[f + 1]) + ((x - (total - part)) + (y - part))
    high = total + low
    low -= high - total
    carry = left_ints[i] + right_ints[i]
    if high >= CARRY_UNIT:
        high, carry = high - CARRY_UNIT, carry + 1
    elif high <= -CARRY_UNIT:
        high, carry = high + CARRY_UNIT, carry - 1
    floats[f], floats[f + 1], ints[i] = high, low, carry


@njit
def _multiply(f: int, i: int, left_ints: Ints, left: Floats, right_ints: Ints, right: Floats, ints: Ints, floats: Floats) -> None:
    """:func:`windowing.numerics.multiply`; ``ints`` are the number of factors, of zeros among them, and the exponent."""
    if left_ints[i] == 0 or right_ints[i] == 0:
        from_ints, source = (right_ints, right) if left_ints[i] == 0 else (left_ints, left)
        n, zeros, exponent, high, low = from_ints[i], from_ints[i + 1], from_ints[i + 2], source[f], source[f + 1]
        ints[i], ints[i + 1], ints[i + 2], floats[f], floats[f + 1] = n, zeros, exponent, high, low
        return
    a, b = left[f], right[f]
    ints[i], ints[i + 1] = left_ints[i] + right_ints[i], left_ints[i + 1] + right_ints[i + 1]
    high = a * b
    if high == 0.0 or high - high != 0.0:
        floats[f], floats[f + 1], ints[i + 2] = high, 0.0, 0
        return
    split = _SPLITTER * a
    top_a = split - (split - a)
    rest_a = a - top_a
    split = _SPLITTER * b
    top_b = split - (split - b)
    rest_b = b - top_b
    error = ((top_a * top_b - high) + top_a * rest_b + rest_a * top_b) + rest_a * rest_b
    low = error + (a * right[f + 1] + left[f + 1] * b)
    total = high + low
    low -= total - high
    mantissa, shift = math.frexp(total)
    ints[i + 2] = left_ints[i + 2] + right_ints[i + 2] + shift
    floats[f], floats[f + 1] = mantissa, math.ldexp(low, -shift)


@njit
def _copy(i: int, n_ints: int, f: int, n_floats: int, from_ints: Ints, source: Floats, ints: Ints, floats: Floats) -> None:
    for column in range(i, i + n_ints):
        ints[column] = from_ints[column]
    for column in range(f, f + n_floats):
        floats[column] = source[column]


@njit
def _moments4(f: int, i: int, left_ints: Ints, left: Floats, right_ints: Ints, right: Floats, ints: Ints, floats: Floats) -> None:
    """:func:`windowing.aggregates.spread.combine_moments4`; ``floats`` are anchor, delta, m2, m3, m4."""
    n_a, n_b = left_ints[i], right_ints[i]
    if n_a == 0 or n_b == 0:
        if n_a == 0:
            _copy(i, 1, f, 5, right_ints, right, ints, floats)
        else:
            _copy(i, 1, f, 5, left_ints, left, ints, floats)
        return
    n = float(n_a) + float(n_b)
    d = (right[f] - left[f]) + (right[f + 1] - left[f + 1])
    a, b = float(n_a) / n, float(n_b) / n
    between = d * d * (float(n_a) * b)
    m2_a, m2_b, m3_a, m3_b = left[f + 2], right[f + 2], left[f + 3], right[f + 3]
    m3 = m3_a + m3_b + between * d * (a - b) + 3.0 * d * (a * m2_b - b * m2_a)
    m4 = left[f + 4] + right[f + 4] + between * d * d * (a * a - a * b + b * b)
    m4 += 6.0 * d * d * (a * a * m2_b + b * b * m2_a) + 4.0 * d * (a * m3_b - b * m3_a)
    anchor, delta = left[f], left[f + 1] + d * b
    ints[i] = n_a + n_b
    floats[f], floats[f + 1], floats[f + 2], floats[f + 3], floats[f + 4] = anchor, delta, m2_a + m2_b + between, m3, m4


@njit
def _comoments(f: int, i: int, left_ints: Ints, left: Floats, right_ints: Ints, right: Floats, ints: Ints, floats: Floats) -> None:
    """:func:`windowing.aggregates.spread.combine_comoments`; ``floats`` are anchor and delta of x and of y, m_xx, m_xy, m_yy."""
    n_a, n_b = left_ints[i], right_ints[i]
    if n_a == 0 or n_b == 0:
        if n_a == 0:
            _copy(i, 1, f, 7, right_ints, right, ints, floats)
        else:
            _copy(i, 1, f, 7, left_ints, left, ints, floats)
        return
    share = float(n_b) / (float(n_a) + float(n_b))
    weight = float(n_a) * share
    d_x = (right[f] - left[f]) + (right[f + 1] - left[f + 1])
    d_y = (right[f + 2] - left[f + 2]) + (right[f + 3] - left[f + 3])
    ints[i] = n_a + n_b
    floats[f], floats[f + 1] = left[f], left[f + 1] + d_x * share
    floats[f + 2], floats[f + 3] = left[f + 2], left[f + 3] + d_y * share
    floats[f + 4] = left[f + 4] + right[f + 4] + d_x * d_x * weight
    floats[f + 5] = left[f + 5] + right[f + 5] + d_x * d_y * weight
    floats[f + 6] = left[f + 6] + right[f + 6] + d_y * d_y * weight


@njit
def combine(  # noqa: PLR0915 - one branch an operation
    program: Ints, left_ints: Ints, left_floats: Floats, right_ints: Ints, right_floats: Floats, ints: Ints, floats: Floats
) -> None:
    """Write left ⊕ right into the row (``ints``, ``floats``), which may be either operand.

    References
    ----------
    Knuth, The Art of Computer Programming 2, 4.2.2 (two-sum). Chan, Golub and LeVeque (1983), doi:10.1080/00031305.1983.10483115.
    """
    for line in range(program.shape[0]):
        operation, i, f = program[line, 0], program[line, 1], program[line, 2]
        if operation == ADD:
            for column in range(i, i + program[line, 3]):
                ints[column] = left_ints[column] + right_ints[column]
        elif operation == SUM:
            _add_sums(f, i, left_ints, left_floats, right_ints, right_floats, ints, floats)
        elif operation == WIDE:
            # Two limbs of 64 bits, the low one without sign: its sum carries when it comes out smaller than an operand.
            low = left_ints[i] + right_ints[i]
            carry = 1 if (low ^ _SIGN) < (left_ints[i] ^ _SIGN) else 0
            ints[i + 1] = left_ints[i + 1] + right_ints[i + 1] + carry
            ints[i] = low
        elif operation in (PICK_GREATEST, PICK_LEAST):
            take_right = right_ints[i + PICKED] >= 0
            if take_right and left_ints[i + PICKED] >= 0:
                if left_ints[i] != right_ints[i]:
                    take_right = (right_ints[i] > left_ints[i]) == (operation == PICK_GREATEST)
                else:
                    take_right = right_ints[i + PICKED] < left_ints[i + PICKED]
            chosen = right_ints if take_right else left_ints
            key, row = chosen[i], chosen[i + PICKED]
            ints[i], ints[i + PICKED] = key, row
        elif operation == MOMENTS:
            n, m = left_ints[i], right_ints[i]
            if m == 0 or n == 0:
                source_floats = left_floats if m == 0 else right_floats
                p, q, r = source_floats[f], source_floats[f + 1], source_floats[f + 2]
                floats[f], floats[f + 1], floats[f + 2] = p, q, r
            else:
                # The means are kept relative to an anchor, so that their difference keeps its digits when both are large.
                delta = (right_floats[f] - left_floats[f]) + (right_floats[f + 1] - left_floats[f + 1])
                whole = float(n) + float(m)
                m2 = left_floats[f + 2] + right_floats[f + 2] + delta * delta * (float(n) * float(m) / whole)
                mean = left_floats[f + 1] + delta * (float(m) / whole)
                anchor = left_floats[f]
                floats[f], floats[f + 1], floats[f + 2] = anchor, mean, m2
            ints[i] = n + m
        elif operation == MOMENTS4:
            _moments4(f, i, left_ints, left_floats, right_ints, right_floats, ints, floats)
        elif operation == COMOMENTS:
            _comoments(f, i, left_ints, left_floats, right_ints, right_floats, ints, floats)
        elif operation == PRODUCT:
            _multiply(f, i, left_ints, left_floats, right_ints, right_floats, ints, floats)
        elif operation in (COUNT_GREATEST, COUNT_LEAST):
            a, b = left_ints[i + TIMES], right_ints[i + TIMES]
            if a > 0 and b > 0 and left_ints[i] == right_ints[i]:
                ints[i], ints[i + TIMES] = left_ints[i], a + b
            else:
                right_wins = (right_ints[i] > left_ints[i]) == (operation == COUNT_GREATEST)
                take_right = b > 0 and (a == 0 or right_wins)
                chosen = right_ints if take_right else left_ints
                key, times = chosen[i], chosen[i + TIMES]
                ints[i], ints[i + TIMES] = key, times
        else:
            take_right = right_ints[i + ROW] >= 0
            if take_right and left_ints[i + ROW] >= 0:
                if left_ints[i + KEY] != right_ints[i + KEY]:
                    take_right = (right_ints[i + KEY] > left_ints[i + KEY]) == (operation == GREATEST)
                elif left_ints[i + AT] != right_ints[i + AT]:
                    take_right = right_ints[i + AT] < left_ints[i + AT]
                else:
                    take_right = right_ints[i + TIE] < left_ints[i + TIE]
            chosen = right_ints if take_right else left_ints
            key, at, tie, row = chosen[i + KEY], chosen[i + AT], chosen[i + TIE], chosen[i + ROW]
            ints[i + KEY], ints[i + AT], ints[i + TIE], ints[i + ROW] = key, at, tie, row
