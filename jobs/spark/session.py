"""The Spark session that every job uses: Delta from local jars, UTC, tuned for small commits on one machine.

``python -m windowmill.jobs.spark.session`` records the class archive from which later sessions start 4 seconds sooner.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from windowmill.jobs.spark.jars import class_archive, jar_paths, jars_folder
from windowmill.jobs.spark.java import find_java
from windowmill.windowing.errors import MachineError

NO_CONF: Mapping[str, str] = MappingProxyType({})

# Settings that affect results or the speed of small batches. They also apply to a session that is running already.
RUNTIME_CONF = {
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",  # it loses NaN rows under filters on cached frames (SPARK-58482)
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "1",  # the default of 50 makes a small commit take 7 s instead of 1
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With a byte limit, Spark sums the size of the batch after every row, which takes four times as long as the rest of the transfer to
    # Python. Only the greatest integer disables it. The row limit alone then bounds a batch, so values must stay below about 100 kB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}

# Workers retain up to 256 MB that numpy has freed: releasing and reallocating arrays of megabytes takes a tenth of a kernel's time.
WORKER_MEMORY = {
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(256 << 20),
}

DELTA_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

MOST_SHUFFLE_PARTITIONS = 8
"""Enough for tables of one machine: adaptive execution merges small shuffle partitions, but does not split large ones."""


def spark_session(
    app_name: str = "windowmill", *, master: str | None = None, conf: Mapping[str, str] = NO_CONF, brief: bool = False
) -> SparkSession:
    """The running session, or a new one with Delta; the first one takes 2 to 5 seconds to start.

    Under ``spark-submit`` the submission sets master, memory and jars, and windowmill adds only session settings.

    Parameters
    ----------
    app_name
        Name shown by Spark for a new session.
    master
        Master of a new session; by default ``WINDOWMILL_MASTER``, else all cores of this machine.
    conf
        Spark settings that override windowmill's own; a running session takes those that can still be changed.
    brief
        Whether the session is for a small batch: a local JVM then skips the optimizing compiler, which would not pay off.

    Raises
    ------
    MachineError
        If Java or the Delta jars are missing, Spark does not start, or the running session is without Delta.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        return _adapt(running, conf)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit, whose JVM is running: launch settings would come too late
        settings: dict[str, str] = {}
    else:
        settings = _launch_conf(master or os.environ.get("WINDOWMILL_MASTER") or "local[*]", brief=brief)
    builder = SparkSession.builder.appName(app_name)
    for key, value in {**settings, **DELTA_CONF, **RUNTIME_CONF, **conf}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkRuntimeError as err:
        raise MachineError("Spark did not start, its own message is above; `windowmill doctor` examines this machine") from err
    return _checked(session)


def _adapt(session: SparkSession, conf: Mapping[str, str]) -> SparkSession:
    for key, value in {**RUNTIME_CONF, **conf}.items():
        if session.conf.isModifiable(key):
            session.conf.set(key, value)
    return _checked(session)


def _checked(session: SparkSession) -> SparkSession:
    from delta.tables import DeltaTable  # only to check that the JVM has Delta's classes

    try:
        if DELTA_CONF["spark.sql.extensions"] in (session.conf.get("spark.sql.extensions", "") or ""):
            DeltaTable.isDeltaTable(session, tempfile.gettempdir())
            return session
    except TypeError:  # py4j treats a class that it does not find as a package, which cannot be called
        pass
    raise MachineError(
        "the running Spark session has no Delta; stop it, or submit with "
        "`--jars $(python -m windowmill.jobs.spark.jars --list) --conf spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension`"
    )


def _launch_conf(master: str, *, brief: bool = False) -> dict[str, str]:
    """Settings that a new JVM starts with; also sets environment variables that Spark reads at the start."""
    jars = jar_paths()
    os.environ["JAVA_HOME"] = str(find_java().home)
    settings = {
        "spark.master": master,
        "spark.driver.memory": os.environ.get("WINDOWMILL_DRIVER_MEMORY") or "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **WORKER_MEMORY,
        "spark.sql.catalogImplementation": "in-memory",  # tables are paths; no Hive metastore, so no Derby files either
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"windowmill-spark-{os.getuid()}"),
    }
    if not master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return {**settings, "spark.jars": ",".join(map(str, jars))}
    if not master.startswith("local-cluster"):
        # The checksum hashes every shuffled row to compare a rerun of a stage with its first run; in one process no stage is rerun.
        settings["spark.sql.shuffle.orderIndependentChecksum.enabled"] = "false"
    # By default workers start `python3` from PATH, which lacks our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # a host name that does not resolve, or a VPN, must not stop a local session
    # A class path rather than `spark.jars`, which copies the jars at every start and keeps their classes out of the archive.
    class_path = ":".join(map(str, jars))
    return {
        **settings,
        "spark.driver.extraClassPath": class_path,
        "spark.executor.extraClassPath": class_path,  # `local-cluster` has executors of its own
        "spark.driver.defaultJavaOptions": " ".join(_java_options(brief=brief)),
        "spark.sql.shuffle.partitions": str(min(max(os.cpu_count() or 2, 2), MOST_SHUFFLE_PARTITIONS)),
    }


def _java_options(*, brief: bool) -> list[str]:
    options = [
        "-XX:+UseParallelGC",  # the highest throughput on few cores; pauses do not matter to a batch
        f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
    ]
    if brief:
        options.append("-XX:TieredStopAtLevel=1")  # a small batch on a cold JVM: 18 s of CPU instead of 30
    archive = class_archive()
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return options


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
        gateway.proc.wait(timeout=120)
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


if __name__ == "__main__":
    try:
        print(f"sessions start from {record_class_archive()}")
    except MachineError as problem:
        sys.exit(str(problem))
