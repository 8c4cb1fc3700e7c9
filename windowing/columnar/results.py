"""What applying a batch's rows gives: result rows, with the columns and types of a sink, and rows of the state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.aggregates import aggregate_for, argument_types, load_own, value_types
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.hashes import with_checksums
from windowmill.windowing.columnar.rows import as_table, distinct_values
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import SpecError, first_line
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import order_key, valid_of
from windowmill.windowing.slicing.leaves import NO_TRIGGER, Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE

#: A result column: Arrow values, or Python objects where they have no common type.
Column: TypeAlias = "pa.Array | list[Any]"
_NAMED = {"int64": pa.int64(), "float64": pa.float64(), "string": pa.string(), "bool": pa.bool_()}
#: Result type of a user's aggregate that does not declare one (attribute ``result``): JSON text.
_ANYTHING = pa.string()


class ResultTable(Sequence[Mapping[str, Any]]):
    """Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first.

    ``columns`` has by name the key columns, ``window``, its bounds, ``trigger``, ``revision``, the aggregates in the spec's order, and
        ``retracted`` where late rows bring revisions.
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


def key_ranks(keys: pa.Table) -> Ints:
    """Rank of each key in key order: nulls first, NaN last; int64, shape (n_keys,)."""
    sorting: list[Ints] = []
    for name in reversed(keys.column_names):
        column = keys.column(name).combine_chunks()
        sorting += [order_key(column), valid_of(column).astype(np.int64)]
    ranks = np.empty(keys.num_rows, np.int64)
    ranks[np.lexsort(sorting)] = np.arange(keys.num_rows)
    return ranks


def result_types(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Arrow type of each aggregate over rows, given the ``types`` of the source's columns.

    Raises ``SpecError`` if a column does not exist or has a type that the aggregate cannot take.
    """
    where = f"pipeline {pipeline.pipeline}: aggregates"
    aggregates = {name: each for name, each in pipeline.aggregates.items() if each.expr is None}
    result_type = {result.name: result.type for result in Layout.over_rows(aggregates, types, where).results}
    for name, spec in aggregates.items():
        kinds = argument_types(spec, types, f"{where}.{name}")
        if spec.declaration.clipped:
            result_type[name] = pa.float64()
        elif spec.declaration.partial == "objects":
            result = aggregate_for(spec, value_types(spec, kinds)).result
            if spec.use is None and result.removeprefix("list<").removesuffix(">") not in (*_NAMED, "same"):
                raise SpecError(
                    f"{where}.{name}: {spec.function} gives {result!r}, of which no column is made; let its algebra give one of "
                    f"{', '.join(_NAMED)}, same, or list<…> of one"
                )
            # A user's aggregate that declares no type of these gives JSON text.
            result_type[name] = _type(result, kinds) if spec.use is None else _NAMED.get(result, _ANYTHING)
    return {name: result_type[name] for name in aggregates}


def _type(result: str, kinds: list[pa.DataType]) -> pa.DataType:
    if result.startswith("list<"):
        return pa.list_(_type(result[len("list<") : -1], kinds))
    return kinds[-1] if result == "same" and kinds else _NAMED.get(result, _ANYTHING)


def gives_json(spec: AggregateSpec) -> bool:
    """Whether the aggregate's results are JSON texts, because it declares no result type."""
    return spec.use is not None and load_own(spec.use).result not in _NAMED


def result_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """Columns that windows give: keys, window, its bounds, trigger, revision, the aggregates over rows in the spec's order, batch."""
    bound = pa.int64() if pipeline.time.integer_axis else pa.timestamp("us", "UTC")
    own = [("window", pa.string()), ("window_start", bound), ("window_end", bound), ("trigger", pa.int64()), ("revision", pa.int64())]
    keys = [(name, types[name]) for name in pipeline.keys]
    return pa.schema([*keys, *own, *result_types(pipeline, types).items(), ("batch", pa.int64())])


def result_rows(chunk: Chunk, pipeline: Pipeline, keys: pa.Table, schema: pa.Schema, batch: int) -> pa.Table:
    """The rows of ``chunk`` with the columns of ``schema``; row k of ``keys`` holds the key of index k."""
    fields = [field for field in schema if not (chunk.windows.retracted and field.name in pipeline.aggregates)]
    columns = {field.name: _cells(field, chunk, pipeline, keys, batch).cast(field.type) for field in fields}
    return retraction(columns, schema) if chunk.windows.retracted else pa.table(list(columns.values()), schema=schema)


def retraction(identity: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """Rows that retract windows, with the columns of ``schema`` and ``RETRACTED``: ``identity`` has all columns but aggregates."""
    return as_table(identity, schema, fill=True).append_column(RETRACTED, pa.repeat(True, len(identity["revision"])))


def with_retracted(rows: pa.Table) -> pa.Table:
    """Result ``rows`` with ``RETRACTED``, false unless they have it."""
    return rows if RETRACTED in rows.column_names else rows.append_column(RETRACTED, pa.repeat(False, rows.num_rows))


def _cells(field: pa.Field, chunk: Chunk, pipeline: Pipeline, keys: pa.Table, batch: int) -> pa.Array:
    windows = chunk.windows
    match field.name:
        case "window":
            return pa.repeat(pipeline.windows[chunk.window].name, len(windows))
        case "window_start":
            return pa.array(windows.start, mask=windows.start == BEFORE)
        case "window_end":
            return pa.array(windows.end)
        case "trigger":
            return pa.array(windows.trigger, mask=windows.trigger == NO_TRIGGER)
        case "revision":
            return pa.array(windows.revision)
        case "batch":
            return pa.repeat(batch, len(windows))
        case name if name in pipeline.aggregates:
            return typed(name, chunk.values[name], field.type, as_json=gives_json(pipeline.aggregates[name]))
        case name:
            return keys.column(name).combine_chunks().take(pa.array(windows.key))


def typed(name: str, column: Column, kind: pa.DataType, *, as_json: bool) -> pa.Array:
    """Results of the aggregate ``name`` as an array of the sink's ``kind``; ``as_json`` as :func:`gives_json` says.

    Raises ``SpecError`` if a user's aggregate gives results of another type than it declares.
    """
    if not isinstance(column, list):
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if as_json:
        return pa.array([None if value is None else _text(value) for value in column], kind)
    try:
        if pa.types.is_integer(kind) and (part := next((value for value in column if isinstance(value, float) and value % 1), None)):
            raise ValueError(f"{part!r} is not a whole number")  # Arrow would cut it off
        # Instants are integers along the axis, or datetimes inside lists.
        return pa.array(column, kind)
    except (ValueError, TypeError, OverflowError) as err:
        raise SpecError(f"aggregate {name}: its results do not fit its column of type {kind} ({first_line(err)}); correct lower") from err


def _text(value: Any) -> str:
    return json.dumps(value, default=_readable, ensure_ascii=False)


def _readable(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


@dataclass(frozen=True)
class Advanced:
    """What a batch makes of some keys."""

    results: Iterable[pa.Table]  #: Result rows, in tables of one window each; may be computed as they are taken.
    state: pa.Table | None  #: The rows that the batch appends to the state, with checksums; null if it keeps none.
    refused: Ints  #: Numbers of the rows that came too late for every window; int64, shape (n_refused,).
    counts: Counts  #: The other rows, and the late ones among them; those that missed windows, refused ones included.

    @classmethod
    def of(
        cls,
        results: Sequence[pa.Table],
        state: Sequence[pa.Table] | None,
        refused: Mapping[tuple[str, ...], Ints],
        numbers: Ints,
        late: pa.Array,
    ) -> Self:
        """The result for new rows of these ``numbers``, of which the mask ``late`` marks those behind the watermark; null means no.

        ``results``, ``state``: parts of the result rows and of the state; no state if none is kept.
        ``refused``: by the names of windows for which the same rows are late, the numbers of the rows that they refused. A row is too late
            if all did.
        """
        # Mostly some window refuses none, and then there is nothing to compare.
        fewest, *others = sorted((numbers, *refused.values()), key=len)
        common = distinct_values(fewest)
        for each in others if len(common) else ():
            common = common[np.isin(common, each)]
        taken = ~np.isin(numbers, common)
        behind = pc.sum(pc.and_(late.fill_null(False), pa.array(taken))).as_py() or 0
        kept = None if state is None else with_checksums(pa.concat_tables(state))
        missed = {name: len(each) for names, each in refused.items() if len(each) for name in names}
        counts = Counts(rows_applied=int(taken.sum()), rows_late=behind, late_missed=missed)
        return cls([table for table in results if len(table)], kept, common, counts)
