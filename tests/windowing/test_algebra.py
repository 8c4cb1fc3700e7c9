"""Aggregates that contradict themselves are refused, and broken laws are found and named."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import strategies as st

from windowmill.windowing.algebra import ORIGIN, Aggregate, AlgebraError, Field, close, identical, position
from windowmill.windowing.laws import LawError, check_laws, verify

INTS = st.tuples(st.integers(-9, 9))


def total(**changes: Any) -> Aggregate[tuple[int]]:
    """An integer sum, right unless ``changes`` say otherwise."""
    declared: dict[str, Any] = {
        "name": "total",
        "kind": "total",
        "fields": (Field("total", "int64"),),
        "identity": (0,),
        "lift": lambda args, at: (args[0],),
        "combine": lambda a, b: (a[0] + b[0],),
        "lower": lambda partial: partial[0],
        "deduct": lambda whole, oldest: (whole[0] - oldest[0],),
        "commutative": True,
    }
    return Aggregate(**(declared | changes))


def test_a_right_aggregate_obeys_every_law():
    verify(total(), INTS, plain=lambda rows: sum(row[0] for row in rows))


@pytest.mark.parametrize(
    ("law", "changes", "sizes"),
    [
        ("associativity", {"combine": lambda a, b: (a[0] + b[0] + a[0] * a[0] * b[0],), "commutative": False, "deduct": None}, [1, 1, 1]),
        ("commutativity", {"combine": lambda a, b: b if a == (0,) else a, "deduct": None}, [1, 1]),
        ("idempotence", {"idempotent": True}, [1]),
        ("identity", {"identity": (1,)}, [0]),
        ("deduct", {"deduct": lambda whole, oldest: (whole[0] - abs(oldest[0]),)}, [1, 0]),
        ("plain", {"lower": lambda partial: abs(partial[0])}, [1]),
    ],
)
def test_a_broken_law_is_named_with_a_smallest_counterexample(law, changes, sizes):
    with pytest.raises(LawError, match=f"'total' breaks the law of {law}") as caught:
        verify(total(**changes), INTS, plain=(lambda rows: sum(row[0] for row in rows)) if law == "plain" else None)
    assert caught.value.law == law
    assert [len(operand) for operand in caught.value.operands] == sizes


def test_swapped_operands_show_in_a_string():
    joined = Aggregate(
        "joined",
        kind="joined",
        fields=(Field("text", "string"),),
        identity=("",),
        lift=lambda args, at: (args[0],),
        combine=lambda a, b: (b[0] + a[0],),
        lower=lambda partial: partial[0],
    )
    with pytest.raises(LawError, match="law of plain"):
        check_laws(joined, [("a",), ("b",)], plain=lambda rows: "".join(row[0] for row in rows))


def test_combine_must_leave_its_operands_alone():
    def extend(a: tuple[list[int]], b: tuple[list[int]]) -> tuple[list[int]]:
        a[0].extend(b[0])
        return a

    listed = Aggregate(
        "listed",
        kind="listed",
        fields=(Field("values", "list"),),
        identity=([],),
        lift=lambda args, at: ([args[0]],),
        combine=extend,
        lower=lambda partial: partial[0],
    )
    with pytest.raises(LawError, match="law of pure"):
        check_laws(listed, [(1,), (2,)])


def test_a_partial_that_ignores_positions_is_not_positioned():
    last = Aggregate(
        "last",
        kind="last",
        fields=(Field("value", "int64"),),
        identity=(None,),
        lift=lambda args, at: (args[0],),
        combine=lambda a, b: a if b[0] is None else b,
        lower=lambda partial: partial[0],
        positioned=True,
    )
    with pytest.raises(LawError, match="law of position"):
        check_laws(last, [(1,), (2,)])


def test_the_error_reads_as_one_line_with_values_and_what_to_do():
    with pytest.raises(LawError) as caught:
        check_laws(total(idempotent=True), [(3,)])
    assert str(caught.value) == (
        "aggregate 'total' breaks the law of idempotence: combine(a, a) gives 6, but a gives 3, with a of rows [(3,)]. "
        "Correct its functions, or do not declare the property."
    )


def test_deduct_on_inexact_partials_is_refused_when_declared():
    with pytest.raises(AlgebraError, match="'total': deduct on inexact partials"):
        total(exact=False)


def test_identity_and_fields_must_fit():
    with pytest.raises(AlgebraError, match="identity"):
        total(identity=(0, 0))
    with pytest.raises(AlgebraError, match="repeat a name"):
        total(fields=(Field("n", "int64"), Field("n", "int64")), identity=(0, 0))


def test_fold_of_nothing_is_the_identity_and_of_one_is_that_one():
    assert total().fold([]) == (0,)
    assert total().of([(4,)]) == (4,)
    assert total().of([(4,), (5,)], [ORIGIN, ORIGIN]) == (9,)


def test_positions_order_by_time_then_ties_with_null_first_and_nan_last():
    places = [position(1), position(2, [None]), position(2, [-math.inf]), position(2, [3.0]), position(2, [math.nan]), position(3, [None])]
    assert places == sorted(places)
    assert len(set(places)) == len(places)


def test_identical_tells_signs_of_zero_and_types_apart_but_not_nans():
    assert identical((math.nan, [1]), (math.nan, [1]))
    assert not identical((0.0,), (-0.0,))
    assert not identical((1,), (1.0,))
    assert not identical((1,), (1, 2))


def test_close_allows_rounding_in_floats_only():
    assert close({"slope": 1.0}, {"slope": 1.0 + 1e-12})
    assert close([1.0, math.nan], [1.0, math.nan])
    assert not close(10**12, 10**12 + 1)
    assert not close(1.0, 1.0 + 1e-6)
