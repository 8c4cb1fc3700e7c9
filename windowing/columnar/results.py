"""Result rows as columns, sorted at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels.columns import order_key, valid_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.leaves import NO_TRIGGER, Windows
from windowmill.windowing.watermark import BEFORE

#: A result column: Arrow values, or Python objects where they have no common type.
Column: TypeAlias = "pa.Array | list[Any]"


class ResultTable(Sequence[Mapping[str, Any]]):
    """Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first.

    Attributes
    ----------
    columns
        By name: the key columns, ``window``, its bounds, ``trigger``, ``revision``, and the aggregates in the spec's order.
    """

    def __init__(self, columns: Mapping[str, Column], length: int) -> None:
        self.columns = columns
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        names = list(self.columns)
        cells = [column if isinstance(column, list) else column.to_pylist() for column in self.columns.values()]
        for row in zip(*cells, strict=True):
            yield dict(zip(names, row, strict=True))


@dataclass(frozen=True)
class Chunk:
    """Windows of one window of the spec that were computed together, with their aggregates."""

    window: int
    windows: Windows
    values: Mapping[str, Column]


def ordered(chunks: Sequence[Chunk], names: Sequence[str], aggregates: Sequence[str], keys: pa.Table) -> ResultTable:
    """The rows of all ``chunks``, sorted; ``names`` are the spec's windows, row k of ``keys`` is the key of index k. O(n log n)."""
    chunks = [chunk for chunk in chunks if len(chunk.windows)]
    if not chunks:
        return ResultTable({}, 0)

    def gather(column: str) -> Ints:
        return np.concatenate([getattr(chunk.windows, column) for chunk in chunks])

    key, start, end, trigger, revision = (gather(name) for name in ("key", "start", "end", "trigger", "revision"))
    window = np.concatenate([np.full(len(chunk.windows), chunk.window) for chunk in chunks])
    by_name = np.argsort(np.argsort(np.array(names)))
    # Without key columns all rows belong to one group.
    group = (key_ranks(keys)[key] if keys.num_columns else key) * len(names) + by_name[window]
    sorting = [column for column in (start, revision, trigger) if len(column) and (column != column[0]).any()]
    order = np.lexsort((*sorting, end, group))
    columns: dict[str, Column] = {name: keys.column(name).combine_chunks().take(pa.array(key[order])) for name in keys.column_names}
    columns["window"] = pa.array(names).take(pa.array(window[order]))
    columns["window_start"] = pa.array(start[order], mask=start[order] == BEFORE)
    columns["window_end"] = pa.array(end[order])
    columns["trigger"] = pa.array(trigger[order], mask=trigger[order] == NO_TRIGGER)
    columns["revision"] = pa.array(revision[order])
    for name in aggregates:
        columns[name] = _gathered([chunk.values[name] for chunk in chunks], order)
    return ResultTable(columns, len(order))


def _gathered(parts: list[Column], order: Ints) -> Column:
    if any(isinstance(part, list) for part in parts):
        values = [value for part in parts for value in (part if isinstance(part, list) else part.to_pylist())]
        return [values[index] for index in order]
    return pa.chunked_array(parts).combine_chunks().take(pa.array(order))


def key_ranks(keys: pa.Table) -> Ints:
    """Rank of each key in key order: nulls first, NaN last; int64, shape (n_keys,)."""
    sorting: list[Ints] = []
    for name in reversed(keys.column_names):
        column = keys.column(name).combine_chunks()
        sorting += [order_key(column), valid_of(column).astype(np.int64)]
    ranks = np.empty(keys.num_rows, np.int64)
    ranks[np.lexsort(sorting)] = np.arange(keys.num_rows)
    return ranks
