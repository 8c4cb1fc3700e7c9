"""How many: rows, non-null values, distinct values; and whether all, or any, of the values are true, which is counted too."""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from windowmill.windowing.aggregates.values import Builder, frozen_value
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError
from windowmill.windowing.numerics import is_nan

Count = tuple[int]
Distinct = tuple[frozenset[Any], bool]

_NOTHING: Distinct = (frozenset(), False)
Votes = tuple[int, int]


def _lift_row(args: Args, at: Position) -> Count:
    return (1,)


def _lift_value(args: Args, at: Position) -> Count:
    return (0,) if args[0] is None else (1,)


def _add(a: Count, b: Count) -> Count:
    return (a[0] + b[0],)


def _subtract(total: Count, oldest: Count) -> Count:
    return (total[0] - oldest[0],)


def build_count(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Count]:
    """Rows for ``"*"``, else rows whose column is not null; exact, O(1)."""
    return Aggregate(
        "count",
        kind="rows" if not spec.columns else "values",
        fields=(Field("n", "int64"),),
        identity=(0,),
        lift=_lift_value if spec.columns else _lift_row,
        combine=_add,
        lower=operator.itemgetter(0),
        deduct=_subtract,
        commutative=True,
        result="int64",
    )


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


def _lift_vote(args: Args, at: Position) -> Votes:
    return (0, 0) if args[0] is None else (1, int(bool(args[0])))


def _add_votes(a: Votes, b: Votes) -> Votes:
    return a[0] + b[0], a[1] + b[1]


def _subtract_votes(total: Votes, oldest: Votes) -> Votes:
    return total[0] - oldest[0], total[1] - oldest[1]


def _all(partial: Votes) -> bool | None:
    return partial[1] == partial[0] if partial[0] else None


def _any(partial: Votes) -> bool | None:
    return partial[1] > 0 if partial[0] else None


def _voting(name: str, lower: Callable[[Votes], bool | None]) -> Builder:
    """Counted rather than folded with ``and``: counts can be deducted, so any engine may run them."""

    def build(spec: AggregateSpec, types: tuple[str, ...], /) -> Aggregate[Votes]:
        if types[0] not in ("bool", "any"):
            raise SpecError(f"{name}: column {spec.columns[0]!r} holds {types[0]}; expected booleans. Cast it in the source, or use where")
        return Aggregate(
            name,
            kind="votes",
            fields=(Field("n", "int64"), Field("trues", "int64")),
            identity=(0, 0),
            lift=_lift_vote,
            combine=_add_votes,
            lower=lower,
            deduct=_subtract_votes,
            commutative=True,
            result="bool",
        )

    return build


build_bool_and = _voting("bool_and", _all)
build_bool_or = _voting("bool_or", _any)
