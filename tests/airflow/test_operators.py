"""The tasks themselves, with a small script in place of the windowmill command."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from deltalake import write_deltalake
from rich.console import Console

from tests.airflow.test_rulings import land
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.commands import JobFailedError
from windowmill.dags.operators import MaintainOperator, MicroBatchOperator, QualityReportOperator, VerifyOperator
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.cli import main
from windowmill.jobs.report import ReportError
from windowmill.windowing.specfile import load_pipeline

pytestmark = pytest.mark.dag

CONTEXT = {
    "dag_run": SimpleNamespace(run_type="backfill", conf=None),
    "params": {},
    "data_interval_start": datetime(2013, 2, 1, tzinfo=UTC),
    "data_interval_end": datetime(2013, 2, 2, tzinfo=UTC),
}


def test_a_micro_batch_runs_its_command_and_returns_the_summary(command, write_spec):
    command("print(json.dumps({'argv': sys.argv[1:]}))")
    spec = write_spec()
    summary = MicroBatchOperator(task_id="micro_batch", spec=spec).execute(CONTEXT)
    assert summary == {
        "argv": ["backfill", "--from", "2013-02-01T00:00:00+00:00", "--to", "2013-02-02T00:00:00+00:00", str(spec), "--json"],
    }


@pytest.mark.parametrize(("code", "error"), [(1, JobFailedError), (2, AirflowFailException), (3, AirflowFailException)])
@pytest.mark.parametrize("kind", [MicroBatchOperator, MaintainOperator])
def test_only_a_failure_is_retried(command, write_spec, kind, code, error):
    command(f"print('windowmill: why', file=sys.stderr); sys.exit({code})")
    with pytest.raises(error, match="why"):
        kind(task_id="it", spec=write_spec()).execute(CONTEXT)


def test_published_rows_that_differ_fail_the_task_with_the_rows_in_its_log(command, write_spec, caplog):
    command("print('total: 1 published, 2 recomputed'); sys.exit(1 if '--sample' in sys.argv else 0)")
    with pytest.raises(JobFailedError, match="verify: failed with exit code 1"):
        VerifyOperator(task_id="verify", spec=write_spec(), sample=7).execute(CONTEXT)


def test_a_run_that_no_command_fits_fails_before_anything_starts(command, write_spec, tmp_path):
    command(f"open({str(tmp_path / 'started')!r}, 'w')")
    context = CONTEXT | {"dag_run": SimpleNamespace(run_type="manual", conf={"full_refresh": True})}
    with pytest.raises(AirflowFailException, match="unknown 'full_refresh'"):
        MicroBatchOperator(task_id="micro_batch", spec=write_spec()).execute(context)
    assert not (tmp_path / "started").exists()


def test_a_killed_task_takes_its_command_along(command, write_spec):
    command("print('at work', file=sys.stderr, flush=True); time.sleep(60)")
    task = MicroBatchOperator(task_id="micro_batch", spec=write_spec())
    killer = threading.Timer(1.5, task.on_kill)
    killer.start()
    with pytest.raises(JobFailedError, match="killed by SIGTERM"):
        task.execute(CONTEXT)


def test_the_command_uses_the_server_of_a_spark_connect_connection(command, write_spec, monkeypatch):
    command("print(json.dumps({'remote': os.environ.get('SPARK_REMOTE')}))")
    connection = {"conn_type": "spark_connect", "host": "localhost", "port": 15002, "password": "a token"}
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps(connection))
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    of = {"task_id": "micro_batch", "spec": write_spec()}
    assert MicroBatchOperator(**of, connect_conn_id="warm").execute(CONTEXT) == {"remote": "sc://localhost:15002/;token=a%20token"}
    assert MicroBatchOperator(**of).execute(CONTEXT) == {"remote": None}


def test_the_report_is_written_by_the_task_itself(write_spec, tmp_path, monkeypatch):
    task = QualityReportOperator(task_id="quality_report", spec=(spec := write_spec()))
    with pytest.raises(AirflowSkipException, match="delays has no batch yet"):
        task.execute({})
    events = {"origin": ["JFK"], "departed_at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))}
    write_deltalake(str(tmp_path / "events"), pa.table(events))
    pipeline = load_pipeline(spec)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    loop.run(pipeline, Progress(Console(quiet=True)))
    summary = task.execute({})
    assert {name: summary[name] for name in ("number", "status", "verdict", "rows_read")} == {
        "number": 0,
        "status": "committed",
        "verdict": "passed",
        "rows_read": 1,
    }
    assert "delays" in Path(summary["report"]).read_text()


@pytest.mark.parametrize(("severity", "fails"), [("critical", True), ("warning", False)])
def test_a_report_says_that_nothing_arrives(write_spec, tmp_path, capsys, severity, fails):
    land(tmp_path, range(6))
    spec = write_spec(**{"keys: [origin]": "compute: local\nkeys: [origin]"})
    assert main(["run", str(spec)]) == 0
    spec.write_text(f"{spec.read_text()}expectations: [{{freshness: 2 hours, severity: {severity}}}]\n")
    report = QualityReportOperator(task_id="quality_report", spec=spec)
    if fails:
        with pytest.raises(AirflowFailException, match=r"delays is stale: the newest event is .* old; expected at most 2 hours"):
            report.execute({})
    else:
        report.execute({})
    assert (tmp_path / "delays.windowmill" / "report.html").is_file()
    assert fails or "delays is stale" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_is_retried(write_spec, tmp_path, monkeypatch):
    def fail(pipeline):
        raise ReportError("table s3://key:s3cr3t@bucket/sink: cannot be read")

    monkeypatch.setattr(Ledger, "open", lambda pipeline: SimpleNamespace(newest=object()))
    monkeypatch.setattr("windowmill.jobs.report.page.write_report", fail)
    with pytest.raises(ReportError, match=r"^table s3://\*\*\*@bucket/sink: cannot be read$"):
        QualityReportOperator(task_id="quality_report", spec=write_spec()).execute({})
