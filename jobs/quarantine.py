"""Rows that were never applied, kept with their reason: rows read = applied + quarantined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkpoints.quoting import backquoted
from jobs.sources import REASON, VERSION
from jobs.staging import Staged
from windowing.columnar.slices import TIME

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from checkpoints.ledger import Plan
    from windowing.spec import Pipeline

DETAILS = {
    "null_time": "the time column is null",
    "bad_time": "the time column cannot be read as a timestamp",
    "end_before_time": "the event ends before it begins",
    "future_time": "later than max_future_skew after the run's own time",
    "too_late": "every window that holds the row had been closed, or its place in the order had been passed, when it arrived",
}


def set_aside(rows: DataFrame, columns: list[str], pipeline: Pipeline, plan: Plan, folder: str) -> Staged:
    """Stage the rows that have a reason, as rows of the quarantine table."""
    detail = F.create_map(*(F.lit(text) for pair in DETAILS.items() for text in pair))
    instant = F.timestamp_micros(TIME) if pipeline.time.unit is None else F.col(TIME)
    chosen = rows.where(F.col(REASON).isNotNull()).select(
        F.lit(pipeline.pipeline).alias("pipeline"),
        F.lit(plan.generation).alias("generation"),
        F.lit(plan.batch).cast("long").alias("batch"),
        F.col(REASON).alias("reason"),
        detail[F.col(REASON)].alias("detail"),
        F.col(VERSION).alias("source_version"),
        instant.alias("event_time"),
        F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias("row"),
    )
    return Staged(chosen, folder)
