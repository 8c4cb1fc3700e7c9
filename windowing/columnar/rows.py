"""Live rows and keys of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import ROW_KEY, ROW_NUMBER, ROW_TIME, ROW_UNTIL, ROW_WATERMARK
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import int64_of, order_key, valid_of
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.slicing.leaves import Leaves


def plain(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """``column`` as one array, with instants as integers along the axis; −0.0 is unchanged."""
    whole = column
    if isinstance(column, pa.ChunkedArray):
        # Arrow would copy a single chunk, too.
        whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return whole.cast(pa.int64()) if pa.types.is_timestamp(whole.type) else whole


def as_table(columns: Mapping[str, pa.Array | pa.ChunkedArray], schema: pa.Schema, *, fill: bool = False) -> pa.Table:
    """Those of ``columns`` that ``schema`` has, as a table; with ``fill``, columns of the schema that are missing are null."""
    if fill:
        n = len(next(iter(columns.values())))
        columns = {field.name: pa.nulls(n, field.type) for field in schema if field.name not in columns} | dict(columns)
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


class Keys:
    """All keys seen, indexed in order of first appearance; all nulls are equal, all NaN are equal, and −0.0 equals 0.0."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        # Without key columns all rows form one group, and Arrow would report zero rows.
        return self.table.num_rows if self.table.num_columns else 1

    def learn(self, columns: Mapping[str, pa.Array], n_rows: int) -> Ints:
        """Index of each row's key, int64, shape (n_rows,); adds new keys. O(n + m) for n known keys and m rows."""
        if not columns:
            return np.zeros(n_rows, np.int64)
        both = pa.concat_tables([self.table, pa.table(columns)])
        codes, _ = key_codes(both.columns, both.num_rows)
        firsts = both.take(pa.array(first_rows(codes)))
        self.table = pa.table({name: as_key(plain(firsts.column(name))) for name in firsts.column_names})
        return codes[both.num_rows - n_rows :]


def key_codes(columns: Sequence[pa.ChunkedArray | pa.Array], n_rows: int) -> tuple[Ints, int]:
    """Code of each row's key in order of first appearance, and the number of keys; without columns all rows have one key."""
    codes = np.zeros(n_rows, np.int64)
    for index, column in enumerate(columns):
        encoded = as_key(plain(column)).dictionary_encode(null_encoding="encode")
        codes = codes * max(1, len(encoded.dictionary)) + np.asarray(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
        if index:
            codes = np.asarray(pa.array(codes).dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)
    return codes, int(codes.max()) + 1 if n_rows else 0


def codes_of(tables: Sequence[pa.Table], names: Sequence[str]) -> tuple[Ints, int]:
    """As :func:`key_codes`, for the rows of all ``tables``, one table after the other; ``names`` are those of the key columns."""
    return key_codes([_column_of(tables, name) for name in names], sum(map(len, tables)))


def keys_of(tables: Sequence[pa.Table], names: Sequence[str]) -> tuple[pa.Table, Ints, int]:
    """One row for each key of ``tables``, the key index of each of their rows, and the number of keys."""
    codes, n_keys = codes_of(tables, names)
    firsts = pa.array(first_rows(codes))
    keys = pa.table({name: as_key(_column_of(tables, name).combine_chunks().take(firsts)) for name in names})
    return keys, codes, n_keys


def are_among(rows: pa.Table, keys: pa.Table, names: Sequence[str]) -> Bools:
    """Whether the key of each of ``rows`` is one of ``keys``; both have the columns ``names``, of the same types."""
    codes, n_keys = codes_of([keys, rows], names)
    wanted = np.zeros(n_keys, np.bool_)
    wanted[codes[: len(keys)]] = True
    return np.asarray(wanted[codes[len(keys) :]], np.bool_)


def without(rows: pa.Table, column: str, numbers: Ints) -> pa.Table:
    """``rows`` without those whose number in ``column`` is one of ``numbers``, which are in ascending order; O(n log m)."""
    if not len(numbers):
        return rows
    own = rows.column(column).to_numpy()
    return rows.filter(pa.array(numbers[np.minimum(np.searchsorted(numbers, own), len(numbers) - 1)] != own))


def distinct_values(values: np.ndarray) -> np.ndarray:
    """The distinct ``values``, ascending.

    ``np.unique`` hashes them unless asked for counts, which takes a hundred times as long from 1 M values on (NumPy 2.3 and later).
    """
    return np.unique(values, return_counts=True)[0]


def grouped(groups: Ints, values: Ints) -> dict[int, Ints]:
    """The ``values`` of each of the ``groups``, in ascending order of these; O(n log n)."""
    order, names = np.argsort(groups, kind="stable"), distinct_values(groups)
    parts = np.split(values[order], np.searchsorted(groups[order], names[1:]))
    return dict(zip(names.tolist(), parts, strict=False))


def _column_of(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for table in tables for chunk in table.column(name).chunks], tables[0].column(name).type)


def as_key(column: pa.Array) -> pa.Array:
    """Normalize a key column so that equal keys have equal bits: −0.0 becomes 0.0, and every NaN the same one."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0.0, column.type)))


def with_keys(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """``table`` with those of the columns ``names`` that it has as :func:`as_key` gives them."""
    for name in names:
        if name in table.column_names and pa.types.is_floating(table.schema.field(name).type):
            table = table.set_column(table.schema.get_field_index(name), name, as_key(plain(table.column(name))))
    return table


def reordered(table: pa.Table, order: Ints) -> pa.Table:
    """The rows of ``table`` at the indices ``order``; the table itself, without a copy, if these are all of its rows in their order."""
    if len(order) == len(table) and (order[1:] > order[:-1]).all():
        return table
    return table.take(pa.array(order))


def ascending(table: pa.Table, number: str) -> pa.Table:
    """The rows of ``table`` by their ``number``; the table itself if they are in that order."""
    numbers = table.column(number).to_numpy()
    return table.take(pa.array(np.argsort(numbers, kind="stable"))) if (numbers[1:] < numbers[:-1]).any() else table


def first_rows(codes: Ints) -> Ints:
    """Index of the first row of each code; ``codes`` are numbered in order of first appearance. O(n)."""
    greatest = np.maximum.accumulate(np.concatenate(([-1], codes)))
    return np.flatnonzero(codes > greatest[:-1])


def by_time(table: pa.Table, time: str, ties: Sequence[str]) -> Ints:
    """Indices of the rows of ``table``, which are in order of arrival, by their ``time`` and then by ``ties``, nulls first."""
    order = np.arange(table.num_rows)
    for tie in reversed(ties):
        column = table.column(tie).combine_chunks()
        for ranks in (order_key(column), valid_of(column)):
            order = order[np.argsort(ranks[order], kind="stable")]
    return order[np.argsort(int64_of(table.column(time).combine_chunks())[order], kind="stable")]


def in_order(table: pa.Table, n_keys: int, ties: Sequence[str], first_new: int) -> Leaves:
    """Sort ``table``, whose rows are in order of arrival, into leaves; O(n log n). Rows whose number is at least ``first_new`` are new."""
    key, time, number = (table.column(name).to_numpy() for name in (ROW_KEY, ROW_TIME, ROW_NUMBER))
    order = by_time(table, ROW_TIME, ties)
    of_keys, offsets = by_key(key[order], n_keys)
    order = order[of_keys]
    number, until, watermark = number[order], *(table.column(name).to_numpy()[order] for name in (ROW_UNTIL, ROW_WATERMARK))
    return Leaves(
        table.drop_columns([ROW_KEY, ROW_UNTIL, ROW_WATERMARK]).take(pa.array(order)),
        offsets,
        np.repeat(np.arange(n_keys), np.diff(offsets)),
        number,
        time[order],
        until,
        watermark,
        number >= first_new,
        order,
    )


def kept(table: pa.Table, leaves: Leaves, live: Bools) -> pa.Table:
    """The rows of ``table`` whose ``leaves`` are ``live``, in order of arrival; O(n)."""
    if live.all():
        return table
    mask = np.empty(len(live), np.bool_)
    mask[leaves.arrival] = live
    return table.filter(pa.array(mask))


def without_empty_chunks(table: pa.Table) -> pa.Table:
    """``table`` with the same rows, in chunks none of which is empty, or one empty chunk if it has no rows; copies no values.

    Every table for ``createDataFrame`` passes through here. Spark 4.2 reads the chunks of an Arrow table up to the first empty one that
    follows another chunk, and silently drops the rows after it. A Spark Connect session keeps them, but refuses a table without rows unless
    its schema is given. Either kind of session refuses slices with nulls of lists or maps that hold instants or nested values.
    """
    if not table.num_rows:
        return table.schema.empty_table()
    return pa.Table.from_batches((batch for batch in table.to_batches() if batch.num_rows), table.schema)
