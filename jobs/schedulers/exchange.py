"""The exchange of a batch on Spark: brings map's output to the task that reduces a key, and has tasks write what they compute.

Map's output crosses the shuffle in *blocks*, Arrow record batches of one partition each, which Spark copies whole. Where few tasks run at a
time, it is cheaper if each task reads all rows and keeps those of its own keys. Each task restores the stored rows of its keys itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from windowmill.checkpoints.delta_tables import tables_kept
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.base import Lifted, MapReduce, StateWanted, written
from windowmill.jobs.layouts.output import RETURNED, Output, collect_results, encode_result, restored_kinds
from windowmill.jobs.schedulers.writing import OutputWriter, Targets
from windowmill.jobs.sources.plain_files import Tasks, number_of_bytes, number_of_rows
from windowmill.jobs.spark.access import access_to, map_in_arrow, mapped
from windowmill.jobs.spark.spark_settings import is_short_run
from windowmill.windowing.columnar.hashes import KeysOfShare, Share, in_buckets
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from windowmill.jobs.layouts.input import Input

#: Number of new rows per Spark partition; larger partitions would only take more memory.
ROWS_PER_PARTITION = 1_000_000
#: Columns of a block: its partition, the bucket of its keys, its rank in order of arrival, its rows as an Arrow stream, and the counts of
#: :class:`.Lifted`. A block without rows says which partition a task has.
_PARTITION, _BUCKET, _RANK, _ROWS, _COUNTS = "partition", "bucket", "rank", "rows", "counts"
_BLOCK = pa.schema(
    [(_PARTITION, pa.int32()), (_BUCKET, pa.int32()), (_RANK, pa.int64()), (_ROWS, pa.binary()), (_COUNTS, pa.list_(pa.int64()))]
)
#: Size of a block in bytes. Spark sends a worker up to 10,000 values at once, whatever their length, but cannot send 2 GiB.
_BLOCK_BYTES = 100_000
#: Least number of buckets in all partitions, and the size in bytes at which a task reduces the whole buckets that it has received.
_BUCKETS, _GROUP_BYTES = 64, 1 << 26
#: Input of a reduce: map's output for some keys in order of arrival, and the share that these keys form.
Group = tuple[Sequence[Lifted], Share]
#: Makes groups of the batches that a worker receives; none if it receives nothing.
GroupsOf = Callable[[Iterator[pa.RecordBatch]], Iterator[Group]]


def partitions_for(n_rows: int, fewest: int) -> int:
    """Number of Spark partitions for ``n_rows`` new rows; at least ``fewest``."""
    return max(fewest, -(-n_rows // ROWS_PER_PARTITION))


def numbers_of_tasks(spark: SparkSession, n: int) -> DataFrame:
    """The numbers from 0 to ``n`` − 1, each in a Spark partition of its own."""
    return spark.range(0, n, 1, max(1, n))


def numbers_in(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def shuffle_partitions(batch: Input, spark: SparkSession) -> int:
    """Number of Spark partitions for windows: the session's shuffle partitions, capped at the core count for small inputs."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    if batch.size_bytes is None or not is_short_run(batch.size_bytes):
        return configured
    return min(configured, max(2, access_to(spark).cores()))


def output_of(worked: DataFrame) -> Output:
    """Run ``worked``, whose tasks return an :class:`Output` each; returns the sum."""
    return sum(collect_results(worked), Output())


@dataclass(frozen=True)
class RowsOfFiles:
    """New rows in files; ``tables``, run in an executor, returns the judged rows of the task with a number, in order of arrival."""

    tasks: Tasks
    tables: Callable[[int], Iterable[pa.Table]]


@dataclass(frozen=True)
class RowsOfFrame:
    """About ``n_rows`` new rows that Spark reads; ``tables``, run in an executor, judges the rows that a worker receives."""

    frame: DataFrame
    tables: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.Table]]
    n_rows: int


@dataclass(frozen=True)
class StoredRows:
    """The ``wanted`` rows of ``state``: at most ``n_rows``, or 0 if unknown. Each task restores those of its keys. Picklable."""

    state: DeltaState
    wanted: StateWanted
    n_rows: int

    def restored(self, keys: KeysOfShare, lifted: Sequence[Lifted]) -> pa.Table:
        """The rows of ``keys`` that these new rows need; runs in an executor."""
        rows = pa.concat_tables([each.rows for each in lifted]) if lifted else None
        found = self.wanted.read(replace(self.state, only=keys), rows, limits.state_read(None, limited=False))
        assert found is not None
        return found


@dataclass(frozen=True)
class Exchange:
    """New and stored rows of a part, if any, the map and reduce over them, and the ``fewest`` partitions of a shuffle."""

    spark: SparkSession
    work: MapReduce
    new: RowsOfFiles | RowsOfFrame | None
    stored: StoredRows | None
    fewest: int

    def compute(self, targets: Targets) -> Output:
        """Have tasks compute windows and new state, and write them to files."""
        if self.new is None and self.stored is None:
            return Output()
        gathered, groups_of = self.gathered()
        return output_of(mapped(gathered, partial(_write, targets, self.work, self.stored, groups_of), RETURNED))

    def gathered(self) -> tuple[DataFrame, GroupsOf]:
        """A DataFrame whose partitions are the tasks' inputs, and the function that divides an input into groups."""
        new, work = self.new, self.work
        if isinstance(new, RowsOfFiles) and (readers := self._readers(new)):
            return numbers_of_tasks(self.spark, readers), partial(_group_of_share, work, new, readers, self.stored is not None)
        n = self._partitions()
        if new is None:
            return numbers_of_tasks(self.spark, n), partial(_group_without_rows, n)
        if isinstance(new, RowsOfFiles):
            blocks = map_in_arrow(numbers_of_tasks(self.spark, len(new.tasks)), partial(_blocks_of_files, work, new, n), _BLOCK)
        else:
            blocks = mapped(new.frame, partial(_blocks_of_frame, work, new.tables, n), _BLOCK)
        if self.stored is not None:
            # Keys without new rows may have work, too.
            cells = {"id": "int", f"id * {_buckets_of_partition(n)}": "int", "-1": "bigint", "NULL": "binary", "(NULL)": "array<bigint>"}
            blocks = blocks.union(numbers_of_tasks(self.spark, n).selectExpr(*(f"CAST({cell} AS {kind})" for cell, kind in cells.items())))
        return blocks.repartitionById(n, _PARTITION).sortWithinPartitions(_BUCKET), partial(_groups_of_blocks, n)

    def _partitions(self) -> int:
        """Number of partitions, a multiple of the cores: a last round of fewer tasks would take as long as a full one."""
        if not self.work.keys:
            return 1
        new, cores = self.new, access_to(self.spark).cores()
        n_rows = 0 if new is None else new.n_rows if isinstance(new, RowsOfFrame) else number_of_rows(new.tasks)
        return -(-partitions_for(n_rows + self._n_stored, self.fewest) // cores) * cores

    @property
    def _n_stored(self) -> int:
        return 0 if self.stored is None else self.stored.n_rows

    def _readers(self, new: RowsOfFiles) -> int:
        """Number of tasks that each read all ``new`` rows for their share of the keys; 0 if a shuffle is cheaper, or takes less memory."""
        work, cores, n_rows = self.work, access_to(self.spark).cores(), number_of_rows(new.tasks) + self._n_stored
        if work.are_few(n_rows):
            return 1
        if work.width is None or cores > limits.MAX_READERS:
            return 0
        size = number_of_bytes(new.tasks)
        readers = cores * max(1, -(-n_rows * work.width // limits.MAX_SHARED_NUMBERS), -(-size // limits.MAX_SHARED_BYTES))
        if readers > max(cores, work.most_readers):
            return 0
        return readers if work.keys else min(1, work.most_readers)


def _group_of_share(
    work: MapReduce, new: RowsOfFiles, readers: int, has_stored: bool, batches: Iterator[pa.RecordBatch]
) -> Iterator[Group]:
    """Runs in an executor: the new rows of its share of the keys; no group without any, unless the part ``has_stored`` rows."""
    for number in numbers_in(batches):
        share = Share(number, number + 1, readers)
        lifted = [each for task in range(len(new.tasks)) for each in work.map(new.tables(task), share)]
        if lifted or has_stored:
            yield lifted, share


def _group_without_rows(n: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Group]:
    """Runs in an executor: a share of the keys, without new rows."""
    for number in numbers_in(batches):
        yield (), Share(number, number + 1, n)


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
        yield from _cut(each.rows, list(work.keys), n, ranks, each.counts)


def _buckets_of_partition(n: int) -> int:
    """Number of buckets of each of ``n`` partitions."""
    return -(-_BUCKETS // n)


def _cut(rows: pa.Table, keys: Sequence[str], n: int, ranks: Iterator[int], counts: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """``rows`` in blocks for ``n`` partitions, with the next ``ranks``; the first has the ``counts``."""
    of_partition = _buckets_of_partition(n)
    for bucket, own in in_buckets(rows, keys, Share.every(n * of_partition)):
        n_rows = max(1, own.num_rows * _BLOCK_BYTES // max(1, own.nbytes))
        for begin in range(0, own.num_rows, n_rows):
            yield _block((bucket // of_partition, bucket), next(ranks), own.slice(begin, n_rows), counts)
            counts = ()
    if any(counts):
        yield _block((0, 0), next(ranks), rows.slice(0, 0), counts)


def _block(place: tuple[int, int], rank: int, rows: pa.Table, counts: Sequence[int]) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    data = sink.getvalue()
    # This array refers to the stream's buffer; pa.array would copy its bytes.
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, pa.array([0, data.size], pa.int32()).buffers()[1], data])
    own = [pa.array([rank]), whole, pa.array([list(counts)], pa.list_(pa.int64()))]
    return pa.record_batch([*(pa.array([number], pa.int32()) for number in place), *own], schema=_BLOCK)


def _groups_of_blocks(n: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Group]:
    """Runs in an executor: the rows of the blocks that it receives, which are sorted by bucket, in groups of whole buckets."""
    of_partition = _buckets_of_partition(n)
    waiting, size, last, first = list[dict[str, Any]](), 0, -1, None
    for batch in batches:
        for place, bucket in enumerate(batch.column(_BUCKET).to_pylist()):
            if first is None:
                first = bucket // of_partition * of_partition
            if size >= _GROUP_BYTES and bucket != last:
                yield _lifted(waiting), Share(first, bucket, n * of_partition)
                waiting, size, first = [], 0, bucket
            if batch.column(_ROWS)[place].is_valid:
                waiting.append({name: batch.column(name)[place] for name in (_RANK, _ROWS, _COUNTS)})
                size += waiting[-1][_ROWS].as_buffer().size
            last = bucket
    if first is not None:
        yield _lifted(waiting), Share(first, (last // of_partition + 1) * of_partition, n * of_partition)


def _lifted(blocks: Sequence[Mapping[str, Any]]) -> list[Lifted]:
    """The rows of ``blocks`` in order of their ranks."""
    ranked = sorted(blocks, key=lambda block: block[_RANK].as_py())
    return [Lifted(pa.ipc.open_stream(each[_ROWS].as_buffer()).read_all(), tuple(each[_COUNTS].as_py())) for each in ranked]


def _write(
    targets: Targets, work: MapReduce, state: StoredRows | None, groups_of: GroupsOf, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: writes files, and returns one :class:`.Output`."""
    output = Output()
    with tables_kept(), OutputWriter(targets) as writer:
        for lifted, share in groups_of(batches):
            stored = None if state is None else state.restored(KeysOfShare(share, list(work.keys.values())), lifted)
            output += Output(counts=Counts(state_restored=restored_kinds(stored)))
            for done in work.reduce(lifted, stored):
                output += written(writer, done)
                writer.refused(done.refused)
        output += writer.output()
    yield from encode_result(output)
