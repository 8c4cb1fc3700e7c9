"""Lineage of tasks, as the OpenLineage provider asks for it and sends it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow.providers.openlineage", reason="pip install windowmill[openlineage]")

from airflow.providers.openlineage.extractors.base import DefaultExtractor, OperatorLineage
from openlineage.client.serde import Serde

from tests.airflow.test_rulings import RULE, land
from windowmill.dags.lineage import _columns, _name
from windowmill.dags.operators import MicroBatchOperator, QualityReportOperator
from windowmill.windowing.fields import Table
from windowmill.windowing.specfile import parse_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.usefixtures("commands_here")]

RUN = {"dag_run": SimpleNamespace(conf={}, run_type="scheduled"), "params": {}}
LOCAL = {
    "keys: [origin]": "compute: local\nkeys: [origin]",
    '  flights: {count: "*"}': '  flights: {count: "*"}\n  last: {max: departed_at}',
}


def told(lineage: OperatorLineage) -> dict:
    """What the provider would send."""
    return {
        "inputs": [json.loads(Serde.to_json(each)) for each in lineage.inputs],
        "outputs": [json.loads(Serde.to_json(each)) for each in lineage.outputs],
        "run": {name: json.loads(Serde.to_json(facet)) for name, facet in lineage.run_facets.items()},
    }


@pytest.fixture
def spec(write_spec, tmp_path: Path) -> Path:
    land(tmp_path, range(6))
    return write_spec(**LOCAL)


def test_a_run_tells_its_tables_columns_and_rows(spec, tmp_path):
    task = MicroBatchOperator(task_id="micro_batch", spec=spec)
    task.execute(RUN)
    sent = told(DefaultExtractor(task).extract_on_complete(None))
    [read], [written] = sent["inputs"], sent["outputs"]
    assert (read["namespace"], read["name"], read["inputFacets"]["inputStatistics"]["rowCount"]) == ("file", str(tmp_path / "events"), 12)
    assert (written["namespace"], written["name"], written["outputFacets"]["outputStatistics"]["rowCount"]) == (
        "file",
        str(tmp_path / "delays"),
        4,
    )
    columns = {field["name"]: field["type"] for field in written["facets"]["schema"]["fields"]}
    assert (columns["origin"], columns["flights"], columns["last"]) == ("string", "long", "timestamp")
    lineage = written["facets"]["columnLineage"]
    assert {name: [each["field"] for each in column["inputFields"]] for name, column in lineage["fields"].items()} == {
        "origin": ["origin"],
        "flights": [],
        "last": ["departed_at"],
        "window_start": ["departed_at"],
        "window_end": ["departed_at"],
    }
    assert [(each["field"], each["transformations"][0]["subtype"]) for each in lineage["dataset"]] == [
        ("origin", "GROUP_BY"),
        ("departed_at", "WINDOW"),
    ]
    [batch] = sent["run"]["windowmill_batches"]["batches"]
    assert (batch["batch"], batch["verdict"], batch["rows_quarantined"]) == (0, "passed", 0)


def test_the_table_of_current_rows_is_an_output(write_spec, tmp_path):
    land(tmp_path, range(6))
    spec = write_spec(**LOCAL | {'delays"}': f'delays", current: {tmp_path}/now}}'})
    task = MicroBatchOperator(task_id="micro_batch", spec=spec)
    task.execute(RUN)
    written = told(DefaultExtractor(task).extract_on_complete(None))["outputs"]
    assert [each["name"] for each in written] == [str(tmp_path / "delays"), str(tmp_path / "now")]
    assert written[1]["facets"]["columnLineage"] == written[0]["facets"]["columnLineage"]


def test_what_steps_make_comes_from_what_they_read():
    pipeline = parse_pipeline(
        {
            "pipeline": "p",
            "source": {"path": "/source", "filter": "arr > 0"},
            "keys": ["user.id"],
            "steps": [{"columns": {"delay": "dep + arr", "twice": "2 * Delay"}}],
            "time": {"column": "at"},
            "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}, "most": {"max": "twice"}, "rate": {"expr": "MOST / n"}},
        },
        opens_tables=False,
    )
    found = json.loads(Serde.to_json(_columns(pipeline, ("file", "/source"))))
    assert {name: [each["field"] for each in column["inputFields"]] for name, column in found["fields"].items()} == {
        "user_id": ["user"],
        "n": [],
        "most": ["arr", "dep"],
        "rate": ["arr", "dep"],
        "window_start": ["at"],
        "window_end": ["at"],
    }
    of_rows = [(each["field"], each["transformations"][0]["subtype"]) for each in found["dataset"]]
    assert of_rows == [("user", "GROUP_BY"), ("at", "WINDOW"), ("arr", "FILTER")]


def test_a_task_that_failed_tells_its_tables(spec, tmp_path):
    sent = told(DefaultExtractor(MicroBatchOperator(task_id="micro_batch", spec=spec)).extract_on_failure(None))
    assert [each["name"] for each in (*sent["inputs"], *sent["outputs"])] == [str(tmp_path / "events"), str(tmp_path / "delays")]
    assert sent["run"] == {}
    assert "schema" not in sent["outputs"][0]["facets"]


def test_the_report_tells_the_outcome_of_each_rule(write_spec, tmp_path):
    land(tmp_path, range(6))
    spec = write_spec(**{'schedule: "*/30 * * * *"\n': RULE})
    with pytest.raises(Exception, match="held"):
        MicroBatchOperator(task_id="micro_batch", spec=spec).execute(RUN)
    task = QualityReportOperator(task_id="quality_report", spec=spec)
    [sink] = told(DefaultExtractor(task).extract_on_complete(None))["inputs"]
    found = {(rule.get("column"), rule["success"], rule["severity"]) for rule in sink["inputFacets"]["dataQualityAssertions"]["assertions"]}
    assert ("flights", False, "critical") in found
    assert len({success for _, success, _ in found}) == 2


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (Table(path="s3://lake/a/b/"), ("s3://lake", "a/b")),
        (Table(path="abfss://box@account.dfs.core.windows.net/a"), ("abfss://box@account.dfs.core.windows.net", "a")),
        (Table(table="main.delays"), ("spark_catalog", "main.delays")),
    ],
)
def test_names_of_tables(table, name):
    assert _name(table) == name
