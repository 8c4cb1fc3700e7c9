"""Hashes of rows: checksums of stored state, and buckets by key, equal in every process.

A checksum is the sum of a hash of each cell, seeded by the column's name. So it does not depend on the order of columns, on Arrow's
representation of a column (chunks, offsets, small or large strings), or on what stores do to floats (NaN's bits, the sign of zero). A null
adds nothing, so adding a column to a table changes no older row's checksum.

A key's *bucket* is the top bits of the low half of its hash. Rows of the state keep it, so that statistics of files and row groups say
which share of the keys they hold: a share is a range of buckets.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import BUCKET, SUM
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.checksums import Words, add_bytes, add_floats, add_lists, add_words
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import valid_of
from windowmill.windowing.kernels.slices import by_key

_ALL_VALID: Bools = np.empty(0, np.bool_)
#: Start value of a row's sum, and the hash of a list's null item, so that null items and empty structs count.
_START, _NULL_ITEM = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
#: The column of checksums.
CHECKSUM = pa.field(SUM, pa.int64())
#: Columns of the state that follow from the others.
_DERIVED = (SUM, BUCKET)
REMEDY = "nothing was written; restore the folder from a copy, or backfill into a new sink"


def row_checksums(table: pa.Table, but: Container[str] = ()) -> pa.Array:
    """The checksum of each row over all columns ``but`` these; int64, shape (n_rows,). About 2 ns per number, 1 ns per byte of text."""
    sums = np.full(table.num_rows, _START, np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name not in but:
            first = 0
            for chunk in column.chunks:
                _add(sums[first : first + len(chunk)], chunk, _seed(name))
                first += len(chunk)
    return pa.array(sums.view(np.int64))


def with_checksums(table: pa.Table) -> pa.Table:
    """``table`` with a computed column ``SUM``: at the end, or where the table already has it."""
    at, sums = table.schema.get_field_index(SUM), row_checksums(table, but=_DERIVED)
    return table.append_column(SUM, sums) if at < 0 else table.set_column(at, SUM, sums)


def verify_once(check: RowCheck | None, rows: pa.Table) -> None:
    """Verify rows that still have their checksums; rows that have been verified come without them."""
    if check is not None and SUM in rows.column_names:
        check.verify(rows)


@dataclass(frozen=True)
class RowCheck:
    """Verifies rows of the state table at the path ``table``; small and picklable."""

    table: str

    def verify(self, rows: pa.Table) -> None:
        """Compare each row with its checksum. Raises ``StateCorruptError`` if a row differs from what was written, or lacks a checksum."""
        if not rows.num_rows:
            return
        wrong = pc.fill_null(pc.not_equal(rows.column(SUM), row_checksums(rows, but=_DERIVED)), True)
        if pc.any(wrong).as_py():
            count = pc.sum(wrong).as_py()
            raise StateCorruptError(f"state {self.table}: {count:,} of {rows.num_rows:,} rows read differ from what was written; {REMEDY}")


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _add(sums: Words, column: pa.Array, seed: np.uint64) -> None:
    kind = column.type
    valid = _fixed(valid_of(column)) if column.null_count else _ALL_VALID
    if pa.types.is_null(kind) or not len(column):
        return
    if isinstance(kind, pa.BaseExtensionType):
        _add(sums, column.storage, seed)
    elif pa.types.is_dictionary(kind):
        _add(sums, column.dictionary_decode(), seed)
    elif pa.types.is_floating(kind):
        add_floats(sums, _words(column.cast(pa.float64())), valid, seed)
    elif pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width < 64):
        add_words(sums, _words(column.cast(pa.int64())), valid, seed)
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width : (column.offset + len(column)) * width]
        add_bytes(sums, _fixed(data), _fixed(np.arange(len(column) + 1) * width), valid, seed)
    elif pa.types.is_primitive(kind):
        bits = column.view(pa.int64()) if kind.bit_width == 64 else column.view(pa.int32()).cast(pa.int64())
        add_words(sums, _words(bits), valid, seed)
    elif pa.types.is_struct(kind):
        _add_struct(sums, column, valid, seed)
    elif pa.types.is_nested(kind):
        _add_lists(sums, column, valid, seed)
    else:
        _add_texts(sums, column, valid, seed)


def _add_texts(sums: Words, column: pa.Array, valid: Bools, seed: np.uint64) -> None:
    """Add strings or bytes with offsets of any width."""
    kind = column.type
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and not pa.types.is_string(kind) and not pa.types.is_binary(kind):
        column, large = column.cast(pa.large_binary()), True
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int64 if large else np.int32)[column.offset : column.offset + len(column) + 1]
    texts = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    add_bytes(sums, _fixed(texts), _fixed(bounds.astype(np.int64)), valid, seed)


def _add_struct(sums: Words, column: pa.StructArray, valid: Bools, seed: np.uint64) -> None:
    cells = np.full(len(column), _START ^ seed, np.uint64)
    for field, child in zip(column.type, column.flatten(), strict=True):
        _add(cells, child, _seed(field.name))
    add_words(sums, _fixed(cells), valid, seed)


def _add_lists(sums: Words, column: pa.Array, valid: Bools, seed: np.uint64) -> None:
    """Add lists of any kind; a map counts as a list of pairs."""
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        bounds, items = (np.arange(len(column) + 1) + column.offset) * kind.list_size, column.values
    else:
        bounds = column.offsets.to_numpy().astype(np.int64)
        items = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"]) if pa.types.is_map(kind) else column.values
    first = int(bounds[0])
    hashes = np.full(int(bounds[-1]) - first, _NULL_ITEM, np.uint64)
    _add(hashes, items.slice(first, len(hashes)), seed)
    add_lists(sums, _fixed(hashes), _fixed(bounds - first), valid, seed)


def _words(column: pa.Array) -> Words:
    """A column of eight-byte values as words; the words of nulls are undefined."""
    words = np.frombuffer(column.buffers()[1], np.uint64)[column.offset : column.offset + len(column)]
    return _fixed(words)


def _fixed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view: kernels are compiled only for read-only arrays, which Arrow's buffers give."""
    view = values.view()
    view.flags.writeable = False
    return view


#: Bits of the half of a hash that shares out keys, and of a bucket that the state keeps.
_BITS, _STORED_BITS = 32, 15
#: Bits of a hash to the right of those by which a process divides its keys once more, and of those by which batches divide theirs.
BITS_WITHIN, _BITS_OF_KEY_SHARES = 32, 48


@dataclass(frozen=True)
class Share:
    """The keys in the ranges ``first:stop``, if hashes are divided into ``n_buckets`` equal ranges."""

    first: int
    stop: int
    n_buckets: int

    @classmethod
    def every(cls, n_buckets: int) -> Share:
        return cls(0, n_buckets, n_buckets)

    def rows(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of ``table`` in these buckets, in their order."""
        if not keys or self.n_buckets == 1:
            return table if self.first == 0 else table.slice(0, 0)
        numbers = buckets_of(table.select(keys), self.n_buckets)
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
        return low is None or high is None or self.may_be_between(low, high)

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
        if self._names:
            self._bits[bucket_numbers(rows.select(self._names), self._N_BITS)] = True

    def passed(self, rows: pa.Table) -> pa.Table:
        """The ``rows`` of its keys, and maybe some of others; O(n). All rows if there are no key columns."""
        if not self._names:
            return rows
        passed: Bools = self._bits[bucket_numbers(rows.select(self._names), self._N_BITS)]
        return rows.filter(pa.array(passed))


def buckets_of(keys: pa.Table, n: int = 1 << _STORED_BITS) -> Ints:
    """The number among ``n`` equal shares of all keys of each row of ``keys``; by default its bucket, which rows of the state keep.

    int64, shape (n_rows,).
    """
    half = _hashes(keys) & np.uint64((1 << _BITS) - 1)
    return ((half * np.uint64(n)) >> np.uint64(_BITS)).astype(np.int64)


def with_buckets(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """``rows`` with a computed column ``BUCKET``: at the end, or where they already have it."""
    at, buckets = rows.schema.get_field_index(BUCKET), pa.array(buckets_of(rows.select(keys)), pa.int32())
    return rows.append_column(BUCKET, buckets) if at < 0 else rows.set_column(at, BUCKET, buckets)


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
    buckets = bucket_numbers(own, share.n_buckets, bits) if bits else buckets_of(own, share.n_buckets)
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
