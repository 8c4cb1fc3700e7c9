"""Slices of all kinds of partials and grids, and sessions: on Spark and in this process, through the state."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from tests.readers import by_each_scheduler
from tests.spark.harness import Bench, check_runs_backfill_and_upkeep, cut, differences, events, lasting, quiet, run_over
from tests.spark.test_live import AGGREGATES
from windowmill.checkpoints.state import compaction
from windowmill.checkpoints.state.tables import is_log
from windowmill.jobs.batch import loop
from windowmill.jobs.layouts import limits

OBJECTS: dict[str, Any] = AGGREGATES | {
    "texts": {"concat": "label", "where": "v > 50"},
    "about": {"approx_distinct": "id"},
    "top": {"top_k": {"column": "i", "k": 2}},
    "p95": {"quantile": {"column": "i", "q": 0.95}},
    "p95_exact": {"quantile": {"column": "v", "q": 0.95, "exact": True}},
    "middle": {"median": "v"},
}
GRIDS = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"},
]
LONG = [{"name": "long", "type": "hopping", "size": "1500 minutes", "hop": "10 minutes"}]


CALENDARS = [
    {"name": "days", "type": "hopping", "size": "1 day", "hop": "1 hour", "timezone": "America/New_York"},
    {"name": "months", "type": "tumbling", "size": "1 month", "timezone": "Pacific/Apia"},
    {"name": "so_far", "type": "cumulative", "size": "2 hours", "step": "15 minutes"},
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
]
STEPS = [{"name": "steps", "type": "cumulative", "size": "1 hour", "step": "15 minutes"}]
#: Windows that show empty ones, beside one that does not; short ones have many between two events.
EMPTY = [
    {"name": "slots", "type": "tumbling", "size": "2 minutes", "empty": "emit"},
    {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "20 minutes", "empty": "emit"},
    {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"},
]
SESSIONS = [{"name": "visits", "type": "session", "gap": "9 minutes"}, {"name": "stays", "type": "session", "gap": "40 minutes"}]
#: Events that last, and what weighs them by time.
TIME = {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}
SNAPSHOTS = {"name": "spans", "type": "snapshot"}
OVER_TIME = AGGREGATES | {"level": {"time_weighted_mean": "v"}, "level_of": {"time_weighted_mean": "i", "where": "v > 50"}}
CUT = [each | {"name": f"cut_{each['name']}", "max_size": "45 minutes"} for each in SESSIONS]
#: What differs from the bench's own pipeline. A pipeline has many windows: a batch computes all of them at once.
CASES: dict[str, dict[str, Any]] = {
    "grids, calendars and nodes": {"aggregates": OBJECTS, "windows": [*GRIDS, *LONG, *CALENDARS[:3], *STEPS]},
    "sessions": {"aggregates": OBJECTS, "windows": [*SESSIONS, *CUT]},
    "sessions beside grids": {"windows": [*SESSIONS, *CALENDARS]},
    "revisions": {"aggregates": OBJECTS, "windows": [*SESSIONS[:1], *GRIDS, *CALENDARS[1:3]], "emit": "revise"},
    "empty windows": {
        "aggregates": OBJECTS,
        "windows": [LONG[0] | {"empty": "emit"}, *EMPTY, CALENDARS[0] | {"empty": "emit"}, SESSIONS[0]],
        "keys": ["k"],
    },
    "empty windows revised": {"windows": EMPTY, "emit": "revise", "keys": ["k"]},
    "events that last": {"time": TIME, "aggregates": OBJECTS | OVER_TIME, "windows": [*GRIDS, *LONG, *CALENDARS[:3]], "keys": ["k"]},
    "events that last beside snapshots": {"time": TIME, "aggregates": OVER_TIME, "windows": [*EMPTY, SNAPSHOTS], "keys": ["k"]},
    "revisions over events that last": {
        "time": TIME,
        "aggregates": OVER_TIME,
        "windows": [LONG[0], *EMPTY, CALENDARS[0] | {"empty": "emit"}],
        "keys": ["k"],
        "emit": "revise",
    },
}


@by_each_scheduler(
    "case",
    CASES,
    by_tasks=[
        "grids, calendars and nodes",
        "revisions",
        "empty windows",
        "events that last beside snapshots",
        "revisions over events that last",
    ],
)
def test_any_cut_gives_the_rows_of_the_reference(tmp_path, case):
    bench, rows = Bench(tmp_path, CASES[case]), events(31, 400)
    done = check_runs_backfill_and_upkeep(bench, lasting(rows, 36) if bench.pipeline.time.end else rows)
    assert sum(d.outcome.counts.rows_late for d in done) > 0, "no row was late, so lateness was not tried"
    assert not is_log(str(tmp_path / "sink.windowmill" / "state"))


FILLED: dict[str, dict[str, Any]] = {
    "all": {"windows": [*GRIDS, *LONG, EMPTY[1], *SESSIONS]},
    "lasting": {"windows": EMPTY, "time": TIME, "aggregates": OVER_TIME},
}


@by_each_scheduler("case", FILLED, by_tasks=["all"])
def test_a_first_backfill_shows_the_revisions_of_all_windows_and_runs_go_on_after_it(tmp_path, case):
    rows = events(34, 400)
    bench = Bench(tmp_path, {**FILLED[case], "emit": "revise", "keys": ["site"]})
    rows = lasting(rows, 40) if bench.pipeline.time.end else rows
    for part in cut(rows[:300], 5, 60):
        bench.land(part)
    times = sorted(row["t"] for row in rows[:300] if row["t"] is not None)
    loop.backfill(bench.pipeline, quiet(), begin=0, end=times[150])
    run_over(bench, 11, rows[300:], 3)
    assert max(row["revision"] for row in bench.rows()) > 0
    assert differences(bench.rows(), bench.expected(rows).rows) == []


@pytest.mark.spark
def test_a_first_backfill_builds_the_state_of_events_that_last(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MAX_ROWS", 0)
    rows = lasting(events(38, 300), 39)
    bench = Bench(tmp_path, {"time": TIME, "aggregates": OVER_TIME, "windows": [*GRIDS, *STEPS], "keys": ["site"]})
    bench.land(rows[:200])
    times = sorted(row["t"] for row in rows[:200] if row["t"] is not None)
    loop.backfill(bench.pipeline, quiet(), begin=0, end=times[100])
    monkeypatch.undo()
    run_over(bench, 12, rows[200:], 2)
    wanted = bench.expected(rows)
    assert differences(bench.rows(), wanted.rows) == []
    reasons = [reason for _, reason in wanted.quarantined]
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reasons)
    assert set(reasons) == {"null_time", "end_before_time", "too_late"}
    state = DeltaTable(str(tmp_path / "sink.windowmill" / "state")).to_pyarrow_table(columns=["_slice", "_reaching", "rows"])
    assert {0, 1} == set(state["_reaching"].to_pylist())


def test_spans_lie_in_few_files(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_FILES", 2)
    bench, rows = Bench(tmp_path, {"windows": EMPTY, "keys": ["k"]}), events(35, 200)
    run_over(bench, 12, rows, 4)
    state = DeltaTable(str(tmp_path / "sink.windowmill" / "state"))
    assert len(state.file_uris()) <= 2
    spans = state.to_pyarrow_table(columns=["k", "_slice"]).to_pylist()
    of_spans = [row["k"] for row in spans if row["_slice"] is None]
    assert 4 <= len(of_spans) < 12, "those that later batches have superseded are gone"
    assert differences(bench.rows(), bench.expected(rows).rows) == []
