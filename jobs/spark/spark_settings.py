"""Settings of Spark: those that a JVM starts with, those of every session, and those by which Spark itself reaches object storage.

The last are needed only where Spark itself reads a source: Hadoop's names for a place and its credentials. Spark never commits there: its
log stores check that a version is absent and then write it, so they overwrite other writers' commits.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from windowmill.checkpoints.places import absolute
from windowmill.checkpoints.stores import options_of
from windowmill.jobs.spark.jars import class_archive, find_java, has_s3_jars, jar_paths
from windowmill.windowing.errors import MachineError
from windowmill.windowing.redaction import redacted
from windowmill.windowing.settings import DRIVER_MEMORY, MASTER

#: PySpark's own variables: a Spark Connect server's address, its token, and that functions build plans for a server.
SERVER, TOKEN, CONNECT_MODE = "SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN", "SPARK_CONNECT_MODE_ENABLED"
#: Setting in which a server of ours names the release that its workers import.
RELEASE = "spark.windowmill.release"

#: Setting of the zone that functions of instants take.
TIME_ZONE = "spark.sql.session.timeZone"
# Settings that affect results or the speed of small batches. They also apply to a session that is running already.
RUNTIME_CONF = {
    "spark.sql.inMemoryColumnarStorage.partitionPruning": "false",  # it loses NaN rows under filters on cached frames (SPARK-58482)
    TIME_ZONE: "UTC",
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

#: Setting that lists the extensions of a session, and the extension that Delta needs.
EXTENSIONS, DELTA_EXTENSION = "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CONF = {
    EXTENSIONS: DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

#: Source bytes from which on a run is not short.
BYTES_OF_LONG_RUN = 64 << 20
#: A small batch on a cold JVM: 18 s of CPU instead of 30; a JVM that only starts tasks: 3.7 s instead of 7.0. With one compiler, the JVM
#: reserves only 48 MB for its code, which Spark fills within minutes; then it looks for code to drop all the time.
_BRIEF_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
MAX_SHUFFLE_PARTITIONS = 8
"""Enough for tables of one machine: adaptive execution merges small shuffle partitions, but does not split large ones."""
ABSOLUTE = re.compile(r"[a-z0-9]+:/|/")
#: Options of delta-rs, without ``aws_``, and Hadoop's names for them.
_NAMES = {
    "access_key_id": "fs.s3a.access.key",
    "secret_access_key": "fs.s3a.secret.key",
    "session_token": "fs.s3a.session.token",
    "endpoint": "fs.s3a.endpoint",
    "endpoint_url": "fs.s3a.endpoint",
    "endpoint_url_s3": "fs.s3a.endpoint",
    "default_region": "fs.s3a.endpoint.region",
    "region": "fs.s3a.endpoint.region",
}


def is_short_run(source_bytes: int) -> bool:
    """Whether Spark is configured for a short run: a session that is started fast (``brief``), and no more partitions than cores."""
    return source_bytes < BYTES_OF_LONG_RUN


def session_conf(master: str | None, conf: Mapping[str, str], *, brief: bool) -> dict[str, str]:
    """All settings of a new session; ``conf`` overrides windowmill's own. See :func:`.spark_session`."""
    launched = launch_conf(master or MASTER.given() or "local[*]", brief=brief)
    return {**launched, **DELTA_CONF, **RUNTIME_CONF, **conf}


def launch_conf(master: str, *, brief: bool = False) -> dict[str, str]:
    """Settings that a new JVM starts with; also sets environment variables that Spark reads at the start."""
    jars = jar_paths()
    os.environ["JAVA_HOME"] = str(find_java().home)
    settings = {
        "spark.master": master,
        "spark.driver.memory": DRIVER_MEMORY.given() or "4g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **WORKER_MEMORY,
        "spark.python.daemon.module": "windowmill.jobs.spark.daemon",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"windowmill-spark-{os.getuid()}"),
    }
    if brief:
        # No collector: with another one in the deployment's own options, executors would not start.
        settings["spark.executor.defaultJavaOptions"] = " ".join(_BRIEF_OPTIONS)
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
        "spark.sql.shuffle.partitions": str(min(max(os.cpu_count() or 2, 2), MAX_SHUFFLE_PARTITIONS)),
    }


def _java_options(*, brief: bool) -> list[str]:
    options = [
        # A small batch collects little garbage; else the highest throughput on few cores, where pauses do not matter.
        "-XX:+UseSerialGC" if brief else "-XX:+UseParallelGC",
        "-XX:MetaspaceSize=256m",  # by default the JVM collects all garbage at 21 MB of classes; Spark has 130
        f"-Dlog4j2.configurationFile={(Path(__file__).parent / 'log4j2.properties').as_uri()}",
    ]
    if brief:
        options += _BRIEF_OPTIONS
    archive = class_archive()
    if archive.is_file():
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return options


def spark_path(place: str) -> str:
    """``place`` as Spark takes it: an absolute path, or a URI with Hadoop's scheme.

    The JVM resolves relative paths in the folder where it was started, and takes escapes in a URI as they are.

    >>> spark_path("s3://bucket/flights"), spark_path("gs://bucket/flights")
    ('s3a://bucket/flights', 'gs://bucket/flights')
    """
    scheme, colon, rest = place.partition("://")
    return f"s3a://{rest}" if colon and scheme.lower() in ("s3", "s3n") else absolute(place)


def reader_options(place: str) -> dict[str, str]:
    """Options of a ``DataFrameReader`` of files at ``place``, with the credentials that delta-rs takes; empty on this machine."""
    if not spark_path(place).startswith("s3a://"):
        return {}
    if not has_s3_jars():
        raise MachineError(
            f"{redacted(place)}: only Spark can read these files, and it lacks the jars to read s3://; run `make s3-jars` (or `python -m "
            "windowmill.jobs.spark.jars --s3`), or rewrite the source without deletion vectors (REORG TABLE … APPLY (PURGE)) and odd types"
        )
    given = {name.lower().removeprefix("aws_"): value for name, value in (options_of(place) or {}).items()}
    found = {hadoop: given[name] for name, hadoop in _NAMES.items() if given.get(name)}
    if "fs.s3a.endpoint" in found:
        virtual = given.get("virtual_hosted_style_request", "").lower() in ("true", "1")
        found |= {"fs.s3a.path.style.access": "false" if virtual else "true"}
        found |= {"fs.s3a.connection.ssl.enabled": str(not found["fs.s3a.endpoint"].startswith("http://")).lower()}
    if "fs.s3a.session.token" in found:
        found["fs.s3a.aws.credentials.provider"] = "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
    return found


def full_path(root: str, path: str) -> str:
    """The file at ``path``, absolute or below the table at ``root``, as Spark takes it."""
    return path if ABSOLUTE.match(path) else f"{spark_path(root).rstrip('/')}/{path}"


def literal_path(root: str, path: str) -> str:
    """As :func:`full_path`, for a reader of files."""
    # Spark expands globs in paths, and partition values may contain their characters.
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", full_path(root, path))
