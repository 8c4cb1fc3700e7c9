"""Under a real Airflow: a task waits in the triggerer alone until the source gets rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

pytestmark = [pytest.mark.dag, pytest.mark.timeout(900)]

DAG_FILE = """
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from windowmill.dags.sensors import SourceVersionSensor

with DAG("waits"):
    SourceVersionSensor(task_id="wait", spec={spec!r}, poke_interval=1, wait_for_table=True) >> EmptyOperator(task_id="go")
"""


def test_rows_end_a_tasks_waiting(real_airflow, write_spec, tmp_path: Path):
    airflow = real_airflow
    airflow.start("triggerer")
    airflow.add("triggerer", DAG_FILE.format(spec=str(write_spec())), ["waits"])
    run = airflow.trigger("waits")
    airflow.wait("the waiting task", lambda: airflow.tasks("waits", run)["wait"]["state"] == "deferred", 120)
    airflow.wait("a first look", lambda: any("; waiting for it" in log.read_text() for log in airflow.logs()), 120)
    assert airflow.tasks("waits", run)["go"]["state"] is None
    rows = {"origin": ["JFK"], "departed_at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
    write_deltalake(str(tmp_path / "events"), pa.table(rows))
    assert airflow.wait_for_run("waits", run) == "success"
    task = airflow.tasks("waits", run)["wait"]
    assert (task["state"], task["pid"]) == ("success", None)  # no process of its own
