"""Tables of Spark's catalog: where one lies, and how a new one is registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.spark.object_storage import spark_path
from windowmill.jobs.spark.session import spark_session
from windowmill.jobs.spark.shipping import shipment_of
from windowmill.windowing.errors import SourceFeatureError, SourceMissingError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.spec import Pipeline


def session_for(pipeline: Pipeline, say: Callable[[str], None]) -> SparkSession:
    """The session that computes the pipeline's batches, too."""
    return spark_session(f"windowmill {pipeline.pipeline}", brief=True, shipment=shipment_of(pipeline), say=say)


def location_of(spark: SparkSession, table: str) -> str | None:
    """Location of a Delta table; null if the catalog has no such table.

    Raises
    ------
    SourceFeatureError
        If it is a view, or a table of another format.
    """
    try:
        if not spark.catalog.tableExists(table):
            return None
        detail = spark.sql(f"DESCRIBE DETAIL {_quoted(table)}").select("format", "location").head()
    except AnalysisException as err:
        raise SourceFeatureError(
            f"table {table}: has no location to read ({first_line(err)}); name a Delta table, not a view, or give its path"
        ) from err
    if detail is None or detail["format"] != "delta":
        kind = "a table without a format" if detail is None else f"a {detail['format']} table"
        raise SourceFeatureError(
            f"table {table}: is {kind}; only Delta tables are taken by name, for a folder of files give path and format"
        )
    return _as_written(str(detail["location"]))


def location_for(spark: SparkSession, table: str) -> str:
    """Where a new table lies: in the folder of its database.

    Raises
    ------
    SourceMissingError
        If there is no such database.
    """
    database, _, name = table.rpartition(".")
    try:
        owner = _quoted(database) if database else backquoted(spark.catalog.currentDatabase())
        rows = spark.sql(f"DESCRIBE DATABASE EXTENDED {owner}").collect()
    except AnalysisException as err:
        raise SourceMissingError(f"table {table}: its database cannot be found ({first_line(err)}); create it, or give the path") from err
    folder = next(row[1] for row in rows if row[0] == "Location")
    return f"{_as_written(str(folder)).rstrip('/')}/{name}"


def register(spark: SparkSession, table: str, location: str) -> None:
    """Make the Delta table at ``location`` known to the catalog as ``table``, if it is not."""
    spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(table)} USING delta LOCATION {spark_text(spark_path(location))}")


def _quoted(table: str) -> str:
    return ".".join(backquoted(part) for part in table.split("."))


def _as_written(location: str) -> str:
    local = local_path(location)
    if local is not None:
        return str(local)
    scheme, _, rest = location.partition("://")
    return f"s3://{rest}" if scheme == "s3a" else location
