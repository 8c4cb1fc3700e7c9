"""Who computes: what spec and deployment say, and what is told of it."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.specs import a_spec
from windowmill.jobs.batch import engine, planning
from windowmill.jobs.commands.summaries import summary_of
from windowmill.jobs.sources.base import Reading, open_source
from windowmill.windowing.errors import SpecError
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

SPEC = a_spec()


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in (COMPUTE.name, "SPARK_REMOTE", "WINDOWMILL_MASTER", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engine, "_running_master", lambda: None)


def test_spark_is_the_default_and_the_field_is_no_part_of_the_meaning():
    assert parse_pipeline(SPEC).compute == "spark"
    assert Pipeline.model_json_schema()["properties"]["compute"]["enum"] == ["spark", "auto", "local"]
    with pytest.raises(SpecError, match=r"compute: got 'cluster'; expected one of 'spark', 'auto' or 'local'"):
        parse_pipeline(SPEC | {"compute": "cluster"})
    meanings = {parse_pipeline(SPEC | {"compute": compute}).meaning_hash() for compute in ("spark", "auto", "local")}
    assert meanings == {parse_pipeline(SPEC).meaning_hash()}


def test_a_deployment_overrides_the_spec_unless_it_says_what_nothing_computes_by(monkeypatch):
    for given, compute in itertools.product(("spark", "auto", "local"), repeat=2):
        pipeline = parse_pipeline(SPEC | {"compute": compute})
        monkeypatch.setenv(COMPUTE.name, "")
        assert engine.compute_of(pipeline) == compute
        monkeypatch.setenv(COMPUTE.name, given)
        assert engine.compute_of(pipeline) == given
    monkeypatch.setenv(COMPUTE.name, "Spark")
    with pytest.raises(SpecError, match=r"WINDOWMILL_COMPUTE: got 'Spark'; expected spark, auto or local") as refused:
        engine.compute_of(parse_pipeline(SPEC))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("environment", "running", "elsewhere"),
    [
        ({}, None, False),
        ({}, "local[2]", False),
        ({"WINDOWMILL_MASTER": "local[4]"}, None, False),
        ({"SPARK_REMOTE": "sc://localhost:15002"}, None, True),
        ({"WINDOWMILL_MASTER": "spark://host:7077"}, None, True),
        ({"WINDOWMILL_MASTER": "local-cluster[2,1,1024]"}, None, True),
        ({"PYSPARK_GATEWAY_PORT": "1"}, None, True),
        ({}, "yarn", True),
    ],
)
def test_auto_leaves_a_batch_to_a_spark_that_runs_elsewhere(monkeypatch, environment, running, elsewhere):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(engine, "_running_master", lambda: running)
    assert engine.names_a_cluster() is elsewhere
    tries = {compute: engine.tries_this_process(parse_pipeline(SPEC | {"compute": compute})) for compute in ("spark", "auto", "local")}
    assert tries == {"spark": False, "auto": not elsewhere, "local": True}


@pytest.mark.parametrize(
    ("condition", "is_small", "is_brief"),
    [(None, False, True), ("v > 1", False, True), ("xxhash64(v) > 1", False, False), ("xxhash64(v) > 1", True, True)],
)
def test_conditions_that_arrow_evaluates_are_no_work_of_the_jvm(tmp_path, monkeypatch, condition, is_small, is_brief):
    source = str(tmp_path / "source")
    write_deltalake(source, pa.table({"k": ["a"], "t": [1], "v": [1.0]}))
    pipeline = parse_pipeline(SPEC | {"source": {"path": source} | ({"filter": condition} if condition else {})})
    monkeypatch.setattr(planning, "is_short_run", lambda _: is_small)
    opened = open_source(pipeline)
    reading = Reading(files=opened.snapshot(opened.version))
    assert planning.has_brief_use(SimpleNamespace(pipeline=pipeline), opened, reading) is is_brief


def test_a_run_without_batches_says_nothing_of_engines():
    assert summary_of(parse_pipeline(SPEC), []).data["batches"] == []
    counted = {"engine": "spark", "application": "a", "tasks": 12, "jobs": 3, "executors": 2}
    assert engine.describe(counted) == "Spark a, 12 tasks in 3 jobs on 2 executors"
