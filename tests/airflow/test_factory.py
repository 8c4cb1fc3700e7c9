"""From a spec to a DAG: tasks, edges, schedule, pool, retries, outlets; and what is refused."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pendulum
import pyarrow as pa
import pytest
from airflow.sdk import CronDataIntervalTimetable, RetryAction
from airflow.sdk.definitions.asset import AssetNameRef
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from deltalake import write_deltalake

from windowmill.dags.backfill import build_backfill_dag
from windowmill.dags.factory import build_dag
from windowmill.dags.maintenance import build_maintenance_dag
from windowmill.dags.operators import MicroBatchOperator
from windowmill.dags.schedules import Callback
from windowmill.dags.specs import Spec
from windowmill.windowing.errors import (
    ArgumentError,
    NonAppendCommitError,
    SourceMissingError,
    SourceSchemaError,
    SpecChangedError,
    SpecError,
)
from windowmill.windowing.specfile import load_pipeline

pytestmark = pytest.mark.dag


def test_a_held_batch_is_reported_and_still_fails_the_run(write_spec):
    dag = build_dag(write_spec())
    assert dag.get_task("quality_report").trigger_rule == "all_done"
    # The report is a leaf that succeeds; the run fails through this one.
    assert dag.get_task("announce").trigger_rule == "all_success"
    assert dag.get_task("announce").downstream_task_ids == set()


def test_schedule_gives_aligned_intervals(write_spec):
    dag = build_dag(write_spec())
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag)).timetable
    interval = stored.infer_manual_data_interval(run_after=pendulum.datetime(2026, 1, 5, 5, 42))
    assert (interval.start, interval.end) == (datetime(2026, 1, 5, 5, tzinfo=UTC), datetime(2026, 1, 5, 5, 30, tzinfo=UTC))


def test_one_run_at_a_time_in_a_pool_shared_with_maintenance(write_spec):
    spec = write_spec()
    dag, maintenance = build_dag(spec), build_maintenance_dag(spec)
    assert dag.max_active_runs == 1
    assert not dag.catchup
    assert dag.get_task("micro_batch").pool == maintenance.get_task("maintain").pool == "windowmill_delays"
    assert dag.get_task("quality_report").pool == dag.get_task("announce").pool == "default_pool"
    assert dag.get_task("micro_batch").priority_weight > maintenance.get_task("maintain").priority_weight
    assert maintenance.dag_id == "delays__maintenance"


def test_published_rows_are_verified_after_maintenance_where_it_is_asked_for(write_spec):
    spec = write_spec()
    assert build_maintenance_dag(spec).task_ids == ["maintain"]
    dag = build_maintenance_dag(spec, verify=50)
    task = dag.get_task("verify")
    assert (task.upstream_task_ids, task.pool, task.retries, task.sample) == ({"maintain"}, "windowmill_delays", 0, 50)


def test_conflicts_are_retried_and_a_wrong_spec_is_not(write_spec):
    batch = build_dag(write_spec()).get_task("micro_batch")
    assert batch.retries == 3
    assert batch.retry_delay == timedelta(seconds=30)
    for refused in (SpecError("wrong"), SpecChangedError("changed"), SourceSchemaError("gone"), NonAppendCommitError("an UPDATE")):
        assert batch.retry_policy.evaluate(refused, 1, 3).action is RetryAction.FAIL
    assert batch.retry_policy.evaluate(SourceMissingError("not yet"), 1, 3).action is RetryAction.DEFAULT
    assert batch.retry_policy.evaluate(RuntimeError("conflict"), 1, 3).action is RetryAction.DEFAULT


SETTINGS = (
    "airflow: {catchup: true, start_date: 2024-01-01, retries: 1, owner: data, tags: [delays], on_failure: 'own_alerts:failed', "
    "on_warning: 'own_alerts:warned'}\nsource:"
)


def test_settings_of_the_spec_are_those_of_its_dags(write_spec):
    spec = write_spec(**{"source:": SETTINGS})
    dag, *others = build_dag(spec), build_backfill_dag(spec), build_maintenance_dag(spec)
    assert (dag.catchup, dag.start_date, dag.tags) == (True, datetime(2024, 1, 1, tzinfo=UTC), {"windowmill", "delays"})
    assert [(other.catchup, other.start_date.year, "delays" in other.tags) for other in others] == [(False, 2020, True)] * 2
    for task_ in (task_ for each in (dag, *others) for task_ in each.tasks):
        assert (task_.retries, task_.owner) == (1, "data")
        assert [callback.place for callback in task_.on_failure_callback] == ["own_alerts:failed"]
    given = build_dag(spec, catchup=False, start_date=datetime(2025, 1, 1, tzinfo=UTC), default_args={"retries": 5})
    assert (given.catchup, given.start_date.year, given.get_task("announce").retries, given.get_task("announce").owner) == (
        False,
        2025,
        5,
        "data",
    )
    stored = [json.dumps(DagSerialization.to_dict(build_dag(spec)), sort_keys=True, default=str) for _ in range(2)]
    assert stored[0] == stored[1], "each parse gives the same DAG, or Airflow would store a version for each"
    plain = build_dag(write_spec("plain"))
    assert (plain.catchup, plain.start_date, plain.tags) == (False, datetime(2020, 1, 1, tzinfo=UTC), {"windowmill"})
    assert {(task_.retries, task_.owner, task_.has_on_failure_callback) for task_ in plain.tasks} == {(3, "windowmill", False)}


@pytest.fixture
def alerts(tmp_path, monkeypatch):
    """A module of the user's whose functions keep what they are told."""
    (tmp_path / "own_alerts.py").write_text(
        "told = []\nwarned = failed = told.append\ndef broken(context): raise RuntimeError('no network')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_alerts", raising=False)
    return importlib.import_module("own_alerts")


def test_a_failed_task_calls_what_the_spec_names(alerts, caplog):
    Callback("own_alerts:failed")({"ti": 1})
    assert alerts.told == [{"ti": 1}]
    for place in ("own_alerts:broken", "own_alerts:nothing", "no_alerts:failed"):
        Callback(place)({})
    assert caplog.text.count("could not be called") == 3


def test_a_batch_with_warnings_tells_what_the_spec_names(write_spec, tmp_path, alerts, land, commands_here):
    rule = "expectations: [{type: expect_column_values_to_be_between, column: flights, max_value: 1, severity: warning}]\ncompute: local\n"
    spec = write_spec(**{"source:": SETTINGS, "schedule:": rule + "schedule:"})
    batch, context = (
        MicroBatchOperator(task_id="micro_batch", spec=spec),
        {"dag_run": SimpleNamespace(run_type="manual", conf=None), "ti": 7},
    )
    land(1)
    assert [each["verdict"] for each in batch.execute(context)["batches"]] == ["passed"]
    assert alerts.told == []
    times = pa.array(
        [datetime(2024, 1, 2, hour, minute, tzinfo=UTC) for hour in range(6) for minute in range(2)], pa.timestamp("us", "UTC")
    )
    write_deltalake(str(tmp_path / "events"), pa.table({"origin": ["JFK"] * 12, "departed_at": times}), mode="append")
    assert [each["verdict"] for each in batch.execute(context)["batches"]] == ["warned"]
    [called] = alerts.told
    assert called["ti"] == 7
    told = called["windowmill"]
    assert (told["pipeline"], told["batches"]) == ("delays", [1])
    assert told["report"].endswith("/windowmill/pipelines/delays/report.html")
    [broken] = told["rules"]
    assert (broken["batch"], broken["column"], broken["severity"]) == (1, "flights", "warning")
    assert broken["message"]


def test_batches_with_warnings_are_told_where_a_later_one_is_held(write_spec, tmp_path, alerts, land, commands_here):
    rules = (
        "expectations:\n"
        "  - {type: expect_column_values_to_be_between, column: flights, max_value: 1, severity: warning}\n"
        "  - {type: expect_column_values_to_be_between, column: flights, max_value: 5, severity: critical}\n"
        "compute: local\nsource: {options: {maxFilesPerTrigger: 1}, "
    )
    spec = write_spec(**{"source: {": SETTINGS.replace("source:", rules)})
    for hour, rows in enumerate([2, 2, 9, 1]):
        times = pa.array([datetime(2024, 1, 2, 2 * hour, minute, tzinfo=UTC) for minute in range(rows)], pa.timestamp("us", "UTC"))
        write_deltalake(str(tmp_path / "events"), pa.table({"origin": ["JFK"] * rows, "departed_at": times}), mode="append")
    batch = MicroBatchOperator(task_id="micro_batch", spec=spec)
    with pytest.raises(AirflowFailException, match="held"):
        batch.execute({"dag_run": SimpleNamespace(run_type="manual", conf=None)})
    [called] = alerts.told
    assert called["windowmill"]["batches"] == [1, 2]


def test_the_sink_is_the_outlet_of_the_announcement_alone(write_spec, tmp_path):
    dag = build_dag(write_spec())
    assert (dag.dag_id, dag.get_task("micro_batch").downstream_task_ids) == ("delays", {"quality_report", "announce"})
    assert {t.task_id: [(asset.name, asset.uri) for asset in t.outlets] for t in dag.tasks} == {
        "micro_batch": [],
        "quality_report": [],
        "announce": [("delays", f"file://{tmp_path}/delays")],
    }


def test_an_asset_can_be_the_schedule(write_spec):
    dag = build_dag(write_spec(**{'"*/30 * * * *"': "{asset: raw_flights}"}))
    assert list(dag.timetable.asset_condition.objects) == [AssetNameRef(name="raw_flights")]
    assert "raw_flights" in str(DagSerialization.to_dict(dag)["dag"]["timetable"])


def test_the_form_of_a_manual_run_has_the_parameters(write_spec):
    stored = DagSerialization.from_dict(DagSerialization.to_dict(build_dag(write_spec())))
    assert stored.params.dump() == {"from": None, "to": None, "max_batches": None}
    assert stored.params.get_param("from").schema == {"type": ["null", "string"], "format": "date-time"}
    mine = build_dag(write_spec("other"), params={"colour": "red"})
    assert mine.params.dump() == {"colour": "red"}
    with pytest.raises(ParamValidationError):
        build_dag(write_spec("third")).params["max_batches"] = 0
    assert build_dag(write_spec("fourth")).params["max_batches"] is None


def test_a_range_is_recomputed_by_a_dag_of_its_own(write_spec):
    spec = write_spec()
    dag, runs = build_backfill_dag(spec), build_dag(spec)
    assert (dag.dag_id, dag.schedule, dag.max_active_runs) == ("delays__backfill", None, 1)
    assert {t.task_id: t.downstream_task_ids for t in dag.tasks} == {"backfill": {"announce"}, "announce": set()}
    assert dag.get_task("announce").outlets == runs.get_task("announce").outlets
    assert dag.get_task("backfill").pool == runs.get_task("micro_batch").pool
    assert dag.get_task("backfill").retries == 3


def test_the_form_of_a_backfill_asks_for_its_range(write_spec):
    dag = build_backfill_dag(write_spec())
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params
    assert stored.get_param("from").schema == stored.get_param("to").schema == {"type": "string", "format": "date-time"}
    assert (stored.get_param("as_arrived").schema, stored["as_arrived"]) == ({"type": "boolean"}, False)
    with pytest.raises(ParamValidationError):
        dag.params.validate()
    dag.params.update({"from": "2013-01-01T00:00:00Z", "to": "2013-02-01T00:00:00Z"})
    dag.params.validate()
    with pytest.raises(ParamValidationError):
        dag.params["as_arrived"] = "yes"
    mine = build_backfill_dag(write_spec("other"), params={"colour": "red"}, tags=["mine"])
    assert (mine.params.dump(), mine.tags) == ({"colour": "red"}, {"mine"})


def test_a_backfill_is_submitted_where_runs_are(write_spec):
    submitted = build_backfill_dag(write_spec(), conn_id="spark", submit={"conf": {"spark.executor.memory": "2g"}})
    assert type(submitted.get_task("backfill")).__name__ == "SubmittedBatchOperator"
    with pytest.raises(SpecError, match="conn_id and connect_conn_id are both given"):
        build_backfill_dag(write_spec("other"), conn_id="spark", connect_conn_id="warm")


def test_dags_survive_airflows_database(write_spec):
    for dag in (build_dag(write_spec()), build_backfill_dag(write_spec("third")), build_maintenance_dag(write_spec("other"))):
        dag.validate()
        restored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
        assert restored.task_ids == dag.task_ids


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("*/30 * * * *", "61 * * * *", r"schedule: got '61 \* \* \* \*'; expected five cron fields"),
        ("*/30 * * * *", "* * * * * *", "expected five cron fields"),
        ("*/30 * * * *", "@once", "expected five cron fields"),
        ("size: 1 hour", "sise: 1 hour", r"delays\.yaml:6: windows\.0\.sise: unknown field; did you mean 'size'\?"),
    ],
)
def test_a_wrong_spec_names_its_field(write_spec, old, new, wanted):
    with pytest.raises(SpecError, match=wanted):
        build_dag(write_spec(**{old: new}))


def test_a_pipeline_without_sink_is_refused(write_spec):
    spec = write_spec()
    spec.write_text("\n".join(line for line in spec.read_text().splitlines() if not line.startswith("sink")))
    with pytest.raises(SpecError, match="sink: missing"):
        build_dag(spec)


def test_a_pipeline_written_in_python_travels_as_its_fields(write_spec):
    pipeline = load_pipeline(write_spec())
    spec = Spec.of(pipeline)
    assert spec.read() == pipeline
    with spec.file() as path:
        assert load_pipeline(path) == pipeline
    assert not Path(path).exists()
    assert {t.task_id for t in build_dag(pipeline).tasks} == {"micro_batch", "quality_report", "announce"}


@pytest.mark.covers("X6")
def test_no_task_renders_templates(write_spec):
    spec = write_spec()
    for dag in (build_dag(spec), build_maintenance_dag(spec), build_dag(spec, conn_id="spark", dag_id="submitted")):
        assert {t.task_id: tuple(t.template_fields) for t in dag.tasks} == dict.fromkeys(dag.task_ids, ())


@pytest.mark.parametrize("build", [build_dag, build_maintenance_dag, build_backfill_dag, partial(MicroBatchOperator, task_id="a")])
def test_a_spec_of_another_type_is_refused_in_a_line(build):
    with pytest.raises(ArgumentError, match=r"spec: got dict; expected the path of a pipeline's YAML file, or a Pipeline: Pipeline\(\*\*f"):
        build(spec={"pipeline": "delays"})
