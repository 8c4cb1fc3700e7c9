"""Batches of windows that evict by a delta over positions: the same to the bit in any cut, and few nodes read. No Spark."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, feed, place
from tests.jobs.drawn import Row, at, pipeline_of
from tests.jobs.test_position_batches import in_pieces
from tests.strategies import ARRIVALS, shared
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.output import FLATFAT
from windowmill.windowing.columnar.added_columns import BATCH, HEAD, KIND, LIVE, NODE_LEVEL, POSITION
from windowmill.windowing.columnar.position_reads import STRIDE
from windowmill.windowing.columnar.positions import NODE, WAITING
from windowmill.windowing.errors import StateCorruptError

pytestmark = pytest.mark.thorough
AGGREGATES = {
    "n": {"count": "*"},
    "total": {"sum": "f"},
    "spread": {"stddev_samp": "f"},
    "closing": {"last": "f"},
    "greatest": {"max": "i"},
    "p90": {"quantile": {"column": "f", "q": 0.9}},
}


def by(column: str, delta: float, trigger: dict[str, Any], **more: str) -> dict[str, Any]:
    return {"type": "sliding", "evict": {"delta": {"column": column, "by": delta}}, "trigger": trigger, **more}


WINDOWS = {
    "float": by("f", 2.5, {"count": 7}),
    "whole": by("i", 3, {"time": "40 minutes"}),
    "delta": by("f", 2.5, {"delta": {"column": "i", "by": 2}}),
    "forgets": by("i", 3, {"count": 5}, idle_after="90 minutes"),
}
BESIDE: list[dict[str, Any]] = [
    {"type": "sliding", "evict": {"count": 30}, "trigger": {"count": 11}},
    {"type": "tumbling", "evict": {"delta": {"column": "i", "by": 3}}},
]


def deltas(*windows: dict[str, Any], **time: Any) -> Any:
    return pipeline_of({f"w{number}": window for number, window in enumerate(windows)}, AGGREGATES, **time)


def rows_of(seed: int, n: int, trend: float) -> list[Row]:
    """Tuples whose values vary around a ``trend``; of some they are null, NaN or infinite, and some come late."""
    drawn, rows = random.Random(seed), []
    for number in range(n):
        minute = number + (200 if number > n // 2 else 0) - (drawn.randrange(12) if drawn.random() < 0.3 else 0)
        value: float | None = drawn.gauss(trend * number, 1.5)
        whole: int | None = math.floor(value)
        if drawn.random() < 0.1:
            value = drawn.choice([None, math.nan, -math.inf, 0.0, -0.0])
            whole = drawn.choice([None, -(2**62), whole])
        rows.append(at(minute, k=drawn.choice("aaab"), i=whole, f=value, s=drawn.choice("xy")))
    return rows


@pytest.mark.parametrize("window", WINDOWS)
@shared(4, 6)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 399), max_size=12),
    arrival=ARRIVALS,
    trend=st.sampled_from([0.0, 0.02, -0.02]),
    final=st.booleans(),
)
def test_any_cut_gives_the_same_bits_and_the_rows_of_the_oracle(window, seed, cuts, arrival, trend, final):
    """The oracle takes quadratic time: it is asked about the first rows."""
    pipeline, rows = deltas(WINDOWS[window], *BESIDE, disorder="5 minutes"), rows_of(seed, 400, trend)
    whole, parts = (feed(Run(pipeline), rows, cut, arrival) for cut in ([], cuts))
    assert repr(sorted(parts.rows, key=place)) == repr(sorted(whole.rows, key=place))
    assert sorted(parts.refused) == sorted(whole.refused)
    check(pipeline, rows[:80], [cut // 5 for cut in cuts], final=final, arrival=arrival)


def test_windows_of_one_delta_share_their_nodes():
    own = by("f", 2.5, {"count": 7})
    run = Run(deltas(own, own | {"trigger": {"delta": {"column": "i", "by": 1}}}, own | {"idle_after": "50 minutes"}))
    [part] = run.parts(Input(**run.base))
    assert sorted(map(len, part.reading.state.sequences.values())) == [1, 2]  # type: ignore[attr-defined]


def fills(n: int, live: int, begun: int = 0) -> Run:
    """A run in batches of ten tuples after ``begun``, of one key: about ``live`` are in the window at last; they leave from anywhere."""
    drawn = random.Random(1)
    rows = [at(minute, f=minute + drawn.random() * live / 2) for minute in range(n)]
    return in_pieces(deltas(by("f", float(live), {"count": 10})), rows, 10, begun)


def test_a_batch_reads_few_nodes():
    run = fills(6_000, live=2_000, begun=5_000)
    levels = 3
    # Each of ten tuples that leave needs the parts of a node of each level; some parts more make up the rest.
    assert 10 < run.kinds[FLATFAT] <= 10 * (1 << STRIDE) * levels
    assert 1_500 < pc.max(run.state.filter(pc.equal(run.state.column(KIND), "key")).column(LIVE)).as_py() < 2_500


@pytest.mark.parametrize("level", [0, STRIDE, 2 * STRIDE])
def test_a_node_that_is_gone_is_told(level):
    """The first node of this level that is live, whose older rows are superseded."""

    def without(rows: pa.Table) -> pa.Table:
        placed = rows.append_column("place", pa.array(np.arange(len(rows))))
        nodes = placed.filter(pc.and_(pc.equal(placed.column(KIND), NODE), pc.equal(placed.column(NODE_LEVEL), level))).sort_by(BATCH)
        live = {row[POSITION]: row[LIVE] for row in nodes.to_pylist()}
        head = pc.max(rows.column(HEAD)).as_py()
        first = min(position for position, held in live.items() if held and position + (1 << level) > head)
        return rows.take(np.setdiff1d(np.arange(len(rows)), np.array(nodes.filter(pc.equal(nodes.column(POSITION), first))["place"])))

    run = fills(600, live=300)
    run.change_state(without)
    with pytest.raises(StateCorruptError, match=r"nodes below .* are missing"):
        run.step([at(minute, f=900.0 + minute) for minute in range(600, 603)], 600)


def test_waiting_tuples_may_evict():
    """A tuple that waits has the greatest value when the next batch applies it."""
    rows = [at(minute, f=value) for minute, value in ((0, 0.0), (1, 1.0), (9, 9.0), (30, 2.0))]
    run = check(deltas(by("f", 2.5, {"count": 1}), disorder="5 minutes"), rows, range(1, 4))
    assert pc.sum(pc.equal(run.state.column(KIND), WAITING)).as_py()


@pytest.mark.parametrize("greatest", [2**53, 2**63 - 1])
@pytest.mark.parametrize("trigger", [{"count": 1}, {"delta": {"column": "i", "by": 2**53}}], ids=["count", "delta"])
@pytest.mark.parametrize("cuts", [[], [1], [1, 2, 3]], ids=str)
def test_integers_may_differ_by_more_than_an_integer_holds(greatest, trigger, cuts):
    rows = [at(minute, i=value) for minute, value in enumerate((-(2**63), greatest, greatest, -(2**63)))]
    run = check(deltas(by("i", 2**53, trigger)), rows, cuts, final=True)
    # A tuple evicts after a delta has fired, and before a count does.
    assert [row["n"] for row in run.rows] == ([1, 1, 2, 3] if "count" in trigger else [1])


@pytest.mark.parametrize(("column", "held"), [("i", 2), ("f", 1)])
def test_a_delta_may_exceed_all_differences(column, held):
    run = Run(deltas(by(column, 1e20, {"count": 1})))
    run.step([at(minute, i=value, f=float(value) * 1e3) for minute, value in enumerate((-(2**63), 2**63 - 1))])
    run.step(None)
    assert [row["n"] for row in run.rows] == [1, held]
