"""Windows that evict by a delta over positions: the same to the bit in any cut, and few nodes read. No Spark."""

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

from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival, shared
from tests.windowing.test_columnar import Row
from tests.windowing.test_positions import Run, compare, feed_in_batches, in_order
from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL
from windowmill.windowing.columnar.position_delta_nodes import STRIDE
from windowmill.windowing.columnar.position_nodes import POSITION
from windowmill.windowing.columnar.positions import HEAD, LIVE, NODE, WAITING
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.thorough
AGGREGATES = {
    "rows": {"count": "*"},
    "total": {"sum": "f"},
    "spread": {"stddev_samp": "f"},
    "closing": {"last": "f"},
    "greatest": {"max": "v"},
    "p90": {"quantile": {"column": "f", "q": 0.9}},
}
BY_FLOAT = {"type": "sliding", "evict": {"delta": {"column": "f", "by": 2.5}}, "trigger": {"count": 7}}
BY_WHOLE = {"type": "sliding", "evict": {"delta": {"column": "v", "by": 3}}, "trigger": {"time": 40}}
WITH_DELTA = {"type": "sliding", "evict": {"delta": {"column": "f", "by": 2.5}}, "trigger": {"delta": {"column": "v", "by": 2}}}
FORGETS = {"type": "sliding", "evict": {"delta": {"column": "v", "by": 3}}, "trigger": {"count": 5}, "idle_after": 90}
BESIDE = [
    {"type": "sliding", "evict": {"count": 30}, "trigger": {"count": 11}},
    {"type": "tumbling", "evict": {"delta": {"column": "v", "by": 3}}},
]


def spec_of(*windows: dict[str, Any], **options: Any) -> Pipeline:
    return parse_pipeline(
        {
            "pipeline": "p",
            "keys": ["k"],
            "time": {"column": "t", "unit": "none", "disorder": 5},
            "windows": [{"name": f"w{number}"} | window for number, window in enumerate(windows)],
            "aggregates": AGGREGATES,
        }
        | options
    )


def rows_of(seed: int, n: int, *, trend: float = 0.0, odd: float = 0.1) -> list[Row]:
    """Tuples whose values vary around a ``trend``; of some they are null, NaN or infinite, and some come late."""
    drawn = random.Random(seed)
    rows = []
    for number in range(n):
        time = number + (200 if number > n // 2 else 0) - (drawn.randrange(12) if drawn.random() < 0.3 else 0)
        value: float | None = drawn.gauss(trend * number, 1.5)
        whole: int | None = math.floor(value)
        if drawn.random() < odd:
            value = drawn.choice([None, math.nan, -math.inf, 0.0, -0.0])
            whole = drawn.choice([None, -(2**62), whole])
        rows.append(Row(drawn.choice("aaab"), time, time, whole, value, drawn.choice("xy"), True))
    return rows


def fed(spec: Pipeline, rows: list[Row], cuts: list[int], arrival: Arrival = ROW_BY_ROW) -> Run:
    run = Run(spec)
    feed_in_batches(run, rows, [cut % len(rows) for cut in cuts], arrival)
    return run


@pytest.mark.parametrize("window", [BY_FLOAT, BY_WHOLE, WITH_DELTA, FORGETS], ids=["float", "whole", "delta", "forgets"])
@shared(4, 6)
@given(
    seed=st.integers(0, 10_000),
    cuts=st.lists(st.integers(0, 1_000), max_size=12),
    arrival=ARRIVALS,
    trend=st.sampled_from([0.0, 0.02, -0.02]),
)
def test_any_cut_gives_the_same_bits_and_the_rows_of_one_run(
    window: dict[str, Any], seed: int, cuts: list[int], arrival: Arrival, trend: float
):
    time = {"column": "t", "unit": "none", "disorder": 5, "arrival": arrival.by}
    spec, rows = spec_of(window, *BESIDE, time=time), rows_of(seed, 400, trend=trend)
    whole, parts = (fed(spec, rows, where, arrival) for where in ([], cuts))
    assert repr(sorted(parts.rows(), key=in_order)) == repr(sorted(whole.rows(), key=in_order))
    assert sorted(parts.refused) == sorted(whole.refused)
    compare(parts, rows, final=False)
    parts.feed([], final=True)
    compare(parts, rows, final=True)


def test_windows_of_one_delta_share_their_nodes():
    run = Run(spec_of(BY_FLOAT, BY_FLOAT | {"trigger": {"delta": {"column": "v", "by": 1}}}, BY_FLOAT | {"idle_after": 50}))
    assert sorted(map(len, run.state.sequences.values())) == [1, 2]


def fills(n: int, *, live: int) -> tuple[Run, list[Row]]:
    """A run in batches of ten tuples, of one key, of which about ``live`` are in the window at last: they leave from anywhere."""
    window = {"type": "sliding", "evict": {"delta": {"column": "f", "by": float(live)}}, "trigger": {"count": 10}}
    spec = spec_of(window, time={"column": "t", "unit": "none"})
    drawn = random.Random(1)
    rows = [Row("a", time, time, 1, time + drawn.random() * live / 2, "x", True) for time in range(n)]
    run = Run(spec)
    for first in range(0, n, 10):
        run.feed(rows[first : first + 10])
    return run, rows


def test_a_batch_reads_few_nodes():
    run, rows = fills(6_000, live=2_000)
    levels = 3
    # Each of ten tuples that leave needs the parts of a node of each level; some parts more make up the rest.
    assert 10 < run.read <= 10 * (1 << STRIDE) * levels
    compare(run, rows, final=False)
    live = pc.max(run.stored.filter(pc.equal(run.stored.column(KIND), "key")).column(LIVE)).as_py()
    assert 1_500 < live < 2_500


def damaged() -> Run:
    run, _ = fills(600, live=300)
    return run


def rows_of_a_node(run: Run, level: int) -> Ints:
    """Places in the state of the rows of the first node of this level that is live, the oldest of which are superseded."""
    stored = run.stored.append_column("place", pa.array(np.arange(len(run.stored))))
    nodes = stored.filter(pc.and_(pc.equal(stored.column(KIND), NODE), pc.equal(stored.column(LEVEL), level))).sort_by(BATCH)
    live = {row[POSITION]: row[LIVE] for row in nodes.to_pylist()}
    head = pc.max(stored.column(HEAD)).as_py()
    first = min(position for position, held in live.items() if held and position + (1 << level) > head)
    return np.array(nodes.filter(pc.equal(nodes.column(POSITION), first)).column("place"))


@pytest.mark.parametrize("level", [0, STRIDE, 2 * STRIDE])
def test_a_node_that_is_gone_is_told(level: int):
    run = damaged()
    run.stored = run.stored.take(np.setdiff1d(np.arange(len(run.stored)), rows_of_a_node(run, level)))
    with pytest.raises(StateCorruptError, match=r"nodes below .* are missing"):
        run.feed([Row("a", time, time, 1, 900.0 + time, "x", True) for time in range(600, 603)])


def test_waiting_tuples_may_evict():
    """A tuple that waits has the greatest value when the next batch applies it."""
    run = Run(spec_of(BY_FLOAT | {"trigger": {"count": 1}}))
    rows = [Row("a", time, time, 1, value, "x", True) for time, value in ((0, 0.0), (1, 1.0), (9, 9.0), (30, 2.0))]
    for row in rows:
        run.feed([row])
    assert pc.sum(pc.equal(run.stored.column(KIND), WAITING)).as_py()
    compare(run, rows, final=False)


@pytest.mark.parametrize("greatest", [2**53, 2**63 - 1])
@pytest.mark.parametrize("trigger", [{"count": 1}, {"delta": {"column": "v", "by": 2**53}}], ids=["count", "delta"])
def test_integers_may_differ_by_more_than_an_integer_holds(greatest: int, trigger: dict[str, Any]):
    spec = spec_of(
        {"type": "sliding", "evict": {"delta": {"column": "v", "by": 2**53}}, "trigger": trigger}, time={"column": "t", "unit": "none"}
    )
    rows = [Row("a", time, time, value, 0.5, "x", True) for time, value in enumerate((-(2**63), greatest, greatest, -(2**63)))]
    for cuts in ([], [1], [1, 2, 3]):
        run = fed(spec, rows, cuts)
        run.feed([], final=True)
        # A tuple evicts after a delta has fired, and before a count does.
        assert [row["rows"] for row in run.rows()] == ([1, 1, 2, 3] if "count" in trigger else [1])


@pytest.mark.parametrize(("column", "held"), [("v", 2), ("f", 1)])
def test_a_delta_may_exceed_all_differences(column: str, held: int):
    window = {"type": "sliding", "evict": {"delta": {"column": column, "by": 1e20}}, "trigger": {"count": 1}}
    run = Run(spec_of(window, time={"column": "t", "unit": "none"}))
    run.feed([Row("a", time, time, value, float(value) * 1e3, "x", True) for time, value in enumerate((-(2**63), 2**63 - 1))])
    run.feed([], final=True)
    assert [row["rows"] for row in run.rows()] == [1, held]
