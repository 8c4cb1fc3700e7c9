"""The Spark session that every job uses (Delta from local jars, UTC, tuned for small commits), users' modules on its workers, its catalog.

``python -m windowmill.jobs.spark.session`` records the class archive from which later sessions start 4 seconds sooner.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.spark import launch, remote
from windowmill.jobs.spark.access import Shipment, access_to
from windowmill.jobs.spark.jars import class_archive, jars_folder
from windowmill.jobs.spark.spark_settings import DELTA_CONF, RUNTIME_CONF, SERVER, session_conf, spark_path
from windowmill.jobs.user_code import module_names, plugin_modules
from windowmill.windowing.errors import MachineError, ServerGoneError, SourceFeatureError, SourceMissingError, UnsupportedError, first_line
from windowmill.windowing.registry import named_plugins
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import Progress

#: Spark's name of its session catalog, which may be a Hive metastore; the names of tables that it takes.
_SESSION, _NAME = "spark_catalog", re.compile(r"[A-Za-z0-9_]+")
#: Spark's setting of what the session catalog is; what a catalog is that ends with its JVM.
_IMPLEMENTATION, _PASSING = "spark.sql.catalogImplementation", "in-memory"


def spark_session(
    app_name: str = "windowmill",
    *,
    master: str | None = None,
    conf: Mapping[str, str] = MappingProxyType({}),
    brief: bool = False,
    shipment: Shipment = Shipment(),  # noqa: B008 - it is frozen
    say: Callable[[str], None] = warnings.warn,
) -> SparkSession:
    """The running session, or one of the Spark Connect server that ``SPARK_REMOTE`` names, or a new one, which takes 2 to 5 seconds.

    Under ``spark-submit`` the submission sets master, memory and jars, and windowmill adds only session settings.

    Parameters
    ----------
    app_name
        Name shown by Spark for a new session.
    master
        Master of a new session; by default ``WINDOWMILL_MASTER``, else all cores of this machine. If given, no server is used.
    conf
        Spark settings that override windowmill's own; a running session takes those that can still be changed.
    brief
        Whether the session is for a small batch: a local JVM then skips the optimizing compiler, which would not pay off.
    shipment
        The modules that will be shipped: a server has a session for each state of them.
    say
        Gets one line if the server does not answer, so that a new session starts here.

    Raises
    ------
    MachineError
        If Java or the Delta jars are missing, Spark does not start, the running session has no Delta, or runs cannot use the server.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        access_to(running).apply({**RUNTIME_CONF, **conf})
        return _checked(running)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit, whose JVM is running: launch settings would come too late
    found = None if submitted or master is not None else _of_server({**RUNTIME_CONF, **conf}, shipment, say)
    if found is not None:
        return found
    os.environ.pop(SERVER, None)  # PySpark would connect to it
    settings = {**DELTA_CONF, **RUNTIME_CONF, **conf} if submitted else session_conf(master, conf, brief=brief)
    if not submitted:
        if master is None and not conf:
            launch.begin(brief=brief)
        launch.attach(settings)
    try:
        session = SparkSession.builder.appName(app_name).config(map=dict[str, Any](settings)).getOrCreate()
    except PySparkRuntimeError as err:
        raise MachineError("Spark did not start, its own message is above; `windowmill doctor` examines this machine") from err
    launch.silence_accumulators()
    return _checked(session)


def import_client() -> None:
    importlib.import_module("pyspark.sql.connect.session")


def _of_server(conf: Mapping[str, str], shipment: Shipment, say: Callable[[str], None]) -> SparkSession | None:
    """A session of the server that ``SPARK_REMOTE`` names; null if it names none, or one that does not answer."""
    address = os.environ.get(SERVER)
    try:
        return remote.attach(address, conf, code=shipment.digest) if address else None
    except ServerGoneError as err:
        say(f"{err}; this process starts Spark of its own")
        return None


def _checked(session: SparkSession) -> SparkSession:
    if access_to(session).has_delta():
        return session
    raise MachineError(
        "the running Spark session has no Delta; stop it, or submit with "
        "`--jars $(python -m windowmill.jobs.spark.jars --list) --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension`"
    )


def record_class_archive() -> Path:
    """Run a short Delta job in a JVM that writes the archive on exit; about 20 s, and 190 MB on disk."""
    archive = class_archive()
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=jars_folder(), prefix=".record-") as scratch:
        recorded = Path(scratch) / archive.name
        options = f"-XX:ArchiveClassesAtExit={recorded} -Xlog:cds=off -Xlog:cds+dynamic=off"
        spark = spark_session(conf={"spark.driver.extraJavaOptions": options})
        _exercise(spark, f"{scratch}/table")
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - the only access to the JVM's process
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(timeout=600)  # on a busy machine
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
        if not recorded.is_file():
            raise MachineError(f"Java wrote no class archive to {jars_folder()}; sessions work without it, 4 seconds slower")
        recorded.replace(archive)
    return archive


def _exercise(spark: SparkSession, path: str) -> None:
    """Load the classes that a run needs: idempotent and replacing writes, reads, aggregates, joins, Python workers."""
    rows = spark.range(1000).selectExpr("id % 10 AS key", "timestamp_micros(id * 1000) AS at", "CAST(id AS DOUBLE) AS value")
    for version in range(2):
        options = {"txnAppId": "record", "txnVersion": str(version), "userMetadata": "{}"}
        rows.write.format("delta").mode("append").options(**options).save(path)
    table = spark.read.format("delta").option("versionAsOf", 1).load(path)
    sums = table.groupBy("key").agg({"value": "stddev", "*": "count", "at": "max"})
    joined = table.join(sums, "key").sortWithinPartitions("key", "at")
    joined.mapInArrow(lambda batches: batches, "key long, at timestamp, value double").count()
    spark.sql(f"SELECT max_by(value, at), min(value), avg(value) FROM delta.`{path}`").toPandas()


def shipment_of(pipeline: Pipeline) -> Shipment:
    """The modules that ``pipeline`` names; if it uses a plugin, all plugins."""
    used = plugin_modules(pipeline)
    plugins = used | {plugin.module for plugin in named_plugins()} if used else set()
    return Shipment(frozenset({*module_names(pipeline), *plugins}), tuple(sorted(plugins)))


def ship_modules(spark: SparkSession, pipeline: Pipeline) -> None:
    """Ship the modules that ``pipeline`` names to the workers of ``spark``, unless they import them as this process does."""
    access_to(spark).ship(shipment_of(pipeline))


def start_spark(pipeline: Pipeline, progress: Progress, *, brief: bool = False) -> SparkSession:
    """Start Spark, or connect to it, for tasks of ``pipeline``; ``brief`` is whether it has little to do."""
    with progress.step("start", "Spark"):
        shipment = shipment_of(pipeline)  # what it holds decides which session of a server is used
        name = f"windowmill {pipeline.pipeline}"
        spark = spark_session(name, brief=brief, shipment=shipment, say=lambda what: progress.say(f"  {what}"))
        access_to(spark).ship(shipment)
    return spark


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


if __name__ == "__main__":
    try:
        print(f"sessions start from {record_class_archive()}")
    except MachineError as problem:
        sys.exit(str(problem))
