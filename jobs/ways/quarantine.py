"""Quarantine: rows that were never applied, stored with the reason. Rows read = applied + quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.duckdb import evaluate
from windowmill.jobs.conditions.spark import every_condition, failing
from windowmill.jobs.json_lines.spark_form import to_json
from windowmill.jobs.sources.columns import REASON, VERSION, Columns
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways.lateness import TOO_LATE
from windowmill.jobs.ways.limits import OnlySparkError
from windowmill.jobs.ways.task_output import RETURNED, Output, OutputWriter, Targets, output_of, returned
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import TIME, WATERMARK_OF
from windowmill.windowing.errors import SpecError, UnsupportedError, first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windowmill.checkpoints.batches import Plan
    from windowmill.windowing.spec import Pipeline

BAD_CONDITION = "bad_condition"

DETAILS = {
    "null_time": "the time column is null",
    "bad_time": "the time column cannot be read as a timestamp",
    "time_out_of_range": "the row's windows would begin or end beyond the years 1 to 9999, or on an integer axis beyond ±2^62",
    "end_before_time": "the event ends before it begins",
    "future_time": "later than max_future_skew after the run's own time",
    TOO_LATE: "every window that holds the row had been closed, or its place in the order had been passed, when it arrived",
}


def quarantine_schema(pipeline: Pipeline) -> pa.Schema:
    """Columns of the pipeline's quarantine table."""
    instant = pa.timestamp("us", "UTC") if pipeline.time.unit is None else pa.int64()
    texts = {name: pa.string() for name in ("pipeline", "generation", "reason", "detail", "row")}
    kinds = texts | {"batch": pa.int64(), "source_version": pa.int64(), "event_time": instant, "watermark": instant}
    order = ("pipeline", "generation", "batch", "reason", "detail", "source_version", "event_time", "watermark", "row")
    return pa.schema([(name, kinds[name]) for name in order])


def write_by_tasks(rows: DataFrame, columns: list[str], pipeline: Pipeline, plan: Plan, targets: Targets) -> Output:
    """Have tasks write the rows that have a reason to the quarantine table."""
    known = F.create_map(*(F.lit(text) for pair in DETAILS.items() for text in pair))
    failed = failing(every_condition(pipeline), Columns(rows.select(*map(backquoted, columns)).schema).arrow)
    why = [F.when(column, F.lit(f"condition {text!r} fails on the row")) for text, column in failed.items()]
    detail = F.when(F.col(REASON) == BAD_CONDITION, F.coalesce(*why)).otherwise(known[F.col(REASON)]) if why else known[F.col(REASON)]

    def instant(point: Column) -> Column:
        # Python cannot represent all years, so such times are null here; the column ``row`` still has them.
        return F.timestamp_micros(F.when(point.between(*PRINTABLE), point)) if pipeline.time.unit is None else point

    found = F.when(F.col(REASON) == TOO_LATE, F.col(WATERMARK_OF)) if WATERMARK_OF in rows.columns else F.lit(None).cast("long")
    chosen = rows.where(F.col(REASON).isNotNull()).select(
        F.lit(pipeline.pipeline).alias("pipeline"),
        F.lit(plan.generation).alias("generation"),
        F.lit(plan.batch).cast("long").alias("batch"),
        F.col(REASON).alias("reason"),
        detail.alias("detail"),
        F.col(VERSION).alias("source_version"),
        instant(F.col(TIME)).alias("event_time"),
        instant(found).alias("watermark"),
        F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias("row"),
    )
    return output_of(map_in_arrow(chosen, partial(_write, targets), RETURNED))


def _write(targets: Targets, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    with OutputWriter(targets) as writer:
        for batch in batches:
            writer.quarantined(pa.Table.from_batches([batch]))
        done = writer.output()
    yield from returned(done)


def quarantined(rows: pa.Table, columns: list[str], pipeline: Pipeline, plan: Plan) -> pa.Table:
    """The rows of the quarantine table for ``rows`` of which each has a reason.

    Raises
    ------
    OnlySparkError
        If only Spark can evaluate a condition on them.
    """
    detail = [DETAILS.get(reason) for reason in rows.column(REASON).to_pylist()]
    try:
        truths = evaluate(every_condition(pipeline), rows)
    except (SpecError, UnsupportedError) as err:
        raise OnlySparkError(f"only Spark can evaluate a condition of the spec ({first_line(err)})") from err
    for text, truth in truths.items():
        failed = f"condition {text!r} fails on the row"
        detail = [failed if fails and known is None else known for known, fails in zip(detail, truth.failed.to_pylist(), strict=True)]

    def instant(points: pa.ChunkedArray) -> pa.ChunkedArray:
        if pipeline.time.unit is not None:
            return points
        least, greatest = PRINTABLE
        printable = pc.and_(pc.greater_equal(points, least), pc.less_equal(points, greatest))
        return pc.if_else(printable, points, pa.scalar(None, pa.int64())).cast(pa.timestamp("us", "UTC"))

    n = rows.num_rows
    found = pa.chunked_array([pa.nulls(n, pa.int64())])
    if WATERMARK_OF in rows.column_names:
        found = pc.if_else(pc.equal(rows.column(REASON), TOO_LATE), rows.column(WATERMARK_OF), pa.scalar(None, pa.int64()))
    return pa.table(
        {
            "pipeline": pa.repeat(pipeline.pipeline, n),
            "generation": pa.repeat(plan.generation, n),
            "batch": pa.repeat(pa.scalar(plan.batch, pa.int64()), n),
            "reason": rows.column(REASON),
            "detail": pa.array(detail, pa.string()),
            "source_version": rows.column(VERSION),
            "event_time": instant(rows.column(TIME)),
            "watermark": instant(found),
            "row": pa.array(to_json(rows.select(columns)), pa.string()),
        }
    )
