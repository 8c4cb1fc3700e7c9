"""A pipeline whose source, sink and checkpoints are in a bucket leaves the tables that it leaves in local folders."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
import pytest
import yaml
from deltalake import TableFeatures

from tests.faults.kills import Run
from tests.faults.pipelines import PIPELINES, batches_of, contents
from tests.faults.world import UNMET
from tests.spark.harness import MINUTE, Bench, Row, differences, events, quiet
from windowmill.checkpoints import stores
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.cli import main
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.spark.spark_settings import reader_options
from windowmill.windowing.errors import FencedError, HeldError, MachineError, SinkRefusedError, WindowmillError

#: They need the S3 server that `make test` builds.
pytestmark = pytest.mark.thorough

TABLES = ("sink", *(f"sink.windowmill/{name}" for name in ("state", "quarantine", "quality", "held")))


@dataclass
class PlacedBench(Bench):
    """A pipeline whose tables are below ``base``, a folder or a URI; ``folder`` has its spec."""

    base: str = ""

    @property
    def source(self) -> str:
        return f"{self.base}/source"

    @property
    def sink(self) -> str:
        return f"{self.base}/sink"

    def tables(self) -> dict[str, Counter[Any]]:
        """The rows of each table."""
        return {name: contents(f"{self.base}/{name}") for name in TABLES}

    def batches(self) -> list[tuple[Any, ...]]:
        return batches_of(self.pipeline)

    def held(self) -> None:
        """A run whose rows break a rule."""
        self.changes["expectations"] = UNMET
        try:
            with pytest.raises(HeldError):
                self.run()
        finally:
            self.changes["expectations"] = []

    def write_spec(self) -> Path:
        path = self.folder / "spec.yaml"
        path.write_text(yaml.safe_dump(self.spec, sort_keys=False))
        return path


def bench_at(base: str, folder: Path, name: str = "mixed") -> PlacedBench:
    return PlacedBench(folder, dict(PIPELINES[name]), base=base)


def parts(count: int = 5) -> list[list[Row]]:
    """Rows of ``count`` versions of the source."""
    rows = events(71, 90 * count)
    return [rows[90 * n : 90 * (n + 1)] for n in range(count)]


def live(bench: PlacedBench) -> None:
    """Runs, a backfill, held batches that are released and discarded, upkeep."""
    first, second, third, fourth, fifth = parts()
    bench.land(first)
    bench.run()
    bench.land(second)
    bench.run()
    ends = sorted({row["window_end"] for row in bench.rows()})
    loop.backfill(bench.pipeline, quiet(), begin=ends[len(ends) // 4] - MINUTE, end=ends[len(ends) // 2])
    for rows, ruling in ((third, "release"), (fourth, "discard")):
        bench.land(rows)
        bench.held()
        bench.run(ruling=ruling)
    maintain(bench.pipeline, quiet())
    bench.land(fifth)
    bench.run()
    assert bench.run() == []


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are computed by the process that runs them."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacedBench]:
    """The pipeline after its life in local folders."""
    folder = tmp_path_factory.mktemp("lived")
    bench = bench_at(str(folder), folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("WINDOWMILL_COMPUTE", "local")
        live(bench)
        yield bench


def _equal(bench: PlacedBench, wanted: PlacedBench) -> None:
    for name, rows in wanted.tables().items():
        assert bench.tables()[name] == rows, name
    assert bench.batches() == wanted.batches()


def test_a_savepoint_in_a_bucket(bucket, local, tmp_path):
    bench, (first, second, third) = bench_at(bucket, tmp_path), parts(3)
    bench.land(first)
    bench.run()
    savepoints.create(bench.pipeline, quiet(), "first")
    before = {
        name: rows for name, rows in bench.tables().items() if name in ("sink", "sink.windowmill/state", "sink.windowmill/quarantine")
    }
    for rows in (second, third):
        bench.land(rows)
        bench.run()
    after = bench.rows()
    savepoints.restore(bench.pipeline, quiet(), "first")
    assert {name: bench.tables()[name] for name in before} == before
    bench.run()
    assert differences(bench.rows(), after) == []
    savepoints.drop(bench.pipeline, quiet(), "first")
    assert not savepoints.listed(runnable_of(bench.pipeline))


def test_a_life_in_a_bucket_computed_here(bucket, lived, local, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench = bench_at(bucket, tmp_path)
    live(bench)
    _equal(bench, lived)
    spec = str(bench.write_spec())
    answers = {}
    for command in ("status", "history", "quality", "state", "report"):
        assert main([command, spec, "--json"]) == 0, capsys.readouterr().err
        answers[command] = capsys.readouterr().out
    assert json.loads(answers["status"])["batches"] == 6
    assert stores.store_of(f"{bucket}/sink.windowmill").get_file_info(["report.html"])[0].size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"], "nothing is written to a folder that is named like the bucket"


def test_a_restatement_and_a_purge_in_a_bucket(bucket, local, tmp_path, capsys):
    there, here = bench_at(bucket, tmp_path, "slices"), bench_at(str(tmp_path / "here"), tmp_path, "slices")
    for bench in (there, here):
        for rows in parts(2):
            bench.land(rows)
        bench.run()
        spec = str(bench.write_spec())
        stores.table_at(bench.source).update(updates={"v": "1.0"}, predicate="i = 2")
        assert main(["restate", spec]) == 0, capsys.readouterr().err
        stores.table_at(bench.source).delete("k = 'a' AND site = 1")
        assert main(["purge", spec, "--key", "k=a", "--key", "site=1"]) == 0, capsys.readouterr().err
        assert main(["maintain", spec, "--now"]) == 0, capsys.readouterr().err
    _equal(there, here)
    assert not any((row["k"], row["site"]) == ("a", 1) for row in there.rows())


@pytest.mark.spark
def test_a_life_in_a_bucket_computed_by_tasks(bucket, lived, spark, tmp_path, monkeypatch):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    bench = bench_at(bucket, tmp_path)
    live(bench)
    _equal(bench, lived)


@pytest.mark.spark
@pytest.mark.classic
def test_a_source_that_only_spark_reads(bucket, spark, tmp_path, monkeypatch):
    """Deletion vectors are in force: Spark reads the source by its own jars, and delta-rs still makes every commit."""
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    there, here = bench_at(bucket, tmp_path, "slices"), bench_at(str(tmp_path / "here"), tmp_path, "slices")
    here.land(parts(1)[0])
    spark.sql(f"ALTER TABLE delta.`{here.source}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM delta.`{here.source}` WHERE label = 'x'")
    assert list(Path(here.source).glob("deletion_vector*"))
    store, path = stores.filesystem_of(there.source)
    pa_fs.copy_files(here.source, path, destination_filesystem=store)
    for each in (here, there):
        assert len(each.run()) == 1
    assert there.batches()[0][6].rows_read < 90, "deleted rows are not read"
    _equal(there, here)


def test_a_source_that_only_spark_reads_needs_its_jars(monkeypatch, tmp_path):
    monkeypatch.setenv("WINDOWMILL_JARS", str(tmp_path))
    assert reader_options("/tables/t") == reader_options("gs://b/t") == {}
    with pytest.raises(MachineError, match=r"^s3a://b/t: only Spark can read these files, and it lacks the jars .* run `make s3-jars`"):
        reader_options("s3a://b/t")


def test_runs_at_once_commit_each_batch_once(bucket, local, tmp_path):
    """Nothing but the record keeps them apart: there is no lease on object storage."""
    one, other = bench_at(bucket, tmp_path), bench_at(str(tmp_path / "alone"), tmp_path)
    for rows in parts(3):
        one.land(rows)
        other.land(rows)
        other.run()
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        ends = pool.map(_run_to_the_end, [str(one.write_spec())] * 3)
    assert set(ends) <= {"done", "fenced"}
    assert "done" in ends
    one.run()
    batches = one.batches()
    assert [batch[0] for batch in batches] == list(range(len(batches)))
    assert sum(batch[6].rows_read for batch in batches) == 3 * 90
    assert _without_batch(one) == _without_batch(other)


def _run_to_the_end(spec: str) -> str:
    from windowmill.windowing.specfile import load_pipeline

    try:
        loop.run(load_pipeline(spec), quiet())
    except FencedError:
        return "fenced"
    except WindowmillError as err:
        return f"{type(err).__name__}: {err}"
    return "done"


def _without_batch(bench: PlacedBench) -> list[Row]:
    return [{name: repr(value) for name, value in row.items()} for row in bench.rows()]


#: Before the record; when it has landed; between two commits.
_KILLED_AT = ("batch.before", "batch.lost", "state.before")


@pytest.mark.parametrize("place", _KILLED_AT)
def test_a_run_that_is_killed_is_made_good_by_the_next(bucket, local, tmp_path, place):
    bench, clean = bench_at(bucket, tmp_path, "slices"), bench_at(str(tmp_path / "clean"), tmp_path, "slices")
    first, second, third = parts(3)
    for each in (bench, clean):
        each.land(first)
        each.run()
        each.land(second)
    clean.run()
    run = Run(bench.write_spec(), place)
    try:
        assert run.wait_until_reached(), run.process.stderr.read()[-2000:]
        run.kill("driver")
        run.end()
    finally:
        run.stop()
    if place == "batch.before":
        bench.run()  # nothing has been recorded: later, one batch would take it together with the next
    for each in (bench, clean):
        each.land(third)
        each.run()
    _equal(bench, clean)


def test_a_sink_that_only_spark_writes_is_refused(bucket, local, tmp_path):
    bench = bench_at(bucket, tmp_path, "slices")
    first, second = parts(2)
    bench.land(first)
    bench.run()
    sink = stores.table_at(bench.sink)
    sink.alter.add_feature([TableFeatures.RowTracking], allow_protocol_versions_increase=True)
    bench.land(second)
    before = bench.batches()
    with pytest.raises(SinkRefusedError, match=r"under which only Spark writes, and Spark's commits to object storage may overwrite"):
        bench.run()
    assert bench.batches() == before
