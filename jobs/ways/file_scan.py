"""A pipeline's input as ranges of Parquet files that tasks read by Arrow, not through the JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.types import IntegralType, TimestampType

from windowmill.jobs.conditions.duckdb import Conditions, columns_of, conditions_of
from windowmill.jobs.conditions.spark import every_condition
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.parquet_parts import Tasks, parts_of, read
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.event_times import event_times
from windowmill.windowing.errors import SpecError, UnsupportedError
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.lift import condition_column
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
        Columns of the source that :meth:`rows` gives.
    read_columns
        Columns that are read of the files: also those of event time and conditions.
    latest
        Greatest accepted event time; null for no bound.
    conditions
        All conditions of the spec, including the filter.
    """

    pipeline: Pipeline
    columns: Sequence[str]
    read_columns: Sequence[str]
    latest: int | None
    conditions: Conditions
    tasks: Tasks

    @classmethod
    def of(cls, df: DataFrame, batch: Input, columns: Sequence[str], latest: int | None) -> FileScan | None:
        """The scan that ``df`` consists of; ``None`` if only Spark can read it, or evaluate the spec's conditions and times."""
        time = batch.pipeline.time.column
        conditions = _evaluated_here(batch)
        if conditions is None or not isinstance(batch.columns.type_of(time), IntegralType | TimestampType):
            return None
        needed = tuple(dict.fromkeys([time, *columns, *chain(*map(columns_of, conditions.terms))]))
        ranges = None if TIME in needed else access_to(df.sparkSession).file_ranges(df)
        # Spark does not tell upper from lower case in a condition.
        if ranges is None or not batch.types.keys() >= set(needed):
            return None
        tasks = parts_of(ranges, {name: batch.types[name] for name in needed})
        return None if tasks is None else cls(batch.pipeline, tuple(dict.fromkeys(columns)), needed, latest, conditions, tasks)

    @property
    def n_rows(self) -> int:
        """Number of rows in the files, usable or not."""
        return sum(part.rows for task in self.tasks for part in task)

    @property
    def n_bytes(self) -> int:
        """Number of bytes to be read of the files, before compression."""
        return sum(part.bytes for task in self.tasks for part in task)

    def rows(self, task: int) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """The usable rows of a task, and their places among all rows of the task.

        Beside ``columns`` they have their event times in the column ``TIME``, and for each condition of the aggregates and windows its
        truth in a :func:`.condition_column`.
        """
        time, before = self.pipeline.time.column, 0
        for batch in read(self.tasks[task], self.read_columns):
            times, usable = event_times(self.pipeline, batch.column(time), self.latest)
            timed = batch.select(list(self.columns)).append_column(TIME, pa.array(times))
            truths = self.conditions.over(pa.Table.from_batches([batch]))
            for condition in conditions_of(self.pipeline):
                timed = timed.append_column(condition_column(condition), truths[condition].holds)
            for truth in truths.values():
                usable &= ~np.asarray(truth.failed)
            places = np.arange(before, before + batch.num_rows)
            before += batch.num_rows
            yield (timed, places) if usable.all() else (timed.filter(pa.array(usable)), places[usable])


def _evaluated_here(batch: Input) -> Conditions | None:
    """All conditions of the spec; ``None`` if only Spark can evaluate them on every row."""
    try:
        conditions = Conditions.of(every_condition(batch.pipeline), batch.types)
    except (SpecError, UnsupportedError):  # Spark evaluates them, or says what is wrong
        return None
    return None if conditions.depend_on_texts else conditions
