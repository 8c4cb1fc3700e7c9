"""``aggregate``: a pipeline's rows over any DataFrame, against the reference engine."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from jobs import aggregate
from tests.spark.harness import SCHEMA, Bench, differences, events, expected, place
from windowing import reference
from windowing.errors import SourceSchemaError, SpecError, UnsupportedError
from windowing.specfile import parse_pipeline

pytestmark = pytest.mark.spark


def _frame(spark, rows):
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).coalesce(1)


def _rows(pipeline, frame):
    table = frame.toArrow()
    for name in ("window_start", "window_end"):
        table = table.set_column(table.schema.get_field_index(name), name, table.column(name).cast(pa.int64()))
    assert set(table.column("batch").to_pylist()) <= {0}
    return sorted(table.drop_columns(["batch"]).to_pylist(), key=lambda row: place(pipeline, row))


@pytest.mark.parametrize("changes", [{}, {"time": {"column": "t", "tie_break": ["id"], "disorder": "10 hours"}}], ids=["late", "on_time"])
def test_rows_of_the_reference(spark, tmp_path, changes):
    rows = events(61, 1_200)
    spec = {name: value for name, value in Bench(tmp_path, changes).spec.items() if name not in ("source", "sink")}
    pipeline = parse_pipeline(spec)
    want = expected(pipeline, rows, final=True)
    assert ("too_late" in {reason for _, reason in want.quarantined}) == (not changes)
    frame = aggregate(_frame(spark, rows), spec)
    assert differences(_rows(pipeline, frame), want.rows) == []
    assert frame.columns == [*pipeline.keys, "window", "window_start", "window_end", "trigger", "revision", *pipeline.aggregates, "batch"]


def test_order_of_arrival_is_that_of_partitions_and_rows(spark, tmp_path):
    """Late rows stay the same however the rows are spread, and although the input is shuffled before."""
    rows = events(62, 900)
    pipeline = Bench(tmp_path).pipeline
    ordered = [dict(row, i=n) for n, row in enumerate(rows)]
    mixed = random.Random(62).sample(ordered, len(ordered))
    frame = _frame(spark, mixed).repartition(3).orderBy("i")
    got = _rows(pipeline, aggregate(frame, pipeline))
    assert differences(got, expected(pipeline, ordered, final=True).rows) == []


def test_vouched_input_has_no_late_rows_and_starts_no_job(spark):
    spec = {
        "pipeline": "vouched",
        "time": {"column": "t", "watermark": "data_interval_end"},
        "windows": [{"name": "w", "type": "tumbling", "size": "10 minutes"}],
        "aggregates": {"n": {"count": "*"}, "m": {"mean": "v"}},
    }
    rows = events(63, 300)
    marked = F.udf(lambda v: 1 / 0 if v == 12345.0 else v, "double")("v")
    frame = aggregate(_frame(spark, [*rows, dict(rows[0], v=12345.0)]).withColumn("v", marked), spec)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        frame.collect()
    pipeline = parse_pipeline(spec)
    want = reference.evaluate(pipeline, [reference.Record(row, frozenset()) for row in rows], final=True)
    assert differences(_rows(pipeline, aggregate(_frame(spark, rows), spec)), want.rows) == []


def test_no_rows(spark, tmp_path):
    assert aggregate(_frame(spark, []), Bench(tmp_path).pipeline).collect() == []


def test_spec_of_every_form_and_its_errors(spark, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("pipeline: p\ntime: {column: t}\nwindows: [{name: w, type: tumbling, size: 1 hour}]\naggregates: {n: {count: '*'}}\n")
    frame = _frame(spark, events(64, 50))
    assert aggregate(frame, path).count() == aggregate(frame, str(path)).count() > 0
    with pytest.raises(SourceSchemaError, match=r"keys\.0: the DataFrame has no column 'nokey'"):
        aggregate(frame, Bench(tmp_path, {"keys": ["nokey"]}).pipeline)
    with pytest.raises(SpecError, match="no column 'x'"):
        aggregate(frame, Bench(tmp_path, {"aggregates": {"n": {"mean": "x"}}}).pipeline)
    with pytest.raises(UnsupportedError, match=r"windows\.0: .*session"):
        aggregate(frame, Bench(tmp_path, {"windows": [{"name": "w", "type": "session", "gap": "1 hour"}]}).pipeline)
