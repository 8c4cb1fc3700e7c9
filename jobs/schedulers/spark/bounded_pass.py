"""A bounded input on Spark: one shuffle brings the rows of a key together, and its tasks compute all parts of the pipeline over them.

The input is one batch that continues from no state and leaves none. So a task computes the keys of its partition as one process computes a
small batch, over an empty state in memory, by the parts that ``windowmill explain`` names.

No state needs the partials that a part makes for it. So windows over positions are combined from rows by two stacks, and windows on grids
over events that last from the events themselves. Windows on grids over points, by themselves, take the packed pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.state.memory import MemoryState
from windowmill.jobs.layouts.choose import parts_of
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import usable
from windowmill.jobs.schedulers.files.passes import RowsByKey
from windowmill.jobs.schedulers.local.new_rows import NewRows, input_names
from windowmill.jobs.schedulers.local.parts import load, refused_by_all
from windowmill.jobs.schedulers.spark.numbered_rows import inputs
from windowmill.jobs.schedulers.spark.partitioning import alike
from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.jobs.spark.access import mapped
from windowmill.jobs.spark.column_types import sql_type
from windowmill.windowing.columnar.added_columns import NUMBER_OF, RETRACTED, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.results import with_retracted
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.jobs.layouts.base import Part
    from windowmill.jobs.schedulers.files.scan import FileScan
    from windowmill.jobs.sources.event_times import EventTimes
    from windowmill.windowing.columnar.slices import Reading

#: Columns of the output where refused rows are told: a result row, or the number of a row that came too late for every window.
RESULT, REFUSED = "result", "refused"
#: Greatest number of rows in an Arrow batch that a worker returns.
_CHUNK_ROWS = 100_000
#: Makes groups of what a worker receives, each with all rows of its keys.
Groups = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.Table]]


@dataclass(frozen=True, kw_only=True)
class _TaskInput(Input):
    """The keys of a bounded input that a task computes."""

    @property
    def has_all_keys(self) -> bool:
        return False

    @property
    def is_bounded(self) -> bool:
        return True


@dataclass(frozen=True)
class BoundedPass:
    """A bounded input, and what is read of its rows; picklable.

    Attributes
    ----------
    seen
        Greatest event time of the input; null if it makes no difference.
    readings
        What each part reads of a row.
    """

    batch: Input
    seen: int | None
    readings: Sequence[Reading]

    @classmethod
    def of(cls, batch: Input, seen: int | None = None) -> Self:
        """The pass over the rows of ``batch``, of which only the pipeline, the types, the end of the input and the latest time count."""
        own = _TaskInput(pipeline=batch.pipeline, types=batch.types, ended=batch.ended, latest=batch.latest)
        return cls(own, seen, [part.reading for part in parts_of(own, MemoryState())])

    def results(self, rows: DataFrame, partitions: int) -> DataFrame:
        """The result rows of ``rows``, none of which is late; they have what event times are made of, and numbers."""
        times = self.batch.times
        sent = rows.select(NUMBER_OF, *inputs(rows, *self.readings, also=times.columns))
        return self._without_constants(self._by_key(sent, partitions), partial(_usable, times))

    def results_of_files(self, spark: SparkSession, scan: FileScan, partitions: int) -> DataFrame:
        """As :meth:`results`, of the rows of ``scan``."""
        gathered, groups = self.rows_by_key(scan).gathered(spark, None, partitions)
        return self._without_constants(gathered, partial(_new_rows, groups))

    def rows_by_key(self, scan: FileScan) -> RowsByKey:
        """What the parts read of the rows of ``scan``, to be brought together by their keys."""
        types = {name: self.batch.types.get(name, pa.bool_()) for name in input_names(*self.readings)}
        schema = pa.schema([*types.items(), (TIME, pa.int64()), (NUMBER_OF, pa.int64())])
        keys = {key: key for key in self.batch.pipeline.keys}
        return RowsByKey(scan, partial(_rows_of_scan, scan, schema), schema, pa.schema([]), keys)

    def outcome(self, rows: DataFrame, partitions: int) -> DataFrame:
        """As :meth:`results`, with the numbers of refused rows; ``rows`` have event times, reasons and the watermark at their arrival."""
        schema = pa.schema([(RESULT, pa.struct(list(self._schema))), (REFUSED, pa.int64())])
        names = [TIME, NUMBER_OF, WATERMARK_OF, *([UNTIL_OF] if self.batch.pipeline.time.end is not None else [])]
        sent = rows.where(F.col(REASON).isNull()).select(*inputs(rows, *self.readings), *names)
        return mapped(self._by_key(sent, partitions), partial(_outcome, self, schema), schema)

    def _by_key(self, rows: DataFrame, partitions: int) -> DataFrame:
        keys = [backquoted(key) for key in self.batch.pipeline.keys]
        types = dict(rows.dtypes)
        columns = [alike(F.col(key), types[name]) for key, name in zip(keys, self.batch.pipeline.keys, strict=True)]
        return rows.repartition(partitions, *columns) if keys else rows.coalesce(1)

    def _without_constants(self, gathered: DataFrame, groups: Groups) -> DataFrame:
        """The result rows of rows that are ``gathered``: a Spark partition has all rows of its keys.

        Spark copies data from Python row by row, so columns that are the same in every row are added in Spark.
        """
        schema, same = self._schema, self._same_in_every_row()
        varying = pa.schema([field for field in schema if field.name not in same])
        found = mapped(gathered, partial(_results, self, varying, groups), varying)
        cells = {name: F.col(backquoted(name)) for name in varying.names} | same
        return found.select(*(cells[field.name].cast(sql_type(field.dataType)).alias(field.name) for field in from_arrow_schema(schema)))

    @property
    def _schema(self) -> pa.Schema:
        """Columns of a result row: those of a sink, with ``retracted`` where late rows bring revisions."""
        schema = self.batch.sink_schema
        return schema.append(pa.field(RETRACTED, pa.bool_())) if self.batch.revises else schema

    def _same_in_every_row(self) -> dict[str, Column]:
        """Result columns by name that have the same value in every row."""
        pipeline = self.batch.pipeline
        same = {"batch": F.lit(self.batch.batch)}
        if pipeline.emit == "final":
            same["revision"] = F.lit(0)
        if len(pipeline.windows) == 1:
            same["window"] = F.lit(pipeline.windows[0].name)
        return same


def results_in(outcome: DataFrame) -> DataFrame:
    """The result rows in an :meth:`~BoundedPass.outcome`."""
    return outcome.where(F.col(RESULT).isNotNull()).select(f"{RESULT}.*")


def _results(own: BoundedPass, schema: pa.Schema, groups: Groups, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    parts = parts_of(own.batch, MemoryState())
    for rows in groups(batches):
        for found in computed(own, parts, NewRows(complete(rows)), []):
            yield from found.select(schema.names).to_batches(_CHUNK_ROWS)


def _outcome(own: BoundedPass, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    parts = parts_of(own.batch, MemoryState())
    for rows in _together(batches):
        refused: list[np.ndarray] = []
        new = NewRows(complete(rows))
        for found in computed(own, parts, new, refused):
            for batch in found.to_batches(_CHUNK_ROWS):
                cells = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(RESULT).type))
                yield pa.record_batch([cells, pa.nulls(len(cells), pa.int64())], schema=schema)
        grids = [grid for part in parts for grid in part.grids]
        numbers = pa.array(refused_by_all(new, refused, grids, own.batch))
        yield pa.record_batch([pa.nulls(len(numbers), schema.field(RESULT).type), numbers], schema=schema)


def computed(own: BoundedPass, parts: Sequence[Part], new: NewRows, refused: list[np.ndarray]) -> Iterator[pa.Table]:
    """The result rows of ``new`` rows, table by table; appends the numbers of the rows that each part ``refused``, but those on grids."""
    emission = own.batch.emission(own.seen)
    for part in parts:
        loaded, numbers = load(part, new, emission, MemoryState()), [np.empty(0, np.int64)]
        for done in loaded.advance(loaded.rows, loaded.stored):
            yield from (with_retracted(rows) if own.batch.revises else rows for rows in done.results if rows.num_rows)
            numbers.append(done.refused)
        if not part.grids:
            refused.append(np.concatenate(numbers))


def complete(rows: pa.Table) -> pa.Table:
    """``rows`` in order of arrival, with the columns of new rows."""
    number = rows.column(NUMBER_OF).to_numpy()
    if (number[1:] < number[:-1]).any():
        rows = rows.take(pa.array(np.argsort(number, kind="stable")))
    n = rows.num_rows
    own = {FILE: pa.repeat(pa.scalar(0, pa.int32()), n), ROW: pa.array(np.arange(n)), REASON: pa.nulls(n, pa.string())}
    own |= {WATERMARK_OF: pa.nulls(n, pa.int64())}
    for name, column in own.items():
        rows = rows if name in rows.column_names else rows.append_column(name, column)
    return rows


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of one Spark partition as one group; none if it has no rows."""
    arrived = [batch for batch in batches if batch.num_rows]
    if arrived:
        yield pa.Table.from_batches(arrived).combine_chunks()


def _usable(times: EventTimes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Runs in an executor: the usable rows of one Spark partition as one group, with their event times."""
    for rows in _together(batches):
        yield usable(times.of(rows)).drop_columns([REASON])


def _new_rows(
    groups: Callable[[Iterator[pa.RecordBatch]], Iterator[tuple[pa.Table, pa.Table]]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.Table]:
    """Runs in an executor: the new rows of each group."""
    return (new for new, _ in groups(batches))


def _rows_of_scan(scan: FileScan, schema: pa.Schema, task: int) -> Iterator[pa.Table]:
    """The rows of a task with the columns of ``schema``, a table for each batch that is read."""
    for rows, places in scan.rows(task):
        numbers = pa.array((task << COMMIT_SHIFT) + places)
        yield pa.table([numbers if name == NUMBER_OF else rows.column(name) for name in schema.names], names=schema.names)
