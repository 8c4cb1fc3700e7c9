"""One packed pass on Spark: lift rows into packed slices as they are read, then combine those of whole keys after one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.lateness import for_slices, usable
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.restored import SLICE_NODES, SLICES, Restored
from windowmill.jobs.schedulers.files.passes import numbers_of_tasks, readers_of
from windowmill.jobs.schedulers.files.rows import FileRows, numbers_in
from windowmill.jobs.schedulers.files.scan import FileScan
from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows, inputs
from windowmill.jobs.schedulers.spark.partitioning import partitions_for
from windowmill.jobs.schedulers.spark.pass_output import written_by_tasks
from windowmill.jobs.schedulers.spark.task_output import Targets
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.sources.file_parts import number_of_rows
from windowmill.jobs.spark.access import map_in_arrow, mapped
from windowmill.windowing.columnar import grid_windows, slices
from windowmill.windowing.columnar.added_columns import LEVEL, NUMBER_OF, WATERMARK_OF
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.buckets import Share
from windowmill.windowing.columnar.packing import BUCKET, PLACE, count_slices
from windowmill.windowing.columnar.slices import GRID, SliceStage, WindowStage
from windowmill.windowing.counts import Counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.axis import WindowGrid

#: Makes combined slices, each with whole keys, of what a worker receives.
CombinedOf = Callable[[Iterator[pa.RecordBatch]], Iterator[grid_windows.Combined]]
#: Takes rows as of :func:`.lateness.with_arrival`; returns the usable ones, judged.
Judge = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class PackedFrames:
    """New rows, and restored slices in Spark; either may be null.

    Attributes
    ----------
    grids
        The grids of the windows, for which late rows are judged.
    partitions
        The least number of partitions of a shuffle.
    """

    spark: SparkSession
    new: FileRows | NumberedRows | None
    stored: DataFrame | None
    stage: WindowStage
    grids: Sequence[WindowGrid]
    partitions: int

    def compute(self, targets: Targets) -> Output:
        slices, stage, new = self.stage.slices, self.stage, self.new
        files = SlicesOfFiles(new, slices, partial(new.judged, stage=slices, grids=self.grids)) if isinstance(new, FileRows) else None
        if files is not None and self.stored is None and (readers := files.readers(self.spark, stage)):
            shares = numbers_of_tasks(self.spark, readers)
            return written_by_tasks(shares, partial(_advanced, partial(files.combined, stage, readers), stage), targets)
        restored = None if self.stored is None else CountedSlices(self.stored)
        packed = [] if restored is None else [pack(restored.rows, slices)]
        if files is not None:
            packed.append(files.packed(self.spark))
        elif isinstance(new, NumberedRows):
            judge = None if new.rule is None else partial(for_slices, rule=new.rule, grids=self.grids)
            packed.append(lift(new.rows, slices, new.batch.times, judge))
        if not packed:
            return Output()
        n = partitions_for(0 if new is None else new.survey.rows, self.partitions)
        gathered = by_bucket(reduce(DataFrame.unionByName, packed), stage, n)
        output = written_by_tasks(gathered, partial(_advanced, partial(grid_windows.combined, stage), stage), targets)
        return output if restored is None else output + Output(counts=Counts(state_restored=restored.kinds()))


class CountedSlices:
    """Slices that Spark restores, counted while they are read."""

    def __init__(self, stored: DataFrame) -> None:
        self._counted = Observation()
        nodes = F.count_if(F.col(LEVEL) > 0) if LEVEL in stored.columns else F.lit(0) * F.count(F.lit(1))
        self.rows = stored.observe(self._counted, F.count(F.lit(1)).alias("n"), nodes.alias("nodes"))

    def kinds(self) -> Restored:
        """As :func:`.restored_kinds`, once the rows have been read."""
        n, nodes = (self._counted.get[name] for name in ("n", "nodes"))
        return {kind: rows for kind, rows in {SLICES: n - nodes, SLICE_NODES: nodes}.items() if rows}


@dataclass(frozen=True)
class SlicesOfFiles:
    """The slices of rows in files; picklable.

    Attributes
    ----------
    stage
        Settings for lifting rows.
    rows
        Gives the usable rows of the task of a number.
    """

    files: FileScan | FileRows
    stage: SliceStage
    rows: Callable[[int], Iterable[pa.RecordBatch]]

    def windows(self, spark: SparkSession, stage: WindowStage, partitions: int) -> DataFrame:
        """As :func:`windows`."""
        readers = self.readers(spark, stage)
        if readers:
            shared = map_in_arrow(numbers_of_tasks(spark, readers), partial(_windows_of_files, self, stage, readers), stage.declared_schema)
            return result_rows(shared, stage)
        return windows(self.packed(spark), stage, partitions)

    def packed(self, spark: SparkSession) -> DataFrame:
        """As :func:`lift`."""
        return map_in_arrow(
            numbers_of_tasks(spark, len(self.files.tasks)), partial(_lifted_of_files, self), self.stage.packing.packed_schema
        )

    def readers(self, spark: SparkSession, stage: WindowStage) -> int:
        """Number of tasks that each read all rows to share out the keys; 0 if a shuffle is cheaper, or takes less memory."""
        rows, overlap = number_of_rows(self.files.tasks), sum(grid.most_ends(grid.longest) for _, grid in stage.grids)
        if rows <= limits.MAX_ROWS_OF_A_TASK and rows * overlap <= limits.MAX_COUNTED_OF_A_TASK:
            return 1
        layout = self.stage.layout
        # Partials that are Python objects may be of any size.
        shares = self.stage.keys and not layout.objects
        return readers_of(spark, self.files, sum(layout.widths())) if shares else 0

    def combined(self, stage: WindowStage, readers: int, batches: Iterator[pa.RecordBatch]) -> Iterator[grid_windows.Combined]:
        """Runs in an executor: lifts the rows of its share of the keys, and combines their slices as it is done after a shuffle."""
        for number in numbers_in(batches):
            share = Share(number, number + 1, readers)
            parts = [part for task in range(len(self.files.tasks)) for part in slices.sliced(self.stage, self.rows(task), share)]
            yield from grid_windows.combined_parts(stage, parts)


def lift(rows: DataFrame, stage: SliceStage, times: EventTimes, judge: Judge | None) -> DataFrame:
    """Lift the usable rows into packed slices; columns as ``stage.packing.packed_schema``. ``judge`` is null if no row can be late."""
    own = [] if judge is None else [NUMBER_OF, WATERMARK_OF]
    chosen = rows.select(*own, *inputs(rows, stage, also=times.columns))
    return mapped(chosen, partial(_placed, partial(_judged_and_lifted, times, judge or usable), stage), stage.packing.packed_schema)


def _judged_and_lifted(
    times: EventTimes, judge: Judge, stage: SliceStage, batches: Iterable[pa.RecordBatch], first_place: int
) -> Iterator[pa.Table]:
    """Runs in an executor."""
    needless = [name for name in times.read if name not in (*stage.keys, *stage.ties, *stage.source_columns)]
    counting = (judge(times.of(pa.Table.from_batches([batch]))).drop_columns(needless) for batch in batches)
    return slices.lifted(stage, (batch for table in counting for batch in table.combine_chunks().to_batches()), first_place)


def pack(stored: DataFrame, stage: SliceStage) -> DataFrame:
    """Pack slices read from the state."""
    return mapped(stored, partial(_placed, slices.packed, stage), stage.packing.packed_schema)


def _placed(
    function: Callable[[SliceStage, Iterator[pa.RecordBatch], int], Iterator[pa.Table]],
    stage: SliceStage,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor. Ranks follow Spark partition and chunk, so that slices are combined in the same order in every attempt."""
    context = TaskContext.get()
    assert context is not None
    yield from cut(function(stage, batches, context.partitionId() << 32))


def cut(packed: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Cut packed slices into batches that Spark takes."""
    for table in packed:
        for first in range(0, table.num_rows, rows := max(1, slices.BATCH_ROWS * table.num_rows // max(1, count_slices(table)))):
            yield from table.slice(first, rows).combine_chunks().to_batches()


def windows(packed: DataFrame, stage: WindowStage, partitions: int) -> DataFrame:
    """Combine packed slices into result rows; columns as ``stage.schema``."""
    bare = mapped(by_bucket(packed, stage, partitions), partial(_windows, stage), stage.declared_schema)
    return result_rows(bare, stage)


def result_rows(bare: DataFrame, stage: WindowStage) -> DataFrame:
    """As :func:`windowmill.windowing.columnar.grid_windows.result_rows`, in Spark: Python need not send columns that Spark can derive."""
    # Written as SQL: each Column method makes a call or two into the JVM, and hundreds of them would cost 0.1 s.
    number = f"{backquoted(GRID)} + 1"
    implied = {
        "window": f"element_at(array({', '.join(spark_text(name) for name, _ in stage.grids)}), {number})",
        "trigger": "CAST(NULL AS BIGINT)",
        "revision": "0L",
        "batch": f"{stage.slices.batch}L",
    }
    if stage.hopping is not None:
        size = f"element_at(array({', '.join(f'{grid.size}L' for grid in stage.hopping)}), {number})"
        instants = pa.types.is_timestamp(stage.schema.field("window_end").type)
        implied["window_start"] = f"timestamp_micros(unix_micros(window_end) - {size})" if instants else f"window_end - {size}"
    given = {name: backquoted(name) for name in bare.columns}
    return bare.selectExpr(*(f"{(implied | given)[name]} AS {backquoted(name)}" for name in stage.schema.names))


def _windows(stage: WindowStage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for combined in grid_windows.combined(stage, batches):
        for table in combined.windows:
            yield from table.to_batches(slices.BATCH_ROWS)


def _advanced(combined_of: CombinedOf, stage: WindowStage, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[None, Advanced]]:
    """Runs in an executor: windows and state of combined slices. It gives no restored rows, because Spark counts these as it reads them."""
    return ((None, combined.advanced(stage)) for combined in combined_of(batches))


def by_bucket(packed: DataFrame, stage: WindowStage, partitions: int) -> DataFrame:
    """``packed`` slices such that a partition has all those of its keys, in the order of their places."""
    bucket = F.col(backquoted(BUCKET))
    return (packed.repartition(partitions, bucket) if stage.slices.keys else packed.repartition(1)).sortWithinPartitions(bucket, PLACE)


def _lifted_of_files(files: SlicesOfFiles, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for task in numbers_in(batches):
        yield from cut(slices.lifted(files.stage, files.rows(task), task << 32))


def _windows_of_files(
    files: SlicesOfFiles, stage: WindowStage, readers: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for combined in files.combined(stage, readers, batches):
        for table in combined.windows:
            yield from table.to_batches(slices.BATCH_ROWS)
