"""A run dies by kill -9, or meets another one; the next run leaves the tables of one clean run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable

from tests.spark.harness import Bench, differences, events
from windowmill.checkpoints.failpoints import FAILPOINTS
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.steps import _Steps

ROWS = events(21, 500)
_PLACES = [place for place in FAILPOINTS if place.partition(".")[0] not in ("held", "ruling", "compact")]


pytestmark = pytest.mark.local


@pytest.fixture(scope="module")
def begun(tmp_path_factory) -> Path:
    """Folder of a pipeline that has committed its first batch and has a second one waiting."""
    bench = Bench(tmp_path_factory.mktemp("begun"))
    bench.land(ROWS[:250])
    bench.run()
    bench.land(ROWS[250:])
    return bench.folder


@pytest.fixture
def bench(begun, tmp_path) -> Bench:
    return Bench(Path(shutil.copytree(begun, tmp_path / "bench")), commits=[0] * 250 + [1] * (len(ROWS) - 250))


@pytest.mark.covers("P1")
@pytest.mark.parametrize("place", _PLACES if os.environ.get("WINDOWMILL_FAULTS") == "all" else ["batch.lost", "sink.lost", "state.before"])
def test_a_run_that_is_killed_before_it_needs_spark_is_made_good_by_the_next(bench, place):
    """Processes of their own; neither starts Spark."""
    spec = bench.folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(spec)]
    killed = subprocess.run(command, env=environment | {"WINDOWMILL_FAILPOINT": f"{place}:kill"}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert b"start " not in killed.stderr
    subprocess.run(command, env=environment, capture_output=True, check=True)
    _check_clean(bench)


def _check_clean(bench: Bench) -> None:
    want = bench.expected(ROWS)
    assert differences(bench.rows(), want.rows) == []
    assert len(bench.quarantine()) == len(want.quarantined)
    batches = Ledger.open(bench.pipeline).batches()
    assert [(b.number, b.status, b.from_version, b.to_version) for b in batches] == [(0, "committed", -1, 0), (1, "committed", 0, 1)]
    assert sum(b.counts.rows_read for b in batches) == len(ROWS)
    for table, role in ((bench.sink, "sink"), (f"{bench.sink}.windowmill/state", "state")):
        writes = [c for c in DeltaTable(table).history() if '"batch": 1' in str(c.get("userMetadata", ""))]
        assert len(writes) == 1, f"{role} has {len(writes)} commits of batch 1"


@pytest.mark.covers("V4")
def test_two_runs_at_once_make_one_commit(tmp_path):
    bench = Bench(tmp_path)
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    bench.land(ROWS)
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(spec)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert sorted("nothing new" in out for out, _ in told) == [False, True]
    assert sum("another run of this pipeline is under way" in err for _, err in told) == 1
    assert [b.status for b in Ledger.open(bench.pipeline).batches()] == ["committed"]
    assert differences(bench.rows(), bench.expected(ROWS).rows) == []


def test_without_the_lease_the_ledger_alone_lets_one_of_two_attempts_commit(bench, monkeypatch):
    """Attempt 1 sleeps through attempt 2's whole run, wakes, and is fenced off without effect."""
    from contextlib import nullcontext

    from windowmill.windowing.errors import FencedError

    monkeypatch.setattr("windowmill.jobs.batch.loop.lease", lambda *a, **k: nullcontext())
    original, woken = _Steps.validate, []

    def overtaken(self, *arguments):
        if not woken:
            woken.append(True)
            assert len(bench.run()) == 1
        return original(self, *arguments)

    monkeypatch.setattr(_Steps, "validate", overtaken)
    with pytest.raises(FencedError, match=r"batch 1 has been recorded by another attempt|another run wrote"):
        bench.run()
    _check_clean(bench)
