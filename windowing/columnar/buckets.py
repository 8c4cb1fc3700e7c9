"""Hashes rows by their key, equally in every process: to bring all rows of a key to one place, or to drop rows of other keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.checksums import row_checksums
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slices import by_key

#: Bits of a hash to the right of those by which keys are shared out, and of those by which a process divides its keys once more.
_BITS_OF_BUCKETS, BITS_WITHIN = 48, 24


@dataclass(frozen=True)
class Share:
    """The buckets ``first:stop`` of ``n_buckets``."""

    first: int
    stop: int
    n_buckets: int

    @classmethod
    def every(cls, n_buckets: int) -> Share:
        """All of ``n_buckets``."""
        return cls(0, n_buckets, n_buckets)

    def rows(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of ``table`` in these buckets, bucket by bucket."""
        return pa.concat_tables([table.slice(0, 0), *(rows for _, rows in in_buckets(table, keys, self))])


@dataclass(frozen=True)
class KeyShare:
    """The share ``number`` of ``n`` of all keys; it has about as many keys of each bucket as every other share."""

    number: int
    n: int

    def rows(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of ``table`` with these keys, in their order."""
        return table.filter(pa.array(bucket_numbers(table.select(keys), self.n, _BITS_OF_BUCKETS) == self.number))


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


def bucket_numbers(keys: pa.Table, n_buckets: int, bits: int = 0) -> Ints:
    """The bucket of each row of ``keys``; int64, shape (n_rows,).

    Equal keys have the same bucket in every table, whatever their columns are called there. Buckets by other ``bits`` of the hash are
    independent of these.
    """
    buckets: Ints = ((_hashes(keys) >> np.uint64(bits)) % np.uint64(n_buckets)).astype(np.int64)
    return buckets


def _hashes(keys: pa.Table) -> npt.NDArray[np.uint64]:
    nameless = keys.rename_columns([str(number) for number in range(keys.num_columns)])
    # Python's own hash of a text differs from process to process.
    hashes: npt.NDArray[np.uint64] = row_checksums(nameless).to_numpy().view(np.uint64)
    return hashes


def in_buckets(rows: pa.Table, keys: Sequence[str], share: Share, bits: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket of ``share`` that has some, in the order of ``rows``; O(n + n_buckets).

    Equal keys have the same bucket in every table. ``keys`` are the names of the key columns; without any, all rows are in bucket 0.
    """
    if not keys or share.n_buckets == 1:
        if rows.num_rows and share.first == 0:
            yield 0, rows
        return
    buckets = bucket_numbers(rows.select(keys), share.n_buckets, bits)
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
