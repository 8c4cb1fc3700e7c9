"""The k first and the k last of the values.

Both are exact. NaN is the greatest value and equal to itself, as in Spark; -0.0 is taken as 0.0.
"""

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types
from __future__ import annotations

import math
from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

from windowmill.windowing.aggregates.values import less_nan_greatest, positive_zero
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec

Ranked = tuple[tuple[Any, ...]]


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
    less = less_nan_greatest
    return cmp_to_key(lambda a, b: -1 if less(a, b) else int(less(b, a))), not smallest


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
