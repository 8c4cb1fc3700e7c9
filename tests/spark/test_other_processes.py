"""The same tables by a Spark Connect server and by two executors as by a session of this process; runs whose server dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable

from tests.faults.kills import BY_SPARK
from tests.spark import over_connect, two_executors
from tests.spark.harness import Bench, differences, events
from tests.spark.serving import Served, serve
from windowmill.checkpoints.places import Places
from windowmill.jobs.commands.doctor import check_server
from windowmill.jobs.spark.access import Access, hadoop_uri

pytestmark = [pytest.mark.spark, pytest.mark.classic, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """One server for all tests here; the last one kills it."""
    with serve() as server:
        yield server


@dataclass
class Found:
    """Pipelines of all ways, and what ``aggregate`` gives for them, in the session of this process."""

    benches: Mapping[str, Bench]
    aggregated: Mapping[str, list[str]]

    def compare_with(self, folder: Path) -> None:
        """Compare with the tables of the pipelines below ``folder``."""
        for name, bench in self.benches.items():
            there = _tables(Bench(folder / Path(bench.folder).name, bench.changes))
            for table, rows in _tables(bench).items():
                assert rows, f"{name}: nothing in the {table}, so nothing is compared"
                assert there[table] == rows, f"{name}: {table}"


def _tables(bench: Bench) -> dict[str, list[str]]:
    """Every row of the sink and of the state, each as a text, so that NaN equals NaN and −0.0 is not 0.0."""
    read = {"sink": DeltaTable(bench.sink), "state": DeltaTable(Places.of(bench.pipeline).state)}
    return {name: sorted(map(repr, pa.table(table.to_pyarrow_table()).to_pylist())) for name, table in read.items()}


@pytest.fixture(scope="module")
def found(spark, tmp_path_factory) -> Found:
    folder = tmp_path_factory.mktemp("here")
    own = str(two_executors.own_package(folder))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WINDOWMILL_COMPUTE", "spark")
        patched.syspath_prepend(own)
        patched.setitem(spark.sparkContext.environment, "PYTHONPATH", own)
        return Found(two_executors.run(folder), over_connect.aggregated(folder))


def _output_of(module: str, folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """The last line of what ``module`` prints when it runs the pipelines below ``folder``."""
    command = [sys.executable, "-m", f"tests.spark.{module}", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1_000)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Warning" not in done.stderr
    return done.stdout.splitlines()[-1]


def test_a_server_writes_the_tables_of_a_session_of_this_process(found, served, tmp_path):
    assert _output_of("over_connect", tmp_path, served.environment) == "pyspark.sql.connect.session"
    found.compare_with(tmp_path)
    assert json.loads((tmp_path / "aggregated.json").read_text()) == found.aggregated
    assert all(found.aggregated.values())


@pytest.mark.covers("P3")
def test_two_executors_write_the_tables_of_one_process(found, tmp_path):
    assert _output_of("two_executors", tmp_path) == "2 executors"
    found.compare_with(tmp_path)


def test_the_address_is_told_and_examined(served, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", served.address)
    [check] = check_server()
    assert check.ok is True
    assert "answers: Spark 4" in check.found
    assert served.address.partition("token=")[2] not in check.found
    monkeypatch.setenv("SPARK_REMOTE", f"{served.address}x")
    [check] = check_server()
    assert (check.ok, "refuses the token" in check.found) == (False, True)


def test_files_are_known_by_the_uris_that_hadoop_gives_them(spark, tmp_path):
    for path in (str(tmp_path), "/a b/ä\u00a0é%20/x=1;y&z", "file:///a//b/", "/日本/[x]{y}#?", "s3a://b/c d"):
        wanted = Access(spark).uri(path) if not path.startswith("s3a") else "s3a://b/c%20d"
        assert hadoop_uri(path) == wanted


def test_after_a_run_that_is_killed_the_next_one_writes_the_tables(served, tmp_path):
    rows, bench = events(74, 200), Bench(tmp_path)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(bench.spec))
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(tmp_path / "spec.yaml"), "--json"]
    bench.land(rows[:100])
    subprocess.run(command, cwd=ROOT, env=served.environment, check=True, capture_output=True, timeout=300)
    bench.land(rows[100:])
    with subprocess.Popen(command, cwd=ROOT, env=served.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "start " not in process.stderr.readline():
            assert process.poll() is None
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    done = subprocess.run(command, cwd=ROOT, env=served.environment, capture_output=True, text=True, check=True, timeout=300)
    assert json.loads(done.stdout)["status"] == "committed"
    assert differences(bench.rows(), bench.expected(rows).rows) == []


@pytest.mark.covers("P2")
def test_a_run_goes_on_where_its_server_is_killed_in_the_middle_and_the_server_starts_anew(served, tmp_path):
    rows, bench, read = events(73, 200), Bench(tmp_path), [""]
    bench.land(rows[:120])
    bench.land(rows[120:])
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(bench.spec))
    command = [sys.executable, "-c", BY_SPARK, "run", str(tmp_path / "spec.yaml"), "--json"]
    with subprocess.Popen(command, cwd=ROOT, env=served.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while "start " not in read[-1]:  # the session is there, and its first job is about to begin
            read.append(process.stderr.readline())
            assert process.poll() is None, "".join(read)
        os.kill(served.pid, signal.SIGKILL)
        output, messages = process.communicate(timeout=600)
    assert process.returncode == 0, messages
    assert json.loads(output)["status"] == "committed"
    told = [line.strip() for line in (*read, *messages.splitlines())]
    assert sum(line.startswith("the Spark Connect server has died or lost its session (") for line in told) == 1, messages
    assert differences(bench.rows(), bench.expected(rows).rows) == []
    served.process.send_signal(signal.SIGTERM)
    _, messages = served.process.communicate(timeout=60)
    assert served.process.returncode == 0
    assert "the server has died (exit code -9); it is restarted" in messages
    assert messages.splitlines()[-1] == "windowmill: the server has ended: asked to stop"
