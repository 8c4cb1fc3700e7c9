"""A pipeline's results as readers want them, in Spark: the newest revision of each window, and the table as it stood."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windowmill.jobs.published import AsOf, PublishedTable, SinkLike, view_statements
from windowmill.jobs.spark.spark_settings import reader_options, spark_path
from windowmill.windowing.columnar.added_columns import RETRACTED

#: A table of the query, which Spark takes from a DataFrame.
_ROWS = "_windowmill_rows"


def latest(spark: SparkSession, sink: SinkLike, *, batch: int | None = None, time: datetime | str | None = None) -> DataFrame:
    """The windows that a pipeline's sink shows: of each its newest revision, without those that have been retracted.

    Parameters
    ----------
    spark
        A session with Delta's jars and settings, classic or Spark Connect.
    sink
        The path of the table, or of the spec's YAML file; the pipeline, or the same as nested mappings.
    batch, time
        As of that batch, or instant, as in :func:`as_of`; by default as of now.

    Returns
    -------
    DataFrame
        The sink's columns, without ``retracted``. Of the table as it was at the call: later batches do not change it.

    Raises
    ------
    SinkError, ArgumentError
        As :func:`as_of`.
    """
    table = PublishedTable.of(sink)
    at = AsOf(table.version) if batch is None and time is None else table.as_of(batch, time)
    rows = _rows(spark, table, at)
    if not table.has_revisions(at.version):
        return rows.drop(RETRACTED)
    query = table.latest_sql(_ROWS, rows.columns).replace("{", "{{").replace("}", "}}").replace(_ROWS, "{rows}")
    return spark.sql(query, rows=rows)


def as_of(spark: SparkSession, sink: SinkLike, *, batch: int | None = None, time: datetime | str | None = None) -> DataFrame:
    """All rows of a pipeline's sink as they stood after a batch, or at an instant, revisions and retractions included.

    Batches append, so these are the rows of the batches through that one. Where a later batch has replaced rows (a backfill), Delta's time
    travel gives the table from before; how far back that reaches follows from the table's retention.

    Parameters
    ----------
    spark, sink
        As in :func:`latest`.
    batch
        Number of a batch, as ``windowmill history`` and the column ``batch`` have it.
    time
        An instant, UTC unless it says otherwise; what had been recorded by then counts.

    Raises
    ------
    ArgumentError
        If ``batch`` does not exist, or not exactly one of ``batch`` and ``time`` is given.
    SinkError
        If there is no table, or rows have been replaced since and the table from before is no longer kept.
    """
    table = PublishedTable.of(sink)
    return _rows(spark, table, table.as_of(batch, time))


def create_views(spark: SparkSession, sink: SinkLike, *, schema: str | None = None) -> list[str]:
    """Create or replace two views in the session's catalog: ``<pipeline>`` has all rows, ``<pipeline>_latest`` those of :func:`latest`.

    The views read the table as it is at each query. Create them again when the sink has got columns since.

    Parameters
    ----------
    schema
        Schema of the views; null for the session's current one.

    Returns
    -------
    list of str
        Names of the views, as SQL writes them.
    """
    statements = view_statements(sink, schema)
    for statement in statements.values():
        spark.sql(statement)
    return list(statements)


def _rows(spark: SparkSession, table: PublishedTable, at: AsOf) -> DataFrame:
    reader = spark.read.format("delta").options(**reader_options(table.path)).option("versionAsOf", at.version)
    rows = reader.load(spark_path(table.path))
    return rows if at.batch is None else rows.where(F.col("batch") <= at.batch)
