"""Arrays within kernels: live rows; growing arrays for output of unknown length, doubled when full; copies; searches; distinct numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inner


class Rows(NamedTuple):
    """Live rows of all keys, sorted by key, time, tie-break and arrival; times in ticks of the axis."""

    offsets: Ints  #: Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: Start and end of each row; shape (n_rows,).
    time: Ints
    stop: Ints
    moment: Ints  #: Moment at which each row arrived, ascending over all batches; equal for rows that arrived together. Shape (n_rows,).


@inner
def put(values: Ints, target: Ints) -> None:
    """Copy ``values`` to the start of ``target``; an assignment would compile the message of numba's check of shapes, for seconds."""
    for place in range(len(values)):
        target[place] = values[place]


@inner
def bisect_left(values: Ints, instant: int, first: int, stop: int) -> Any:
    """As :func:`bisect.bisect_left`: the first place in ``first:stop`` of ascending ``values`` at or after ``instant``."""
    while first < stop:
        middle = (first + stop) // 2
        if values[middle] < instant:
            first = middle + 1
        else:
            stop = middle
    return first


@inner
def bisect_right(values: Ints, instant: int, first: int, stop: int) -> Any:
    """As :func:`bisect.bisect_right`: the first place in ``first:stop`` of ascending ``values`` after ``instant``."""
    while first < stop:
        middle = (first + stop) // 2
        if values[middle] <= instant:
            first = middle + 1
        else:
            stop = middle
    return first


@helper
def grown(array: Ints, needed: int) -> Any:
    """``array`` if it has room for ``needed`` numbers, otherwise a longer copy; amortised O(1) per number."""
    if needed <= len(array):
        return array
    larger = np.empty(2 * needed, np.int64)
    put(array, larger)
    return larger


@helper
def distinct(values: Ints) -> Any:
    """The distinct ``values``, ascending. ``np.unique`` collects them in lists, and takes longer to compile."""
    ordered, n = np.sort(values), 0
    for value in ordered:
        if n == 0 or value != ordered[n - 1]:
            ordered[n] = value
            n += 1
    return ordered[:n]


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
