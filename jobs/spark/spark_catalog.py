"""Tables of Spark's catalog: where one lies, and how a new one is registered."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.spark.session import shipment_of, spark_session
from windowmill.jobs.spark.spark_settings import spark_path
from windowmill.windowing.errors import SourceFeatureError, SourceMissingError, UnsupportedError, first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.spec import Pipeline

#: Spark's name of its session catalog, which may be a Hive metastore; the names of tables that it takes.
_SESSION, _NAME = "spark_catalog", re.compile(r"[A-Za-z0-9_]+")
#: Spark's setting of what the session catalog is; what a catalog is that ends with its JVM.
_IMPLEMENTATION, _PASSING = "spark.sql.catalogImplementation", "in-memory"


def session_for(pipeline: Pipeline, say: Callable[[str], None]) -> SparkSession:
    """The session that computes the pipeline's batches, too."""
    return spark_session(f"windowmill {pipeline.pipeline}", brief=True, shipment=shipment_of(pipeline), say=say)


def location_of(spark: SparkSession, table: str) -> str | None:
    try:
        if not spark.catalog.tableExists(_quoted(table)):
            return None
        detail = spark.sql(f"DESCRIBE DETAIL {_quoted(table)}").select("format", "location").head()
    except AnalysisException as err:
        if (err.getCondition() or "").startswith("EXPECT_TABLE_NOT_VIEW"):
            raise SourceFeatureError(
                f"table {table}: is a view, which has no location to read; name the Delta table under it, and give the view's condition as "
                "source.filter"
            ) from err
        raise SourceMissingError(
            f"table {table}: cannot be looked up ({first_line(err)}); write schema.table, or catalog.schema.table of a catalog that "
            "Spark's settings name"
        ) from err
    if detail is None or detail["format"] != "delta":
        kind = "a table without a format" if detail is None else f"a {detail['format']} table"
        raise SourceFeatureError(
            f"table {table}: is {kind}; only Delta tables are taken by name, for a folder of files give path and format"
        )
    return _as_written(str(detail["location"]))


def not_found(spark: SparkSession, field: str, table: str) -> SourceMissingError:
    """The error of a table that the catalog does not have; it names what most often is the reason."""
    own = spark.conf.get(_IMPLEMENTATION, _PASSING) == _PASSING
    why = "; Spark has no metastore here: name yours in spark-defaults.conf (docs/how-to/catalog.md)" if own else ""
    return SourceMissingError(f"{field}: the catalog has no table {table!r}; create it, or correct the name{why}")


def location_for(spark: SparkSession, table: str) -> str:
    """Where a new table lies: in the folder of its database."""
    database, _, name = table.rpartition(".")
    # Spark would refuse the name only once the table is written.
    if "." not in database.removeprefix(f"{_SESSION}.") and not _NAME.fullmatch(name):
        raise UnsupportedError(f"table {table}: Spark's session catalog takes only names of letters, digits and _; rename {name!r}")
    return f"{folder_of(spark, table)}/{name}"


def folder_of(spark: SparkSession, table: str) -> str:
    """The folder of a table's database; raises ``SourceMissingError`` if there is no such database."""
    database = table.rpartition(".")[0]
    try:
        owner = _quoted(database) if database else backquoted(spark.catalog.currentDatabase())
        rows = spark.sql(f"DESCRIBE DATABASE EXTENDED {owner}").collect()
    except AnalysisException as err:
        raise SourceMissingError(f"table {table}: its database cannot be found ({first_line(err)}); create it, or give the path") from err
    return _as_written(str(next(row[1] for row in rows if row[0] == "Location"))).rstrip("/")


def register(spark: SparkSession, table: str, location: str) -> None:
    spark.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(table)} USING delta LOCATION {spark_text(spark_path(location))}")


def _quoted(table: str) -> str:
    return ".".join(backquoted(part) for part in table.split("."))


def _as_written(location: str) -> str:
    local = local_path(location)
    if local is not None:
        return str(local)
    scheme, _, rest = location.partition("://")
    return f"s3://{rest}" if scheme == "s3a" else location
