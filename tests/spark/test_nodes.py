"""Nodes in the state of runs on Spark: the reference's rows, from few rows of state, the same state whoever works on a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.spark.harness import Bench, differences, events, quiet
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.layouts import limits
from windowmill.jobs.schedulers import local as local_parts
from windowmill.jobs.schedulers import tasks as spark_parts
from windowmill.jobs.schedulers.exchange import StoredRows
from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, LEVEL, SLICE
from windowmill.windowing.grids import Grids, Nodes

# 1,500 slices, with another window that shares them.
WINDOWS = [
    {"name": "long", "type": "hopping", "size": "1500 minutes", "hop": "1 minute"},
    {"name": "short", "type": "hopping", "size": "47 minutes", "hop": "7 minutes", "origin": "2024-03-01T00:01:00Z"},
]
CUTS = [300, 360, 370]
#: Limits of what is worked on in this process, and which of the two restorings are then by Spark.
LIMITS = [
    pytest.param({"MAX_ROWS": 0}, [True, True], id="by Spark"),
    pytest.param({"MAX_ROWS": 20}, [True, False], id="large batches by Spark"),
    pytest.param({"MAX_STATE_ROWS": 10}, [True, True], id="many rows by Spark"),
    pytest.param({"MAX_SEARCHED_BYTES": 10}, [True, True], id="large files by Spark"),
]


def run(folder: Path, cuts: list[int], lowered: dict[str, int]) -> tuple[Bench, list[StoredRows | pa.Table]]:
    """Batches over rows that end at ``cuts``; the pipeline, and what each batch restored."""
    rows = events(41, cuts[-1])
    bench = Bench(folder, {"windows": WINDOWS, "keys": ["site"]})
    restored: list[StoredRows | pa.Table] = []

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            loaded = original(*arguments)
            if loaded.stored is not None:
                restored.append(loaded.stored)
            return loaded

        return noted

    with pytest.MonkeyPatch.context() as patched:
        # A worker of Spark would not see what is patched.
        patched.setenv("WINDOWMILL_COMPUTE", "auto")
        for module in (local_parts, spark_parts):
            patched.setattr(module, "load", noting(module.load))
        for name, limit in lowered.items():
            patched.setattr(limits, name, limit)
        for begin, end in zip([0, *cuts], cuts, strict=False):
            bench.land(rows[begin:end])
            bench.run()
    return bench, restored


def state(bench: Bench) -> pa.Table:
    found = DeltaTable(Places.of(bench.pipeline).state).to_pyarrow_table()
    return found.sort_by([(name, "ascending") for name in (BATCH, "site", LEVEL, SLICE, CLOSED) if name in found.column_names])


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The pipeline after batches that were worked on in this process."""
    bench, restored = run(tmp_path_factory.mktemp("here"), CUTS, {})
    assert [type(rows) for rows in restored] == [pa.Table, pa.Table]
    assert differences(bench.rows(), bench.expected(events(41, CUTS[-1])).rows) == []
    assert pc.any(pc.is_valid(state(bench).column(CLOSED))).as_py(), "no row came late"
    return bench


@pytest.mark.classic
@pytest.mark.spark
@pytest.mark.parametrize(("limits", "by_spark"), LIMITS)
def test_state_and_rows_are_the_same_here_and_by_spark(here, spark, tmp_path, limits, by_spark):
    bench, restored = run(tmp_path, CUTS, limits)
    assert [isinstance(rows, StoredRows) for rows in restored] == by_spark
    assert differences(bench.rows(), here.rows(), tolerance=0) == []
    assert differences(state(bench).to_pylist(), state(here).to_pylist(), tolerance=0) == []


def test_few_rows_are_restored_from_a_state_kept_small(tmp_path, monkeypatch):
    bench, _ = run(tmp_path, [380], {})
    bench.land(events(41, 390)[380:])
    maintain(bench.pipeline, quiet())
    restored: list[int] = []
    original = DeltaState.partials

    def counting(*arguments, **options):
        found = original(*arguments, **options)
        restored.append(found.num_rows)
        return found

    monkeypatch.setattr(DeltaState, "partials", counting)
    bench.run()
    levels = state(bench).column(LEVEL).to_pylist()
    assert set(levels) >= {0, 1, 2, 5}
    assert 0 < restored[0] < levels.count(0) / 2
    maintain(bench.pipeline, quiet())
    bench.land(events(41, 420)[390:])
    bench.run()
    assert differences(bench.rows(), bench.expected(events(41, 420)).rows) == []


def test_a_state_that_was_made_without_nodes_goes_on_without(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Nodes, "of", lambda grids: None)
        bench, _ = run(tmp_path, [300], {})
    assert Nodes.of(Grids.of(bench.pipeline).grids) is not None
    bench.land(events(41, 360)[300:])
    bench.run()
    assert LEVEL not in state(bench).column_names
    assert differences(bench.rows(), bench.expected(events(41, 360)).rows) == []
