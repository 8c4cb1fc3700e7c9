"""Batches of windows with policies over positions, through a state in memory, against the oracle: late rows, cut anywhere. No Spark."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, place
from tests.jobs.drawn import MINUTE, VALUES, Row, at, cuts, ended, inputs, pipeline_of, some, streams
from tests.strategies import FLOATS, shared
from windowmill.jobs.layouts.output import FLATFAT
from windowmill.windowing.columnar.added_columns import KIND
from windowmill.windowing.columnar.positions import KEY_ROW, NODE, WAITING
from windowmill.windowing.errors import StateCorruptError

COUNT, TIME, DELTA = {"count": 3}, {"time": "4 minutes"}, {"delta": {"column": "i", "by": 2}}
TRIGGERS = {"count": {"count": 2}, "time": {"time": "3 minutes"}, "delta": {"delta": {"column": "f", "by": 1.5}}}
POLICIES: dict[str, dict[str, Any]] = {
    **{
        f"{evict}_{trigger}": {"type": "sliding", "evict": how, "trigger": when}
        for evict, how in (("count", COUNT), ("time", TIME), ("delta", DELTA))
        for trigger, when in TRIGGERS.items()
    },
    "swallow_count": {"type": "sliding", "evict": COUNT, "trigger": TRIGGERS["time"], "partial": False},
    "swallow_delta": {"type": "sliding", "evict": DELTA, "partial": False},
    "live_keys": {"type": "sliding", "evict": TIME, "trigger": TRIGGERS["time"], "empty": "emit", "idle_after": "20 minutes"},
    "idle_count": {"type": "sliding", "evict": COUNT, "trigger": {"time": "2 minutes"}, "idle_after": "3 minutes"},
    "idle_delta": {"type": "sliding", "evict": DELTA, "trigger": {"count": 1}, "idle_after": "2 minutes"},
    "flush_count": {"type": "tumbling", "evict": {"count": 3}},
    "flush_time": {"type": "tumbling", "evict": {"time": "5 minutes"}, "origin": "2024-01-01T00:01:00Z"},
    "flush_time_empty": {"type": "tumbling", "evict": {"time": "9 minutes"}, "empty": "emit", "idle_after": "30 minutes"},
    "flush_delta": {"type": "tumbling", "evict": {"delta": {"column": "i", "by": 1}}},
    "flush_mark": {"type": "tumbling", "evict": {"punctuation": "i > 3"}},
}
#: Numbers, picked values in order, and objects.
AGGREGATES: dict[str, dict[str, Any]] = {
    "n": {"count": "*"},
    "large": {"count": "*", "where": "i > 3"},
    "total": {"sum": "i"},
    "float_total": {"sum": "f"},
    "greatest": {"max": "s"},
    "opening": {"first": "s"},
    "closing": {"last": "f"},
    "top": {"top_k": {"column": "f", "k": 2}},
    "everything": {"collect": "f"},
}
TUPLES = streams(
    st.sampled_from([0, 0, MINUTE, MINUTE, 2 * MINUTE, 4 * MINUTE, 7 * MINUTE, 25 * MINUTE]),
    st.sampled_from([MINUTE, 2 * MINUTE, 6 * MINUTE]),
    24,
    values=VALUES | {"k": st.sampled_from(["a", "a", "b", None]), "f": st.one_of(st.none(), FLOATS)},
)
BOUNDS = ("0 seconds", "1 minute", "3 minutes", "5 minutes")
GIVEN = inputs(ended(TUPLES), cuts(25, 25), BOUNDS, BOUNDS, aggregates=[AGGREGATES])


def policies(*windows: str | dict[str, Any], aggregates: dict[str, Any] = AGGREGATES, **time: Any) -> Any:
    """A pipeline of these windows, by their names or as they are."""
    made = [POLICIES[window] if isinstance(window, str) else window for window in windows]
    return pipeline_of({f"w{number}": window for number, window in enumerate(made)}, aggregates, **time)


@pytest.mark.thorough
@pytest.mark.parametrize("window", POLICIES)
@shared(len(POLICIES), 6)
@given(given=GIVEN)
def test_batches_are_those_of_the_oracle(window, given):
    check(policies(window, **given[0]), **given[1])


@pytest.mark.thorough
@shared(1, 10)
@given(windows=some(POLICIES, 4, 2), given=GIVEN)
def test_windows_share_sequences(windows, given):
    check(policies(*windows, **given[0]), **given[1])


def in_pieces(pipeline: Any, rows: list[Row], size: int, begun: int = 0) -> Run:
    """A run over ``rows``, ``begun`` of them in one batch and the others in batches of this ``size``: to the bit as one batch of all."""
    whole, run = Run(pipeline), Run(pipeline)
    whole.step(rows)
    if begun:
        run.step(rows[:begun])
    for first in range(begun, len(rows), size):
        run.step(rows[first : first + size], first)
    assert repr(sorted(run.rows, key=place)) == repr(sorted(whole.rows, key=place)) != "[]"
    assert sorted(run.refused) == sorted(whole.refused)
    return run


def test_a_batch_reads_the_leaves_that_it_may_evict_and_few_nodes():
    window = POLICIES["count_count"] | {"evict": {"count": 300}}
    run = in_pieces(policies(window), [at(minute, i=minute % 7, f=minute / 3) for minute in range(1_000)], 10)
    # A tuple more than the batch's ten, because one has waited.
    assert 10 < run.kinds[FLATFAT] <= 11 + 2 * math.log2(300)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [1, 7, 40])
def test_results_are_the_same_to_the_bit_however_rows_are_cut(cut):
    window = POLICIES["count_count"] | {"evict": {"count": 37}}
    in_pieces(policies(window), [at(minute, i=minute % 7, f=1 / (minute + 1)) for minute in range(200)], cut)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", [7, 150])
def test_quantiles_and_moments_are_the_same_to_the_bit_however_rows_are_cut(cut):
    """Windows of more values than a quantile keeps, by count, time and punctuation, with late rows."""
    windows: list[dict[str, Any]] = [
        {"type": "sliding", "evict": {"count": 700}, "trigger": {"count": 30}},
        {"type": "sliding", "evict": {"time": "600 minutes"}, "trigger": {"time": "50 minutes"}},
        {"type": "tumbling", "evict": {"punctuation": "i > 3"}},
    ]
    functions = {"p90": {"quantile": {"column": "f", "q": 0.9}}, "total": {"sum": "f"}, "spread": {"stddev_samp": "f"}}
    minutes = [minute - minute * 7 % 11 for minute in range(1_500)]
    rows = [at(m, k="ab"[n % 5 == 0], i=5 if n % 400 == 0 else 1, f=1 / (n * 7 % 1_499 + 1)) for n, m in enumerate(minutes)]
    spec = policies(*windows, aggregates=functions | {"skew": {"skewness": "f"}}, disorder="5 minutes")
    run = in_pieces(spec, rows, cut)
    assert {row["window"] for row in run.rows} == {"w0", "w1", "w2"}
    assert run.refused


def test_a_key_that_is_due_in_one_sequence_keeps_its_state_in_the_others():
    rows = [
        at(minute, k=key, i=minute) for key, minute in (("a", 0), ("a", 1), ("b", 3), ("b", 9), ("b", 20), ("a", 21), ("a", 22), ("b", 30))
    ]
    check(policies("count_count", "time_time"), rows, range(1, len(rows)))


def gone_node(rows: pa.Table) -> pa.Table:
    gone = pc.and_(pc.equal(rows.column("_node_level"), 2), pc.equal(rows.column("_position"), 0))
    return rows.filter(pc.invert(pc.fill_null(gone, False)))


def later(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("_time"), "_time", pc.add(rows.column("_time"), 1))


def without(kind: int, lost: slice, rows: pa.Table) -> pa.Table:
    places = np.flatnonzero(pc.equal(rows.column(KIND), kind).to_numpy())
    return rows.take(np.setdiff1d(np.arange(len(rows)), places[lost]))


def doubled(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.filter(pc.equal(rows.column(KIND), WAITING))])


#: A window over time, whose next batch needs a node over the first tuples; and one that counts.
HELD, COUNTED = (["flush_time"], [11, 11, 12, 12, 13], [30]), (["count_count", "time_time"], range(20), range(20, 24))


@pytest.mark.parametrize(
    ("windows", "begun", "then", "damage", "told"),
    [
        pytest.param(*HELD, gone_node, "nodes of windows that are still open are missing", id="node"),
        pytest.param(*HELD, later, "differ from what was written", id="row"),
        *(
            pytest.param(*COUNTED, partial(without, kind, lost), "missing", id=f"{which} of kind {kind}")
            for kind in (KEY_ROW, WAITING, NODE)
            for which, lost in (("all", slice(None)), ("first", slice(0, 1)))
        ),
        pytest.param(["count_count"], range(20), [20], doubled, "or duplicated", id="twice"),
    ],
)
def test_damaged_state_is_refused(windows, begun, then, damage, told):
    run = Run(policies(*windows))
    run.step([at(minute, i=minute) for minute in begun])
    run.change_state(damage)
    with pytest.raises(StateCorruptError, match=told):
        run.step([at(minute, i=minute) for minute in then], len(begun))
