"""Windows over live rows against the reference engine, on Spark and in the driver, however the input is cut into versions and batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.harness import BASE, MINUTE, Bench, check_runs_backfill_and_upkeep, differences, events, quiet, run_over
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.job import ComputedBatch
from windowmill.jobs.batch.steps import _Steps
from windowmill.jobs.layouts import limits

AGGREGATES: dict[str, Any] = {
    "n": {"count": "*"},
    "big": {"count": "*", "where": "v > 50"},
    "total": {"sum": "v"},
    "spread": {"stddev_samp": "v"},
    "worst": {"arg_max": ["v", "label"]},
    "closing": {"last": "v"},
    "kinds": {"count_distinct": "label"},
    "labels": {"collect": "label"},
    "half": {"quantile": {"column": "i", "q": 0.5}},
    "when": {"max": "t"},
}
POLICIES = [
    {"name": "last_5", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "ticks", "type": "sliding", "evict": {"time": "31 minutes"}, "trigger": {"time": "10 minutes"}},
    {"name": "jumps", "type": "sliding", "evict": {"delta": {"column": "i", "by": 2}}, "trigger": {"delta": {"column": "v", "by": 10}}},
    {"name": "flush", "type": "tumbling", "evict": {"punctuation": "v > 50"}},
]
SHAPES = [
    {"name": "visits", "type": "session", "gap": "4 minutes", "max_size": "1 hour"},
    {"name": "spans", "type": "snapshot"},
    {"name": "three", "type": "count", "count": 3},
    {"name": "steps", "type": "cumulative", "size": "1 hour", "step": "15 minutes"},
    {"name": "days", "type": "tumbling", "size": "1 day", "timezone": "Europe/Vienna"},
]
CASES = {
    "shapes": {"windows": SHAPES},
    "revised": {"windows": [*SHAPES[:1], *SHAPES[3:]], "emit": "revise"},
    "no keys": {"windows": [POLICIES[0], SHAPES[0]], "keys": []},
}


def taking_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many tasks compute every second batch, whatever its size."""
    turns, compute = itertools.cycle(["one task", "many tasks"]), _Steps.compute

    def computed(steps: _Steps) -> ComputedBatch:
        with monkeypatch.context() as patched:
            if next(turns) == "many tasks":
                patched.setattr(limits, "MAX_ROWS", 0)
            return compute(steps)

    monkeypatch.setattr(_Steps, "compute", computed)


class Died(BaseException):
    """Stands for a process that is gone."""


def die_before_record(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin a run that writes its rows and its state, and dies before the record."""

    def dying(*_arguments: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(_Steps, "record", dying)
        with pytest.raises(Died):
            bench.run()


@pytest.mark.parametrize("case", CASES)
def test_any_cut_gives_the_rows_of_the_reference(tmp_path, case):
    compare_with_reference(tmp_path, case)


@pytest.mark.spark
@pytest.mark.parametrize("case", CASES)
def test_one_task_and_many_take_turns(spark, tmp_path, monkeypatch, case):
    taking_turns(monkeypatch)
    compare_with_reference(tmp_path, case)


def compare_with_reference(folder: Path, case: str) -> None:
    bench, rows = Bench(folder, {"aggregates": AGGREGATES} | CASES[case]), events(11, 500)
    done = check_runs_backfill_and_upkeep(bench, rows)
    want = bench.expected(rows)
    assert sum(d.outcome.counts.rows_read for d in done) == len(rows)
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert sum(d.outcome.counts.rows_quarantined for d in done) == len(want.quarantined) > 0


def test_a_batch_that_drops_no_row_leaves_its_whole_state(tmp_path, monkeypatch):
    """It ends no session. Attempts that die before the record leave files that no other batch reads."""
    rows = [{"k": "a", "site": 1, "t": BASE + n * MINUTE, "v": 1.0, "i": n, "label": "x", "id": f"{n}"} for n in (0, 1, 3, 2, 4, 90)]
    bench = Bench(tmp_path, {"aggregates": AGGREGATES, "windows": SHAPES[:1]})
    for begin, end in ((0, 2), (2, 5), (5, 6)):
        bench.land(rows[begin:end])
        die_before_record(bench, monkeypatch)
        bench.run()
    [session] = bench.rows()
    assert session["n"] == 5
    assert differences([session], bench.expected(rows).rows) == []


@pytest.mark.usefixtures("each_scheduler")
def test_a_first_batch_that_is_a_backfill_builds_the_state(tmp_path):
    rows = events(13, 400)
    bench = Bench(tmp_path, {"aggregates": AGGREGATES, "windows": SHAPES[1:3]})
    bench.land(rows[:300])
    middle = sorted(row["t"] for row in rows[:300] if row["t"] is not None)[150]
    loop.backfill(bench.pipeline, quiet(), begin=0, end=middle)
    bench.land(rows[300:])
    bench.run()
    assert differences(bench.rows(), bench.expected(rows).rows) == []


def test_maintenance_keeps_only_what_counts(tmp_path):
    from windowmill.jobs.commands.maintenance_command import maintain
    from windowmill.jobs.commands.state import state_of

    rows = events(14, 400)
    bench = Bench(tmp_path, {"aggregates": AGGREGATES, "windows": SHAPES[1:3]})
    run_over(bench, 8, rows[:300], 4)
    kept = {row["table"]: row for row in maintain(bench.pipeline, quiet()).data}
    assert kept["state"]["rows_expired"] > 0
    told = state_of(bench.pipeline, [], 9).data
    assert told["state"]["entries"] == told["layouts"]["live rows"]["entries"] == told["layouts"]["live rows"]["entries_needed"] > 0
    run_over(bench, 9, rows[300:], 2)
    assert differences(bench.rows(), bench.expected(rows).rows) == []


def test_a_log_that_has_grown_too_long_is_compacted_by_the_run(tmp_path, monkeypatch):
    from windowmill.checkpoints.state import compaction

    rows = events(16, 300)
    bench = Bench(tmp_path, {"aggregates": AGGREGATES, "windows": SHAPES[1:3]})
    run_over(bench, 10, rows[:200], 2)
    bench.land(rows[200:])
    die_before_record(bench, monkeypatch)
    monkeypatch.setattr(compaction, "FEW_FILES", 0)
    bench.run()
    assert differences(bench.rows(), bench.expected(rows).rows) == []
    history = DeltaTable(f"{bench.sink}.windowmill/state").history()
    assert len([commit for commit in history if '"batch": 2' in str(commit.get("userMetadata", ""))]) == 1
    assert "maintenance" in str(history[0].get("userMetadata", ""))
