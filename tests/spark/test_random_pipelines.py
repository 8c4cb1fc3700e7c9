"""Random pipelines over random commits: runs on Spark and here, backfills and DataFrames give what the reference says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.random_pipelines import BASE, MINUTE, Case, Row, differences, examples, random_case
from tests.spark.harness import quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.dataframe import evaluate
from windowmill.jobs.layouts import limits
from windowmill.windowing.axis import from_us
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.covers("I7")]


def published(case: Case, sink: str) -> list[Row]:
    if not DeltaTable.is_deltatable(sink):
        return []
    rows = in_ticks(DeltaTable(sink).to_pyarrow_table())
    return sorted(rows, key=case.place)


def in_ticks(table: pa.Table) -> list[Row]:
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            table = table.set_column(table.schema.get_field_index(field.name), field.name, table[field.name].cast(pa.int64()))
    return table.drop_columns(["batch"]).to_pylist()


def refused(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.windowmill" / "quarantine"
    # A writer that drops its file leaves the folder.
    written = DeltaTable.is_deltatable(str(path))
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["reason"].to_pylist()) if written else []


def land(case: Case, source: str, rows: list[Row], rng: random.Random) -> None:
    """A commit, of one file or of several."""
    by: dict[str, Any] = {"partition_by": ["k"]} if case.seed % 2 else {}
    write_deltalake(source, pa.Table.from_pylist(rows, schema=case.schema), mode="append", **by)
    if rng.random() < 0.1:
        DeltaTable(source).optimize.compact()
    if rng.random() < 0.1:
        write_deltalake(source, pa.Table.from_pylist([], schema=case.schema), mode="append", **by)


def runnable(case: Case, folder: Path, sink: str, **options: Any) -> Pipeline:
    source = {"path": str(folder / "source"), "options": {name: str(value) for name, value in options.items()}}
    return parse_pipeline(case.spec | {"source": source, "sink": {"path": str(folder / sink)}})


@pytest.mark.parametrize("seed", examples(3))
def test_all_roads_give_what_the_reference_says(spark, tmp_path, monkeypatch, seed):
    case, rng = random_case(seed), random.Random(-seed - 1)
    # What was vouched for depends on the runs, not on the rows.
    case.spec["time"].pop("watermark", None)
    monkeypatch.setattr(limits, "MAX_ROWS", rng.choice([0, 10, 100_000]))
    wanted, source = case.expected(), str(tmp_path / "source")
    runs = runnable(case, tmp_path, "runs", **rng.choice([{}, {}, {"maxFilesPerTrigger": rng.randint(1, 4)}]))
    commits = case.by_commit()
    cuts, read = {rng.randrange(len(commits)), rng.randrange(len(commits)), len(commits) - 1}, 0
    for number, rows in enumerate(commits):
        land(case, source, rows, rng)
        if number in cuts:
            read += sum(done.outcome.counts.rows_read for done in loop.run(runs, quiet()))
    assert read == len(case.rows)
    assert differences(published(case, str(tmp_path / "runs")), wanted.rows) == []
    assert refused(tmp_path, "runs") == sorted(reason for _, reason in wanted.quarantined)
    ends = sorted(row["window_end"] for row in wanted.rows)
    if ends:
        loop.backfill(runs, quiet(), begin=ends[len(ends) // 4] - 1, end=ends[len(ends) // 2])
        assert differences(published(case, str(tmp_path / "runs")), wanted.rows) == []
        filled = runnable(case, tmp_path, "filled")
        loop.backfill(filled, quiet(), begin=ends[0] - 1, end=ends[len(ends) // 2])
        write_deltalake(source, pa.Table.from_pylist([], schema=case.schema), mode="append")
        loop.run(filled, quiet())
        assert differences(published(case, str(tmp_path / "filled")), wanted.rows) == []


@pytest.mark.parametrize("seed", examples(3))
def test_a_frame_with_an_order_of_arrival_gives_what_the_reference_says(spark, seed):
    case, rng = random_case(seed), random.Random(-seed - 1)
    rows = pa.Table.from_pylist(case.permuted(rng), schema=case.schema).append_column("came", pa.array(case.commits, pa.int64()))
    final = rng.random() < 0.8
    found = evaluate(spark.createDataFrame(rows).repartition(3), case.pipeline, arrival="came", label="x", final=final)
    wanted = case.expected(final=final)
    assert differences(sorted(in_ticks(found.rows.toArrow()), key=case.place), wanted.rows) == []
    assert found.refused is not None
    assert sorted((row[0], row[1]) for row in found.refused.collect()) == [
        (case.rows[number]["x"], reason) for number, reason in wanted.quarantined
    ]


@pytest.mark.parametrize("seed", examples(3))
def test_vouched_intervals_give_the_same_here_on_spark_and_in_a_backfill(spark, tmp_path, monkeypatch, seed):
    case, rng = random_case(seed, instants=True), random.Random(-seed - 1)
    case.spec["time"]["watermark"] = "data_interval_end"
    commits, source = case.by_commit(), str(tmp_path / "source")
    cuts = {rng.randrange(len(commits)), rng.randrange(len(commits)), len(commits) - 1}
    greatest = 0
    for number, rows in enumerate(commits):
        land(case, source, rows, rng)
        greatest = max([greatest, *(row["t"] for row in rows if row["t"] is not None)])
        if number in cuts:
            end = from_us((greatest or BASE) + rng.choice([-10, 0, 20]) * MINUTE)
            for sink, most in (("here", 100_000), ("spark", 0)):
                monkeypatch.setattr(limits, "MAX_ROWS", most)
                loop.run(runnable(case, tmp_path, sink), quiet(), interval_end=end)
    found = published(case, str(tmp_path / "here"))
    assert differences(published(case, str(tmp_path / "spark")), found) == []
    assert refused(tmp_path, "here") == refused(tmp_path, "spark")
    ends = sorted(row["window_end"] for row in found)
    if ends:
        loop.backfill(runnable(case, tmp_path, "here"), quiet(), begin=ends[0] - 1, end=ends[-1])
        assert differences(published(case, str(tmp_path / "here")), found) == []
