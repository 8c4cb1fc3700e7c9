"""Runs that wait until the source has new rows: what counts as new, and the task that waits."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from airflow._shared.module_loading import import_string
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import TaskSuccessEvent
from deltalake import DeltaTable

from windowmill.checkpoints.batches import Changes, Outcome
from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import own_tables
from windowmill.checkpoints.protocol import publish_pending
from windowmill.dags import triggers
from windowmill.dags.commands import JobFailedError
from windowmill.dags.factory import build_dag
from windowmill.dags.sensors import SourceVersionSensor
from windowmill.dags.triggers import SourceVersionTrigger
from windowmill.jobs.batch import planning
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.sources.unread import SourceWatch, UnreadRows
from windowmill.windowing.errors import SourceFeatureError, SpecError
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

POOL = {"pool_slots": 1, "queue": "default", "priority_weight": 1}

pytestmark = [pytest.mark.dag, pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")]


@pytest.fixture
def spec(write_spec) -> Path:
    return write_spec()


@pytest.fixture
def plan(spec):
    """Records a held batch of everything new; returns the last version that it covers."""

    def plan() -> int:
        pipeline = load_pipeline(spec)
        ledger = Ledger.open(pipeline)
        planned = planning.next_run(runnable_of(pipeline), ledger)
        ledger.record(planned, Outcome(seen=None, emitted=None, verdict="held"), {}, datetime.now(UTC))
        return planned.to_version

    return plan


def looked(spec: Path) -> UnreadRows | None:
    return SourceWatch(load_pipeline(spec)).poll()


def first_event(trigger, seconds: float = 30.0):
    async def first():
        return await asyncio.wait_for(anext(trigger.run()), seconds)

    return asyncio.run(first())


def waiting(spec: Path, **settings) -> SourceVersionTrigger:
    return SourceVersionTrigger(**{"path": str(spec), "fields": None, "poke_interval": 0.05, "wait_for_table": False} | settings)


async def none_comes(event: asyncio.Task[Any]) -> None:
    await asyncio.sleep(0.5)
    assert not event.done()


# What counts as new


def test_a_source_that_has_never_been_read_is_unread_once_it_has_rows(spec, land):
    land(0)
    assert looked(spec) is None
    land()
    assert looked(spec) == UnreadRows(version=1, planned=-1, open=False)


def test_an_open_batch_counts_whatever_the_source_has(spec, land, plan):
    land()
    assert plan() == 0
    assert looked(spec) == UnreadRows(version=0, planned=0, open=True)


def test_a_batch_that_lacks_its_commits_counts_whatever_the_source_has(spec, land):
    """A run died between its record and its commits."""
    land()
    pipeline = load_pipeline(spec)
    ledger = Ledger.open(pipeline)
    planned, rows = planning.next_run(runnable_of(pipeline), ledger), pa.table({"n": [1]})
    with FileWriter(pipeline.sink.path, rows.schema, batch=0, attempt=planned.attempt, task=0) as writer:
        writer.write(rows)
    changes = {"sink": Changes.of(rows.schema, writer.close())}
    ledger.record(planned, Outcome(seen=None, emitted=None, verdict="passed"), changes, datetime.now(UTC))
    watch = SourceWatch(pipeline)
    assert watch.poll() == UnreadRows(version=0, planned=0, open=True)
    publish_pending(ledger, own_tables(runnable_of(pipeline)))
    assert [watch.poll(), watch.poll()] == [None, None]


def test_compaction_is_no_new_version(spec, land):
    land()
    watch = SourceWatch(load_pipeline(spec))
    committed(watch, through=0)
    assert watch.poll() is None
    DeltaTable(str(spec.with_name("events"))).optimize.compact()
    assert watch.poll() is None
    land()
    assert watch.poll().version > 0


@pytest.mark.parametrize(("changes", "new"), [("refuse", True), ("ignore", False)])
def test_versions_that_change_rows_count_unless_the_spec_ignores_them(write_spec, land, changes, new):
    spec = write_spec(**{'events"}': f'events", changes: {changes}}}'})
    land(2)
    watch = SourceWatch(load_pipeline(spec))
    committed(watch, through=0)
    DeltaTable(str(spec.with_name("events"))).delete("origin = 'JFK'")
    assert (watch.poll() is not None) is new


def test_a_start_that_is_still_to_come_is_waited_for(write_spec, land):
    spec = write_spec(**{'events"}': 'events", options: {startingVersion: "1"}}'})
    land()
    assert looked(spec) is None
    land()
    assert looked(spec) == UnreadRows(version=1, planned=-1, open=False)


def committed(watch: SourceWatch, through: int) -> None:
    """Let the watch find a ledger whose last commit has read the source ``through`` a version."""
    source = DeltaTable(watch._runnable.source_path)
    plan = SimpleNamespace(to_version=through, source_id=str(source.metadata().id))
    batch = SimpleNamespace(plan=plan)
    watch._ledger = SimpleNamespace(refresh=lambda: None, newest_kept=batch, last_commit=batch, newest=None)


# The task that waits


def test_a_waiting_task_ends_in_the_triggerer_as_soon_as_there_are_rows(spec, land):
    land(0)

    async def run():
        event = asyncio.create_task(anext(waiting(spec).run()))
        await none_comes(event)
        await asyncio.to_thread(land)
        return await asyncio.wait_for(event, 30)

    assert isinstance(asyncio.run(run()), TaskSuccessEvent)


def test_a_missing_table_fails_unless_the_task_is_to_wait_for_it(spec, land):
    assert "there is no Delta table; write the first rows or correct source.path" in first_event(waiting(spec)).payload["error"]

    async def run():
        event = asyncio.create_task(anext(waiting(spec, wait_for_table=True).run()))
        await none_comes(event)
        await asyncio.to_thread(land)
        return await asyncio.wait_for(event, 30)

    assert isinstance(asyncio.run(run()), TaskSuccessEvent)


def test_why_the_trigger_has_given_up_is_the_tasks_error(spec):
    sensor = SourceVersionSensor(task_id="wait", spec=spec)
    with pytest.raises(JobFailedError, match="there is no Delta table"):
        sensor.execute_complete({}, first_event(waiting(spec)).payload)
    spec.write_text(spec.read_text().replace("size: 1 hour", "sise: 1 hour"))
    with pytest.raises(AirflowFailException, match="unknown field; did you mean 'size'"):
        sensor.execute_complete({}, first_event(waiting(spec)).payload)


def test_a_source_that_must_be_refused_is_not_looked_at_again(spec, monkeypatch):
    def refuse(_: object) -> None:
        raise SourceFeatureError("source: uses a table feature that cannot be read")

    monkeypatch.setattr("windowmill.jobs.sources.unread.probe_source", refuse)
    with pytest.raises(AirflowFailException, match="uses a table feature"):
        SourceVersionSensor(task_id="wait", spec=spec).execute_complete({}, first_event(waiting(spec)).payload)


@pytest.mark.parametrize(
    ("run_type", "params", "waits"),
    [
        ("scheduled", {}, True),
        ("manual", {}, True),
        ("manual", {"from": "2024-01-01T00:00:00Z", "to": "2024-01-02T00:00:00Z"}, False),
        ("backfill", {}, False),
    ],
)
def test_runs_that_recompute_a_range_do_not_wait(spec, land, run_type, params, waits):
    land(0)
    interval = {"data_interval_start": datetime(2024, 1, 1, tzinfo=UTC), "data_interval_end": datetime(2024, 1, 2, tzinfo=UTC)}
    context = {"dag_run": SimpleNamespace(run_type=run_type, conf=params), "params": params} | interval
    sensor, trigger = SourceVersionSensor(task_id="wait", spec=spec), waiting(spec)
    trigger.task_instance = SimpleNamespace(task_id="wait", task=None, get_template_context=lambda: context)
    if waits:
        with pytest.raises(TaskDeferred) as deferred:
            sensor.execute(context)
        assert deferred.value.trigger.serialize() == (sensor.start_trigger_args.trigger_cls, sensor.start_trigger_args.trigger_kwargs)
        with pytest.raises(TimeoutError):
            first_event(trigger, seconds=0.5)
    else:
        assert sensor.execute(context) is None
        assert isinstance(first_event(trigger), TaskSuccessEvent)


@pytest.mark.parametrize(
    ("run_type", "conf", "waits"),
    [
        ("scheduled", None, True),
        ("manual", {"max_batches": 1}, True),
        ("manual", {"from": "2024-01-01T00:00:00Z", "to": "2024-01-02T00:00:00Z"}, False),
        ("backfill", None, False),
    ],
)
def test_the_triggerer_itself_tells_the_trigger_of_its_run(spec, run_type, conf, waits):
    dag = build_dag(spec, new_versions="wait")
    at = datetime(2024, 1, 1, tzinfo=UTC)
    names = ("logical_date", "data_interval_start", "data_interval_end", "run_after", "start_date")
    run = dict.fromkeys(names, at) | {"data_interval_end": datetime(2024, 1, 2, tzinfo=UTC), "end_date": None, "partition_key": None}
    run |= {"dag_id": "delays", "run_id": "a", "run_type": run_type, "state": "running", "conf": conf, "consumed_asset_events": []}
    instance = TaskInstanceDTO(
        id=uuid4(), dag_version_id=uuid4(), dag_id="delays", run_id="a", task_id="wait_for_source", try_number=1, **POOL
    )
    trigger = waiting(spec)
    trigger.task_instance = TriggerRunner.create_runtime_ti(instance, DagSerialization.to_dict(dag), run)
    assert trigger._has_to_wait() is waits
    assert trigger.template_fields == ()


def test_the_waiting_task_stands_before_the_micro_batch_and_starts_in_the_triggerer(spec):
    dag = build_dag(spec, new_versions="wait")
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag)))).get_task("wait_for_source")
    assert stored.downstream_task_ids == {"micro_batch"}
    assert stored.start_from_trigger
    assert dag.get_task("wait_for_source").pool == "default_pool"
    arguments = stored.start_trigger_args
    restored = import_string(arguments.trigger_cls)(**dag.get_task("wait_for_source").start_trigger_args.trigger_kwargs)
    assert restored.serialize()[1] == {"path": str(spec), "fields": None, "poke_interval": 10.0, "wait_for_table": False}
    assert arguments.timeout.total_seconds() == dag.get_task("wait_for_source").timeout


# A spec that is changed meanwhile


def test_the_source_of_a_changed_spec_is_looked_at(spec, land):
    """Airflow keeps a trigger whose arguments, the spec's path, are the same."""
    land()
    shutil.move(spec.with_name("events"), spec.with_name("others"))
    land(0)
    before = spec.read_text()

    async def run():
        event = asyncio.create_task(anext(waiting(spec).run()))
        await none_comes(event)
        spec.write_text(before[: len(before) // 2])  # half written
        await none_comes(event)
        spec.write_text(before.replace('events"', 'others"'))
        return await asyncio.wait_for(event, 30)

    assert isinstance(asyncio.run(run()), TaskSuccessEvent)
    assert triggers._POLLS == {}


# What is refused


def test_a_pipeline_whose_intervals_complete_windows_is_refused(write_spec):
    spec = write_spec(**{"lateness: 1 hour": "watermark: data_interval_end"})
    with pytest.raises(SpecError, match=r"delays\.yaml: time\.watermark: got data_interval_end, with which an interval without rows"):
        build_dag(spec, new_versions="wait")


@pytest.mark.parametrize("word", ["poke", "watch"])
def test_an_unknown_word_is_refused(spec, word):
    with pytest.raises(SpecError, match=rf"new_versions: got '{word}'; expected 'wait'$"):
        build_dag(spec, new_versions=word)


@pytest.mark.covers("X6")
def test_a_credential_never_gets_into_a_triggers_arguments(monkeypatch, write_spec):
    monkeypatch.setenv("BUCKET", "key:s3cr3t@bucket")
    spec = write_spec(**{"/delays": "/delays", 'path: "': 'path: "s3://${BUCKET}'})
    assert "s3cr3t" not in json.dumps(DagSerialization.to_dict(build_dag(spec, new_versions="wait")))
    with pytest.raises(SpecError, match=r"give the path of a YAML file that names it as \$\{NAME\}"):
        build_dag(load_pipeline(spec), new_versions="wait")


def test_a_pipeline_written_in_python_is_waited_for_too(spec, land):
    pipeline = parse_pipeline(load_pipeline(spec).model_dump(mode="json", exclude_unset=True))
    land()
    sensor = SourceVersionSensor(task_id="wait", spec=pipeline)
    assert isinstance(
        first_event(import_string(sensor.start_trigger_args.trigger_cls)(**sensor.start_trigger_args.trigger_kwargs)), TaskSuccessEvent
    )
