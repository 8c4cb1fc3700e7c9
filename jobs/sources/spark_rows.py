"""Reads a source's new rows in Spark, with their position in order of arrival.

Tasks give them event times, and a reason if they are unusable, by :class:`.EventTimes`. Where tasks receive the rows anyway, they do so on
what they receive. Elsewhere the columns are those of a user function, which Spark evaluates only where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import any_failure, judged
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import FAILED, REASON, UNREAD, Columns
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.sources.plain_rows import keeps_unread
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.errors import SourceSchemaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_rows(
    spark: SparkSession,
    table: SourceTable,
    reading: Reading,
    runnable: Runnable,
    *,
    now_us: int,
    select: Callable[[DataFrame], DataFrame] | None = None,
) -> DataFrame:
    """The rows of the files in ``reading`` that ``select`` leaves, with the columns of ``ADDED``; interval events also with their end.

    ``_reason`` is null for a usable row, else a key of :data:`windowmill.jobs.reasons.REASONS`.
    """
    columns = Columns.of(table.schema_json)
    clash = columns.taken
    if clash is not None:
        raise SourceSchemaError(f"source {table.path}: the column name {clash!r} is taken by windowmill; rename it in the source")
    rows = table.rows(spark, reading)
    wanted, pipeline = runnable.source.filter, runnable.pipeline
    if wanted:
        chosen, failed = judged(wanted, columns.in_conditions)
        # Rows on which the filter fails, or that could not be read, are kept for quarantine.
        kept = [failed] if failed is not None else []
        kept += [F.col(backquoted(UNREAD)).isNotNull()] if table.has_unread and keeps_unread(wanted) else []
        rows = rows.where(reduce(or_, kept, F.coalesce(chosen, F.lit(False))) if kept else chosen)
    times = EventTimes(pipeline, pipeline.time.latest(now_us), table.has_unread)
    if select is None:
        return with_event_times(rows, times, columns)
    # Spark would move filters on event times, and with them the function of Python that gives these, below joins by which `select`
    # leaves few rows, and apply it to all.
    return with_event_times(select(rows), times, columns, in_place=True)


def with_event_times(rows: DataFrame, times: EventTimes, columns: Columns, *, in_place: bool = False) -> DataFrame:
    """Add what :meth:`.EventTimes.of` reads and gives; the ``columns`` are those of the source.

    With ``in_place`` Spark evaluates it on these ``rows``, and moves no filter on it to where there are more.
    """
    failed = any_failure(times.pipeline, columns.in_conditions)
    rows = rows.withColumn(FAILED, F.lit(False) if failed is None else failed)

    def found(*given: pa.Array) -> pa.Array:
        own = times.of(pa.table(list(given), names=times.columns))
        return pa.StructArray.from_arrays([own.column(name).combine_chunks() for name in names], names=names)

    names = [TIME, REASON, *([UNTIL_OF] if times.pipeline.time.end is not None else [])]
    kinds = {REASON: "string"}
    # PySpark advises against the function type, which its stubs want.
    times_of = arrow_udf(found, ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in names))  # type: ignore[call-overload]
    times_of = times_of.asNondeterministic() if in_place else times_of
    own = times_of(*(F.col(backquoted(name)) for name in times.columns))
    return rows.withColumns({name: own[name] for name in names})
