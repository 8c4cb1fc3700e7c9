"""``aggregate``: a pipeline's rows over any DataFrame, against the reference engine."""

from __future__ import annotations

import itertools
import json
import random

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from tests.readers import EVERY_CASE
from tests.spark.harness import SCHEMA, Bench, differences, events, expected, in_order
from tests.specs import a_spec
from windowmill import aggregate
from windowmill.jobs.commands.try_command import attempt
from windowmill.windowing.errors import SourceSchemaError, SpecError
from windowmill.windowing.specfile import parse_pipeline

pytestmark = pytest.mark.spark


def _frame(spark, rows):
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).coalesce(1)


def _rows(pipeline, frame):
    table = frame.toArrow()
    for name in ("window_start", "window_end"):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int64()))
    assert set(table.column("batch").to_pylist()) <= {0}
    return in_order(pipeline, table.drop_columns(["batch"]).to_pylist())


def test_rows_of_the_reference_and_none_is_late(spark, tmp_path):
    rows = events(61, 1_200)
    late = Bench(tmp_path).pipeline
    assert "too_late" in {reason for _, reason in expected(late, rows).quarantined}, (
        "the spec must have late rows where rows arrive in order"
    )
    spec = {name: value for name, value in Bench(tmp_path).spec.items() if name not in ("source", "sink")}
    patient = parse_pipeline(spec | {"time": {"column": "t", "tie_break": ["id"], "disorder": "1000 hours"}})
    frame = aggregate(_frame(spark, rows).repartition(3), spec)
    assert differences(_rows(patient, frame), expected(patient, rows, final=True).rows) == []
    assert frame.columns == [*patient.keys, "window", "window_start", "window_end", "trigger", "revision", *patient.aggregates, "batch"]


@pytest.mark.parametrize(
    ("disorder", "emit"),
    list(itertools.product(["5 minutes", "10 hours"], ["final", "revise"]))
    if EVERY_CASE
    else [("5 minutes", "final"), ("5 minutes", "revise"), ("10 hours", "final")],
)
def test_rows_that_come_late_in_the_order_of_arrival_count_as_in_runs(spark, tmp_path, disorder, emit):
    time = {"column": "t", "tie_break": ["id"], "disorder": disorder, "lateness": "8 minutes"}
    pipeline = Bench(tmp_path, {"time": time, "emit": emit}).pipeline
    ordered = [dict(row, i=n) for n, row in enumerate(events(62, 900))]
    want = expected(pipeline, ordered, final=True)
    assert ("too_late" in {reason for _, reason in want.quarantined}) == (disorder == "5 minutes")
    mixed = _frame(spark, random.Random(62).sample(ordered, len(ordered))).repartition(3)
    assert differences(_rows(pipeline, aggregate(mixed, pipeline, arrival="i")), want.rows) == []


@pytest.mark.parametrize("arrival", [None, "i"], ids=["unordered", "in_order"])
def test_windows_over_live_rows(spark, tmp_path, arrival):
    ordered = [dict(row, i=n) for n, row in enumerate(events(65, 600))]
    windows = [
        {"name": "last_3", "type": "sliding", "evict": {"count": 3}, "trigger": {"time": "30 minutes"}},
        {"name": "visits", "type": "session", "gap": "4 minutes"},
    ]
    time = {"column": "t", "tie_break": ["id"], "disorder": "5 minutes" if arrival else "1000 hours", "lateness": "8 minutes"}
    aggregates = {"n": {"count": "*"}, "average": {"mean": "v"}, "labels": {"collect": "label"}}
    pipeline = Bench(tmp_path, {"time": time, "windows": windows, "aggregates": aggregates}).pipeline
    mixed = _frame(spark, random.Random(65).sample(ordered, len(ordered))).repartition(3)
    want = expected(pipeline, ordered, final=True)
    assert ("too_late" in {reason for _, reason in want.quarantined}) == (arrival is not None)
    assert differences(_rows(pipeline, aggregate(mixed, pipeline, arrival=arrival)), want.rows) == []


def test_nothing_runs_before_an_action(spark):
    spec = a_spec(pipeline="lazy", windows=[{"name": "w", "type": "tumbling", "size": "10 minutes"}], aggregates={"m": {"mean": "v"}})
    frame = aggregate(_frame(spark, events(63, 300)).withColumn("v", F.raise_error(F.lit("read")).cast("double")), spec)
    with pytest.raises(Exception, match="read"):
        frame.collect()


def test_no_rows(spark, tmp_path):
    assert aggregate(_frame(spark, events(61, 1)).limit(0), Bench(tmp_path).pipeline).collect() == []


@pytest.mark.parametrize("read", ["by files", "by Spark"])
def test_the_filter_of_the_source_leaves_no_row_out(spark, tmp_path, read):
    bench = Bench(tmp_path)
    bench.land(events(66, 200))
    frame = spark.read.format("delta").load(bench.source)
    frame = frame if read == "by files" else frame.repartition(2)
    every = _rows(bench.pipeline, aggregate(frame, bench.pipeline))
    assert every
    for condition in ("10 / i > 100", "absent > 1"):  # fails on rows, reads another column
        filtered = parse_pipeline(bench.spec | {"source": {"path": bench.source, "filter": condition}})
        assert differences(_rows(bench.pipeline, aggregate(frame, filtered)), every) == []


def test_try_tells_once_of_a_row_on_which_the_filter_fails(spark):
    spec = a_spec(source={"path": "unused", "filter": "10 / i > 1 or _commit = 'x'"}, aggregates={"n": {"count": "_commit"}})
    lines = [{"t": "2024-03-01T00:00:00Z", "i": i, "_commit": text} for i, text in [(0, "x"), (0, "y"), (1, "y"), (99, "y"), (99, "x")]]
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    found = [attempt(parse_pipeline(spec), data, engine=engine) for engine in ("reference", "kernel", "spark")]
    assert [[(row.line, row.reason) for row in outcome.refused] for outcome in found] == [[(1, "bad_condition"), (2, "bad_condition")]] * 3
    assert [[row["n"] for row in outcome.rows] for outcome in found] == [[2]] * 3


def test_spec_of_every_form_and_its_errors(spark, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("pipeline: p\ntime: {column: t}\nwindows: [{name: w, type: tumbling, size: 1 hour}]\naggregates: {n: {count: '*'}}\n")
    frame = _frame(spark, events(64, 50))
    assert aggregate(frame, path).count() == aggregate(frame, str(path)).count() > 0
    with pytest.raises(SourceSchemaError, match=r"keys\.0: the DataFrame has no column 'nokey'"):
        aggregate(frame, Bench(tmp_path, {"keys": ["nokey"]}).pipeline)
    with pytest.raises(SpecError, match="no column 'x'"):
        aggregate(frame, Bench(tmp_path, {"aggregates": {"n": {"mean": "x"}}}).pipeline)
    with pytest.raises(SpecError, match="arrival: the DataFrame has no column 'came'"):
        aggregate(frame, path, arrival="came")
    with pytest.raises(SourceSchemaError, match="the DataFrame: the column name '_File' is taken by windowmill"):
        aggregate(frame.withColumn("_File", F.lit(1)), path, arrival="_File")
