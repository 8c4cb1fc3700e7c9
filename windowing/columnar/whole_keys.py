"""All slices of some keys: from packed rows that a shuffle has brought together, or from parts in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.packing import BUCKET, LATE_ROWS, ROWS, Sliced, count_slices
from windowmill.windowing.columnar.rows import first_rows, key_codes
from windowmill.windowing.columnar.slices import CHUNK_BYTES, CHUNK_SLICES, SliceStage
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.slices import by_key


@dataclass(frozen=True)
class WholeKeys:
    """All slices of some keys; those of a key are in the order of the places of their parts.

    Attributes
    ----------
    of_key
        Key columns by key index.
    slices, offsets
        Slices without keys; key k's are ``offsets[k]:offsets[k + 1]``, int64, shape (n_keys + 1,).
    rows, late_rows
        Numbers of lifted rows, and of late rows among them.
    """

    of_key: Mapping[str, pa.Array]
    slices: pa.Table
    offsets: Ints
    rows: int
    late_rows: int


def of_packed(stage: SliceStage, batches: Iterable[pa.RecordBatch]) -> Iterator[WholeKeys]:
    """The slices of packed rows, sorted by ``BUCKET`` and ``PLACE``; no key is split between results.

    Raises
    ------
    StateCorruptError
        If a block has changed since it was packed.
    """
    for table in _gathered(batches, stage):
        slices, owners = stage.packing.unpack(table)
        keys = stage.packing.keys_of(table)
        # Without key columns all slices belong to one key, and Arrow would report zero rows.
        codes, n_keys = key_codes([keys.column(key) for key in stage.keys], max(1, keys.num_rows))
        order, offsets = by_key(codes[owners], n_keys)
        if (np.diff(order) < 0).any():  # a bucket holds several keys
            slices = slices.take(pa.array(order))
        rows, late_rows = (pc.sum(table.column(name)).as_py() for name in (ROWS, LATE_ROWS))
        yield WholeKeys(_keys(stage, keys, first_rows(codes)), slices, offsets, rows, late_rows)


def of_parts(stage: SliceStage, parts: Sequence[Sliced]) -> Iterator[WholeKeys]:
    """The slices of ``parts``, whose keys come in any order; no key is split between results. O(n) in slices."""
    if not parts:
        return
    table = pa.concat_tables([part.slices for part in parts]).combine_chunks()
    lifted, late_rows = np.concatenate([part.lifted for part in parts]), sum(part.late for part in parts)
    codes, n_keys = key_codes([table.column(key) for key in stage.keys], table.num_rows)
    order, offsets = by_key(codes, n_keys)
    slices = table.drop_columns(list(stage.keys))
    cuts = np.searchsorted(offsets, np.arange(0, len(order), CHUNK_SLICES))
    for first, stop in pairwise(np.unique(np.append(cuts, n_keys)).tolist()):
        own = order[offsets[first] : offsets[stop]]
        of_key = _keys(stage, table, order[offsets[first:stop]])
        yield WholeKeys(of_key, slices.take(pa.array(own)), offsets[first : stop + 1] - offsets[first], int(lifted[own].sum()), late_rows)
        late_rows = 0


def _keys(stage: SliceStage, table: pa.Table, rows: Ints) -> dict[str, pa.Array]:
    return {key: table.column(key).combine_chunks().take(pa.array(rows)) for key in stage.keys}


def _gathered(batches: Iterable[pa.RecordBatch], stage: SliceStage) -> Iterator[pa.Table]:
    """Gather packed slices into tables that never split a bucket of keys."""
    waiting: list[pa.RecordBatch] = []
    gathered = size = 0
    for batch in batches:
        waiting.append(batch)
        gathered, size = gathered + count_slices(batch), size + batch.nbytes
        if (gathered >= CHUNK_SLICES or size >= CHUNK_BYTES) and stage.keys:
            table = pa.Table.from_batches(waiting)
            buckets = table.column(BUCKET).to_numpy()
            cut = int(np.searchsorted(buckets, buckets[-1]))
            if cut:
                yield table.slice(0, cut)
                waiting = table.slice(cut).to_batches()
            gathered, size = sum(map(count_slices, waiting)), sum(part.nbytes for part in waiting)
    if waiting and (table := pa.Table.from_batches(waiting)).num_rows:
        yield table
