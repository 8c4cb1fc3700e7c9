"""Nodes in the state of runs on Spark: the reference's rows, from few rows of state."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from checkpoints.places import Places
from checkpoints.state import LEVEL
from jobs.maintenance import maintain
from jobs.run import _Steps
from tests.spark.harness import Bench, differences, events, expected, quiet

pytestmark = pytest.mark.spark
# 1,500 slices, with another window that shares them.
WINDOWS = [
    {"name": "long", "type": "hopping", "size": "1500 minutes", "hop": "1 minute"},
    {"name": "short", "type": "hopping", "size": "47 minutes", "hop": "7 minutes", "origin": "2024-03-01T00:01:00Z"},
]


def test_runs_over_nodes_give_the_rows_of_the_reference(spark, tmp_path, monkeypatch):
    rows = events(41, 420)
    bench = Bench(tmp_path, {"windows": WINDOWS, "keys": ["site"]})
    restored: list[int] = []
    original = _Steps.restore

    def counting(self):
        arrived, state = original(self)
        restored.append(0 if state is None else state.count())
        return arrived, state

    monkeypatch.setattr(_Steps, "restore", counting)
    for begin, end in ((0, 380), (380, 390), (390, 420)):
        bench.land(rows[begin:end])
        bench.run()
        maintain(bench.pipeline, quiet())
    want = expected(bench.pipeline, rows)
    assert differences(bench.rows(), want.rows) == []
    state = DeltaTable(Places.of(bench.pipeline).state).to_pyarrow_table()
    levels = set(state.column(LEVEL).to_pylist())
    assert levels >= {0, 1, 2, 5}
    assert 0 < restored[1] < sum(level == 0 for level in state.column(LEVEL).to_pylist()) / 2
