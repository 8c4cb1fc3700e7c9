"""Hashes of cells, added to a sum for each row: what :mod:`windowmill.windowing.columnar.hashes` makes checksums and buckets of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import inner, njit

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_HALF, _WORD = np.uint64(33), np.uint64(8)
_NAN, _INFINITY, _MAGNITUDE = np.uint64(0x7FF8 << 48), np.uint64(0x7FF0 << 48), np.uint64((1 << 63) - 1)
_MINUS_ZERO, _ZERO = np.uint64(1 << 63), np.uint64(0)


@inner
def _mix(word: np.uint64) -> np.uint64:
    """The finalizer of MurmurHash3: a bijection, so different words stay different."""
    word = (word ^ (word >> _HALF)) * _FIRST
    word = (word ^ (word >> _HALF)) * _SECOND
    return word ^ (word >> _HALF)


@njit
def add_words(sums: Words, words: Words, valid: Bools, seed: np.uint64) -> None:
    """Add each word's hash to its row in ``sums``; null cells add nothing. An empty ``valid`` means that no cell is null. O(n)."""
    for row in range(len(words)):
        if not len(valid) or valid[row]:
            sums[row] += _mix(words[row] ^ seed)


@njit
def add_floats(sums: Words, bits: Words, valid: Bools, seed: np.uint64) -> None:
    """As :func:`add_words`, for doubles: all NaN are equal, and -0.0 equals 0.0."""
    for row in range(len(bits)):
        if not len(valid) or valid[row]:
            word = bits[row]
            if word & _MAGNITUDE > _INFINITY:
                word = _NAN
            elif word == _MINUS_ZERO:
                word = _ZERO
            sums[row] += _mix(word ^ seed)


@njit
def add_bytes(sums: Words, data: Bytes, bounds: Ints, valid: Bools, seed: np.uint64) -> None:
    """As :func:`add_words`, for the bytes ``data[bounds[i]:bounds[i + 1]]`` of cell i."""
    for row in range(len(bounds) - 1):
        if not len(valid) or valid[row]:
            place, stop = bounds[row], bounds[row + 1]
            found = _mix(seed ^ np.uint64(stop - place))
            while place < stop:
                word = _ZERO
                for shift in range(min(8, stop - place)):
                    word |= np.uint64(data[place + shift]) << (_WORD * np.uint64(shift))
                found = _mix(found ^ word)
                place += 8
            sums[row] += found


@njit
def add_lists(sums: Words, items: Words, bounds: Ints, valid: Bools, seed: np.uint64) -> None:
    """As :func:`add_words`, for the item checksums ``items[bounds[i]:bounds[i + 1]]`` of list i; depends on the order of items."""
    for row in range(len(bounds) - 1):
        if not len(valid) or valid[row]:
            found = _mix(seed ^ np.uint64(bounds[row + 1] - bounds[row]))
            for place in range(bounds[row], bounds[row + 1]):
                found = _mix(found ^ items[place])
            sums[row] += found
