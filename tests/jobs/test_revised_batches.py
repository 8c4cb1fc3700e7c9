"""Batches of windows on grids under ``emit: revise`` through a state in memory, against the oracle, with many late rows. No Spark."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import accumulate, groupby
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.collecting import BackfillInput, computed
from tests.jobs.test_calendar_batches import CUTS, NUMBERS, VALUES, Files, arrived, feed_in_batches, streams
from tests.jobs.test_session_batches import COLUMNS, in_thirds
from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival, arriving, delays, many, shared
from tests.windowing.calendar_cases import CALENDARS, WINDOWS
from tests.windowing.test_slices import same
from windowmill.checkpoints.state.wanted import condition
from windowmill.jobs.schedulers.local.new_rows import NewRows
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.lateness import revised_after, seen_after
from windowmill.jobs.ways.slices import Slicing, load
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, SLICE, SUM
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.nodes import Nodes
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide, why_rows

MINUTE = 60_000_000
OBJECTS = NUMBERS | {
    "kinds": {"count_distinct": "s"},
    "half": {"quantile": {"column": "i", "q": 0.5}},
    "all": {"collect": "s"},
    "joined": {"concat": "s"},
}
#: Windows of a few minutes; between gappy ones lie rows of no window.
GRIDS: dict[str, dict[str, Any]] = {
    "slots": {"type": "tumbling", "size": "10 minutes"},
    "rolling": {"type": "hopping", "size": "9 minutes", "hop": "2 minutes"},
    "shifted": {"type": "hopping", "size": "7 minutes", "hop": "5 minutes", "origin": "2024-01-01T00:03:00Z"},
    "gappy": {"type": "hopping", "size": "3 minutes", "hop": "20 minutes"},
    "growing": {"type": "cumulative", "size": "20 minutes", "step": "4 minutes"},
    "days": {"type": "tumbling", "size": "1 day", "timezone": "Asia/Kolkata"},
}
#: Windows of many slices.
LONG: dict[str, dict[str, Any]] = {
    "long": {"type": "hopping", "size": "60 minutes", "hop": "3 minutes"},
    "dense": {"type": "hopping", "size": "40 minutes", "hop": "1 minute"},
}
#: How far the input moves on from row to row, how far a row comes behind, and what a pipeline allows for that.
ADVANCES = st.sampled_from([MINUTE, 0, 2 * MINUTE, 1, 3 * MINUTE, 9 * MINUTE, 40 * MINUTE])
DELAYS = st.sampled_from([25 * MINUTE, 12 * MINUTE, 50 * MINUTE, 9 * MINUTE, 4 * MINUTE, 1])
BOUNDS = st.fixed_dictionaries(
    {
        "disorder": st.sampled_from(["0 seconds", "2 minutes"]),
        "lateness": st.sampled_from(["2 hours", "30 minutes", "4 minutes", "0 seconds"]),
    }
)


@st.composite
def late_streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    ahead = list(accumulate(draw(many(ADVANCES, 24)), initial=1_000_000_000_000_000))
    behind = draw(delays(DELAYS))
    return [{"t": at - next(behind), **{name: draw(values) for name, values in VALUES.items()}} for at in ahead]


def pipeline_of(windows: dict[str, dict[str, Any]], aggregates: dict[str, Any], **time: Any) -> Pipeline:
    named = [{"name": name, **window} for name, window in windows.items()]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": named, "aggregates": aggregates, "emit": "revise"}
    return Pipeline.model_validate(spec)


def sliced(slices: Any) -> Any:
    """The part of the pipeline's windows on grids."""
    return SimpleNamespace(way="slices", grids=slices.grids.grids)


class Run:
    """The batches of a pipeline, each computed as a small one is, over a state that is written and read back."""

    columns = COLUMNS
    arrived = staticmethod(arrived)

    def __init__(self, pipeline: Pipeline, *, vouched: bool = False, nodes: bool = False) -> None:
        self.base: dict[str, Any] = {"pipeline": pipeline, "types": self.columns.arrow, "builds_state": True, "check": RowCheck("state")}
        parts = divide(pipeline, self.columns.arrow)
        assert parts.slices is not None
        self.slices, self.vouched, self.batch, self.state = parts.slices, vouched, 0, None
        self.nodes = Nodes.of(parts.slices.grids.grids, 2) if nodes else None
        self.seen: int | None = None
        self.emitted: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.refused: list[tuple[int, str]] = []
        self.commits: list[int] = []
        self.read = 0

    def step(
        self, rows: list[dict[str, Any]] | None, first: int = 0, commits: Sequence[int] | None = None, *, closed: int | None = None
    ) -> None:
        """One batch; ``first`` numbers its rows, each of which is a commit unless ``commits`` are given.

        Windows are closed through ``closed`` after it, by default as its rows tell.
        """
        files = Files.of(arriving(self.commits, len(rows or []), commits))
        by_file = (AXIS_BEGIN if self.emitted is None else self.emitted,) * len(files.commits) if self.vouched else None
        progress = {"seen": self.seen, "emitted": self.emitted, "closed_by_file": by_file, "commits": files.commits}
        batch = Input(**self.base, batch=self.batch, **progress)
        new = None if rows is None else NewRows(self.arrived(rows, files))
        if new is not None:
            self.seen = seen_after(new.table, self.seen)
        assert self.seen is not None
        complete = self.seen - batch.disorder - batch.lateness if closed is None else closed
        before = AXIS_BEGIN if self.emitted is None else self.emitted
        through = max(before, complete)
        slicing, emission = Slicing(batch, self.slices, self.nodes), Emission(self.seen, through, before, through)
        judged = None if new is None else slicing.judged(new.table)
        wanted = slicing.wanted(emission, revised_after(judged, batch.lateness))
        stored = None if wanted is None or self.state is None else self.restored(self.state.filter(self.holding(wanted)), slicing)
        loaded = load(judged, stored, slicing, emission)
        self.read = 0 if loaded.stored is None else len(loaded.stored)
        done = computed(new, [sliced(self.slices)], [loaded], batch)
        refused = [] if done.judged is None else files.refused(done.judged, first)
        assert done.rows_applied + len(refused) == len(rows or [])
        self.refused += refused
        if done.rows is not None:
            bounds = [done.rows[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
            self.rows += [row | {"window_start": a, "window_end": b} for row, a, b in zip(done.rows.to_pylist(), *bounds, strict=True)]
        if done.state is not None:
            assert len(done.state) <= done.new_state
            self.state = done.state if self.state is None else pa.concat_tables([self.state, done.state])
        if self.state is not None:
            self.maintain(through)
        self.batch, self.emitted = self.batch + 1, through

    def maintain(self, through: int) -> None:
        """Drop what no window that ends after ``through`` needs."""
        assert self.state is not None
        self.state = self.state.filter(pc.greater_equal(self.state[SLICE], self.slices.grids.first_slice_after(through)))

    def holding(self, wanted: Any) -> pc.Expression:
        return condition(wanted, before_batch=self.batch).expression

    def restored(self, found: pa.Table, slicing: Slicing) -> pa.Table:
        """``found`` rows of the state after they were written to a file and read back."""
        file = io.BytesIO()
        pq.write_table(found.select(slicing.stage.storing.schema.names), file)
        read = pq.read_table(file)
        RowCheck("state").verify(read)
        return read.drop_columns([SUM])


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], row["window"], row["window_end"], row["window_start"], row["revision"]


def check(
    pipeline: Pipeline,
    rows: list[dict[str, Any]],
    cuts: list[int],
    *,
    final: bool,
    arrival: Arrival = ROW_BY_ROW,
    nodes: bool = False,
    kind: type[Run] = Run,
) -> Run:
    run = kind(pipeline, nodes=nodes)
    feed_in_batches(run, rows, cuts, arrival)
    if final:
        run.step(None, closed=AXIS_END)
    compare(run, pipeline, rows, final=final)
    return run


def compare(run: Run, pipeline: Pipeline, rows: list[dict[str, Any]], *, final: bool) -> None:
    """The result rows, their revisions and the refusals of ``run`` are those of the oracle."""
    records = [Record(row, frozenset(["i > 3"] if row["i"] is not None and row["i"] > 3 else [])) for row in rows]
    wanted = evaluate(pipeline, records, commits=run.commits, final=final)
    assert run.refused == wanted.quarantined
    found, expected = sorted(run.rows, key=place), sorted(wanted.rows, key=place)
    assert [place(row) for row in found] == [place(row) for row in expected]
    for got, want in zip(found, expected, strict=True):
        wrong = {name: (got[name], value) for name, value in want.items() if not same(got[name], value)}
        assert not wrong, (place(want), wrong)


def some(names: list[str], least: int, most: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=least, max_size=most, unique=True)


@pytest.mark.covers("I7")
@given(
    windows=some(list(GRIDS), 1, 3),
    aggregates=st.sampled_from([NUMBERS, OBJECTS]),
    rows=late_streams(),
    cuts=st.lists(st.integers(1, 25), max_size=12),
    arrival=ARRIVALS,
    bounds=BOUNDS,
    final=st.booleans(),
)
def test_revisions_are_those_of_the_oracle(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    arrival: Arrival,
    bounds: dict[str, str],
    final: bool,
):
    pipeline = pipeline_of({name: GRIDS[name] for name in windows}, aggregates, tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing_shifted"])
@shared(len(CALENDARS) + 1, 12)
@given(
    rows=streams(),
    cuts=CUTS,
    arrival=ARRIVALS,
    bounds=st.fixed_dictionaries(
        {"disorder": st.sampled_from(["0 seconds", "3 hours"]), "lateness": st.sampled_from(["5 hours", "2 days", "50 days"])}
    ),
    final=st.booleans(),
)
def test_revisions_follow_the_calendar(
    window: str, rows: list[dict[str, Any]], cuts: list[int], arrival: Arrival, bounds: dict[str, str], final: bool
):
    pipeline = pipeline_of({window: WINDOWS[window]}, OBJECTS, tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@pytest.mark.covers("I7")
@given(
    windows=some(["slots", "rolling", "shifted", "long", "dense"], 1, 2),
    aggregates=st.sampled_from([NUMBERS, OBJECTS]),
    rows=late_streams(),
    cuts=st.lists(st.integers(1, 25), max_size=24),
    arrival=ARRIVALS,
    bounds=BOUNDS,
    final=st.booleans(),
)
def test_revisions_of_long_windows_are_made_of_nodes(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    arrival: Arrival,
    bounds: dict[str, str],
    final: bool,
):
    pipeline = pipeline_of({name: (GRIDS | LONG)[name] for name in windows}, aggregates, tie_break=["x"], arrival=arrival.by, **bounds)
    run = check(pipeline, rows, cuts, final=final, arrival=arrival, nodes=True)
    assert run.nodes is not None or windows == ["slots"]


@pytest.mark.thorough
@given(rows=late_streams(), arrival=ARRIVALS)
def test_one_commit_a_batch_shows_what_one_batch_shows(rows: list[dict[str, Any]], arrival: Arrival):
    pipeline = pipeline_of(GRIDS, OBJECTS, tie_break=["x"], disorder="1 minute", lateness="30 minutes", arrival=arrival.by)
    whole = check(pipeline, rows, [], final=True, arrival=arrival)
    single = check(pipeline, rows, list(range(len(rows))), final=True, arrival=arrival)
    assert sorted(map(place, whole.rows)) == sorted(map(place, single.rows))


ROW_OF_A = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}


def row(minute: float, **changes: Any) -> dict[str, Any]:
    return ROW_OF_A | {"t": int(minute * MINUTE)} | changes


def test_a_window_that_held_nothing_in_time_begins_with_its_first_late_row():
    pipeline = pipeline_of({"slots": GRIDS["slots"]}, {"n": {"count": "*"}}, lateness="1 hour")
    run = check(pipeline, [row(1), row(25), row(12), row(13), row(2)], [1, 2, 3, 4], final=False)
    shown = [(found["window_start"] // MINUTE, found["revision"], found["n"]) for found in run.rows]
    assert shown == [(0, 0, 1), (10, 0, 1), (10, 1, 2), (0, 1, 2)]


def test_a_window_that_ends_at_the_watermark_is_revised():
    pipeline = pipeline_of({"slots": GRIDS["slots"]}, {"n": {"count": "*"}}, lateness="1 hour")
    for cuts in ([], [1], [1, 2]):
        run = check(pipeline, [row(1), row(10), row(2)], cuts, final=False)
        assert [(found["revision"], found["n"]) for found in run.rows] == [(0, 1), (1, 2)]


def test_late_rows_of_a_commit_share_a_row_of_the_state_and_a_revision():
    pipeline = pipeline_of({"slots": GRIDS["slots"]}, NUMBERS, tie_break=["x"], lateness="1 hour")
    rows = [row(1), row(25), row(2), row(3), row(29), row(4), row(31), row(5)]
    #       commit 0         1               2                 3
    run = check(pipeline, rows, [], final=False, arrival=Arrival((1, 1, 2, 4)))
    assert run.state is not None
    late = run.state.filter(pc.is_valid(run.state[CLOSED]))
    found = zip(late[ARRIVAL].to_pylist(), late[CLOSED].to_pylist(), late["rows"].to_pylist(), strict=True)
    assert sorted(found) == [(2, 20 * MINUTE, 2), (3, 20 * MINUTE, 2)]
    assert [found["n"] for found in run.rows if found["window_end"] == 10 * MINUTE] == [1, 3, 5]
    by_row = check(with_arrival_by_row(pipeline), rows, [], final=False, arrival=Arrival((1, 1, 2, 4), "row"))
    assert [found["n"] for found in by_row.rows if found["window_end"] == 10 * MINUTE] == [1, 2, 3, 4, 5]


def test_late_rows_of_a_commit_revise_a_window_once_though_they_are_in_several_slices():
    pipeline = pipeline_of({"rolling": GRIDS["rolling"]}, NUMBERS, tie_break=["x"], lateness="1 hour")
    for cuts in ([], [1], [2], [1, 2]):
        run = check(pipeline, [row(1), row(25), row(6), row(2)], cuts, final=False, arrival=Arrival((1, 1, 2)))
        assert [(found["revision"], found["n"]) for found in run.rows if found["window_end"] == 7 * MINUTE] == [(0, 1), (1, 3)]


def with_arrival_by_row(pipeline: Pipeline) -> Pipeline:
    return pipeline.model_copy(update={"time": pipeline.time.model_copy(update={"arrival": "row"})})


def test_a_batch_reads_the_slices_of_the_windows_that_its_late_rows_revise():
    pipeline = pipeline_of({"rolling": {"type": "hopping", "size": "10 minutes", "hop": "1 minute"}}, NUMBERS, lateness="10 hours")
    run = Run(pipeline)
    run.step([row(minute) for minute in range(500)])
    run.step([row(500.5)], 500)
    assert run.read == 10  # a window is complete
    run.step([row(495.5)], 501)
    assert run.read == 15  # five are revised, of which the first begins at 486
    run.step([row(500.7)], 502)
    assert run.read == 0


@given(
    rows=late_streams(),
    ends=st.lists(st.sampled_from([-30, -5, 0, 3, 7, 20]), min_size=3, max_size=3),
    lateness=st.sampled_from([0, 4, 30]),
    arrival=ARRIVALS,
)
def test_an_interval_that_is_vouched_for_makes_its_rows_late(rows: list[dict[str, Any]], ends: list[int], lateness: int, arrival: Arrival):
    """All rows of a batch find the watermark of the batch before, so every commit with late rows revises the same windows."""
    pipeline = pipeline_of({name: GRIDS[name] for name in ("slots", "rolling")}, OBJECTS, **vouched(lateness, arrival))
    check_vouched(pipeline, rows, ends, lateness, arrival)


def vouched(lateness: int, arrival: Arrival) -> dict[str, Any]:
    """The fields of time where intervals are vouched for; ``lateness`` in minutes."""
    return {"tie_break": ["x"], "watermark": "data_interval_end", "lateness": f"{lateness} minutes", "arrival": arrival.by}


def check_vouched(
    pipeline: Pipeline, rows: list[dict[str, Any]], ends: list[int], lateness: int, arrival: Arrival, kind: type[Run] = Run
) -> None:
    """Three batches, each of which vouches for as many minutes past its rows as ``ends`` says, have the revisions that they should."""
    run = kind(pipeline, vouched=True)
    watermarks: list[float] = []
    for end, (first, last, commits) in zip(ends, in_thirds(rows, arrival), strict=False):
        watermarks += [float("-inf") if run.emitted is None else run.emitted + lateness * MINUTE] * (last - first)
        latest = max(found["t"] for found in rows[:last])
        run.step(rows[first:last], first, commits, closed=latest + end * MINUTE - lateness * MINUTE)
    moments = range(len(rows)) if arrival.by == "row" else run.commits
    compare_vouched(run, pipeline, rows, list(zip(watermarks, moments, strict=True)), lateness * MINUTE)


def compare_vouched(run: Run, pipeline: Pipeline, rows: list[dict[str, Any]], met: list[tuple[float, int]], lateness: int) -> None:
    """The counts and revisions of ``run``, told plainly for windows of one key after another.

    ``met`` are the watermark at each row's arrival, and the moment at which it arrived.
    """
    assert run.emitted is not None
    wanted = []
    for window in pipeline.windows:
        grid = window.grid()
        for key in sorted({found["k"] for found in rows}):
            held: dict[tuple[int, int], list[tuple[float, int]]] = {}
            for found, (watermark, moment) in zip(rows, met, strict=True):
                if found["k"] == key:
                    stop = max(found.get("e", 0), found["t"] + 1)
                    bounds = grid.ending_in(found["t"], stop + grid.longest)
                    for start, end in zip(*(bound.tolist() for bound in bounds), strict=True):
                        if start < stop and found["t"] < end and watermark - lateness < end <= run.emitted + lateness:
                            held.setdefault((end, start), []).append((watermark, moment))
            for (end, start), arrivals in held.items():
                in_time = sum(watermark < end for watermark, _ in arrivals)
                late = [len(list(together)) for _, together in groupby(moment for watermark, moment in arrivals if watermark >= end)]
                counts = list(accumulate([in_time, *late]))[0 if in_time else 1 :]
                wanted += [(key, window.name, end, start, revision, n) for revision, n in enumerate(counts)]
    assert sorted((*place(found), found["n"]) for found in run.rows) == sorted(wanted)


def test_a_backfill_shows_the_revisions_of_its_range_alone():
    pipeline = pipeline_of({"slots": GRIDS["slots"]}, NUMBERS, tie_break=["x"], lateness="1 hour")
    rows = [row(1), row(25), row(2), row(12), row(23), row(41), row(24), row(3)]
    run = Run(pipeline)
    run.base["builds_state"] = False
    batch = BackfillInput(**run.base)
    slicing = Slicing(batch, run.slices)
    emission = Emission(None, None, 10 * MINUTE, 30 * MINUTE)
    new = NewRows(arrived(rows))
    loaded = load(slicing.judged(new.table), None, slicing, emission)
    done = computed(new, [sliced(run.slices)], [loaded], batch)
    assert done.state is None
    assert done.rows is not None
    ends = [end // MINUTE for end in done.rows["window_end"].cast(pa.int64()).to_pylist()]
    found = sorted(zip(ends, done.rows["revision"].to_pylist(), done.rows["n"].to_pylist(), strict=True))
    assert found == [(20, 0, 1), (30, 0, 2), (30, 1, 3)]


def test_rows_of_settled_files_bring_no_revisions():
    pipeline = pipeline_of({"slots": GRIDS["slots"]}, {"n": {"count": "*"}}, lateness="1 hour")
    run = Run(pipeline)
    run.base["settled"] = 3
    run.step([row(1), row(25), row(2)])
    assert [(found["revision"], found["n"]) for found in run.rows] == [(0, 2)]


def test_policies_keep_positions_beside_slices_and_sessions_that_are_revised():
    policies = {"type": "sliding", "evict": {"count": 3}}
    windows = {"slots": GRIDS["slots"], "visits": {"type": "session", "gap": "5 minutes"}, "last": policies}
    pipeline = pipeline_of(windows, {"n": {"count": "*"}})
    assert divide(pipeline, COLUMNS.arrow).ways == ("slices", "sessions", "positions")
    assert why_rows(pipeline, COLUMNS.arrow) == ()


def test_a_batch_reads_the_nodes_of_the_long_windows_that_its_late_rows_revise():
    pipeline = pipeline_of({"long": {"type": "hopping", "size": "400 minutes", "hop": "1 minute"}}, NUMBERS, lateness="10 hours")
    run = Run(pipeline, nodes=True)
    run.step([row(minute) for minute in range(980)])
    for minute in range(980, 1_000):
        run.step([row(minute)], minute)
    run.step([row(997.5)], 1_000)
    assert 0 < run.read <= 4 * 9  # of the windows that end at 998 and 999, between their two starts and ends
    assert [(found["window_end"] // MINUTE, found["revision"], found["n"]) for found in run.rows[-2:]] == [(998, 1, 401), (999, 1, 401)]
    run.step([row(997.7)], 1_001)
    assert [(found["window_end"] // MINUTE, found["revision"], found["n"]) for found in run.rows[-2:]] == [(998, 2, 402), (999, 2, 402)]
