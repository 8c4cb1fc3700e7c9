"""The laws that the functions of an aggregate must obey, and the search for rows that break one. Only tests use it: hypothesis searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windowmill.windowing.algebra import Aggregate, Args, P, close, identical
from windowmill.windowing.errors import AggregateOverflowError, WindowmillError


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
                forward, backward = aggregate.of(part), aggregate.fold([aggregate.lift(row, (at, ())) for at, row in enumerate(part)][::-1])
                _agree(aggregate, "position", [part], ("fold(a)", forward), ("fold(reversed(a))", backward))
            if plain is not None:
                _agree(aggregate, "plain", [part], ("lower(fold(a))", aggregate.of(part)), ("the plain computation", plain(part)), True)


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
        Aggregate to check; ``windowmill.windowing.aggregates.load_own`` loads a user's own.
    rows
        A hypothesis strategy of argument tuples, such as ``st.tuples(st.integers())``, or tuples to draw from.
    plain
        Naive computation of the result of a list of rows.
    examples, max_rows
        Greatest number of lists, and of rows in a list.

    Raises
    ------
    LawError
        Names the law, with the smallest rows that break it.
    """
    drawn_from = st.sampled_from(list(rows)) if isinstance(rows, Sequence) else rows

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(drawn_from, max_size=max_rows))
    def laws_hold(drawn: list[Args]) -> None:
        check_laws(aggregate, drawn, plain)

    laws_hold()
