"""A type of windows from outside: one module, which registers it."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.specs import a_spec
from windowmill import aggregate
from windowmill.expectations.suites import rules
from windowmill.jobs.commands.explain import explanation_of
from windowmill.jobs.commands.try_command import run_try
from windowmill.jobs.spec_checks import problems_of
from windowmill.jobs.user_code import module_names
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.errors import SpecError
from windowmill.windowing.planner import plan
from windowmill.windowing.reference import Record, evaluate
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

TOY = "tests.plugins.toys.window"


@pytest.fixture(autouse=True)
def each(plug) -> None:
    plug(TOY)


def pipeline_of(window: dict[str, Any], **others: Any) -> Pipeline:
    return parse_pipeline(a_spec(keys=["k"], time={"column": "t", "unit": "none"}, windows=[{"name": "w"} | window]) | others)


ROWS = [{"k": "a", "t": 1}, {"k": "b", "t": 1}, {"k": "a", "t": 9}, {"k": "a", "t": 2}, {"k": "b", "t": 8}, {"k": "a", "t": 30}]
EACH = {"type": "each"}


def test_a_new_type_is_parsed_checked_and_explained():
    pipeline = pipeline_of(EACH)
    assert type(pipeline.windows[0]).__name__ == "Each"
    assert parse_pipeline(pipeline.model_dump(mode="json")) == pipeline
    assert "Each" in Pipeline.model_json_schema()["$defs"]
    with pytest.raises(SpecError, match=r"windows\.0\.size: unknown field; known here are name, output, empty, type"):
        pipeline_of(EACH | {"size": 3})
    assert accepted_times(pipeline) == (1 - (1 << 62), (1 << 62) - 1)
    assert problems_of(pipeline) == []
    assert module_names(pipeline) == [TOY]
    assert rules(pipeline)
    found = plan(pipeline)
    assert found.windows[0].what == "each: one event"
    assert found.why == ("windows.0: each windows are no fixed grid",)
    assert "each: one event" in json.dumps(explanation_of(pipeline).data)


@pytest.mark.parametrize("batch_rows", [None, 1, 2])
@pytest.mark.parametrize("engine", ["kernel", "reference"])
def test_a_new_type_is_computed(tmp_path, engine, batch_rows):
    pipeline = pipeline_of(EACH, time={"column": "t", "unit": "none", "disorder": 2, "lateness": 3})
    outcome = evaluate(pipeline, [Record(row) for row in ROWS])
    assert [(row["k"], row["window_start"], row["n"]) for row in outcome.rows] == [
        ("a", 1, 1), ("a", 9, 1), ("a", 30, 1), ("b", 1, 1), ("b", 8, 1),
    ]  # fmt: skip
    assert outcome.quarantined == [(3, "too_late")]
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(pipeline.model_dump(mode="json", exclude_defaults=True)))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    out, err = io.StringIO(), io.StringIO()
    done = run_try(tmp_path / "p.yaml", tmp_path / "rows.jsonl", batch_rows=batch_rows, engine=engine, final=True, stdout=out, stderr=err)
    assert done == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [(row["k"], row["window_start"], row["window_end"]) for row in rows] == [
        (row["k"], row["window_start"], row["window_end"]) for row in outcome.rows
    ]
    assert "too_late" in err.getvalue()


@pytest.mark.spark
@pytest.mark.classic  # it changes the workers' environment
def test_spark_computes_it_too(spark, monkeypatch):
    """Workers import the module by themselves when they are handed a window of it."""
    monkeypatch.delitem(spark.sparkContext.environment, "WINDOWMILL_PLUGINS", raising=False)
    frame = spark.createDataFrame(pa.Table.from_pylist(ROWS))
    rows = aggregate(frame, pipeline_of(EACH)).collect()
    assert sorted((row["k"], row["window_start"], row["n"]) for row in rows) == sorted((row["k"], row["t"], 1) for row in ROWS)
