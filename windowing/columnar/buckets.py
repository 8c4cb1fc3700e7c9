"""Divides rows by a hash of their key, the same in every process, so that all rows of a key meet in one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.rows import keys_of, plain
from windowmill.windowing.kernels.columns import order_key

#: Constants of splitmix64's finalizer (Steele, Lea and Flood, 2014), which spreads neighbouring numbers.
_GAMMA, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
Hashes = npt.NDArray[np.uint64]


def in_buckets(rows: pa.Table, keys: Sequence[str], n_buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket that has some, in the order of ``rows``; equal keys have the same bucket in every table. O(n).

    ``keys`` are the names of the key columns; without any, all rows are in bucket 0.
    """
    if not keys or n_buckets == 1:
        if rows.num_rows:
            yield 0, rows
        return
    table, codes, _ = keys_of([rows], keys)
    bucket = (_hashes(table) % np.uint64(n_buckets)).astype(np.uint16 if n_buckets <= 1 << 16 else np.int64)[codes]
    ordered = rows.take(pa.array(np.argsort(bucket, kind="stable")))  # 16-bit numbers are radix-sorted
    ends = np.cumsum(np.bincount(bucket, minlength=n_buckets))
    for number, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if begin < end:
            yield number, ordered.slice(begin, end - begin)


def _hashes(keys: pa.Table) -> Hashes:
    hashes = np.zeros(keys.num_rows, np.uint64)
    for name in keys.column_names:
        hashes = _mixed(hashes + _GAMMA + _bits(plain(keys.column(name))))
    return hashes


def _bits(column: pa.Array) -> Hashes:
    """Equal numbers for equal values; Python's own hash of a text differs from process to process."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return order_key(column).view(np.uint64)
    if pa.types.is_date32(kind):  # may lie beyond Python's dates
        return order_key(column.cast(pa.int32())).view(np.uint64)
    if pa.types.is_string(kind):  # may be no UTF-8
        column = column.cast(pa.binary())
    return np.array([crc32(repr(value).encode()) for value in column.to_pylist()], np.uint64)


def _mixed(numbers: Hashes) -> Hashes:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))
