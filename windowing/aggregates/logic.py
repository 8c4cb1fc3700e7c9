"""Whether all, or any, of the values are true."""

# ruff: noqa: ARG001 - every lift and every builder is called alike, whether or not it needs the position or the types
from __future__ import annotations

from collections.abc import Callable

from windowmill.windowing.aggregates.values import Builder
from windowmill.windowing.algebra import Aggregate, Args, Field, Position
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError

Votes = tuple[int, int]


def _lift(args: Args, at: Position) -> Votes:
    return (0, 0) if args[0] is None else (1, int(bool(args[0])))


def _add(a: Votes, b: Votes) -> Votes:
    return a[0] + b[0], a[1] + b[1]


def _subtract(total: Votes, oldest: Votes) -> Votes:
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
            lift=_lift,
            combine=_add,
            lower=lower,
            deduct=_subtract,
            commutative=True,
            result="bool",
        )

    return build


build_bool_and = _voting("bool_and", _all)
build_bool_or = _voting("bool_or", _any)
