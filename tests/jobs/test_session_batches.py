"""Batches of sessions through a state in memory, against the oracle: with late rows, and cut anywhere. No Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run, check, compare, in_minutes, place, run_vouched
from tests.jobs.drawn import CUT, MINUTE, OBJECTS, SESSIONS, at, cuts, inputs, pipeline_of, some, streams
from tests.strategies import ARRIVALS, Arrival
from windowmill.checkpoints.state.reading import OpenSessions, rows_before
from windowmill.checkpoints.state.reading import rows_of as stored_rows_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.sessions import latest_fragments
from windowmill.windowing.layouts import divide, why_rows
from windowmill.windowing.reference import Record, rows_of
from windowmill.windowing.reference.events import Course, Event, Tally
from windowmill.windowing.spec import Pipeline

#: How far the input moves on from row to row, that of long sessions, and how far a row comes behind.
ADVANCES = st.sampled_from([0, 1, MINUTE, 5 * MINUTE, 5 * MINUTE + 1, 9 * MINUTE, 10 * MINUTE, 40 * MINUTE])
STEADY = st.sampled_from([0, 1, MINUTE, MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE, 6 * MINUTE])
DELAYS = st.sampled_from([12 * MINUTE, 50 * MINUTE, 5 * MINUTE, 4 * MINUTE, MINUTE, 1, 0])
ALLOWED = ("0 seconds", "4 minutes", "10 minutes")
REVISED = {"emit": "revise", "lateness": "1 hour"}


def visits(advances: st.SearchStrategy[int] = ADVANCES) -> st.SearchStrategy[list[dict[str, Any]]]:
    return streams(advances, DELAYS, 18)


def given_of(advances: st.SearchStrategy[int] = ADVANCES, emits: tuple[str, ...] = ("final", "revise")) -> Any:
    return inputs(visits(advances), cuts(15, 5), ALLOWED, ("1 hour", *ALLOWED[::-1]), emits=emits)


@pytest.mark.covers("I7")
@given(windows=some(SESSIONS, 3), given=given_of())
def test_batches_are_those_of_the_oracle(windows, given):
    check(pipeline_of(windows, **given[0]), **given[1])


@pytest.mark.covers("I7")
@given(cut=some(CUT, 2), others=some([*SESSIONS, *CUT], 2), given=given_of(STEADY, ("final",)))
def test_sessions_that_a_greatest_size_cuts_are_those_of_the_oracle(cut, others, given):
    check(pipeline_of(list(dict.fromkeys([*cut, *others])), **given[0]), **given[1])


def stream(*rows: tuple[float, str]) -> list[dict[str, Any]]:
    """A row at each of these minutes for the key beside it."""
    return [at(minute, k=key) for minute, key in rows]


def sizes(run: Run) -> list[tuple[int, ...]]:
    """The result rows in order: start, end and revision, then the aggregate ``n``."""
    return [(row["window_start"] // MINUTE, row["window_end"] // MINUTE, row["revision"], row["n"]) for row in run.rows]


def sizes_shown(run: Run) -> list[tuple[int, ...]]:
    """As :func:`sizes`, of the rows that retract nothing, by revision."""
    return sorted((each for each, row in zip(sizes(run), run.rows, strict=True) if not row["retracted"]), key=lambda each: each[2])


def test_a_batch_reads_the_open_session_once_however_many_batches_touched_it():
    run = Run(pipeline_of(["visit"]))
    for minute in range(60):
        run.step([at(minute)], minute)
        assert run.read <= 6  # a session that got no row for its gap is closed
    assert run.rows == []
    run.step([at(90)], 60)
    assert sizes(run) == [(0, 64, 0, 60)]


def test_a_late_row_joins_two_sessions_without_their_rows():
    run = Run(pipeline_of(["visit"], {"n": {"count": "*"}, "values": {"collect": "i"}}, lateness="1 hour"))
    for number, row in enumerate([at(0, i=1), at(8, i=3), at(4, i=2), at(100)]):
        run.step([row], number)
    assert (sizes(run), run.rows[0]["values"]) == ([(0, 13, 0, 3)], [1, 2, 3])


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("together", [(11, 16), (16, 11)])
@pytest.mark.parametrize("cut", [[], [1], [2], [1, 2]], ids=str)
def test_a_late_row_links_another_of_its_commit_to_an_open_session(emit, together, cut):
    # At minute 24 the sessions that end before it are closed, and that of minute 20 is not.
    rows = [at(20), at(24, k="b"), *map(at, together)]
    run = check(pipeline_of(["visit"], emit=emit), rows, cut, final=True, arrival=Arrival((1, 1, 2)))
    assert sizes(run) == [(11, 25, 0, 3), (24, 29, 0, 1)]


def held(run: Run) -> list[tuple[Any, ...]]:
    """What the state of ``run`` holds of each open session."""
    latest = latest_fragments(run.state, run.state["_gap"].to_numpy() // MINUTE, cut="_gone" in run.state.column_names)
    names = [name for name in ("_gap", "_first", "_last", "_revision", "rows", "sum_int_i") if name in run.state.column_names]
    return sorted(zip(*(run.state[name].take(pa.array(latest)).to_pylist() for name in names), strict=True))


def test_a_batch_reads_of_a_session_that_is_cut_one_fragment_and_the_latest_instants():
    pipeline = pipeline_of(["long_visit"], OBJECTS, tie_break=["x"], disorder="4 minutes", lateness="10 minutes")
    run, rows = Run(pipeline), list(map(at, range(120)))
    for minute, row in enumerate(rows):
        run.step([row], minute)
        # An instant is stored by itself, and becomes a part of the fragment that a later batch stores. Both are read for a gap more.
        assert run.read <= 2 * (4 + 10 + 5)
    compare(run, rows)
    assert [row["n"] for row in run.rows] == [31, 31, 31]
    assert held(run) == held(check(pipeline, rows))


@pytest.mark.parametrize("cut", [[], [4], [5], [4, 5, 6], list(range(9))], ids=str)
def test_a_piece_that_is_closed_by_its_size_is_gone_though_its_last_row_is_within_a_gap(cut):
    rows = stream((0, "a"), (4, "a"), (8, "a"), (11, "a"), (12, "b"), (13, "a"), (14, "b"), (9, "a"), (60, "b"))
    run = check(pipeline_of(["short_visit"]), rows, cut, final=True)
    # The row at 9 is later than the piece that would have taken it. It joins the open one.
    assert in_minutes(run, "n") == [(0, 4), (9, 2)]
    assert [row["window_end"] // MINUTE for row in sorted(run.rows, key=place) if row["k"] == "a"] == [12, 18]


@given(
    rows=visits(STEADY),
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    window=st.sampled_from(["visit", "short_visit"]),
    revises=st.booleans(),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_its_rows_late(rows, ends, lateness, window, revises, arrival):
    """All rows of a batch find the watermark of the batch before."""
    emit = "revise" if revises and window == "visit" else "final"
    time = {"tie_break": ["x"], "watermark": "data_interval_end", "lateness": f"{lateness} minutes"}
    run, met = run_vouched(pipeline_of([window], emit=emit, **time), rows, ends, arrival)
    events = []
    for number, (row, (watermark, moment)) in enumerate(zip(rows, met, strict=True)):
        order, closed = (row["t"], row["x"], number), watermark - lateness * MINUTE
        events.append(Event(number, moment, (row["k"],), row["t"], row["t"], order, watermark, closed, Record(row)))
    assert run.emitted is not None
    tally, course = Tally(), Course(False, emit == "revise", run.emitted + lateness * MINUTE, run.emitted, 0)
    wanted = [
        (key, fired.span.end, fired.span.start, fired.revision, len(fired.span.events))
        for key in sorted({row["k"] for row in rows})
        for fired in rows_of(run.pipeline.windows[0], [event for event in events if event.key == (key,)], tally, course)
    ]
    assert sorted((row["k"], row["window_end"], row["window_start"], row["revision"], row["n"]) for row in run.rows) == sorted(wanted)
    assert run.refused == [(number, "too_late") for number in sorted(tally.refused)]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("minute", [4, 5])
@pytest.mark.parametrize("cut", [[], [2], [1, 2, 3]], ids=str)
def test_a_row_joins_a_session_that_ends_where_windows_are_closed(emit, minute, cut):
    run = check(pipeline_of(["visit"], emit=emit), stream((0, "a"), (5, "b"), (minute, "a"), (60, "b")), cut)
    assert sizes(run)[0] == (0, minute + 5, 0, 2)


def test_a_late_row_joins_two_sessions_that_have_been_shown():
    rows = stream((0, "a"), (8, "a"), (30, "b"), (1, "a"), (2, "a"), (5, "a"), (4, "a"), (100, "b"))
    pipeline = pipeline_of(["visit"], emit="revise", lateness="2 hours")
    for cut in ([], [3], [6], list(range(8))):
        run = check(pipeline, rows, cut, arrival=Arrival((1, 1, 1, 3, 1, 1)))
        # Those of minutes 1, 2 and 5 come together.
        assert sizes_shown(run)[3:5] == [(0, 13, 1, 5), (0, 13, 2, 6)]
        assert sorted(row["window_end"] // MINUTE for row in run.rows if row["retracted"]) == [5, 13], "of the two before they were joined"
    for cut in ([], [3], [4, 5], list(range(8))):
        run = check(pipeline, rows, cut)
        assert sizes_shown(run)[:7] == [
            *[(0, 5, 0, 1), (8, 13, 0, 1), (30, 35, 0, 1)],
            *[(0, 6, 1, 2), (0, 7, 2, 3), (0, 13, 3, 5), (0, 13, 4, 6)],
        ]
        latest = run.state.filter(pc.field("_first") == 0).to_pylist()[-1]
        assert (latest["_last"] // MINUTE, latest["_revision"], latest["rows"]) == (8, 4, 6)


def test_versions_of_a_batch_are_those_of_many():
    rows = [at(0), at(90), *(at((minute * 7) % 60) for minute in range(40))]
    pipeline = pipeline_of(["visit", "trip"], OBJECTS, "revise", tie_break=["x"], lateness="3 hours")
    whole, single = (check(pipeline, rows, cut) for cut in ([2], range(len(rows))))
    assert sorted(map(place, whole.rows)) == sorted(map(place, single.rows))
    assert held(whole) == held(single)
    assert max(row["revision"] for row in whole.rows) > 20


def test_a_batch_without_late_rows_reads_and_keeps_what_it_does_where_sessions_are_shown_once():
    once, again = (Run(pipeline_of(["visit"], emit=emit, lateness="20 minutes")) for emit in ("final", "revise"))
    for minute in (0, 3, 6, 20, 21, 40, 60):
        for run in (once, again):
            run.step([at(minute)], minute)
    assert (once.read, once.state.num_rows) == (again.read, again.state.num_rows)
    assert [row[:2] for row in sizes(once)] == [(0, 11), (20, 26)]
    assert sizes(again) == [(0, 11, 0, 3), (20, 26, 0, 2), (40, 45, 0, 1)]


@pytest.mark.covers("I7")
@pytest.mark.parametrize("late", [(5 + 1 / MINUTE, 10), (10, 11), (9, 10, 14)])
@pytest.mark.parametrize("aggregate", [{"collect": "s"}, {"concat": "s"}, {"first": "s"}, {"last": "s"}, {"arg_max": ["x", "s"]}])
def test_rows_of_one_time_keep_their_order_of_arrival(aggregate, late):
    rows = [*(at(10, s=name) for name in "ab"), *(at(minute, s=f"late {minute}") for minute in late), at(100)]
    for cut in ([1], [2], [1, 2, 3]):
        for emit in ("final", "revise"):
            check(pipeline_of(["visit"], {"found": aggregate}, emit, lateness="1 hour"), rows, cut, final=True)


CUT_BY_SIZE = {"windows": [{"name": "w", "type": "session", "gap": "5 minutes", "max_size": "1 hour"}], "emit": "revise"}


@pytest.mark.parametrize(
    ("change", "why"),
    [({"time": {"column": "t", "end": "t"}, "emit": "revise"}, "time.end"), (CUT_BY_SIZE, "windows.0.max_size with emit: revise")],
)
def test_what_keeps_the_rows_of_sessions_is_named(change, why):
    pipeline = Pipeline.model_validate(pipeline_of(["visit"]).model_dump(mode="json", exclude_none=True) | change)
    types = Run(pipeline_of(["visit"])).base["types"]
    assert divide(pipeline, types).names == ("live rows",)
    assert any(reason.startswith(why) for reason in why_rows(pipeline))


@pytest.mark.parametrize("closed", [AXIS_BEGIN, -(1 << 63), AXIS_END, 0])
def test_gaps_of_any_length_have_open_sessions(closed):
    gap = 1 << 62
    stored = pa.table({"_gap": [gap], "_last": [0], "_batch": [0]})
    assert len(stored.filter((rows_before(1) & stored_rows_of(OpenSessions((gap,), closed))).expression)) == (closed <= gap)


def test_open_sessions_are_selected_gap_by_gap():
    run = Run(pipeline_of(["visit", "trip"]))
    run.step([at(0), at(7)], 0)
    found = run.state.filter((rows_before(1) & stored_rows_of(OpenSessions((5 * MINUTE, 10 * MINUTE), 7 * MINUTE))).expression)
    # Of the short gap the first session is closed; of the long one both rows are one session.
    open_ = sorted(zip(found["_gap"].to_pylist(), found["_last"].to_pylist(), strict=True))
    assert open_ == [(5 * MINUTE, 7 * MINUTE), (10 * MINUTE, 7 * MINUTE)]
    assert pc.min(run.state["_batch"]).as_py() == 0
