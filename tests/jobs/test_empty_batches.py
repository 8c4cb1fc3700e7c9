"""Batches of windows on grids with ``empty: emit`` through a state in memory, against the oracle, with late rows. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, in_minutes, shown
from tests.jobs.drawn import COUNTS, GRIDS, MINUTE, OBJECTS, at, cuts, inputs, pipeline_of, some, streams
from tests.strategies import Arrival
from windowmill.jobs.layouts.input import Emission
from windowmill.jobs.layouts.limits import TooLargeError
from windowmill.windowing.columnar.added_columns import LEVEL, SLICE
from windowmill.windowing.columnar.known_spans import last_of, span_columns
from windowmill.windowing.errors import LimitExceededError, StateCorruptError
from windowmill.windowing.grids import Grids

WINDOWS = [*GRIDS, "day", "apia_days", "month_daily", "growing_shifted", "growing_apia", "gaps"]
#: Rows of keys that are idle for a long time, some of them late; some time, or a day before the one that Apia skips.
SPARSE = streams(
    st.sampled_from([0, 1, MINUTE, 3 * MINUTE, 9 * MINUTE, 40 * MINUTE, 5_000 * MINUTE]),
    st.sampled_from([12 * MINUTE, 50 * MINUTE, 3_000 * MINUTE, 4 * MINUTE, 1]),
    20,
    st.sampled_from([1_000_000_000_000_000, 1_325_160_000_000_000]),
)
LATENESS = ("0 seconds", "4 minutes", "30 minutes", "2 days")


def slots(emit: str = "final", **time: str) -> Any:
    return pipeline_of(["slots"], COUNTS, emit, ["slots"], **time)


@pytest.mark.covers("I7")
@given(
    windows=some(WINDOWS, 3),
    skipping=st.sets(st.integers(1, 2)),
    given=inputs(SPARSE, cuts(20, 10), ("0 seconds", "2 minutes", "1 day"), LATENESS, emits=("final", "revise")),
)
def test_empty_windows_are_those_of_the_oracle(windows, skipping, given):
    filled = [name for index, name in enumerate(windows) if index not in skipping]
    check(pipeline_of(windows, filled=filled, **given[0]), **given[1])


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "long", "dense"], 2),
    given=inputs(streams(), cuts(25, 24), ["0 seconds"], LATENESS, aggregates=[OBJECTS]),
)
def test_empty_windows_lie_among_long_ones_made_of_nodes(windows, given):
    run = check(pipeline_of(windows, filled=windows, **given[0]), **given[1], nodes=True)
    assert LEVEL in run.state.column_names or windows == ["slots"]


def test_a_last_batch_that_stores_no_nodes_reads_nodes_that_start_where_a_window_counts_no_row():
    """The row of b came too late for its window of *slots*; the node that holds it begins before all windows of *rolling* do."""
    late = [(990, "a"), (1_050, "a"), (1_110, "a"), (1_170, "b")]
    rows = [at(0, t=10**15), *(at(0, t=10**15 - 1_650_000_000 + second * 10**6, k=key) for second, key in late)]
    pipeline = pipeline_of(["slots", "rolling"], filled=["slots", "rolling"], lateness="0 seconds")
    check(pipeline, rows, arrival=Arrival((4,)), final=True, nodes=True)


def test_an_idle_key_gets_its_empty_windows_with_its_next_event():
    rows = [at(1), *(at(minute, k="b") for minute in (11, 25, 300)), at(31), at(302, k="b"), at(325, k="b"), at(401, k="b")]
    run = check(slots(lateness="5 hours"), rows, range(1, 9))
    assert in_minutes(run, "n") == [(0, 1), (10, 0), (20, 0), (30, 1)]
    run = check(slots(), [at(1), at(5_000, k="b"), at(5_001), at(5_050, k="b")], [1, 2, 3])
    assert in_minutes(run, "n") == [(0, 1), *((10 * n, 0) for n in range(1, 500)), (5_000, 1)]
    assert sum(found["whole"] or 0 for found in run.rows) == 3
    assert {found["whole"] for found in run.rows if found["n"] == 0} == {None}


def test_a_late_row_makes_a_key_known_earlier():
    window = {"rolling": {"type": "hopping", "size": "30 minutes", "hop": "10 minutes", "empty": "emit"}}
    run = check(pipeline_of(window, COUNTS, lateness="10 minutes"), [at(95, k="b"), at(75), at(62), at(130, k="b")], [1, 2, 3])
    assert in_minutes(run, "n") == [(40, 0), (50, 0), (60, 2), (70, 1)]


@pytest.mark.parametrize("cut", [[], [1], [2], [3], [1, 2, 3]], ids=str)
@pytest.mark.parametrize(
    ("rows", "versions"),
    [([at(1), at(31), at(12), at(13)], [(10, 0, 0), (10, 1, 1), (10, 2, 2)]), ([at(1), at(31, k="b"), at(12), at(33)], [(10, 0, 1)])],
    ids=["known", "unknown"],
)
def test_a_window_that_was_shown_empty_is_revised(rows, versions, cut):
    run = check(slots("revise", lateness="1 hour"), rows, cut)
    assert [version for version in in_minutes(run, "revision", "n") if version[0] == 10] == versions


def test_late_rows_of_one_batch_are_stored_with_the_span_before_the_first_of_them():
    run = check(slots("revise", lateness="2 hours"), [at(61, k="b"), at(31), at(12), at(5), at(13), at(14)], [5])
    versions = [version for version in in_minutes(run, "revision", "n") if version[0] == 10]
    assert versions == [(10, 0, 1), (10, 1, 2), (10, 2, 3)], "when the first came nothing lay before the window"


def spans(run: Run) -> list[dict[str, Any]]:
    return run.state.filter(pc.is_null(run.state[SLICE])).to_pylist()


def test_a_batch_stores_a_span_for_each_key_that_grew_and_reads_those_that_it_needs():
    run = Run(slots())
    run.step([at(1), at(2, k="b"), at(3, k="c")])
    assert [(found["k"], found["_slots__first"], found["_slots__last"]) for found in spans(run)] == [(key, 0, 0) for key in "abc"]
    run.step([at(4)], 3)
    assert len(spans(run)) == 3
    run.step([at(25)], 4)
    assert run.read == 3 + 4  # spans, and what four batches added to the windows that are complete
    run.step([at(26)], 5)
    assert run.read == 2  # the two rows of a's span
    run.step([at(15, k="d"), at(36)], 6)
    assert {found["k"] for found in spans(run)} == {"a", "b", "c"}, "a row that came too late makes no key known"


def test_spans_that_are_gone_are_damage():
    run = Run(slots())
    run.step([at(1), at(2, k="b")])
    run.change_state(lambda rows: rows.filter(pc.is_valid(rows[SLICE])))
    with pytest.raises(StateCorruptError, match="span rows are missing for some keys"):
        run.step([at(25)], 2)


def test_a_window_far_from_the_others_is_refused_before_the_work():
    window = {"seconds": {"type": "tumbling", "size": "1 second", "empty": "emit"}}
    run, rows = Run(pipeline_of(window, COUNTS)), [at(1_000_000, k="b"), at(1_000_001)]
    run.step([at(1)])
    last = rows[-1]["t"]
    with pytest.raises(TooLargeError, match="result rows at most"):
        run.load(rows, Emission(last, last, run.emitted or 0, last))
    run.base["is_limited"] = False
    with pytest.raises(LimitExceededError, match="window seconds: one key would have 60,0"):
        run.step(rows, 1)


def test_a_backfill_shows_the_empty_windows_of_its_range_alone():
    done = Run(slots()).backfill([at(1), at(22, k="b"), at(35), at(95)], 20 * MINUTE, 50 * MINUTE)
    assert done.state == []
    found = [(row["k"], row["window_start"] // MINUTE, row["n"]) for row in shown(done)]
    assert sorted(found) == [("a", 20, 0), ("a", 30, 1), ("a", 40, 0), ("b", 20, 1)]


def test_the_columns_of_spans_are_named_by_their_windows():
    grids = Grids.of(pipeline_of(["slots", "day"], COUNTS, filled=["day"]))
    assert (span_columns(grids.known), last_of("day")) == (["_day__first", "_day__last"], "_day__last")
