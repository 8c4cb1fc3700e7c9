"""The micro-batch by spark-submit, with a small script in the place of Spark's."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tests.checkpoints.records import commit, plan
from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.commands import JobFailedError
from windowmill.dags.factory import build_dag
from windowmill.windowing.errors import SpecError

pytestmark = pytest.mark.dag

CONTEXT = {"dag_run": SimpleNamespace(run_type="scheduled", conf=None), "params": {}}


@pytest.fixture
def submitted(tmp_path, monkeypatch, write_spec):
    """Runs the task against a spark-submit that notes its arguments, runs some Python, and ends with a code."""

    def submit(code: int = 0, body: str = "", **arguments):
        script = tmp_path / "bin" / "spark-submit"
        script.parent.mkdir()
        note = f"import json, sys; json.dump(sys.argv[1:], open({str(tmp_path / 'argv')!r}, 'w'))"
        script.write_text(f"#!{sys.executable}\n{note}\n{body}\nsys.exit({code})\n")
        script.chmod(0o755)
        monkeypatch.setenv("PATH", str(script.parent), prepend=":")
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": "spark://master", "port": 7077}))
        spec = write_spec()
        task = build_dag(spec, conn_id="cluster", **arguments).get_task("micro_batch")
        return spec, task, lambda: (task.execute(CONTEXT), json.loads((tmp_path / "argv").read_text()))

    return submit


def test_the_command_goes_to_the_connections_master_with_deltas_jars(submitted):
    spec, _, execute = submitted(submit={"conf": {"spark.executor.memory": "3g"}})
    summary, argv = execute()
    assert summary == {"pipeline": "delays", "batches": []}
    assert argv[argv.index("--master") + 1] == "spark://master:7077"
    assert {"spark.executor.memory=3g", "spark.log.level=WARN"} <= set(argv)
    assert "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in argv
    assert "delta-spark" in argv[argv.index("--jars") + 1]
    application = next(index for index, argument in enumerate(argv) if argument.endswith("spark_main.py"))
    assert Path(argv[application]).exists()
    assert argv[application + 1 :] == ["run", str(spec), "--json"]


def test_the_outcome_is_read_from_the_ledger(submitted, monkeypatch):
    _, _, execute = submitted()
    counted = commit(rows_read=9, rows_applied=6, duplicates=2, filtered=1, rows_published=4)
    done = Batch(plan(1), counted, "committed", datetime(2024, 1, 1, tzinfo=UTC))
    ledger = SimpleNamespace(next_commit=1, since={1: [done]}.get)
    monkeypatch.setattr(Ledger, "open", classmethod(lambda cls, pipeline: ledger))
    summary, _ = execute()
    [told] = summary["batches"]
    assert (told["batch"], told["rows_published"], told["windows"]) == (1, 4, {"w": 4})
    assert (told["rows_read"], told["rows_applied"], told["duplicates"], told["filtered"]) == (9, 6, 2, 1)


@pytest.mark.parametrize(("code", "error"), [(1, JobFailedError), (2, AirflowFailException), (3, AirflowFailException)])
def test_the_drivers_exit_code_decides_about_a_retry(submitted, code, error):
    _, _, execute = submitted(code, "print('windowmill: why')")
    with pytest.raises(error):
        execute()


def test_what_is_not_the_drivers_exit_code_is_left_to_airflow(submitted, monkeypatch):
    _, _, execute = submitted()
    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", refuse)
    with pytest.raises(AirflowException, match="no such queue"):
        execute()


def refuse(*_: object) -> None:
    raise AirflowException("no such queue")


def test_submit_arguments_need_a_connection(write_spec):
    spec = write_spec()
    with pytest.raises(SpecError, match="submit is given without conn_id"):
        build_dag(spec, submit={"conf": {"spark.executor.memory": "3g"}})
