"""Quarantine: rows that were never applied, stored with the reason. Rows read = applied + quarantined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import every_condition, failing
from windowmill.jobs.sources.columns import REASON, VERSION, Columns
from windowmill.jobs.spark.staging import Staged
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.errors import TooManyBadRowsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.checkpoints.batches import Plan
    from windowmill.windowing.spec import Pipeline

BAD_CONDITION = "bad_condition"
#: Limits on rows that a condition fails on, as a number and as a share of the batch; a batch that exceeds both is refused.
MOST_BAD_ROWS, MOST_BAD_SHARE = 1_000, 0.1

DETAILS = {
    "null_time": "the time column is null",
    "bad_time": "the time column cannot be read as a timestamp",
    "time_out_of_range": "the row's windows would begin or end beyond the years 1 to 9999, or on an integer axis beyond ±2^62",
    "end_before_time": "the event ends before it begins",
    "future_time": "later than max_future_skew after the run's own time",
    "too_late": "every window that holds the row had been closed, or its place in the order had been passed, when it arrived",
}


def set_aside(rows: DataFrame, columns: list[str], pipeline: Pipeline, plan: Plan, folder: str) -> Staged:
    """Stage the rows that have a reason in the form of the quarantine table."""
    known = F.create_map(*(F.lit(text) for pair in DETAILS.items() for text in pair))
    failed = failing(every_condition(pipeline), Columns(rows.select(*map(backquoted, columns)).schema).arrow)
    why = [F.when(column, F.lit(f"condition {text!r} fails on the row")) for text, column in failed.items()]
    detail = F.when(F.col(REASON) == BAD_CONDITION, F.coalesce(*why)).otherwise(known[F.col(REASON)]) if why else known[F.col(REASON)]
    # Python cannot represent all years, so such times are null here; the column ``row`` still has them.
    instant = F.timestamp_micros(F.when(F.col(TIME).between(*PRINTABLE), F.col(TIME))) if pipeline.time.unit is None else F.col(TIME)
    chosen = rows.where(F.col(REASON).isNotNull()).select(
        F.lit(pipeline.pipeline).alias("pipeline"),
        F.lit(plan.generation).alias("generation"),
        F.lit(plan.batch).cast("long").alias("batch"),
        F.col(REASON).alias("reason"),
        detail.alias("detail"),
        F.col(VERSION).alias("source_version"),
        instant.alias("event_time"),
        F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias("row"),
    )
    return Staged(chosen, folder)


def check_bad_rows(staged: Staged, rows_read: int, pipeline: Pipeline, batch: int) -> None:
    """Refuse a batch in which conditions fail on many rows, which suggests a wrong spec or source.

    Raises
    ------
    TooManyBadRowsError
        If they fail on more than ``MOST_BAD_ROWS`` rows, and on more than ``MOST_BAD_SHARE`` of the rows read.
    """
    most = max(MOST_BAD_ROWS, int(rows_read * MOST_BAD_SHARE))
    if staged.rows <= most:
        return
    bad = staged.read(["reason", "detail", "source_version"])
    bad = bad.filter(pc.equal(bad.column("reason"), BAD_CONDITION))
    if bad.num_rows > most:
        details = bad.column("detail").value_counts().to_pylist()
        commonest = max(details, key=lambda found: found["counts"])["values"]
        version = bad.filter(pc.equal(bad.column("detail"), commonest)).column("source_version")[0].as_py()
        raise TooManyBadRowsError(
            f"pipeline {pipeline.pipeline}: batch {batch}: conditions fail on {bad.num_rows:,} of {rows_read:,} rows, for example in "
            f"version {version} of the source: {commonest}; nothing was published; use try_cast, or correct the condition or the source"
        )
