"""Batches of sessions through a state in memory, against the oracle: late rows, however rows are cut. No Spark."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import Schema
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.test_calendar_batches import CUTS, NUMBERS, OBJECTS, SOURCE, VALUES, arrived, place
from tests.windowing.test_slices import same
from windowmill.checkpoints.state.wanted import OpenSessions, condition
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.lateness_in_process import seen_after
from windowmill.jobs.ways.sessions import stage_of, usable
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.checksums import SUM, RowCheck
from windowmill.windowing.columnar.session_partials import advance
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import sessions_of, why_rows

MINUTE = 60_000_000
#: How far the input moves on from row to row, how far a row comes behind, and what a pipeline allows for that.
ADVANCES = st.sampled_from([0, 1, MINUTE, 5 * MINUTE, 5 * MINUTE + 1, 9 * MINUTE, 10 * MINUTE, 40 * MINUTE])
DELAYS = st.sampled_from([0, 0, 1, MINUTE, 4 * MINUTE, 5 * MINUTE, 12 * MINUTE, 50 * MINUTE])
ALLOWED = st.sampled_from(["0 seconds", "4 minutes", "10 minutes"])
GAPS = {"visit": "5 minutes", "trip": "10 minutes", "stay": "5 minutes", "burst": "1 second"}
COLUMNS = Columns.of(Schema.from_arrow(SOURCE).to_json())


@st.composite
def streams(draw: st.DrawFn) -> list[dict[str, Any]]:
    ahead = list(accumulate(draw(st.lists(ADVANCES, min_size=1, max_size=18)), initial=1_000_000_000_000_000))
    return [{"t": at - draw(DELAYS), **{name: draw(values) for name, values in VALUES.items()}} for at in ahead]


def pipeline_of(windows: list[str], aggregates: dict[str, Any], **time: Any) -> Pipeline:
    named = [{"name": name, "type": "session", "gap": GAPS[name]} for name in windows]
    spec = {"pipeline": "p", "keys": ["k"], "time": {"column": "t", **time}, "windows": named, "aggregates": aggregates}
    return Pipeline.model_validate(spec)


class Run:
    """The batches of a pipeline, each computed as a small one is."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.base: dict[str, Any] = {"pipeline": pipeline, "columns": COLUMNS, "builds_state": True, "check": RowCheck("state")}
        sessions = sessions_of(pipeline, COLUMNS.arrow)
        assert sessions is not None
        self.sessions, self.batch = sessions, 0
        self.state: pa.Table | None = None
        self.seen: int | None = None
        self.emitted: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.refused: list[tuple[int, str]] = []
        self.read = 0

    def step(self, rows: list[dict[str, Any]] | None, first: int = 0) -> None:
        """One batch; ``first`` numbers its rows. None: all windows are complete."""
        batch = Input(**self.base, batch=self.batch, seen=self.seen, emitted=self.emitted)
        table = None if rows is None else arrived(rows)
        if table is not None:
            self.seen = seen_after(table, self.seen)
        before = AXIS_BEGIN if self.emitted is None else self.emitted
        assert self.seen is not None
        self.emitted = AXIS_END if table is None else max(before, self.seen - batch.disorder - batch.lateness)
        stage = replace(stage_of(batch, self.sessions), closed=self.emitted)
        new = stage.rows.empty_table() if table is None else usable(table, batch, stage)
        done = advance(stage, new, self.stored(before, stage.schema))
        assert done.applied + len(done.refused) == len(new)
        self.refused += [(first + number, "too_late") for number in done.refused.tolist()]
        for found in done.results:
            bounds = [found[name].cast(pa.int64()).to_pylist() for name in ("window_start", "window_end")]
            self.rows += [row | {"window_start": a, "window_end": b} for row, a, b in zip(found.to_pylist(), *bounds, strict=True)]
        assert done.state is not None
        self.state = done.state if self.state is None else pa.concat_tables([self.state, done.state])
        self.batch += 1

    def stored(self, closed: int, schema: pa.Schema) -> pa.Table:
        if self.state is None:
            return schema.empty_table()
        wanted = OpenSessions(tuple({gap for _, gap in self.sessions.gaps}), closed)
        found = self.state.filter(condition(wanted, before_batch=self.batch).expression)
        self.read = len(found)
        RowCheck("state").verify(found)
        return found.drop_columns([SUM])


def check(pipeline: Pipeline, rows: list[dict[str, Any]], cuts: list[int], *, final: bool) -> Run:
    run = Run(pipeline)
    for first, last in pairwise(sorted({0, *(cut for cut in cuts if cut < len(rows)), len(rows)})):
        run.step(rows[first:last], first)
    if final:
        run.step(None)
    records = [Record(row, frozenset(["i > 3"] if row["i"] is not None and row["i"] > 3 else [])) for row in rows]
    wanted = evaluate(pipeline, records, final=final)
    assert run.refused == wanted.quarantined
    found, expected = sorted(run.rows, key=place), sorted(wanted.rows, key=place)
    assert [place(row) for row in found] == [place(row) for row in expected]
    for got, want in zip(found, expected, strict=True):
        wrong = {name: (got[name], value) for name, value in want.items() if not same(got[name], value)}
        assert not wrong, (place(want), wrong)
    return run


@pytest.mark.covers("I7")
@given(
    windows=st.lists(st.sampled_from(list(GAPS)), min_size=1, max_size=3, unique=True),
    aggregates=st.sampled_from([NUMBERS, OBJECTS]),
    rows=streams(),
    cuts=CUTS,
    disorder=ALLOWED,
    lateness=ALLOWED,
    final=st.booleans(),
)
def test_batches_are_those_of_the_oracle(
    windows: list[str],
    aggregates: dict[str, Any],
    rows: list[dict[str, Any]],
    cuts: list[int],
    disorder: str,
    lateness: str,
    final: bool,
):
    check(pipeline_of(windows, aggregates, tie_break=["x"], disorder=disorder, lateness=lateness), rows, cuts, final=final)


ROW = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}


def test_a_batch_reads_the_open_session_once_however_many_batches_touched_it():
    run = Run(pipeline_of(["visit"], {"n": {"count": "*"}}))
    for minute in range(60):
        run.step([ROW | {"t": minute * MINUTE}], minute)
        assert run.read <= 6  # a session that got no row for its gap is closed
    assert run.rows == []
    run.step([ROW | {"t": 90 * MINUTE}], 60)
    assert [(row["n"], row["window_end"]) for row in run.rows] == [(60, 64 * MINUTE)]


def test_a_late_row_joins_two_sessions_without_their_rows():
    run = Run(pipeline_of(["visit"], {"n": {"count": "*"}, "values": {"collect": "i"}}, lateness="1 hour"))
    run.step([ROW | {"t": 0, "i": 1}], 0)
    run.step([ROW | {"t": 8 * MINUTE, "i": 3}], 1)
    run.step([ROW | {"t": 4 * MINUTE, "i": 2}], 2)
    run.step([ROW | {"t": 100 * MINUTE}], 3)
    assert [(row["n"], row["values"], row["window_start"], row["window_end"]) for row in run.rows] == [(3, [1, 2, 3], 0, 13 * MINUTE)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"emit": "revise"}, "emit: revise"),
        ({"windows": [{"name": "w", "type": "session", "gap": "5 minutes", "max_size": "1 hour"}]}, "windows.0.max_size"),
        (
            {"windows": [{"name": "w", "type": "session", "gap": "1 hour"}, {"name": "h", "type": "tumbling", "size": "1 hour"}]},
            "windows.1: tumbling windows beside sessions",
        ),
    ],
)
def test_what_keeps_the_rows_of_sessions_is_named(change: dict[str, Any], why: str):
    spec = pipeline_of(["visit"], {"n": {"count": "*"}}).model_dump(mode="json", exclude_none=True)
    pipeline = Pipeline.model_validate(spec | change)
    assert sessions_of(pipeline, COLUMNS.arrow) is None
    assert any(reason.startswith(why) for reason in why_rows(pipeline, COLUMNS.arrow))


def test_no_advance_without_the_condition_on_open_sessions_alone():
    run = Run(pipeline_of(["visit", "trip"], {"n": {"count": "*"}}))
    run.step([ROW | {"t": 0}, ROW | {"t": 7 * MINUTE}], 0)
    assert run.state is not None
    found = run.state.filter(condition(OpenSessions((300_000_000, 600_000_000), 7 * MINUTE), before_batch=1).expression)
    # Of the short gap the first session is closed; of the long one both rows are one session.
    assert sorted(zip(found["_gap"].to_pylist(), found["_last"].to_pylist(), strict=True)) == [
        (5 * MINUTE, 7 * MINUTE),
        (10 * MINUTE, 7 * MINUTE),
    ]
    assert pc.min(run.state["_batch"]).as_py() == 0
