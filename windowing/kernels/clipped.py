"""Time-weighted means: each event's weight is its duration inside the window."""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.compilation import njit

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
