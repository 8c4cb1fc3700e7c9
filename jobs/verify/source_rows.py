"""The rows of a source as it is now that published rows were made of, each with the instant through which windows were closed to it.

Left out are rows that are quarantined, rows that the filter leaves out, rows that no batch has read yet, and those of before the pipeline
began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.column_names import FILE, REASON, ROW
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.conditions.truths import Conditions, every_condition
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.changed_rows import queried
from windowmill.jobs.sources.columns import Columns, used_columns
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.spark.object_storage import reader_options, spark_path
from windowmill.jobs.verify.files_read import SourceFiles, Span
from windowmill.jobs.verify.sampled_rows import LocalReader
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.checkpoints.places import Runnable
    from windowmill.windowing.spec import Pipeline

#: Instant through which windows were closed to a row; null if none were. Text of a row by which it is found in the quarantine.
CLOSED, TEXT = "_closed_through", "_text"
#: Reasons of rows that are usable by themselves.
_REFUSED = ("too_late", "future_time")
_PLACE = "_place_of_file"


@dataclass(frozen=True)
class Arrival:
    """How the rows of a source arrived.

    Attributes
    ----------
    closed
        For each file the instant through which windows were closed to its rows; null if none were, or it does not matter.
    latest
        Index of file and row of a row with the greatest event time of each commit; none if only statistics were looked at.
    """

    closed: Sequence[int | None]
    latest: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class RereadRows:
    """Reads rows of the ``files`` of a source, which are usable at the instant ``now_us``.

    Attributes
    ----------
    start
        Starts Spark; its argument is whether this process can read the rows, so that Spark has few to compute.
    """

    start: Callable[[bool], SparkSession]
    runnable: Runnable
    files: SourceFiles
    now_us: int

    @cached_property
    def spark(self) -> SparkSession:
        """The session, which is started when it is first asked for."""
        return self.start(self.local.is_plain)

    @cached_property
    def local(self) -> LocalReader:
        """Reads rows in this process, as far as Arrow can."""
        return LocalReader(self.runnable, self.files, self.now_us, frozenset(self.refused))

    @property
    def source(self) -> SourceTable:
        return self.files.source

    @cached_property
    def columns(self) -> list[str]:
        """The source's columns by which results are computed; rows that agree in them are the same to a pipeline."""
        return used_columns(self.runnable.pipeline, self._struct.struct.names)

    @cached_property
    def _struct(self) -> Columns:
        return Columns.of(self.source.schema_json)

    @cached_property
    def refused(self) -> set[str]:
        """Those of the reasons ``_REFUSED`` that rows in quarantine have."""
        place = self.runnable.places.quarantine
        if not is_table(place):
            return set()
        reasons = ", ".join(f"'{reason}'" for reason in _REFUSED)
        found = queried(table_at(place), {"reason": pa.string()}, f"reason IN ({reasons})", {"reason": "reason"})
        return {reason for rows in found for reason in rows.column("reason").unique().to_pylist()}

    @cached_property
    def quarantined(self) -> DataFrame | None:
        """Texts of the rows that were usable by themselves and were not applied, with the reason; null if there are none."""
        if not self.refused:
            return None
        place = self.runnable.places.quarantine
        table = self.spark.read.format("delta").options(**reader_options(place)).load(spark_path(place))
        row = F.from_json("row", self._struct.struct)
        table = table.where(F.col("reason").isin(*_REFUSED)).select(row.alias("_row_of"), "reason")
        return table.select("_row_of.*", "reason").select(_text_of(self.columns).alias(TEXT), "reason")

    def arrival(self, windows: Sequence[Span], *, surveyed: bool) -> Arrival | None:
        """How the rows arrived as far as it matters to ``windows``, by statistics; null if these are missing, or if ``surveyed``."""
        pipeline = self.runnable.pipeline
        left_out = (
            self.runnable.source.filter is not None,
            self.source.deletion_vectors,
            pipeline.time.end is not None,
            Conditions.of(every_condition(pipeline), self._struct.in_conditions).may_fail,
            "future_time" in self.refused,
        )
        closed = None if surveyed else self.files.closed_by_statistics(windows, every_row_counts=not any(left_out))
        return None if closed is None else Arrival(closed)

    def survey(self) -> Arrival:
        """How the rows arrived; reads the event times of all files."""
        every = range(len(self.files.files))
        rows = self.read(every, [None] * len(every))
        # For each file its greatest event time, and a row that has it.
        return self.arrived({row[0]: (row[1][0], row[1][1]) for row in rows.groupBy(FILE).agg(F.max(F.struct(TIME, ROW))).collect()})

    def arrived(self, greatest: Mapping[int, tuple[int, int]]) -> Arrival:
        """How the rows arrived, given for each file its greatest event time and the index of a row that has it."""
        latest = dict[int | None, tuple[int, int, int]]()
        for file, (time, row) in greatest.items():
            commit = self.files.commits[file] if self.files.order_known else None
            latest[commit] = max(latest.get(commit, (time, file, row)), (time, file, row))
        closed = self.files.closed_through({commit: time for commit, (time, _, _) in latest.items()})
        return Arrival(closed, [(file, row) for _, file, row in latest.values()])

    def read(
        self, chosen: Sequence[int], closed: Sequence[int | None], select: Callable[[DataFrame], DataFrame] | None = None
    ) -> DataFrame:
        """The rows with an event time of the files with the indices ``chosen``.

        They have the source's columns, event time, end, index of file and of the row in it, and ``CLOSED`` by ``closed``, which has
        an item for each file. ``select`` is applied to rows of the source before they have event times, which tasks of Python give them.
        """
        files, as_of = [self.files.files[n] for n in chosen], None
        places = list(range(len(files)))
        if self.source.deletion_vectors and files:
            # Delta's reader, which applies them, reads the whole table.
            present, as_of = {file.path: n for n, file in enumerate(self.files.present)}, self.source.version
            places, files = [present[file.path] for file in files], list(self.files.present)
        reading = Reading(tuple(files), len(files), as_of)
        rows = read_rows(self.spark, self.source, reading, self.runnable, now_us=self.now_us, select=select).where(F.col(REASON).isNull())
        rows = rows if self.runnable.pipeline.time.end else rows.withColumn(UNTIL_OF, F.col(TIME))
        by_place = {
            _PLACE: pa.array(places, pa.int32()),
            FILE: pa.array(chosen, pa.int32()),
            CLOSED: pa.array([closed[n] for n in chosen], pa.int64()),
        }
        known = F.broadcast(self.spark.createDataFrame(without_empty_chunks(pa.table(by_place))))
        return self._in_time(rows.withColumnRenamed(FILE, _PLACE).join(known, _PLACE).drop(_PLACE))

    def _in_time(self, rows: DataFrame) -> DataFrame:
        """``rows`` without those that were too far in the future for the run that read them; they have moved no watermark."""
        if self.quarantined is None or "future_time" not in self.refused:
            return rows
        ahead = self.quarantined.where("reason = 'future_time'").select(TEXT).distinct()
        return rows.withColumn(TEXT, _text_of(self.columns)).join(F.broadcast(ahead), TEXT, "left_anti").drop(TEXT)

    def without_quarantined(self, rows: DataFrame, place: Sequence[str]) -> DataFrame:
        """``rows`` without those in the quarantine: of equal ones as many as are there, those to which most was closed.

        ``place`` are columns whose equal values bring equal rows together, or none.
        """
        if self.quarantined is None:
            return rows
        counted = self.quarantined.groupBy(TEXT).agg(F.count(F.lit(1)).alias("_times"))
        order = Window.partitionBy(*place, TEXT).orderBy(F.col(CLOSED).desc_nulls_last(), F.col(FILE).desc(), F.col(ROW).desc())
        counted_rows = rows.withColumn(TEXT, _text_of(self.columns)).join(F.broadcast(counted), TEXT, "left")
        numbered = counted_rows.withColumn("_place", F.when(F.col("_times").isNotNull(), F.row_number().over(order)))
        return numbered.where(F.col("_times").isNull() | (F.col("_place") > F.col("_times"))).drop(TEXT, "_times", "_place")


def _text_of(columns: Sequence[str]) -> Column:
    """The text of a row that has these columns, as quarantined rows have it."""
    return F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"})


def condition_names(pipeline: Pipeline) -> Mapping[str, str]:
    """For each condition of the spec the name of the column that says where it holds."""
    return {condition: f"_holds{n}" for n, condition in enumerate(pipeline.conditions())}


def with_conditions(rows: DataFrame, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> tuple[DataFrame, Mapping[str, str]]:
    """``rows`` with a column for each condition of the spec, whose name is given by the condition."""
    names = condition_names(pipeline)
    held = {name: F.coalesce(truth(text, types), F.lit(False)) for text, name in names.items()}
    # Over Connect no columns are none that can be added.
    return (rows.withColumns(held) if held else rows), names
