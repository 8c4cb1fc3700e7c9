"""A pipeline's input as ranges of Parquet files that tasks read by Arrow, not through the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegralType, TimestampType

from windowmill.jobs.conditions.spark import every_condition
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.parquet_parts import Tasks, parts_of, read
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.event_times import event_times
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.input import Input


@dataclass(frozen=True)
class FileScan:
    """A pipeline's input in Parquet files; small and picklable.

    Attributes
    ----------
    columns
        Columns that are read beside the time column.
    latest
        Greatest accepted event time; null for no bound.
    """

    pipeline: Pipeline
    columns: Sequence[str]
    latest: int | None
    tasks: Tasks

    @classmethod
    def of(cls, df: DataFrame, batch: Input, columns: Sequence[str], latest: int | None) -> FileScan | None:
        """The scan that ``df`` consists of; ``None`` if only Spark can read it, or evaluate the spec's conditions and times."""
        time = batch.pipeline.time.column
        if every_condition(batch.pipeline) or not isinstance(batch.columns.type_of(time), IntegralType | TimestampType):
            return None
        needed = tuple(dict.fromkeys([time, *columns]))
        ranges = None if TIME in needed else access_to(df.sparkSession).file_ranges(df)
        tasks = None if ranges is None else parts_of(ranges, {name: batch.types[name] for name in needed})
        return None if tasks is None else cls(batch.pipeline, tuple(dict.fromkeys(columns)), latest, tasks)

    @property
    def n_rows(self) -> int:
        """Number of rows in the files, usable or not."""
        return sum(part.rows for task in self.tasks for part in task)

    @property
    def n_bytes(self) -> int:
        """Number of bytes to be read of the files, before compression."""
        return sum(part.bytes for task in self.tasks for part in task)

    def rows(self, task: int) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """The usable rows of a task with their event times in the column ``TIME``, and their places among all rows of the task."""
        time, before = self.pipeline.time.column, 0
        for batch in read(self.tasks[task], list(dict.fromkeys([time, *self.columns]))):
            times, usable = event_times(self.pipeline, batch.column(time), self.latest)
            timed = batch.select(list(self.columns)).append_column(TIME, pa.array(times))
            places = np.arange(before, before + batch.num_rows)
            before += batch.num_rows
            yield (timed, places) if usable.all() else (timed.filter(pa.array(usable)), places[usable])
