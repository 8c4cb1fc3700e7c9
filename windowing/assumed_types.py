"""Types of the source's columns as far as a spec implies them, for when the source is not read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline

#: Bytes taken for a cell whose type has no known size: keys, texts.
CELL_BYTES = 8
#: An Arrow type for each of ``windowmill.windowing.aggregates.VALUE_TYPES``.
ARROW: Mapping[str, pa.DataType] = {
    "float64": pa.float64(),
    "int64": pa.int64(),
    "decimal": pa.decimal128(38, 9),
    "bool": pa.bool_(),
    "string": pa.string(),
    "any": pa.timestamp("us", "UTC"),
}


def assumed_types(pipeline: Pipeline, types: Mapping[str, str]) -> dict[str, str]:
    """A type for each argument column: the known one, else the one that most aggregates of it take, float64 among equals."""
    found = dict(types)
    for column in dict.fromkeys(name for spec in pipeline.aggregates.values() for name in spec.columns):
        users = [spec for spec in pipeline.aggregates.values() if column in spec.columns and spec.function != "use"]
        found.setdefault(column, max(ARROW, key=lambda type_: sum(map(partial(_takes, type_), users))))
    return found


def _takes(type_: str, spec: AggregateSpec) -> bool:
    # Numbers may be truths, which count as 0 and 1.
    return built_over(spec, type_) is not None or (type_ == "bool" and built_over(spec, "int64") is not None)


def assumed_aggregate(spec: AggregateSpec, types: Mapping[str, str]) -> Aggregate[Any]:
    """The aggregate over columns of the :func:`assumed_types`; raises ``SpecError`` if it takes none of them."""
    kinds = [types[column] for column in spec.columns]
    if "bool" in kinds and built_over(spec, "bool") is None:
        kinds = ["int64" if kind == "bool" else kind for kind in kinds]
    return aggregate_for(spec, kinds)


def assumed_arrow(pipeline: Pipeline, types: Mapping[str, str]) -> dict[str, pa.DataType]:
    """An Arrow type for each column that is kept: that of ``types``, and text where it is not among them."""
    named = {*types, *pipeline.keys, *live_columns(pipeline, types)}
    return {column: ARROW[types.get(column, "string")] for column in named}


def built_over(spec: AggregateSpec, type_: str) -> Aggregate[Any] | None:
    """The aggregate over columns that are all of ``type_``, if it takes them."""
    try:
        return aggregate_for(spec, [type_] * len(spec.columns))
    except SpecError:
        return None


def width_of(kind: pa.DataType) -> int:
    """Bytes of a cell of this type."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return CELL_BYTES
