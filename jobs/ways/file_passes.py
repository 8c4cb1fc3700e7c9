"""Slices and windows of Parquet files that tasks read by Arrow, not through the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import IntegralType, TimestampType

from windowmill.jobs.conditions.spark import every_condition
from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.jobs.spark.parquet_parts import Tasks, parts_of, read
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.slice_passes import cut, result_rows, windows
from windowmill.windowing.columnar import slices
from windowmill.windowing.columnar.event_times import event_times
from windowmill.windowing.columnar.slices import TIME, SliceStage, WindowStage
from windowmill.windowing.columnar.unshuffled import combined_here
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.ways.input import Input


@dataclass(frozen=True)
class FileScan:
    """A pipeline's input as ranges of Parquet files for tasks to read; small and picklable.

    Attributes
    ----------
    stage
        What is read of a row, and lifted.
    latest
        Greatest accepted event time; null for no bound.
    """

    pipeline: Pipeline
    stage: SliceStage
    latest: int | None
    tasks: Tasks

    @classmethod
    def of(cls, df: DataFrame, batch: Input, stage: SliceStage, latest: int | None) -> FileScan | None:
        """The scan that ``df`` consists of; ``None`` if only Spark can read it, or evaluate the spec's conditions and times."""
        pipeline, columns = batch.pipeline, batch.columns
        if every_condition(pipeline) or not isinstance(columns.type_of(pipeline.time.column), IntegralType | TimestampType):
            return None
        scan = cls(pipeline, stage, latest, ())
        ranges = None if TIME in scan.columns else access_to(df.sparkSession).file_ranges(df)
        tasks = None if ranges is None else parts_of(ranges, {name: batch.types[name] for name in scan.columns})
        return None if tasks is None else replace(scan, tasks=tasks)

    @cached_property
    def columns(self) -> list[str]:
        """Columns that are read."""
        return list(dict.fromkeys([self.pipeline.time.column, *self.stage.keys, *self.stage.ties, *self.stage.source_columns]))

    def windows(self, spark: SparkSession, stage: WindowStage, partitions: int) -> DataFrame:
        """As :func:`windowmill.jobs.ways.slice_passes.windows`; few rows take a single task without a shuffle."""
        rows = sum(part.rows for task in self.tasks for part in task)
        overlap = sum(grid.most_ends(grid.longest) for _, grid in stage.grids)
        if rows <= limits.MOST_ROWS_OF_A_TASK and rows * overlap <= limits.MOST_COUNTED_OF_A_TASK:
            return result_rows(map_in_arrow(spark.range(0, 1, 1, 1), partial(_windows, self, stage), stage.declared_schema), stage)
        n = max(1, len(self.tasks))
        return windows(map_in_arrow(spark.range(0, n, 1, n), partial(_lifted, self), self.stage.packing.packed_schema), stage, partitions)

    def lift(self, number: int) -> Iterator[pa.Table]:
        """The packed slices of the rows that the task ``number`` reads."""
        return slices.lifted(self.stage, self._rows(number), number << 32)

    def _rows(self, number: int) -> Iterator[pa.RecordBatch]:
        for batch in read(self.tasks[number], self.columns):
            times, usable = event_times(self.pipeline, batch.column(self.pipeline.time.column), self.latest)
            timed = batch.append_column(TIME, pa.array(times))
            yield timed if usable.all() else timed.filter(pa.array(usable))


def _lifted(scan: FileScan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor; each row is the number of a task."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from cut(scan.lift(number))


def _windows(scan: FileScan, stage: WindowStage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: lifts the rows of all tasks, and combines the slices as it is done after a shuffle."""
    for _ in batches:
        parts = [table for number in range(len(scan.tasks)) for table in scan.lift(number)]
        for combined in combined_here(stage, parts):
            for table in combined.windows:
                yield from table.to_batches(slices.BATCH_ROWS)
