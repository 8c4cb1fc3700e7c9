"""Windows over Parquet files that tasks read by Arrow: by slices, or over live rows that cross the shuffle as Arrow blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.jobs.ways import limits, live_row_pass
from windowmill.jobs.ways.file_scan import FileScan
from windowmill.jobs.ways.live_row_pass import LiveRows
from windowmill.jobs.ways.row_numbers import ROW_BITS
from windowmill.jobs.ways.slice_passes import cut, result_rows, windows
from windowmill.windowing.columnar import slices
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME
from windowmill.windowing.columnar.buckets import in_buckets
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.slices import SliceStage, WindowStage
from windowmill.windowing.columnar.unshuffled import combined_here
from windowmill.windowing.watermark import Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Columns of shuffled blocks: the partition that a block belongs to, and its rows as an Arrow stream.
_PARTITION, _ROWS = "partition", "rows"
_BLOCK = pa.schema([(_PARTITION, pa.int32()), (_ROWS, pa.binary())])
#: Size of a block. Spark sends a worker as many as 10,000 values at once, however long, but not 2 GiB.
_BLOCK_BYTES = 100_000


@dataclass(frozen=True)
class SlicesOfFiles:
    """The slices of the rows of ``scan``; ``stage`` tells what is lifted of a row."""

    scan: FileScan
    stage: SliceStage

    def windows(self, spark: SparkSession, stage: WindowStage, partitions: int) -> DataFrame:
        """As :func:`windowmill.jobs.ways.slice_passes.windows`; few rows take a single task without a shuffle."""
        rows, overlap = self.scan.n_rows, sum(grid.most_ends(grid.longest) for _, grid in stage.grids)
        if rows <= limits.MOST_ROWS_OF_A_TASK and rows * overlap <= limits.MOST_COUNTED_OF_A_TASK:
            return result_rows(map_in_arrow(spark.range(0, 1, 1, 1), partial(_windows, self, stage), stage.declared_schema), stage)
        return windows(
            map_in_arrow(_task_numbers(spark, self.scan), partial(_lifted, self), self.stage.packing.packed_schema), stage, partitions
        )

    def lift(self, task: int) -> Iterator[pa.Table]:
        """The packed slices of the rows that a task reads."""
        return slices.lifted(self.stage, (rows for rows, _ in self.scan.rows(task)), task << 32)


def live_windows(spark: SparkSession, scan: FileScan, live: LiveRows, clock: Clock, partitions: int) -> DataFrame:
    """As :meth:`.LiveRows.windows`, over the rows of ``scan``, which cross the shuffle as Arrow blocks."""
    cores = access_to(spark).cores()
    # A last round of tasks that leaves cores idle would take as long as the others.
    n = -(-live_row_pass.partitions(scan.n_rows, partitions) // cores) * cores if live.log.keys else 1
    blocks = map_in_arrow(_task_numbers(spark, scan), partial(_blocks, scan, live.log, n), _BLOCK)
    return live.windows_of_gathered(blocks.repartitionById(n, _PARTITION), clock, 0, _rows_of_blocks)


def _task_numbers(spark: SparkSession, scan: FileScan) -> DataFrame:
    """A row and a Spark partition for each task of ``scan``."""
    n = len(scan.tasks)
    return spark.range(0, n, 1, max(1, n))


def _lifted(files: SlicesOfFiles, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for task in _tasks(batches):
        yield from cut(files.lift(task))


def _windows(files: SlicesOfFiles, stage: WindowStage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: lifts the rows of all tasks, and combines the slices as it is done after a shuffle."""
    for _ in batches:
        parts = [table for task in range(len(files.scan.tasks)) for table in files.lift(task)]
        for combined in combined_here(stage, parts):
            for table in combined.windows:
                yield from table.to_batches(slices.BATCH_ROWS)


def _blocks(scan: FileScan, log: StateLog, n_partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the fresh rows of tasks, in blocks for each partition and batch that is read."""
    for task in _tasks(batches):
        for rows, places in scan.rows(task):
            cells = {label: rows.column(name) for name, label in log.columns_of_fresh()}
            cells |= {NUMBER_OF: pa.array((task << ROW_BITS) + places), TIME: rows.column(TIME)}
            for number, bucket in in_buckets(pa.table(cells), list(log.keys.values()), n_partitions):
                n_rows = max(1, bucket.num_rows * _BLOCK_BYTES // bucket.nbytes)
                for begin in range(0, bucket.num_rows, n_rows):
                    block = _streamed(bucket.slice(begin, n_rows))
                    yield pa.record_batch([pa.array([number], pa.int32()), pa.array([block], pa.binary())], schema=_BLOCK)


def _tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of tasks that a worker receives."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _streamed(block: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as stream:
        stream.write_table(block)
    return memoryview(sink.getvalue())


def _rows_of_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the rows of a partition's blocks in order of arrival."""
    tables = [pa.ipc.open_stream(block.as_buffer()).read_all() for batch in batches for block in batch.column(_ROWS)]
    # A task's blocks are in order, and its numbers greater than those of all tasks before it.
    for table in sorted(tables, key=lambda table: table.column(NUMBER_OF)[0].as_py()):
        yield from table.to_batches()
