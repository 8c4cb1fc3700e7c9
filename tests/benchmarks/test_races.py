"""The benchmarks' own machinery, on inputs so small that their figures mean nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import hopping, measurement, positions, processes, race, report
from benchmarks.events import Events
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import Result, ratios
from benchmarks.rows import compare


@pytest.mark.spark
def test_windowmill_gives_the_rows_of_sparks_own_windows(tmp_path):
    ways = ["--ways", hopping.OURS, hopping.STAGES, hopping.SPARK, "--repetitions", "1"]
    sizes = ["--rows", "5000", "--keys", "20", "--minutes", "120", "--size", "10", "--warm", "1"]
    places = ["--folder", str(tmp_path), "--results", str(tmp_path / "results.jsonl")]
    measured = hopping.main([*ways, *sizes, *places])
    assert [len(result["seconds"]) for result in measured.results] == [1, 1, 1]
    assert [note for note in measured.notes if "same rows" in note] == measured.notes != []
    [record] = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert [each["name"] for each in record["figures"]] == ["Spark in two stages / windowmill", "Spark window() / windowmill"]


def test_runs_over_positions_restore_few_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(positions, "session", lambda: None)  # what is restored does not depend on who computes
    sizes = ["--short", "50", "--long", "400", "--keys", "2", "--spans", "1 hour", "--rows", "100", "--table", "64", "--repetitions", "1"]
    measured = positions.main([*sizes, "--folder", str(tmp_path), "--results", str(tmp_path / "results.jsonl")])
    counted = [figure for figure in measured.figures if figure.unit == "rows"]
    assert [figure.name for figure in counted if not figure.reached] == []
    assert (len(counted), sum("combines" in note for note in measured.notes)) == (10, 4)


def test_generated_events_are_the_same_each_time_and_skewed_as_asked():
    once, again = (pa.concat_tables(Events(10_000, 50, hot=0.9).batches()) for _ in range(2))
    assert once.equals(again)
    assert 0.88 < sum(key == 0 for key in once["k"].to_pylist()) / 10_000 < 0.92
    assert once["ts"].to_pylist() == sorted(once["ts"].to_pylist())


def test_figures_are_judged_by_the_median_of_the_rounds_that_both_ran():
    ours, theirs = Result("a", [1.0, 2.0, 4.0], [0, 1, 2]), Result("b", [10.0, 8.0], [0, 2])
    assert ratios(ours, theirs) == [10.0, 2.0]
    assert Figure("a", [19, 21, 22], least=20).reached is True
    assert Figure("a", [1.4, 1.1, 1.6], most=1.3).reached is False
    assert Figure("a", [], least=20).reached is None
    stopped = Result("slow", over=240.0)
    figure = Figure.faster(Result("ours", [10.0, 12.0], [0, 1]), stopped, least=20)
    assert (figure.value, figure.reached) == ("more than 22 (20 to 24) ×", True), "what was stopped is a lower bound"
    assert Figure.faster(Result("ours", [20.0], [0]), stopped, least=20).reached is None


@pytest.mark.parametrize(
    ("change", "missing", "wrong"),
    [({}, 0, 0), ({"n": [1, 3]}, 0, 1), ({"window_end": [60, 180]}, 2, 0), ({"sd": [None, 0.5000001]}, 0, 1), ({"sd": [0.5, 0.5]}, 0, 1)],
)
def test_rows_that_differ_are_found(tmp_path, change, missing, wrong):
    rows = {"k": [1, 1], "window_end": [60, 120], "n": [1, 2], "mean": [0.5, 0.5], "top": [0.5, 1.0], "sd": [None, 0.5]}
    for name, values in (("expected", rows), ("actual", rows | change)):
        pq.write_table(pa.table(values), tmp_path / name)
    paths = tmp_path / "expected", tmp_path / "actual"
    found = compare(*paths, key=("k", "window_end"), exact=("n", "top"), floats=("mean", "sd"))
    assert (found.missing, found.wrong, found.same) == (missing, wrong, not missing and not wrong)


def test_an_engine_that_exceeds_the_limit_is_stopped_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.setitem(race.PYTHONS, "tests.benchmarks.sleepers", Path(sys.executable))
    entries = [race.Entry(way, "tests.benchmarks.sleepers", way, {}) for way in ("quick", "slow", "broken")]
    with race.Race(entries, tmp_path, limit=2, budget=10, say=lambda _: None) as contest:
        contest.compete(2)
    quick, slow, broken = contest.results.values()
    assert (len(quick.seconds), quick.out) == (2, False)
    assert (slow.over, slow.seconds, broken.error) == (2, [], "ValueError: cannot do it")


def test_processor_time_and_memory_count_children():
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    children = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}]); print(flush=True); "
        "input(); subprocess.run([sys.executable, '-c', 'input()'])"
    )
    start = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", children], **start) as parent:
        parent.stdout.readline()
        taken = processes.cpu_seconds(parent.pid)
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        with processes.MemoryWatch(parent.pid) as watch:
            while len(processes.session_processes(parent.pid)) < 2 or not watch.peak_bytes:
                time.sleep(0.01)
        parent.communicate(b"\n")
    assert taken >= 0.3, "of children that have ended, too"
    assert watch.at_peak.keys() == {"Python"}
    assert watch.peak_bytes > 1 << 20


def test_the_page_tells_the_latest_measurement_of_each_workload(tmp_path):
    for seconds in ([4.0], [2.0, 2.0, 3.0]):
        measured = Measurement("hopping", "windows", "few events")
        results = Result("windowmill", seconds, list(range(len(seconds)))), Result("slow", over=60.0)
        measured.take(results)
        measured.figures = [Figure.faster(*results, least=20)]
        measured.finish(measurement.terminal(), tmp_path / "results.jsonl")
    records = report.latest(tmp_path / "results.jsonl")
    page = report.page(records)
    assert len(records) == 1
    assert "| windowmill | 2 (2 to 3) |  | 3 |" in page
    assert "| slow | more than 60 |  | 0 |" in page
    assert "| slow / windowmill | more than 30 (20 to 30) × | ≥ 20 | reached |" in page
    assert f"pyspark {records[0]['versions']['pyspark']}" in page


def test_the_page_has_a_place_for_each_measurement_that_is_recorded():
    written = {
        name for module in (race.ROOT / "benchmarks").glob("*.py") for name in re.findall(r'Measurement\(\s*"(\w+)"', module.read_text())
    }
    assert written <= set(report.ORDER)


def test_recorded_commands_name_no_places():
    told = measurement.command("hopping", ["--rows", "10", "--folder", "/here", "--ways", "Spark window", "--results=/there"])
    assert told == "python -m benchmarks.hopping --rows 10 --ways 'Spark window'"
