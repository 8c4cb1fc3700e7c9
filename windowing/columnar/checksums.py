"""A checksum for each row of stored state: computed when the row is written, verified when it is read.

It is the sum of a hash of each cell, seeded by the column's name. So it does not depend on the order of columns, on Arrow's representation
of a column (chunks, offsets, small or large strings), or on what stores do to floats (NaN's bits, the sign of zero). A null adds nothing,
so adding a column to a table changes no older row's checksum.
"""

from __future__ import annotations

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
from windowmill.windowing.kernels.columns import valid_of
from windowmill.windowing.kernels.combine import Bools

_ALL_VALID: Bools = np.empty(0, np.bool_)
#: Start value of a row's sum, and the hash of a list's null item, so that null items and empty structs count.
_START, _NULL_ITEM = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
REMEDY = "nothing was written; restore the folder from a copy, or backfill into a new sink"


def row_checksums(table: pa.Table) -> pa.Array:
    """The checksum of each row over all columns but ``SUM`` and ``BUCKET``, which follows from the keys; int64, shape (n_rows,).

    About 2 ns per number, 1 ns per byte of text.
    """
    sums = np.full(table.num_rows, _START, np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name not in (SUM, BUCKET):
            first = 0
            for chunk in column.chunks:
                _add(sums[first : first + len(chunk)], chunk, _seed(name))
                first += len(chunk)
    return pa.array(sums.view(np.int64))


def with_checksums(table: pa.Table) -> pa.Table:
    """``table`` with a computed column ``SUM``: at the end, or where the table already has it."""
    at, sums = table.schema.get_field_index(SUM), row_checksums(table)
    return table.append_column(SUM, sums) if at < 0 else table.set_column(at, SUM, sums)


def without_checksums(table: pa.Table) -> pa.Table:
    """The columns of ``table`` but for ``SUM``."""
    return table.drop_columns([SUM])


def with_checksum_column(schema: pa.Schema) -> pa.Schema:
    """The columns of ``schema``, and ``SUM`` behind them."""
    return schema.append(pa.field(SUM, pa.int64()))


def verify_once(check: RowCheck | None, rows: pa.Table) -> None:
    """Verify rows that still have their checksums; rows that have been verified come without them.

    Raises
    ------
    StateCorruptError
        As :meth:`RowCheck.verify` does.
    """
    if check is not None and SUM in rows.column_names:
        check.verify(rows)


@dataclass(frozen=True)
class RowCheck:
    """Verifies rows of the state table at the path ``table``; small and picklable."""

    table: str

    def verify(self, rows: pa.Table) -> None:
        """Compare each row with its checksum.

        Raises
        ------
        StateCorruptError
            If a row differs from what was written, or lacks a checksum.
        """
        if not rows.num_rows:
            return
        wrong = pc.fill_null(pc.not_equal(rows.column(SUM), row_checksums(rows)), True)
        if pc.any(wrong).as_py():
            count = pc.sum(wrong).as_py()
            raise StateCorruptError(f"state {self.table}: {count:,} of {rows.num_rows:,} rows read differ from what was written; {REMEDY}")


@cache
def _seed(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little"))


def _add(sums: Words, column: pa.Array, seed: np.uint64) -> None:
    """Add the cells of ``column`` to ``sums``."""
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
