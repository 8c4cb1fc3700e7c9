"""Arrays within kernels: growing ones for output of unknown length, doubled when full; copies; searches; distinct numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.compilation import helper, inner


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
