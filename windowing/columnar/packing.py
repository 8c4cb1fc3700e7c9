"""Packs slices for the shuffle: the slices of a bucket of keys in one row, which Spark copies whole.

A hash divides the keys into buckets. Few keys rarely share one, so most rows hold the slices of one key. Of a million keys, most have a
single slice among the rows that are lifted together: a row for each key would make the shuffle as long as the input.

The numbers of a row's slices form one *block* of bytes (:mod:`windowmill.windowing.kernels.blocks`). Spark would copy a list element by
element, three times between two Python passes. Columns that are not 64-bit numbers are stored as lists. *Listed* rows, which go to the
state, store all columns as lists: Spark explodes them into one row per slice without Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.buckets import bucket_numbers
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.blocks import damaged, decode, encode
from windowmill.windowing.kernels.columns import valid_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.slicing.numbering import each_of

#: Columns of a packed row without keys and lists: its bucket; its rank among the bucket's rows; numbers of lifted and late rows; the block.
#: The bucket has a space in its name, like other columns that are never stored, so that a key may be called ``_bucket``.
BUCKET, PLACE, ROWS, LATE_ROWS, BLOCK = "_ bucket", "_place", "_rows", "_late_rows", "_block"
#: Bucket of a row that holds no slices, but counts rows that came too late; it comes before all others.
NO_BUCKET = -1
#: Number of buckets. A task combines whole buckets: of 200 M slices, a bucket holds 50,000.
N_BUCKETS = 4_096
#: Greatest number of slices in a packed row: Spark allocates a row in one piece, and sends 10,000 rows to Python at a time.
MAX_PACKED = 512
#: Greatest number of columns in a block: one word per slice has a null bit for each.
MAX_BLOCK_COLUMNS = 64


@dataclass(frozen=True)
class Sliced:
    """Slices that were lifted, or read from the state, together.

    Attributes
    ----------
    slices
        A row each, grouped by key.
    offsets
        Key k's slices are ``offsets[k]:offsets[k + 1]``; int64, shape (n_keys + 1,).
    lifted
        Number of rows lifted into each slice; int64, shape (n_slices,).
    late
        Number of late rows among those.
    missed
        For each grid, the number of rows, lifted or not, that came too late for one of its windows; empty if none is late.
    """

    slices: pa.Table
    offsets: Ints
    lifted: Ints
    late: int
    missed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Packing:
    """Packs and unpacks slices of a given schema.

    Attributes
    ----------
    schema
        Columns of a slice, including the ``keys``.
    """

    keys: tuple[str, ...]
    schema: pa.Schema

    @cached_property
    def packed_schema(self) -> pa.Schema:
        """Schema of packed rows."""
        own = [(BUCKET, pa.int64()), (PLACE, pa.int64()), (ROWS, pa.int64()), (LATE_ROWS, pa.int64()), (BLOCK, pa.binary())]
        keys = [pa.field(key, pa.list_(self.schema.field(key).type)) for key in self.keys]
        return pa.schema([*keys, *own, *self._lists_beside])

    @cached_property
    def _lists_beside(self) -> list[pa.Field]:
        """The lists of columns that are not in a block."""
        return [field for field in self.lists if field.name not in self.numbers]

    @cached_property
    def numbers(self) -> list[str]:
        """Names of the columns in a block."""
        names = [field.name for field in self.schema if field.name not in self.keys and field.type in (pa.int64(), pa.float64())]
        return names[:MAX_BLOCK_COLUMNS]

    @cached_property
    def lists(self) -> list[pa.Field]:
        """Columns of listed slices other than the keys."""
        return [pa.field(field.name, pa.list_(field.type)) for field in self.schema if field.name not in self.keys]

    def pack(self, part: Sliced, place: int) -> pa.Table:
        """Pack the slices of each bucket of keys into one row, or several if there are more than ``MAX_PACKED``.

        ``place`` is the rank of these rows among those of their buckets.
        """
        keys = part.slices.select(self.keys).take(pa.array(part.offsets[:-1]))
        buckets = bucket_numbers(keys, N_BUCKETS) if self.keys else np.zeros(len(part.offsets) - 1, np.int64)
        in_order, bounds_of_buckets = by_key(buckets, N_BUCKETS)
        lengths = np.diff(part.offsets)[in_order]
        slices, lifted = part.slices, part.lifted
        owners, nth = each_of(lengths)
        if (np.diff(in_order) < 0).any():
            order = part.offsets[in_order][owners] + nth
            slices, lifted = slices.take(pa.array(order)), lifted[order]
        offsets = _cut(np.unique(np.append(0, np.cumsum(lengths))[bounds_of_buckets]))
        n = len(offsets) - 1
        first, last = owners[offsets[:-1]], owners[offsets[1:] - 1]
        columns: dict[str, pa.Array] = self._lists(slices, offsets, self._lists_beside)
        columns |= self._key_lists(keys, in_order, first, last + 1 - first)
        words, bounds = encode(self._columns_of(slices, owners - np.repeat(first, np.diff(offsets))), offsets)
        columns[BLOCK] = pa.Array.from_buffers(pa.binary(), n, [None, pa.array(bounds * 8, pa.int32()).buffers()[1], pa.py_buffer(words)])
        columns[BUCKET] = pa.array(buckets[in_order[first]])
        # Each count is stored in one packed row only, so that their sum counts every row once.
        columns[ROWS] = pa.array(np.add.reduceat(lifted, offsets[:-1]) if n else lifted)
        columns[LATE_ROWS] = pa.array(np.append([part.late], np.zeros(max(n - 1, 0), np.int64))[:n].astype(np.int64))
        columns[PLACE] = pa.repeat(place, n)
        return pa.table([columns[field.name] for field in self.packed_schema], schema=self.packed_schema)

    def pack_missed(self, missed: Sequence[int], place: int) -> pa.Table:
        """A packed row that counts the rows that came too late, of no slices; :func:`split_missed` finds it."""
        words = np.array([0, *missed], np.int64)  # as of a block without slices
        cells = {BUCKET: NO_BUCKET, PLACE: place, ROWS: 0, LATE_ROWS: 0, BLOCK: words.tobytes()}
        columns = [pa.array([cells.get(field.name, [])], field.type) for field in self.packed_schema]
        return pa.table(columns, schema=self.packed_schema)

    def listed(self, slices: pa.Table, offsets: Ints) -> pa.Table:
        """A row for each key, or several if it has more than ``MAX_PACKED`` slices: the key, and all other columns as lists."""
        bounds = _cut(offsets)
        firsts = pa.array(bounds[:-1])
        keys = {key: slices.column(key).combine_chunks().take(firsts) for key in self.keys}
        return pa.table(keys | self._lists(slices, bounds, self.lists))

    def keys_of(self, packed: pa.Table) -> pa.Table:
        """The keys of all ``packed`` rows, one row after the other."""
        return pa.table({key: packed.column(key).combine_chunks().flatten() for key in self.keys})

    def unpack(self, packed: pa.Table) -> tuple[pa.Table, Ints]:
        """The slices of ``packed`` rows without keys, and for each the index of its key in :meth:`keys_of`. O(n) in slices.

        Raises
        ------
        StateCorruptError
            If a block has changed since it was packed.
        """
        chunks = list(_words(packed.column(BLOCK)))
        # Concatenate even a single chunk: for a read-only view numba would compile the kernel again.
        words = np.concatenate([words for words, _ in chunks])
        before = np.cumsum([0, *(len(words) for words, _ in chunks)])
        bounds = np.concatenate([*(bounds[:-1] + base for (_, bounds), base in zip(chunks, before, strict=False)), before[-1:]])
        if wrong := damaged(words, bounds):
            raise StateCorruptError(
                f"{wrong} of {packed.num_rows} packed rows differ from what was packed (faulty memory or disk); run again"
            )
        decoded = decode(words, bounds, 2 + len(self.numbers))
        nulls, any_nulls = decoded[0], int(np.bitwise_or.reduce(decoded[0]))
        columns = {}
        for bit, name in enumerate(self.numbers):
            missing = (nulls >> bit) & 1 != 0 if any_nulls >> bit & 1 else None
            columns[name] = pa.array(decoded[1 + bit].view(self.schema.field(name).type.to_pandas_dtype()), mask=missing)
        for field in self.lists:
            if field.name not in columns:
                columns[field.name] = packed.column(field.name).combine_chunks().flatten()
        owners = decoded[-1]
        if self.keys:
            n_keys = packed.column(self.keys[0]).combine_chunks().value_lengths().to_numpy()
            owners = owners + np.repeat(np.cumsum(n_keys) - n_keys, words[bounds[:-1]])
        return pa.table({field.name: columns[field.name] for field in self.lists}), owners.astype(np.int64)

    def _lists(self, slices: pa.Table, offsets: Ints, lists: list[pa.Field]) -> dict[str, pa.Array]:
        bounds = pa.array(offsets, pa.int32())
        return {field.name: pa.ListArray.from_arrays(bounds, slices.column(field.name).combine_chunks()) for field in lists}

    def _key_lists(self, keys: pa.Table, in_order: Ints, first: Ints, lengths: Ints) -> dict[str, pa.Array]:
        """Lists of keys: row r has the ``lengths[r]`` keys whose indexes are in ``in_order`` from ``first[r]`` on."""
        row, nth = each_of(lengths)
        chosen, bounds = pa.array(in_order[first[row] + nth]), pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
        return {key: pa.ListArray.from_arrays(bounds, keys.column(key).combine_chunks().take(chosen)) for key in self.keys}

    def _columns_of(self, slices: pa.Table, keys: Ints) -> Ints:
        """The words of a block, shape (2 + n_columns, n_slices).

        Bit c of row 0 marks column c as null; the last row has the index of each slice's key among those of its packed row.
        """
        columns = np.zeros((2 + len(self.numbers), slices.num_rows), np.int64)
        columns[-1] = keys
        for bit, name in enumerate(self.numbers):
            column = slices.column(name).combine_chunks()
            if column.null_count == len(column):
                columns[0] |= np.int64(1) << bit
                continue
            if column.null_count:
                columns[0] |= np.left_shift((~valid_of(column)).astype(np.int64), bit)
                column = column.fill_null(0)
            columns[1 + bit] = column.view(pa.int64()).to_numpy()
        return columns


def split_missed(packed: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[int, ...]]:
    """``packed`` rows sorted by ``BUCKET``, without those of :meth:`Packing.pack_missed`, and the sum of what these count."""
    n = int(np.searchsorted(packed.column(BUCKET).to_numpy(), 0))
    if not n:
        return packed, ()
    words = np.concatenate([words for words, _ in _words(packed.column(BLOCK).slice(0, n))])
    return packed.slice(n), tuple(words.reshape(n, -1)[:, 1:].sum(axis=0).tolist())


def count_slices(packed: pa.Table | pa.RecordBatch) -> int:
    """Number of slices in all ``packed`` rows."""
    return sum(int(words[bounds[:-1]].sum()) for words, bounds in _words(packed.column(BLOCK)))


def _words(blocks: pa.ChunkedArray | pa.BinaryArray) -> Iterator[tuple[Ints, Ints]]:
    """For each chunk of blocks: its words, and the offset of each block in them, shape (n_blocks + 1,)."""
    for chunk in [blocks] if isinstance(blocks, pa.Array) else blocks.chunks:
        bounds = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64) // 8
        data = chunk.buffers()[2]
        yield np.frombuffer(data, np.int64, data.size // 8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def _cut(offsets: Ints) -> Ints:
    """``offsets`` with others inserted, so that neighbours differ by at most ``MAX_PACKED``."""
    if len(offsets) > 1 and np.diff(offsets).max() > MAX_PACKED:
        return np.append(np.concatenate([np.arange(a, b, MAX_PACKED) for a, b in pairwise(offsets)]), offsets[-1])
    return offsets
