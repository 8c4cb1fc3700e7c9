"""Every aggregate of the catalogue, as runs compute it: its laws, and what it makes of null, NaN, infinity, ties and overflow."""

from __future__ import annotations

import itertools
import math
import random
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specs import a_spec
from tests.windowing.aggregate_cases import CASES, COUNTS, EXAMPLES, Case
from tests.windowing.kernel_algebra import ARROW, made_of
from windowmill.windowing.aggregates import aggregate_for, load_own
from windowmill.windowing.aggregates.order import mergeable
from windowmill.windowing.algebra import Aggregate, close, identical, position
from windowmill.windowing.catalogue import DECLARED, AggregateSpec, parse_aggregate
from windowmill.windowing.errors import AggregateOverflowError, PluginError, SpecError
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.laws import LawError, check_laws, outcome, verify
from windowmill.windowing.registry import resolve
from windowmill.windowing.specfile import parse_pipeline

NAN, INF = math.nan, math.inf


def made(function: str, *types: str, **options: Any) -> Aggregate[Any]:
    columns = ["x", "y"][: len(types)]
    argument: Any = {"column": "x", **options} if options else columns if len(columns) > 1 else columns[0] if columns else "*"
    return made_of({function: argument}, types)


def result(function: str, types: tuple[str, ...], rows: list[tuple[Any, ...]], **options: Any) -> Any:
    aggregate = made(function, *types, **options)
    return aggregate.lower(aggregate.of(rows))


def of_floats(function: str, *values: float | None, **options: Any) -> Any:
    return result(function, ("float64",), [(value,) for value in values], **options)


def test_the_whole_catalogue_is_built_and_tested():
    for declared in DECLARED.values():
        assert (declared.recipe is None) != (declared.algebra is None)
        assert resolve(declared.recipe or declared.algebra)
    assert {next(iter(case.written)) for case in CASES} == set(DECLARED)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_laws(case: Case):
    by_kernels = parse_aggregate(case.written).declaration.recipe is not None
    examples = -(-EXAMPLES.max_examples // 3) if by_kernels else EXAMPLES.max_examples
    verify(case.aggregate, case.rows, case.by_reference, examples=examples, max_rows=3 if by_kernels else 4)


@pytest.mark.parametrize(
    ("function", "row"), [("sum", (-0.0,)), ("mean", (-0.0,)), ("weighted_mean", (0.0, -0.0)), ("weighted_mean", (-0.0, 1.0))]
)
def test_a_negative_zero_is_the_same_alone_and_with_others(function, row):
    check_laws(made(function, *["float64"] * len(row)), [row, row])


@pytest.mark.parametrize("case", CASES, ids=str)
@EXAMPLES
@given(data=st.data())
def test_any_tree_gives_the_same_to_the_bit_if_exact_and_fills_its_fields(case: Case, data: st.DataObject):
    rows = data.draw(st.lists(case.rows, max_size=9))
    aggregate = case.aggregate
    partials = [aggregate.lift(row, (index, ())) for index, row in enumerate(rows)]
    while len(partials) > 1:
        at = data.draw(st.integers(0, len(partials) - 2))
        partials[at : at + 2] = [aggregate.combine(partials[at], partials[at + 1])]
    tree = partials[0] if partials else aggregate.identity
    outcomes = [outcome(aggregate, aggregate.of(rows)), outcome(aggregate, tree)]
    assert identical(*outcomes) if aggregate.exact else close(*outcomes)
    for field, value in zip(aggregate.fields, tree, strict=True):
        assert value is None or field.type == "any" or type(value) is FITTING[field.type], f"{field}: {value!r}"


FITTING = {"int64": int, "int128": int, "float64": float, "decimal": Decimal, "bool": bool, "string": str, "bytes": bytes}
FITTING |= {"list": tuple, "set": frozenset}


# Tangwongsan, Hirzel, Schneider and Wu (2015), table 2: commutative or not. All are associative.
PAPER = {
    **dict.fromkeys([("count", "int64"), ("sum", "int64"), ("max", "int64"), ("min", "int64"), ("mean", "int64")], True),
    **dict.fromkeys([("geometric_mean", "float64"), ("max_count", "int64"), ("min_count", "int64")], True),
    **dict.fromkeys([("stddev_samp", "float64"), ("stddev_pop", "float64")], True),
    **dict.fromkeys([("arg_max", "int64"), ("arg_min", "int64"), ("collect", "int64")], False),
}


@pytest.mark.parametrize(("entry", "commutative"), PAPER.items(), ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_the_thirteen_of_the_reactive_aggregator_have_its_properties(entry, commutative):
    function, type_ = entry
    aggregate = made(function, *(type_,) * len(DECLARED[function].columns))
    assert aggregate.commutative == commutative
    assert aggregate.commutative or aggregate.positioned


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_and_nulls_give_null_and_counts_give_zero(case: Case):
    expected = 0 if next(iter(case.written)) in COUNTS else None
    nulls = [(None,) * (2 if "time_weighted_mean" in case.written else len(case.types))] * 3 if case.types else []
    for rows in ([], nulls):
        assert case.aggregate.lower(case.aggregate.of(rows)) == expected
        assert identical(case.aggregate.of(rows), case.aggregate.identity)


def test_the_sign_of_zero_does_not_depend_on_the_order():
    for function in ("min", "max", "median"):
        assert math.copysign(1.0, of_floats(function, -0.0, 0.0)) == math.copysign(1.0, of_floats(function, 0.0, -0.0)) == 1.0
    assert math.copysign(1.0, of_floats("median", -0.0, -0.0)) == 1.0


def test_ties_of_arg_max_go_to_the_earliest_and_its_value_may_be_null():
    aggregate = made("arg_max", "int64", "string")
    late, early = aggregate.lift((3, "late"), position(9)), aggregate.lift((3, None), position(2))
    skipped = aggregate.lift((None, "skipped"), position(1))
    for order in itertools.permutations([late, early, skipped]):
        assert aggregate.lower(aggregate.fold(order)) is None
    assert aggregate.fold([late, skipped]) == late


def test_equal_positions_keep_the_order_of_arrival():
    at = position(4, [7])
    for function, expected in (("first", "a"), ("last", "b"), ("collect", ["a", "b"]), ("concat", "ab")):
        aggregate = made(function, "string")
        assert aggregate.lower(aggregate.combine(aggregate.lift(("a",), at), aggregate.lift(("b",), at))) == expected
    for function in ("arg_min", "arg_max"):
        aggregate = made(function, "int64", "string")
        assert aggregate.lower(aggregate.combine(aggregate.lift((1, "a"), at), aggregate.lift((1, "b"), at))) == "a"


@given(st.permutations(range(7)))
def test_batches_that_interleave_in_time_are_put_in_order(arrival):
    rows = [("a",), ("b",), ("a",), ("c",), (None,), ("b",), ("d",)]
    for function, expected in (("first", "a"), ("last", "d"), ("concat", "abacbd"), ("collect_distinct", ["a", "b", "c", "d"])):
        aggregate = made(function, "string")
        assert aggregate.lower(aggregate.fold(aggregate.lift(rows[at], position(at // 3, [at % 3])) for at in arrival)) == expected


def test_deducting_what_is_not_oldest_is_refused():
    collect = made("collect", "int64")
    assert collect.deduct is not None
    window = collect.of([(1,), (2,)])
    assert collect.lower(collect.deduct(window, collect.lift((1,), (0, ())))) == [2]
    with pytest.raises(TypeError, match="not the first"):
        collect.deduct(window, collect.lift((2,), (1, ())))


@pytest.mark.parametrize(("function", "rows"), [("sum", [2**62, 2**62]), ("sum", [-(2**63), -1]), ("range", [-(2**63), 2**63 - 1])])
def test_integers_never_wrap(function, rows):
    with pytest.raises(AggregateOverflowError, match=rf"aggregates\.tested: {function} over a window is .*, beyond its type"):
        result(function, ("int64",), [(value,) for value in rows])


def test_an_overflow_on_the_way_is_none():
    total = made("sum", "int64")
    assert total.lower(total.of([(2**63 - 1,), (5,), (-7,)])) == 2**63 - 3
    assert result("mean", ("int64",), [(2**63 - 1,), (2**63 - 1,)]) == float(2**63 - 1)


def test_decimals_are_summed_exactly_up_to_38_digits():
    wide = Decimal("9" * 36 + ".99")
    assert result("sum", ("decimal",), [(wide,), (Decimal("-" + "9" * 36),)]) == Decimal("0.99")
    assert result("mean", ("decimal",), [(Decimal("0.10"),), (Decimal("0.20"),)]) == Decimal("0.15")
    with pytest.raises(AggregateOverflowError, match="beyond its type"):
        result("sum", ("decimal",), [(wide,), (wide,)])


@pytest.mark.parametrize(
    ("written", "type_", "expected"),
    [
        *(({name: "x"}, "string", "numbers or booleans") for name in ("sum", "mean", "stddev_samp", "range")),
        ({"quantile": {"column": "x", "q": 0.5}}, "string", "numbers, booleans or instants"),
        ({"bool_and": "x"}, "int64", "booleans"),
    ],
    ids=str,
)
def test_columns_that_do_not_hold_what_it_takes_are_refused(written, type_, expected):
    [function] = written
    with pytest.raises(SpecError, match=rf"{function} of column 'x' of type {type_}; expected {expected}:"):
        Layout.of(parse_pipeline(a_spec(aggregates={"a": written})), {"x": ARROW[type_]})


def test_columns_need_known_types():
    with pytest.raises(SpecError, match="collect: got types"):
        aggregate_for(AggregateSpec(function="collect", columns=("x",)), [])


def test_an_aggregate_with_a_recipe_has_no_algebra():
    with pytest.raises(PluginError, match="the aggregate 'sum' has no algebra: kernels compute it by its recipe"):
        aggregate_for(AggregateSpec(function="sum", columns=("x",)), ["int64"])


DISTRIBUTIONS = {
    "uniform": lambda draw: draw.random(),
    "lognormal": lambda draw: draw.lognormvariate(0, 3),
    "few values": lambda draw: float(draw.randrange(20)),
    "two far peaks": lambda draw: draw.choice([-1e9, 1e9]) + draw.random(),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("exact", [False, True])
def test_quantiles_of_many_values_do_not_show_the_order_or_the_batches(distribution, exact):
    """Merged from slices of 1 to 5,000 rows, in any order and grouping, the partial is the same to the byte."""
    draw = random.Random(7)
    values = [DISTRIBUTIONS[distribution](draw) for _ in range(12_000)]
    aggregate = made("quantile", "float64", q=0.5, exact=exact)
    whole = aggregate.of([(value,) for value in values])
    for seed in range(5):
        draw = random.Random(seed)
        draw.shuffle(values)
        partials, start = [], 0
        while start < len(values):
            size = draw.choice([1, 7, 64, 300, 5_000])
            partials.append(aggregate.of([(value,) for value in values[start : start + size]]))
            start += size
        while len(partials) > 1:
            at = draw.randrange(len(partials) - 1)
            partials[at : at + 2] = [aggregate.combine(*draw.sample(partials[at : at + 2], 2))]
        assert identical(partials[0], whole)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_quantiles_of_many_values_are_within_their_bound(distribution):
    """A value that occurs, not above the exact one, and below it by less than a bucket's width; of few different values the exact one."""
    draw = random.Random(7)
    values = sorted(DISTRIBUTIONS[distribution](draw) for _ in range(12_000))
    rows = [(value,) for value in draw.sample(values, len(values))]
    for q in (0, 0.01, 0.5, 0.9, 0.999, 1):
        aggregate = made("quantile", "float64", q=q)
        partial = aggregate.of(rows)
        answer, exact = aggregate.lower(partial), values[max(0, math.ceil(q * len(values)) - 1)]
        width = 2.0 ** (partial[2] - 52) if partial[2] else 0
        assert answer in values
        assert exact - abs(exact) * width <= answer <= exact
        assert width <= 0.008
        assert q not in (0, 1) or answer == exact
        assert result("quantile", ("float64",), rows, q=q, exact=True) == exact


def test_a_bounded_quantile_takes_any_values():
    """Of every exponent and sign, and with infinities and NaN apart."""
    values = [sign * 1.5 * 2.0**exponent for sign in (-1, 1) for exponent in range(-1074, 1024)]
    values += [sign * 1.25 * 2.0**exponent for sign in (-1, 1) for exponent in range(-1022, 1024)]
    aggregate = made("quantile", "float64", q=0.5)
    partial = aggregate.of([(value,) for value in [*values, -INF, INF, NAN, 0.0, -0.0]])
    assert partial[2] in (51, 52)
    assert close(result("quantile", ("float64",), [(v,) for v in [*values, INF, NAN, NAN]], q=1), NAN)
    assert of_floats("quantile", *values, INF, q=1) == INF
    assert of_floats("quantile", *values, -INF, q=0) == -INF
    least, *_, greatest = sorted(values)
    assert of_floats("quantile", *values, q=0) == least
    assert of_floats("quantile", *values, q=1) == greatest


@pytest.mark.parametrize("exact", [False, True])
@given(data=st.data())
def test_quantiles_are_those_of_the_plain_computation_however_rows_are_cut(exact: bool, data: st.DataObject):
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    spread = data.draw(st.sampled_from([0.1, 3.0, 100.0]))
    n = data.draw(st.sampled_from([3, 255, 257, 4_500, 9_000]))
    values = [draw.choice([1, 1, -1]) * math.exp(draw.gauss(0, spread)) for _ in range(n)]
    values += data.draw(st.lists(st.sampled_from([NAN, INF, -INF, 0.0, -0.0, None]), max_size=9))
    case = Case({"quantile": {"column": "x", "q": data.draw(st.sampled_from([0, 0.25, 0.5, 0.95, 1])), "exact": exact}}, ("float64",))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=6)))
    rows = [(value,) for value in values]
    partials = [case.aggregate.of(rows[first:stop]) for first, stop in itertools.pairwise([0, *cuts, len(rows)])]
    assert identical(case.aggregate.lower(case.aggregate.fold(data.draw(st.permutations(partials)))), case.by_reference(rows))


def test_approximate_distinct_counts_keep_their_bound_in_99_of_100_seeds():
    """Three standard errors of 2**12 registers are 4.9 %."""
    aggregate, n, outside = made("approx_distinct", "int64"), 1_500, 0
    for seed in range(100):
        estimate = aggregate.lower(aggregate.of([(value,) for value in random.Random(seed).sample(range(2**62), n)]))
        outside += abs(estimate - n) > 0.049 * n
    assert outside <= 1


def test_approximate_distinct_counts_do_not_show_the_order_or_the_batches():
    aggregate = made("approx_distinct", "string")
    values = [f"user-{index}" for index in range(2_000)]
    shuffled = random.Random(1).sample(values, len(values))
    slices = [aggregate.of([(value,) for value in shuffled[start : start + 300]]) for start in range(0, len(values), 300)]
    estimates = {aggregate.lower(aggregate.of([(value,) for value in values])), aggregate.lower(aggregate.fold(slices))}
    assert len(estimates) == 1


class Longest:
    """The longest name, the earliest of equals."""

    commutative = False
    idempotent = True

    def lift(self, name: str) -> str:
        return name

    def combine(self, older: str, newer: str) -> str:
        return newer if len(newer) > len(older) else older

    def lower(self, partial: str) -> str:
        return partial


class Spread:
    """Sum and sum of squares: right in integers, with an inverse."""

    identity = (0, 0)
    commutative = True

    def lift(self, value: int) -> tuple[int, int]:
        return value, value * value

    def combine(self, older: tuple[int, int], newer: tuple[int, int]) -> tuple[int, int]:
        return older[0] + newer[0], older[1] + newer[1]

    def deduct(self, total: tuple[int, int], oldest: tuple[int, int]) -> tuple[int, int]:
        return total[0] - oldest[0], total[1] - oldest[1]

    def lower(self, partial: tuple[int, int]) -> int:
        return partial[1] - partial[0]


class Wrong(Longest):
    commutative = True


class NoLower:
    def lift(self, value: int) -> int:
        return value

    combine = max


HERE = __name__


@pytest.mark.parametrize("use", ["Longest", "Spread"])
def test_partials_of_a_users_aggregate_combine_though_their_rows_interleave(use):
    aggregate = mergeable(load_own(f"{HERE}:{use}"))
    assert aggregate.positioned or aggregate.commutative
    columns = {"Longest": st.one_of(st.none(), st.text("ab", max_size=3)), "Spread": st.integers(-9, 9)}
    verify(aggregate, st.tuples(columns[use]), examples=40)


def test_a_late_event_goes_between_those_that_were_combined():
    aggregate = mergeable(load_own(f"{HERE}:Longest"))
    early, later, last = (aggregate.lift((name,), (at, ())) for at, name in [(1, "ab"), (2, "cd"), (3, "ef")])
    without = aggregate.combine(later, last)
    assert (aggregate.lower(without), aggregate.lower(aggregate.combine(without, early))) == ("cd", "ab")
    assert aggregate.lower(aggregate.fold([without, aggregate.identity, early])) == "ab"
    tied = aggregate.lift(("gh",), (2, ()))  # of events of one position the older operand's come first
    assert [aggregate.lower(aggregate.combine(*operands)) for operands in ((later, tied), (tied, later))] == ["cd", "gh"]


def test_a_users_aggregate_gets_the_same_checks():
    verify(load_own(f"{HERE}:Longest"), st.tuples(st.one_of(st.none(), st.text("ab", max_size=3))), examples=40)
    verify(
        load_own(f"{HERE}:Spread"),
        st.tuples(st.integers(-9, 9)),
        lambda rows: sum(v * v - v for (v,) in rows) if rows else None,
        examples=40,
    )
    with pytest.raises(LawError, match="law of commutativity") as caught:
        verify(load_own(f"{HERE}:Wrong"), st.tuples(st.text("ab", max_size=3)))
    assert [len(operand) for operand in caught.value.operands] == [1, 1]


def test_a_users_aggregate_is_built_from_a_spec():
    aggregate = aggregate_for(parse_aggregate({"use": f"{HERE}:Spread", "args": ["x"]}), ["int64"])
    assert aggregate.deduct is not None
    assert aggregate.lower(aggregate.of([(3,), (None,), (4,)])) == 18
    assert aggregate.lower(aggregate.identity) is None


@pytest.mark.parametrize(
    ("use", "args", "message"),
    [
        ("nowhere_at_all:X", ["x"], "module 'nowhere_at_all' cannot be imported"),
        (f"{HERE}:Missing", ["x"], "has no 'Missing'"),
        (f"{HERE}:NoLower", ["x"], r"has no function lower\(\)"),
        (f"{HERE}:Longest", ["x", "y"], r"lift\(name: .*cannot take the 2 columns"),
    ],
)
def test_a_users_aggregate_that_cannot_be_used_is_refused_in_plain_words(use, args, message):
    with pytest.raises(SpecError, match=message):
        aggregate_for(AggregateSpec(function="use", use=use, columns=tuple(args)), ["any"] * len(args))
