"""Windows over plain files that tasks read by Arrow: by slices, or over rows brought together by their keys.

A shuffle moves rows or slices to the task of their key. Where few tasks run at a time it is cheaper if each reads all rows, and leaves out
those of other tasks' keys. Else slices cross the shuffle packed, and rows as Arrow blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.layouts import limits
from windowmill.jobs.schedulers.files.rows import FileRows, numbers_in
from windowmill.jobs.schedulers.files.scan import FileScan
from windowmill.jobs.schedulers.spark.partitioning import partitions_for
from windowmill.jobs.sources.file_parts import number_of_bytes, number_of_rows
from windowmill.jobs.spark.access import access_to, map_in_arrow, mapped
from windowmill.windowing.columnar.added_columns import NUMBER_OF
from windowmill.windowing.columnar.buckets import Share, in_buckets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.schedulers.spark.pass_output import GroupsOf

#: Columns of shuffled blocks: the partition that a block belongs to, whether its rows are stored ones, and its rows as an Arrow stream.
_PARTITION, _STORED, _ROWS = "partition", "stored", "rows"
_BLOCK = pa.schema([(_PARTITION, pa.int32()), (_STORED, pa.bool_()), (_ROWS, pa.binary())])
#: Size of a block. Spark sends a worker as many as 10,000 values at once, however long, but not 2 GiB.
_BLOCK_BYTES = 100_000


@dataclass(frozen=True)
class RowsByKey:
    """Rows in files that are brought together by their keys; picklable.

    Attributes
    ----------
    rows
        Gives the usable rows of the task of a number.
    schema, stored
        Columns of these rows, and of the stored rows that they meet.
    keys
        For each key column of these rows, that of stored ones.
    """

    files: FileScan | FileRows
    rows: Callable[[int], Iterable[pa.Table]]
    schema: pa.Schema
    stored: pa.Schema
    keys: Mapping[str, str]

    def gathered(self, spark: SparkSession, stored: DataFrame | None, partitions: int) -> tuple[DataFrame, GroupsOf]:
        """A DataFrame of which each partition has all rows of its keys, and what makes groups of new and ``stored`` rows of one."""
        n = self.partitions(spark, partitions)
        readers = min(n, readers_of(spark, self.files, len(self.schema), limits.MAX_READINGS)) if stored is None else 0
        if readers:
            return numbers_of_tasks(spark, readers), partial(_groups_of_share, self, n, readers)
        blocks = map_in_arrow(numbers_of_tasks(spark, len(self.files.tasks)), partial(_blocks, self, n), _BLOCK)
        if stored is not None:
            blocks = blocks.unionByName(mapped(stored, partial(_stored_blocks, self, n), _BLOCK))
        return blocks.repartitionById(n, _PARTITION), partial(_groups_of_blocks, self)

    def partitions(self, spark: SparkSession, fewest: int) -> int:
        """Number of partitions of the keys; a last round of tasks that leaves cores idle would take as long as the others."""
        cores = access_to(spark).cores()
        return -(-partitions_for(number_of_rows(self.files.tasks), fewest) // cores) * cores if self.keys else 1


def readers_of(spark: SparkSession, files: FileScan | FileRows, width: int, most: int | None = None) -> int:
    """Number of tasks in a plan in which each task scans all of ``files`` for its share of the keys; 0 to shuffle.

    ``width`` is how many numbers a task keeps of a row of its keys. There are at most ``most`` tasks; by default one a core.
    """
    cores = access_to(spark).cores()
    numbers, size = number_of_rows(files.tasks) * width, number_of_bytes(files.tasks)
    readers = cores * max(1, -(-numbers // limits.MAX_SHARED_NUMBERS), -(-size // limits.MAX_SHARED_BYTES))
    return readers if cores <= limits.MAX_READERS and readers <= max(cores, most or 0) else 0


def numbers_of_tasks(spark: SparkSession, n: int) -> DataFrame:
    """The numbers from 0 to ``n`` − 1, each in a Spark partition of its own."""
    return spark.range(0, n, 1, max(1, n))


def _groups_of_share(
    by_key: RowsByKey, n_buckets: int, readers: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Runs in an executor: the rows of its share of the keys, bucket by bucket and in order of arrival."""
    for number in numbers_in(batches):
        share = Share(number * n_buckets // readers, (number + 1) * n_buckets // readers, n_buckets)
        parts: dict[int, list[pa.Table]] = {}
        for task in range(len(by_key.files.tasks)):
            for rows in by_key.rows(task):
                for bucket, own in in_buckets(rows, list(by_key.keys), share):
                    parts.setdefault(bucket, []).append(own)
        for bucket in sorted(parts):
            yield _together(parts.pop(bucket), by_key.schema), by_key.stored.empty_table()


def _blocks(by_key: RowsByKey, n_partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the rows of tasks, in blocks for each partition and batch that is read."""
    for task in numbers_in(batches):
        for rows in by_key.rows(task):
            yield from _cut(rows, list(by_key.keys), n_partitions, stored=False)


def _stored_blocks(by_key: RowsByKey, n_partitions: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: stored rows in blocks."""
    for batch in batches:
        # Spark sets nullability and the zone of instants.
        rows = pa.Table.from_batches([batch]).select(by_key.stored.names).cast(by_key.stored)
        yield from _cut(rows, list(by_key.keys.values()), n_partitions, stored=True)


def _cut(rows: pa.Table, keys: Sequence[str], n_partitions: int, *, stored: bool) -> Iterator[pa.RecordBatch]:
    for number, bucket in in_buckets(rows, keys, Share.every(n_partitions)):
        n_rows = max(1, bucket.num_rows * _BLOCK_BYTES // max(1, bucket.nbytes))
        for begin in range(0, bucket.num_rows, n_rows):
            block = _streamed(bucket.slice(begin, n_rows))
            yield pa.record_batch([pa.array([number], pa.int32()), pa.array([stored]), pa.array([block], pa.binary())], schema=_BLOCK)


def _streamed(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return memoryview(sink.getvalue())


def _groups_of_blocks(by_key: RowsByKey, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Runs in an executor: the rows of all blocks of a partition as one group, the new ones in order of arrival."""
    found: dict[bool, list[pa.Table]] = {False: [], True: []}
    for batch in batches:
        for stored, block in zip(batch.column(_STORED).to_pylist(), batch.column(_ROWS), strict=True):
            found[stored].append(pa.ipc.open_stream(block.as_buffer()).read_all())
    if any(found.values()):
        # A task's blocks are in order, and its numbers greater than those of all tasks before it.
        new = sorted(found[False], key=lambda rows: rows.column(NUMBER_OF)[0].as_py())
        yield _together(new, by_key.schema), _together(found[True], by_key.stored)


def _together(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    return pa.concat_tables(tables).combine_chunks() if tables else schema.empty_table()
