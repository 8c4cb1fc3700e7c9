"""Windows over Parquet files that tasks read by Arrow: by slices, or over live rows.

A shuffle moves rows or slices to the task of their key. Where few tasks run at a time it is cheaper if each reads all rows, and leaves out
those of other tasks' keys. Else slices cross the shuffle packed, and live rows as Arrow blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.file_scan import FileScan
from windowmill.jobs.ways.live_row_pass import LiveRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.slice_passes import cut, result_rows, windows
from windowmill.windowing.columnar import slices
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME
from windowmill.windowing.columnar.buckets import Share, in_buckets
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.slice_windows import combined_here
from windowmill.windowing.columnar.slices import SliceStage, WindowStage
from windowmill.windowing.watermark import COMMIT_SHIFT, Clock

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
        """As :func:`windowmill.jobs.ways.slice_passes.windows`."""
        rows, overlap = self.scan.n_rows, sum(grid.most_ends(grid.longest) for _, grid in stage.grids)
        few = rows <= limits.MOST_ROWS_OF_A_TASK and rows * overlap <= limits.MOST_COUNTED_OF_A_TASK
        layout = self.stage.layout
        # Partials that are Python objects may be of any size.
        shares = self.stage.keys and not layout.objects
        readers = 1 if few else _readers(spark, self.scan, sum(layout.widths())) if shares else 0
        if readers:
            shared = map_in_arrow(_numbers(spark, readers), partial(_windows, self, stage, readers), stage.declared_schema)
            return result_rows(shared, stage)
        packed = map_in_arrow(_numbers(spark, len(self.scan.tasks)), partial(_lifted, self), self.stage.packing.packed_schema)
        return windows(packed, stage, partitions)

    def rows(self, task: int) -> Iterator[pa.RecordBatch]:
        """The usable rows that a task reads."""
        return (rows for rows, _ in self.scan.rows(task))


def live_windows(spark: SparkSession, scan: FileScan, live: LiveRows, clock: Clock, partitions: int) -> DataFrame:
    """As :meth:`.LiveRows.windows`, over the rows of ``scan``."""
    cores = access_to(spark).cores()
    # A last round of tasks that leaves cores idle would take as long as the others.
    n = -(-partitions_for(scan.n_rows, partitions) // cores) * cores if live.log.keys else 1
    if readers := min(n, _readers(spark, scan, len(live.log.fresh_schema), limits.MOST_READINGS)):
        return live.windows_of_gathered(_numbers(spark, readers), clock, 0, partial(_shared_rows, scan, live.log, n, readers))
    blocks = map_in_arrow(_numbers(spark, len(scan.tasks)), partial(_blocks, scan, live.log, n), _BLOCK)
    return live.windows_of_gathered(blocks.repartitionById(n, _PARTITION), clock, 0, _rows_of_blocks)


def _readers(spark: SparkSession, scan: FileScan, width: int, most: int | None = None) -> int:
    """Number of tasks that each read all rows of ``scan`` to share out the keys; 0 if a shuffle is cheaper, or takes less memory.

    ``width`` is how many numbers a task keeps of a row of its keys. There are at most ``most`` tasks; by default one a core.
    """
    cores = access_to(spark).cores()
    numbers, size = scan.n_rows * width, scan.n_bytes
    readers = cores * max(1, -(-numbers // limits.MOST_SHARED_NUMBERS), -(-size // limits.MOST_SHARED_BYTES))
    return readers if cores <= limits.MOST_READERS and readers <= max(cores, most or 0) else 0


def _numbers(spark: SparkSession, n: int) -> DataFrame:
    """Rows of the numbers from 0 to ``n`` − 1, each in a Spark partition of its own."""
    return spark.range(0, n, 1, max(1, n))


def _lifted(files: SlicesOfFiles, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for task in _tasks(batches):
        yield from cut(slices.lifted(files.stage, files.rows(task), task << 32))


def _windows(files: SlicesOfFiles, stage: WindowStage, readers: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: lifts the rows of its share of the keys, and combines their slices as it is done after a shuffle."""
    for number in _tasks(batches):
        share = Share(number, number + 1, readers)
        parts = [part for task in range(len(files.scan.tasks)) for part in slices.sliced(files.stage, files.rows(task), share)]
        for combined in combined_here(stage, parts):
            for table in combined.windows:
                yield from table.to_batches(slices.BATCH_ROWS)


def _shared_rows(
    scan: FileScan, log: StateLog, n_buckets: int, readers: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[Iterable[pa.RecordBatch]]:
    """Runs in an executor: the fresh rows of its share of the keys, bucket by bucket and in order of arrival."""
    for number in _tasks(batches):
        share = Share(number * n_buckets // readers, (number + 1) * n_buckets // readers, n_buckets)
        parts: dict[int, list[pa.RecordBatch]] = {}
        for task in range(len(scan.tasks)):
            for rows in _fresh_rows(scan, log, task):
                for bucket, own in in_buckets(rows, list(log.keys.values()), share):
                    parts.setdefault(bucket, []).extend(own.to_batches())
        for bucket in sorted(parts):
            yield parts.pop(bucket)


def _blocks(scan: FileScan, log: StateLog, n_partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the fresh rows of tasks, in blocks for each partition and batch that is read."""
    for task in _tasks(batches):
        for rows in _fresh_rows(scan, log, task):
            for number, bucket in in_buckets(rows, list(log.keys.values()), Share.every(n_partitions)):
                n_rows = max(1, bucket.num_rows * _BLOCK_BYTES // bucket.nbytes)
                for begin in range(0, bucket.num_rows, n_rows):
                    block = _streamed(bucket.slice(begin, n_rows))
                    yield pa.record_batch([pa.array([number], pa.int32()), pa.array([block], pa.binary())], schema=_BLOCK)


def _fresh_rows(scan: FileScan, log: StateLog, task: int) -> Iterator[pa.Table]:
    """The rows of a task with the columns of ``log`` that fresh rows fill, a table for each batch that is read."""
    for rows, places in scan.rows(task):
        cells = {label: rows.column(name) for name, label in (*log.columns_of_fresh(), *log.conditions.items())}
        yield pa.table(cells | {NUMBER_OF: pa.array((task << COMMIT_SHIFT) + places), TIME: rows.column(TIME)})


def _tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of tasks that a worker receives."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _streamed(block: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, block.schema) as stream:
        stream.write_table(block)
    return memoryview(sink.getvalue())


def _rows_of_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[Iterable[pa.RecordBatch]]:
    """Runs in an executor: the rows of a partition's blocks in order of arrival."""
    tables = [pa.ipc.open_stream(block.as_buffer()).read_all() for batch in batches for block in batch.column(_ROWS)]
    # A task's blocks are in order, and its numbers greater than those of all tasks before it.
    in_order = sorted(tables, key=lambda table: table.column(NUMBER_OF)[0].as_py())
    yield [batch for table in in_order for batch in table.to_batches()]
