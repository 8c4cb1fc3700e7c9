"""Random pipelines over random commits: runs on Spark and here, backfills and DataFrames give what the reference says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.random_pipelines import Case, Row, differences, examples, random_case
from tests.spark.harness import quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.dataframe import evaluate
from windowmill.jobs.ways import limits
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
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["reason"].to_pylist()) if path.exists() else []


def land(case: Case, source: str, rows: list[Row], rng: random.Random) -> None:
    """A commit, of one file or of several."""
    by: dict[str, Any] = {} if case.spec["time"].get("arrival") == "row" else {"partition_by": ["k"]} if case.seed % 2 else {}
    write_deltalake(source, pa.Table.from_pylist(rows, schema=case.schema), mode="append", **by)
    if rng.random() < 0.1:
        DeltaTable(source).optimize.compact()
    if rng.random() < 0.1:
        write_deltalake(source, pa.Table.from_pylist([], schema=case.schema), mode="append", **by)


def runnable(case: Case, folder: Path, sink: str, **options: Any) -> Pipeline:
    source = {"path": str(folder / "source"), "options": {name: str(value) for name, value in options.items()}}
    return parse_pipeline(case.spec | {"source": source, "sink": {"path": str(folder / sink)}})


@pytest.mark.parametrize("seed", examples(4))
def test_all_roads_give_what_the_reference_says(spark, tmp_path, monkeypatch, seed):
    case, rng = random_case(seed), random.Random(-seed - 1)
    case.spec["time"].pop("watermark", None)
    monkeypatch.setattr(limits, "MOST_ROWS", rng.choice([0, 10, 100_000]))
    options = rng.choice([{}, {}, {"maxFilesPerTrigger": rng.randint(1, 4)}])
    runs, commits = runnable(case, tmp_path, "runs", **options), case.by_commit()
    for first, last in case.batches(rng)[:-1] if len(commits) < 4 else [(0, len(commits) // 3), (len(commits) // 3, len(commits) // 2)]:
        for rows in commits[first:last]:
            land(case, str(tmp_path / "source"), rows, rng)
        loop.run(runs, quiet())
    landed = DeltaTable(str(tmp_path / "source")).to_pyarrow_table().num_rows if (tmp_path / "source").exists() else 0
    before = 0
    for rows in commits:
        if before >= landed:
            land(case, str(tmp_path / "source"), rows, rng)
        before += len(rows)
    done = loop.run(runs, quiet())
    assert sum(d.commit.rows_read for d in done) <= len(case.rows)
    wanted = case.expected()
    reasons = sorted(reason for _, reason in wanted.quarantined)
    assert differences(published(case, str(tmp_path / "runs")), wanted.rows) == []
    assert refused(tmp_path, "runs") == reasons

    times = sorted(row["t"] for row in case.rows if row["t"] is not None)
    ends = sorted(row["window_end"] for row in wanted.rows)
    if ends:
        loop.backfill(runs, quiet(), begin=ends[len(ends) // 4] - 1, end=ends[len(ends) // 2])
        assert differences(published(case, str(tmp_path / "runs")), wanted.rows) == []
    fresh = runnable(case, tmp_path, "filled")
    loop.backfill(fresh, quiet(), begin=times[0] - 10**9, end=times[len(times) // 2])
    loop.run(fresh, quiet())
    write_deltalake(str(tmp_path / "source"), pa.Table.from_pylist([], schema=case.schema), mode="append")
    loop.run(fresh, quiet())

    frame = spark.createDataFrame(
        pa.Table.from_pylist(case.permuted(rng), schema=case.schema).append_column("_place", pa.array(case.commits, pa.int64()))
    ).repartition(3)
    by_row = case.spec["time"].get("arrival") == "row"
    found = evaluate(frame, case.pipeline, arrival="x" if by_row else "_place", label="x")
    last = case.expected(final=True)
    assert differences(sorted(in_ticks(found.rows.toArrow()), key=case.place), last.rows) == []
    assert found.refused is not None
    assert sorted(row[1] for row in found.refused.collect()) == sorted(reason for _, reason in last.quarantined)
