"""The example under a real scheduler: two scheduled days, then a cleared run and a backfill, which change nothing."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime

import psutil
import pytest

from examples.flights import demo
from examples.flights.recompute import compare
from examples.flights.results import published_rows
from tests.airflow.real.airflows import BACKFILL_SECONDS, request_backfill
from windowmill.checkpoints.ledger import Ledger
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.demo, pytest.mark.timeout(900)]

LAST_DAY = date(2013, 2, 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Puts the demo into a folder of the test's own."""
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    monkeypatch.setattr(demo, "HOME", tmp_path / "airflow")
    monkeypatch.setattr(demo, "WAREHOUSE", tmp_path / "warehouse")
    monkeypatch.setattr(demo, "SERVER", tmp_path / "server")
    monkeypatch.setenv("WAREHOUSE", str(tmp_path / "warehouse"))
    return tmp_path


def test_scheduled_cleared_and_backfill_runs(folder):
    demo.prepare()
    airflow = demo.start(LAST_DAY)
    tree = [psutil.Process(airflow.pid), *psutil.Process(airflow.pid).children(recursive=True)]
    try:
        demo.watch(airflow, LAST_DAY)
        assert demo.show_result(LAST_DAY)
        pipeline = load_pipeline(demo.SPEC)
        rows = sorted_rows(pipeline)
        assert [batch.action for batch in Ledger.open(pipeline).batches()] == ["backfill", "run", "run"]

        last = finished(airflow)[-1]
        airflow.call("POST", f"/dags/{demo.DAG_ID}/dagRuns/{last['dag_run_id']}/clear", json={"dry_run": False})
        wait_for_success(airflow, runs=2)
        assert tasks_of(airflow, last["dag_run_id"]) == {
            "land": "success",
            "micro_batch": "success",
            "quality_report": "success",
            "announce": "skipped",
        }
        assert len(Ledger.open(pipeline).batches()) == 3
        assert sorted_rows(pipeline) == rows

        create_backfill(airflow, datetime(2013, 2, 1, tzinfo=UTC).isoformat())
        wait_for_success(airflow, runs=2, run_type="backfill", wanted=1)
        assert [batch.action for batch in Ledger.open(pipeline).batches()] == ["backfill", "run", "run", "backfill"]
        assert compare(published_rows(pipeline), after=demo.BACKFILL[0], last_day=LAST_DAY).holds
    finally:
        airflow.stop()
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in tree)
    assert not demo.stop_leftovers()


def create_backfill(airflow, instant: str) -> None:
    """Ask until Airflow takes the request."""
    deadline = time.monotonic() + BACKFILL_SECONDS
    while not request_backfill(airflow, demo.DAG_ID, instant):
        assert time.monotonic() < deadline, "Airflow took no backfill"
        time.sleep(2)


def sorted_rows(pipeline) -> list:
    columns = published_rows(pipeline).to_pydict()
    return sorted(map(repr, zip(*columns.values(), strict=True)))


def finished(airflow) -> list[dict]:
    return airflow.call("GET", f"/dags/{demo.DAG_ID}/dagRuns", params={"order_by": "logical_date"})["dag_runs"]


def tasks_of(airflow, run_id: str) -> dict[str, str]:
    answer = airflow.call("GET", f"/dags/{demo.DAG_ID}/dagRuns/{run_id}/taskInstances")
    return {task["task_id"]: task["state"] for task in answer["task_instances"]}


def wait_for_success(airflow, *, runs: int, run_type: str = "scheduled", wanted: int = 0) -> None:
    """Until ``runs`` runs have succeeded, ``wanted`` of them (at least) of ``run_type``, and none is under way."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        states = [(run["run_type"], run["state"]) for run in finished(airflow)]
        assert "failed" not in {state for _, state in states}
        if states.count((run_type, "success")) >= wanted and [state for _, state in states] == ["success"] * runs:
            return
        time.sleep(1)
    pytest.fail(f"runs did not end: {states}")
