"""Duplicates: a pipeline that leaves them out publishes what one without ``dedup`` does over rows from which they are gone."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from benchmarks.pipelines import quiet
from tests.jobs.deduplicated import (
    COPY,
    GRIDS,
    OTHERS,
    SCHEMA,
    Row,
    Twins,
    a_spec,
    die,
    histories,
    hold,
    run,
)
from tests.readers import compute_by_many_tasks, use_spark_for_small_batches
from windowmill.checkpoints import data_files, seen
from windowmill.jobs.batch import loop
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.commands.try_command import attempt
from windowmill.jobs.dataframe import aggregate
from windowmill.jobs.verify.check import verify
from windowmill.windowing.errors import (
    UnsupportedError,
)


@pytest.mark.local
@pytest.mark.parametrize("seed", [*histories(24), 6170])  # 6170 restates a key of which a row that came too late has copies
def test_whatever_happens_rows_are_those_without_duplicates(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(seen, "FEW_FILES", 2)
        monkeypatch.setattr(seen, "MERGED_ROWS", 60)
        for module in (seen, data_files):
            monkeypatch.setattr(module, "ROWS_PER_FILE", 25)
        monkeypatch.setattr(seen, "PACKING", replace(seen.PACKING, group_rows=4))
    # What reads a snapshot takes copies in the order of their times: only exact ones are the same whichever of them counts.
    exact = rng.random() < 0.5
    spec, named = a_spec(rng), 0
    if exact:  # a snapshot remembers every row, so that runs must, too, as long as a copy may count
        on_grids = all("size" in window for window in spec["windows"])
        spec["dedup"] = {"by": spec["dedup"]["by"]} | rng.choice([{}, {"within": 200}] if on_grids else [{"within": 10_000}])
    twins = Twins(tmp_path, spec, exact=exact, seed=seed)
    for _ in range(rng.randint(4, 9)):
        for _ in range(rng.choice([1, 1, 2, 4])):
            twins.land()
        what = rng.choice(["run", "run", "die", "hold", "backfill", "savepoint", "restate" if exact else "run"])
        twins.story.append(what)
        if what == "die":
            die(twins, rng)
        elif what == "hold":
            hold(twins, rng.choice(["release", "abandon", "again"]))
        twins.each(run)
        if what == "backfill":
            ends = sorted(rng.sample(range(-20, twins.now + 60), 2))
            with suppress(UnsupportedError):  # windows that are on no grid may lie across the bounds of the range
                twins.each(lambda pipeline, ends=ends: loop.backfill(pipeline, quiet(), begin=ends[0], end=ends[1]))
        elif what == "savepoint":
            named += 1
            twins.each(lambda pipeline, name=f"s{named}": savepoints.create(pipeline, quiet(), name))
            twins.land()
            twins.each(run)
            twins.each(lambda pipeline, name=f"s{named}": savepoints.restore(pipeline, quiet(), name))
            twins.check()
            twins.each(run)
        elif what == "restate":
            chosen = rng.choice([row["v"] for row in twins.rows])
            for name, key in (("raw", "'c'"), ("plain", f"CASE WHEN k = '{COPY}' THEN k ELSE 'c' END")):
                DeltaTable(tmp_path / name / "source").update(predicate=f"v = {chosen}", updates={"k": key})
            for row in twins.rows:
                row["k"] = "c" if row["v"] == chosen else row["k"]
            twins.each(run)
        twins.check()
    assert twins.counted()["read"] >= len(twins.rows) or exact
    if not any(batch.plan.goes_back or batch.plan.restates for batch in twins.ledger().batches()):
        assert twins.counted() == {"read": len(twins.rows), "duplicates": twins.duplicates}


@pytest.mark.parametrize("engine", ["kernel", "reference"])
@pytest.mark.parametrize("seed", range(12))
def test_try_leaves_out_what_runs_leave_out(tmp_path, seed, engine):
    rng = random.Random(seed)
    twins = Twins(tmp_path, a_spec(rng), seed=seed)
    lines: dict[str, list[Row]] = {"raw": [], "plain": []}
    for _ in range(60):
        rows = [row | {"t": row["t"] or 0} for row in twins.some_rows()][:5]
        if rng.random() < 0.2:  # a copy in the same commit, which counts for nobody whatever ``within`` is
            rows[-1] = dict(rows[0])
        rows += [{"t": None, "k": "a", "v": 0, "id": None, "part": None, "o": 0}] * (5 - len(rows))
        copies = twins.rule.duplicates(rows)
        twins.rows += rows
        twins.now += rng.choice([0, 5, 10])
        lines["raw"] += rows
        lines["plain"] += [row | {"k": COPY if is_copy else row["k"]} for row, is_copy in zip(rows, copies, strict=True)]
    found = {}
    for name, pipeline in zip(lines, twins.pipelines(), strict=True):
        text = "\n".join(map(json.dumps, lines[name])).encode()
        cut = {"batch_rows": rng.choice([None, 5, 30])} if name == "raw" else {}
        found[name] = [row for row in attempt(pipeline, text, engine=engine, commit_rows=5, **cut).rows if row["k"] != COPY]
    assert found["raw"] == found["plain"]
    assert any(row["k"] == COPY for row in lines["plain"])


SPARK = ["one task", "many tasks", "read by Spark", "read by Spark, many tasks"]


@pytest.fixture(params=SPARK)
def computed_by_spark(request, monkeypatch, spark):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "spark")
    if "many" in request.param:
        compute_by_many_tasks(monkeypatch)
    if "read" in request.param:
        use_spark_for_small_batches(monkeypatch)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 4])
def test_spark_leaves_out_what_this_process_leaves_out(tmp_path, computed_by_spark, seed):
    twins = Twins(tmp_path, a_spec(random.Random(seed)), exact=True, seed=seed)
    for _ in range(3):
        for _ in range(3):
            twins.land()
        twins.each(run)
        twins.check()
    assert twins.counted() == {"read": len(twins.rows), "duplicates": twins.duplicates}
    assert twins.duplicates
    twins.each(lambda pipeline: loop.backfill(pipeline, quiet(), begin=-50, end=twins.now))
    twins.check()
    twins.each(lambda pipeline: loop.restate(pipeline, quiet()))
    twins.check()
    twins.land()
    twins.each(run)
    twins.check()


@pytest.mark.spark
@pytest.mark.parametrize("seed", range(4))
def test_aggregate_leaves_out_all_but_the_first_of_each(tmp_path, spark, seed):
    twins = Twins(tmp_path, a_spec(random.Random(seed)), seed=seed)
    rows = [row | {"o": number} for number, row in enumerate(row for _ in range(8) for row in twins.some_rows())]
    copies = twins.rule.duplicates(rows)
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, SCHEMA))
    left = [row for row, is_copy in zip(rows, copies, strict=True) if not is_copy]
    plain = spark.createDataFrame(pa.Table.from_pylist(left, SCHEMA))
    raw, without = twins.pipelines()
    assert sorted(map(repr, aggregate(frame, raw).collect())) == sorted(map(repr, aggregate(plain, without).collect()))
    assert any(copies)


@pytest.mark.spark
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_verify_recomputes_without_duplicates(tmp_path, spark, monkeypatch, seed, exact):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rng = random.Random(seed)
    spec = a_spec(rng)
    spec["windows"] = [GRIDS[0], *rng.sample(OTHERS[:2], seed % 2)]
    twins = Twins(tmp_path, spec, exact=exact, seed=seed)
    for _ in range(6):
        for _ in range(3):
            twins.land()
        twins.each(run)
    assert twins.duplicates
    found = verify(twins.pipelines()[0], quiet(), number=60, seed=1).comparison
    assert [(row.row, row.differences) for row in found.differing] == []
    assert len(found.rows) >= 10
    # A copy that counted nevertheless is found.
    place = tmp_path / "raw" / "source"
    rows = DeltaTable(place).to_pyarrow_table().to_pylist()
    write_deltalake(place, pa.Table.from_pylist([row | {"id": None} for row in rows], SCHEMA), mode="overwrite")
    changed = verify(twins.pipelines()[0], quiet(), number=60, seed=1).comparison
    assert changed.differing or changed.left_out
