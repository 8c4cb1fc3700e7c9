"""Aggregates of all events in order, and partials that keep the order of events.

Partials keep each event's position (time, tie-break), because the partials of one slice come from batches whose events
interleave. Events of equal position keep their order of arrival: the older operand's go first.
"""

# ruff: noqa: ARG001 - every lift and every builder has the same arguments, whether or not it needs the position or the types
from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import replace
from decimal import Decimal
from itertools import chain, pairwise
from typing import Any

from windowmill.windowing.algebra import Aggregate, AlgebraError, Args, Field, Position, frozen_value, positive_zero
from windowmill.windowing.catalogue import AggregateSpec

Item = tuple[int, tuple[Any, ...], Any]
Items = tuple[tuple[Item, ...]]
#: Partial of each event, by position, and what these make together.
Rope = tuple[tuple[Item, ...], Any]

_NO_ITEMS: Items = ((),)


def _lift_item(args: Args, at: Position) -> Items:
    return _NO_ITEMS if args[0] is None else (((*at, args[0]),),)


def _place(item: Item) -> Position:
    return item[0], item[1]


def _merge(a: Items, b: Items) -> Items:
    left, right = a[0], b[0]
    if not left or not right:
        return a if left else b
    if _place(left[-1]) <= _place(right[0]):
        return (left + right,)
    return (tuple(heapq.merge(left, right, key=_place)),)


def _without(items: tuple[Item, ...], oldest: tuple[Item, ...]) -> tuple[Item, ...]:
    """The ``items`` but for the ``oldest``, which must be the first of them."""
    if len(oldest) > len(items) or any(_place(item) != _place(old) for item, old in zip(items, oldest, strict=False)):
        raise AlgebraError(f"deducting {len(oldest)} events that are not the first of the window's {len(items)}; evict in order of time")
    return items[len(oldest) :]


def _listed(partial: Items) -> list[Any] | None:
    return [item[2] for item in partial[0]] or None


def _joined(partial: Items) -> str | None:
    return "".join(_text(item[2]) for item in partial[0]) if partial[0] else None


def _text(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _collecting(name: str, lower: Callable[[Items], Any], result: str) -> Aggregate[Items]:
    return Aggregate(
        name,
        kind="collect",
        fields=(Field("items", "list"),),
        identity=_NO_ITEMS,
        lift=_lift_item,
        combine=_merge,
        lower=lower,
        deduct=lambda total, oldest: (_without(total[0], oldest[0]),),
        fixed_size=False,
        positioned=True,
        result=result,
    )


def build_collect(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Items]:
    """All non-null values in order, as a list; space and combine O(n)."""
    return _collecting("collect", _listed, "list<same>")


def build_concat(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Items]:
    """All non-null values in order as text, joined without a separator; space and combine O(n)."""
    return _collecting("concat", _joined, "string")


def _lift_distinct(args: Args, at: Position) -> Items:
    return _lift_item((positive_zero(args[0]),), at)


def _merge_distinct(a: Items, b: Items) -> Items:
    merged = _merge(a, b)
    if merged is a or merged is b:
        return merged
    # The first of equal values stays; setdefault keeps insertion order, which is the order of positions.
    kept: dict[Any, Item] = {}
    for item in merged[0]:
        kept.setdefault(frozen_value(item[2]), item)
    return (tuple(kept.values()),)


def build_collect_distinct(spec: AggregateSpec, types: tuple[str, ...]) -> Aggregate[Items]:
    """Distinct non-null values in order of their first occurrence (all NaN are one); space and combine O(distinct values)."""
    collecting = _collecting("collect_distinct", _listed, "list<same>")
    return replace(collecting, kind="collect_distinct", lift=_lift_distinct, combine=_merge_distinct, deduct=None, idempotent=True)


def mergeable(aggregate: Aggregate[Any]) -> Aggregate[Any]:
    """The ``aggregate``, with partials that late events can be combined with.

    Where the order of operands matters, and partials have no positions, these partials keep that of each event by its position. While
    events come in order a combine costs one of the ``aggregate``; where they interleave, one for each event.
    """
    if aggregate.commutative or aggregate.positioned:
        return aggregate
    identity: Rope = ((), aggregate.identity)

    def lift(args: Args, at: Position) -> Rope:
        own = aggregate.lift(args, at)
        return identity if own is aggregate.identity else (((*at, own),), own)

    def unite(ropes: Iterable[Rope]) -> Rope:
        held = [rope for rope in ropes if rope[0]]
        if len(held) < 2:
            return held[0] if held else identity
        if all(_place(older[0][-1]) <= _place(newer[0][0]) for older, newer in pairwise(held)):
            return tuple(chain.from_iterable(items for items, _ in held)), aggregate.fold(total for _, total in held)
        merged = tuple(heapq.merge(*(items for items, _ in held), key=_place))
        return merged, aggregate.fold(item[2] for item in merged)

    def deduct(rope: Rope, oldest: Rope) -> Rope:
        kept = _without(rope[0], oldest[0])
        if not kept or not oldest[0]:
            return rope if kept else identity
        assert aggregate.deduct is not None
        return kept, aggregate.deduct(rope[1], oldest[1])

    return replace(
        aggregate,
        fields=(Field("items", "list"), Field("total", "any")),
        identity=identity,
        lift=lift,
        combine=lambda older, newer: unite((older, newer)),
        lower=lambda rope: aggregate.lower(rope[1]),
        deduct=None if aggregate.deduct is None else deduct,
        idempotent=False,
        fixed_size=False,
        positioned=True,
        unite=unite,
    )
