"""Live rows of all keys in the kernels' form, and the suspects among them in order of arrival."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit


class Rows(NamedTuple):
    """Live rows of all keys, sorted by key, time, tie-break and arrival; times in ticks of the axis.

    Attributes
    ----------
    offsets
        Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    time, stop
        Start and end of each row; shape (n_rows,).
    number
        Number of each row, ascending in order of arrival over all batches; shape (n_rows,).
    """

    offsets: Ints
    time: Ints
    stop: Ints
    number: Ints


@njit
def suspects_of(first: int, last: int, suspect: Bools, number: Ints) -> Any:
    """Indices of the suspects in rows ``first:last``, in order of arrival; O(n + m log m)."""
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
