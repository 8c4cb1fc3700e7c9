"""Reads a source's new rows in Spark, with their position in order of arrival, their event time, and a reason if they are unusable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType

from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import any_failure, failure, truth
from windowmill.jobs.instants import date_sql, instant_sql, local_time_sql
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import FILE, REASON, Columns
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def read_rows(spark: SparkSession, table: SourceTable, reading: Reading, runnable: Runnable, *, now_us: int) -> DataFrame:
    """The rows of the files in ``reading``, with the columns of ``ADDED``; events that last also with their end.

    ``_reason`` is null for a usable row, else a key of :data:`windowmill.jobs.ways.quarantine.DETAILS`.
    """
    columns = Columns.of(table.schema_json)
    clash = columns.taken
    if clash is not None:
        raise SourceSchemaError(f"source {table.path}: the column name {clash!r} is taken by windowmill; rename it in a view of the source")
    rows = table.rows(spark, reading)
    wanted, pipeline = runnable.source.filter, runnable.pipeline
    if wanted:
        chosen, failed = truth(wanted, columns.arrow), failure(wanted, columns.arrow)
        # Rows on which the filter fails are kept for quarantine.
        rows = rows.where(chosen if failed is None else F.coalesce(chosen, F.lit(False)) | failed)
    latest = pipeline.time.latest(now_us)
    time, reason = event_time(pipeline, columns, None if latest is None else _unchanging(latest))
    ended = {} if pipeline.time.end is None else {UNTIL_OF: event_end(pipeline, columns)}
    return rows.withColumns({TIME: time, REASON: reason} | ended)


def _unchanging(number: int) -> str:
    """SQL of a constant that does not change the code that Spark generates.

    Spark inlines a literal into the generated code, so another value causes another compilation, and the first rows run interpreted: 0.2 s
    for 50,000 rows. An array is an argument of the generated code, and an index that depends on the row prevents constant folding.
    """
    return f"get(array({number}L), least({FILE}, 0))"


def event_time(pipeline: Pipeline, columns: Columns, latest: str | None) -> tuple[Column, Column]:
    """A row's event time on the axis, and the reason if the row is unusable: a key of :data:`windowmill.jobs.ways.quarantine.DETAILS`.

    ``latest`` is SQL of the greatest accepted event time; null for no bound.
    """
    # Written as SQL: each Column method makes a call or two into the JVM, and dozens of them would cost 0.1 s per run.
    names = [name for name in (pipeline.time.column, pipeline.time.end) if name is not None]
    time, until = _on_axis(names[0], columns), _on_axis(names[-1], columns)
    least, greatest = accepted_times(pipeline)
    within = [f"({at}) BETWEEN {least} AND {greatest}" for at in dict.fromkeys((time, until))]
    reasons = {
        "bad_condition": any_failure(pipeline, columns.arrow),
        "null_time": " OR ".join(f"{backquoted(name)} IS NULL" for name in names),
        "bad_time": " OR ".join(f"({_on_axis(name, columns)}) IS NULL" for name in names),
        "time_out_of_range": f"NOT ({' AND '.join(within)})",
        "end_before_time": f"({until}) < ({time})" if pipeline.time.end is not None else None,
        "future_time": f"({time}) > {latest}" if latest is not None else None,
    }
    cases = " ".join(f"WHEN {holds} THEN '{reason}'" for reason, holds in reasons.items() if holds is not None)
    return F.expr(time), F.expr(f"CASE {cases} END")


def event_end(pipeline: Pipeline, columns: Columns) -> Column:
    """The end of a row's event on the axis; the event time of a point event."""
    return F.expr(_on_axis(pipeline.time.end or pipeline.time.column, columns))


def _on_axis(name: str, columns: Columns) -> str:
    """SQL of the value of a time column on the axis."""
    raw, kind = backquoted(name), columns.type_of(name)
    if isinstance(kind, IntegralType):
        return f"CAST({raw} AS BIGINT)"
    # A cast to TIMESTAMP would depend on the session's zone.
    sql = {"string": instant_sql, "timestamp_ntz": local_time_sql, "date": date_sql}.get(kind.typeName())
    return f"unix_micros({raw})" if sql is None else sql(raw)
