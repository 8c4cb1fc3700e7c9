"""Extremes: the values themselves, how often they occur, what stood beside them, and the k first of them.

All are exact. NaN is the greatest value and equal to itself, as in Spark; -0.0 is taken as 0.0.
"""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from functools import cmp_to_key
from operator import itemgetter
from typing import Any, cast

from windowmill.windowing.aggregates.values import (
    WIDE,
    Less,
    fit_int64,
    less_for,
    positive_zero,
    require_number,
)
from windowmill.windowing.algebra import Aggregate, Args, Field, FieldType, Position
from windowmill.windowing.catalogue import AggregateSpec

Extreme = tuple[Any]
Counted = tuple[Any, int]
Span = tuple[Any, Any]
Beside = tuple[Any, int | None, tuple[Any, ...], Any]
Ranked = tuple[tuple[Any, ...]]


def _field_type(type_: str) -> FieldType:
    return cast(FieldType, type_)


def _lift_value(args: Args, at: Position) -> Extreme:
    return (positive_zero(args[0]),)


def _before(type_: str, smallest: bool) -> Less:
    """``before(a, b)``: whether a is strictly more extreme than b."""
    less = less_for(type_)
    return less if smallest else lambda a, b: less(b, a)


def _choosing(before: Less) -> Callable[[Extreme, Extreme], Extreme]:
    def combine(a: Extreme, b: Extreme) -> Extreme:
        if a[0] is None or b[0] is None:
            return b if a[0] is None else a
        return b if before(b[0], a[0]) else a

    return combine


def _extreme(name: str, type_: str, smallest: bool) -> Aggregate[Extreme]:
    return Aggregate(
        name,
        kind=name,
        fields=(Field("value", _field_type(type_)),),
        identity=(None,),
        lift=_lift_value,
        combine=_choosing(_before(type_, smallest)),
        lower=itemgetter(0),
        commutative=True,
        idempotent=True,
        result="same",
    )


def build_min(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Extreme]:
    """Smallest value of any ordered type; O(1)."""
    return _extreme("min", types[0], smallest=True)


def build_max(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Extreme]:
    """Greatest value of any ordered type; O(1)."""
    return _extreme("max", types[0], smallest=False)


def _lift_counted(args: Args, at: Position) -> Counted:
    return (None, 0) if args[0] is None else (positive_zero(args[0]), 1)


def _counting(before: Less) -> Callable[[Counted, Counted], Counted]:
    def combine(a: Counted, b: Counted) -> Counted:
        if not a[1] or not b[1]:
            return a if a[1] else b
        if before(a[0], b[0]):
            return a
        return b if before(b[0], a[0]) else (a[0], a[1] + b[1])

    return combine


def _count_or_null(partial: Counted) -> int | None:
    return partial[1] or None


def _counted(name: str, type_: str, smallest: bool) -> Aggregate[Counted]:
    return Aggregate(
        name,
        kind=name,
        fields=(Field("value", _field_type(type_)), Field("n", "int64")),
        identity=(None, 0),
        lift=_lift_counted,
        combine=_counting(_before(type_, smallest)),
        lower=_count_or_null,
        commutative=True,
        result="int64",
    )


def build_min_count(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Counted]:
    """How often the smallest value occurs; O(1)."""
    return _counted("min_count", types[0], smallest=True)


def build_max_count(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Counted]:
    """How often the greatest value occurs; O(1)."""
    return _counted("max_count", types[0], smallest=False)


def _lift_span(args: Args, at: Position) -> Span:
    value = positive_zero(args[0])
    return value, value


def _width(partial: Span) -> Any:
    least, greatest = partial
    if least is None:
        return None
    if isinstance(least, Decimal):
        return WIDE.subtract(greatest, least)
    return fit_int64(greatest - least, "range") if isinstance(least, int) else greatest - least


def build_range(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Span]:
    """Greatest minus smallest value; NaN while a NaN is in the window; O(1)."""
    require_number(spec, types)
    smaller, greater = _choosing(_before(types[0], True)), _choosing(_before(types[0], False))

    def combine(a: Span, b: Span) -> Span:
        return smaller((a[0],), (b[0],))[0], greater((a[1],), (b[1],))[0]

    return Aggregate(
        "range",
        kind="range",
        fields=(Field("least", _field_type(types[0])), Field("greatest", _field_type(types[0]))),
        identity=(None, None),
        lift=_lift_span,
        combine=combine,
        lower=_width,
        commutative=True,
        idempotent=True,
        result=types[0],
    )


_NONE_BESIDE: Beside = (None, None, (), None)


def _lift_beside(args: Args, at: Position) -> Beside:
    by, value = args
    return _NONE_BESIDE if by is None else (by, *at, value)


def _beside(name: str, types: tuple[str, ...], smallest: bool) -> Aggregate[Beside]:
    before = _before(types[0], smallest)

    def combine(a: Beside, b: Beside) -> Beside:
        if a[0] is None or b[0] is None:
            return b if a[0] is None else a
        if before(a[0], b[0]):
            return a
        return b if before(b[0], a[0]) or cast(Position, b[1:3]) < cast(Position, a[1:3]) else a

    return Aggregate(
        name,
        kind=name,
        fields=(Field("by", _field_type(types[0])), Field("time", "int64"), Field("ties", "list"), Field("value", _field_type(types[1]))),
        identity=_NONE_BESIDE,
        lift=_lift_beside,
        combine=combine,
        lower=itemgetter(3),
        idempotent=True,
        positioned=True,
        result="same",
    )


def build_arg_min(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Beside]:
    """``[by, value]``: the value beside the smallest ``by``, the earliest of equals; it may be null, ``by`` may not; O(1)."""
    return _beside("arg_min", types, smallest=True)


def build_arg_max(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Beside]:
    """``[by, value]``: the value beside the greatest ``by``, the earliest of equals; it may be null, ``by`` may not; O(1)."""
    return _beside("arg_max", types, smallest=False)


def _lift_ranked(args: Args, at: Position) -> Ranked:
    return ((),) if args[0] is None else ((positive_zero(args[0]),),)


def _list_or_null(partial: Ranked) -> list[Any] | None:
    return list(partial[0]) or None


def _rank_key(type_: str, smallest: bool) -> tuple[Callable[[Any], Any], bool]:
    """Sort key and whether to reverse; a plain key where the type has one, since a comparison function costs five times as much."""
    if type_ == "float64":
        return (lambda value: (math.isnan(value), value)), not smallest
    if type_ != "any":
        return (lambda value: value), not smallest
    before = _before(type_, smallest)
    return cmp_to_key(lambda a, b: -1 if before(a, b) else int(before(b, a))), False


def _ranked(name: str, spec: AggregateSpec, type_: str, smallest: bool) -> Aggregate[Ranked]:
    k: int = spec.options["k"]
    key, reverse = _rank_key(type_, smallest)

    def combine(a: Ranked, b: Ranked) -> Ranked:
        if not a[0] or not b[0]:
            return a if a[0] else b
        return (tuple(sorted(a[0] + b[0], key=key, reverse=reverse)[:k]),)

    return Aggregate(
        name,
        kind=f"{name}_{k}",
        fields=(Field("values", "list"),),
        identity=((),),
        lift=_lift_ranked,
        combine=combine,
        lower=_list_or_null,
        commutative=True,
        result="list<same>",
    )


def build_top_k(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Ranked]:
    """The k greatest values, greatest first, equals repeated; combine O(k)."""
    return _ranked("top_k", spec, types[0], smallest=False)


def build_bottom_k(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Ranked]:
    """The k smallest values, smallest first, equals repeated; combine O(k)."""
    return _ranked("bottom_k", spec, types[0], smallest=True)
