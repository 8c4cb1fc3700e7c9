"""Batches of windows on all kinds of grids through a state in memory, against the oracle: late rows, however rows are cut. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import ARRIVALS, ROW_BY_ROW, Arrival, arriving, between_commits, delays, many, shared
from tests.windowing.calendar_cases import CALENDARS, DAY, HOUR, MINUTE, ODD, WINDOWS, pipeline_of
from tests.windowing.test_slices import same
from windowmill.jobs.sources.columns import FILE, REASON, ROW, Columns
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.lateness import LatenessRule, judged, judged_at, seen_after, with_arrival
from windowmill.jobs.ways.slices import Slicing, _check_fits, advance
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, SLICE, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide

NUMBERS: dict[str, Any] = {
    "n": {"count": "*"},
    "large": {"count": "i", "where": "i > 3"},
    "whole": {"sum": "i"},
    "total": {"sum": "f"},
    "low": {"min": "s"},
    "worst": {"arg_max": ["f", "s"]},
    "opening": {"first": "s"},
    "closing": {"last": "i"},
    "spread": {"stddev_samp": "f"},
}
OBJECTS = NUMBERS | {"kinds": {"count_distinct": "s"}, "greatest": {"top_k": {"column": "i", "k": 2}}}
SOURCE = pa.schema(
    [("k", pa.string()), ("t", pa.timestamp("us", "UTC")), ("x", pa.int64()), ("i", pa.int64()), ("f", pa.float64()), ("s", pa.string())]
)
VALUES = {
    "k": st.sampled_from("ab"),
    "x": st.integers(0, 1),
    "i": st.one_of(st.none(), st.integers(-9, 9)),
    "f": st.one_of(st.none(), st.integers(-99, 99).map(lambda n: n / 8)),
    "s": st.sampled_from("xyz"),
}
#: How far the input moves on from row to row, how far a row comes behind, and what a pipeline allows for that.
ADVANCES = st.sampled_from([0, 10 * MINUTE, 3 * HOUR, 11 * HOUR, DAY, 3 * DAY, 20 * DAY])
DELAYS = st.sampled_from([30 * HOUR, 5 * HOUR, 40 * DAY, HOUR])
BOUNDS = st.fixed_dictionaries(
    {"disorder": st.sampled_from(["0 seconds", "2 hours", "3 days"]), "lateness": st.sampled_from(["0 seconds", "5 hours", "2 days"])}
)


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    start = draw(st.sampled_from(ODD)) + draw(st.integers(-2_000, 2_000)) * MINUTE
    ahead = list(accumulate(draw(many(ADVANCES, 14)), initial=start))
    behind = draw(delays(DELAYS))
    return [{"t": at - next(behind) + draw(st.integers(-1, 1)), **{name: draw(values) for name, values in VALUES.items()}} for at in ahead]


class Files(NamedTuple):
    """The files that commits have added, of at most two rows: for each row its file and its index in it, and each file's commit."""

    file: list[int]
    row: list[int]
    commits: tuple[int, ...]

    @classmethod
    def of(cls, commits: Sequence[int]) -> Files:
        """Those of rows with these ``commits``."""
        placed = [(commit, place) for _, rows in groupby(commits) for place, commit in enumerate(rows)]
        begins = [place % 2 == 0 for _, place in placed]
        of_files = tuple(commit for (commit, _), first in zip(placed, begins, strict=True) if first)
        return cls([file - 1 for file in accumulate(begins)], [place % 2 for _, place in placed], of_files)

    def refused(self, table: pa.Table, first: int) -> list[tuple[int, str]]:
        """Number and reason of each row of ``table`` that has one; ``first`` numbers the rows of these files."""
        places = {held: place for place, held in enumerate(zip(self.file, self.row, strict=True), first)}
        return [(places[row[FILE], row[ROW]], row[REASON]) for row in table.select([FILE, ROW, REASON]).to_pylist() if row[REASON]]


class Run:
    """The batches of a pipeline, each judged and computed as a small one is, with what maintenance would leave of the state."""

    def __init__(self, pipeline: Pipeline) -> None:
        columns = Columns.of(Schema.from_arrow(SOURCE).to_json())
        self.base = {"pipeline": pipeline, "types": columns.arrow, "builds_state": True, "check": RowCheck("state")}
        parts = divide(pipeline, columns.arrow)
        assert parts.slices is not None
        self.slices, self.batch, self.state = parts.slices, 0, None
        self.seen: int | None = None
        self.emitted: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.refused: list[tuple[int, str]] = []
        self.commits: list[int] = []

    def step(self, rows: list[dict[str, Any]], first: int, commits: Sequence[int] | None = None) -> None:
        """One batch; ``first`` numbers its rows, each of which is a commit unless ``commits`` are given."""
        files = Files.of(arriving(self.commits, len(rows), commits))
        batch = Input(**self.base, batch=self.batch, seen=self.seen, emitted=self.emitted, commits=files.commits)
        table = arrived(rows, files)
        self.seen = seen_after(table, self.seen)
        assert self.seen is not None
        told = judged(table, batch, self.slices.grids.grids)
        self.refused += files.refused(told, first)
        self.emit(batch, told, self.seen - batch.disorder - batch.lateness)

    def end(self) -> None:
        """A last batch without rows, after which all windows are complete."""
        self.emit(Input(**self.base, batch=self.batch, seen=self.seen, emitted=self.emitted), None, AXIS_END)

    def emit(self, batch: Input, told: pa.Table | None, closed: int) -> None:
        grids, after = self.slices.grids, AXIS_BEGIN if self.emitted is None else self.emitted
        through = self.emitted = max(after, closed)
        stage, stored = Slicing(batch, self.slices).window_stage(Emission(self.seen, through, after, through)), None
        if self.state is not None and grids.any_end(after, through):
            start = self.state[SLICE]
            stored = self.state.filter(pc.and_(pc.greater_equal(start, grids.first_slice_after(after)), pc.less(start, through)))
        _check_fits(told, stored, stage)
        for part in advance(stage, told, stored):
            for found in part.results:
                bounds = [found[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
                rows = zip(found.to_pylist(), *bounds, strict=True)
                self.rows += [row | {"window_start": start, "window_end": end} for row, start, end in rows]
            if part.state is not None:
                self.state = part.state if self.state is None else pa.concat_tables([self.state, part.state])
        if self.state is not None:
            self.state = self.state.filter(pc.greater_equal(self.state[SLICE], grids.first_slice_after(through)))
        self.batch += 1


def arrived(rows: list[dict[str, Any]], files: Files | None = None) -> pa.Table:
    """The ``rows`` of these ``files``; each row is in a file of its own unless given."""
    files = Files.of(range(len(rows))) if files is None else files
    whole = pa.Table.from_pylist(rows, schema=pa.schema([field if field.name != "t" else pa.field("t", pa.int64()) for field in SOURCE]))
    n = len(rows)
    whole = whole.append_column(TIME, whole["t"]).append_column(FILE, pa.array(files.file, pa.int32()))
    whole = whole.append_column(ROW, pa.array(files.row, pa.int64())).append_column(REASON, pa.nulls(n, pa.string()))
    return whole.append_column(condition_column("i > 3"), pa.array([row["i"] is not None and row["i"] > 3 for row in rows], pa.bool_()))


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["k"], row["window"], row["window_end"], row["window_start"]


def feed_in_batches(run: Any, rows: list[dict[str, Any]], cuts: list[int], arrival: Arrival) -> None:
    """Feed ``rows``, cut at ``cuts``, to a ``run`` of any kind."""
    commits = arrival.commits(len(rows))
    for first, last in pairwise(sorted({0, *between_commits([cut for cut in cuts if cut < len(rows)], commits), len(rows)})):
        run.step(rows[first:last], first, commits[first:last])


def check(pipeline: Pipeline, rows: list[dict[str, Any]], cuts: list[int], *, final: bool, arrival: Arrival = ROW_BY_ROW) -> None:
    run = Run(pipeline)
    feed_in_batches(run, rows, cuts, arrival)
    if final:
        run.end()
    compare(run, pipeline, rows, final=final)


def compare(
    run: Any, pipeline: Pipeline, rows: list[dict[str, Any]], *, final: bool, place: Callable[[dict[str, Any]], tuple[Any, ...]] = place
) -> None:
    """The result rows and refusals of ``run`` are those of the oracle; ``place`` tells rows apart."""
    records = [Record(row, frozenset(["i > 3"] if row["i"] is not None and row["i"] > 3 else [])) for row in rows]
    wanted = evaluate(pipeline, records, commits=run.commits, final=final)
    assert run.refused == wanted.quarantined
    found, expected = sorted(run.rows, key=place), sorted(wanted.rows, key=place)
    assert [place(row) for row in found] == [place(row) for row in expected]
    for got, want in zip(found, expected, strict=True):
        wrong = {name: (got[name], value) for name, value in want.items() if not same(got[name], value)}
        assert not wrong, (place(want), wrong)


CUTS = st.lists(st.integers(1, 15), max_size=5)


@pytest.mark.thorough
@pytest.mark.covers("I7")
@pytest.mark.parametrize("window", [*CALENDARS, "growing", "growing_shifted", "here"])
@shared(len(CALENDARS) + 3, 12)
@given(rows=streams(), cuts=CUTS, arrival=ARRIVALS, bounds=BOUNDS, final=st.booleans())
def test_batches_are_those_of_the_oracle(
    window: str, rows: list[dict[str, Any]], cuts: list[int], arrival: Arrival, bounds: dict[str, str], final: bool
):
    pipeline = pipeline_of([window], NUMBERS, tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


@given(
    windows=st.lists(st.sampled_from(list(WINDOWS)), min_size=2, max_size=4, unique=True),
    aggregates=st.sampled_from([NUMBERS, OBJECTS]),
    rows=streams(),
    cuts=CUTS,
    arrival=ARRIVALS,
    bounds=BOUNDS,
    final=st.booleans(),
)
def test_windows_of_all_kinds_share_their_slices(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    arrival: Arrival,
    bounds: dict[str, str],
    final: bool,
):
    pipeline = pipeline_of(windows, aggregates, tie_break=["x"], arrival=arrival.by, **bounds)
    check(pipeline, rows, cuts, final=final, arrival=arrival)


def test_a_month_is_stored_as_one_slice_and_read_when_it_ends():
    run = Run(pipeline_of(["month"], {"n": {"count": "*"}}))
    january = ODD[7] - 30 * DAY
    row = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}
    for day in range(31):
        run.step([row | {"t": january + day * DAY}], day)
    assert run.rows == []
    assert run.state is not None
    assert set(run.state[SLICE].to_pylist()) == {january}
    run.step([row | {"t": january + 31 * DAY}], 31)
    assert [(found["n"], found["window_end"] - found["window_start"]) for found in run.rows] == [(31, 31 * DAY)]
    assert run.state[SLICE].to_pylist() == [january + 31 * DAY]


def test_a_row_counts_in_the_windows_that_end_after_the_edge_through_which_they_were_closed():
    grids = Grids.of(pipeline_of(["day", "growing_days"])).grids
    time, closed = ODD[0] + HOUR, ODD[0] + 3 * DAY
    rule = LatenessRule(disorder=0, lateness=0, by_row=True, moves=True, revises=False)
    columns = {TIME: pa.array([None, time, time, time + DAY]), REASON: pa.array(["null_time", None, None, None])}
    rows = with_arrival(pa.table(columns), np.arange(4), None)
    watermarks = pa.array([closed, closed, None, closed], pa.int64())
    rows = rows.set_column(rows.schema.get_field_index(WATERMARK_OF), WATERMARK_OF, watermarks)
    for until, too_late in (({}, "too_late"), ({UNTIL_OF: pc.add(columns[TIME], 4 * DAY)}, None)):
        table = pa.table({name: rows.column(name) for name in rows.column_names} | until)
        found = judged_at(table, rule, grids)
        ends = [max(grid.last_end_holding(at + (4 * DAY - 1 if until else 0)) for grid in grids) for at in (time, time + DAY)]
        assert [end <= closed for end in ends] == [too_late is not None] * 2
        assert found[REASON].to_pylist() == ["null_time", too_late, None, too_late]
        assert found[LATE].to_pylist() == [False, True, False, True]
        edge = Grids.of(pipeline_of(["day", "growing_days"])).edges.slice_start(closed)
        first = [min(grid.first_end_after(at) for grid in grids) for at in (time, time + DAY)]
        assert [end <= closed for end in first] == [True, True]
        assert found[CLOSED].to_pylist() == [None, edge, None, edge]
        assert {NUMBER_OF, WATERMARK_OF}.isdisjoint(found.column_names)
    nothing = judged_at(with_arrival(pa.table({TIME: [time], REASON: pa.nulls(1, pa.string())}), np.arange(1), None), rule, grids)
    assert nothing[CLOSED].type == pa.int64()
    assert (nothing[CLOSED].to_pylist(), nothing[LATE].to_pylist()) == ([None], [False])
