"""Hashes rows by their key, equally in every process: to bring all rows of a key to one place, or to drop rows of other keys.

A key's *bucket* is the top bits of the low half of its hash. Rows of the state keep it, so that statistics of files and row groups say
which share of the keys they hold: a share is a range of buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BUCKET
from windowmill.windowing.columnar.checksums import row_checksums
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slices import by_key

#: Bits of the half of a hash that shares out keys, and of a bucket that the state keeps.
_BITS, _STORED_BITS = 32, 15
#: Bits of a hash to the right of those by which a process divides its keys once more, and of those by which batches divide theirs.
BITS_WITHIN, _BITS_OF_KEY_SHARES = 32, 48


@dataclass(frozen=True)
class Share:
    """Of the keys, divided by their hashes into ``n_buckets`` equal ranges, those of the ranges ``first:stop``."""

    first: int
    stop: int
    n_buckets: int

    @classmethod
    def every(cls, n_buckets: int) -> Share:
        """All of ``n_buckets``."""
        return cls(0, n_buckets, n_buckets)

    def rows(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of ``table`` in these buckets, in their order."""
        if not keys or self.n_buckets == 1:
            return table if self.first == 0 else table.slice(0, 0)
        numbers = _share_numbers(table.select(keys), self.n_buckets)
        return table.filter(pa.array((numbers >= self.first) & (numbers < self.stop)))

    @property
    def stored(self) -> tuple[int, int]:
        """The least and the greatest bucket of its keys."""
        first, beyond = (self.first << _STORED_BITS) // self.n_buckets, -(-(self.stop << _STORED_BITS) // self.n_buckets)
        return first, max(first, beyond - 1)


@dataclass(frozen=True)
class KeysOfShare:
    """The keys in the buckets of ``share``; ``names`` are those of the key columns."""

    share: Share
    names: Sequence[str]

    def rows(self, table: pa.Table) -> pa.Table:
        """The rows of ``table`` with these keys, in their order."""
        return self.share.rows(table, self.names)

    def may_be_in(self, file: Mapping[str, Any]) -> bool:
        """Whether the statistics of a file of the state, as the table's log has them, allow rows with these keys."""
        low, high = file.get(f"min.{BUCKET}"), file.get(f"max.{BUCKET}")
        return low is None or high is None or file.get(f"null_count.{BUCKET}") != 0 or self.may_be_between(low, high)

    def may_be_between(self, low: int, high: int) -> bool:
        """Whether some of these keys are in buckets from ``low`` through ``high``; true if these are none, which is damage."""
        first, last = self.share.stored
        return (first <= high and last >= low) or not 0 <= low <= high < 1 << _STORED_BITS


@dataclass(frozen=True)
class KeyShare:
    """The share ``number`` of ``n`` of all keys; it has about as many keys of each bucket as every other share."""

    number: int
    n: int

    def rows(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of ``table`` with these keys, in their order."""
        return table.filter(pa.array(bucket_numbers(table.select(keys), self.n, _BITS_OF_KEY_SHARES) == self.number))


class KeyFilter:
    """A Bloom filter of keys, with one hash function (Bloom 1970): it passes all rows of its keys, and few of others.

    With 400,000 keys it passes one in 40 others. ``names`` are those of the key columns.
    """

    _N_BITS = 1 << 24

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._bits = list(names), np.zeros(self._N_BITS, np.bool_)

    def add(self, rows: pa.Table) -> None:
        """Add the keys of ``rows``; O(n)."""
        if self._names:
            self._bits[bucket_numbers(rows.select(self._names), self._N_BITS)] = True

    def passed(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` of its keys, and maybe some of others; O(n). All rows if there are no key columns."""
        if not self._names:
            return rows
        passed: Bools = self._bits[bucket_numbers(rows.select(self._names), self._N_BITS)]
        return rows.filter(pa.array(passed))


def buckets_of(keys: pa.Table) -> Ints:
    """The bucket of each row of ``keys``, which rows of the state keep; int64, shape (n_rows,)."""
    return _share_numbers(keys, 1 << _STORED_BITS)


def with_buckets(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """``rows`` with a computed column ``BUCKET``: at the end, or where they already have it."""
    at, buckets = rows.schema.get_field_index(BUCKET), pa.array(buckets_of(rows.select(keys)), pa.int32())
    return rows.append_column(BUCKET, buckets) if at < 0 else rows.set_column(at, BUCKET, buckets)


def _share_numbers(keys: pa.Table, n: int) -> Ints:
    """The number among ``n`` equal shares of all keys of each row of ``keys``; int64, shape (n_rows,)."""
    half = _hashes(keys) & np.uint64((1 << _BITS) - 1)
    return ((half * np.uint64(n)) >> np.uint64(_BITS)).astype(np.int64)


def bucket_numbers(keys: pa.Table, n_buckets: int, bits: int = 0) -> Ints:
    """A number below ``n_buckets`` for each row of ``keys``, by the hash to the left of so many ``bits``; int64, shape (n_rows,).

    Equal keys have the same number in every table, whatever their columns are called there.
    """
    buckets: Ints = ((_hashes(keys) >> np.uint64(bits)) % np.uint64(n_buckets)).astype(np.int64)
    return buckets


def _hashes(keys: pa.Table) -> npt.NDArray[np.uint64]:
    nameless = keys.rename_columns([str(number) for number in range(keys.num_columns)])
    # Python's own hash of a text differs from process to process.
    hashes: npt.NDArray[np.uint64] = row_checksums(nameless).to_numpy().view(np.uint64)
    return hashes


def in_buckets(rows: pa.Table, keys: Sequence[str], share: Share, bits: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each of the shares in ``share`` that has some, with its number, in the order of ``rows``; O(n + n_buckets).

    Equal keys have the same number in every table. ``keys`` are the names of the key columns; without any, all rows are in share 0.
    ``bits`` are as for :func:`bucket_numbers`; 0 for shares as of :class:`Share`.
    """
    if not keys or share.n_buckets == 1:
        if rows.num_rows and share.first == 0:
            yield 0, rows
        return
    own = rows.select(keys)
    buckets = bucket_numbers(own, share.n_buckets, bits) if bits else _share_numbers(own, share.n_buckets)
    if share.stop - share.first == 1:
        own = rows.filter(pa.array(buckets == share.first))
        if own.num_rows:
            yield share.first, own
        return
    order, offsets = by_key(buckets, share.n_buckets)
    base = offsets[share.first]
    own = rows.take(pa.array(order[base : offsets[share.stop]]))
    for number in range(share.first, share.stop):
        begin, end = (int(offsets[at] - base) for at in (number, number + 1))
        if begin < end:
            yield number, own.slice(begin, end - begin)
