"""Slices packed for the shuffle: many of a key in one row, which Spark copies whole.

The numbers of a row's slices are one *block* of bytes (:mod:`windowmill.windowing.kernels.blocks`); a list Spark would copy element by element, three
times between one Python pass and the next. Columns that are not 64-bit numbers are lists beside the block. So are all of them in *listed*
rows, which leave for the state: Spark makes a row a slice of them without Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.blocks import damaged, decode, encode
from windowmill.windowing.kernels.columns import valid_of
from windowmill.windowing.kernels.combine import Ints

#: Columns of a packed row beside the keys and lists: its place among those of its key; rows lifted and late ones among them; numbers.
PLACE, ROWS, LATE_ROWS, BLOCK = "_place", "_rows", "_late_rows", "_block"
#: Slices of a packed row: Spark holds it in one piece of memory, and hands 10,000 of them to Python at once.
MAX_PACKED = 512
#: Columns of a block at most: a slice has a bit for each in a word that tells which are null.
MAX_BLOCK_COLUMNS = 64


@dataclass(frozen=True)
class Packing:
    """How slices of given columns are packed.

    Attributes
    ----------
    schema
        Columns of a slice, the ``keys`` among them.
    """

    keys: tuple[str, ...]
    schema: pa.Schema

    @cached_property
    def packed_schema(self) -> pa.Schema:
        """Columns of packed slices."""
        own = [(PLACE, pa.int64()), (ROWS, pa.int64()), (LATE_ROWS, pa.int64()), (BLOCK, pa.binary())]
        beside = [field for field in self.lists if field.name not in self.numbers]
        return pa.schema([*(self.schema.field(key) for key in self.keys), *own, *beside])

    @cached_property
    def numbers(self) -> list[str]:
        """The columns in a block."""
        found = [field.name for field in self.schema if field.name not in self.keys and field.type in (pa.int64(), pa.float64())]
        return found[:MAX_BLOCK_COLUMNS]

    @cached_property
    def lists(self) -> list[pa.Field]:
        """The columns of listed slices beside the keys."""
        return [pa.field(field.name, pa.list_(field.type)) for field in self.schema if field.name not in self.keys]

    def pack(self, slices: pa.Table, offsets: Ints, place: int, lifted: Ints | None, late: int) -> pa.Table:
        """A row for each key's slices ``offsets[k]:offsets[k + 1]``, or several for a key of very many.

        Parameters
        ----------
        place
            Of these rows among those of their keys.
        lifted
            Rows lifted into each slice; null: none was.
        late
            Rows lifted that came late.
        """
        offsets = _cut(offsets)
        n = len(offsets) - 1
        columns = self._beside(slices, offsets, [field for field in self.lists if field.name not in self.numbers])
        words, bounds = encode(self._columns_of(slices), offsets)
        columns[BLOCK] = pa.Array.from_buffers(pa.binary(), n, [None, pa.array(bounds * 8, pa.int32()).buffers()[1], pa.py_buffer(words)])
        # Counts stand in one packed row each: their sum counts every row once.
        columns[ROWS] = pa.array(np.zeros(n, np.int64) if lifted is None or not n else np.add.reduceat(lifted, offsets[:-1]))
        columns[LATE_ROWS] = pa.array(np.append([late], np.zeros(max(n - 1, 0), np.int64))[:n].astype(np.int64))
        columns[PLACE] = pa.repeat(place, n)
        return pa.table([columns[field.name] for field in self.packed_schema], schema=self.packed_schema)

    def listed(self, slices: pa.Table, offsets: Ints) -> pa.Table:
        """Rows as of :meth:`pack`, but lists and keys only."""
        return pa.table(self._beside(slices, _cut(offsets), self.lists))

    def unpack(self, packed: pa.Table) -> tuple[pa.Table, Ints]:
        """The slices of ``packed`` rows without their keys, and how many each row holds.

        Raises
        ------
        StateCorruptError
            If a block is not as it was packed.
        """
        chunks = list(_words(packed.column(BLOCK)))
        # Concatenated even if there is one: numba would compile a kernel anew for a read-only view.
        words = np.concatenate([words for words, _ in chunks])
        before = np.cumsum([0, *(len(words) for words, _ in chunks)])
        bounds = np.concatenate([*(bounds[:-1] + base for (_, bounds), base in zip(chunks, before, strict=False)), before[-1:]])
        if wrong := damaged(words, bounds):
            raise StateCorruptError(
                f"{wrong} of {packed.num_rows} packed rows differ from what was packed (faulty memory or disk); run again"
            )
        found = decode(words, bounds, 1 + len(self.numbers))
        nulls, anywhere = found[0], int(np.bitwise_or.reduce(found[0]))
        columns = {}
        for bit, name in enumerate(self.numbers):
            missing = (nulls >> bit) & 1 != 0 if anywhere >> bit & 1 else None
            columns[name] = pa.array(found[1 + bit].view(self.schema.field(name).type.to_pandas_dtype()), mask=missing)
        for field in self.lists:
            if field.name not in columns:
                columns[field.name] = packed.column(field.name).combine_chunks().flatten()
        return pa.table({field.name: columns[field.name] for field in self.lists}), words[bounds[:-1]]

    def _beside(self, slices: pa.Table, offsets: Ints, lists: list[pa.Field]) -> dict[str, pa.Array]:
        firsts, bounds = pa.array(offsets[:-1]), pa.array(offsets, pa.int32())
        columns = {key: slices.column(key).combine_chunks().take(firsts) for key in self.keys}
        return columns | {field.name: pa.ListArray.from_arrays(bounds, slices.column(field.name).combine_chunks()) for field in lists}

    def _columns_of(self, slices: pa.Table) -> Ints:
        """Shape (1 + n_columns, n_slices): bit c of the first word says that column c is null."""
        columns = np.zeros((1 + len(self.numbers), slices.num_rows), np.int64)
        for bit, name in enumerate(self.numbers):
            column = slices.column(name).combine_chunks()
            if column.null_count:
                columns[0] |= np.left_shift((~valid_of(column)).astype(np.int64), bit)
                column = column.fill_null(0)
            columns[1 + bit] = column.view(pa.int64()).to_numpy()
        return columns


def count_slices(packed: pa.Table | pa.RecordBatch) -> int:
    """Slices in all of the ``packed`` rows."""
    return sum(int(words[bounds[:-1]].sum()) for words, bounds in _words(packed.column(BLOCK)))


def _words(blocks: pa.ChunkedArray | pa.BinaryArray) -> Iterator[tuple[Ints, Ints]]:
    """Words of the blocks, a chunk of them at a time, and where each begins."""
    for chunk in [blocks] if isinstance(blocks, pa.Array) else blocks.chunks:
        bounds = np.frombuffer(chunk.buffers()[1], np.int32)[chunk.offset : chunk.offset + len(chunk) + 1].astype(np.int64) // 8
        data = chunk.buffers()[2]
        yield np.frombuffer(data, np.int64, data.size // 8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def _cut(offsets: Ints) -> Ints:
    """``offsets`` and others between them, so that none is more than ``MAX_PACKED`` from the next."""
    if len(offsets) > 1 and np.diff(offsets).max() > MAX_PACKED:
        return np.append(np.concatenate([np.arange(a, b, MAX_PACKED) for a, b in pairwise(offsets)]), offsets[-1])
    return offsets
