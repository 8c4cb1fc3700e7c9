"""The algebra of the aggregates, a file per family; the catalogue's declarations name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from windowmill.windowing.aggregates.values import VALUE_TYPES
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError, no_column
from windowmill.windowing.registry import resolve


def aggregate_for(spec: AggregateSpec, types: Sequence[str]) -> Aggregate[Any]:
    """The aggregate that ``spec`` asks for over columns of the given types.

    Parameters
    ----------
    spec
        As read from the pipeline.
    types
        One of ``VALUE_TYPES`` for each of ``spec.columns``: ``int64`` for any whole number, ``any`` for what is not listed.

    Raises
    ------
    SpecError
        If the function cannot take columns of these types.

    Examples
    --------
    >>> longest = aggregate_for(AggregateSpec(function="max", columns=("delay",)), ["int64"])
    >>> longest.lower(longest.of([(3,), (None,), (7,)]))
    7
    """
    if len(types) != len(spec.columns) or not set(types) <= set(VALUE_TYPES):
        raise SpecError(
            f"{spec.function}: got types {list(types)} for columns {list(spec.columns)}; expected one of {', '.join(VALUE_TYPES)} for each"
        )
    return resolve(spec.declaration.algebra)(spec, tuple(types))


def argument_types(spec: AggregateSpec, types: Mapping[str, pa.DataType], where: str) -> list[pa.DataType]:
    """Types of the function's columns, of all the source's ``types``; ``where`` is its place in the spec.

    Raises
    ------
    SpecError
        If a column does not exist, or holds neither the numbers nor the order that the function needs.
    """
    missing = next((column for column in spec.columns if column not in types), None)
    if missing is not None:
        raise SpecError(f"{where}: {no_column('the source', missing, types)}")
    kinds = [types[column] for column in spec.columns]
    for place, (column, kind) in enumerate(zip(spec.columns, kinds, strict=True)):
        expected = None
        if spec.declaration.takes == "number" and value_type(kind) == "any" and not (pa.types.is_timestamp(kind) or pa.types.is_null(kind)):
            expected = "integers or floating point"
        elif spec.declaration.orders and place == 0 and pa.types.is_nested(kind):
            expected = "values that have an order"
        if expected is not None:
            raise SpecError(
                f"{where}: {spec.function} of column {column!r} of type {kind}; expected {expected}, cast it in a view of the source"
            )
    return kinds


def value_type(kind: pa.DataType) -> str:
    """The catalogue's name for a column's type.

    >>> value_type(pa.int32()), value_type(pa.date32())
    ('int64', 'any')
    """
    named = {
        "bool": pa.types.is_boolean,
        "int64": pa.types.is_integer,
        "float64": pa.types.is_floating,
        "decimal": pa.types.is_decimal,
        "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    }
    return next((name for name, holds in named.items() if holds(kind)), "any")


__all__ = ["VALUE_TYPES", "aggregate_for", "argument_types", "value_type"]
