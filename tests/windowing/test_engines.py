"""Every engine against recomputation, for every aggregate that its algebra admits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import HISTORIES, shared
from tests.windowing.aggregate_cases import CASES, EXAMPLES, Case
from windowmill.windowing import nodes
from windowmill.windowing.aggregates import aggregate_for
from windowmill.windowing.algebra import Aggregate, AlgebraError, Field, close, identical, outcome
from windowmill.windowing.catalogue import parse_aggregate
from windowmill.windowing.errors import InvariantError, StateError
from windowmill.windowing.textbook import ENGINES, Dyadic, Engine, EngineState, Epochs, admissible, build

#: Text joined in order: a swapped operand, a lost or doubled partial all show.
JOINED: Aggregate[tuple[str]] = Aggregate(
    "joined",
    kind="joined",
    fields=(Field("text", "string"),),
    identity=("",),
    lift=lambda args, at: (args[0],),
    combine=lambda a, b: (a[0] + b[0],),
    lower=lambda partial: partial[0],
    deduct=lambda total, oldest: (total[0][len(oldest[0]) :],),
    fixed_size=False,
)
SMALL = {"flatfat": {"capacity": 4}, "epochs": {"length": 5}}


def start(name: str, aggregate: Aggregate[Any]) -> Engine[Any]:
    """A small engine, so that short histories reach its seams."""
    return build(name, aggregate, **SMALL.get(name, {}))


def reload(engine: Engine[Any]) -> Engine[Any]:
    """The engine after its state has gone through a snapshot."""
    options = {"length": engine.length} if isinstance(engine, Epochs) else {}
    return type(engine).restore(engine.aggregate, engine.snapshot(), **options)


def counted(aggregate: Aggregate[Any]) -> tuple[Aggregate[Any], list[int]]:
    """The same aggregate, with a tally of its combines and deductions."""
    tally = [0]

    def counting(function: Any) -> Any:
        def call(a: Any, b: Any) -> Any:
            tally[0] += 1
            return function(a, b)

        return call

    copy = Aggregate(
        **{name: getattr(aggregate, name) for name in aggregate.__slots__}
        | {"combine": counting(aggregate.combine), "deduct": counting(aggregate.deduct) if aggregate.deduct else None}
    )
    return copy, tally


def counts(name: str, n: int, m: int) -> list[int]:
    """Combines of each window of ``n`` leaves that slides by ``m``, once all leaves have been turned over.

    As many windows as make whole turns of every engine, of its stacks or its ring.
    """
    aggregate, tally = counted(JOINED)
    engine = build(name, aggregate, **({"length": n} if name == "epochs" else {}))
    found, turned = [], math.ceil(n / m)
    for _ in range(n):
        engine.insert(("",))
    for window in range(turned + (384 if n < 512 else 2048)):
        tally[0] = 0
        for _ in range(m):
            engine.evict()
        for _ in range(m):
            engine.insert(("",))
        engine.query()
        if window >= turned:
            found.append(tally[0])
    return found


@pytest.mark.parametrize("name", ENGINES)
@shared(len(ENGINES), 25)
@given(history=HISTORIES)
def test_every_history_reads_as_the_window_in_order(name, history):
    engine, window, fed = start(name, JOINED), [], 0
    for step in history:
        if step > 0:
            letter = chr(97 + fed % 26)
            engine.insert((letter,))
            window.append(letter)
            fed += 1
        elif step < 0:
            engine.evict()
            window = window[1:]
        else:
            assert engine.query() == ("".join(window),)
            engine.check()
        assert len(engine) == len(window)
    assert engine.query() == ("".join(window),)
    engine.check()


@pytest.mark.parametrize("name", ENGINES)
@shared(len(ENGINES), 25)
@given(history=HISTORIES, data=st.data())
def test_a_restored_engine_goes_on_as_if_nothing_had_happened(name, history, data):
    """Bits included: float sums of the interrupted and the uninterrupted engine are identical at every query."""
    needs_exact = "invertible" in ENGINES[name].needs
    types = ("int64",) if needs_exact else ("float64",)
    aggregate = aggregate_for(parse_aggregate({"sum" if needs_exact else "var_samp": "x"}), types)
    whole, broken, fed = start(name, aggregate), start(name, aggregate), 0
    interruptions = data.draw(st.sets(st.integers(0, max(0, len(history) - 1)), max_size=6))
    for number, step in enumerate(history):
        if number in interruptions:
            broken = reload(broken)
            broken.check()
        for engine in (whole, broken):
            if step > 0:
                engine.insert(aggregate.lift((fed if needs_exact else 1e9 + fed * 0.1,), (fed, ())))
            elif step < 0:
                engine.evict()
        fed += step > 0
        assert identical(whole.query(), broken.query())


@pytest.mark.parametrize("case", CASES, ids=str)
@EXAMPLES
@given(data=st.data())
def test_all_admissible_engines_agree_with_recomputation(case: Case, data: st.DataObject):
    rows = data.draw(st.lists(case.rows, min_size=1, max_size=8))
    aggregate = case.aggregate
    engines = [start(name, aggregate) for name in admissible(aggregate)]
    for index in range(3 * len(rows)):
        partial = aggregate.lift(rows[index % len(rows)], (index // 2, ()))
        for engine in engines:
            engine.insert(partial)
            if index % 7 > 3 or len(engine) > 6:
                engine.evict()
                engine.evict()
        plain, *others = [(engine.name, outcome(aggregate, engine.query())) for engine in engines]
        for name, got in others:
            assert identical(got, plain[1]) if aggregate.exact else close(got, plain[1]), (name, index, got, plain)
    for engine in engines:
        engine.check()


@pytest.mark.parametrize("function", ["max", "var_samp", "sum", "arg_max", "count_distinct"])
def test_what_cannot_be_deducted_exactly_never_reaches_subtraction(function):
    columns: Any = ["x", "y"] if function == "arg_max" else "x"
    aggregate = aggregate_for(parse_aggregate({function: columns}), ["float64"] * (2 if function == "arg_max" else 1))
    assert "subtract" not in admissible(aggregate)
    with pytest.raises(AlgebraError, match=f"subtract needs an aggregate that is invertible; '{function}' is not"):
        build("subtract", aggregate)


@pytest.mark.parametrize("name", ENGINES)
def test_a_snapshot_is_another_engines_business(name):
    other = "recompute" if name != "recompute" else "daba"
    with pytest.raises(StateError, match=f"state of engine '{other}' given to '{name}'"):
        ENGINES[name].restore(JOINED, EngineState(other, ()))


@pytest.mark.parametrize("name", ["two_stacks", "daba", "epochs", "dyadic", "recompute", "subtract"])
def test_an_empty_slot_where_none_can_be_is_refused(name):
    engine = start(name, JOINED)
    engine.insert(("a",))
    stored = engine.snapshot()
    with pytest.raises(StateError, match="empty slots"):
        ENGINES[name].restore(JOINED, EngineState(name, (None, *stored.partials[1:]), stored.scalars))


@pytest.mark.parametrize("name", sorted(set(ENGINES) - {"recompute", "subtract"}))
def test_check_finds_a_damaged_aggregate(name):
    engine = start(name, JOINED)
    for letter in "abcdefgh":
        engine.insert((letter,))
    engine.query()
    for _ in range(2):
        engine.evict()
    engine.query()
    cells: Any = {
        "two_stacks": lambda: engine._front,
        "daba": lambda: engine._spans,
        "epochs": lambda: engine._epochs[-1].prefix,
        "flatfat": lambda: engine._tree._nodes,
        "dyadic": lambda: engine._nodes,
    }[name]()
    spot = {"two_stacks": 0, "daba": 3, "epochs": -1, "flatfat": 1, "dyadic": (1, 1)}[name]
    cells[spot] = (("c",), ("wrong",)) if name == "two_stacks" else ("wrong",)
    with pytest.raises(InvariantError, match=name):
        engine.check()


def costs(name: str, window: int, steps: int = 400, **options: int) -> list[int]:
    """Combines of each step that inserts, evicts and queries once the window is full."""
    aggregate, tally = counted(JOINED)
    engine = build(name, aggregate, **options)
    spent = []
    for step in range(steps):
        before = tally[0]
        if len(engine) == window:
            engine.evict()
        engine.insert(("x",))
        engine.query()
        if step > 2 * window:
            spent.append(tally[0] - before)
    return spent


def test_daba_never_does_more_than_a_constant():
    for window in (1, 2, 3, 16, 61):
        assert max(costs("daba", window)) <= 8


@pytest.mark.parametrize(("name", "amortised"), [("two_stacks", 3.0), ("subtract", 2.0)])
def test_amortised_constants(name, amortised):
    for window in (2, 16, 61):
        spent = costs(name, window)
        assert sum(spent) / len(spent) <= amortised


def test_epochs_cost_three_combines_a_window_of_their_length():
    for window in (2, 16, 61):
        spent = costs("epochs", window, length=window)
        assert sum(spent) / len(spent) <= 3.0


def test_recompute_costs_the_window():
    assert set(costs("recompute", 20)) == {19}


def test_dyadic_queries_read_at_most_two_nodes_a_level():
    for low in range(-9, 9):
        for high in range(low, 70):
            cover = nodes.cover(low, high)
            assert [low, *((index + 1) << level for level, index in cover)] == [*(index << level for level, index in cover), high]
            assert len(cover) <= max(1, 2 * (high - low).bit_length())
    spent = costs("dyadic", 64, steps=1_000)
    assert max(spent) <= 3 * 6 + 1
    assert sum(spent) / len(spent) <= 2 * 6


def test_epochs_combine_alike_wherever_a_run_started():
    """A run begun anywhere on the axis gives the bits of one that was there from the start, at every later window."""
    aggregate = aggregate_for(parse_aggregate({"var_samp": "x"}), ["float64"])
    slices = [aggregate.lift((1e6 + (index * 37 % 11) / 7,), (index, ())) for index in range(64)]

    def run(first: int) -> dict[int, Any]:
        engine, results = Epochs(aggregate, length=8, first=first), {}
        for index in range(first, 64):
            if index >= first + 8:
                engine.evict()
            engine.insert(slices[index])
            results[index] = engine.query() if index >= first + 7 else None
        return results

    whole = run(0)
    for first in (1, 3, 8, 21):
        assert all(identical(result, whole[index]) for index, result in run(first).items() if result is not None)


def swag(model: str) -> list[Any]:
    """Cases of the sliding-window-aggregators library of IBM; each names the file that it is taken from."""
    cases = json.loads((Path(__file__).parents[1] / "data" / "swag.json").read_text())
    found = [case for case in cases if case["spec"]["model"] == model]
    assert found
    return [pytest.param(case, id=case["id"]) for case in found]


def of_case(case: dict[str, Any]) -> tuple[Aggregate[Any], Any]:
    """The aggregate of a case over whole numbers, and what its source gives for an empty window."""
    [asked] = case["aggregations"]
    function = asked if isinstance(asked, str) else asked["fn"]
    name = {"list": "collect", "avg_int": "mean"}.get(function, function)
    empty = 0 if function == "avg_int" else None if isinstance(asked, str) else asked["empty"]
    return aggregate_for(parse_aggregate({name: "x"}), ["int64"]), empty


def answer(case: dict[str, Any], aggregate: Aggregate[Any], empty: Any, partial: Any) -> Any:
    value = aggregate.lower(partial)
    if value is None:
        return empty
    return int(value) if case["aggregations"] == ["avg_int"] else value


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("case", swag("fifo"))
def test_first_in_first_out_cases(case, name):
    aggregate, empty = of_case(case)
    if name not in admissible(aggregate):
        assert name == "subtract"
        return
    engine, answers = start(name, aggregate), []
    for number, item in enumerate(case["input"]):
        if "push" in item:
            engine.insert(aggregate.lift((item["push"],), (number, ())))
        for _ in range(item.get("pop", 0)):
            engine.evict()
        if "query" in item:
            answers.append({"value": answer(case, aggregate, empty, engine.query())})
    assert answers == case["expected"]


@pytest.mark.parametrize("case", swag("ordered"))
def test_cases_by_time_with_late_insertions_and_deletions(case):
    aggregate, empty = of_case(case)
    engine, answers = Dyadic(aggregate), []
    for item in case["input"]:
        if "insert" in item:
            time, value = item["insert"]
            engine.add(time, aggregate.lift((value,), (time, ())))
        elif "evict" in item:
            engine.drop(item["evict"])
        else:
            low, high = item.get("range", (-(2**62), 2**62))
            answers.append({"value": answer(case, aggregate, empty, engine.query_range(low, high + 1))})
        engine.check()
    assert answers == case["expected"]


@given(changes=st.lists(st.tuples(st.sampled_from(["put", "put", "put", "drop", "evict", "reload"]), st.integers(-40, 40)), max_size=40))
def test_dyadic_nodes_take_any_position_in_any_order(changes):
    engine, model = Dyadic(JOINED), {}
    for number, (change, position) in enumerate(changes):
        if change == "put" and (not model or position >= engine._start or number % 3 == 0):
            engine.put(position, (f"{number},",))
            model[position] = f"{number},"
        elif change == "drop":
            engine.drop(position)
            model.pop(position, None)
        elif change == "evict":
            engine.evict_before(position)
            model = {at: text for at, text in model.items() if at >= position}
        elif change == "reload":
            engine = reload(engine)
        engine.check()
        for low, high in ((-50, 50), (position, position + 13)):
            wanted = "".join(text for at, text in sorted(model.items()) if low <= at < high)
            assert engine.query_range(low, high) == (wanted,)
