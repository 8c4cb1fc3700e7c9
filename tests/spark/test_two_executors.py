"""The same tables from two executors as from one process with two threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.spark import two_executors
from tests.spark.harness import Bench
from windowmill.checkpoints.places import Places

pytestmark = [pytest.mark.spark, pytest.mark.classic]

ROOT = Path(__file__).parents[2]


def tables(bench: Bench) -> dict[str, list[str]]:
    """Every row of the sink and of the state, each as a text, so that NaN equals NaN and −0.0 is not 0.0."""
    read = {"sink": DeltaTable(bench.sink), "state": DeltaTable(Places.of(bench.pipeline).state)}
    return {name: sorted(map(repr, pa.table(table.to_pyarrow_table()).to_pylist())) for name, table in read.items()}


@pytest.mark.covers("P3")
@pytest.mark.timeout(1_200)  # a second JVM, and two more for the executors
def test_two_executors_write_the_tables_of_one_process(spark, tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    own = str(two_executors.own_package(one))
    monkeypatch.syspath_prepend(own)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", own)
    here = two_executors.run(one)
    two.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.two_executors", str(two)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1_000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "2 executors"
    for name, bench in here.items():
        there = Bench(two / Path(bench.folder).name, bench.changes)
        for table, rows in tables(bench).items():
            assert rows, f"{name}: nothing in the {table}, so nothing is compared"
            assert tables(there)[table] == rows, f"{name}: {table}"
