"""Who computes a batch: by tasks of Spark or in this process the same tables, and in the record what computed it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from tests.random_pipelines import differences, examples, random_case
from tests.spark.harness import Bench, events, quiet
from tests.spark.harness import differences as differences_of
from tests.spark.test_random_pipelines import land, published, refused, runnable
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import engine, loop
from windowmill.jobs.commands.summaries import history_of, status_of
from windowmill.jobs.layouts import limits
from windowmill.windowing.axis import from_us
from windowmill.windowing.errors import LocalComputeError
from windowmill.windowing.settings import COMPUTE

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
POSITIONS = {"windows": [{"name": "last_40", "type": "sliding", "evict": {"count": 40}, "trigger": {"count": 3}}]}
#: A command that finds no Java, whatever this machine has.
NO_JAVA = {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "windowmill.jobs.cli", *arguments],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def written(bench: Bench) -> str:
    path = bench.folder / "spec.yaml"
    path.write_text(yaml.safe_dump(bench.spec))
    return str(path)


def jobs_of(store: Any) -> list[Any]:
    listed = store.jobsList(None)
    return [listed.apply(index) for index in range(listed.size())]


@pytest.mark.classic
def test_a_small_batch_is_one_task_of_one_described_job(spark, tmp_path, monkeypatch):
    monkeypatch.setenv(COMPUTE.name, "spark")
    bench = Bench(tmp_path, POSITIONS)
    context = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    context.setJobDescription("of the user")
    rows = events(1, 400)
    for part in (rows[:300], rows[300:]):
        before = {job.jobId() for job in jobs_of(store)}
        bench.land(part)
        [done] = bench.run()
        context._jsc.sc().listenerBus().waitUntilEmpty(10_000)
        jobs = [job for job in jobs_of(store) if job.jobId() not in before]
        assert [job.description().get() for job in jobs] == [f"bench, batch {done.plan.batch}: apply"]
        ran = [stage for job in jobs for stage in map(tracker.getStageInfo, tracker.getJobInfo(job.jobId()).stageIds)]
        assert done.outcome.compute == {
            "engine": "spark", "application": context.applicationId, "master": context.master,
            "jobs": len(jobs), "stages": len(ran), "tasks": sum(stage.numCompletedTasks for stage in ran), "executors": 1,
        }  # fmt: skip
        assert done.outcome.compute["tasks"] == 1
    assert context.getLocalProperty("spark.job.description") == "of the user"
    context.setLocalProperty("spark.job.description", None)
    assert not context.getJobTags()


@pytest.mark.classic
def test_a_large_batch_counts_all_its_jobs(spark, tmp_path, monkeypatch):
    monkeypatch.setenv(COMPUTE.name, "spark")
    monkeypatch.setattr(limits, "MAX_ROWS", 0)
    bench = Bench(tmp_path)
    bench.land(events(3, 300))
    bench.run()
    bench.land(events(4, 300))
    context = spark.sparkContext
    context.addJobTag("all-of-it")
    [done] = bench.run()
    context._jsc.sc().listenerBus().waitUntilEmpty(10_000)
    tracker = context.statusTracker()
    jobs = list(context._jsc.sc().statusTracker().getJobIdsForTag("all-of-it"))
    context.removeJobTag("all-of-it")
    ran = [stage for job in jobs for stage in map(tracker.getStageInfo, tracker.getJobInfo(job).stageIds) if stage.numCompletedTasks]
    counted = done.outcome.compute
    assert counted["jobs"] == len(jobs) > 1
    assert counted["stages"] == len(ran)
    assert counted["tasks"] == sum(stage.numCompletedTasks for stage in ran) > 1


def test_what_is_restored_is_counted_by_kind_alike(spark, tmp_path, monkeypatch):
    found, rows = {}, events(5, 500)
    for name, most in (("local", None), ("spark", None), ("tasks", 0)):
        monkeypatch.setenv(COMPUTE.name, "local" if name == "local" else "spark")
        if most is not None:
            monkeypatch.setattr(limits, "MAX_ROWS", most)
        for kind, changes in (("slices", {}), ("flatfat_nodes", POSITIONS)):
            bench = Bench(tmp_path / name / kind, changes)
            bench.land(rows[:400])
            first = bench.run()
            bench.land(rows[400:])
            second = bench.run()
            assert first[0].outcome.counts.state_restored == {}
            found[name, kind] = second[0].outcome.counts.state_restored
            assert found[name, kind][kind] > 0
    for kind in ("slices", "flatfat_nodes"):
        assert found["local", kind] == found["spark", kind]
        assert found["tasks", kind][kind] >= found["local", kind][kind]


def test_status_and_history_tell_it_and_it_may_change(spark, tmp_path, monkeypatch):
    monkeypatch.delenv(COMPUTE.name)
    rows = events(7, 400)
    bench = Bench(tmp_path)
    engines = ("spark", "local", "auto", "spark")
    for number, compute in enumerate(engines):
        bench.changes["compute"] = compute
        bench.land(rows[100 * number : 100 * (number + 1)])
        bench.run()
    elsewhere = engine.names_a_cluster()
    wanted = ["spark", "local", "spark" if elsewhere else "local", "spark"]
    told = history_of(bench.pipeline, 10, timings=False).data
    assert [batch["compute"]["engine"] for batch in told] == wanted
    assert status_of(bench.pipeline).data["compute"] == told[-1]["compute"]
    assert {"application", "master", "jobs", "tasks", "executors"} <= told[-1]["compute"].keys()
    assert not Ledger.open(bench.pipeline).held_batch
    assert differences_of(bench.rows(), bench.expected(rows).rows) == []


def test_local_needs_no_java_and_says_which_limit_a_batch_exceeds(tmp_path):
    bench = Bench(tmp_path, {"compute": "local"})
    bench.land(events(8, 300))
    done = command("run", written(bench), "--json", WINDOWMILL_COMPUTE="", SPARK_REMOTE="", **NO_JAVA)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["batches"][0]["compute"] == {"engine": "local"}
    assert "computed by local" in done.stderr
    before = bench.rows()
    first, last = (from_us(row["window_end"]).isoformat() for row in (before[0], max(before, key=lambda row: row["window_end"])))
    again = command("backfill", written(bench), "--from", first, "--to", last, "--json", WINDOWMILL_COMPUTE="", SPARK_REMOTE="", **NO_JAVA)
    assert again.returncode == 0, again.stderr[-2000:]
    assert json.loads(again.stdout)["batches"][0]["compute"] == {"engine": "local"}
    assert differences_of(bench.rows(), before) == []


def test_local_refuses_what_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setenv(COMPUTE.name, "local")
    bench = Bench(tmp_path)
    bench.land(events(9, 300))
    monkeypatch.setattr(limits, "MAX_ROWS", 299)
    with pytest.raises(LocalComputeError, match=r"batch 0: 300 new rows.*at most 299.*compute is local.*auto or spark") as refused_:
        bench.run()
    assert refused_.value.exit_code == 2
    assert not DeltaTable.is_deltatable(bench.sink)
    monkeypatch.setattr(limits, "MAX_ROWS", 300)
    assert len(bench.run()) == 1


@pytest.mark.thorough
@pytest.mark.covers("I7")
@pytest.mark.parametrize("seed", examples(4))
def test_tasks_and_this_process_write_the_same_rows(spark, tmp_path, monkeypatch, seed):
    """Random pipelines over random commits: in this process, in one task, and in many."""
    case, rng = random_case(seed), random.Random(-seed - 1)
    case.spec["time"].pop("watermark", None)
    commits, source = case.by_commit(), str(tmp_path / "source")
    cuts = {rng.randrange(len(commits)), len(commits) - 1}
    ways: dict[str, dict[str, Any]] = {"local": {}, "spark": {}, "many": {"MAX_ROWS": 0}}
    for number, rows in enumerate(commits):
        land(case, source, rows, rng)
        for sink, lowered in ways.items() if number in cuts else ():
            with monkeypatch.context() as patched:
                patched.setenv(COMPUTE.name, "local" if sink == "local" else "spark")
                for name, most in lowered.items():
                    patched.setattr(limits, name, most)
                done = loop.run(runnable(case, tmp_path, sink), quiet())
            assert {each.outcome.compute["engine"] for each in done if each.outcome.counts.rows_read} <= {
                "local" if sink == "local" else "spark"
            }
    found = published(case, str(tmp_path / "local"))
    assert differences(found, case.expected().rows) == []
    for sink in ("spark", "many"):
        assert differences(published(case, str(tmp_path / sink)), found) == []
        assert refused(tmp_path, sink) == refused(tmp_path, "local")
