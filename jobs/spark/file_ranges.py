"""Finds what a DataFrame that is only a scan reads: Parquet files, as Spark divides them among tasks, or a Delta table.

Only a DataFrame's plan shows what it scans, and PySpark gives the plan of a classic session only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCES = "org.apache.spark.sql.execution.datasources"
_RELATION, _PROJECT = f"{_SOURCES}.LogicalRelation", "org.apache.spark.sql.catalyst.plans.logical.Project"
_FILES, _PARQUET, _LISTED = (f"{_SOURCES}.{name}" for name in ("HadoopFsRelation", "parquet.ParquetFileFormat", "InMemoryFileIndex"))
#: Metadata of columns that Spark finds in a file by number instead of by name.
_FIELD_ID = "parquet.field.id"
#: A scan of a Delta table; to plan its files takes Spark a job.
_DELTA_INDEX, _DELTA = "org.apache.spark.sql.delta.files.TahoeLogFileIndex", "org.apache.spark.sql.delta.DeltaParquetFileFormat"
#: Plans that name a relation, and change nothing.
_NAMES = (f"{_PROJECT.rpartition('.')[0]}.SubqueryAlias", f"{_PROJECT.rpartition('.')[0]}.View")
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
#: Settings under which Spark reads the same rows from Parquet files as Arrow does.
_PLAIN = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: Maximum number of tasks, and of ranges of files: each takes several calls into the JVM, and a footer to examine.
_MAX_TASKS = 1_024


@dataclass(frozen=True, slots=True)
class FileRange:
    """Those row groups of a local file of ``size`` bytes whose middle byte lies in ``start:stop``."""

    path: str
    size: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DeltaScan:
    """A Delta table; ``version`` is the one that the DataFrame asks for, null for the newest."""

    path: str
    version: int | None


def delta_scan(df: DataFrame) -> DeltaScan | None:
    """The Delta table whose rows ``df`` consists of; ``None`` if it is more than columns of a table, or a scan of something else."""
    if df.storageLevel.useMemory or df.storageLevel.useDisk or not _is_plain(df):
        return None
    plan: Any = df._jdf.queryExecution().withCachedData()  # noqa: SLF001 - only the plan says what a DataFrame is
    if not plan.outputSet().subsetOf(plan.collectLeaves().head().outputSet()):
        return None
    while _class(plan) in (_PROJECT, *_NAMES):
        plan = plan.child()
    if _class(plan) != _RELATION or not _scans(files := plan.relation()) or _class(files.fileFormat()) != _DELTA:
        return None
    index = files.location()
    if _class(index) != _DELTA_INDEX or not index.partitionFilters().isEmpty() or not files.options().isEmpty():
        return None
    return DeltaScan(unquote(index.path().toUri().toString()), index.versionToUse().get() if index.isTimeTravelQuery() else None)


def _scans(relation: Any) -> bool:
    """Whether a relation consists of files; that of Delta is of a subclass."""
    return _FILES in (_class(relation), str(relation.getClass().getSuperclass().getName()))


def _is_plain(df: DataFrame) -> bool:
    return all(df.sparkSession.conf.get(key) == value for key, value in _PLAIN.items())


def file_ranges(df: DataFrame) -> list[list[FileRange]] | None:
    """The file ranges that each task of Spark's own scan reads; ``None`` if ``df`` is more than columns of local Parquet files.

    Filters, new or renamed columns, partitions, options, cached rows and files of other formats all make it more.
    """
    execution: Any = df._jdf.queryExecution()  # noqa: SLF001 - only the plan says what a DataFrame is
    if any(_FIELD_ID in field.metadata for field in df.schema):
        return None
    if not _reads_files(execution.analyzed()) or df.storageLevel.useMemory or df.storageLevel.useDisk:
        return None
    plan = execution.optimizedPlan()
    if not _reads_files(plan) or not _is_plain(df):
        return None
    leaves = execution.executedPlan().collectLeaves()
    if leaves.size() != 1 or _class(leaf := leaves.apply(0)) != _SCAN:
        return None
    tasks = leaf.inputRDD().partitions()
    if len(tasks) > _MAX_TASKS:
        return None
    found = [[_range(file) for file in task.files()] for task in tasks]
    ranges = [part for task in found for part in task if part is not None]
    return None if len(ranges) > _MAX_TASKS or len(ranges) < sum(map(len, found)) else [[part for part in task if part] for task in found]


def _class(java: Any) -> str:
    return str(java.getClass().getName())


def _reads_files(plan: Any) -> bool:
    """Whether ``plan`` is a scan of Parquet files, or a projection of it onto some of its columns."""
    relation = plan.child() if _class(plan) == _PROJECT else plan
    if _class(relation) != _RELATION or not plan.outputSet().subsetOf(relation.outputSet()):
        return False
    files = relation.relation()
    return (
        _class(files) == _FILES
        and _class(files.fileFormat()) == _PARQUET
        and _class(files.location()) == _LISTED
        and files.partitionSchema().length() == 0
        and files.bucketSpec().isEmpty()
        and files.options().size() == int(files.options().contains("path"))
    )


def _range(file: Any) -> FileRange | None:
    uri = urlsplit(file.urlEncodedPath())
    if uri.scheme != "file" or uri.netloc:
        return None
    return FileRange(unquote(uri.path), file.fileSize(), file.start(), file.start() + file.length())
