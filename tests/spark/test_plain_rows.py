"""Plain files that this process reads for small batches: the rows, reasons and quarantined forms that Spark gives, or none."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tests.spark.both_readers import NOW, assert_same, by_spark, pipeline_over, whole
from tests.spark.harness import BASE, MINUTE, SCHEMA, Bench, differences, events, expected, lasting, quiet, run_over
from windowmill.checkpoints.batches import RunPlan
from windowmill.checkpoints.data_files import read_files
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch import steps
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.json_lines import to_json
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.output import QuarantineRows, quarantine_schema
from windowmill.jobs.runnables import runnable_of
from windowmill.jobs.schedulers import file_rows
from windowmill.jobs.schedulers.tasks import Quarantining
from windowmill.jobs.schedulers.writing import Target, Targets
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.plain_files import divided
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.spark_files import read_rows
from windowmill.jobs.spark import session
from windowmill.windowing.columnar.added_columns import FILE, REASON, VERSION
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.watermark import LatenessRule

pytestmark = pytest.mark.spark

_MICROS = pa.timestamp("us", "UTC")


@pytest.fixture
def spark_for_small_batches() -> None:
    """Overrides the fixture by which Spark reads small batches: these tests are of those that this process reads."""


@pytest.fixture(autouse=True)
def _locally(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process computes them too, within its limits."""
    monkeypatch.setenv(COMPUTE.name, "auto")


def _both(spark: Any, pipeline: Any, *, snapshot: bool = False) -> tuple[pa.Table, pa.Table | None]:
    """All rows with all columns, in order: as Spark reads them, and as this process does; tasks give the same in small parts."""
    source, latest = open_source(pipeline), pipeline.time.latest(NOW)
    reading = source.reading() if snapshot else whole(source)
    theirs = by_spark(spark, source, reading, pipeline)
    plain = PlainRows.of(pipeline, source, reading)
    if plain is None:
        return theirs, None
    columns = list(plain.form.types)
    ours, found = plain.read(columns, [], latest=latest), file_rows.examined_all(spark, plain, columns, {})
    assert (ours is None) == (found is None)
    if ours is not None:
        parts = [part for task in divided(plain.files, found, 2, 1) for part in task]
        read = [rows for part in parts for rows in plain.read_part(part, columns, (), latest=latest)]
        assert_same(ours.drop_columns([FILE, VERSION]), pa.concat_tables(read))
    return theirs, ours


_TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.int8(), [1, -128, None, 127, 0]),
    "short": (pa.int16(), [1, -32768, None, 5, 0]),
    "int": (pa.int32(), [1, -(2**31), None, 5, 0]),
    "long": (pa.int64(), [1, -(2**63), None, 2**63 - 1, 0]),
    "float": (pa.float32(), [1.1, float("nan"), None, -0.0, 3.4e38]),
    "double": (pa.float64(), [0.1, float("nan"), None, -0.0, float("-inf")]),
    "flag": (pa.bool_(), [True, False, None, True, False]),
    "text": (pa.string(), ["a", 'q"\\\n\u0001é\u2028', None, "", "z" * 500]),
    "bytes": (pa.binary(), [b"ab", b"\x00\xff", None, b"", b"x"]),
    "day": (pa.date32(), [date(2024, 2, 29), date(1, 1, 1), None, date(9999, 12, 31), date(1969, 12, 31)]),
    "money": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-0.01"), None, Decimal("9999999999.99"), Decimal(0)]),
    "tiny money": (pa.decimal128(38, 18), [Decimal("1e-10"), Decimal("-2.5"), None, Decimal(7), Decimal(0)]),
    "local": (pa.timestamp("us"), [1_704_164_645_678_901, -62_135_596_800_000_000, None, 253_402_214_400_000_000, 0]),
    "at": (_MICROS, [1_704_164_645_678_901, -62_135_596_800_000_000, None, 253_402_214_400_000_000, -1]),
}
_TIMES = [NOW - 1, None, -(1 << 62), NOW + 2 * 86_400_000_000, 0]


def _odd_table() -> pa.Table:
    columns = {name: pa.array(values, kind) for name, (kind, values) in _TYPES.items()}
    return pa.table(columns | {"t": pa.array(_TIMES, pa.int64()).cast(_MICROS)})


def test_every_type_and_every_reason_as_spark_gives_them(spark, tmp_path):
    write_deltalake(str(tmp_path / "s"), _odd_table())
    write_deltalake(str(tmp_path / "s"), _odd_table().slice(1, 3), mode="append")
    theirs, ours = _both(spark, pipeline_over(tmp_path / "s"))
    assert theirs.column(REASON).to_pylist()[:5] == [None, "null_time", "time_out_of_range", "future_time", None]
    assert_same(theirs, ours)


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_files_that_spark_wrote(spark, tmp_path, kind):
    """Spark writes instants as INT96 unless told otherwise."""
    rows = _odd_table().select(["int", "float", "double", "flag", "text", "bytes", "money"])
    rows = rows.append_column("t", pa.array([NOW, None, 1, 2, 3], _MICROS))
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        spark.createDataFrame(rows).coalesce(1).write.format("delta").save(str(tmp_path / "s"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    assert_same(*_both(spark, pipeline_over(tmp_path / "s")))


def test_int96_before_1900_is_left_to_spark(spark, tmp_path):
    path = tmp_path / "s"
    path.mkdir()
    old = pa.table({"t": pa.array([-2_209_075_200_000_000_000, 1_000], pa.timestamp("ns"))})
    pq.write_table(old, path / "a.parquet", use_deprecated_int96_timestamps=True)
    spark.sql(f"CONVERT TO DELTA parquet.`{path}`")
    _, ours = _both(spark, pipeline_over(path))
    assert ours is None
    pq.write_table(old.slice(1), path / "b.parquet", use_deprecated_int96_timestamps=True)
    theirs, ours = _both(spark, pipeline_over(_converted(spark, tmp_path / "b", path / "b.parquet")))
    assert_same(theirs, ours)


def _converted(spark: Any, folder: Any, file: Any) -> Any:
    folder.mkdir()
    file.rename(folder / "b.parquet")
    spark.sql(f"CONVERT TO DELTA parquet.`{folder}`")
    return folder


def test_partition_values_and_columns_that_came_later(spark, tmp_path):
    path, texts = str(tmp_path / "s"), pa.array(["a", "b c", None, "é%2F", "x=y"])
    rows = _odd_table().select(["t", "long", "day", "short"]).append_column("text", texts)
    write_deltalake(path, rows, partition_by=["text", "day", "short"])
    wide = rows.append_column("later", pa.array([1.5] * 5))
    write_deltalake(path, wide, mode="append", schema_mode="merge")
    assert_same(*_both(spark, pipeline_over(path)))


def test_mapped_columns(spark, tmp_path):
    path = str(tmp_path / "s")
    write_deltalake(path, _odd_table().select(["t", "long", "text"]))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN text TO words")
    spark.sql(f"INSERT INTO delta.`{path}` VALUES (TIMESTAMP'2023-11-14 00:00:00', 7, 'x')")
    theirs, ours = _both(spark, pipeline_over(path))
    assert len(whole(open_source(pipeline_over(path))).files) == 2
    assert_same(theirs, ours)


@pytest.mark.parametrize(
    ("fields", "plain"),
    [
        ({"source": {"filter": "long > 0 OR text = 'a'"}}, True),
        ({"source": {"filter": "cast(text AS int) > 0"}}, True),
        ({"source": {"filter": "LONG > 0"}}, True),
        ({"source": {"filter": "text rlike '^[a-z]+$'"}}, None),
        ({"aggregates": {"n": {"count": "*", "where": "100 / short > 3"}}}, True),
        ({"aggregates": {"n": {"count": "*", "where": "xxhash64(text) > 3"}}}, None),
        ({"time": {"column": "t", "end": "at"}}, True),
        ({"time": {"column": "t", "max_future_skew": None}}, True),
        ({"time": {"column": "day"}}, True),
        ({"time": {"column": "text"}}, True),
        ({"time": {"column": "local"}}, True),
        ({"time": {"column": "long", "unit": "s"}}, True),
        ({"time": {"column": "short", "unit": "none", "max_future_skew": None}}, True),
    ],
    ids=str,
)
def test_conditions_and_times_as_spark_gives_them_or_not_at_all(spark, tmp_path, fields, plain):
    path = str(tmp_path / "s")
    write_deltalake(path, _odd_table())
    fields = dict(fields)
    if "source" in fields:
        fields["source"] = {"path": path, **fields["source"]}
    if "unit" in fields.get("time", {}):
        fields["windows"] = [{"name": "w", "type": "tumbling", "size": 5}]
    theirs, ours = _both(spark, pipeline_over(path, **fields))
    assert plain is None or (ours is not None) == plain
    if ours is not None:
        assert_same(theirs, ours)


def _bare(file: Any, table: pa.Table, **options: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, **options)


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        (pa.array(["a", "b", None, "", "a"]).dictionary_encode(), True),
        (pa.array(["a", "b", None, "", "a"], pa.large_string()), True),
        (pa.array([1, 2, None, 4, 5], pa.uint32()), False),
        (pa.array([[1], [], None, [2], [3]]), False),
        (pa.array([{"a": 1}] * 5), True),
        (pa.array([{"a": [1]}] * 5), False),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_other_forms_of_columns(spark, tmp_path, column, plain):
    _bare(tmp_path / "s" / "a.parquet", pa.table({"t": pa.array(range(5)).cast(_MICROS), "x": column}))
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 's'}`")
    theirs, ours = _both(spark, pipeline_over(tmp_path / "s"))
    assert (ours is not None) == plain
    if ours is not None:
        assert_same(theirs, ours)


def test_names_that_differ_in_case_and_dotted_names(spark, tmp_path):
    _bare(tmp_path / "s" / "a.parquet", pa.table({"t": pa.array(range(5)).cast(_MICROS), "x": range(5)}))
    spark.sql(f"CONVERT TO DELTA parquet.`{tmp_path / 's'}`")
    _bare(next((tmp_path / "s").glob("a.parquet")), pa.table({"T": pa.array(range(5)).cast(_MICROS), "x": range(5)}))
    assert _both(spark, pipeline_over(tmp_path / "s"))[1] is None
    write_deltalake(str(tmp_path / "d"), pa.table({"t": pa.array(range(5)).cast(_MICROS), "a.b": range(5)}))
    assert _both(spark, pipeline_over(tmp_path / "d"))[1] is None


@pytest.mark.parametrize("kind", ["CHAR(5)", "VARCHAR(5)"])
def test_texts_of_fixed_length_as_spark_reads_them(spark, tmp_path, kind):
    spark.sql(f"CREATE TABLE delta.`{tmp_path / 's'}` (t TIMESTAMP, k {kind}) USING delta")
    values = ", ".join(f"(TIMESTAMP '2023-11-14 00:00:00', {text})" for text in ("'ab'", "'é'", "'12345'", "NULL"))
    spark.sql(f"INSERT INTO delta.`{tmp_path / 's'}` VALUES {values}")
    assert_same(*_both(spark, pipeline_over(tmp_path / "s")))
    compares = pipeline_over(tmp_path / "s", source={"path": f"{tmp_path}/s", "filter": "k = 'ab'"})
    theirs, ours = _both(spark, compares)
    assert theirs.num_rows == 1
    assert (ours is None) == (kind == "CHAR(5)"), "Spark pads what it compares texts of fixed length with"


def test_a_column_that_comes_with_a_name_of_windowmills_own_is_refused(spark, tmp_path):
    bench, rows = Bench(tmp_path), events(73, 60)
    bench.land(rows[:30])
    bench.run()
    table = pa.Table.from_pylist(rows[30:], schema=SCHEMA).append_column("_Row", pa.array(range(30)))
    bench.append(table, schema_mode="merge")
    with pytest.raises(SourceSchemaError, match="'_Row' is taken by windowmill"):
        bench.run()


def test_a_batch_reads_the_columns_that_its_plan_has_pinned(spark, tmp_path):
    bench, rows = Bench(tmp_path, {"aggregates": {"total": {"sum": "v"}}}), events(74, 200)
    bench.land(rows[:100])
    table = f"delta.`{bench.source}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN spare DOUBLE")
    bench.run()
    spark.createDataFrame(pa.Table.from_pylist(rows[100:], schema=SCHEMA)).write.format("delta").mode("append").save(bench.source)
    bench.commits += [1] * 100
    runnable, ledger = runnable_of(bench.pipeline), Ledger.open(bench.pipeline)
    plan = next_run(runnable, ledger)
    assert plan is not None
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO old")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN spare TO v")
    steps.run_batch(runnable, plan, ledger, quiet())
    assert differences(bench.rows(), bench.expected(rows).rows) == []
    with pytest.raises(SourceSchemaError, match="column 'v' is another column"):
        bench.run()


def test_files_with_deletion_vectors_are_not_plain(spark, tmp_path):
    path = str(tmp_path / "s")
    write_deltalake(path, _odd_table().select(["t", "long"]))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert_same(*_both(spark, pipeline_over(path), snapshot=True))
    spark.sql(f"DELETE FROM delta.`{path}` WHERE long = 1")
    theirs, ours = _both(spark, pipeline_over(path), snapshot=True)
    assert theirs.num_rows == 4
    assert ours is None


def test_a_damaged_file_is_left_to_spark(spark, tmp_path):
    write_deltalake(str(tmp_path / "s"), _odd_table())
    pipeline = pipeline_over(tmp_path / "s")
    source = open_source(pipeline)
    reading = whole(source)
    plain = PlainRows.of(pipeline, source, reading)
    assert plain is not None
    [file] = plain.files
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:-20])
    assert plain.read(["long"], [], latest=None) is None
    Path(file.path).unlink()
    assert plain.read(["long"], [], latest=None) is None


def test_rows_as_json_have_the_values_that_sparks_have(spark):
    table = _odd_table()
    table = table.set_column(
        table.schema.get_field_index("t"), "t", pa.array([-(1 << 59), None, 1 << 59, 1_700_000_000_123_456, 0]).cast(_MICROS)
    )
    frame = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    wanted = [
        row[0]
        for row in frame.select(F.to_json(F.struct(*(f"`{name}`" for name in frame.columns)), {"ignoreNullFields": "false"})).collect()
    ]
    for ours, theirs in zip(to_json(table), wanted, strict=True):
        assert json.loads(ours) == json.loads(theirs)


def test_quarantined_rows_have_the_form_that_spark_gives_them(spark, tmp_path):
    path = str(tmp_path / "s")
    write_deltalake(path, _odd_table())
    pipeline = pipeline_over(
        path, aggregates={"n": {"count": "*", "where": "100 / short > 3"}, "m": {"count": "*", "where": "cast(text AS int) = 1"}}
    )
    plan = RunPlan(
        batch=3, attempt="a", generation="g", source_id="s", from_version=-1, to_version=0, now_us=NOW, meaning="m", source_schema="",
        emitted=None, windowmill="1", seen=None, interval_end=None,
    )  # fmt: skip
    _, ours = _both(spark, pipeline)
    assert ours is not None
    refused = ours.filter(pc.is_valid(ours.column(REASON)))
    assert refused.num_rows > 3
    names = [name for name in ours.column_names if not name.startswith("_")]
    source = open_source(pipeline)
    frame = read_rows(spark, source, whole(source), runnable_of(pipeline), now_us=NOW)
    quarantine = QuarantineRows(pipeline, plan, [])
    target = Target(str(tmp_path / "q"), quarantine_schema(pipeline))
    written = Quarantining(quarantine, Targets(3, "a", {"quarantine": target}), LatenessRule(0, 0)).write_of_frame(frame, names)
    by_spark = pa.Table.from_batches(read_files(target.table, written.files["quarantine"])).to_pylist()
    here = quarantine.of(refused, names)
    assert here.schema == target.schema
    assert sum(written.counts.quarantined.values()) == here.num_rows
    assert [dict(row, row=json.loads(row["row"])) for row in here.to_pylist()] == [
        dict(row, row=json.loads(row["row"])) for row in by_spark
    ]


_LASTING = {"time": {"column": "t", "end": "e", "tie_break": ["id"], "disorder": "5 minutes", "lateness": "8 minutes"}}


@pytest.mark.classic
@pytest.mark.parametrize(
    ("changes", "lowered"),
    [
        ({}, {}),
        ({}, {"MAX_REFUSED": 0}),
        ({"source_filter": "v > 10 OR label = 'x'"}, {}),
        (_LASTING, {}),
        ({"windows": [{"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}}]}, {}),
        ({"windows": [{"name": "s", "type": "session", "gap": "3 minutes"}]}, {}),
        ({"windows": [{"name": "c", "type": "count", "count": 4}]}, {}),
        ({}, {"MAX_RESULTS": 100}),
        ({}, {"MAX_STATE_ROWS": 10}),
    ],
    ids=str,
)
def test_batches_read_from_plain_files_give_the_rows_of_the_reference(spark, tmp_path, monkeypatch, changes, lowered):
    for name, limit in lowered.items():
        monkeypatch.setattr(limits, name, limit)
    changes, rows = dict(changes), events(71, 500)
    bench = Bench(tmp_path, {name: value for name, value in changes.items() if name != "source_filter"})
    condition = changes.get("source_filter")
    if condition:
        bench.changes["source"] = {"path": bench.source, "filter": condition}
    if changes == _LASTING:
        rows = lasting(rows, 3)
    started: list[str] = []
    start = session.spark_session
    monkeypatch.setattr(session, "spark_session", lambda *args, **options: started.append("") or start(*args, **options))
    run_over(bench, 9, rows, 3)
    assert not started or lowered, "no batch starts Spark"
    kept = [
        (row, commit)
        for row, commit in zip(rows, bench.commits, strict=True)
        if not condition or (row["v"] is not None and (row["v"] > 10 or row["v"] != row["v"])) or row["label"] == "x"
    ]
    want = expected(bench.pipeline, [row for row, _ in kept], commits=[commit for _, commit in kept])
    assert want.rows
    assert differences(bench.rows(), want.rows) == []
    assert sorted(row["reason"] for row in bench.quarantine()) == sorted(reason for _, reason in want.quarantined)
    assert want.quarantined, "no row was quarantined, so none was compared"


@pytest.mark.classic
@pytest.mark.parametrize(
    ("limit", "most", "starts"),
    [("MAX_NUMBERS", 9_000, False), ("MAX_NUMBERS", 300, True), ("MAX_RESULTS", 200, False), ("MAX_RESULTS", 20, True)],
)
def test_few_partials_and_results_of_many_rows_keys_and_windows_need_no_spark(spark, tmp_path, monkeypatch, limit, most, starts):
    """Counted are pairs of a key and a slice: 31 of new rows and 30 stored, of 129 numbers each.

    A partial for each of 301 rows would be 38,829 numbers, and a result for each of 30 keys and 30 windows 900.
    """
    windows = [{"name": "w", "type": "tumbling", "size": "1 minute"}]
    bench = Bench(tmp_path, {"windows": windows, "aggregates": {"labels": {"count_distinct": "label"}, "n": {"count": "*"}}})
    rows = [
        {"k": f"k{n % 30}", "site": 1, "t": BASE + (n % 30) * MINUTE + n, "v": 1.0, "i": n, "label": f"{n % 7}", "id": f"{n}"}
        for n in range(400)
    ]
    rows.append(rows[0] | {"t": BASE + 90 * MINUTE})
    bench.land(rows[:100])
    bench.run()
    monkeypatch.setattr(limits, limit, most)
    started: list[str] = []
    start = session.spark_session
    monkeypatch.setattr(session, "spark_session", lambda *args, **options: started.append("") or start(*args, **options))
    bench.land(rows[100:])
    bench.run()
    assert bool(started) == starts
    assert differences(bench.rows(), bench.expected(rows).rows) == []


@pytest.mark.parametrize("lowest", [-1.0, 1e9])
def test_rules_in_sql_and_over_nan_ask_for_a_session(spark, tmp_path, monkeypatch, lowest):
    """NaN is greater than every number, as in a batch that Spark computes."""
    rule = {"type": "expect_column_values_to_be_between", "column": "total", "min_value": lowest, "severity": "warning"}
    sql = {"type": "unexpected_rows_expectation", "unexpected_rows_query": "SELECT * FROM {batch} WHERE n < 0", "severity": "critical"}
    windows = [{"name": "w", "type": "tumbling", "size": "1 minute"}]
    bench = Bench(tmp_path, {"windows": windows, "expectations": [rule, sql]})
    rows = [{"k": "a", "site": 1, "t": BASE + n * MINUTE, "v": math.nan, "i": n, "label": "x", "id": f"{n}"} for n in range(90)]
    bench.land(rows[:1])
    bench.run()
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: None))
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: spark)
    bench.land(rows[1:])
    [done] = bench.run()
    assert done.outcome.verdict == "passed"


@pytest.mark.classic
def test_a_small_batch_runs_on_a_machine_without_java(spark, tmp_path):
    bench, rows = Bench(tmp_path), events(72, 300)
    bench.land(rows[:200])
    bench.run()
    bench.land(rows[200:])
    spec = tmp_path / "p.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK", "JAVA"))}
    command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(spec), "--json"]
    done = subprocess.run(
        command,
        env=environment | {"PATH": "/nowhere", "JAVA_HOME": "/nowhere", COMPUTE.name: "local"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert differences(bench.rows(), bench.expected(rows).rows) == []
    assert "start" not in done.stderr
