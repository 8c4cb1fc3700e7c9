"""The exchange of a batch on Spark: for each key, brings map's output and the stored rows to the one task that reduces them.

Rows cross the shuffle in *blocks*, Arrow record batches of one partition each, which Spark copies whole. Where few tasks run at a time, it
is cheaper if each task reads all rows and keeps those of its own keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.base import Lifted, MapReduce, written
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.restored import restored_kinds
from windowmill.jobs.layouts.returning import RETURNED, encode_result
from windowmill.jobs.schedulers.spark.partitioning import numbers_in, numbers_of_tasks, partitions_for
from windowmill.jobs.schedulers.spark.task_output import OutputWriter, Targets, output_of
from windowmill.jobs.sources.file_parts import Tasks, number_of_bytes, number_of_rows
from windowmill.jobs.spark.access import access_to, map_in_arrow, mapped
from windowmill.windowing.columnar.buckets import Share, in_buckets
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Columns of a block: its partition, the bucket of its keys, and its rank in order of arrival; whether its rows are stored ones, these rows
#: as an Arrow stream, and the counts of :class:`.Lifted`.
_PARTITION, _BUCKET, _RANK, _STORED, _ROWS, _COUNTS = "partition", "bucket", "rank", "stored", "rows", "counts"
_BLOCK = pa.schema(
    [
        *((name, pa.int32()) for name in (_PARTITION, _BUCKET)),
        (_RANK, pa.int64()),
        (_STORED, pa.bool_()),
        (_ROWS, pa.binary()),
        (_COUNTS, pa.list_(pa.int64())),
    ]
)
#: Size of a block. Spark sends a worker as many as 10,000 values at once, however long, but not 2 GiB.
_BLOCK_BYTES = 100_000
#: Least number of buckets of all partitions, and the bytes of whole buckets that a task reduces together.
_BUCKETS, _GROUP_BYTES = 64, 1 << 26

#: Input of a reduce: map's output for some keys in order of arrival, and the stored rows.
Group = tuple[Sequence[Lifted], pa.Table]
#: Makes groups of the batches that a worker receives; none if it receives nothing.
GroupsOf = Callable[[Iterator[pa.RecordBatch]], Iterator[Group]]


@dataclass(frozen=True)
class RowsOfFiles:
    """New rows in files; ``tables`` gives the judged rows of the task of a number, in order of arrival; it runs in an executor."""

    tasks: Tasks
    tables: Callable[[int], Iterable[pa.Table]]


@dataclass(frozen=True)
class RowsOfFrame:
    """About ``n_rows`` new rows that Spark reads; ``tables`` judges those that a worker receives; it runs in an executor."""

    frame: DataFrame
    tables: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.Table]]
    n_rows: int


@dataclass(frozen=True)
class Exchange:
    """New and stored rows of a part, either of which may be null, and the map and reduce over them.

    Attributes
    ----------
    n_stored
        Upper bound on the number of stored rows; 0 if few of those that are stored are read.
    fewest
        The least number of partitions of a shuffle.
    """

    spark: SparkSession
    work: MapReduce
    new: RowsOfFiles | RowsOfFrame | None
    stored: DataFrame | None
    fewest: int
    n_stored: int = 0

    def compute(self, targets: Targets) -> Output:
        """Have tasks compute windows and new state, and write them to files."""
        if self.new is None and self.stored is None:
            return Output()
        gathered, groups_of = self.gathered()
        return output_of(mapped(gathered, partial(_write, targets, self.work, groups_of), RETURNED))

    def gathered(self) -> tuple[DataFrame, GroupsOf]:
        """A DataFrame each partition of which is all input of one task, and the function that makes groups of it."""
        new, work = self.new, self.work
        if isinstance(new, RowsOfFiles) and self.stored is None and (readers := self._readers(new)):
            return numbers_of_tasks(self.spark, readers), partial(_group_of_share, work, new, readers)
        n, parts = self._partitions(), list[DataFrame]()
        if self.stored is not None:
            parts.append(mapped(self.stored, partial(_stored_blocks, work, n), _BLOCK))
        if isinstance(new, RowsOfFiles):
            parts.append(map_in_arrow(numbers_of_tasks(self.spark, len(new.tasks)), partial(_blocks_of_files, work, new, n), _BLOCK))
        elif new is not None:
            parts.append(mapped(new.frame, partial(_blocks_of_frame, work, new.tables, n), _BLOCK))
        blocks = reduce(DataFrame.unionByName, parts).repartitionById(n, _PARTITION)
        return blocks.sortWithinPartitions(_BUCKET), partial(_groups_of_blocks, work)

    def _partitions(self) -> int:
        """Number of partitions, a multiple of the cores: a last round of fewer tasks would take as long as a full one."""
        if not self.work.keys:
            return 1
        new, cores = self.new, access_to(self.spark).cores()
        n_rows = 0 if new is None else new.n_rows if isinstance(new, RowsOfFrame) else number_of_rows(new.tasks)
        return -(-partitions_for(n_rows + self.n_stored, self.fewest) // cores) * cores

    def _readers(self, new: RowsOfFiles) -> int:
        """Number of tasks that each read all ``new`` rows for their share of the keys; 0 if a shuffle is cheaper, or takes less memory."""
        work, cores, n_rows = self.work, access_to(self.spark).cores(), number_of_rows(new.tasks)
        if work.are_few(n_rows):
            return 1
        if work.width is None or cores > limits.MAX_READERS:
            return 0
        size = number_of_bytes(new.tasks)
        readers = cores * max(1, -(-n_rows * work.width // limits.MAX_SHARED_NUMBERS), -(-size // limits.MAX_SHARED_BYTES))
        if readers > max(cores, work.most_readers):
            return 0
        return readers if work.keys else min(1, work.most_readers)


def _group_of_share(work: MapReduce, new: RowsOfFiles, readers: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Group]:
    """Runs in an executor: the rows of its share of the keys."""
    for number in numbers_in(batches):
        share = Share(number, number + 1, readers)
        lifted = [each for task in range(len(new.tasks)) for each in work.map(new.tables(task), share)]
        if lifted:
            yield lifted, work.stored.empty_table()


def _blocks_of_files(work: MapReduce, new: RowsOfFiles, n: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the blocks of map's output for the rows of each task number."""
    for task in numbers_in(batches):
        yield from _new_blocks(work, new.tables(task), n, task)


def _blocks_of_frame(
    work: MapReduce, tables: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.Table]], n: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the blocks of map's output for the rows that it receives."""
    context = TaskContext.get()
    assert context is not None
    yield from _new_blocks(work, tables(batches), n, context.partitionId())


def _new_blocks(work: MapReduce, rows: Iterable[pa.Table], n: int, task: int) -> Iterator[pa.RecordBatch]:
    """The blocks of a task of map. Their ranks follow tasks and rows, so that every attempt reduces them in the same order."""
    ranks = count(task << 32)
    for each in work.map(rows, None):
        yield from _cut(each.rows, list(work.keys), n, ranks, each.counts, stored=False)


def _stored_blocks(work: MapReduce, n: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: stored rows in blocks."""
    context = TaskContext.get()
    assert context is not None
    ranks = count(context.partitionId() << 32)
    for batch in batches:
        # Spark sets nullability and the zone of instants.
        rows = pa.Table.from_batches([batch]).select(work.stored.names).cast(work.stored)
        yield from _cut(rows, list(work.keys.values()), n, ranks, (), stored=True)


def _cut(
    rows: pa.Table, keys: Sequence[str], n: int, ranks: Iterator[int], counts: Sequence[int], *, stored: bool
) -> Iterator[pa.RecordBatch]:
    """``rows`` in blocks for ``n`` partitions, with the next ``ranks``; the first has the ``counts``."""
    of_partition = -(-_BUCKETS // n) if keys else 1
    for bucket, own in in_buckets(rows, keys, Share.every(n * of_partition)):
        n_rows = max(1, own.num_rows * _BLOCK_BYTES // max(1, own.nbytes))
        for begin in range(0, own.num_rows, n_rows):
            yield _block((bucket // of_partition, bucket), next(ranks), own.slice(begin, n_rows), counts, stored=stored)
            counts = ()
    if any(counts):
        yield _block((0, 0), next(ranks), rows.slice(0, 0), counts, stored=stored)


def _block(place: tuple[int, int], rank: int, rows: pa.Table, counts: Sequence[int], *, stored: bool) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data = sink.getvalue()
    # This array refers to the stream's buffer; pa.array would copy its bytes.
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, pa.array([0, data.size], pa.int32()).buffers()[1], data])
    own = [pa.array([rank]), pa.array([stored]), whole, pa.array([list(counts)], pa.list_(pa.int64()))]
    return pa.record_batch([*(pa.array([number], pa.int32()) for number in place), *own], schema=_BLOCK)


def _groups_of_blocks(work: MapReduce, batches: Iterator[pa.RecordBatch]) -> Iterator[Group]:
    """Runs in an executor: the rows of all blocks that it receives, sorted by bucket, some whole buckets at a time."""
    waiting, size, last = list[dict[str, Any]](), 0, -1
    for batch in batches:
        for place, bucket in enumerate(batch.column(_BUCKET).to_pylist()):
            if size >= _GROUP_BYTES and bucket != last:
                yield _group(work, waiting)
                waiting, size = [], 0
            waiting.append({name: batch.column(name)[place] for name in (_RANK, _STORED, _ROWS, _COUNTS)})
            size, last = size + waiting[-1][_ROWS].as_buffer().size, bucket
    if waiting:
        yield _group(work, waiting)


def _group(work: MapReduce, blocks: Sequence[Mapping[str, Any]]) -> Group:
    """The rows of ``blocks`` in order of their ranks."""
    new, stored = list[Lifted](), [work.stored.empty_table()]
    for block in sorted(blocks, key=lambda block: block[_RANK].as_py()):
        rows = pa.ipc.open_stream(block[_ROWS].as_buffer()).read_all()
        if block[_STORED].as_py():
            stored.append(rows)
        else:
            new.append(Lifted(rows, tuple(block[_COUNTS].as_py())))
    return new, pa.concat_tables(stored).combine_chunks()


def _write(targets: Targets, work: MapReduce, groups_of: GroupsOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: writes files, and returns one :class:`.Output`."""
    output = Output()
    with OutputWriter(targets) as writer:
        for new, stored in groups_of(batches):
            output += Output(counts=Counts(state_restored=restored_kinds(stored)))
            for done in work.reduce(new, stored):
                output += written(writer, done)
                writer.refused(done.refused)
        output += writer.output()
    yield from encode_result(output)
