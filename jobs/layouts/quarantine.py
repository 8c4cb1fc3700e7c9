"""Quarantine: rows that were never applied, stored with the reason. Rows read = applied + quarantined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.truths import Conditions, every_condition
from windowmill.jobs.json_lines.spark_form import to_json
from windowmill.jobs.reasons import REASONS, TOO_LATE
from windowmill.jobs.sources.columns import FILE, REASON, ROW, UNREAD, VERSION
from windowmill.jobs.sources.unread_rows import details_of, with_texts
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import TIME, WATERMARK_OF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from windowmill.checkpoints.plans import Plan
    from windowmill.windowing.spec import Pipeline

#: Columns of a row to quarantine: the sentence about the condition that fails on it, and the row as JSON.
FAILURE, JSON = "_failure", "_json"


def quarantine_schema(pipeline: Pipeline) -> pa.Schema:
    """Columns of the pipeline's quarantine table."""
    instant = pa.int64() if pipeline.time.integer_axis else pa.timestamp("us", "UTC")
    return pa.schema(
        [
            ("pipeline", pa.string()),
            ("generation", pa.string()),
            ("batch", pa.int64()),
            ("reason", pa.string()),
            ("detail", pa.string()),
            ("source_version", pa.int64()),
            ("source_file", pa.string()),
            ("source_row", pa.int64()),
            ("event_time", instant),
            ("watermark", instant),
            ("row", pa.string()),
        ]
    )


def quarantined(rows: pa.Table, columns: list[str], pipeline: Pipeline, plan: Plan, paths: Sequence[str]) -> pa.Table:
    """The rows of the quarantine table for ``rows``, each of which has a reason."""
    # A condition that only Spark evaluates fails on no row here: it would have failed Spark's job.
    conditions = Conditions.of(every_condition(pipeline), {name: rows.schema.field(name).type for name in columns})
    failures = [pc.if_else(truth.failed, failure_of(text), pa.scalar(None, pa.string())) for text, truth in conditions.over(rows).items()]
    failure = pc.coalesce(*failures) if failures else pa.nulls(rows.num_rows, pa.string())
    chosen = rows.select([name for name in (REASON, VERSION, FILE, ROW, TIME, WATERMARK_OF, UNREAD) if name in rows.column_names])
    chosen = chosen.append_column(FAILURE, failure).append_column(JSON, pa.array(to_json(rows.select(columns)), pa.string()))
    return entries(chosen, pipeline, plan, paths)


def failure_of(condition: str) -> str:
    """The sentence about a condition that fails on a row."""
    return f"condition {condition!r} fails on the row"


def entries(rows: pa.Table, pipeline: Pipeline, plan: Plan, paths: Sequence[str]) -> pa.Table:
    """The rows of the quarantine table.

    Parameters
    ----------
    rows
        Reason, version and event time of each row, the watermark that it found if it is late, what in it could not be read, the sentence
        about the condition that fails on it, and the row as JSON; with ``paths`` the index of its file, and its number in it.
    paths
        The path of each file; none where the rows have been written to files of their own.
    """

    def instant(points: pa.ChunkedArray) -> pa.ChunkedArray:
        # Python cannot represent all years, so such times are null here; the column ``row`` still has them.
        if pipeline.time.integer_axis:
            return points
        least, greatest = PRINTABLE
        printable = pc.and_(pc.greater_equal(points, least), pc.less_equal(points, greatest))
        return pc.if_else(printable, points, pa.scalar(None, pa.int64())).cast(pa.timestamp("us", "UTC"))

    n, reason = rows.num_rows, rows.column(REASON)
    known = pa.array([each.detail for each in REASONS.values()]).take(pc.index_in(reason, pa.array(REASONS)).combine_chunks())
    row, unread = rows.column(JSON), pa.nulls(n, pa.string())
    if UNREAD in rows.column_names:
        unread = pa.array(details_of(rows.column(UNREAD)), pa.string())
        row = pa.array(with_texts(row, rows.column(UNREAD)), pa.string())
    found = pa.chunked_array([pa.nulls(n, pa.int64())])
    if WATERMARK_OF in rows.column_names:
        found = pc.if_else(pc.equal(reason, TOO_LATE), rows.column(WATERMARK_OF), pa.scalar(None, pa.int64()))
    return pa.table(
        {
            "pipeline": pa.repeat(pipeline.pipeline, n),
            "generation": pa.repeat(plan.generation, n),
            "batch": pa.repeat(pa.scalar(plan.batch, pa.int64()), n),
            "reason": reason,
            "detail": pc.coalesce(unread, known, rows.column(FAILURE)),
            "source_version": rows.column(VERSION),
            "source_file": pa.array(paths, pa.string()).take(rows.column(FILE)) if paths else pa.nulls(n, pa.string()),
            "source_row": rows.column(ROW) if paths else pa.nulls(n, pa.int64()),
            "event_time": instant(rows.column(TIME)),
            "watermark": instant(found),
            "row": row,
        }
    )
