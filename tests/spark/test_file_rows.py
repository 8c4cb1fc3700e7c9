"""Plain files that tasks of runs and backfills read by Arrow: the rows, numbers, watermarks and reasons of Spark's own reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.readers import EVERY_CASE
from tests.spark.both_readers import NOW, assert_same, by_spark, pipeline_over, whole
from tests.spark.harness import Bench, differences, events, expected, lasting, run_over
from windowmill.jobs.layouts import limits
from windowmill.jobs.schedulers import exchange, file_rows
from windowmill.jobs.schedulers.file_rows import FileRows
from windowmill.jobs.sources import delta_log
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.plain_files import divided
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.windowing.columnar.added_columns import FILE, REASON, VERSION
from windowmill.windowing.spec import Pipeline

pytestmark = pytest.mark.spark

_POLICIES = [
    {"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
    {"name": "recent", "type": "sliding", "evict": {"time": "9 minutes"}, "trigger": {"count": 3}},
]
_LASTING = {"time": {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}}
_SPECS: dict[str, dict[str, Any]] = {
    "slices": {},
    "revisions": {"emit": "revise"},
    "sessions": {"windows": [{"name": "s", "type": "session", "gap": "3 minutes"}]},
    "policies": {"windows": _POLICIES},
    "live rows": {"windows": [{"name": "c", "type": "count", "count": 4}]},
    "live rows, revised": {"windows": [{"name": "m", "type": "session", "gap": "3 minutes", "max_size": "9 minutes"}], "emit": "revise"},
    "events that last": _LASTING,
    "several ways": {
        "windows": [
            {"name": "s", "type": "session", "gap": "3 minutes"},
            *_POLICIES,
            {"name": "t", "type": "tumbling", "size": "7 minutes"},
        ]
    },
}


@pytest.fixture
def files_on_spark(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """No batch is small, files are divided into many parts, and each survey tells whether tasks read the files."""
    monkeypatch.setattr(limits, "MAX_BYTES", -1)
    monkeypatch.setattr(file_rows, "ROWS_PER_PARTITION", 40)
    read: list[bool] = []
    survey = FileRows.surveyed

    def told(*args: Any, **options: Any) -> FileRows | None:
        found = survey(*args, **options)
        read.append(found is not None)
        return found

    monkeypatch.setattr(FileRows, "surveyed", told)
    return read


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        (name, shared)
        for number, name in enumerate(_SPECS)
        for shared in (False, True)
        if EVERY_CASE or name in ("slices", "several ways") or shared == bool(number % 2)
    ],
)
def test_runs_over_files_give_the_rows_of_the_reference(spark, tmp_path, monkeypatch, files_on_spark, name, shared):
    changes = _SPECS[name]
    monkeypatch.setattr(limits, "MAX_READERS", 64 if shared else 0)
    monkeypatch.setattr(limits, "MAX_ROWS_OF_A_TASK", 0)
    monkeypatch.setattr(exchange, "ROWS_PER_PARTITION", 150)
    bench, rows = Bench(tmp_path, changes), events(91, 400)
    rows = lasting(rows, 3) if changes == _LASTING else rows
    run_over(bench, 4, rows, 16, batches=2)
    assert files_on_spark
    assert all(files_on_spark)
    want = expected(bench.pipeline, rows, commits=bench.commits)
    assert want.rows
    assert differences(bench.rows(), want.rows) == []
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert {"null_time", "too_late"} <= {reason for _, reason in want.quarantined}


def _rows(spark: Any, pipeline: Pipeline, *, snapshot: bool = False) -> tuple[pa.Table, pa.Table | None]:
    """All rows with all columns, in order, as Spark reads them, and as tasks read them in small parts; null if they cannot."""
    source = open_source(pipeline)
    reading = source.reading() if snapshot else whole(source)
    theirs = by_spark(spark, source, reading, pipeline)
    plain = PlainRows.of(pipeline, source, reading)
    found = None if plain is None else file_rows.examined_all(spark, plain, list(plain.types), {})
    if plain is None or found is None:
        return theirs, None
    parts = [part for task in divided(plain.files, found, 2, 1) for part in task]
    read = [rows for part in parts for rows in plain.read_part(part, list(plain.types), (), latest=pipeline.time.latest(NOW))]
    return theirs.drop_columns([FILE, VERSION]), pa.concat_tables(read)


_MICROS = pa.timestamp("us", "UTC")


def _table(n: int, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = 1_690_000_000_000_000 + rng.integers(0, 10**12, n)
    times[::7], times[3::11] = -(1 << 62), 1_710_000_000_000_000
    return pa.table(
        {
            "t": pa.array(times, _MICROS, mask=rng.random(n) < 0.1),
            "v": pa.array(rng.choice([0.1, np.nan, -0.0, np.inf], n), mask=rng.random(n) < 0.1),
            "i": pa.array(rng.integers(-5, 5, n).astype(np.int32), mask=rng.random(n) < 0.1),
            "s": pa.array(rng.choice(["a", "é\u2028", "", "12"], n), mask=rng.random(n) < 0.1),
            "d": pa.array(rng.integers(-100_000, 100_000, n).astype(np.int32)).cast(pa.date32()),
            "m": pa.array(rng.integers(-999, 999, n)).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 2)),
        }
    )


def _in_time(table: pa.Table) -> pa.Table:
    """The rows that any form of an instant can hold."""
    return table.filter(pc.greater(pc.fill_null(table.column("t").cast(pa.int64()), 1), 0))


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_every_reason_in_files_that_spark_wrote(spark, tmp_path, kind):
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    table = _table(60) if kind == "TIMESTAMP_MICROS" else _in_time(_table(60))
    try:
        spark.createDataFrame(table).coalesce(1).write.format("delta").option("maxRecordsPerFile", 11).save(str(tmp_path / "s"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    theirs, ours = _rows(spark, pipeline_over(tmp_path / "s", aggregates={"n": {"count": "*", "where": "100 / i > 3"}}))
    assert {"null_time", "bad_condition"} <= set(theirs.column(REASON).to_pylist())
    assert_same(theirs, ours)


def test_int96_of_other_engines_before_1900_is_sparks(spark, tmp_path):
    for name, instant in (("old", -2_209_075_200_000_000_000), ("new", 2_000)):
        (tmp_path / name).mkdir()
        table = pa.table({"t": pa.array([instant, 1_000], pa.timestamp("ns"))})
        pq.write_table(table, tmp_path / name / "a.parquet", use_deprecated_int96_timestamps=True)
        spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path / name}`")
        theirs, ours = _rows(spark, pipeline_over(tmp_path / name))
        assert (ours is None) == (name == "old")
    assert_same(theirs, ours)


def test_partitions_columns_that_came_later_and_mapped_columns(spark, tmp_path):
    path, table = str(tmp_path / "s"), _table(20)
    write_deltalake(path, table, partition_by=["s", "d"])
    write_deltalake(path, _table(20, 2).append_column("later", pa.array([1.5] * 20)), mode="append", schema_mode="merge")
    assert_same(*_rows(spark, pipeline_over(path)))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN v TO w")
    spark.createDataFrame(_in_time(_table(12, 3)).rename_columns(["t", "w", "i", "s", "d", "m"])).write.format("delta").mode("append").save(
        path
    )
    theirs, ours = _rows(spark, pipeline_over(path))
    assert 40 < theirs.num_rows < 52
    assert_same(theirs, ours)


def test_a_snapshot_is_plain_until_rows_of_its_files_are_deleted(spark, tmp_path):
    path = str(tmp_path / "s")
    write_deltalake(path, _table(40))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    theirs, ours = _rows(spark, pipeline_over(path), snapshot=True)
    assert_same(theirs, ours)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE i = 1")
    theirs, ours = _rows(spark, pipeline_over(path), snapshot=True)
    assert theirs.num_rows < 40
    assert ours is None


@pytest.mark.parametrize("kind", ["CHAR(5)", "VARCHAR(5)"])
def test_texts_of_fixed_length(spark, tmp_path, kind):
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 's'}` (t TIMESTAMP, k {kind}) USING delta")
    values = ", ".join(f"(TIMESTAMP '2023-11-14 00:00:00', {text})" for text in ("'ab'", "'é'", "'12345'", "NULL"))
    spark.sql(f"INSERT INTO delta.`{tmp_path / 's'}` VALUES {values}")
    assert_same(*_rows(spark, pipeline_over(tmp_path / "s")))


@pytest.mark.parametrize(
    "column", [pa.array([1, 2], pa.uint32()), pa.array([[1], []]), pa.array([{"a": 1}, None])], ids=lambda column: str(column.type)
)
def test_other_types_are_sparks(spark, tmp_path, column):
    (tmp_path / "s").mkdir()
    pq.write_table(pa.table({"t": pa.array([0, 1], _MICROS), "x": column}), tmp_path / "s" / "a.parquet")
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 's'}`")
    assert _rows(spark, pipeline_over(tmp_path / "s"))[1] is None


def test_many_files_are_examined_by_tasks(spark, tmp_path, monkeypatch, files_on_spark):
    monkeypatch.setattr(limits, "MAX_FILES", 3)
    monkeypatch.setattr(limits, "MAX_ROWS_SURVEYED_HERE", 0)
    monkeypatch.setattr(delta_log, "CUT_US", 1 << 50)  # statistics decide nothing, so event times are read
    bench, rows = Bench(tmp_path), events(92, 300)
    run_over(bench, 5, rows, 12, batches=1)
    assert files_on_spark
    assert all(files_on_spark)
    assert differences(bench.rows(), bench.expected(rows).rows) == []
