"""The algebra of an aggregate: lift, combine, lower, optionally deduct.

The terms are those of Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation" (PVLDB 8(7), 2015):
``lift`` turns one event into a partial, ``combine`` joins the partials of two adjacent ranges of events (left operand older), ``lower``
turns a partial into a result, ``deduct`` removes the partial of the oldest events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.errors import SpecError, WindowmillError

P = TypeVar("P", bound=tuple[Any, ...])
Args = tuple[Any, ...]
Position = tuple[int, tuple[Any, ...]]

#: Storage type of a partial's field. ``any`` is a value of the argument column's own type (or plain JSON data, for a user's aggregate),
#: ``int128`` an integer below 2**127 in magnitude; ``list`` and ``set`` hold such values.
FieldType = Literal["int64", "float64", "int128", "decimal", "bool", "string", "bytes", "any", "list", "set"]

#: Position of any event if order does not matter.
ORIGIN: Position = (0, ())


class AlgebraError(WindowmillError, TypeError):
    """A declaration is inconsistent."""

    exit_code = 2


class Field(NamedTuple):
    """One column of a stored partial."""

    name: str
    type: FieldType


@dataclass(frozen=True, slots=True, eq=False)
class Aggregate(Generic[P]):
    """An aggregate, declared once: its partial, its functions and its properties.

    Attributes
    ----------
    name
        Name in the catalogue.
    kind
        Name of the partial. Aggregates of one kind over the same columns have the same lift and combine, and can share one stored partial.
    fields
        Columns of the partial; a partial is a tuple with one value for each.
    identity
        Partial of no events; ``combine`` with it returns the other operand, bit-identical.
    lift
        ``lift(args, position)``: partial of one event. Null arguments give ``identity``.
    combine
        ``combine(older, newer)``: a new partial; does not change its operands.
    lower
        Result of a partial; ``None`` is null.
    deduct
        ``deduct(total, oldest)``: a new partial, ``total`` without ``oldest``, its left operand; ``None`` unless that is exact. Windows
        whose oldest events leave keep a running total by it.
    commutative
        Whether operands of ``combine`` may be swapped (for floating point, within its error bound).
    idempotent
        Whether ``combine(x, x)`` lowers to the same result as ``x``.
    fixed_size
        Whether a partial's size is bounded independently of the number of events.
    exact
        Whether the result is bit-identical for every grouping of ``combine``.
    positioned
        Whether partials contain the positions of events, so that partials whose events interleave in time may be combined in any order.
        Only between events of equal position does the order of operands matter (the older operand goes first).
    unite
        Combines any number of partials at once, if that costs less than one after the other; the same partial as ``combine`` from the left.
    result
        Type of the result, for schemas: a field type, ``same`` for the argument's own, or ``list<…>`` and ``struct<…>`` of these.
    accuracy
        How exact the result is, for ``explain``; empty if it is within the rounding of its type.
    """

    name: str
    kind: str
    fields: tuple[Field, ...]
    identity: P
    lift: Callable[[Args, Position], P]
    combine: Callable[[P, P], P]
    lower: Callable[[P], Any]
    deduct: Callable[[P, P], P] | None = None
    commutative: bool = False
    idempotent: bool = False
    fixed_size: bool = True
    exact: bool = True
    positioned: bool = False
    unite: Callable[[Iterable[P]], P] | None = None
    result: str = "float64"
    accuracy: str = ""

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise AlgebraError(f"aggregate {self.name!r}: partial fields {names} repeat a name; give each its own")
        if len(self.identity) != len(names):
            raise AlgebraError(f"aggregate {self.name!r}: identity {self.identity!r} has {len(self.identity)} values for fields {names}")
        if self.deduct is not None and not self.exact:
            raise AlgebraError(
                f"aggregate {self.name!r}: deduct on inexact partials would leave the rounding errors of evicted events behind; "
                "declare no deduct, and an engine that only combines is chosen"
            )

    def fold(self, partials: Iterable[P]) -> P:
        """Combine n partials from the left; the identity if there are none. n - 1 combines, or one ``unite``."""
        if self.unite is not None:
            return self.unite(partials)
        total: P | None = None
        for partial in partials:
            total = partial if total is None else self.combine(total, partial)
        return self.identity if total is None else total

    def of(self, rows: Sequence[Args], positions: Sequence[Position] | None = None) -> P:
        """Partial of n ``rows`` in order; row i has position (i, ()) unless ``positions`` are given. n lifts, n - 1 combines."""
        given = positions if positions is not None else [(index, ()) for index in range(len(rows))]
        return self.fold(self.lift(row, at) for row, at in zip(rows, given, strict=True))


def is_nan(value: object) -> bool:
    """Whether ``value`` is a floating-point NaN; false for values of any other type."""
    return isinstance(value, float) and math.isnan(value)


def position(time: int, ties: Iterable[Any] = ()) -> Position:
    """Position of an event in its key's order: ``time``, then the tie-break values (null first, NaN last).

    >>> position(5, [None]) < position(5, ["a"]) < position(6)
    True
    """
    return time, tuple((0,) if tie is None else (2,) if is_nan(tie) else (1, tie) for tie in ties)


def identical(a: Any, b: Any) -> bool:
    """Equality of partials: bit-identical, except that any NaN equals any NaN.

    >>> identical((0.0, float("nan")), (0.0, float("nan"))), identical(0.0, -0.0)
    (True, False)
    """
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(identical, a, b))
    return bool(type(a) is type(b) and a == b)


def close(a: Any, b: Any, relative: float = 1e-9) -> bool:
    """Equality of results: floats to ``relative`` of the larger one (or 1e-12 absolute), other values exactly.

    >>> close({"slope": 1.0}, {"slope": 1.0 + 1e-12})
    True
    """
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=relative, abs_tol=1e-12)
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(close(x, y, relative) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(close(a[name], b[name], relative) for name in a)
    return bool(a == b)


#: Types of argument columns. Every whole-number type is ``int64``; what is not named (timestamps, dates, binary …) is ``any``.
VALUE_TYPES = ("bool", "int64", "float64", "decimal", "string", "any")

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Spark's widest decimal, and digits enough for sums of any number of decimals, which are carried exactly.
DECIMAL_DIGITS = 38
WIDE = Context(prec=2 * DECIMAL_DIGITS + 24)


def require_number(spec: AggregateSpec, types: tuple[str, ...]) -> None:
    """Refuse columns that hold no numbers; ``any`` is let through and taken as float64.

    Raises ``SpecError`` naming function, column and type.
    """
    for column, type_ in zip(spec.columns, types, strict=True):
        if type_ in ("string", "bool"):
            raise SpecError(
                f"{spec.function}: column {column!r} holds {type_}; expected numbers. Cast it in the source, or choose another column"
            )


def less_nan_greatest(a: Any, b: Any) -> bool:
    """Strict order of values of any type that has one, with NaN greatest and equal to itself."""
    return bool(a < b) or (is_nan(b) and not is_nan(a))


def positive_zero(value: Any) -> Any:
    """``value`` with -0.0 taken as 0.0: they are equal, so which one survives must not depend on the order of combining."""
    return 0.0 if isinstance(value, float) and value == 0.0 else value


def frozen_value(value: Any) -> Any:
    """A hashable stand-in for ``value`` under which equal values are equal; lists and structs become tuples."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else positive_zero(value)
    if isinstance(value, list | tuple):
        return tuple(map(frozen_value, value))
    if isinstance(value, dict):
        return tuple((name, frozen_value(item)) for name, item in sorted(value.items()))
    return value
