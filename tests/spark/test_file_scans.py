"""Files that tasks of ``aggregate`` read by Arrow: the rows of Spark's own scan to the bit, and only where both read the same."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from windowmill import aggregate
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.ways import file_passes, file_scan, limits, partitioning
from windowmill.jobs.ways.file_passes import SlicesOfFiles
from windowmill.jobs.ways.file_scan import FileScan
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.live_row_pass import LiveRows
from windowmill.jobs.ways.slice_stages import Slicing
from windowmill.windowing.columnar import slices
from windowmill.windowing.errors import SourceError
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.ways import divide

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


def _scan(frame, spec=_SPEC):
    batch = Input(pipeline=parse_pipeline(spec), columns=Columns(frame.schema))
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
    ("most_rows", "readers"), [(0, 0), (limits.MOST_ROWS_OF_A_TASK, 0), (0, 64)], ids=["shuffled", "one_task", "shared"]
)
def test_the_rows_of_sparks_own_scan_to_the_bit(spark, tmp_path, monkeypatch, most_rows, readers):
    monkeypatch.setattr(limits, "MOST_ROWS_OF_A_TASK", most_rows)
    monkeypatch.setattr(limits, "MOST_READERS", readers)
    for number in range(3):
        pq.write_table(_events(9_000 + number, number), tmp_path / f"a b%{number}.parquet", row_group_size=1_000)
    frame = spark.read.parquet(str(tmp_path))
    scan = _scan(frame)
    assert scan is not None
    assert len(scan.tasks) > 2, "the scan must have tasks that read parts of files"
    assert sum(part.rows for task in scan.tasks for part in task) == 27_003
    rows = aggregate(frame.select("v", "s", "k", "t"), _SPEC)
    assert ("Exchange" in rows._jdf.queryExecution().executedPlan().toString()) == (most_rows == readers == 0)
    ours = _ordered(rows, _SPEC["keys"])
    monkeypatch.setattr(file_scan, "parts_of", lambda *_: None)
    assert ours.num_rows > 1_000
    assert ours.equals(_ordered(aggregate(frame, _SPEC), _SPEC["keys"]))


_POLICIES = [
    {"name": "last", "type": "sliding", "evict": {"count": 40}, "trigger": {"count": 3}},
    {"name": "recent", "type": "sliding", "evict": {"time": "5 minutes"}, "trigger": {"count": 7}},
    {"name": "w", "type": "session", "gap": "20 seconds"},
]


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("readers", [0, 64], ids=["shuffled", "shared"])
@pytest.mark.parametrize("keys", [["k", "s"], ["d"], []], ids=["float and text", "decimal", "none"])
def test_live_rows_of_files_give_the_windows_of_sparks_own_scan_to_the_bit(spark, tmp_path, monkeypatch, keys, readers):
    monkeypatch.setattr(partitioning, "ROWS_PER_PARTITION", 1_000)
    monkeypatch.setattr(limits, "MOST_READERS", readers)
    for number in range(3):
        events = _events(2_000 + number, number)
        decimals = pa.array(np.arange(len(events)) % 7).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, 3))
        pq.write_table(events.append_column("d", decimals), tmp_path / f"{number}.parquet", row_group_size=500)
    frame, spec = spark.read.parquet(str(tmp_path)), _SPEC | {"keys": keys, "windows": _POLICIES}
    spec["time"] = {"column": "t", "tie_break": ["v"]}
    rows = aggregate(frame, spec)
    assert ("repartition" in rows._jdf.queryExecution().logical().toString().lower()) == (readers == 0)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    ours = _ordered(rows, keys)
    monkeypatch.setattr(file_scan, "parts_of", lambda *_: None)
    assert ours.num_rows > 2_000
    assert ours.equals(_ordered(aggregate(frame, spec), keys))


def test_large_files_or_many_cores_are_shuffled(spark, tmp_path, monkeypatch):
    _write(tmp_path / "d")
    scan = _scan(spark.read.parquet(str(tmp_path / "d")))
    cores = spark.sparkContext.defaultParallelism
    for name, most in (("MOST_READERS", cores), ("MOST_SHARED_NUMBERS", 7 * scan.n_rows), ("MOST_SHARED_BYTES", scan.n_bytes)):
        with monkeypatch.context() as at_limit:
            at_limit.setattr(limits, "MOST_READERS", cores)
            at_limit.setattr(limits, name, most)
            assert file_passes._readers(spark, scan, 7) == cores
            at_limit.setattr(limits, name, most - 1)
            assert file_passes._readers(spark, scan, 7) == 0
            assert file_passes._readers(spark, scan, 7, 2 * cores) == 2 * cores * (name != "MOST_READERS")
            assert file_passes._readers(spark, scan, 7, 2 * cores - 1) == 0


@pytest.mark.usefixtures("_small_parts")
def test_live_rows_that_do_not_fit_at_a_time_are_read_again(spark, tmp_path, monkeypatch):
    cores = spark.sparkContext.defaultParallelism
    monkeypatch.setattr(partitioning, "ROWS_PER_PARTITION", 100)
    monkeypatch.setattr(limits, "MOST_READERS", cores)
    monkeypatch.setattr(limits, "MOST_READINGS", 3 * cores)
    pq.write_table(_events(2_000), tmp_path / "f.parquet", row_group_size=500)
    frame, spec = spark.read.parquet(str(tmp_path)), _SPEC | {"windows": _POLICIES}
    monkeypatch.setattr(limits, "MOST_SHARED_BYTES", -(-_scan(frame).n_bytes // 3))
    rows = aggregate(frame, spec)
    assert rows.rdd.getNumPartitions() == 3 * cores
    ours = _ordered(rows, _SPEC["keys"])
    monkeypatch.setattr(file_scan, "parts_of", lambda *_: None)
    assert ours.equals(_ordered(aggregate(frame, spec), _SPEC["keys"]))


def test_the_bytes_of_a_scan_are_those_of_its_columns(spark, tmp_path):
    _write(tmp_path / "d")
    metadata = pq.read_metadata(tmp_path / "d" / "f.parquet").row_group(0)
    columns = [metadata.column(number) for number in range(metadata.num_columns)]
    read = sum(column.total_uncompressed_size for column in columns if column.path_in_schema in ("k", "s", "v", "t"))
    assert _scan(spark.read.parquet(str(tmp_path / "d"))).n_bytes == read > 0


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
    scan, log = _scan(frame), LiveRows.of(pipeline, Columns(frame.schema).arrow).log

    def blocks():
        for batch in file_passes._blocks(scan, log, 2, iter([pa.record_batch({"id": [0]})])):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    monkeypatch.setattr(file_passes, "_BLOCK_BYTES", 1 << 30)
    whole = dict(blocks())
    assert sorted(whole) == [0, 1]
    monkeypatch.setattr(file_passes, "_BLOCK_BYTES", 10_000)
    cut = list(blocks())
    assert max(len(block) for _, block in cut) < 13_000
    for number, block in whole.items():
        pieces = pa.record_batch({"rows": pa.array([piece for at, piece in cut if at == number], pa.binary())})
        [rows] = file_passes._rows_of_blocks(iter([pieces]))
        together = pa.Table.from_batches(rows)
        assert together.drop_columns(["k", "v"]).equals(pa.ipc.open_stream(block).read_all().drop_columns(["k", "v"]))  # without NaN


def test_times_beyond_the_latest_do_not_count(spark, tmp_path):
    pq.write_table(_events(500), tmp_path / "f.parquet")
    frame = spark.read.parquet(str(tmp_path))
    pipeline = parse_pipeline(_SPEC)
    batch = Input(pipeline=pipeline, columns=Columns(frame.schema))
    stage = Slicing(batch, divide(pipeline, batch.types).slices).stage
    scan = FileScan.of(frame, batch, ["k", "s", "v"], _START + 60_000_000)
    assert scan is not None
    lifted = sum(part.lifted.sum() for part in slices.sliced(stage, SlicesOfFiles(scan, stage, scan.usable).rows(0)))
    times = [time for time in _events(500).column("t").cast(pa.int64()).to_pylist() if time is not None]
    assert lifted == sum(-(1 << 61) < time <= _START + 60_000_000 for time in times)


def _write(folder, **columns):
    folder.mkdir()
    table = _events(300)
    for name, column in columns.items():
        table = table.drop_columns([name]) if column is None else table.set_column(table.column_names.index(name), name, column(table))
    pq.write_table(table, folder / "f.parquet")


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.where("v > 0.5"),
        lambda frame: frame.withColumn("v", F.col("v") + 1),
        lambda frame: frame.selectExpr("k", "t", "s", "v AS w").withColumnRenamed("w", "v"),
        lambda frame: frame.limit(10),
        lambda frame: frame.union(frame),
        lambda frame: frame.distinct(),
        lambda frame: frame.repartition(2),
    ],
    ids=["filter", "computed", "renamed", "limit", "union", "distinct", "repartition"],
)
def test_more_than_a_scan_is_sparks(spark, tmp_path, change):
    _write(tmp_path / "d")
    frame = spark.read.parquet(str(tmp_path / "d"))
    assert _scan(frame) is not None
    assert _scan(change(frame)) is None


def test_cached_rows_are_sparks(spark, tmp_path):
    _write(tmp_path / "d")
    frame = spark.read.parquet(str(tmp_path / "d")).cache()
    assert _scan(frame) is None
    assert _scan(frame.select("k", "s", "t", "v")) is None
    frame.unpersist()


@pytest.mark.parametrize(
    "columns",
    [
        {"v": None},
        {"v": lambda table: table.column("v").cast(pa.float32())},
        {"t": lambda table: table.column("t").cast(pa.timestamp("ns", "UTC"), safe=False)},
        {"t": lambda table: table.column("t").cast(pa.timestamp("ms", "Europe/Paris"), safe=False)},
        {"t": lambda table: table.column("t").cast(pa.timestamp("us", "America/New_York"))},
        {"s": lambda table: table.column("s").dictionary_encode()},
        {"s": lambda table: table.column("s").cast(pa.large_string())},
    ],
    ids=["missing", "narrower", "nanoseconds", "milliseconds of another zone", "other_zone", "dictionary", "large"],
)
def test_a_file_of_other_types_is_sparks(spark, tmp_path, columns):
    _write(tmp_path / "d")
    _write(tmp_path / "e", **columns)
    schema = spark.read.parquet(str(tmp_path / "d")).schema
    frame = spark.read.schema(schema).parquet(str(tmp_path / "d"), str(tmp_path / "e"))
    assert _scan(frame) is None


@pytest.mark.usefixtures("_small_parts")
@pytest.mark.parametrize("readers", [0, 64], ids=["shuffled", "shared"])
@pytest.mark.parametrize("windows", [_SPEC["windows"], _POLICIES], ids=["slices", "live rows"])
def test_conditions_hold_of_the_rows_of_sparks_own_scan(spark, tmp_path, monkeypatch, windows, readers):
    monkeypatch.setattr(limits, "MOST_ROWS_OF_A_TASK", 0)
    monkeypatch.setattr(limits, "MOST_READERS", readers)
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
    ours = _ordered(rows, _SPEC["keys"])
    monkeypatch.setattr(file_scan, "parts_of", lambda *_: None)
    wanted = aggregate(frame, spec)
    assert "FileScan" in wanted._jdf.queryExecution().executedPlan().toString()
    assert ours.num_rows > 500
    assert len(ours.column("many").unique()) > 3
    assert ours.equals(_ordered(wanted, _SPEC["keys"]))


@pytest.mark.parametrize("zone", ["UTC", None], ids=["instants", "without a zone"])
@pytest.mark.parametrize("windows", [_SPEC["windows"], _POLICIES], ids=["slices", "live rows"])
def test_milliseconds_are_read_as_microseconds(spark, tmp_path, monkeypatch, windows, zone):
    milliseconds = {"m": pa.timestamp("ms", zone), "t": pa.timestamp("ms", "UTC")}
    events = _events(2_000).append_column("m", _events(2_000, seed=2).column("t"))
    for name, kind in milliseconds.items():
        events = events.set_column(events.column_names.index(name), name, events.column(name).cast(kind, safe=False))
    pq.write_table(events, tmp_path / "f.parquet", row_group_size=500)
    spec = _SPEC | {"windows": windows, "aggregates": _SPEC["aggregates"] | {"moment": {"last": "m"}}}
    frame = spark.read.parquet(str(tmp_path))
    rows = aggregate(frame, spec)
    assert "FileScan" not in rows._jdf.queryExecution().executedPlan().toString()
    ours = _ordered(rows, _SPEC["keys"])
    monkeypatch.setattr(file_scan, "parts_of", lambda *_: None)
    assert ours.num_rows > 500
    assert ours.equals(_ordered(aggregate(frame, spec), _SPEC["keys"]))


def test_files_read_in_a_way_of_their_own_are_sparks(spark, tmp_path):
    _write(tmp_path / "d")
    path = str(tmp_path / "d")
    assert _scan(spark.read.option("pathGlobFilter", "*.parquet").parquet(path)) is None
    parts = tmp_path / "parts"
    spark.read.parquet(path).write.partitionBy("s").parquet(str(parts))
    assert _scan(spark.read.parquet(str(parts))) is None
    spark.read.parquet(path).write.json(str(tmp_path / "json"))
    assert _scan(spark.read.schema(spark.read.parquet(path).schema).json(str(tmp_path / "json"))) is None
    spark.read.parquet(path).write.format("delta").save(str(tmp_path / "delta"))
    assert _scan(spark.read.format("delta").load(str(tmp_path / "delta"))) is None


@pytest.mark.parametrize(
    "metadata", [{"org.apache.spark.legacyDateTime": ""}, {"org.apache.spark.version": "2.4.8"}], ids=["mark", "version"]
)
def test_dates_of_the_old_calendar_are_sparks(spark, tmp_path, metadata):
    pq.write_table(_events(10).replace_schema_metadata(metadata), tmp_path / "f.parquet")
    assert _scan(spark.read.parquet(str(tmp_path))) is None
    for version in ("4.0.0", "main"):
        pq.write_table(_events(10).replace_schema_metadata({"org.apache.spark.version": version}), tmp_path / "f.parquet")
        assert _scan(spark.read.parquet(str(tmp_path))) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"aggregates": {"n": {"count": "*", "where": "size(unused) > 0"}}},
        {"aggregates": {"n": {"count": "*", "where": "upper(s) = 'A'"}}},
        {"aggregates": {"n": {"count": "*", "where": "V > 1"}}},
        {"time": {"column": "s"}},
    ],
    ids=["condition beyond the common subset", "condition on any text", "column in another case", "time as text"],
)
def test_what_spark_evaluates_is_sparks(spark, tmp_path, change):
    _write(tmp_path / "d")
    assert _scan(spark.read.parquet(str(tmp_path / "d")), _SPEC | change) is None


def test_a_file_that_has_changed_since_is_an_error(spark, tmp_path):
    _write(tmp_path / "d")
    scan = _scan(spark.read.parquet(str(tmp_path / "d")))
    with (tmp_path / "d" / "f.parquet").open("ab") as file:
        file.write(b"PAR1")
    with pytest.raises(SourceError, match="has changed since"):
        list(scan.rows(0))


def test_instants_are_those_of_the_files(spark, tmp_path):
    times = [datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC), None]
    pq.write_table(pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))}), tmp_path / "f.parquet")
    window = {"name": "day", "type": "tumbling", "size": "1 day"}
    spec = {"pipeline": "p", "time": {"column": "t"}, "windows": [window], "aggregates": {"n": {"count": "*"}}}
    rows = aggregate(spark.read.parquet(str(tmp_path)), spec).select("window_start", "window_end", "n", "batch").toArrow().to_pylist()
    assert rows == [{"window_start": datetime(2024, 2, 29, tzinfo=UTC), "window_end": datetime(2024, 3, 1, tzinfo=UTC), "n": 1, "batch": 0}]
