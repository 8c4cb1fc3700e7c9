"""Restatements: windows and state computed anew from the source as it is now, and what later runs make of them. No JVM."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spark.harness import Bench, cut, differences, events, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.windowing.errors import OutOfTurnError

WINDOWS: dict[str, Any] = {
    "grids": {},
    "sessions": {"windows": [{"name": "visits", "type": "session", "gap": "5 minutes"}]},
    "policies": {"windows": [{"name": "last", "type": "sliding", "evict": {"count": 3}, "trigger": {"count": 2}}]},
    "rows": {"windows": [{"name": "threes", "type": "count", "count": 3}]},
    "revised": {"emit": "revise"},
}


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")


def bench_of(folder: Path, kind: str) -> Bench:
    time = {"column": "t", "tie_break": ["id"], "disorder": "2 hours", "lateness": "10 minutes"}
    return Bench(folder, {"time": time, "aggregates": {"n": {"count": "*"}, "whole": {"sum": "i"}, "last": {"last": "id"}}} | WINDOWS[kind])


def run_in_parts(bench: Bench, parts: Sequence[Sequence[dict[str, Any]]]) -> None:
    for part in parts:
        bench.land(part)
        bench.run()


@pytest.mark.parametrize("kind", WINDOWS)
def test_later_runs_go_on_from_a_state_that_was_built_anew(tmp_path, kind):
    bench, rows = bench_of(tmp_path, kind), events(1, 200)
    parts = cut(rows, 1, 4)
    run_in_parts(bench, parts[:2])
    loop.restate(bench.pipeline, quiet())
    run_in_parts(bench, parts[2:])
    assert [batch.action for batch in Ledger.open(bench.pipeline).batches()] == ["run", "run", "restate", "run", "run"]
    found = {tuple(str(cell) for cell in row.values()): row for row in bench.rows()}
    assert differences(list(found.values()), bench.expected(rows).rows) == []


def test_a_pipeline_that_has_never_run_has_nothing_to_restate(tmp_path):
    bench = bench_of(tmp_path, "grids")
    bench.land(events(1, 5))
    with pytest.raises(OutOfTurnError, match=r"pipeline bench: has committed no batch; `windowmill run` first"):
        loop.restate(bench.pipeline, quiet())
