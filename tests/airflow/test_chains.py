"""DAGs of pipelines over the results of others: they follow the other one's sink, and its published batches."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from airflow.sdk import CronDataIntervalTimetable
from airflow.sdk.definitions.asset import Asset
from airflow.serialization.serialized_objects import DagSerialization
from deltalake import write_deltalake

from windowmill.dags import metrics, operators
from windowmill.dags.backfill import build_backfill_dag
from windowmill.dags.factory import build_dag
from windowmill.dags.folders import options_of
from windowmill.dags.operators import MicroBatchOperator
from windowmill.jobs.sources.unread import SourceWatch, UnreadRows
from windowmill.windowing.specfile import load_pipeline

pytestmark = pytest.mark.dag
CHAIN = """\
pipeline: {name}
source: {{pipeline: {of}.yaml}}
keys: [origin]
windows: [{{name: day, type: tumbling, size: 1 day}}]
aggregates: {{flights: {{sum: flights}}}}
sink: {{path: "{folder}/{name}"}}
compute: local
{more}
"""
NOW = datetime(2024, 1, 1, tzinfo=UTC)
RUN = {"dag_run": SimpleNamespace(conf={}, run_type="scheduled"), "params": {}}


@pytest.fixture
def write_chain(tmp_path, write_spec):
    """Writes a chain of specs over the results of `delays`; returns their paths."""

    def write(*names: str, more: str = "") -> list[Path]:
        paths = [write_spec(**{"keys: [origin]": "compute: local\nkeys: [origin]"})]
        for of, name in zip(["delays", *names], names, strict=False):
            paths.append(tmp_path / f"{name}.yaml")
            paths[-1].write_text(CHAIN.format(name=name, of=of, folder=tmp_path, more=more))
        return paths

    return write


def test_a_chain_is_scheduled_by_the_other_pipelines_sink(write_chain, tmp_path):
    first, daily, again = write_chain("daily", "again")
    announced = build_dag(first).get_task("announce").outlets
    for spec, of in ((daily, "delays"), (again, "daily")):
        dag = build_dag(spec)
        followed = list(dag.timetable.asset_condition.objects)
        assert followed == [Asset(name=of, uri=f"file://{tmp_path}/{of}", group="windowmill")]
        assert f"file://{tmp_path}/{of}" in str(DagSerialization.to_dict(dag)["dag"]["timetable"])
    assert announced == list(build_dag(daily).timetable.asset_condition.objects)
    assert build_backfill_dag(daily).schedule is None


def test_a_chain_may_have_a_schedule_of_its_own_and_wait_for_the_other_pipeline(write_chain, monkeypatch):
    _, daily = write_chain("daily", more='schedule: "*/5 * * * *"')
    assert isinstance(build_dag(daily).timetable, CronDataIntervalTimetable)
    monkeypatch.setenv("WINDOWMILL_NEW_VERSIONS", "wait")
    assert options_of(load_pipeline(daily))["new_versions"] == "wait"
    assert build_dag(daily, new_versions="wait").get_task("wait_for_source").downstream_task_ids == {"micro_batch"}


def flown(folder: Path, *hours: int) -> None:
    times = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in hours]
    rows = pa.table({"origin": ["JFK"] * len(times), "departed_at": pa.array(times, pa.timestamp("us", "UTC"))})
    write_deltalake(str(folder / "events"), rows, mode="append")


def test_tasks_of_a_chain_read_what_has_been_published(write_chain, tmp_path, commands_here, monkeypatch):
    first, daily = write_chain("daily")
    flown(tmp_path, 1, 2, 30)
    assert SourceWatch(load_pipeline(daily)).poll() is None
    MicroBatchOperator(task_id="micro_batch", spec=first).execute(RUN)
    assert SourceWatch(load_pipeline(daily)).poll() == UnreadRows(version=0, planned=-1, open=False)
    # The end of a data interval says nothing of results.
    told, run = list[list[str]](), operators.MicroBatchOperator.computed
    monkeypatch.setattr(operators.MicroBatchOperator, "computed", lambda *args: (told.append(args[1]), run(*args))[1])
    until = {"data_interval_end": datetime(2024, 1, 2, tzinfo=UTC)}
    summary = MicroBatchOperator(task_id="micro_batch", spec=daily).execute(RUN | until)
    assert told == [["run", told[0][-1]]]
    assert [(batch["upstream"], batch["rows_published"]) for batch in summary["batches"]] == [
        ({"pipeline": "delays", "batches": [0, 0]}, 1)
    ]
    assert SourceWatch(load_pipeline(daily)).poll() is None


def test_the_watermark_of_a_chain_is_a_metric(write_chain, monkeypatch):
    sent = dict[str, float]()
    monkeypatch.setattr(metrics, "_send", lambda _, __, name, value: sent.update({name: value}))
    _, daily = write_chain("daily")
    last = SimpleNamespace(status="committed", seen=NOW - timedelta(hours=3), outcome=SimpleNamespace(used={}))
    metrics.gauge_pipeline(load_pipeline(daily), last, last, NOW)
    assert sent == {"held": 0, "event_lag_seconds": 3 * 3600, "watermark_lag_seconds": 3 * 3600}


def test_parsing_a_chain_stays_light(write_chain):
    *_, again = write_chain("daily", "again")
    heavy = ("pyspark", "numba", "great_expectations", "pandas", "deltalake")
    program = f"""
import sys
from windowmill.dags.factory import build_dag

build_dag({str(again)!r})
print([name for name in {heavy!r} if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip().splitlines()[-1] == "[]"


def test_lineage_of_a_chain_names_the_other_sink(write_chain, tmp_path, commands_here):
    pytest.importorskip("airflow.providers.openlineage", reason="pip install windowmill[openlineage]")
    from windowmill.dags.lineage import lineage_of

    first, daily = write_chain("daily")
    flown(tmp_path, 1, 2, 30)
    MicroBatchOperator(task_id="micro_batch", spec=first).execute(RUN)
    summary = MicroBatchOperator(task_id="micro_batch", spec=daily).execute(RUN)
    found = lineage_of(load_pipeline(daily), summary)
    assert [(each.namespace, each.name) for each in found.inputs] == [("file", f"{tmp_path}/delays")]
    columns = found.outputs[0].facets["columnLineage"].fields
    assert [each.name for each in columns["flights"].inputFields] == [f"{tmp_path}/delays"]
