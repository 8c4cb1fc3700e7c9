"""What differs between a classic session, whose JVM this process reaches by py4j, and one of a Spark Connect server.

All other code takes a session of either kind and asks :func:`access_to` for what PySpark does not give for both, as users' modules
(aggregates, window functions) that Python workers cannot import by themselves.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import importlib
import os
import re
import shutil
import site
import socket
import sysconfig
import tempfile
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.spark.file_ranges import DeltaScan, FileRange, delta_scan, file_ranges
from windowmill.jobs.spark.spark_settings import DELTA_EXTENSION, EXTENSIONS, MAX_SHUFFLE_PARTITIONS, TIME_ZONE
from windowmill.windowing.columnar.rows import without_empty_chunks
from windowmill.windowing.errors import MachineError
from windowmill.windowing.registry import GROUP
from windowmill.windowing.settings import PLUGINS

# Re-exported for modules that only pass them on, so that these do not import PySpark.
__all__ = ["DataFrame", "SparkSession"]
#: Names of UTC among the session's zones, in upper case.
_UTC = ("UTC", "ETC/UTC", "Z", "GMT", "ETC/GMT", "+00:00", "ZULU", "ETC/ZULU", "UCT", "ETC/UCT", "UNIVERSAL")
#: Characters that a Java URI does not escape in a path, besides letters and digits.
UNESCAPED = "/@_-!.~'()*,;:$&+="
#: Each entry of a zip has this time, so that equal files give equal zips: a session takes a name again only with the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Name of the distribution that announces plugins to the workers of a Spark Connect session.
_SHIPPED = "windowmill_shipped"
#: A function over the batches of a partition.
_OverBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_URI = re.compile(r"(?:(?P<scheme>[a-z][a-z0-9+.-]*):(?://(?P<authority>[^/]*))?)?(?P<path>.*)", re.DOTALL)


@dataclass(frozen=True)
class Shipment:
    """Names of the modules that a pipeline uses, and of the plugins that workers import, which are among the modules.

    Nothing is imported before the files are asked for: workers of this process's own JVM import by themselves.
    """

    modules: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()

    def files(self) -> list[Path]:
        """The files of modules that are not installed, and a zip of each package that such a module is in."""
        found: list[Path] = []
        for name in sorted({module.partition(".")[0] for module in self.modules}):
            origin = importlib.import_module(name).__spec__
            locations: Sequence[str | None] = (origin.submodule_search_locations or [origin.origin]) if origin else []
            paths = [Path(location) for location in locations if location]
            found += [path if path.is_file() else _zipped(path) for path in paths if not _installed(path)]
        return found

    @cached_property
    def digest(self) -> str:
        sha = hashlib.sha256("\n".join(self.plugins).encode())
        for file in self.files():
            sha.update(f"\n{file.name}\n".encode() + file.read_bytes())
        return sha.hexdigest()


def plugins_zip(plugins: tuple[str, ...]) -> Path:
    """A zip that names ``plugins`` as an installed distribution does: workers find its entry points on their path."""
    points = "".join(f"{name} = {name}\n" for name in plugins)
    folder = f"{_SHIPPED}-0.dist-info"
    entries = {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {_SHIPPED}\nVersion: 0\n",
        f"{folder}/entry_points.txt": f"[{GROUP}]\n{points}",
    }
    return _zip(_SHIPPED, {name: text.encode() for name, text in entries.items()})


def _installed(path: Path) -> bool:
    roots = [*site.getsitepackages(), sysconfig.get_path("stdlib")]
    return any(path.is_relative_to(root) for root in roots)


@cache  # Spark accepts a file name a second time only for the same path
def _zipped(package: Path) -> Path:
    """The package's Python files as an importable zip, named after the package: Spark ships each file name once."""
    files = sorted(package.rglob("*.py"))
    return _zip(package.name, {str(Path(package.name) / file.relative_to(package)): file.read_bytes() for file in files})


def _zip(name: str, entries: Mapping[str, bytes]) -> Path:
    """A zip of ``entries`` in a folder of its own, which goes when this process ends."""
    folder = tempfile.mkdtemp(prefix="windowmill-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / f"{name}.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for entry, content in entries.items():
            archive.writestr(zipfile.ZipInfo(entry, _TIME), content)
    return target


class Access:
    """What runs need of a session's driver; here that of a classic session, whose JVM belongs to this process."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def cores(self) -> int:
        """Number of tasks that run at a time."""
        return self.spark.sparkContext.defaultParallelism

    def uri(self, path: str) -> str:
        """The URI of an absolute path or URI as in Spark's ``_metadata.file_path``: Hadoop qualifies paths and escapes some characters."""
        java: Any = self.spark._jvm  # noqa: SLF001 - only Hadoop itself knows the default file system
        hadoop = self.spark._jsc.hadoopConfiguration()  # noqa: SLF001
        unqualified = java.org.apache.hadoop.fs.Path(path)
        qualified = unqualified.getFileSystem(hadoop).makeQualified(unqualified).toString()
        return str(java.org.apache.hadoop.fs.Path(qualified).toUri().toString())

    def ship(self, shipment: Shipment) -> None:
        context = self.spark.sparkContext
        if shipment.plugins:
            named = set(filter(None, context.environment.get(PLUGINS.name, "").split(",")))
            # Python workers started from now on have this variable; `spark.executorEnv` would have to be set before the session starts.
            context.environment[PLUGINS.name] = ",".join(sorted(named | set(shipment.plugins)))
        if (context.master or "").partition("[")[0] != "local":
            for file in shipment.files():
                context.addPyFile(str(file))

    def apply(self, conf: Mapping[str, str]) -> None:
        """Set those settings of ``conf`` that can still be changed."""
        for key, value in conf.items():
            if self.spark.conf.isModifiable(key):
                self.spark.conf.set(key, value)

    def file_ranges(self, df: DataFrame) -> list[list[FileRange]] | None:
        """See :func:`windowmill.jobs.spark.file_ranges.file_ranges`; ``None`` also where the plan is not known."""
        return file_ranges(df)

    def delta_scan(self, df: DataFrame) -> DeltaScan | None:
        """See :func:`windowmill.jobs.spark.file_ranges.delta_scan`; ``None`` also where the plan is not known."""
        return delta_scan(df)

    def in_utc(self, df: DataFrame) -> tuple[DataFrame, Callable[[DataFrame], DataFrame]]:
        """``df`` for computations whose session zone is UTC, and a function that brings a result back into the session.

        The session's settings stay as they are, and so does what ``df`` itself computes.
        """
        # A plan keeps the zone with which it was analyzed, so it is analyzed in a copy of the session.
        copy = type(self.spark)(self.spark.sparkContext, self.spark._jsparkSession.cloneSession())  # noqa: SLF001
        copy.conf.set(TIME_ZONE, "UTC")
        return _of_session(copy, df), partial(_of_session, self.spark)

    def named(self, rows: DataFrame, types: StructType) -> DataFrame:  # noqa: ARG002 - a classic session names them so by itself
        """``rows`` of ``types``, which were given as values, as if they had been named in SQL."""
        return rows

    def has_delta(self) -> bool:
        """Whether the session has Delta's extension, and its classes as far as this process can see them."""
        java: Any = self.spark._jvm  # noqa: SLF001
        # py4j treats a class that it does not find as a package.
        return _names_delta(self.spark) and type(java.io.delta.tables.DeltaTable).__name__ == "JavaClass"


def access_to(spark: SparkSession) -> Access:
    # By name: to import the class takes a second, and another thread may be about to.
    connect = any(kind.__module__ == "pyspark.sql.connect.session" for kind in type(spark).__mro__)
    return ConnectAccess(spark) if connect else Access(spark)


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """``rows`` as a DataFrame, with its columns also if there are none."""
    rows = without_empty_chunks(rows)
    if len(rows):
        return spark.createDataFrame(rows)
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))  # a server infers no type from nothing


def map_in_arrow(rows: DataFrame, function: _OverBatches, schema: pa.Schema) -> DataFrame:
    """``rows.mapInArrow`` with columns as ``schema``.

    Spark takes the columns that ``function`` yields by place: it compares no names, and drops surplus columns. From ``rows`` without
    columns come batches without rows.
    """
    types = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return access_to(rows.sparkSession).named(rows.mapInArrow(partial(_in_worker, function), types), types)


def parquet_rows(spark: SparkSession, paths: Sequence[str], schema: pa.Schema) -> DataFrame:
    return spark.read.schema(from_arrow_schema(schema)).parquet(*paths)


def mapped(rows: DataFrame, function: _OverBatches, schema: pa.Schema) -> DataFrame:
    """``rows.mapInArrow`` for columns of any name; PySpark itself would parse a dot or backtick in a name as syntax."""
    numbered = rows.toDF(*(f"_{n}" for n in range(len(rows.columns))))
    return map_in_arrow(numbered, partial(_named, function, rows.columns), schema)


def _named(function: _OverBatches, names: list[str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return function(batch.rename_columns(names) for batch in batches)


def _in_worker(function: _OverBatches, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from function(batches)
    _keep_modules()


def running_task() -> tuple[int, str]:
    """Of the task that this process runs: a number that no other attempt of this Spark application has, and its executor.

    A process that runs no task gets 0, and is an executor of its own.
    """
    context, host = TaskContext.get(), socket.gethostname()
    # The Python workers of an executor are children of one daemon, whose process id names the executor.
    return (0, f"{host}:{os.getpid()}") if context is None else (int(context.taskAttemptId()), f"{host}:{os.getppid()}")


@cache
def _keep_modules() -> None:
    """Exempt what a worker has imported from garbage collection; PySpark's workers collect after each task, 0.1 s on busy cores."""
    gc.freeze()


class ConnectAccess(Access):
    """A session of a Spark Connect server, which sees the tables at the paths that they have here."""

    def cores(self) -> int:
        return int(self.spark.conf.get("spark.default.parallelism", "") or MAX_SHUFFLE_PARTITIONS)

    def uri(self, path: str) -> str:
        return hadoop_uri(path)

    def ship(self, shipment: Shipment) -> None:
        files = [*shipment.files(), *([plugins_zip(shipment.plugins)] if shipment.plugins else [])]
        if not files:
            return
        try:
            self.spark.addArtifacts(*map(str, files), pyfile=True)
        except PySparkException as err:
            if err.getCondition() != "ARTIFACT_ALREADY_EXISTS":
                raise
            raise MachineError(
                "this Spark Connect session has got a user module that was edited since, and workers keep what they have imported; "
                "stop the session (spark.stop()) and connect again"
            ) from err

    def apply(self, conf: Mapping[str, str]) -> None:
        builder: Any = type(self.spark).builder
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of settings that a server keeps
            builder.config(map=dict(conf)).getOrCreate()  # applies all of them to the active session by one request

    def file_ranges(self, df: DataFrame) -> list[list[FileRange]] | None:  # noqa: ARG002 - the server alone knows the plan
        return None

    def delta_scan(self, df: DataFrame) -> DeltaScan | None:  # noqa: ARG002 - as above
        return None

    def in_utc(self, df: DataFrame) -> tuple[DataFrame, Callable[[DataFrame], DataFrame]]:
        # A server analyzes the plan again, with the settings of that moment, each time it is evaluated.
        message = f"a condition asks for the session's time zone; set {TIME_ZONE} to UTC before the result is evaluated"
        utc = f"upper(current_timezone()) IN ({', '.join(map(repr, _UTC))})"
        return df.where(f'CASE WHEN {utc} THEN true ELSE raise_error("{message}") END'), lambda result: result

    def named(self, rows: DataFrame, types: StructType) -> DataFrame:
        if not holds_text(types):
            return rows
        cells = {field.name: F.col(backquoted(field.name)) for field in types}
        typed = {field.name: cells[field.name].cast(sql_type(field.dataType)) for field in types if holds_text(field.dataType)}
        return rows.select(*(cell.alias(name) for name, cell in (cells | typed).items()))

    def has_delta(self) -> bool:
        return _names_delta(self.spark)


def _names_delta(spark: SparkSession) -> bool:
    return DELTA_EXTENSION in (spark.conf.get(EXTENSIONS, "") or "")


def _of_session(session: SparkSession, df: DataFrame) -> DataFrame:
    """``df``, as it has been analyzed, as a DataFrame of ``session``, which shares the JVM with its own."""
    java: Any = session._jvm  # noqa: SLF001 - PySpark has no public access to a plan
    analyzed = df._jdf.queryExecution().analyzed()  # noqa: SLF001
    return type(df)(java.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, analyzed), session)  # noqa: SLF001


def hadoop_uri(path: str) -> str:
    """What Hadoop makes of an absolute path or URI where the default file system is this machine's.

    >>> hadoop_uri("/tables/a é/100%"), hadoop_uri("file:///tables//a/"), hadoop_uri("s3a://bucket/a b")
    ('file:/tables/a%20é/100%25', 'file:/tables/a', 's3a://bucket/a%20b')
    """
    parts = _URI.fullmatch(path)
    assert parts is not None
    authority = f"//{parts['authority']}" if parts["authority"] else ""
    plain = re.sub("/+", "/", parts["path"])
    # Java escapes spaces and control characters of all scripts, and keeps their letters.
    escaped = (
        each if not each.isascii() and unicodedata.category(each) not in ("Zs", "Zl", "Zp", "Cc") else quote(each, safe=UNESCAPED)
        for each in (plain if plain == "/" else plain.rstrip("/"))
    )
    return f"{parts['scheme'] or 'file'}:{authority}{''.join(escaped)}"


def sql_type(kind: DataType) -> str:
    """The name of a type in SQL, nullability of fields included.

    >>> from pyspark.sql.types import LongType, StructField
    >>> sql_type(StructType([StructField("a.b", StringType()), StructField("n", ArrayType(LongType()), False)]))
    'STRUCT<`a.b`: string, `n`: ARRAY<bigint> NOT NULL>'
    """
    match kind:
        case StructType():
            fields = (f"{backquoted(field.name)}: {sql_type(field.dataType)}{'' if field.nullable else ' NOT NULL'}" for field in kind)
            return f"STRUCT<{', '.join(fields)}>"
        case ArrayType():
            return f"ARRAY<{sql_type(kind.elementType)}>"
        case MapType():
            return f"MAP<{sql_type(kind.keyType)}, {sql_type(kind.valueType)}>"
    return kind.simpleString()


def holds_text(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(holds_text(field.dataType) for field in kind)
        case ArrayType():
            return holds_text(kind.elementType)
        case MapType():
            return holds_text(kind.keyType) or holds_text(kind.valueType)
    return isinstance(kind, StringType)
