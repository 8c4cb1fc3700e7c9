"""Quarantines rows that Spark reads: those with a reason, and those that came too late for all parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.stores import use_options
from windowmill.jobs.conditions.spark import failing
from windowmill.jobs.conditions.truths import every_condition
from windowmill.jobs.layouts.lateness import marked, too_late_among
from windowmill.jobs.layouts.output import Output
from windowmill.jobs.layouts.quarantine import FAILURE, JSON, entries, failure_of
from windowmill.jobs.layouts.returning import RETURNED, encode_result
from windowmill.jobs.reasons import BAD_CONDITION, TOO_LATE
from windowmill.jobs.schedulers.spark.task_output import REFUSED_SCHEMA, OutputWriter, Targets, output_of, read_files
from windowmill.jobs.sources.columns import FILE, REASON, ROW, UNREAD, VERSION, Columns
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.checkpoints.plans import Plan
    from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.spec import Pipeline


def write_by_tasks(rows: DataFrame, columns: list[str], pipeline: Pipeline, plan: Plan, targets: Targets, paths: Sequence[str]) -> Output:
    """Have tasks write the rows that have a reason to the quarantine table; ``paths`` are those of the files that hold them."""
    failed = failing(every_condition(pipeline), Columns(rows.select(*map(backquoted, columns)).schema).in_conditions)
    why = [F.when(column, F.lit(failure_of(text))) for text, column in failed.items()]
    names = [F.col(backquoted(name)) for name in (REASON, VERSION, FILE, ROW, TIME, WATERMARK_OF, UNREAD) if name in rows.columns]
    chosen = rows.where(F.col(REASON).isNotNull()).select(
        *names,
        (F.when(F.col(REASON) == BAD_CONDITION, F.coalesce(*why)) if why else F.lit(None).cast("string")).alias(FAILURE),
        F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias(JSON),
    )
    return output_of(map_in_arrow(chosen, partial(_write, pipeline, plan, targets, paths), RETURNED))


def _write(
    pipeline: Pipeline, plan: Plan, targets: Targets, paths: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    with OutputWriter(targets) as writer:
        for batch in batches:
            writer.quarantined(entries(pa.Table.from_batches([batch]), pipeline, plan, paths))
        done = writer.output()
    yield from encode_result(done)


def not_applied(new: NumberedRows, refusing: Sequence[Sequence[DataFile]], targets: Targets, grids: Sequence[WindowGrid]) -> DataFrame:
    """The rows of ``new`` with a reason, and those that came too late for all parts, with the reason ``too_late``; on Spark.

    Rows that others of these decide on may be among them, without a reason. Parameters as of :func:`.lateness.too_late_among`.

    Parameters
    ----------
    refusing
        For each part that refuses rows, the files that hold their numbers, at least one.
    """
    rows, asked = new.doubtful, F.col(TIME) < F.col(WATERMARK_OF)
    if refusing:
        frames = [_numbers(rows, targets, files) for files in refusing]
        common = reduce(lambda left, right: left.join(right, NUMBER_OF, "left_semi"), frames)
        rows = rows.join(common.withColumn("_refused", F.lit(True)), NUMBER_OF, "left")
        asked = F.col("_refused").isNotNull()
    asked &= F.col(REASON).isNull()
    lateness = new.batch.lateness

    def found(number: pa.Array, time: pa.Array, until: pa.Array, watermark: pa.Array) -> pa.Array:
        return _too_late(lateness, grids, number, time, until, watermark, refused=bool(refusing))

    # PySpark advises against the function type, which its stubs want.
    too_late = arrow_udf(found, "boolean")  # type: ignore[call-overload]
    number = F.when(asked, F.col(NUMBER_OF))
    judged = rows.where(F.col(REASON).isNotNull() | asked).withColumn("_late", too_late(number, TIME, UNTIL_OF, WATERMARK_OF))
    return judged.withColumn(REASON, F.when(F.col("_late"), F.lit(TOO_LATE)).otherwise(F.col(REASON))).drop("_late")


def _too_late(
    lateness: int, grids: Sequence[WindowGrid], number: pa.Array, time: pa.Array, until: pa.Array, watermark: pa.Array, *, refused: bool
) -> pa.Array:
    """Runs in an executor: whether each row in question, which has a ``number``, is too late."""
    rows = pa.table({NUMBER_OF: number, TIME: time, UNTIL_OF: until, WATERMARK_OF: watermark}).filter(number.is_valid())
    numbers = too_late_among(marked(rows, lateness), rows.column(NUMBER_OF).to_numpy() if refused else None, grids)
    return pc.is_in(number, pa.array(numbers))


def _numbers(rows: DataFrame, targets: Targets, files: Sequence[DataFile]) -> DataFrame:
    """The numbers in ``files``, each of which a task reads."""
    numbers = rows.sparkSession.range(0, len(files), 1, len(files))
    return map_in_arrow(numbers, partial(_read, targets, files), REFUSED_SCHEMA)


def _read(targets: Targets, files: Sequence[DataFile], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(targets.options)
    for batch in batches:
        yield from read_files(targets.of["refused"].table, [files[number] for number in batch.column(0).to_pylist()])
