"""Compile every kernel once and leave the code in numba's cache: ``python -m windowing.kernels``."""

from __future__ import annotations

import sys
import time

import numpy as np

from windowing.kernels.hopping import hopping_windows


def warm() -> float:
    """Compile (or load) the kernels; seconds it took."""
    begun = time.perf_counter()
    offsets, none = np.zeros(1, np.int64), np.empty(0, np.int64)
    hopping_windows(
        np.empty((0, 4), np.int64), offsets, none, none, np.empty((0, 1), np.int64), np.empty((0, 1), np.float64), 1, 1, 0, 0, 0
    )
    return time.perf_counter() - begun


if __name__ == "__main__":
    print(f"kernels ready after {warm():.1f} s", file=sys.stderr)
