"""The rows of a source as it is now that published rows were made of, each with the instant through which windows were closed to it.

Left out are rows that are quarantined, rows that the filter leaves out, rows that no batch has read yet, and those of before the pipeline
began. Which commit brought a row is known as long as the file that the commit appended is still there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.column_names import FILE, REASON, ROW
from windowmill.jobs.conditions.duckdb import columns_of, conditions_of
from windowmill.jobs.conditions.spark import every_condition, truth
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.spark.object_storage import reader_options, spark_path
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.errors import SourceRangeGoneError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.checkpoints.places import Runnable
    from windowmill.checkpoints.plans import Plan
    from windowmill.windowing.spec import Pipeline

#: Instant through which windows were closed to a row; null if none were. Text of a row by which it is found in the quarantine.
CLOSED, TEXT = "_closed_through", "_text"
#: Reasons of rows that are usable by themselves.
_REFUSED = ("too_late", "future_time")


@dataclass(frozen=True)
class CurrentRows:
    """Rows with an event time, and their arrival.

    Attributes
    ----------
    rows
        The source's columns, event time, end, index of file and of the row in it, and ``CLOSED``.
    commits
        For each file, by its index, the commit that brought it; null for files of which that is not known, or that count as settled.
    latest
        Index of file and row of a row with the greatest event time of each commit.
    order_known
        Whether every row of which it matters has its commit.
    closed_files
        Paths of files, each with the instant through which windows were closed to its rows.
    changed
        Versions since the pipeline began that changed rows, with their operation.
    """

    rows: DataFrame
    commits: Sequence[int | None]
    latest: Sequence[tuple[int, int]]
    order_known: bool
    closed_files: Sequence[tuple[str, int]]
    changed: Sequence[tuple[int, str]]


@dataclass(frozen=True)
class _Files:
    """The files of the source as it is now that batches have read."""

    files: Sequence[AddedFile]
    commits: Sequence[int | None]
    order_known: bool
    changed: Sequence[tuple[int, str]]


def source_rows(spark: SparkSession, runnable: Runnable, source: SourceTable, plans: Sequence[Plan], *, now_us: int) -> CurrentRows:
    """The rows that committed batches by ``plans``, oldest first, have read; at least one has built the state."""
    pipeline, building = runnable.pipeline, [plan for plan in plans if plan.builds_state]
    found = _files_of(source, building)
    reading = Reading(tuple(found.files), len(found.files), source.version if source.deletion_vectors and found.files else None)
    rows = read_rows(spark, source, reading, runnable, now_us=now_us).where(F.col(REASON).isNull())
    rows = rows if pipeline.time.end else rows.withColumn(UNTIL_OF, F.col(TIME))
    columns = relevant_columns(pipeline, source)
    rows = _in_time(rows, spark, columns, runnable.places.quarantine, Columns.of(source.schema_json))
    # A restatement, or a backfill from the rows of now, has judged no row as late.
    anew = any(plan.snapshot not in (None, building[0].snapshot) for plan in plans)
    known = found.order_known and not anew and pipeline.time.arrival == "commit"
    # For each file its greatest event time, and a row that has it.
    greatest = {row[0]: (row[1][0], row[1][1]) for row in rows.groupBy(FILE).agg(F.max(F.struct(TIME, ROW))).collect()}
    latest = dict[int | None, tuple[int, int, int]]()
    for file, (time, row) in greatest.items():
        commit = found.commits[file] if known else None
        latest[commit] = max(latest.get(commit, (time, file, row)), (time, file, row))
    seen = {commit: time for commit, (time, _, _) in latest.items()}
    closed = _closed_through(pipeline, found, building, seen) if known else [None] * len(found.files)
    by_file = pa.table({FILE: pa.array(range(len(closed)), pa.int32()), CLOSED: pa.array(closed, pa.int64())})
    rows = rows.join(F.broadcast(spark.createDataFrame(without_empty_chunks(by_file))), FILE, "left") if closed else rows
    closed_files = [(file.path, through) for file, through in zip(found.files, closed, strict=True) if through is not None]
    return CurrentRows(rows, found.commits, [(file, row) for _, file, row in latest.values()], known, closed_files, found.changed)


def relevant_columns(pipeline: Pipeline, source: SourceTable) -> list[str]:
    """The source's columns by which results are computed; rows that agree in them are the same to a pipeline."""
    names = Columns.of(source.schema_json).struct.names
    axis = [name for name in (pipeline.time.column, pipeline.time.end) if name is not None]
    named = {name.lower() for condition in every_condition(pipeline) for name in columns_of(condition)}
    used = {*pipeline.keys, *axis, *live_columns(pipeline, names)}
    return [name for name in names if name in used or name.lower() in named]


def text_of(columns: Sequence[str]) -> Column:
    """The text of a row that has these columns, as quarantined rows have it."""
    return F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"})


def with_conditions(rows: DataFrame, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[DataFrame, Mapping[str, str]]:
    """``rows`` with a column for each condition of the spec, whose name is given by the condition."""
    names = {condition: f"_holds{n}" for n, condition in enumerate(conditions_of(pipeline))}
    return rows.withColumns({name: F.coalesce(truth(text, types), F.lit(False)) for text, name in names.items()}), names


def quarantined_rows(spark: SparkSession, quarantine: str, columns: Sequence[str], struct: Columns) -> DataFrame | None:
    """Texts of the rows that were usable by themselves and were not applied, each with how often; null if there is no table."""
    if not is_table(quarantine):
        return None
    table = spark.read.format("delta").options(**reader_options(quarantine)).load(spark_path(quarantine))
    table = table.where(F.col("reason").isin(*_REFUSED))
    row = F.from_json("row", struct.struct)
    return table.select(row.alias("_row_of"), "reason").select("_row_of.*", "reason").select(text_of(columns).alias(TEXT), "reason")


def without_quarantined(rows: DataFrame, quarantined: DataFrame | None, columns: Sequence[str], place: Sequence[str]) -> DataFrame:
    """``rows`` without those in the quarantine: of equal ones as many as are there, those to which most was closed.

    ``place`` are columns whose equal values bring equal rows together, or none.
    """
    if quarantined is None:
        return rows
    counted = quarantined.groupBy(TEXT).agg(F.count(F.lit(1)).alias("_times"))
    order = Window.partitionBy(*place, TEXT).orderBy(F.col(CLOSED).desc_nulls_last(), F.col(FILE).desc(), F.col(ROW).desc())
    told = rows.withColumn(TEXT, text_of(columns)).join(F.broadcast(counted), TEXT, "left")
    numbered = told.withColumn("_place", F.when(F.col("_times").isNotNull(), F.row_number().over(order)))
    return numbered.where(F.col("_times").isNull() | (F.col("_place") > F.col("_times"))).drop(TEXT, "_times", "_place")


def _in_time(rows: DataFrame, spark: SparkSession, columns: Sequence[str], quarantine: str, struct: Columns) -> DataFrame:
    """``rows`` without those that were too far in the future for the run that read them; they have moved no watermark."""
    quarantined = quarantined_rows(spark, quarantine, columns, struct)
    ahead = None if quarantined is None else quarantined.where("reason = 'future_time'").select(TEXT).distinct()
    if ahead is None or not ahead.head(1):
        return rows
    return rows.withColumn(TEXT, text_of(columns)).join(F.broadcast(ahead), TEXT, "left_anti").drop(TEXT)


def _files_of(source: SourceTable, plans: Sequence[Plan]) -> _Files:
    first, through = plans[0], plans[-1].to_version
    settled = max(first.from_version, -1 if first.snapshot is None else first.snapshot)
    try:
        versions = list(source.versions(settled, source.version))
        before = {file.path for file in source.snapshot(first.from_version)} if first.from_version >= 0 else set()
    except SourceRangeGoneError:
        if first.from_version >= 0:
            raise
        versions, before = None, set()
    files = [file for file in source.snapshot(source.version) if file.path not in before]
    if versions is None:
        return _Files(files, [None] * len(files), False, ())
    brought = {file.path: version.version for version in versions if not version.changes for file in version.added}
    unread = {path for path, version in brought.items() if version > through}
    kept = [file for file in files if file.path not in unread]
    held = {file.path for file in files}
    # A file that has been rewritten is gone; its rows are in another one, among rows of other commits.
    known = all(path in held for path, version in brought.items() if version <= through)
    changed = [(version.version, version.operation) for version in versions if version.changes]
    return _Files(kept, [brought.get(file.path) for file in kept], known, changed)


def _closed_through(pipeline: Pipeline, found: _Files, plans: Sequence[Plan], greatest: Mapping[int | None, int]) -> list[int | None]:
    """For each file the instant through which windows were closed to its rows; ``greatest`` is the greatest event time of each commit."""
    if pipeline.time.watermark == "data_interval_end":
        return [None if commit is None else next(p.emitted for p in plans if commit <= p.to_version) for commit in found.commits]
    behind = pipeline.time.disorder.elapsed() + pipeline.time.lateness.elapsed()
    closed: dict[int | None, int | None] = {None: None}
    seen = greatest.get(None)
    for version in sorted({commit for commit in found.commits if commit is not None}):
        closed[version] = None if seen is None else seen - behind
        seen = max((time for time in (seen, greatest.get(version)) if time is not None), default=None)
    return [closed[commit] for commit in found.commits]
