"""Pipelines whose windows go several ways: on Spark and in this process, through one state table."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.readers import by_each_scheduler
from tests.spark.harness import BASE, MINUTE, SCHEMA, Bench, check_runs_backfill_and_upkeep, cut, differences, events, quiet, run_over
from tests.spark.test_live import AGGREGATES, POLICIES, SHAPES
from windowmill.checkpoints.state import compaction
from windowmill.jobs.batch import loop
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.commands.state import state_of

SLOTS: dict[str, Any] = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
GAPS: dict[str, Any] = {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "20 minutes"}
VISITS: dict[str, Any] = {"name": "visits", "type": "session", "gap": "9 minutes"}
LONG: dict[str, Any] = {"name": "long", "type": "hopping", "size": "1500 minutes", "hop": "10 minutes"}
LAST, TICKS, JUMPS, FLUSH = POLICIES
LIMITED, SPANS, THREE = SHAPES[:3]
CASES: dict[str, dict[str, Any]] = {
    "all ways": {"windows": [SLOTS, GAPS, VISITS, LAST, TICKS, JUMPS, SPANS], "aggregates": AGGREGATES},
    "partials": {"windows": [LONG, GAPS, VISITS, LAST, FLUSH], "aggregates": AGGREGATES},
    "gaps and policies": {"windows": [GAPS, LAST]},
    "revised": {"windows": [SLOTS, GAPS, VISITS, LIMITED | {"name": "short"}], "emit": "revise"},
    "empty windows": {"windows": [SLOTS | {"empty": "emit"}, GAPS, VISITS, LAST, SPANS]},
    "no keys": {"windows": [SLOTS, LAST, THREE], "keys": []},
}


@by_each_scheduler("case", CASES, by_tasks=["empty windows"])
def test_any_cut_gives_the_rows_of_the_reference(tmp_path, case):
    bench, rows = Bench(tmp_path, CASES[case]), events(31, 400)
    done = check_runs_backfill_and_upkeep(bench, rows)
    assert sum(d.outcome.counts.rows_late for d in done) > 0, "no row was late, so lateness was not tried"
    want = bench.expected(rows)
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert sum(d.outcome.counts.rows_quarantined for d in done) == len(want.quarantined) > 0


def test_a_run_compacts_a_table_of_all_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_FILES", 1)
    bench, rows = Bench(tmp_path, CASES["empty windows"]), events(36, 200)
    run_over(bench, 10, rows, 3)
    assert len(DeltaTable(f"{bench.sink}.windowmill/state").file_uris()) <= 2
    assert differences(bench.rows(), bench.expected(rows).rows) == []


@pytest.mark.spark
@pytest.mark.usefixtures("either_reader")
def test_small_batches_of_all_ways_are_computed_by_one_task(spark, tmp_path):
    bench, rows = Bench(tmp_path, CASES["all ways"]), events(32, 300)
    done = run_over(bench, 8, rows, 3)
    assert {(each.outcome.compute["engine"], each.outcome.compute["tasks"]) for each in done} == {("spark", 1)}
    assert differences(bench.rows(), bench.expected(rows).rows) == []


def test_a_backfill_builds_the_state_that_runs_leave(tmp_path):
    rows = events(34, 300)
    by_runs, at_once = (Bench(tmp_path / name, CASES["all ways"]) for name in ("runs", "once"))
    for bench in (by_runs, at_once):
        bench.folder.mkdir()
        if bench is by_runs:
            run_over(bench, 9, rows, 3)
        else:
            for part in cut(rows, 9, 3):
                bench.land(part)
            loop.backfill(bench.pipeline, quiet(), begin=0, end=1 << 52)
        maintain(bench.pipeline, quiet())
        assert differences(bench.rows(), bench.expected(rows).rows) == []
    left = [_state(bench) for bench in (by_runs, at_once)]
    assert left[0].keys() == left[1].keys() == {"slices", "sessions", "positions", "live_rows"}
    assert left[0]["positions"] == left[1]["positions"]
    # Entries of live rows have the numbers of rows.
    assert len(left[0]["live_rows"]) == len(left[1]["live_rows"])


def test_state_shows_every_part(tmp_path, capsys):
    windows = [SLOTS | {"empty": "emit"}, *CASES["all ways"]["windows"][1:]]
    bench = Bench(tmp_path, CASES["all ways"] | {"keys": ["k"], "windows": windows})
    run_over(bench, 9, events(35, 200), 2)
    told = state_of(bench.pipeline, ["k=a"], 1_000).data
    assert told["layouts"].keys() == told["entries"].keys() == {"slices", "sessions", "positions", "live rows"}
    columns = {layout: {name for entry in entries for name in entry["row"]} for layout, entries in told["entries"].items()}
    assert {"_slice", "_slots__first", "rows"} <= columns["slices"]
    assert {"_gap", "rows"} <= columns["sessions"]
    assert {"_last_5__front", "_ticks__front", "_jumps__front", "rows"} <= columns["positions"]
    assert "_spans__rows" in columns["live rows"]
    assert "rows" not in columns["live rows"]
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(bench.spec))
    assert main(["state", str(spec), "--key", "k=a"]) == 0
    shown = capsys.readouterr().out
    assert [layout for layout in told["layouts"] if f"{layout}: " in shown] == list(told["layouts"])


def noted(begun: dict[str, Any] | None, event: dict[str, Any]) -> tuple[dict[str, Any], int, list[int]]:
    """A window for each event with a note, through the next event."""
    begun = begun or {"windows": 0, "open": []}
    opens = int(event.get("note") is not None)
    numbers = [begun["windows"]] * opens
    return {"windows": begun["windows"] + opens, "open": numbers}, opens, begun["open"]


BESIDE: dict[str, list[dict[str, Any]]] = {"alone": [], "beside others": [SLOTS, LAST]}


@by_each_scheduler("case", BESIDE, by_tasks=["alone"])
def test_a_source_may_get_a_column_that_a_window_function_is_told(tmp_path, case):
    beside = BESIDE[case]
    window = {"name": "noted", "type": "custom", "function": "tests.spark.test_mixed:noted"}
    time = {"column": "t"}
    bench = Bench(tmp_path, {"aggregates": {"n": {"count": "*"}}, "windows": [window, *beside], "keys": ["k"], "time": time})
    rows = [event | {"k": "a", "t": BASE + minute * MINUTE} for minute, event in enumerate(events(15, 30))]
    wider = SCHEMA.insert(0, pa.field("note", pa.string()))
    bench.land(rows[:3])
    bench.run()
    for later in ([row | {"note": "x"} for row in rows[3:5]], rows[5:]):
        bench.append(pa.Table.from_pylist(later, schema=wider), schema_mode="merge")
        bench.run()
    found = bench.rows()
    assert [(row["window_start"] - BASE) // MINUTE for row in found if row["window"] == "noted"] == [3, 4]
    assert {row["window"] for row in found} == {"noted", *(each["name"] for each in beside)}
    if beside:
        state = DeltaTable(f"{bench.sink}.windowmill/state").schema().to_arrow().names
        assert {"_row__note", "_slice", "_sequence"} <= set(state)


def _state(bench: Bench) -> dict[str, list[str]]:
    """The rows of the state by part, but for the numbers of batches and rows."""
    found: dict[str, list[str]] = {}
    for row in DeltaTable(f"{bench.sink}.windowmill/state").to_pyarrow_table().to_pylist():
        part = "slices" if row["_slice"] is not None else "sessions" if row["_gap"] is not None else "positions"
        part = "live_rows" if part == "positions" and row["_sequence"] is None else part
        kept = {name: value for name, value in row.items() if value is not None and name not in ("_batch", "_number", "_sum")}
        found.setdefault(part, []).append(repr(sorted(kept.items())))
    return {part: sorted(rows) for part, rows in found.items()}
