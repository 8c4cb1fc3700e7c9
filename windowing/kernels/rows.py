"""Live rows of all keys in the kernels' form, and the suspects among them in the order in which they are judged."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper


class Rows(NamedTuple):
    """Live rows of all keys, sorted by key, time, tie-break and arrival; times in ticks of the axis."""

    offsets: Ints  #: Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: Start and end of each row; shape (n_rows,).
    time: Ints
    stop: Ints
    moment: Ints  #: Moment at which each row arrived, ascending over all batches; equal for rows that arrived together. Shape (n_rows,).


@helper
def suspects_of(first: int, last: int, suspect: Bools, moment: Ints, latest_first: bool) -> Any:
    """Indices of the suspects in rows ``first:last``, in order of arrival; O(n + m log m).

    Those that arrived together come from the earliest to the latest, or with ``latest_first`` from the latest to the earliest.
    """
    count = 0
    for row in range(first, last):
        count += 1 if suspect[row] else 0
    rows, arrival = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for place in range(last - first):
        row = last - 1 - place if latest_first else first + place
        if suspect[row]:
            rows[count], arrival[count] = row, moment[row]
            count += 1
    return rows[np.argsort(arrival, kind="mergesort")]
