"""How many distinct values there are, exactly."""

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windowmill.windowing.aggregates.values import frozen_value
from windowmill.windowing.algebra import Aggregate, Args, Field, Position, is_nan
from windowmill.windowing.catalogue import AggregateSpec

Distinct = tuple[frozenset[Any], bool]

_NOTHING: Distinct = (frozenset(), False)


def _lift_distinct(args: Args, at: Position) -> Distinct:
    value = args[0]
    if value is None:
        return _NOTHING
    # A NaN is kept as a flag: after a restore, two NaN objects would be two members of a set.
    return (frozenset(), True) if is_nan(value) else (frozenset((frozen_value(value),)), False)


def _unite(a: Distinct, b: Distinct) -> Distinct:
    return (a[0] | b[0] if a[0] and b[0] else a[0] or b[0]), a[1] or b[1]


def _unite_all(partials: Iterable[Distinct]) -> Distinct:
    values: set[Any] = set()
    nan = False
    for others, other_nan in partials:
        values |= others
        nan |= other_nan
    return frozenset(values), nan


def _count_distinct(partial: Distinct) -> int:
    return len(partial[0]) + partial[1]


def build_count_distinct(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Distinct]:
    """Exact number of distinct non-null values (all NaN are one, -0.0 is 0.0); space and combine O(distinct values).

    Uniting n partials copies each value once; n combines would copy the values so far n times.
    """
    return Aggregate(
        "count_distinct",
        kind="distinct",
        fields=(Field("values", "set"), Field("nan", "bool")),
        identity=_NOTHING,
        lift=_lift_distinct,
        combine=_unite,
        lower=_count_distinct,
        unite=_unite_all,
        commutative=True,
        idempotent=True,
        fixed_size=False,
        result="int64",
    )
