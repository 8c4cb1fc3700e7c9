"""Live rows of all keys in the kernels' form, and the suspects among them in the order in which they are judged."""

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
    moment
        Moment at which each row arrived, ascending over all batches; equal for rows that arrived together. Shape (n_rows,).
    """

    offsets: Ints
    time: Ints
    stop: Ints
    moment: Ints


@njit
def suspects_of(first: int, last: int, suspect: Bools, moment: Ints) -> Any:
    """Indices of the suspects in rows ``first:last``, in order of arrival; of those that arrived together the latest first. O(n + m log m).

    From the latest to the earliest, a row that joins others to an open session is there before them.
    """
    count = 0
    for row in range(first, last):
        count += 1 if suspect[row] else 0
    rows, arrival = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for row in range(last - 1, first - 1, -1):
        if suspect[row]:
            rows[count], arrival[count] = row, moment[row]
            count += 1
    return rows[np.argsort(arrival, kind="mergesort")]
