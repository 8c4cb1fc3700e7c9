"""The two passes of a batch on Spark: lift rows into packed slices as they are read, then combine those of whole keys after one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.sources.columns import REASON, Columns
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways.task_output import RETURNED, Output, OutputWriter, Targets, output_of, returned
from windowmill.windowing.columnar import slice_windows, slices
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.packing import BUCKET, PLACE, count_slices
from windowmill.windowing.columnar.slices import GRID, Reading, SliceStage, WindowStage
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
#: Makes combined slices, each with whole keys, of what a worker receives.
CombinedOf = Callable[[Iterator[pa.RecordBatch]], Iterator[slice_windows.Combined]]
#: Judges rows as of :func:`.lateness.with_arrival`, and gives those that count.
Judge = Callable[[pa.Table], pa.Table]


def lift(rows: DataFrame, stage: SliceStage, judge: Judge | None) -> DataFrame:
    """Lift the usable rows into packed slices; columns as ``stage.packing.packed_schema``. ``judge`` is null if no row can be late."""
    own = [TIME] if stage.lasting is None else [TIME, UNTIL_OF]
    own += [] if judge is None else [NUMBER_OF, WATERMARK_OF]
    chosen = rows.where(F.col(REASON).isNull()).select(*own, *inputs(rows, stage))
    lifted = slices.lifted if judge is None else partial(_judged_and_lifted, judge)
    return mapped(chosen, partial(_placed, lifted, stage), stage.packing.packed_schema)


def _judged_and_lifted(judge: Judge, stage: SliceStage, batches: Iterable[pa.RecordBatch], first_place: int) -> Iterator[pa.Table]:
    """Runs in an executor."""
    tables = (pa.Table.from_batches([batch.append_column(REASON, pa.nulls(batch.num_rows, pa.string()))]) for batch in batches)
    judged = (batch for table in tables for batch in judge(table).combine_chunks().to_batches())
    return slices.lifted(stage, judged, first_place)


def inputs(rows: DataFrame, *stages: Reading) -> list[Column]:
    """The columns that stages read: of the source, and the conditions' truth."""
    names = dict.fromkeys(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns))
    return [*(F.col(backquoted(name)) for name in names), *conditions(rows, *stages)]


def conditions(rows: DataFrame, *stages: Reading, where: Column | None = None) -> list[Column]:
    """The truth of the stages' conditions, evaluated only for rows that satisfy ``where``."""
    texts = dict.fromkeys(text for stage in stages for text in stage.conditions)
    types = Columns(rows.schema).arrow if texts else {}
    truths = {text: truth(text, types) if where is None else F.when(where, truth(text, types)) for text in texts}
    return [holds.alias(condition_column(text)) for text, holds in truths.items()]


def input_names(*stages: Reading) -> list[str]:
    """The names of :func:`inputs`."""
    names = [name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)]
    return list(dict.fromkeys([*names, *(condition_column(text) for stage in stages for text in stage.conditions)]))


def pack(stored: DataFrame, stage: SliceStage) -> DataFrame:
    """Pack slices read from the state."""
    return mapped(stored, partial(_placed, slices.packed, stage), stage.packing.packed_schema)


def mapped(rows: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: pa.Schema) -> DataFrame:
    """``rows.mapInArrow`` for columns of any name; PySpark itself would parse a dot or backtick in a name as syntax."""
    numbered = rows.toDF(*(f"_{n}" for n in range(len(rows.columns))))
    return map_in_arrow(numbered, partial(_named, function, rows.columns), schema)


def _named(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], names: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return function(batch.rename_columns(names) for batch in batches)


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
    """As :func:`windowmill.windowing.columnar.slice_windows.result_rows`, in Spark: Python need not send columns that Spark can derive."""
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
    for combined in slice_windows.combined(stage, batches):
        for table in combined.windows:
            yield from table.to_batches(slices.BATCH_ROWS)


def written_by_tasks(gathered: DataFrame, combined_of: CombinedOf, stage: WindowStage, targets: Targets) -> Output:
    """Have the tasks of ``gathered``, whose partitions each have whole keys, write the result rows and slices that they combine."""
    return output_of(mapped(gathered, partial(_written, combined_of, stage, targets), RETURNED))


def _written(combined_of: CombinedOf, stage: WindowStage, targets: Targets, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    with OutputWriter(targets) as writer:
        done = write(stage, combined_of(batches), writer) + writer.output()
    yield from returned(done)


def write(stage: WindowStage, found: Iterable[slice_windows.Combined], writer: OutputWriter) -> Output:
    """Write result rows and slices; returns the counts."""
    applied = late = new_state = 0
    for combined in found:
        for bare in combined.windows:
            writer.results(slice_windows.result_rows(stage, bare))
        writer.state(combined.slices)
        applied, late, new_state = applied + combined.rows, late + combined.late_rows, new_state + combined.n_slices
    return Output(rows_applied=applied, rows_late=late, new_state=new_state)


def by_bucket(packed: DataFrame, stage: WindowStage, partitions: int) -> DataFrame:
    """``packed`` slices such that a partition has all those of its keys, in the order of their places."""
    bucket = F.col(backquoted(BUCKET))
    return (packed.repartition(partitions, bucket) if stage.slices.keys else packed.repartition(1)).sortWithinPartitions(bucket, PLACE)
