"""Live rows of all keys as the kernels take them, and the late ones among them in the order of their arrival."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit


class Rows(NamedTuple):
    """Live rows of all keys, in the order of key, time, tie-break and arrival; times in ticks of the axis.

    Attributes
    ----------
    offsets
        Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    time, stop
        Start and end of each row; shape (n_rows,).
    number
        Position of each row in all that was fed; shape (n_rows,).
    """

    offsets: Ints
    time: Ints
    stop: Ints
    number: Ints


@njit
def suspects_of(first: int, last: int, suspect: Bools, number: Ints) -> Any:
    """The suspects among rows ``first:last`` in the order of their arrival."""
    count = 0
    for row in range(first, last):
        count += 1 if suspect[row] else 0
    rows, arrival = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for row in range(first, last):
        if suspect[row]:
            rows[count], arrival[count] = row, number[row]
            count += 1
    return rows[np.argsort(arrival)]
