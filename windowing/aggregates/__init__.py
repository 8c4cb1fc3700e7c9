"""The algebra of the aggregates whose partials are Python objects, a module per family; the catalogue's declarations name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from windowmill.windowing.aggregates.values import VALUE_TYPES
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec, Declaration
from windowmill.windowing.errors import PluginError, SpecError, no_column
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
    PluginError
        If it has a recipe and no algebra.

    Examples
    --------
    >>> listed = aggregate_for(AggregateSpec(function="collect", columns=("delay",)), ["int64"])
    >>> listed.lower(listed.of([(3,), (None,), (7,)]))
    [3, 7]
    """
    if len(types) != len(spec.columns) or not set(types) <= set(VALUE_TYPES):
        raise SpecError(
            f"{spec.function}: got types {list(types)} for columns {list(spec.columns)}; expected one of {', '.join(VALUE_TYPES)} for each"
        )
    algebra = spec.declaration.algebra
    if algebra is None:
        raise PluginError(f"the aggregate {spec.function!r} has no algebra: kernels compute it by its recipe")
    build: Callable[..., Aggregate[Any]] = resolve(algebra)
    return build(spec, tuple(types))


def argument_types(spec: AggregateSpec, types: Mapping[str, pa.DataType], where: str) -> list[pa.DataType]:
    """Types of the function's columns, of all the source's ``types``; ``where`` is its place in the spec.

    Raises ``SpecError`` if a column does not exist, or does not hold what the function needs.
    """
    missing = next((column for column in spec.columns if column not in types), None)
    if missing is not None:
        raise SpecError(f"{where}: {no_column('the source', missing, types)}")
    kinds = [types[column] for column in spec.columns]
    for place, (column, kind) in enumerate(zip(spec.columns, kinds, strict=True)):
        expected = _expected(spec.declaration, place, kind)
        if expected is not None:
            raise SpecError(
                f"{where}: {spec.function} of column {column!r} of type {kind}; expected {expected}: name another column, or have the "
                "source's writer add one that holds them"
            )
    return kinds


def _expected(declared: Declaration, place: int, kind: pa.DataType) -> str | None:
    """What the argument at ``place`` must hold, for messages; null if columns of type ``kind`` do."""
    if declared.orders and place == 0 and pa.types.is_nested(kind):
        return "values that have an order"
    if declared.takes is None or pa.types.is_null(kind):
        return None
    types, expected = _TAKEN[declared.takes]
    if value_type(kind) in types or (declared.takes == "text" and pa.types.is_date(kind)):
        return None
    if declared.instants:
        return None if pa.types.is_timestamp(kind) else "numbers, booleans or instants"
    return expected


#: For each of what aggregates take, the types of columns that hold it, as :func:`value_type` names them, and its wording in messages.
_TAKEN = {
    "number": (("bool", "int64", "float64", "decimal"), "numbers or booleans"),
    "boolean": (("bool",), "booleans"),
    "text": (("bool", "int64", "float64", "decimal", "string"), "texts, numbers, booleans or dates"),
}


def value_types(spec: AggregateSpec, kinds: Sequence[pa.DataType]) -> tuple[str, ...]:
    """The catalogue's names for the types of the function's columns, as its algebra takes them: where numbers count, truth is 0 or 1."""
    names = tuple(map(value_type, kinds))
    return tuple("int64" if name == "bool" else name for name in names) if spec.declaration.takes == "number" else names


def value_type(kind: pa.DataType) -> str:
    """The catalogue's name for a column's type.

    >>> value_type(pa.int32()), value_type(pa.date32())
    ('int64', 'any')
    """
    named = {
        "bool": pa.types.is_boolean,
        "int64": pa.types.is_integer,
        "float64": pa.types.is_floating,
        "decimal": pa.types.is_decimal128,
        "string": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    }
    return next((name for name, holds in named.items() if holds(kind)), "any")


__all__ = ["VALUE_TYPES", "aggregate_for", "argument_types", "value_type", "value_types"]
