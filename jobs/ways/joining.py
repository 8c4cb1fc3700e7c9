"""Tells which new rows came too late for all parts of a pipeline, counts the others, and checks that every row read was one of both.

A row is too late if some window refuses it and no window counts it. A part whose windows are all on grids neither counts nor refuses a row
that lies between its windows, so for such parts the grids tell. Every other part refuses the rows that it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.stores import use_options
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways.lateness import JUDGED_BY, TOO_LATE, marked, too_late_among
from windowmill.jobs.ways.output import Output, RowWriter
from windowmill.jobs.ways.restored import restored_kinds
from windowmill.jobs.ways.task_output import REFUSED_SCHEMA, Targets, read_files
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.errors import WindowmillError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.base import Loaded, Part, PartResult
    from windowmill.jobs.ways.input import Input, TableInput
    from windowmill.jobs.ways.new_rows import NewRows
    from windowmill.jobs.ways.numbered_rows import NumberedRows
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.kernels.combine import Ints

Rows = TypeVar("Rows", bound="NewRows")


def compute_parts(
    new: Rows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, writer: RowWriter
) -> tuple[Output, Rows | None]:
    """Compute the ``loaded`` batch of each part in this process, and write it; returns the counts, and the new rows, judged."""
    done = [each.compute(writer) for each in loaded]
    refused, judged = 0, None
    if new is not None:
        refusing = [each for part, each in zip(parts, done, strict=True) if not part.grids]
        too_late = refused_by_all(new, refusing, [grid for part in parts for grid in part.grids], batch)
        refused, judged = len(too_late), new.without(too_late, batch)
    restored = (Output(restored=restored_kinds(each.stored)) for each in loaded)
    return sum(restored, counted(parts, [each.output for each in done], refused)), judged


def counted(parts: Sequence[Part], done: Sequence[Output], refused: int) -> Output:
    """The output of all parts together: what they have ``done``, with the number of new rows that all of them ``refused``."""
    every = sum(done, Output())
    # A part on grids alone does not report dropped rows. What any other part drops is late.
    told = next((each for part, each in zip(parts, done, strict=True) if not part.grids), None)
    if told is None:
        [told] = done
        return every
    taken = told.rows_refused - refused
    return replace(every, rows_applied=told.rows_applied + taken, rows_late=told.rows_late + taken, rows_refused=refused)


def check_balance(batch: TableInput, done: Output, rows_read: int) -> None:
    """Raise ``WindowmillError`` if the rows of ``batch`` do not balance."""
    filtered, quarantined = batch.runnable.source.filter is not None, sum(done.reasons.values())
    logged = [file.rows for file in batch.files]
    by_log = sum(rows for rows in logged if rows is not None)
    if rows_read != done.rows_applied + quarantined or (None not in logged and not filtered and by_log != rows_read):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {rows_read} rows of {by_log} in the "
            f"log, applied {done.rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )


def refused_by_all(new: NewRows, refusing: Sequence[PartResult], grids: Sequence[WindowGrid], batch: Input) -> Ints:
    """Numbers of the new rows that came too late for all parts: those that are ``refusing``, and those with these ``grids``."""
    numbers: Ints | None = None
    for each in refusing:
        numbers = each.refused if numbers is None else np.intersect1d(numbers, each.refused)
    if numbers is not None and (not grids or not len(numbers)):
        return numbers
    return too_late_among(new.usable(batch, JUDGED_BY), numbers, grids)


def not_applied(new: NumberedRows, refusing: Sequence[Sequence[DataFile]], targets: Targets, grids: Sequence[WindowGrid]) -> DataFrame:
    """The rows of ``new`` with a reason, and those that came too late for all parts, with the reason ``too_late``; on Spark.

    Rows that others of these decide on may be among them, without a reason. Parameters as of :func:`.lateness.too_late_among`.

    Parameters
    ----------
    refusing
        For each part that refuses rows, the files that hold their numbers, at least one.
    """
    rows, asked = new.rows, F.col(TIME) < F.col(WATERMARK_OF)
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
