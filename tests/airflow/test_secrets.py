"""A canary credential in a spec: nothing that Airflow stores or shows of its DAGs holds it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.backfill import build_backfill_dag
from windowmill.dags.commands import JobFailedError
from windowmill.dags.factory import build_dag
from windowmill.dags.maintenance import build_maintenance_dag
from windowmill.dags.operators import AnnounceOperator, MicroBatchOperator, QualityReportOperator
from windowmill.dags.schedules import sink_asset
from windowmill.windowing.errors import LedgerError, SpecError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

pytestmark = [
    pytest.mark.dag,
    pytest.mark.covers("X4"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]

CANARY = "c4n4ry/S3cr3t"
DAGS = Path(__file__).resolve().parents[2] / "dags"
CONTEXT = {"dag_run": SimpleNamespace(run_type="scheduled", conf=None), "params": {}}


@pytest.fixture
def told(write_spec) -> Pipeline:
    """A pipeline whose tables are reached with a credential in their addresses."""
    pipeline = load_pipeline(write_spec())
    source = pipeline.source.model_copy(update={"path": f"s3://user:{CANARY}@bucket/events?sig={CANARY}"})
    sink = pipeline.sink.model_copy(update={"path": f"s3://user:{CANARY}@bucket/delays"})
    return pipeline.model_copy(update={"source": source, "sink": sink})


def test_stored_dags_hold_no_credential(told):
    for dag in (build_dag(told), build_backfill_dag(told), build_maintenance_dag(told)):
        stored = json.dumps(DagSerialization.to_dict(dag))
        assert dag.dag_id in stored
        assert CANARY not in stored


def test_the_asset_is_that_of_the_table_without_credential(told):
    assert sink_asset(told).uri == "s3://bucket/delays"


def test_logs_xcom_and_failures_hold_no_credential(command, write_spec, caplog):
    command(f"""
        print("reading s3://user:{CANARY}@bucket/events", file=sys.stderr)
        print("windowmill: source s3://user:{CANARY}@bucket/events: gone", file=sys.stderr)
        sys.exit(int(os.environ.get("CODE", "1")))
    """)
    caplog.set_level(logging.INFO)
    task = MicroBatchOperator(task_id="micro_batch", spec=write_spec())
    with pytest.raises(JobFailedError, match=r"s3://\*\*\*@bucket/events: gone") as failure:
        task.execute(CONTEXT)
    assert CANARY not in str(failure.value)
    assert CANARY not in caplog.text


@pytest.mark.parametrize(("code", "kind"), [(2, AirflowFailException), (3, AirflowFailException)])
def test_what_fails_at_once_holds_no_credential_nor_its_cause(command, write_spec, code, kind):
    command(f"""
        print("windowmill: table s3://user:{CANARY}@bucket/events", file=sys.stderr)
        sys.exit({code})
    """)
    with pytest.raises(kind) as failure:
        MicroBatchOperator(task_id="micro_batch", spec=write_spec()).execute(CONTEXT)
    assert CANARY not in str(failure.value)
    assert failure.value.__suppress_context__


@pytest.mark.parametrize("kind", [QualityReportOperator, AnnounceOperator])
def test_an_unreadable_ledger_is_named_without_credential(told, monkeypatch, kind):
    def unreadable(pipeline):
        raise LedgerError(f"ledger {pipeline.sink.path}.windowmill/ledger: cannot be read")

    monkeypatch.setattr(Ledger, "open", unreadable)
    monkeypatch.setattr("windowmill.dags.specs.Spec.read", lambda self: told)
    arguments = {"asset": sink_asset(told)} if kind is AnnounceOperator else {}
    with pytest.raises(LedgerError, match=r"^ledger s3://\*\*\*@bucket/delays") as failure:
        kind(task_id="it", spec=told, **arguments).execute(CONTEXT)
    assert failure.value.__suppress_context__


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("*/30 * * * *", f"s3://user:{CANARY}@bucket"),
        ("size: 1 hour", f"size: 'password={CANARY}'"),
        ("lateness: 1 hour", f"latenes: 's3://user:{CANARY}@bucket'"),
        ("keys: [origin]", f"keys: ['s3://user:{CANARY}@bucket', 's3://user:{CANARY}@bucket']"),
        ("name: hourly", f"name: 'token={CANARY}'"),
        ("keys: [origin]", f"aws_secret_access_key: {CANARY}"),
    ],
)
def test_import_errors_hold_no_credential(tmp_path, monkeypatch, write_spec, old, new):
    monkeypatch.setenv("WINDOWMILL_PIPELINES", str(tmp_path / "specs"))
    good = write_spec("good", tmp_path / "specs")
    bad = write_spec("bad", tmp_path / "specs", **{old: new})
    bag = DagBag(DAGS)
    assert sorted(bag.dag_ids) == [good.stem, f"{good.stem}__backfill", f"{good.stem}__maintenance"]
    (error,) = bag.import_errors.values()
    assert str(bad) in error
    assert CANARY not in error
    with pytest.raises(SpecError) as failure:
        build_dag(bad)
    assert CANARY not in str(failure.value)
    assert failure.value.__context__ is None or failure.value.__suppress_context__
