"""Result rows of ``windowmill try`` as it prints them: sorted, and without what only tables need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.output import gives_json
from windowmill.windowing.columnar.results import Column, ResultTable, key_ranks
from windowmill.windowing.columnar.rows import Keys, plain

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.spec import Pipeline


def results_in_order(tables: Sequence[pa.Table], pipeline: Pipeline) -> ResultTable:
    """The rows of ``tables``, which have the columns of the pipeline's sink, in the order of a :class:`.ResultTable`; O(n log n)."""
    if not tables:
        return ResultTable({}, 0)
    table = pa.concat_tables(tables)
    cells = {name: _along_axis(table.column(name)) for name in table.column_names if name != "batch"}
    sorting = [_numbers(cells[name]) for name in ("window_start", "revision", "trigger", "window_end")]
    sorting = [numbers for numbers in sorting if len(numbers) and (numbers != numbers[0]).any()]
    sorting.append(_ranks(cells["window"]))
    if pipeline.keys:
        own = {name: cells[name] for name in pipeline.keys}
        keys = Keys(pa.table({name: column[:0] for name, column in own.items()}))
        key = keys.learn(own, table.num_rows)
        sorting.append(key_ranks(keys.table)[key])
    order = pa.array(np.lexsort(sorting))
    taken = {name: column.take(order) for name, column in cells.items()}
    columns: dict[str, Column] = dict(taken)
    for name, spec in pipeline.aggregates.items():
        if gives_json(spec):
            columns[name] = [None if text is None else json.loads(text) for text in taken[name].to_pylist()]
    return ResultTable(columns, table.num_rows)


def _along_axis(column: pa.ChunkedArray) -> pa.Array:
    """``column`` with instants, and those in lists, as integers along the axis."""
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        column = column.cast(pa.list_(pa.int64()))
    return plain(column)


def _ranks(names: pa.Array) -> Ints:
    """The rank of each name among all."""
    encoded = names.dictionary_encode()
    ranks = np.argsort(np.argsort(np.array(encoded.dictionary.to_pylist())))
    return np.asarray(ranks[encoded.indices.to_numpy()], np.int64)


def _numbers(column: pa.Array) -> Ints:
    return np.asarray(pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min).to_numpy(zero_copy_only=False), np.int64)
