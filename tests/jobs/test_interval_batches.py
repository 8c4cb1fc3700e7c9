"""Batches of windows on grids over events that last, through a state in memory, against the oracle, with late rows. No Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs import test_revised_batches as revised
from tests.jobs.collecting import LimitedInput
from tests.jobs.test_calendar_batches import CUTS, SOURCE, Files
from tests.jobs.test_calendar_batches import arrived as as_points
from tests.jobs.test_calendar_batches import streams as over_calendars
from tests.jobs.test_empty_batches import FilledRun
from tests.jobs.test_revised_batches import BOUNDS, GRIDS, LONG, MINUTE, OBJECTS, Run, some
from tests.strategies import ARRIVALS, Arrival, shared
from tests.windowing.calendar_cases import CALENDARS, DAY, HOUR, WINDOWS
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.slices import Slicing, load
from windowmill.windowing.columnar.added_columns import CLOSED, REACHING, SLICE, UNTIL_OF
from windowmill.windowing.errors import LimitExceededError
from windowmill.windowing.spec import Pipeline

Row = dict[str, Any]
#: How long events last: points, events of no length, shorter and longer than a hop, and than a window.
LENGTHS = st.sampled_from([0, 0, 1, MINUTE, 3 * MINUTE, 11 * MINUTE, 55 * MINUTE, 300 * MINUTE])
AGGREGATES: dict[str, Any] = OBJECTS | {"level": {"time_weighted_mean": "f"}, "large_level": {"time_weighted_mean": "i", "where": "i > 3"}}
COUNTS = {"n": {"count": "*"}, "whole": {"sum": "i"}}
#: How often windows are shown, and which of them show empty ones, by their place.
SHOWN = st.fixed_dictionaries({"emit": st.sampled_from(["final", "revise"]), "filled": st.sets(st.integers(0, 2))})


def how(shown: dict[str, Any], windows: list[str]) -> dict[str, Any]:
    """The arguments of :func:`pipeline_of` that one of ``SHOWN`` gives for these windows."""
    return shown | {"filled": [name for place, name in enumerate(windows) if place in shown["filled"]]}


def lasting(rows: st.SearchStrategy[list[Row]], lengths: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    """``rows`` that last."""
    return rows.flatmap(
        lambda points: st.lists(lengths, min_size=len(points), max_size=len(points)).map(
            lambda lasts: [row | {"e": row["t"] + last} for row, last in zip(points, lasts, strict=True)]
        )
    )


def pipeline_of(
    windows: dict[str, dict[str, Any]], aggregates: dict[str, Any], emit: str = "final", filled: Collection[str] = (), **time: Any
) -> Pipeline:
    """A pipeline over events that last; the windows of the names ``filled`` show empty ones."""
    named = [{"name": name, **window, "empty": "emit" if name in filled else "skip"} for name, window in windows.items()]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", "end": "e", **time}, "windows": named, "aggregates": aggregates}
    return Pipeline.model_validate(spec | {"emit": emit})


class LastingRun(FilledRun):
    """Batches of a pipeline over events that last."""

    columns = Columns.of(Schema.from_arrow(pa.schema([*SOURCE, ("e", pa.timestamp("us", "UTC"))])).to_json())

    @staticmethod
    def arrived(rows: list[Row], files: Files | None = None) -> pa.Table:
        return as_points(rows, files).append_column(UNTIL_OF, pa.array([row["e"] for row in rows], pa.int64()))

    def stored(self) -> list[tuple[str, int, int]]:
        """Key, start of the slice in minutes and family of each row of the state."""
        assert self.state is not None
        return sorted((row["k"], row[SLICE] // MINUTE, row[REACHING]) for row in self.state.to_pylist())


def check(pipeline: Pipeline, rows: list[Row], cuts: list[int], **how: Any) -> Run:
    return revised.check(pipeline, rows, cuts, **how, kind=LastingRun)


@pytest.mark.covers("I7")
@given(
    windows=some(list(GRIDS), 1, 3),
    aggregates=st.sampled_from([COUNTS, OBJECTS, AGGREGATES]),
    rows=lasting(revised.late_streams(), LENGTHS),
    cuts=st.lists(st.integers(1, 25), max_size=12),
    shown=SHOWN,
    arrival=ARRIVALS,
    bounds=BOUNDS,
    final=st.booleans(),
)
def test_windows_over_events_that_last_are_those_of_the_oracle(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[Row],
    cuts: list[int],
    shown: dict[str, Any],
    arrival: Arrival,
    bounds: dict[str, str],
    final: bool,
):
    named = {name: GRIDS[name] for name in windows}
    pipeline = pipeline_of(named, aggregates, **how(shown, windows), tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing_shifted"])
@shared(len(CALENDARS) + 1, 12)
@given(
    rows=lasting(over_calendars(), st.sampled_from([0, HOUR, 7 * HOUR, 26 * HOUR, 9 * DAY, 70 * DAY])),
    cuts=CUTS,
    arrival=ARRIVALS,
    bounds=st.sampled_from(
        [{}, {"disorder": "3 hours"}, {"lateness": "5 hours"}, {"lateness": "50 days"}, {"disorder": "3 hours", "lateness": "2 days"}]
    ),
    shown=SHOWN,
    final=st.booleans(),
)
def test_windows_of_a_calendar_hold_events_that_reach_into_them(
    window: str, rows: list[Row], cuts: list[int], arrival: Arrival, bounds: dict[str, str], shown: dict[str, Any], final: bool
):
    pipeline = pipeline_of({window: WINDOWS[window]}, AGGREGATES, **how(shown, [window]), tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "shifted", "long", "dense"], 1, 2),
    aggregates=st.sampled_from([OBJECTS, AGGREGATES]),
    rows=lasting(revised.late_streams(), LENGTHS),
    cuts=st.lists(st.integers(1, 25), max_size=24),
    shown=SHOWN,
    arrival=ARRIVALS,
    bounds=BOUNDS,
    final=st.booleans(),
)
def test_nodes_hold_the_events_that_begin_in_their_slices(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[Row],
    cuts: list[int],
    shown: dict[str, Any],
    arrival: Arrival,
    bounds: dict[str, str],
    final: bool,
):
    named = {name: (GRIDS | LONG)[name] for name in windows}
    pipeline = pipeline_of(named, aggregates, **how(shown, windows), tie_break=["x"], arrival=arrival.by, **bounds)
    run = check(pipeline, rows, cuts, final=final, arrival=arrival, nodes=True)
    assert run.nodes is not None or windows == ["slots"]


SLOTS = {"slots": GRIDS["slots"]}
HOURS = {"hours": {"type": "hopping", "size": "60 minutes", "hop": "10 minutes"}}


def event(minute: int, until: int, k: str = "a", **values: Any) -> dict[str, Any]:
    return {"k": k, "t": minute * MINUTE, "e": until * MINUTE, "x": 0, "i": 1, "f": 0.5, "s": "x"} | values


def shown(run: Run) -> list[tuple[int, int]]:
    """Start in minutes and count of the windows of key a."""
    return sorted((found["window_start"] // MINUTE, found["n"]) for found in run.rows if found["k"] == "a")


def test_an_event_is_stored_where_it_begins_and_where_windows_begin_while_it_lasts():
    run = LastingRun(pipeline_of(SLOTS, COUNTS, disorder="1 hour"))
    run.step([event(5, 32), event(6, 10), event(7, 7), event(20, 20)])
    assert run.stored() == [("a", 0, 0), ("a", 10, 1), ("a", 20, 0), ("a", 20, 1), ("a", 30, 1)]
    gappy = LastingRun(pipeline_of({"gappy": GRIDS["gappy"]}, COUNTS, disorder="1 hour"))
    gappy.step([event(5, 32)])
    assert gappy.stored() == [("a", 3, 0), ("a", 20, 1)]
    growing = LastingRun(pipeline_of({"growing": GRIDS["growing"]}, COUNTS))
    growing.step([event(5, 32)])
    assert growing.stored() == [("a", 4, 0), ("a", 20, 1)]


def test_only_aggregates_that_weigh_by_time_have_partials_in_the_slices_that_an_event_crosses():
    run = LastingRun(pipeline_of(HOURS | {"days": GRIDS["days"]}, {"n": {"count": "*"}, "level": {"time_weighted_mean": "i"}}))
    run.step([event(5, 32, i=2)])
    assert run.state is not None
    rows = [(row[SLICE] // MINUTE, row[REACHING], row["rows"], row["area_i__sum"], row["lasting_i__sum"]) for row in run.state.to_pylist()]
    reaching = [(minute, 1, 1, 0.0, 0.0) for minute in (10, 20, 30)]
    parts = [(0, 0, 1, 10.0 * MINUTE, 5.0 * MINUTE), *((minute, 0, 0, 20.0 * MINUTE, 10.0 * MINUTE) for minute in (10, 20))]
    assert sorted(rows) == sorted([*parts, (30, 0, 0, 4.0 * MINUTE, 2.0 * MINUTE), *reaching])


def test_partials_ahead_are_kept_until_their_windows_have_been_shown():
    rows = [event(5, 95), event(40, 41, k="b"), event(70, 71, k="b"), event(150, 151, k="b")]
    run = check(pipeline_of(SLOTS, COUNTS), rows, [1, 2, 3], final=False)
    assert shown(run) == [(minute, 1) for minute in range(0, 100, 10)]
    assert run.state is not None
    assert run.stored() == [("b", 150, 0)]  # type: ignore[attr-defined]


def test_a_batch_reads_the_events_that_reach_into_its_windows_and_no_others():
    run = LastingRun(pipeline_of(HOURS, COUNTS))
    run.step([event(minute, 300) for minute in range(0, 60, 10)])
    run.step([event(60, 60)], 6)
    assert run.read == 6, "the slices of the first hour, at whose start no event lasts"
    run.step([event(70, 70)], 7)
    assert run.read == 6 + 1, "the slices of one window, and what reaches into it"


def test_a_late_event_counts_in_the_windows_that_it_overlaps_and_that_are_open():
    rows = [event(40, 40), event(5, 32), event(5, 20), event(12, 55), event(60, 60)]
    run = check(pipeline_of(SLOTS, COUNTS, lateness="5 minutes"), rows, [1, 2, 3, 4], final=True)
    assert run.refused == [(2, "too_late")]
    assert shown(run) == [(30, 2), (40, 2), (50, 1), (60, 1)]


def test_an_event_in_a_gap_is_not_late_but_one_that_lasts_into_a_closed_window_is():
    gappy = {"gappy": GRIDS["gappy"]}
    rows = [event(65, 65), event(5, 9), event(5, 21), event(5, 61)]
    run = check(pipeline_of(gappy, COUNTS), rows, [1], final=True)
    assert run.refused == [(2, "too_late"), (3, "too_late")]
    assert shown(run) == []


def versions(run: Run) -> list[tuple[int, int, int]]:
    """Start in minutes, revision and count of the windows of key a."""
    return sorted((found["window_start"] // MINUTE, found["revision"], found["n"]) for found in run.rows if found["k"] == "a")


@pytest.mark.parametrize("cuts", [[], [2], [1, 2, 3, 4]], ids=str)
@pytest.mark.parametrize("aggregates", [COUNTS, AGGREGATES], ids=["counts", "all"])
def test_a_late_event_revises_each_window_that_it_overlaps(aggregates: dict[str, Any], cuts: list[int]):
    rows = [event(5, 12), event(35, 35, k="b"), event(5, 42), event(12, 14), event(55, 55, k="b")]
    run = check(pipeline_of(SLOTS, aggregates, emit="revise", lateness="1 hour"), rows, cuts, final=False)
    assert versions(run) == [(0, 0, 1), (0, 1, 2), (10, 0, 1), (10, 1, 2), (10, 2, 3), (20, 0, 1), (30, 0, 1), (40, 0, 1)]


def test_a_late_event_is_late_for_the_windows_that_have_been_shown_alone():
    run = LastingRun(pipeline_of(SLOTS, COUNTS, emit="revise", lateness="1 hour"))
    run.step([event(35, 35, k="b"), event(5, 52)])
    assert run.state is not None
    marks = [(row[SLICE] // MINUTE, row[CLOSED]) for row in run.state.to_pylist() if row["k"] == "a"]
    assert sorted(marks) == [(minute, 30 * MINUTE if minute <= 30 else None) for minute in range(0, 60, 10)]


def test_a_batch_reads_the_events_that_reach_into_the_windows_that_its_late_rows_revise():
    rows = [event(1, 200), event(90, 90, k="b"), event(30, 31)]
    for nodes in (False, True):
        pipeline = pipeline_of({"long": LONG["long"]}, COUNTS, emit="revise", lateness="2 hours")
        run = check(pipeline, rows, [1, 2], final=False, nodes=nodes)
        assert [count for start, revision, count in versions(run) if start == 3] == [1, 2]


@pytest.mark.parametrize("emit", ["final", "revise"])
def test_a_late_event_makes_its_key_known_from_where_it_begins(emit: str):
    rows = [event(25, 25, k="b"), event(5, 42), event(60, 60, k="b")]
    run = check(pipeline_of(SLOTS, COUNTS, emit, ["slots"]), rows, [1, 2], final=False)
    assert shown(run) == [(0, 0), (10, 0), (20, 1), (30, 1), (40, 1)]


def test_a_key_is_known_until_its_events_end():
    rows = [event(5, 42), event(60, 60, k="b"), event(71, 72)]
    run = check(pipeline_of(HOURS, COUNTS, filled=["hours"], disorder="1 hour"), rows, [1, 2], final=True)
    assert shown(run) == [*((10 * n, 1) for n in range(-5, 2)), *((10 * n, 2) for n in range(2, 5)), *((10 * n, 1) for n in range(5, 8))]
    rows = [event(5, 22), event(60, 60, k="b"), event(51, 52), event(90, 90, k="b")]
    run = check(pipeline_of(SLOTS, COUNTS, filled=["slots"], disorder="10 minutes"), rows, [1, 2, 3], final=False)
    assert shown(run) == [(0, 1), (10, 1), (20, 1), (30, 0), (40, 0), (50, 1)]


@pytest.mark.parametrize("cuts", [[], [1], [1, 2]], ids=str)
def test_a_late_event_does_not_lie_in_the_span_that_was_known_before_it(cuts: list[int]):
    rows = [event(50, 50, k="b"), event(12, 32), event(13, 14)]
    run = check(pipeline_of(SLOTS, COUNTS, "revise", ["slots"], lateness="1 hour"), rows, cuts, final=False)
    assert versions(run) == [(10, 0, 1), (10, 1, 2), (20, 0, 1), (30, 0, 1)]


@given(
    rows=lasting(revised.late_streams(), LENGTHS),
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7, 20]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_events_late(rows: list[Row], ends: list[int], lateness: int, arrival: Arrival):
    windows = {name: GRIDS[name] for name in ("slots", "rolling")}
    pipeline = pipeline_of(windows, AGGREGATES, "revise", **revised.vouched(lateness, arrival))
    revised.check_vouched(pipeline, rows, ends, lateness, arrival, LastingRun)


def test_a_batch_of_very_many_revisions_is_for_spark(monkeypatch: pytest.MonkeyPatch):
    run = LastingRun(pipeline_of(SLOTS, COUNTS, "revise", lateness="10 hours"))
    slicing, rows = Slicing(LimitedInput(**run.base), run.slices), [event(600, 600), event(5, 305)]
    new = slicing.judged(run.arrived(rows))
    emission = Emission(rows[0]["t"], None, 0, 0)
    monkeypatch.setattr(limits, "MAX_RESULTS", 32)
    load(new, None, slicing, emission)
    monkeypatch.setattr(limits, "MAX_RESULTS", 29)
    with pytest.raises(limits.TooLargeError):
        load(new, None, slicing, emission)


@pytest.mark.parametrize("aggregates", [COUNTS, AGGREGATES], ids=["counts", "all"])
def test_events_with_many_partials_are_lifted_in_pieces(monkeypatch: pytest.MonkeyPatch, aggregates: dict[str, Any]):
    monkeypatch.setattr("windowmill.windowing.columnar.lasting._CHUNK_PARTIALS", 7)
    rows = [event(minute, minute + 13 * (minute % 5), k="ab"[minute % 2], s="xyz"[minute % 3]) for minute in range(60, 0, -1)]
    check(pipeline_of(HOURS | SLOTS, aggregates, lateness="2 hours", tie_break=["s"]), rows, [31], final=True)


def test_an_event_in_too_many_windows_is_refused():
    run = LastingRun(pipeline_of({"seconds": {"type": "tumbling", "size": "1 second"}}, COUNTS))
    run.step([event(1, 2)])
    with pytest.raises(LimitExceededError, match=r"window seconds: an event that lasts 60,060,000,000,000 ticks would be in 60,0\d+"):
        run.step([event(1, 1_001_001)], 1)


def test_a_batch_of_very_many_partials_is_for_spark(monkeypatch: pytest.MonkeyPatch):
    run = LastingRun(pipeline_of(SLOTS, COUNTS))
    slicing = Slicing(LimitedInput(**run.base), run.slices)
    new = slicing.judged(run.arrived([event(5, 32), event(6, 6)]))
    emission = Emission(None, None, 0, 0)
    monkeypatch.setattr(limits, "MAX_PARTIALS", 5)
    load(new, None, slicing, emission)
    monkeypatch.setattr(limits, "MAX_PARTIALS", 4)
    with pytest.raises(limits.TooLargeError):
        load(new, None, slicing, emission)


def test_days_that_a_zone_skips_hold_nothing_twice():
    skipped = 1_325_239_200_000_000 - 2 * DAY
    rows = [event(0, 0, t=skipped + n * 7 * HOUR, e=skipped + n * 7 * HOUR + 3 * DAY) for n in range(12)]
    check(pipeline_of({"pairs": WINDOWS["apia_pairs"]}, AGGREGATES, tie_break=["x"]), rows, [4, 9], final=True)
