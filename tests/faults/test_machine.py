"""Whatever order appends, crashes, rulings, backfills and upkeep come in, tables and ledger equal the reference engine's.

`make test` takes a few dozen steps, the same every time; `make machine` takes ``WINDOWMILL_STEPS`` (5,000) from the seed
``WINDOWMILL_SEED`` (0) on, 500 a seed, and prints the seeds that failed.
"""

from __future__ import annotations

import shutil

import pytest

from tests.faults.machine import WANTED, Machine, take, take_those_wanted
from windowmill.checkpoints import delta_tables
from windowmill.checkpoints.state import compaction
from windowmill.jobs.batch import finishing

pytestmark = [pytest.mark.spark, pytest.mark.covers("P1", "P10", "P11", "S5", "I2", "I11", "I12", "Q1")]
if WANTED:
    pytestmark.append(pytest.mark.timeout(0))


@pytest.fixture
def machine(spark, tmp_path, monkeypatch):
    """The machine with a folder of its own, over tables that are compacted after a few files."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "auto")  # the machine itself gives batches to Spark
    monkeypatch.setattr(Machine, "root", tmp_path, raising=False)
    monkeypatch.setattr(Machine, "_prepared", {})
    Machine.done.clear()
    monkeypatch.setattr(compaction, "FEW_FILES", 6)
    monkeypatch.setattr(delta_tables, "FEW_FILES", 6)
    monkeypatch.setattr(finishing, "MERGED_EVERY", 4)
    yield Machine
    shutil.rmtree(tmp_path)


def test_steps_in_any_order(machine):
    if WANTED:
        take_those_wanted()
    else:
        take(3, examples=2, steps=15)
        assert machine.done.total() >= 22
