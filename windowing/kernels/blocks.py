"""Blocks: the words of consecutive rows, encoded column by column; constant and repeated columns are not stored again.

::

    block = number of rows │ one code byte per column │ data of each column as its code requires │ checksum

In a key's slices, the batch, the carries of sums and the late columns are mostly constant, and two counts of rows are mostly equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.arrays import put
from windowmill.windowing.kernels.checksums import checksum
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.compilation import helper, njit

#: Codes: all rows are zero; all equal the one word that follows; they equal the column whose number follows; one word per row follows.
_ZERO, _CONSTANT, _SAME, _OWN = range(4)
#: Bits of a code, and codes of a word.
_BITS, _CODES = 8, 8


@njit
def encode(columns: Ints, offsets: Ints) -> Any:
    """Encode rows ``offsets[b]:offsets[b + 1]`` of ``columns``, shape (n_columns, n_rows), as block b.

    Returns
    -------
    tuple
        Words of all blocks, and their offsets: int64, shape (n_blocks + 1,).
    """
    n_columns, n_blocks = len(columns), len(offsets) - 1
    codes, given = np.empty((n_blocks, n_columns), np.int64), np.zeros((n_blocks, n_columns), np.int64)
    bounds = np.zeros(n_blocks + 1, np.int64)
    for block in range(n_blocks):
        size = 2 + (n_columns + _CODES - 1) // _CODES
        for column in range(n_columns):
            code, word = _code(columns, column, offsets[block], offsets[block + 1], codes[block])
            codes[block, column], given[block, column] = code, word
            if code == _OWN:
                size += offsets[block + 1] - offsets[block]
            elif code != _ZERO:
                size += 1
        bounds[block + 1] = bounds[block] + size
    words = np.zeros(bounds[n_blocks], np.int64)
    for block in range(n_blocks):
        first, stop, base = offsets[block], offsets[block + 1], bounds[block]
        words[base] = stop - first
        place = base + 1 + (n_columns + _CODES - 1) // _CODES
        for column in range(n_columns):
            code = codes[block, column]
            words[base + 1 + column // _CODES] |= code << (column % _CODES * _BITS)
            if code == _OWN:
                put(columns[column, first:stop], words[place : place + stop - first])
                place += stop - first
            elif code != _ZERO:
                words[place] = given[block, column]
                place += 1
        words[place] = checksum(words, base, place)
    return words, bounds


@helper
def _code(columns: Ints, column: int, first: int, stop: int, codes: Ints) -> Any:
    """Code of one column's rows, and the word that it requires; ``codes`` are those of the columns before it."""
    head, row = columns[column, first], first + 1
    while row < stop and columns[column, row] == head:
        row += 1
    if row == stop:
        return _CONSTANT if head else _ZERO, head
    for other in range(column):
        if codes[other] == _OWN:
            row = first
            while row < stop and columns[column, row] == columns[other, row]:
                row += 1
            if row == stop:
                return _SAME, other
    return _OWN, 0


@njit
def damaged(words: Ints, bounds: Ints) -> int:
    """Number of blocks whose checksum does not match; their content must not be used."""
    found = 0
    for block in range(len(bounds) - 1):
        base, last = bounds[block], bounds[block + 1] - 1
        if last - base < 2 or words[last] != checksum(words, base, last):
            found += 1
    return found


@njit
def decode(words: Ints, bounds: Ints, n_columns: int) -> Ints:
    """Decode the rows of all blocks, none of which is :func:`damaged`; shape (n_columns, n_rows)."""
    rows = 0
    for block in range(len(bounds) - 1):
        rows += words[bounds[block]]
    columns, first = np.empty((n_columns, rows), np.int64), 0
    for block in range(len(bounds) - 1):
        base = bounds[block]
        stop, place = first + words[base], base + 1 + (n_columns + _CODES - 1) // _CODES
        for column in range(n_columns):
            code = words[base + 1 + column // _CODES] >> (column % _CODES * _BITS) & 0xFF
            if code == _OWN:
                put(words[place : place + stop - first], columns[column, first:stop])
                place += stop - first
            elif code == _SAME:
                put(columns[words[place], first:stop], columns[column, first:stop])
                place += 1
            elif code == _CONSTANT:
                columns[column, first:stop] = words[place]
                place += 1
            else:
                columns[column, first:stop] = 0
        first = stop
    return columns
