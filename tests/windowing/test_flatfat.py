"""FlatFAT and the Reactive Aggregator: the paper's walk-through, its cost table, and windows that lose tuples anywhere."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from tests.jobs.batches import Run
from tests.jobs.drawn import at
from tests.windowing.flatfat import FlatFat
from tests.windowing.kernel_algebra import made_of
from tests.windowing.reactive import JOINED, ReactiveAggregator, counted, update_combines
from tests.windowing.test_swag import swag
from windowmill.windowing.specfile import parse_pipeline

SIZES = [1, 2, 4, 8, 64, 256]


def text(value: object) -> tuple[str]:
    return (str(value),)


def full(capacity: int) -> tuple[FlatFat[tuple[str]], list[int]]:
    """A full tree whose tally starts at zero."""
    aggregate, tally = counted(JOINED)
    tree = FlatFat(aggregate.combine, [text(chr(97 + slot % 26)) for slot in range(capacity)])
    tally[0] = 0
    return tree, tally


def test_the_papers_walk_through():
    """Figure 5: a window of the latest four numbers in four slots; F and B are the paper's pointers, counted from 1 there."""
    window = ReactiveAggregator(JOINED, capacity=4)
    steps: list[tuple[Any, list[Any], int, int, str]] = [
        (4, [4, None, None, None], 0, 0, "4"),  #  F4B  ⊥   ⊥   ⊥
        (7, [4, 7, None, None], 0, 1, "47"),  #    F4  7B   ⊥   ⊥
        (3, [4, 7, 3, None], 0, 2, "473"),  #      F4   7  3B   ⊥
        (2, [4, 7, 3, 2], 0, 3, "4732"),  #        F4   7   3  2B
        ("4 leaves", [None, 7, 3, 2], 1, 3, "732"),  # ⊥  F7  3  2B
        (9, [9, 7, 3, 2], 1, 0, "7329"),  #        9B  F7   3   2
    ]
    for event, slots, front, back, joined in steps:
        if event == "4 leaves":
            window.evict()
        else:
            window.insert(text(event))
        assert window.slots() == [None if value is None else text(value) for value in slots]
        assert (window.front, window.back) == (front, back)
        assert window.query() == (joined,)
        window.check()
    assert window.inverted
    assert window.capacity == 4


@pytest.mark.parametrize("n", SIZES)
def test_new_costs_n_minus_1(n):
    aggregate, tally = counted(JOINED)
    FlatFat(aggregate.combine, [text("x")] * n).check()
    assert tally[0] == 2 * (n - 1)  # check walks the same nodes once more


@pytest.mark.parametrize("n", SIZES)
def test_update_of_m_costs_at_most_m_times_1_plus_log(n):
    for m in (m for m in (1, 2, 3, 5, 8, 16, 100, n) if m <= n):
        tree, tally = full(n)
        slots = random.Random(m).sample(range(n), m)
        tree.update({slot: text("new") for slot in slots})
        assert tally[0] <= m * (1 + math.ceil(math.log2(n / m)))
        touched = {(n + slot) >> level for slot in slots for level in range(1, n.bit_length())} - {0}
        assert tally[0] == len(touched)
        tree.check()


@pytest.mark.parametrize("n", SIZES)
def test_prefix_and_suffix_cost_at_most_log_n_and_aggregate_nothing(n):
    tree, tally = full(n)
    letters = "".join(chr(97 + slot % 26) for slot in range(n))
    for slot in range(n):
        for read, wanted in ((tree.prefix, letters[: slot + 1]), (tree.suffix, letters[slot:])):
            tally[0] = 0
            assert read(slot) == (wanted,)
            assert tally[0] <= math.log2(n)
    tally[0] = 0
    assert tree.aggregate() == (letters,)
    assert tally[0] == 0


@pytest.mark.parametrize("n", [16, 64, 1024])
def test_one_change_of_a_window_costs_log_n_and_reading_it_while_inverted_log_n_more(n):
    aggregate, tally = counted(JOINED)
    window = ReactiveAggregator(aggregate, capacity=n)
    spent = []
    for _ in range(4 * n):
        before = tally[0]
        if len(window) == n:
            window.evict()
        window.insert(text("x"))
        window.query()
        spent.append(tally[0] - before)
    log = math.log2(n)
    assert max(spent) <= 1 + log + 2 * log + 1
    assert sum(spent[2 * n :]) / (2 * n) <= 2.5 * log


def test_m_changes_between_two_triggers_walk_each_node_once():
    aggregate, tally = counted(JOINED)
    window = ReactiveAggregator(aggregate, capacity=256)
    for _ in range(256):
        window.insert(text("x"))
    window.query()
    for m in (1, 4, 16, 64, 256):
        tally[0] = 0
        for _ in range(m):
            window.evict()
            window.insert(text("y"))
        assert tally[0] == 0
        window.query()
        assert tally[0] <= update_combines(256, m) + 2 * 8 + 1


def test_capacity_doubles_and_halves_with_the_window_at_amortised_constant_cost():
    aggregate, tally = counted(JOINED)
    window = ReactiveAggregator(aggregate, capacity=4)
    for _ in range(1_000):
        window.insert(text("x"))
    assert window.capacity == 1_024
    assert tally[0] <= 2 * 1_024  # 4 + 8 + … + 512
    tally[0] = 0
    while len(window):
        window.evict()
        window.check() if len(window) % 97 == 0 else None
    assert window.capacity == 4
    assert window.query() == ("",)


def test_a_full_buffer_with_holes_is_compacted_and_one_without_doubled():
    window = ReactiveAggregator(JOINED, capacity=8)
    handles = [window.add(text(letter)) for letter in "abcdefgh"]
    window.remove(handles[2])
    window.remove(handles[4])
    window.add(text("i"))  # six of eight in use: 3/4
    assert window.capacity == 8
    assert window.query() == ("abdfghi",)
    window.check()
    window.add(text("j"))
    window.add(text("k"))
    assert window.capacity == 16
    assert window.query() == ("abdfghijk",)


@pytest.mark.parametrize("case", swag("flatfat_ring"))
def test_ring_cases(case):
    tree: FlatFat[tuple[str]] = FlatFat(JOINED.combine, [None] * case["spec"]["capacity"])
    results = []
    for item in case["input"]:
        if "update" in item:
            tree.update({slot: text(value) for slot, value in item["update"]})
            continue
        if "compact" in item:
            moves = tree.compact(item["front"])
        else:
            tree, moves = tree.resized(item["resize"], item["front"])
        results.append((tree.slots(), moves))
        tree.check()
    for (slots, moves), expected in zip(results, case["expected"], strict=True):
        assert slots == [None if value is None else text(value) for value in expected["leaves"]]
        # The source pads the first list with -1 to the new size.
        wanted = expected.get("index_changes", moves)
        assert moves == wanted[: len(moves)]
        assert set(wanted[len(moves) :]) <= {-1}


def test_arg_max_keeps_the_earliest_of_equals_in_an_inverted_buffer():
    aggregate = made_of({"arg_max": ["x", "y"]}, ["int64", "string"])
    window = ReactiveAggregator(aggregate, capacity=4)
    for time, (by, value) in enumerate([(1, "a"), (5, "b"), (2, "c"), (3, "d"), (5, "e")]):
        if len(window) == 4:
            window.evict()
        window.insert(aggregate.lift((by, value), (time, ())))
    assert window.inverted
    assert aggregate.lower(window.query()) == "b"


@pytest.mark.parametrize(
    "evict", [{"count": 5}, {"count": 16}, {"time": 9 * 60_000_000}, {"delta": {"column": "i", "by": 3}}], ids=["5", "16", "time", "delta"]
)
@pytest.mark.parametrize("rows", [4, 60])
def test_runs_over_positions_read_what_the_reactive_aggregator_reads(evict, rows):
    """At each tuple what leaves goes, the oldest or not, and the tuple enters."""
    draw = random.Random(17)
    stream = [at(minute, i=draw.randrange(12), s=f"{minute},") for minute in range(60)]
    window = {"name": "w", "type": "sliding", "evict": evict}
    run = Run(
        parse_pipeline(
            {
                "pipeline": "p",
                "source": {"path": "events"},
                "sink": {"path": "results"},
                "keys": ["k"],
                "time": {"column": "t", "unit": "none"},
            }
            | {"windows": [window], "aggregates": {"joined": {"concat": "s"}}}
        )
    )
    for first in range(0, len(stream), rows):
        run.step(stream[first : first + rows], first)
    oracle, held, wanted = ReactiveAggregator(JOINED, capacity=4), {}, []
    for row in stream:
        gone = {
            "count": lambda held=held: [*held][: max(0, len(held) + 1 - evict["count"])],
            "time": lambda held=held, row=row: [handle for handle, old in held.items() if row["t"] - old["t"] > evict["time"]],
            "delta": lambda held=held, row=row: [handle for handle, old in held.items() if row["i"] - old["i"] > evict["delta"]["by"]],
        }[next(iter(evict))]()
        for handle in gone:
            oracle.remove(handle)
            del held[handle]
        held[oracle.add((row["s"],))] = row
        wanted.append(oracle.query()[0])
    found = [row["joined"] for row in sorted(run.rows, key=lambda row: row["trigger"])]
    assert found == wanted[: len(found)]
    assert len(found) >= len(wanted) - 1
