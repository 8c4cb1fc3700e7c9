"""Batches of windows on grids over events that last, through a state in memory, against the oracle, with late rows. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, compare, feed, in_minutes
from tests.jobs.drawn import COUNTS, CUT, GRIDS, MINUTE, OBJECTS, OTHERS, SESSIONS, SOURCE, at, cuts, inputs, pipeline_of, some, streams
from tests.jobs.test_calendar_batches import over_years
from tests.jobs.test_revised_batches import compare_vouched
from tests.strategies import ARRIVALS, shared
from tests.windowing.calendar_cases import CALENDARS, DAY, HOUR
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.input import Emission
from windowmill.windowing.columnar.added_columns import CLOSED, LEVEL, REACHING, SLICE
from windowmill.windowing.errors import LimitExceededError

#: How long events last: points, events of no length, shorter and longer than a hop, and than a window.
LENGTHS = st.sampled_from([0, 0, 1, MINUTE, 3 * MINUTE, 11 * MINUTE, 55 * MINUTE, 300 * MINUTE])
AGGREGATES: dict[str, Any] = OBJECTS | {"level": {"time_weighted_mean": "f"}, "large_level": {"time_weighted_mean": "i", "where": "i > 3"}}
LASTING = streams(lasting=LENGTHS)
#: Which windows show empty ones, by their place.
FILLED = st.sets(st.integers(0, 2))
EMITS = ("final", "revise")
HOURS = {"hours": {"type": "hopping", "size": "60 minutes", "hop": "10 minutes"}}


def lasting(windows: Any, aggregates: dict[str, Any] = COUNTS, emit: str = "final", filled: Any = (), **time: Any) -> Any:
    """A pipeline over events that last; the windows of the names or places ``filled`` show empty ones."""
    names = [name for place, name in enumerate(windows) if {name, place} & set(filled)]
    return pipeline_of(windows, aggregates, emit, names, end="e", **time)


@pytest.mark.covers("I7")
@given(windows=some(GRIDS, 3), filled=FILLED, given=inputs(LASTING, cuts(25, 12), aggregates=[COUNTS, OBJECTS, AGGREGATES], emits=EMITS))
def test_windows_over_events_that_last_are_those_of_the_oracle(windows, filled, given):
    check(lasting(windows, filled=filled, **given[0]), **given[1])


@pytest.mark.covers("I7")
@given(windows=some([*SESSIONS, *CUT, *OTHERS], 2), given=inputs(LASTING, cuts(25, 12), aggregates=[OBJECTS], emits=EMITS))
def test_live_rows_of_events_that_last_are_those_of_the_oracle(tmp_path_factory, windows, given):
    spec, fed = given
    run = Run(lasting(windows, **spec), str(tmp_path_factory.mktemp("lasting") / "state"))
    run.source = SOURCE.append(pa.field("e", pa.timestamp("us", "UTC")))
    compare(feed(run, fed["rows"], fed["cuts"], fed["arrival"]), fed["rows"])


@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing_shifted"])
@shared(len(CALENDARS) + 1, 12)
@given(
    filled=FILLED,
    given=inputs(
        over_years(st.sampled_from([0, HOUR, 7 * HOUR, 26 * HOUR, 9 * DAY, 70 * DAY])),
        cuts(15, 5),
        ("0 seconds", "3 hours"),
        ("0 seconds", "5 hours", "2 days", "50 days"),
        aggregates=[AGGREGATES],
        emits=EMITS,
    ),
)
def test_windows_of_a_calendar_hold_events_that_reach_into_them(window, filled, given):
    check(lasting([window], filled=filled, **given[0]), **given[1])


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "shifted", "long", "dense"], 2),
    filled=FILLED,
    given=inputs(LASTING, cuts(25, 24), aggregates=[OBJECTS, AGGREGATES], emits=EMITS),
)
def test_nodes_hold_the_events_that_begin_in_their_slices(windows, filled, given):
    run = check(lasting(windows, filled=filled, **given[0]), **given[1], nodes=True)
    assert LEVEL in run.state.column_names or windows == ["slots"]


def stored(run: Run) -> list[tuple[str, int, int]]:
    """Key, start of the slice in minutes and family of each row of the state."""
    return sorted((row["k"], row[SLICE] // MINUTE, row[REACHING]) for row in run.state.to_pylist())


@pytest.mark.parametrize(
    ("window", "events", "time", "rows"),
    [
        ("slots", [at(5, 32), at(6, 10), at(7, 7), at(20, 20)], {"disorder": "1 hour"}, [(0, 0), (10, 1), (20, 0), (20, 1), (30, 1)]),
        ("gappy", [at(5, 32)], {"disorder": "1 hour"}, [(3, 0), (20, 1)]),
        ("steps", [at(5, 32)], {}, [(4, 0), (20, 1)]),
    ],
)
def test_an_event_is_stored_where_it_begins_and_where_windows_begin_while_it_lasts(window, events, time, rows):
    run = Run(lasting([window], **time))
    run.step(events)
    assert stored(run) == [("a", *row) for row in rows]


def test_only_aggregates_that_weigh_by_time_have_partials_in_the_slices_that_an_event_crosses():
    run = Run(lasting(HOURS | {"days": GRIDS["days"]}, {"n": {"count": "*"}, "level": {"time_weighted_mean": "i"}}))
    run.step([at(5, 32, i=2)])
    rows = [(row[SLICE] // MINUTE, row[REACHING], row["rows"], row["area_i__sum"], row["lasting_i__sum"]) for row in run.state.to_pylist()]
    reaching = [(minute, 1, 1, 0.0, 0.0) for minute in (10, 20, 30)]
    parts = [(0, 0, 1, 10.0 * MINUTE, 5.0 * MINUTE), *((minute, 0, 0, 20.0 * MINUTE, 10.0 * MINUTE) for minute in (10, 20))]
    assert sorted(rows) == sorted([*parts, (30, 0, 0, 4.0 * MINUTE, 2.0 * MINUTE), *reaching])


def test_partials_ahead_are_kept_until_their_windows_have_been_shown():
    run = check(lasting(["slots"]), [at(5, 95), at(40, 41, k="b"), at(70, 71, k="b"), at(150, 151, k="b")], [1, 2, 3])
    assert in_minutes(run, "n") == [(minute, 1) for minute in range(0, 100, 10)]
    assert stored(run) == [("b", 150, 0)]


def test_a_batch_reads_the_events_that_reach_into_its_windows_and_no_others():
    run = Run(lasting(HOURS))
    run.step([at(minute, 300) for minute in range(0, 60, 10)])
    run.step([at(60, 60)], 6)
    assert run.read == 6, "the slices of the first hour, at whose start no event lasts"
    run.step([at(70, 70)], 7)
    assert run.read == 6 + 1, "the slices of one window, and what reaches into it"


@pytest.mark.parametrize(
    ("windows", "time", "rows", "cut", "counts", "late"),
    [
        (
            *(["slots"], {"lateness": "5 minutes"}, [at(40, 40), at(5, 32), at(5, 20), at(12, 55), at(60, 60)]),
            *([1, 2, 3, 4], [(30, 2), (40, 2), (50, 1), (60, 1)], [2]),
        ),
        # In a gap; of those that are not, one lasts into a closed window.
        (["gappy"], {}, [at(65, 65), at(5, 9), at(5, 21), at(5, 61)], [1], [], [2, 3]),
    ],
    ids=["overlaps open windows", "in a gap"],
)
def test_a_late_event_counts_in_the_windows_that_it_overlaps_and_that_are_open(windows, time, rows, cut, counts, late):
    run = check(lasting(windows, **time), rows, cut, final=True)
    assert run.refused == [(number, "too_late") for number in late]
    assert in_minutes(run, "n") == counts


@pytest.mark.parametrize("cut", [[], [2], [1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("aggregates", [COUNTS, AGGREGATES], ids=["counts", "all"])
def test_a_late_event_revises_each_window_that_it_overlaps(aggregates, cut):
    rows = [at(5, 12), at(35, 35, k="b"), at(5, 42), at(12, 14), at(55, 55, k="b")]
    run = check(lasting(["slots"], aggregates, "revise", lateness="1 hour"), rows, cut)
    versions = [(0, 0, 1), (0, 1, 2), (10, 0, 1), (10, 1, 2), (10, 2, 3), (20, 0, 1), (30, 0, 1), (40, 0, 1)]
    assert in_minutes(run, "revision", "n") == versions


def test_a_late_event_is_late_for_the_windows_that_have_been_shown_alone():
    run = Run(lasting(["slots"], emit="revise", lateness="1 hour"))
    run.step([at(35, 35, k="b"), at(5, 52)])
    marks = [(row[SLICE] // MINUTE, row[CLOSED]) for row in run.state.to_pylist() if row["k"] == "a"]
    assert sorted(marks) == [(minute, 30 * MINUTE if minute <= 30 else None) for minute in range(0, 60, 10)]


@pytest.mark.parametrize("nodes", [False, True])
def test_a_batch_reads_the_events_that_reach_into_the_windows_that_its_late_rows_revise(nodes):
    pipeline = lasting(["long"], emit="revise", lateness="2 hours")
    run = check(pipeline, [at(1, 200), at(90, 90, k="b"), at(30, 31)], [1, 2], nodes=nodes)
    assert [count for start, count in in_minutes(run, "n") if start == 3] == [1, 2]


@pytest.mark.parametrize("emit", EMITS)
def test_a_late_event_makes_its_key_known_from_where_it_begins(emit):
    run = check(lasting(["slots"], COUNTS, emit, ["slots"]), [at(25, 25, k="b"), at(5, 42), at(60, 60, k="b")], [1, 2])
    assert in_minutes(run, "n") == [(0, 0), (10, 0), (20, 1), (30, 1), (40, 1)]


def test_a_key_is_known_until_its_events_end():
    rows = [at(5, 42), at(60, 60, k="b"), at(71, 72)]
    run = check(lasting(HOURS, filled=["hours"], disorder="1 hour"), rows, [1, 2], final=True)
    counts = [*((10 * n, 1) for n in range(-5, 2)), *((10 * n, 2) for n in range(2, 5)), *((10 * n, 1) for n in range(5, 8))]
    assert in_minutes(run, "n") == counts
    rows = [at(5, 22), at(60, 60, k="b"), at(51, 52), at(90, 90, k="b")]
    run = check(lasting(["slots"], filled=["slots"], disorder="10 minutes"), rows, [1, 2, 3])
    assert in_minutes(run, "n") == [(0, 1), (10, 1), (20, 1), (30, 0), (40, 0), (50, 1)]


@pytest.mark.parametrize("cut", [[], [1], [1, 2]], ids=str)
def test_a_late_event_does_not_lie_in_the_span_that_was_known_before_it(cut):
    run = check(lasting(["slots"], COUNTS, "revise", ["slots"], lateness="1 hour"), [at(50, 50, k="b"), at(12, 32), at(13, 14)], cut)
    assert in_minutes(run, "revision", "n") == [(10, 0, 1), (10, 1, 2), (20, 0, 1), (30, 0, 1)]


@given(
    rows=LASTING,
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7, 20]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_events_late(rows, ends, lateness, arrival):
    compare_vouched(AGGREGATES, rows, ends, lateness, arrival, end="e")


@pytest.mark.parametrize(
    ("limit", "most", "emit", "rows", "emission"),
    [
        ("MAX_RESULTS", 32, "revise", [at(600, 600), at(5, 305)], Emission(600 * MINUTE, None, 0, 0)),
        ("MAX_PARTIALS", 5, "final", [at(5, 32), at(6, 6)], Emission(None, None, 0, 0)),
    ],
)
def test_a_batch_of_very_many_revisions_or_partials_is_for_spark(limit, most, emit, rows, emission, monkeypatch):
    run = Run(lasting(["slots"], emit=emit, lateness="10 hours"))
    monkeypatch.setattr(limits, limit, most)
    run.load(rows, emission)
    monkeypatch.setattr(limits, limit, most - 1)
    with pytest.raises(limits.TooLargeError):
        run.load(rows, emission)


@pytest.mark.parametrize("aggregates", [COUNTS, AGGREGATES], ids=["counts", "all"])
def test_events_with_many_partials_are_lifted_in_pieces(monkeypatch, aggregates):
    monkeypatch.setattr("windowmill.windowing.columnar.slices.CHUNK_PARTIALS", 7)
    rows = [at(minute, minute + 13 * (minute % 5), k="ab"[minute % 2], s="xyz"[minute % 3]) for minute in range(60, 0, -1)]
    check(lasting(HOURS | {"slots": GRIDS["slots"]}, aggregates, lateness="2 hours", tie_break=["s"]), rows, [31], final=True)


def test_an_event_in_too_many_windows_is_refused():
    run = Run(lasting({"seconds": {"type": "tumbling", "size": "1 second"}}))
    run.step([at(1, 2)])
    with pytest.raises(LimitExceededError, match=r"window seconds: an event that lasts 60,060,000,000,000 ticks would be in 60,0\d+"):
        run.step([at(1, 1_001_001)], 1)


def test_days_that_a_zone_skips_hold_nothing_twice():
    skipped = 1_325_239_200_000_000 - 2 * DAY
    rows = [at(0, t=skipped + n * 7 * HOUR, e=skipped + n * 7 * HOUR + 3 * DAY) for n in range(12)]
    check(lasting(["apia_pairs"], AGGREGATES, tie_break=["x"]), rows, [4, 9], final=True)
