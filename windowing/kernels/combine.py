"""Combining two partials in the arenas, atom by atom; the left operand is the older one."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ADD_INT, ADD_FLOAT, MOMENTS, GREATEST, LEAST = 0, 1, 2, 3, 4
#: Int columns of GREATEST and LEAST: order key, time, rank among ties, and the row it came from (−1: none).
KEY, AT, TIE, ROW = 0, 1, 2, 3


def njit(function: Any) -> Any:
    """Compile with numba, keeping the code on disk; no fast-math: results must not depend on the machine."""
    return numba.njit(cache=True, nogil=True)(function)


@njit
def set_identity(program: Ints, ints: Ints, floats: Floats) -> None:
    """Make the row (``ints``, ``floats``) the identity of every atom."""
    ints[:] = 0
    floats[:] = 0.0
    for line in range(program.shape[0]):
        if program[line, 0] >= GREATEST:
            ints[program[line, 1] + ROW] = -1


@njit
def combine(
    program: Ints, left_ints: Ints, left_floats: Floats, right_ints: Ints, right_floats: Floats, ints: Ints, floats: Floats
) -> bool:
    """Write left ⊕ right into the row (``ints``, ``floats``), which may be either operand; whether an integer sum overflowed.

    References
    ----------
    Knuth, The Art of Computer Programming 2, 4.2.2 (two-sum). Chan, Golub and LeVeque (1983), doi:10.1080/00031305.1983.10483115.
    """
    overflow = False
    for line in range(program.shape[0]):
        operation, i, f = program[line, 0], program[line, 1], program[line, 2]
        if operation == ADD_INT:
            a, b = left_ints[i], right_ints[i]
            total = a + b
            overflow |= ((a ^ total) & (b ^ total)) < 0
            ints[i] = total
        elif operation == ADD_FLOAT:
            x, y = left_floats[f], right_floats[f]
            error = left_floats[f + 1] + right_floats[f + 1]
            s = x + y
            if np.isfinite(s):
                v = s - x
                error += (x - (s - v)) + (y - v)
            else:
                error = 0.0
            floats[f] = s
            floats[f + 1] = error
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
    return overflow
