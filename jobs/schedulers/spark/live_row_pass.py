"""Computes windows over the live rows of a bounded input on Spark.

One shuffle brings the rows of a key together, and the kernels process whole Spark partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.duckdb import conditions_of
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.schedulers.spark.partitioning import alike
from windowmill.jobs.schedulers.spark.pass_output import CHUNK_ROWS, output, output_schema
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.spark.column_types import sql_type
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.partition_task import PartitionResult, PartitionTask
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import Clock

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Makes fresh rows of what a worker receives: groups, each with all rows of its keys.
FreshRows = Callable[[Iterator[pa.RecordBatch]], Iterator[Iterable[pa.RecordBatch]]]


@dataclass(frozen=True)
class LiveRows:
    """A pipeline over live rows of given columns.

    Attributes
    ----------
    types
        Arrow types of the source's columns.
    log
        Layout of the state.
    schema
        Columns of result rows.
    """

    pipeline: Pipeline
    types: Mapping[str, pa.DataType]
    log: StateLog
    schema: pa.Schema

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType], *, beside: bool = False) -> LiveRows:
        """``beside`` is as for :class:`.StateLog`. Raises ``SpecError`` if the spec does not fit columns of these ``types``."""
        log = StateLog(pipeline, types, conditions_of(pipeline), beside=beside)
        return cls(pipeline, types, log, result_schema(pipeline, types))

    def fresh(self, rows: DataFrame) -> DataFrame:
        """Rows with a usable event time, with the columns of ``log.fresh_schema``; ``rows`` have number, event and watermark at arrival."""
        own = {name: F.col(name) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)}
        own |= {label: F.col(backquoted(name)) for name, label in self.log.columns_of_fresh()}
        own |= {
            label: F.coalesce(truth(condition, self.types), F.lit(False))
            for condition, label in zip(conditions_of(self.pipeline), self.log.conditions.values(), strict=True)
        }
        chosen = rows.where(F.col(REASON).isNull())
        return chosen.select(
            *(own[field.name].cast(field.dataType).alias(field.name) for field in from_arrow_schema(self.log.fresh_schema))
        )

    def windows(self, fresh: DataFrame, clock: Clock, batch: int, partitions: int) -> DataFrame:
        """The result rows of an input that ends with ``fresh``, without late rows; columns as ``schema``."""
        sent = fresh.drop(WATERMARK_OF) if self.pipeline.time.end is not None else fresh.drop(WATERMARK_OF, UNTIL_OF)
        return self.windows_of_gathered(self._by_key(sent, partitions), clock, batch)

    def windows_of_gathered(self, gathered: DataFrame, clock: Clock, batch: int, fresh_rows: FreshRows | None = None) -> DataFrame:
        """As :meth:`windows`, of rows that are ``gathered``: a Spark partition has all rows of its keys.

        ``fresh_rows`` makes fresh rows of what a worker receives; without it, these are fresh rows already. Spark copies data to and from
        Python row by row. So constant columns stay in Spark, and columns derived from others are not sent.
        """
        same = self._same_in_every_row(batch)
        varying = pa.schema([field for field in self.schema if field.name not in same])
        task = PartitionTask(self.pipeline, self.log, varying, clock, batch, keep=False, final=True)
        rows = map_in_arrow(gathered, partial(_windows, task, fresh_rows or _together), varying)
        cells = {name: F.col(backquoted(name)) for name in varying.names} | same
        return rows.select(
            *(cells[field.name].cast(sql_type(field.dataType)).alias(field.name) for field in from_arrow_schema(self.schema))
        )

    def _same_in_every_row(self, batch: int) -> dict[str, Column]:
        """Result columns by name that have the same value in every row."""
        same = {"batch": F.lit(batch)}
        if self.pipeline.emit == "final":
            same["revision"] = F.lit(0)
        if len(self.pipeline.windows) == 1:
            same["window"] = F.lit(self.pipeline.windows[0].name)
        return same

    def _by_key(self, rows: DataFrame, partitions: int) -> DataFrame:
        keys = [alike(F.col(backquoted(name)), dtype) for name, dtype in rows.select(*map(backquoted, self.log.keys.values())).dtypes]
        return rows.repartition(partitions, *keys) if keys else rows.coalesce(1)

    def task(self, clock: Clock, batch: int, *, keep: bool, final: bool = False) -> PartitionTask:
        """The work on the keys of one partition; parameters as for :class:`.PartitionTask`."""
        return PartitionTask(self.pipeline, self.log, self.schema, clock, batch, keep=keep, final=final)

    def work(self, fresh: DataFrame, clock: Clock, batch: int, partitions: int, *, final: bool) -> DataFrame:
        """The output for an input of ``fresh`` rows alone, with columns as in :mod:`.pass_output`; parameters as of :meth:`task`."""
        schema = output_schema(self.schema, self.log.schema)
        task = self.task(clock, batch, keep=False, final=final)
        return map_in_arrow(self._by_key(fresh, partitions), partial(_work, task, schema), schema)


def _windows(task: PartitionTask, fresh_rows: FreshRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over the fresh rows of one Spark partition."""
    for group in fresh_rows(batches):
        worked = _worked(task, group)
        for rows in worked.results() if worked is not None else ():
            yield from rows.to_batches(CHUNK_ROWS)


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """The fresh rows of one Spark partition as one group."""
    yield batches


def _worked(task: PartitionTask, batches: Iterable[pa.RecordBatch]) -> PartitionResult | None:
    """The result for fresh rows in ``batches``; null if there are no rows."""
    arrived = [batch for batch in batches if batch.num_rows]
    if not arrived:
        return None
    fresh = _with_defaults(pa.Table.from_batches(arrived).combine_chunks())
    del arrived
    # Cast, because Spark sets nullability and names list items differently.
    return task.work(task.log.schema.empty_table(), fresh.select(task.log.fresh_schema.names).cast(task.log.fresh_schema))


def _with_defaults(fresh: pa.Table) -> pa.Table:
    """Fill defaults of ``fresh`` rows: events are points, and the watermark at arrival is null."""
    if UNTIL_OF not in fresh.column_names:
        fresh = fresh.append_column(UNTIL_OF, fresh.column(TIME))
    if WATERMARK_OF not in fresh.column_names:
        fresh = fresh.append_column(WATERMARK_OF, pa.nulls(fresh.num_rows, pa.int64()))
    return fresh


def _work(task: PartitionTask, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over the fresh rows of one Spark partition, in any order."""
    worked = _worked(task, batches)
    if worked is not None:
        yield from output(schema, worked.results(), worked.changes, worked.refused, applied=worked.applied, late=worked.late)
