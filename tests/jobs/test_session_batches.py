"""Batches of sessions through a state in memory, against the oracle: with late rows, and cut anywhere. No Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.test_calendar_batches import CUTS, NUMBERS, OBJECTS, SOURCE, VALUES, Files, arrived, compare, feed_in_batches
from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival, arriving, between_commits, delays, many
from windowmill.checkpoints.state.memory import MemoryState
from windowmill.checkpoints.state.wanted import OpenSessions, condition
from windowmill.jobs.schedulers.local.memory import compute
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.lateness import seen_after
from windowmill.jobs.ways.restored import OTHERS
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.session_fragments import latest_fragments
from windowmill.windowing.reference import Record
from windowmill.windowing.reference.events import Course, Event, Tally
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide, why_rows

MINUTE = 60_000_000
#: How far the input moves on from row to row, how far a row comes behind, and what a pipeline allows for that.
ADVANCES = st.sampled_from([0, 1, MINUTE, 5 * MINUTE, 5 * MINUTE + 1, 9 * MINUTE, 10 * MINUTE, 40 * MINUTE])
DELAYS = st.sampled_from([12 * MINUTE, 50 * MINUTE, 5 * MINUTE, 4 * MINUTE, MINUTE, 1, 0])
ALLOWED = st.sampled_from(["0 seconds", "4 minutes", "10 minutes"])
GAPS = {"visit": "5 minutes", "trip": "10 minutes", "stay": "5 minutes", "burst": "1 second"}
#: Sessions with a greatest size, some of which share gap and size.
CUT: dict[str, dict[str, Any]] = {
    "short_visit": {"type": "session", "gap": "5 minutes", "max_size": "12 minutes"},
    "short_stay": {"type": "session", "gap": "5 minutes", "max_size": "12 minutes"},
    "long_visit": {"type": "session", "gap": "5 minutes", "max_size": "31 minutes"},
    "brief": {"type": "session", "gap": "10 minutes", "max_size": "4 minutes"},
}
#: Windows on grids beside sessions; between gappy ones lie rows of no window.
GRIDS: dict[str, dict[str, Any]] = {
    "slots": {"type": "tumbling", "size": "10 minutes"},
    "rolling": {"type": "hopping", "size": "9 minutes", "hop": "2 minutes"},
    "gappy": {"type": "hopping", "size": "3 minutes", "hop": "20 minutes"},
    "days": {"type": "tumbling", "size": "1 day", "timezone": "Asia/Kolkata"},
}
COLUMNS = Columns.of(Schema.from_arrow(SOURCE).to_json())


#: As ``ADVANCES``, of long sessions.
STEADY = st.sampled_from([0, 1, MINUTE, MINUTE, 2 * MINUTE, 4 * MINUTE, 5 * MINUTE, 6 * MINUTE])


@st.composite
def streams(draw: st.DrawFn, advances: st.SearchStrategy[int] = ADVANCES) -> list[dict[str, Any]]:
    ahead = list(accumulate(draw(many(advances, 18)), initial=1_000_000_000_000_000))
    behind = draw(delays(DELAYS))
    return [{"t": at - next(behind), **{name: draw(values) for name, values in VALUES.items()}} for at in ahead]


def pipeline_of(windows: list[str], aggregates: dict[str, Any], emit: str = "final", **time: Any) -> Pipeline:
    named = [{"name": name, **((GRIDS | CUT)[name] if name in GRIDS | CUT else {"type": "session", "gap": GAPS[name]})} for name in windows]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": named, "aggregates": aggregates, "emit": emit}
    return Pipeline.model_validate(spec)


class Run:
    """The batches of a pipeline, each computed as a small one is."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.base: dict[str, Any] = {"pipeline": pipeline, "types": COLUMNS.arrow, "builds_state": True}
        self.memory, self.batch = MemoryState(), 0
        self.seen: int | None = None
        self.emitted: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.refused: list[tuple[int, str]] = []
        self.commits: list[int] = []
        self.read = 0

    def step(
        self, rows: list[dict[str, Any]] | None, first: int = 0, commits: Sequence[int] | None = None, *, vouched: int | None = None
    ) -> None:
        """One batch; ``first`` numbers its rows, each of which is a commit unless ``commits`` are given. None: all windows are complete.

        If an orchestrator vouches for intervals, the watermark after the batch is ``vouched``.
        """
        files = Files.of(arriving(self.commits, len(rows or []), commits))
        by_file = None if vouched is None else (AXIS_BEGIN if self.emitted is None else self.emitted,) * len(files.commits)
        progress = {"seen": self.seen, "emitted": self.emitted, "closed_by_file": by_file, "commits": files.commits}
        batch = Input(**self.base, batch=self.batch, **progress)
        new = None if rows is None else NewRows(arrived(rows, files))
        if new is not None:
            self.seen = seen_after(new.table, self.seen)
        after = AXIS_BEGIN if self.emitted is None else self.emitted
        assert self.seen is not None
        watermark = self.seen - batch.disorder if vouched is None else vouched
        through = AXIS_END if new is None else max(after, watermark - batch.lateness)
        done = compute(batch, self.memory, new, Emission(self.seen, through, after, through))
        self.read = done.counts.restored.get(OTHERS, 0)
        refused = [] if done.judged is None else files.refused(done.judged.table, first)
        assert done.counts.rows_applied + len(refused) == len(rows or [])
        self.refused += refused
        for table in done.results:
            bounds = [table[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
            self.rows += [row | {"window_start": a, "window_end": b} for row, a, b in zip(table.to_pylist(), *bounds, strict=True)]
        assert sum(map(len, done.state)) <= done.counts.new_state
        for table in done.state:
            self.memory.append(table)
        self.batch, self.emitted = self.batch + 1, through

    @property
    def state(self) -> pa.Table | None:
        return self.memory.rows


def check(pipeline: Pipeline, rows: list[dict[str, Any]], cuts: list[int], *, final: bool, arrival: Arrival = ROW_BY_ROW) -> Run:
    run = Run(pipeline)
    feed_in_batches(run, rows, cuts, arrival)
    if final:
        run.step(None)
    compare(run, pipeline, rows, final=final, place=place)
    return run


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], row["window"], row["window_end"], row["window_start"], row["revision"]


@st.composite
def inputs(
    draw: st.DrawFn, emits: Sequence[str] = ("final", "revise"), advances: st.SearchStrategy[int] = ADVANCES
) -> tuple[dict[str, Any], list[dict[str, Any]], list[int], dict[str, Any]]:
    """Aggregates and time of a pipeline, rows, where they are cut into batches, how they arrive, and whether the input ends."""
    arrival = draw(ARRIVALS)
    time = {
        "tie_break": ["x"],
        "disorder": draw(ALLOWED),
        "lateness": draw(st.sampled_from(["1 hour", "10 minutes", "4 minutes", "0 seconds"])),
    }
    time["arrival"] = arrival.by
    spec = {"aggregates": draw(st.sampled_from([NUMBERS, OBJECTS])), "emit": draw(st.sampled_from(emits)), **time}
    return spec, draw(streams(advances)), draw(CUTS), {"final": draw(st.booleans()), "arrival": arrival}


def some(names: Sequence[str], most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True)


@pytest.mark.covers("I7")
@given(windows=some(list(GAPS), 3), given=inputs())
def test_batches_are_those_of_the_oracle(windows: list[str], given: Any):
    spec, rows, cuts, how = given
    check(pipeline_of(windows, **spec), rows, cuts, **how)


@pytest.mark.covers("I7")
@given(cut=some(list(CUT), 2), others=some([*GAPS, *CUT], 2), given=inputs(emits=("final",), advances=STEADY))
def test_sessions_that_a_greatest_size_cuts_are_those_of_the_oracle(cut: list[str], others: list[str], given: Any):
    spec, rows, cuts, how = given
    check(pipeline_of(list(dict.fromkeys([*cut, *others])), **spec), rows, cuts, **how)


@pytest.mark.covers("I7")
@given(windows=some(list(GAPS), 2), grids=some(list(GRIDS), 2), given=inputs())
def test_a_row_counts_in_sessions_or_on_grids_or_in_both(windows: list[str], grids: list[str], given: Any):
    spec, rows, cuts, how = given
    check(pipeline_of([*windows, *grids], **spec), rows, cuts, **how)


VISIT = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}


def test_a_batch_reads_the_open_session_once_however_many_batches_touched_it():
    run = Run(pipeline_of(["visit"], {"n": {"count": "*"}}))
    for minute in range(60):
        run.step([VISIT | {"t": minute * MINUTE}], minute)
        assert run.read <= 6  # a session that got no row for its gap is closed
    assert run.rows == []
    run.step([VISIT | {"t": 90 * MINUTE}], 60)
    assert [(row["n"], row["window_end"]) for row in run.rows] == [(60, 64 * MINUTE)]


def test_a_late_row_joins_two_sessions_without_their_rows():
    run = Run(pipeline_of(["visit"], {"n": {"count": "*"}, "values": {"collect": "i"}}, lateness="1 hour"))
    run.step([VISIT | {"t": 0, "i": 1}], 0)
    run.step([VISIT | {"t": 8 * MINUTE, "i": 3}], 1)
    run.step([VISIT | {"t": 4 * MINUTE, "i": 2}], 2)
    run.step([VISIT | {"t": 100 * MINUTE}], 3)
    assert [(row["n"], row["values"], row["window_start"], row["window_end"]) for row in run.rows] == [(3, [1, 2, 3], 0, 13 * MINUTE)]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("together", [(11, 16), (16, 11)])
def test_a_late_row_links_another_of_its_commit_to_an_open_session(emit: str, together: tuple[int, int]):
    # At minute 24 the sessions that end before it are closed, and that of minute 20 is not.
    rows = [VISIT | {"t": 20 * MINUTE}, VISIT | {"t": 24 * MINUTE, "k": "b"}, *(VISIT | {"t": minute * MINUTE} for minute in together)]
    for cuts in ([], [1], [2], [1, 2]):
        run = check(pipeline_of(["visit"], {"n": {"count": "*"}}, emit), rows, cuts, final=True, arrival=Arrival((1, 1, 2)))
        assert versions(run) == [(11, 25, 0, 3), (24, 29, 0, 1)]


def held(run: Run) -> list[tuple[Any, ...]]:
    """What the state of ``run`` holds of each open session."""
    assert run.state is not None
    latest = latest_fragments(run.state, run.state["_gap"].to_numpy() // MINUTE, cut="_gone" in run.state.column_names)
    names = [name for name in ("_gap", "_first", "_last", "_revision", "rows", "sum_int_i") if name in run.state.column_names]
    return sorted(zip(*(run.state[name].take(pa.array(latest)).to_pylist() for name in names), strict=True))


def test_a_batch_reads_of_a_session_that_is_cut_one_fragment_and_the_latest_instants():
    spec = {"aggregates": OBJECTS, "tie_break": ["x"], "disorder": "4 minutes", "lateness": "10 minutes"}
    run, rows = Run(pipeline_of(["long_visit"], **spec)), [VISIT | {"t": minute * MINUTE} for minute in range(120)]
    for minute, row in enumerate(rows):
        run.step([row], minute)
        # An instant is stored by itself, and becomes a part of the fragment that a later batch stores. Both are read for a gap more.
        assert run.read <= 2 * (4 + 10 + 5)
    compare(run, run.base["pipeline"], rows, final=False, place=place)
    assert [row["n"] for row in run.rows] == [31, 31, 31]
    assert held(run) == held(check(run.base["pipeline"], rows, [], final=False))


def test_a_piece_that_is_closed_by_its_size_is_gone_though_its_last_row_is_within_a_gap():
    rows = [(0, "a"), (4, "a"), (8, "a"), (11, "a"), (12, "b"), (13, "a"), (14, "b"), (9, "a"), (60, "b")]
    stream = [VISIT | {"t": minute * MINUTE, "k": key} for minute, key in rows]
    for cuts in ([], [4], [5], [4, 5, 6], list(range(9))):
        run = check(pipeline_of(["short_visit"], {"n": {"count": "*"}}), stream, cuts, final=True)
        found = [(row["window_start"] // MINUTE, row["window_end"] // MINUTE, row["n"]) for row in run.rows if row["k"] == "a"]
        # The row at 9 is later than the piece that would have taken it. It joins the open one.
        assert sorted(found) == [(0, 12, 4), (9, 18, 2)]


def in_thirds(rows: list[dict[str, Any]], arrival: Arrival) -> Iterator[tuple[int, int, list[int]]]:
    """Begin, end and commits of three batches of whole commits, or of fewer."""
    commits, third = arrival.commits(len(rows)), -(-len(rows) // 3)
    for first, last in pairwise(sorted({0, *between_commits(range(third, len(rows), third), commits), len(rows)})):
        yield first, last, commits[first:last]


@given(
    rows=streams(STEADY),
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    window=st.sampled_from(["visit", "short_visit"]),
    revises=st.booleans(),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_its_rows_late(
    rows: list[dict[str, Any]], ends: list[int], lateness: int, window: str, revises: bool, arrival: Arrival
):
    """All rows of a batch find the watermark of the batch before."""
    emit = "revise" if revises and window == "visit" else "final"
    time = {"tie_break": ["x"], "watermark": "data_interval_end", "lateness": f"{lateness} minutes", "arrival": arrival.by}
    run = Run(pipeline_of([window], {"n": {"count": "*"}}, emit, **time))
    events: list[Event] = []
    watermark = float("-inf")
    for end, (first, last, commits) in zip(ends, in_thirds(rows, arrival), strict=False):
        for number, row, commit in zip(range(first, last), rows[first:last], commits, strict=True):
            order, moment = (row["t"], row["x"], number), number if arrival.by == "row" else commit
            closed = watermark - lateness * MINUTE
            events.append(Event(number, moment, (row["k"],), row["t"], row["t"], order, watermark, closed, Record(row)))
        vouched = max(row["t"] for row in rows[:last]) + end * MINUTE
        run.step(rows[first:last], first, commits, vouched=vouched)
        watermark = max(watermark, vouched)
    tally, course = Tally(), Course(False, emit == "revise", watermark, watermark - lateness * MINUTE, 0)
    wanted = [
        (key, fired.span.end, fired.span.start, fired.revision, len(fired.span.events))
        for key in sorted({row["k"] for row in rows})
        for fired in run.base["pipeline"].windows[0].reference_rows([event for event in events if event.key == (key,)], tally, course)
    ]
    assert sorted((row["k"], row["window_end"], row["window_start"], row["revision"], row["n"]) for row in run.rows) == sorted(wanted)
    assert run.refused == [(number, "too_late") for number in sorted(tally.refused)]


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("minute", [4, 5])
def test_a_row_joins_a_session_that_ends_where_windows_are_closed(emit: str, minute: int):
    stream = [VISIT | {"t": at * MINUTE, "k": key} for at, key in ((0, "a"), (5, "b"), (minute, "a"), (60, "b"))]
    for cuts in ([], [2], [1, 2, 3]):
        run = check(pipeline_of(["visit"], {"n": {"count": "*"}}, emit), stream, cuts, final=False)
        assert versions(run)[0] == (0, minute + 5, 0, 2)


def versions(run: Run) -> list[tuple[int, ...]]:
    """The result rows: start, end and revision, then the aggregate ``n``."""
    return [(row["window_start"] // MINUTE, row["window_end"] // MINUTE, row["revision"], row["n"]) for row in run.rows]


def test_a_late_row_joins_two_sessions_that_have_been_shown():
    rows = [(0, "a"), (8, "a"), (30, "b"), (1, "a"), (2, "a"), (5, "a"), (4, "a"), (100, "b")]
    stream = [VISIT | {"t": minute * MINUTE, "k": key} for minute, key in rows]
    pipeline = pipeline_of(["visit"], {"n": {"count": "*"}}, "revise", lateness="2 hours")
    for cuts in ([], [3], [6], list(range(8))):
        run = check(pipeline, stream, cuts, final=False, arrival=Arrival((1, 1, 1, 3, 1, 1)))
        # Those of minutes 1, 2 and 5 come together.
        assert sorted(versions(run), key=lambda row: row[3])[3:5] == [(0, 13, 1, 5), (0, 13, 2, 6)]
    for cuts in ([], [3], [4, 5], list(range(8))):
        run = check(pipeline, stream, cuts, final=False)
        assert sorted(versions(run), key=lambda row: row[3])[:7] == [
            *[(0, 5, 0, 1), (8, 13, 0, 1), (30, 35, 0, 1)],
            *[(0, 6, 1, 2), (0, 7, 2, 3), (0, 13, 3, 5), (0, 13, 4, 6)],
        ]
        assert run.state is not None
        latest = run.state.filter(pc.field("_first") == 0).to_pylist()[-1]
        assert (latest["_last"] // MINUTE, latest["_revision"], latest["rows"]) == (8, 4, 6)


def test_versions_of_a_batch_are_those_of_many():
    late = [VISIT | {"t": (minute * 7) % 60 * MINUTE} for minute in range(40)]
    rows = [VISIT | {"t": 0}, VISIT | {"t": 90 * MINUTE}, *late]
    pipeline = pipeline_of(["visit", "trip"], OBJECTS, "revise", tie_break=["x"], lateness="3 hours")
    whole, single = (check(pipeline, rows, cuts, final=False) for cuts in ([2], list(range(len(rows)))))
    assert sorted(map(place, whole.rows)) == sorted(map(place, single.rows))
    assert held(whole) == held(single)
    assert max(row["revision"] for row in whole.rows) > 20


def test_a_batch_without_late_rows_reads_and_keeps_what_it_does_where_sessions_are_shown_once():
    runs = [Run(pipeline_of(["visit"], {"n": {"count": "*"}}, emit, lateness="20 minutes")) for emit in ("final", "revise")]
    for minute in (0, 3, 6, 20, 21, 40, 60):
        for run in runs:
            run.step([VISIT | {"t": minute * MINUTE}], minute)
    once, again = runs
    assert once.state is not None
    assert again.state is not None
    assert (once.read, once.state.num_rows) == (again.read, again.state.num_rows)
    assert [row[:2] for row in versions(once)] == [(0, 11), (20, 26)]
    assert versions(again) == [(0, 11, 0, 3), (20, 26, 0, 2), (40, 45, 0, 1)]


@pytest.mark.covers("I7")
@pytest.mark.parametrize("late", [(5 * MINUTE + 1, 10 * MINUTE), (10 * MINUTE, 11 * MINUTE), (9 * MINUTE, 10 * MINUTE, 14 * MINUTE)])
@pytest.mark.parametrize("aggregate", [{"collect": "s"}, {"concat": "s"}, {"first": "s"}, {"last": "s"}, {"arg_max": ["x", "s"]}])
def test_rows_of_one_time_keep_their_order_of_arrival(aggregate: dict[str, Any], late: tuple[int, ...]):
    stored = [VISIT | {"t": 10 * MINUTE, "s": name} for name in "ab"]
    rows = [*stored, *(VISIT | {"t": at, "s": f"late {at}"} for at in late), VISIT | {"t": 100 * MINUTE}]
    for cuts in ([1], [2], [1, 2, 3]):
        for emit in ("final", "revise"):
            check(pipeline_of(["visit"], {"found": aggregate}, emit, lateness="1 hour"), rows, cuts, final=True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"time": {"column": "t", "end": "t"}, "emit": "revise"}, "time.end"),
        (
            {"windows": [{"name": "w", "type": "session", "gap": "5 minutes", "max_size": "1 hour"}], "emit": "revise"},
            "windows.0.max_size with emit: revise",
        ),
    ],
)
def test_what_keeps_the_rows_of_sessions_is_named(change: dict[str, Any], why: str):
    spec = pipeline_of(["visit"], {"n": {"count": "*"}}).model_dump(mode="json", exclude_none=True)
    pipeline = Pipeline.model_validate(spec | change)
    assert divide(pipeline, COLUMNS.arrow).ways == ("live rows",)
    assert any(reason.startswith(why) for reason in why_rows(pipeline, COLUMNS.arrow))


@pytest.mark.parametrize("closed", [AXIS_BEGIN, -(1 << 63), AXIS_END, 0])
def test_gaps_of_any_length_have_open_sessions(closed: int):
    gap = 1 << 62
    stored = pa.table({"_gap": [gap], "_last": [0], "_batch": [0]})
    assert len(stored.filter(condition(OpenSessions((gap,), closed), before_batch=1).expression)) == (closed <= gap)


def test_open_sessions_are_selected_gap_by_gap():
    run = Run(pipeline_of(["visit", "trip"], {"n": {"count": "*"}}))
    run.step([VISIT | {"t": 0}, VISIT | {"t": 7 * MINUTE}], 0)
    assert run.state is not None
    found = run.state.filter(condition(OpenSessions((300_000_000, 600_000_000), 7 * MINUTE), before_batch=1).expression)
    # Of the short gap the first session is closed; of the long one both rows are one session.
    assert sorted(zip(found["_gap"].to_pylist(), found["_last"].to_pylist(), strict=True)) == [
        (5 * MINUTE, 7 * MINUTE),
        (10 * MINUTE, 7 * MINUTE),
    ]
    assert pc.min(run.state["_batch"]).as_py() == 0
