"""Sources as teams keep them, read by Spark: compacted, vacuumed, with deletion vectors, partitions, renamed and widened columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from tests.readers import by_each_scheduler
from tests.spark.harness import MINUTE, SCHEMA, Bench, Row, differences, events, expected, quiet
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import loop
from windowmill.jobs.batch.planning import Acceptance
from windowmill.windowing.errors import ArrivalUnknownError, NonAppendCommitError, SinkRefusedError, SourceSchemaError

WAYS: dict[str, dict[str, Any]] = {
    "slices": {},
    "live rows": {"windows": [{"name": "s", "type": "session", "gap": "3 minutes"}], "emit": "revise", "aggregates": {"n": {"count": "*"}}},
}


def _compact(path: str) -> None:
    DeltaTable(path).optimize.compact()
    DeltaTable(path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)


def _in_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["t"] is not None, row["t"] or 0))


def _like(bench: Bench, rows: list[Row], commits: list[int] | None = None) -> None:
    want = bench.expected(rows) if commits is None else expected(bench.pipeline, rows, commits=commits)
    assert want.rows, "the reference emitted nothing, so nothing was compared"
    assert differences(bench.rows(), want.rows) == []
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)


@pytest.mark.covers("S5")
@by_each_scheduler("way", WAYS, by_tasks=["slices"])
def test_a_compacted_and_vacuumed_history_is_read_in_the_order_of_event_time(tmp_path, way):
    rows = events(61, 600)
    bench = Bench(tmp_path, dict(WAYS[way]))
    for begin in range(0, 400, 100):
        bench.land(rows[begin : begin + 100])
    _compact(bench.source)
    [done] = bench.run()
    assert done.plan.arrival == "event_time"
    _like(bench, _in_time(rows[:400]))
    bench.land(rows[400:])
    [after] = bench.run()
    assert after.plan.arrival == "log"
    _like(bench, _in_time(rows[:400]) + rows[400:])
    before = bench.rows()
    ends = sorted(row["window_end"] for row in before)
    loop.backfill(bench.pipeline, quiet(), begin=ends[len(ends) // 3], end=ends[-1])
    assert differences(bench.rows(), before, tolerance=1e-13) == []


@pytest.mark.covers("S1")
def test_a_backfill_whose_order_of_arrival_is_lost_is_refused_or_goes_by_event_time(tmp_path):
    rows = events(62, 300)
    bench = Bench(tmp_path)
    for begin in range(0, 300, 100):
        bench.land(rows[begin : begin + 100])
        bench.run()
    before = bench.rows()
    _compact(bench.source)
    ends = sorted(row["window_end"] for row in before)
    with pytest.raises(ArrivalUnknownError, match="--arrival event_time"):
        loop.backfill(bench.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1], history="log")
    assert bench.rows() == before or differences(bench.rows(), before) == []
    assert [done.outcome.counts.rows_read for done in bench.run()] == [0], "nothing is stuck"
    loop.backfill(bench.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1], history="event_time")
    want = [row for row in bench.expected(_in_time(rows)).rows if row["window_end"] <= ends[-1]]
    assert differences(bench.rows(), want) == []


@pytest.mark.covers("S4")
@pytest.mark.spark
def test_rows_behind_deletion_vectors_never_count(spark, tmp_path):
    rows = events(63, 500)
    bench = Bench(tmp_path)
    bench.land(rows[:200])
    spark.sql(f"ALTER TABLE delta.`{bench.source}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    bench.land(rows[200:300])
    spark.sql(f"DELETE FROM delta.`{bench.source}` WHERE i = 2")
    assert any((tmp_path / "source").glob("deletion_vector*.bin"))
    [first] = bench.run()
    left = [row for row in rows[:300] if row["i"] != 2]
    assert first.outcome.counts.rows_read == len(left) == first.outcome.counts.rows_applied + first.outcome.counts.rows_quarantined
    _like(bench, _in_time(left), [0] * len(left))
    spark.sql(f"DELETE FROM delta.`{bench.source}` WHERE i = 1")
    bench.land(rows[300:])
    with pytest.raises(NonAppendCommitError, match=r"\(DELETE\)"):
        bench.run()
    bench.changes["source"] = {"path": bench.source, "changes": "ignore"}
    [second] = bench.run()
    assert second.outcome.counts.rows_ignored == sum(row["i"] == 1 for row in left)
    assert second.outcome.counts.rows_read == 200
    _like(bench, _in_time(left) + rows[300:], [0] * len(left) + [1] * 200)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("condition", "few"), [(None, None), (None, True), ("i > 0", False)], ids=["without Spark", "all, looked up", "some, joined"]
)
def test_files_of_one_name_in_many_partitions(spark, tmp_path, monkeypatch, condition, few):
    from windowmill.jobs.sources import delta_log
    from windowmill.jobs.sources import spark_files as delta_rows

    monkeypatch.setattr(delta_rows, "_FEW_FILES", 100 if few else 16)
    if few is not None:
        monkeypatch.setattr(delta_log.DeltaSource, "plain_files", lambda *_: None)
    rows = events(64, 200)
    odd = ["a b", "x%y", "ü", "h#h", "q?q", "p+q", "a=b", "s/t", "[g]*", "${env:HOME}", *(f"n{n}" for n in range(10))]
    for n, name in enumerate(odd):
        folder = tmp_path / "source" / f"label={''.join(c if c.isalpha() else f'%{ord(c):02X}' for c in name)}"
        folder.mkdir(parents=True)
        part = [dict(row, label=name) for row in rows[n * 10 : n * 10 + 10]]
        pq.write_table(pa.Table.from_pylist(part, schema=SCHEMA).drop_columns(["label"]), folder / "part-0.parquet")
    bench = Bench(tmp_path)
    bench.changes["source"] = {"path": bench.source} | ({"filter": condition} if condition else {})
    spark.sql(f"CONVERT TO DELTA parquet.`{bench.source}` PARTITIONED BY (label STRING)")
    [done] = bench.run(arrival="event_time")
    labelled = [dict(row, label=odd[n // 10]) for n, row in enumerate(rows)]
    kept = [row for row in labelled if condition is None or (row["i"] is not None and row["i"] > 0)]
    assert (done.outcome.counts.rows_read, done.outcome.counts.rows_kept) == (len(rows), len(kept))
    _like(bench, _in_time(kept), [0] * len(kept))


@pytest.mark.covers("S3")
@pytest.mark.spark
@pytest.mark.usefixtures("either_reader")
def test_renamed_widened_and_reordered_columns(spark, tmp_path):
    rows = events(65, 400)
    bench = Bench(tmp_path, {"aggregates": {"n": {"count": "*"}, "whole": {"sum": "i"}, "high": {"max": "i"}, "average": {"mean": "v"}}})
    narrow = SCHEMA.set(SCHEMA.get_field_index("i"), pa.field("i", pa.int32()))
    bench.append(pa.Table.from_pylist(rows[:100], schema=narrow))
    table = f"delta.`{bench.source}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.enableTypeWidening' = 'true')")
    bench.run()

    def land(part: list[Row], schema: pa.Schema) -> None:
        spark.createDataFrame(pa.Table.from_pylist(part, schema=schema)).write.format("delta").mode("append").save(bench.source)
        bench.commits += [1 + bench.commits[-1]] * len(part)

    spark.sql(f"ALTER TABLE {table} ADD COLUMN extra STRUCT<a: INT, b: STRING>")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN v FIRST")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN label TO tag")
    land(rows[100:200], narrow.set(narrow.get_field_index("label"), pa.field("tag", pa.string())))
    bench.run()
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN i TYPE BIGINT")
    land(rows[200:], SCHEMA.set(SCHEMA.get_field_index("label"), pa.field("tag", pa.string())))
    bench.run()
    _like(bench, rows)


@pytest.mark.covers("S3")
@pytest.mark.spark
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["RENAME COLUMN v TO tmp", "RENAME COLUMN i TO v", "RENAME COLUMN tmp TO i"],
            "column '(v|i)' is another column since the last batch",
        ),
        (["DROP COLUMN v", "ADD COLUMN v DOUBLE"], "column 'v' is another column since the last batch"),
        (["RENAME COLUMN v TO w"], "column 'v' has been renamed to 'w' since the last batch"),
        (["RENAME COLUMN k TO w"], "column 'k' has been renamed to 'w' since the last batch"),
    ],
    ids=["swapped", "dropped and added", "renamed", "key renamed"],
)
def test_a_column_that_took_the_name_of_another_is_refused(spark, tmp_path, monkeypatch, changes, message):
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")
    rows = events(65, 300)
    bench = Bench(tmp_path, {"aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}, "other": {"max": "i"}}})
    schema = SCHEMA.set(SCHEMA.get_field_index("i"), pa.field("i", pa.float64()))
    bench.append(pa.Table.from_pylist(rows[:150], schema=schema))
    table = f"delta.`{bench.source}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    bench.run()
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN label TO tag")
    before = bench.rows()
    for change in changes:
        spark.sql(f"ALTER TABLE {table} {change}")
    landed = spark.read.format("delta").load(bench.source)
    landed.where("id >= 'e00100'").write.format("delta").mode("append").save(bench.source)
    with pytest.raises(SourceSchemaError, match=message):
        bench.run()
    ends = sorted(row["window_end"] for row in before)
    with pytest.raises(SourceSchemaError, match=message):
        loop.backfill(bench.pipeline, quiet(), begin=ends[0] - 1, end=ends[-1])
    assert bench.rows() == before or differences(bench.rows(), before) == []


#: What the owner does to the sink, and to the pipeline's other tables.
TO_THE_SINK = [
    ["CLUSTER BY (k)", "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true', 'delta.enableInCommitTimestamps' = 'true')"],
    ["SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true', 'delta.columnMapping.mode' = 'name')", "ADD COLUMN note STRING"],
]
TO_OTHERS = "SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')"


@pytest.mark.spark
def test_own_tables_that_got_features_or_columns_take_little_batches(spark, tmp_path):
    rows = events(66, 600)
    bench = Bench(tmp_path, {"aggregates": {"n": {"count": "*"}}})
    bench.land(rows[:200])
    bench.run()
    for table in ("state", "quarantine"):
        spark.sql(f"ALTER TABLE delta.`{bench.sink}.windowmill/{table}` {TO_OTHERS}")
    for n, changes in enumerate(TO_THE_SINK, 1):
        for change in changes:
            spark.sql(f"ALTER TABLE delta.`{bench.sink}` {change}")
        bench.land(rows[200 * n : 200 * (n + 1)])
        bench.run()
    told = {row["reason"] for row in bench.quarantine()}
    assert told == {reason for _, reason in bench.expected(rows).quarantined}
    found = [row.asDict() for row in spark.read.format("delta").load(bench.sink).drop("note", "batch").collect()]
    assert len(found) == len(bench.expected(rows).rows)
    assert sum(row["n"] for row in found) == sum(row["n"] for row in bench.expected(rows).rows)


@pytest.mark.spark
def test_a_sink_rewritten_with_other_types_takes_no_converted_values(spark, tmp_path):
    rows = events(67, 200)
    bench = Bench(tmp_path, {"aggregates": {"n": {"count": "*"}, "mid": {"mean": "i"}}})
    bench.land(rows[:100])
    bench.run()
    frame = spark.read.format("delta").load(bench.sink).withColumn("mid", F.col("mid").cast("bigint"))
    frame.write.format("delta").mode("overwrite").option("overwriteSchema", True).save(bench.sink)
    bench.land(rows[100:])
    with pytest.raises(SinkRefusedError, match="its column mid is now of type long, the results have double"):
        bench.run(accepted=Acceptance(changes=True))
    assert Ledger.open(bench.pipeline).count == 1


@pytest.mark.covers("I2")
def test_history_from_a_bulk_load_is_warned_of_and_goes_by_event_time(tmp_path):
    rows = events(68, 300)
    shuffled = sorted(rows, key=lambda row: row["id"][::-1])
    bench, again = Bench(tmp_path / "log"), Bench(tmp_path / "event_time")
    for each in (bench, again):
        for begin in range(0, 300, 10):
            each.land(shuffled[begin : begin + 10])
    [done] = bench.run()
    assert done.outcome.counts.rows_quarantined > 100
    [done] = again.run(arrival="event_time")
    assert done.outcome.counts.rows_quarantined == sum(row["t"] is None for row in rows)
    _like(again, _in_time(shuffled))


def test_paths_as_users_write_them(tmp_path, monkeypatch):
    rows = events(69, 100)
    bench = Bench(tmp_path)
    bench.land(rows)
    monkeypatch.chdir(tmp_path)
    for n, path in enumerate([Path("source").absolute().as_uri(), f"{tmp_path}//source/", "source"]):
        changes = {"source": {"path": path}, "sink": {"path": f"{tmp_path}/sink{n}"}}
        other = Bench(tmp_path, changes)
        loop.run(other.pipeline, quiet())
        table = DeltaTable(f"{tmp_path}/sink{n}").to_pyarrow_table()
        assert table.num_rows == len(bench.expected(rows).rows)


@pytest.mark.spark
@pytest.mark.parametrize("columns", [["i"], ["site", "t"]], ids=["few files, looked up", "many files, joined"])
def test_partition_values_have_the_types_of_their_columns(spark, tmp_path, columns):
    rows = [row if row["t"] is None else row | {"t": row["t"] // (10 * MINUTE) * 10 * MINUTE} for row in events(66, 120)]
    bench = Bench(tmp_path)
    bench.append(pa.Table.from_pylist(rows, schema=SCHEMA), partition_by=columns)
    bench.run(arrival="event_time")
    _like(bench, _in_time(rows))
