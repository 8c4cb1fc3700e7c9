"""A changed spec that Spark's tasks compute, and one whose sink only Spark can write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.spark.harness import AGGREGATES, TIME, Bench, differences, events, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.layouts import limits
from windowmill.windowing.axis import AXIS_BEGIN

pytestmark = pytest.mark.spark

SLOTS: dict[str, Any] = {"name": "slots", "type": "tumbling", "size": "10 minutes"}
GAPS: dict[str, Any] = {"name": "gaps", "type": "hopping", "size": "5 minutes", "hop": "20 minutes"}
VISITS: dict[str, Any] = {"name": "visits", "type": "session", "gap": "9 minutes"}
LAST_FIVE: dict[str, Any] = {"name": "last_five", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}}
SPANS: dict[str, Any] = {"name": "spans", "type": "snapshot"}
FEW = {name: AGGREGATES[name] for name in ("n", "total", "low")}


@pytest.mark.parametrize("only_spark_writes", [False, True])
def test_a_changed_spec_gives_the_tables_of_a_rebuild(spark, tmp_path, monkeypatch, only_spark_writes):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")
    bench, rows = Bench(tmp_path, {"windows": [SLOTS, VISITS], "aggregates": FEW}), events(57, 400)
    for n in range(2):
        bench.land(rows[n * 100 : (n + 1) * 100])
        bench.run()
    left = [row for row in bench.rows() if row["window"] == "visits"]
    if only_spark_writes:
        DeltaTable(bench.sink).alter.add_constraint({"counted": "n >= 0"})
    bench.changes = {"windows": [GAPS, SLOTS, LAST_FIVE, SPANS], "aggregates": FEW | {"average": AGGREGATES["average"]}}
    with monkeypatch.context() as patched:
        patched.setattr(limits, "MAX_ROWS", 0)
        done = loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN)
    assert done is not None
    assert done.outcome.compute["tasks"] > 1
    bench.land(rows[200:])
    bench.run()
    assert differences([row for row in bench.rows() if row["window"] != "visits"], bench.expected(rows).rows) == []
    assert differences([row for row in bench.rows() if row["window"] == "visits"], left) == []


def test_other_settings_of_time_give_what_this_process_gives(spark, tmp_path, monkeypatch):
    def tables(folder: Path) -> tuple[list[Any], list[Any]]:
        bench, rows = Bench(folder, {"windows": [GAPS, SLOTS, VISITS, LAST_FIVE, SPANS], "aggregates": FEW}), events(58, 400)
        folder.mkdir()
        longer, calm = TIME | {"lateness": "40 minutes"}, TIME | {"lateness": "40 minutes", "disorder": "20 minutes"}
        changes: list[dict[str, Any]] = [{}, {"time": longer}, {"emit": "revise"}, {"time": calm}, {"time": TIME}]
        for n, change in enumerate(changes):
            bench.changes |= change
            if n:
                assert loop.apply(bench.pipeline, quiet(), history=AXIS_BEGIN, recompute=n == 2) is not None
            for first in range(80 * n, 80 * (n + 1), 10):
                bench.land(rows[first : first + 10])
            bench.run()
        return bench.rows(), sorted((row["reason"], row["event_time"]) for row in bench.quarantine() if row["event_time"] is not None)

    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    here, lost = tables(tmp_path / "here")
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    monkeypatch.setattr(limits, "MAX_ROWS", 0)
    there, lost_there = tables(tmp_path / "there")
    assert (differences(there, here), lost_there) == ([], lost)
    assert lost
    assert any(row["revision"] for row in here)
