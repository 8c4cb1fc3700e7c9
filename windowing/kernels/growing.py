"""Growable arrays for output of unknown length; doubled when full."""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Ints, njit


@njit
def grown(array: Ints, needed: int) -> Any:
    """``array`` if it has room for ``needed`` numbers, otherwise a longer copy; amortised O(1) per number."""
    if needed <= len(array):
        return array
    larger = np.empty(2 * needed, np.int64)
    larger[: len(array)] = array
    return larger


@njit
def grown_table(table: Ints, needed: int) -> Any:
    """As :func:`grown`, for ``needed`` rows of a table; shape (n_rows, n_columns)."""
    if needed <= len(table):
        return table
    larger = np.empty((2 * needed, table.shape[1]), np.int64)
    larger[: len(table)] = table
    return larger
