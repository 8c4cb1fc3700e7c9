"""The files of a DataFrame that only scans Parquet files, as Spark divides them among tasks.

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
_FILES, _PARQUET, _LISTED = (
    f"{_SOURCES}.HadoopFsRelation",
    f"{_SOURCES}.parquet.ParquetFileFormat",
    f"{_SOURCES}.InMemoryFileIndex",
)
#: Metadata of columns that Spark finds in a file by number instead of by name.
_FIELD_ID = "parquet.field.id"
_SCAN = "org.apache.spark.sql.execution.FileSourceScanExec"
#: Settings under which Spark reads the same rows from Parquet files as Arrow does.
_PLAIN = {
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: Most tasks, and most ranges of files; to examine the footers of more files would cost more than reading by Arrow saves.
_MOST = 64


@dataclass(frozen=True, slots=True)
class FileRange:
    """Those row groups of a local file of ``size`` bytes whose middle byte lies in ``start:stop``."""

    path: str
    size: int
    start: int
    stop: int


def file_ranges(df: DataFrame) -> list[list[FileRange]] | None:
    """The file ranges that each task of Spark's own scan reads; ``None`` if ``df`` is more than columns of local Parquet files.

    Filters, new or renamed columns, partitions, options, cached rows and files of other formats all make it more.
    """
    execution: Any = df._jdf.queryExecution()  # noqa: SLF001 - only the plan tells what a DataFrame is
    if any(_FIELD_ID in field.metadata for field in df.schema):
        return None
    if not _reads_files(execution.analyzed()) or df.storageLevel.useMemory or df.storageLevel.useDisk:
        return None
    plan = execution.optimizedPlan()
    if not _reads_files(plan) or any(df.sparkSession.conf.get(key) != value for key, value in _PLAIN.items()):
        return None
    leaves = execution.executedPlan().collectLeaves()
    if leaves.size() != 1 or _class(leaf := leaves.apply(0)) != _SCAN:
        return None
    tasks = leaf.inputRDD().partitions()
    if len(tasks) > _MOST:
        return None
    found = [[_range(file) for file in task.files()] for task in tasks]
    ranges = [part for task in found for part in task if part is not None]
    return None if len(ranges) > _MOST or len(ranges) < sum(map(len, found)) else [[part for part in task if part] for task in found]


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
