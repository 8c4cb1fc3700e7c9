"""Files that tasks of ``aggregate`` read by Arrow: the rows of Spark's own scan to the bit, and only where both read the same."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from windowmill import aggregate
from windowmill.jobs import dataframe as bounded
from windowmill.jobs.dataframe import BoundedWork, FileScan
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.input import SourceInput
from windowmill.jobs.layouts.slices import SlicePart
from windowmill.jobs.schedulers import exchange
from windowmill.jobs.schedulers.exchange import Exchange, RowsOfFiles
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_files import number_of_bytes, number_of_rows
from windowmill.windowing.columnar import slices
from windowmill.windowing.errors import SourceError
from windowmill.windowing.layouts import divide
from windowmill.windowing.specfile import parse_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.classic]  # a client is not told the plan

_START = 1_700_000_000_000_000
_SPEC = {
    "pipeline": "p",
    "keys": ["k", "s"],
    "time": {"column": "t"},
    "windows": [{"name": "w", "type": "hopping", "size": "10 minutes", "hop": "1 minute"}],
    "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}, "sd": {"stddev_samp": "v"}, "last": {"last": "v"}, "top": {"max": "v"}},
}


def _events(n, seed=1):
    rng = np.random.default_rng(seed)
    times = _START + rng.integers(0, 3_600_000_000, n)
    times[: n // 50] = -(1 << 62)  # no window lies there
    return pa.table(
        {
            "k": pa.array(rng.choice([0.0, -0.0, np.nan, 7.5], n), mask=rng.random(n) < 0.1),
            "t": pa.array(times, pa.timestamp("us", "UTC"), mask=rng.random(n) < 0.05),
            "v": pa.array(rng.lognormal(0, 3, n), mask=rng.random(n) < 0.1),
            "s": pa.array(rng.choice(["a", "b", "ü"], n), mask=rng.random(n) < 0.1),
            "unused": pa.array([[1]] * n),
        }
    )


def _ordered(frame, keys):
    """The rows of ``frame`` in order, with floats as bits, so that NaN equals NaN."""
    table = frame.toArrow()
    texts = {name: table.column(name).cast(pa.string()) for name in keys}
    floats = {name: pa.array(table.column(name).combine_chunks()).view(pa.int64()) for name in ("mean", "sd", "last", "top")}
    columns = {name: table.column(name) for name in table.column_names} | texts | floats
    return pa.table(columns).sort_by([(name, "ascending") for name in (*keys, "window", "window_end", "trigger", "window_start")])


def _check_windows(monkeypatch, frame, spec=_SPEC, most=0, ours=None):
    """The windows that tasks make of files, more than ``most``, are to the bit those of Spark's own scan."""
    found = _ordered(aggregate(frame, spec) if ours is None else ours, spec["keys"])
    with monkeypatch.context() as patched:
        patched.setattr(bounded, "file_parts", lambda *_: None)
        theirs = aggregate(frame, spec)
        assert "FileScan" in theirs._jdf.queryExecution().executedPlan().toString()
        assert found.equals(_ordered(theirs, spec["keys"]))
    assert found.num_rows > most


def _scan(frame, spec=_SPEC):
    batch = SourceInput(pipeline=parse_pipeline(spec), columns=Columns(frame.schema))
    return FileScan.of(frame, batch, ["k", "s", "v"], None)


@pytest.fixture
def _small_parts(spark):
    keys = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
    before = {key: spark.conf.get(key) for key in keys}
    for key in keys:
        spark.conf.set(key, "100000")
    yield
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize(
    ("most_rows", "readers"), [(0, 0), (limits.MAX_ROWS_OF_A_TASK, 0), (0, 64)], ids=["shuffled", "one_task", "shared"]
)
def test_the_rows_of_sparks_own_scan_to_the_bit(spark, tmp_path, monkeypatch, most_rows, readers):
    monkeypatch.setattr(limits, "MAX_ROWS_OF_A_TASK", most_rows)
    monkeypatch.setattr(limits, "MAX_READERS", readers)
    for number in range(3):
        pq.write_table(_events(9_000 + number, number), tmp_path / f"a b%{number}.parquet", row_group_size=1_000)
    frame = spark.read.parquet(str(tmp_path))
    scan = _scan(frame)
    assert scan is not None
    assert len(scan.tasks) > 2, "the scan must have tasks that read parts of files"
    assert sum(part.rows for task in scan.tasks for part in task) == 27_003
    rows = aggregate(frame.select("v", "s", "k", "t"), _SPEC)
    assert ("Exchange" in rows._jdf.queryExecution().executedPlan().toString()) == (most_rows == readers == 0)
    _check_windows(monkeypatch, frame, most=1_000, ours=rows)


_POLICIES = [
    {"name": "last", "type": "sliding", "evict": {"count": 40}, "trigger": {"count": 3}},
    {"name": "recent", "type": "sliding", "evict": {"time": "5 minutes"}, "trigger": {"count": 7}},
    {"name": "w", "type": "session", "gap": "20 seconds"},
]


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize(
    ("keys", "readers"), [(["k", "s"], 0), (["k", "s"], 64), (["d"], 0), ([], 64)], ids=["shuffled", "shared", "decimal", "no keys"]
)
def test_live_rows_of_files_give_the_windows_of_sparks_own_scan_to_the_bit(spark, tmp_path, monkeypatch, keys, readers):
    monkeypatch.setattr(exchange, "ROWS_PER_PARTITION", 1_000)
    monkeypatch.setattr(limits, "MAX_READERS", readers)
    for number in range(3):
        events = _events(2_000 + number, number)
        decimals = pa.array(np.arange(len(events)) % 7).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 3))
        pq.write_table(events.append_column("d", decimals), tmp_path / f"{number}.parquet", row_group_size=500)
    frame, spec = spark.read.parquet(str(tmp_path)), _SPEC | {"keys": keys, "windows": _POLICIES}
    spec["time"] = {"column": "t", "tie_break": ["v"]}
    rows = aggregate(frame, spec)
    assert ("repartition" in rows._jdf.queryExecution().logical().toString().lower()) == (readers == 0)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    _check_windows(monkeypatch, frame, spec, 2_000, rows)


def test_large_files_or_many_cores_are_shuffled(spark, tmp_path, monkeypatch):
    _write(tmp_path / "d")
    scan = _scan(spark.read.parquet(str(tmp_path / "d")))
    cores = spark.sparkContext.defaultParallelism

    def readers(most=0):
        work = SimpleNamespace(keys={"k": "k"}, width=7, most_readers=most, are_few=lambda _: False)
        return Exchange(spark, work, None, None, 2)._readers(RowsOfFiles(scan.tasks, scan.usable))

    for name, most in (
        ("MAX_READERS", cores),
        ("MAX_SHARED_NUMBERS", 7 * number_of_rows(scan.tasks)),
        ("MAX_SHARED_BYTES", number_of_bytes(scan.tasks)),
    ):
        with monkeypatch.context() as at_limit:
            at_limit.setattr(limits, "MAX_READERS", cores)
            at_limit.setattr(limits, name, most)
            assert readers() == cores
            at_limit.setattr(limits, name, most - 1)
            assert readers() == 0
            assert readers(2 * cores) == 2 * cores * (name != "MAX_READERS")
            assert readers(2 * cores - 1) == 0


@pytest.mark.usefixtures("_small_parts")
def test_live_rows_that_do_not_fit_at_a_time_are_read_again(spark, tmp_path, monkeypatch):
    cores = spark.sparkContext.defaultParallelism
    monkeypatch.setattr(exchange, "ROWS_PER_PARTITION", 100)
    monkeypatch.setattr(limits, "MAX_READERS", cores)
    monkeypatch.setattr(limits, "MAX_READINGS", 3 * cores)
    pq.write_table(_events(2_000), tmp_path / "f.parquet", row_group_size=500)
    frame, spec = spark.read.parquet(str(tmp_path)), _SPEC | {"windows": _POLICIES}
    monkeypatch.setattr(limits, "MAX_SHARED_BYTES", -(-number_of_bytes(_scan(frame).tasks) // 3))
    rows = aggregate(frame, spec)
    assert rows.rdd.getNumPartitions() == 3 * cores
    _check_windows(monkeypatch, frame, spec, ours=rows)


def test_the_bytes_of_a_scan_are_those_of_its_columns(spark, tmp_path):
    _write(tmp_path / "d")
    metadata = pq.read_metadata(tmp_path / "d" / "f.parquet").row_group(0)
    columns = [metadata.column(number) for number in range(metadata.num_columns)]
    read = sum(column.total_uncompressed_size for column in columns if column.path_in_schema in ("k", "s", "v", "t"))
    assert number_of_bytes(_scan(spark.read.parquet(str(tmp_path / "d"))).tasks) == read > 0


@pytest.mark.parametrize("windows", [_SPEC["windows"], _POLICIES], ids=["slices", "live rows"])
def test_a_folder_without_files_has_no_windows(spark, tmp_path, windows):
    _write(tmp_path / "d")
    (tmp_path / "e").mkdir()
    frame = spark.read.schema(spark.read.parquet(str(tmp_path / "d")).schema).parquet(str(tmp_path / "e"))
    assert _scan(frame) is not None
    assert aggregate(frame, _SPEC | {"windows": windows}).count() == 0


def test_blocks_are_short(spark, tmp_path, monkeypatch):
    pq.write_table(_events(5_000), tmp_path / "f.parquet")
    frame, pipeline = spark.read.parquet(str(tmp_path)), parse_pipeline(_SPEC | {"windows": _POLICIES})
    work = BoundedWork.of(SourceInput(pipeline=pipeline, columns=Columns(frame.schema)))
    new = work.source_of(_scan(frame))

    def blocks():
        return list(exchange._blocks_of_files(work, new, 2, iter([pa.record_batch({"id": [0]})])))

    monkeypatch.setattr(exchange, "_BLOCK_BYTES", 1 << 30)
    whole = blocks()
    assert {block.column("partition")[0].as_py() for block in whole} == {0, 1}
    assert len({block.column("bucket")[0].as_py() for block in whole}) == len(whole)
    monkeypatch.setattr(exchange, "_BLOCK_BYTES", 1_000)
    assert max(len(block.column("rows")[0].as_py()) for block in blocks()) < 4_000


def test_times_beyond_the_latest_do_not_count(spark, tmp_path):
    pq.write_table(_events(500), tmp_path / "f.parquet")
    frame = spark.read.parquet(str(tmp_path))
    pipeline = parse_pipeline(_SPEC)
    batch = SourceInput(pipeline=pipeline, columns=Columns(frame.schema))
    stage = SlicePart(batch, divide(pipeline, batch.types).slices).reading
    scan = FileScan.of(frame, batch, ["k", "s", "v"], _START + 60_000_000)
    assert scan is not None
    lifted = sum(part.rows for part in slices.sliced(stage, scan.usable(0)))
    times = [time for time in _events(500).column("t").cast(pa.int64()).to_pylist() if time is not None]
    assert lifted == sum(-(1 << 61) < time <= _START + 60_000_000 for time in times)


def _write(folder, file=None, **columns):
    folder.mkdir(parents=True)
    table = _events(300)
    if file is not None:
        table = table.append_column("file", pa.array([file] * len(table), pa.int32()))
    for name, column in columns.items():
        table = table.drop_columns([name]) if column is None else table.set_column(table.column_names.index(name), name, column(table))
    pq.write_table(table, folder / "f.parquet")


#: What is more than a scan.
_MORE = {
    "filter": lambda frame: frame.where("v > 0.5"),
    "computed": lambda frame: frame.withColumn("v", F.col("v") + 1),
    "renamed": lambda frame: frame.selectExpr("k", "t", "s", "v AS w").withColumnRenamed("w", "v"),
    "limit": lambda frame: frame.limit(10),
    "union": lambda frame: frame.union(frame),
    "distinct": lambda frame: frame.distinct(),
    "repartition": lambda frame: frame.repartition(2),
    "sample": lambda frame: frame.sample(0.5),
    "cached": lambda frame: frame.cache(),
    "columns of cached": lambda frame: frame.cache().select("k", "t", "s", "v"),
}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_more_than_a_scan_is_sparks(spark, tmp_path, kind):
    path = str(tmp_path / "d")
    if kind == "parquet":
        _write(tmp_path / "d")
    else:
        _delta(spark, path, n=20)
    frame = spark.read.format(kind).load(path)
    assert _scan(frame) is not None
    for name, change in _MORE.items():
        assert _scan(change(frame)) is None, name
        spark.catalog.clearCache()


#: Columns of other types, by which Spark reads their values all the same.
_OTHER_TYPES = {
    "missing": {"v": None},
    "narrower": {"v": lambda table: table.column("v").cast(pa.float32())},
    "milliseconds of another zone": {"t": lambda table: _in_time(table).cast(pa.timestamp("ms", "Europe/Paris"), safe=False)},
    "another zone": {"t": lambda table: table.column("t").cast(pa.timestamp("us", "America/New_York"))},
    "dictionary": {"s": lambda table: table.column("s").dictionary_encode()},
    "large": {"s": lambda table: table.column("s").cast(pa.large_string())},
}


def test_files_of_other_types_are_read_as_spark_reads_them_or_are_sparks(spark, tmp_path, monkeypatch):
    _write(tmp_path / "d")
    plain = spark.read.parquet(str(tmp_path / "d"))
    _write(tmp_path / "e", t=lambda table: table.column("t").cast(pa.timestamp("ns", "UTC"), safe=False))
    assert _scan(spark.read.schema(plain.schema).parquet(str(tmp_path / "d"), str(tmp_path / "e"))) is None
    # Each file has keys of its own, so that its rows are compared.
    spec = _SPEC | {"keys": ["k", "s", "file"]}
    for number, columns in enumerate(_OTHER_TYPES.values()):
        _write(tmp_path / "all" / str(number), file=number, **columns)
    schema = plain.schema.add("file", "integer")
    frame = spark.read.schema(schema).parquet(*(str(tmp_path / "all" / str(number)) for number in range(len(_OTHER_TYPES))))
    assert _scan(frame, spec) is not None
    ours = aggregate(frame, spec)
    assert {row.file for row in ours.select("file").distinct().collect()} == set(range(len(_OTHER_TYPES)))
    _check_windows(monkeypatch, frame, spec, ours=ours)


def _in_time(table):
    return pc.if_else(pc.less(table.column("t").cast(pa.int64()), 0), None, table.column("t"))


@pytest.mark.parametrize("windows", [_SPEC["windows"], _POLICIES], ids=["slices", "live rows"])
def test_instants_as_spark_writes_them_by_default(spark, tmp_path, monkeypatch, windows):
    events = _events(2_000)
    spark.createDataFrame(events.set_column(1, "t", _in_time(events))).coalesce(1).write.parquet(str(tmp_path / "p"))
    [file] = (tmp_path / "p").glob("*.parquet")
    assert pq.read_metadata(file).row_group(0).column(1).physical_type == "INT96"
    spec = _SPEC | {"windows": windows}
    frame = spark.read.parquet(str(tmp_path / "p"))
    assert _scan(frame) is not None
    _check_windows(monkeypatch, frame, spec, 500)


def test_int96_before_year_1_is_sparks(spark, tmp_path):
    """Where days, or times of day, are negative, Arrow takes them for unsigned numbers."""
    begin = -62_135_596_800_000_000
    for instant in (-(1 << 62), -210_866_760_000_000_001, begin - 1, begin):
        path = str(tmp_path / str(instant))
        rows = pa.table({"k": [1.0], "s": ["a"], "v": [1.0], "t": pa.array([instant], pa.timestamp("us", "UTC"))})
        spark.createDataFrame(rows).coalesce(1).write.parquet(path)
        assert (_scan(spark.read.parquet(path)) is not None) == (instant == begin)


def _delta(spark, path, n=400, seed=1, **options):
    rng = np.random.default_rng(seed)
    rows = pa.table(
        {
            "k": pa.array(rng.choice([0.0, 7.5], n), mask=rng.random(n) < 0.1),
            "t": pa.array(_START + rng.integers(0, 3_600_000_000, n), pa.timestamp("us", "UTC"), mask=rng.random(n) < 0.05),
            "v": pa.array(rng.integers(-99, 99, n) / 4, mask=rng.random(n) < 0.1),
            "s": pa.array(rng.choice(["a", "b", "ü"], n), mask=rng.random(n) < 0.1),
        }
    )
    writer = spark.createDataFrame(rows).repartition(3).write.format("delta").mode("append")
    writer.partitionBy(*options.get("partitions", [])).save(path)


_EXACT = _SPEC | {"aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}, "top": {"max": "v"}}}


def _of_delta(spark, monkeypatch, frame):
    """Compare the windows that tasks read of a Delta table with those that Spark reads."""
    assert _scan(frame, _EXACT) is not None
    rows = aggregate(frame, _EXACT)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    order = [(name, "ascending") for name in ("s", "window_end", "k", "n")]
    ours = rows.toArrow().sort_by(order)
    with monkeypatch.context() as patched:
        patched.setattr(FileScan, "of", lambda *_: None)
        theirs = aggregate(frame, _EXACT).toArrow().sort_by(order)
    assert ours.num_rows > 100
    assert ours.equals(theirs)
    return ours.num_rows


def test_delta_tables_are_read_by_tasks(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "d")
    _delta(spark, path)
    _delta(spark, path, seed=2)
    frame = spark.read.format("delta").load(path)
    both = _of_delta(spark, monkeypatch, frame)
    _of_delta(spark, monkeypatch, frame.select("v", "s", "k", "t"))
    first = _of_delta(spark, monkeypatch, spark.read.format("delta").option("versionAsOf", 0).load(path))
    assert first < both
    frame.createOrReplaceTempView("some_events")
    _of_delta(spark, monkeypatch, spark.table("some_events"))
    _of_delta(spark, monkeypatch, spark.sql(f"SELECT * FROM delta.`{path}`"))


def test_partitions_and_mapped_columns_of_delta_tables(spark, tmp_path, monkeypatch):
    path = str(tmp_path / "d")
    _delta(spark, path, partitions=["s"])
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE delta.`{path}` RENAME COLUMN v TO w")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN v DOUBLE")
    _of_delta(spark, monkeypatch, spark.read.format("delta").load(path))


def test_deleted_rows_of_delta_tables_are_sparks(spark, tmp_path):
    path = str(tmp_path / "d")
    _delta(spark, path, n=50)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert _scan(spark.read.format("delta").load(path)) is not None
    spark.sql(f"DELETE FROM delta.`{path}` WHERE v > 0")
    assert _scan(spark.read.format("delta").load(path)) is None


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize(("windows", "readers"), [(_SPEC["windows"], 64), (_POLICIES, 0)], ids=["slices, shared", "live rows, shuffled"])
def test_conditions_hold_of_the_rows_of_sparks_own_scan(spark, tmp_path, monkeypatch, windows, readers):
    monkeypatch.setattr(limits, "MAX_ROWS_OF_A_TASK", 0)
    monkeypatch.setattr(limits, "MAX_READERS", readers)
    events = _events(3_000)
    codes = pa.array([("7", "12", " 3", "x", None)[number % 5] for number in range(len(events))])  # "x" is no number
    pq.write_table(events.append_column("code", codes), tmp_path / "f.parquet", row_group_size=500)
    some = {
        "many": {"count": "*", "where": "v > 1 or s = 'a'"},
        "coded": {"sum": "v", "where": "cast(code as int) > 5"},
        "first": {"first": "s", "where": "v > 1 or s = 'a'"},
    }
    frame, spec = spark.read.parquet(str(tmp_path)), _SPEC | {"windows": windows, "aggregates": _SPEC["aggregates"] | some}
    scan = _scan(frame, spec)
    assert scan is not None
    assert 0 < sum(rows.num_rows for task in range(len(scan.tasks)) for rows, _ in scan.rows(task)) < 3_000 * 4 / 5
    rows = aggregate(frame, spec)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    assert rows.select("many").distinct().count() > 3
    _check_windows(monkeypatch, frame, spec, 500, rows)


@pytest.mark.parametrize("windows", [_SPEC["windows"], _POLICIES], ids=["slices", "live rows"])
def test_milliseconds_are_read_as_microseconds(spark, tmp_path, monkeypatch, windows):
    milliseconds = {"m": pa.timestamp("ms", "UTC"), "local": pa.timestamp("ms"), "t": pa.timestamp("ms", "UTC")}
    events, others = _events(2_000), _events(2_000, seed=2).column("t")
    events = events.append_column("m", others).append_column("local", others)
    for name, kind in milliseconds.items():
        events = events.set_column(events.column_names.index(name), name, events.column(name).cast(kind, safe=False))
    pq.write_table(events, tmp_path / "f.parquet", row_group_size=500)
    spec = _SPEC | {"windows": windows, "aggregates": _SPEC["aggregates"] | {"moment": {"last": "m"}, "local": {"last": "local"}}}
    frame = spark.read.parquet(str(tmp_path))
    rows = aggregate(frame, spec)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    _check_windows(monkeypatch, frame, spec, 500, rows)


def test_files_read_in_a_way_of_their_own_are_sparks(spark, tmp_path):
    _write(tmp_path / "d")
    path = str(tmp_path / "d")
    assert _scan(spark.read.option("pathGlobFilter", "*.parquet").parquet(path)) is None
    parts = tmp_path / "parts"
    spark.read.parquet(path).write.partitionBy("s").parquet(str(parts))
    assert _scan(spark.read.parquet(str(parts))) is None
    spark.read.parquet(path).write.json(str(tmp_path / "json"))
    assert _scan(spark.read.schema(spark.read.parquet(path).schema).json(str(tmp_path / "json"))) is None


@pytest.mark.parametrize(
    "metadata", [{"org.apache.spark.legacyDateTime": ""}, {"org.apache.spark.version": "2.4.8"}], ids=["mark", "version"]
)
def test_dates_of_the_old_calendar_are_sparks(spark, tmp_path, metadata):
    pq.write_table(_events(10).replace_schema_metadata(metadata), tmp_path / "f.parquet")
    assert _scan(spark.read.parquet(str(tmp_path))) is None
    for version in ("4.0.0", "main"):
        pq.write_table(_events(10).replace_schema_metadata({"org.apache.spark.version": version}), tmp_path / "f.parquet")
        assert _scan(spark.read.parquet(str(tmp_path))) is not None


def test_conditions_are_evaluated_over_files_as_spark_does(spark, tmp_path):
    _write(tmp_path / "d")
    scanned = spark.read.parquet(str(tmp_path / "d"))
    for where in ("xxhash64(s) > 0", "size(unused) > 0"):  # only Spark's, by its function or by its column
        assert _scan(scanned, _SPEC | {"aggregates": {"n": {"count": "*", "where": where}}}) is None
    where = {"text": "upper(s) = 'A'", "case": "V > 1"}
    spec = _SPEC | {"aggregates": {name: {"count": "*", "where": condition} for name, condition in where.items()}}
    assert _scan(scanned, spec) is not None
    found, theirs = (sorted(map(str, aggregate(each, spec).toArrow().to_pylist())) for each in (scanned, scanned.repartition(2)))
    assert found == theirs


@pytest.mark.parametrize("kind", ["text", "date", "instant without a zone"])
def test_times_of_every_type_are_read_from_files(spark, tmp_path, kind):
    rows = _events(500).slice(10)  # the first lie before all years that a text can name
    local = rows.column("t").cast(pa.timestamp("us"))
    forms = {"text": pc.strftime(local, "%Y-%m-%d %H:%M:%S"), "date": local.cast(pa.date32()), "instant without a zone": local}
    pq.write_table(rows.set_column(rows.schema.get_field_index("t"), "t", forms[kind]), tmp_path / "f.parquet")
    scanned = spark.read.parquet(str(tmp_path))
    shuffled = scanned.repartition(2)
    assert _scan(scanned) is not None
    assert _scan(shuffled) is None
    spec = _SPEC | {"aggregates": {"n": {"count": "*"}, "top": {"max": "v"}}}
    found, theirs = (sorted(map(str, aggregate(each, spec).toArrow().to_pylist())) for each in (scanned, shuffled))
    assert found
    assert found == theirs


def test_a_file_that_has_changed_since_is_an_error(spark, tmp_path):
    _write(tmp_path / "d")
    scan = _scan(spark.read.parquet(str(tmp_path / "d")))
    with (tmp_path / "d" / "f.parquet").open("ab") as file:
        file.write(b"PAR1")
    with pytest.raises(SourceError, match="has changed since"):
        list(scan.rows(0))
