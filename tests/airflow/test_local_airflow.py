"""The example's own Airflow: which process is ours, and what is shown when a run fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import date

import psutil
import pytest

from examples.flights import demo
from examples.flights.detached import same_process, send_signal, wait_for_ends
from examples.flights.local_airflow import AirflowError, LocalAirflow
from tests.airflow.real.airflows import request_backfill

pytestmark = pytest.mark.dag

TASK = {"dag_id": "flight_delays", "dag_run_id": "scheduled__1", "task_id": "micro_batch", "state": "failed"}


@pytest.fixture
def airflow(tmp_path):
    """One whose process is this test's."""
    return LocalAirflow(str(tmp_path), os.getpid(), psutil.Process().create_time(), port=8080)


def test_only_the_process_that_was_started_is_ours(airflow):
    assert airflow.process() is not None
    assert replace(airflow, created=airflow.created - 60).process() is None  # another one has got its id


def test_a_strangers_process_is_left_alone(tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        LocalAirflow(str(tmp_path), stranger.pid, created=0.0, port=8080).stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_running_survives_a_lost_or_damaged_note(tmp_path):
    assert LocalAirflow.running(tmp_path) is None
    (tmp_path / "running.json").write_text('{"pid": 1')
    assert LocalAirflow.running(tmp_path) is None


def test_a_failed_run_ends_the_demo_with_the_end_of_its_log(airflow, tmp_path, monkeypatch):
    folder = tmp_path / "logs" / "dag_id=flight_delays" / "run_id=scheduled__1" / "task_id=micro_batch"
    folder.mkdir(parents=True)
    lines = [json.dumps({"event": f"line {number}"}) for number in range(40)]
    (folder / "attempt=1.log").write_text("\n".join([*lines, "not JSON"]))
    monkeypatch.setattr(LocalAirflow, "runs", lambda self, dag_id: {"2013-02-01T00:00:00Z": "failed"})
    monkeypatch.setattr(LocalAirflow, "tasks", lambda self, dag_id: [TASK])
    with pytest.raises(AirflowError) as failure:
        demo.watch(airflow, date(2013, 2, 1))
    told = str(failure.value)
    assert told.startswith("micro_batch of scheduled__1 failed; the end of its log:\nline 21\n")
    assert "line 39\nnot JSON\n" in told
    assert "attempt=1.log" in told


@pytest.mark.parametrize("refusal", ["503 to POST: Database is locked.", "409 to POST: There is already a running backfill for dag d"])
def test_a_backfill_that_sqlite_cut_off_is_asked_for_again(airflow, monkeypatch, refusal):
    monkeypatch.setattr(LocalAirflow, "call", _fail_with(refusal))
    assert not request_backfill(airflow, "flights", "2013-02-01T00:00:00+00:00")


def test_a_backfill_that_airflow_refuses_is_an_error(airflow, monkeypatch):
    monkeypatch.setattr(LocalAirflow, "call", _fail_with("404 to POST: Could not find dag flights"))
    with pytest.raises(AirflowError, match="Could not find"):
        request_backfill(airflow, "flights", "2013-02-01T00:00:00+00:00")


def _fail_with(message: str):
    def call(*_: object, **__: object) -> None:
        raise AirflowError(message)

    return call


def test_a_process_that_is_signalled_ends_and_a_zombie_is_not_waited_for():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    process = psutil.Process(child.pid)
    found = same_process(child.pid, created := process.create_time())
    assert found == process
    send_signal(found, signal.SIGTERM)
    wait_for_ends([found], 10)
    assert (process.status(), same_process(child.pid, created)) == (psutil.STATUS_ZOMBIE, None)
    child.wait(10)
    send_signal(found, signal.SIGTERM)


def test_a_schedule_that_stands_still_ends_the_demo_and_wrong_usage_is_told(airflow, monkeypatch, capsys):
    monkeypatch.setattr(demo, "SECONDS_PER_RUN", 0)
    monkeypatch.setattr(LocalAirflow, "runs", lambda self, dag_id: {})
    monkeypatch.setattr(LocalAirflow, "tasks", lambda self, dag_id: [])
    with pytest.raises(AirflowError, match="no run has finished"):
        demo.watch(airflow, date(2013, 2, 1))
    assert demo.main(["demmo"]) == 2
    assert "demo|up|down" in capsys.readouterr().err
