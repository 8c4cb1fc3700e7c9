"""The algebra of an aggregate: lift, combine, lower, optionally deduct, and the laws that these must obey.

The terms are those of Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation" (PVLDB 8(7), 2015):
``lift`` turns one event into a partial, ``combine`` joins the partials of two adjacent ranges of events (left operand older), ``lower``
turns a partial into a result, ``deduct`` removes the partial of the oldest events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from windowmill.windowing.errors import AggregateOverflowError, WindowmillError

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


class LawError(WindowmillError, AssertionError):
    """An aggregate breaks a law; ``law`` names it and ``operands`` holds the rows of the smallest counterexample found."""

    def __init__(self, message: str, law: str = "", operands: tuple[tuple[Args, ...], ...] = ()) -> None:
        super().__init__(message)
        self.law = law
        self.operands = operands

    @classmethod
    def found(cls, name: str, law: str, operands: Sequence[Sequence[Args]], left: tuple[str, Any], right: tuple[str, Any]) -> LawError:
        """The error for ``left != right``, each given as (formula over a, b, c; value)."""
        named = "; ".join(f"{letter} of rows {list(rows)!r}" for letter, rows in zip("abc", operands, strict=False))
        return cls(
            f"aggregate {name!r} breaks the law of {law}: {left[0]} gives {left[1]!r}, but {right[0]} gives {right[1]!r}, with {named}. "
            "Correct its functions, or do not declare the property.",
            law,
            tuple(tuple(rows) for rows in operands),
        )


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
        return self._combined(partials) if self.unite is None else self.unite(partials)

    def _combined(self, partials: Iterable[P]) -> P:
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

    Examples
    --------
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


def outcome(aggregate: Aggregate[P], partial: P) -> Any:
    """The result of ``partial``; the text ``overflow`` if lowering overflows, so that overflows compare as equal."""
    try:
        return aggregate.lower(partial)
    except AggregateOverflowError:
        return "overflow"


def check_laws(aggregate: Aggregate[P], rows: Sequence[Args], plain: Callable[[Sequence[Args]], Any] | None = None) -> None:
    """Check every law on every split of a range of ``rows`` into adjacent ranges a, b, c, shortest first.

    Laws: *identity* on both sides, *pure* (``combine`` and ``deduct`` do not change their operands), *associativity*, *commutativity* and
    *idempotence* if declared, *unite* (``unite`` of three is what ``combine`` makes of them), *deduct* (``deduct(combine(a, b), a)`` is
    ``b``), *position* (partials at different positions combine in any order, if declared), *plain* (``lower`` of the fold is
    ``plain(rows)``, if given). Rows share a time two by two, so ties are checked too. O(len(rows)**4) combines: pass few rows.

    Raises
    ------
    LawError
        For the first law that fails, with the shortest ranges of ``rows`` for which it does.
    """
    partials = [aggregate.lift(row, (index // 2, ())) for index, row in enumerate(rows)]
    for size in range(len(rows) + 1):
        for start in range(len(rows) - size + 1):
            stop = start + size
            for i in range(start, stop + 1):
                for j in range(i, stop + 1):
                    cuts = (slice(start, i), slice(i, j), slice(j, stop))
                    a, b, c = (aggregate.fold(partials[cut]) for cut in cuts)
                    _check_three(aggregate, a, b, c, [rows[cut] for cut in cuts])
            part = rows[start:stop]
            if aggregate.positioned:
                forward, backward = aggregate.of(part), aggregate.fold(_lifted(aggregate, part)[::-1])
                _agree(aggregate, "position", [part], ("fold(a)", forward), ("fold(reversed(a))", backward))
            if plain is not None:
                _agree(
                    aggregate,
                    "plain",
                    [part],
                    ("lower(fold(a))", aggregate.of(part)),
                    ("the plain computation", plain(part)),
                    True,
                )


def _lifted(aggregate: Aggregate[P], rows: Sequence[Args]) -> list[P]:
    return [aggregate.lift(row, (index, ())) for index, row in enumerate(rows)]


def _check_three(aggregate: Aggregate[P], a: P, b: P, c: P, rows: list[Sequence[Args]]) -> None:
    combine, empty = aggregate.combine, aggregate.identity
    before = deepcopy((a, b))
    ab = combine(a, b)
    if not identical((a, b), before):
        raise LawError.found(aggregate.name, "pure", rows[:2], ("combine(a, b) leaves", (a, b)), ("its operands were", before))
    for formula, value in (("combine(identity, a)", combine(empty, a)), ("combine(a, identity)", combine(a, empty))):
        if not identical(value, a):
            raise LawError.found(aggregate.name, "identity", rows[:1], (formula, value), ("a", a))
    left, right = combine(ab, c), combine(a, combine(b, c))
    _agree(aggregate, "associativity", rows, ("combine(combine(a, b), c)", left), ("combine(a, combine(b, c))", right))
    if aggregate.unite is not None:
        _agree(aggregate, "unite", rows, ("combine(combine(a, b), c)", left), ("unite([a, b, c])", aggregate.unite([a, b, c])))
    if aggregate.commutative:
        _agree(aggregate, "commutativity", rows[:2], ("combine(a, b)", ab), ("combine(b, a)", combine(b, a)))
    if aggregate.idempotent:
        _agree(aggregate, "idempotence", rows[:1], ("combine(a, a)", combine(a, a)), ("a", a))
    if aggregate.deduct is not None:
        before = deepcopy((ab, a))
        _agree(aggregate, "deduct", rows[:2], ("deduct(combine(a, b), a)", aggregate.deduct(ab, a)), ("b", b))
        if not identical((ab, a), before):
            raise LawError.found(aggregate.name, "pure", rows[:2], ("deduct(ab, a) leaves", (ab, a)), ("its operands were", before))


def _agree(
    aggregate: Aggregate[P], law: str, rows: Sequence[Sequence[Args]], left: tuple[str, P], right: tuple[str, Any], lowered: bool = False
) -> None:
    # Partials may differ although results agree: a moment's anchor is its first value, which depends on the order of operands.
    if not lowered and identical(left[1], right[1]):
        return
    got, wanted = outcome(aggregate, left[1]), right[1] if lowered else outcome(aggregate, right[1])
    if not (identical(got, wanted) if aggregate.exact and not lowered else close(got, wanted)):
        raise LawError.found(aggregate.name, law, rows, (left[0], got), (right[0], wanted))


def verify(
    aggregate: Aggregate[P], rows: Any, plain: Callable[[Sequence[Args]], Any] | None = None, *, examples: int = 200, max_rows: int = 5
) -> None:
    """Search for rows that break a law, and shrink them to a smallest counterexample.

    Parameters
    ----------
    aggregate
        Aggregate to check; ``windowmill.windowing.aggregates.own.load`` loads a user's own.
    rows
        A hypothesis strategy of argument tuples, such as ``st.tuples(st.integers())``.
    plain
        Naive computation of the result of a list of rows.
    examples, max_rows
        Greatest number of lists, and of rows in a list.

    Raises
    ------
    LawError
        Names the law, with the smallest rows that break it.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(rows, max_size=max_rows))
    def laws_hold(drawn: list[Args]) -> None:
        check_laws(aggregate, drawn, plain)

    laws_hold()
