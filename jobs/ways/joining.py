"""Tells which new rows came too late for all parts of a pipeline, counts the others, and checks that every row read was one of both.

A row is too late if some window refuses it and no window counts it. A part whose windows are all on grids neither counts nor refuses a row
that lies between its windows, so for such parts the grids tell. Every other part refuses the rows that it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.stores import use_options
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.spark.access import map_in_arrow
from windowmill.jobs.ways import lateness_in_process
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways.quarantine import TOO_LATE
from windowmill.jobs.ways.restored import restored_kinds
from windowmill.jobs.ways.task_output import REFUSED_SCHEMA, Output, OutputWriter, Targets, read_files
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.grids import closing_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from windowmill.jobs.ways.base import Loaded, Part, PartResult
    from windowmill.jobs.ways.input import Input, TableInput
    from windowmill.jobs.ways.new_rows import NewRows
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.kernels.combine import Ints

#: Columns of a new row that tell whether it is too late.
JUDGED_BY = pa.schema([*((name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, CLOSED)), (LATE, pa.bool_())])


def computed_here(
    new: NewRows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, writer: OutputWriter
) -> tuple[Output, pa.Table | None]:
    """Compute the ``loaded`` batch of each part in this process, and write it; returns the counts, and the rows to quarantine."""
    done = [each.compute(writer) for each in loaded]
    refused, rows = 0, None
    if new is not None:
        refusing = [each for part, each in zip(parts, done, strict=True) if not part.grids]
        too_late = refused_in_process(new, refusing, [grid for part in parts for grid in part.grids], batch)
        refused, rows = len(too_late), new.without(too_late, batch).refused()
    restored = (Output(restored=restored_kinds(each.stored)) for each in loaded)
    return sum(restored, counted(parts, [each.output for each in done], refused)), rows


def counted(parts: Sequence[Part], done: Sequence[Output], refused: int) -> Output:
    """What the parts have ``done`` together, given how many new rows are ``refused`` by all of them."""
    every = sum(done, Output())
    # Slice parts do not report dropped rows. What any other part drops is late.
    told = next((each for part, each in zip(parts, done, strict=True) if part.way != "slices"), None)
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


def refused_in_process(new: NewRows, refusing: Sequence[PartResult], grids: Sequence[WindowGrid], batch: Input) -> Ints:
    """Numbers of the new rows that came too late for all parts: those that are ``refusing``, and those with these ``grids``."""
    numbers: Ints | None = None
    for each in refusing:
        assert each.refused is not None
        numbers = each.refused if numbers is None else np.intersect1d(numbers, each.refused)
    if numbers is not None and (not grids or not len(numbers)):
        return numbers
    return too_late_among(new.usable(batch, JUDGED_BY), numbers, grids)


def too_late_among(rows: pa.Table, refused: Ints | None, grids: Sequence[WindowGrid]) -> Ints:
    """Numbers of those of the usable ``rows`` that came too late for all parts.

    Parameters
    ----------
    rows
        Rows with the columns of ``JUDGED_BY``.
    refused
        Numbers of the rows that every part refuses that does; null if no part refuses rows.
    grids
        The grids of the other parts.
    """
    rows = rows.filter(rows.column(LATE) if refused is None else pc.is_in(rows.column(NUMBER_OF), pa.array(refused)))
    number, time, closed = (rows.column(name).to_numpy() for name in (NUMBER_OF, TIME, CLOSED))
    if not len(number) or not grids:
        return np.asarray(number, np.int64)
    last_end = closing_of(grids, time, closed, lateness_in_process.last_instants(rows)).last_end
    uncounted = last_end <= np.maximum(time, closed)
    return np.asarray(number[uncounted if refused is not None else uncounted & (last_end > time)], np.int64)


def judged_on_spark(rows: DataFrame, refusing: Sequence[Sequence[DataFile]], targets: Targets, grids: Sequence[WindowGrid]) -> DataFrame:
    """As :func:`refused_in_process`, on Spark: ``rows`` with the reason ``too_late`` for these.

    Parameters
    ----------
    refusing
        For each part that refuses rows, the files that hold their numbers; no part has none.
    """
    refused = F.col(REASON).isNull() & F.col(LATE)
    if refusing:
        frames = [_numbers(rows, targets, files) for files in refusing]
        common = reduce(lambda left, right: left.join(right, NUMBER_OF, "left_semi"), frames)
        rows = rows.join(common.withColumn("_refused", F.lit(True)), NUMBER_OF, "left")
        refused = F.col("_refused").isNotNull()
    if grids:
        time, closed = F.when(refused, F.col(TIME)), F.when(refused, F.col(CLOSED))
        last_end = lateness.last_end(grids, time, closed, lateness.last_instant(rows, refused))
        refused = F.coalesce(last_end <= F.greatest(time, closed), F.lit(False))
        refused = refused if refusing else refused & (last_end > time)
    return rows.withColumn(REASON, F.when(refused, F.lit(TOO_LATE)).otherwise(F.col(REASON)))


def _numbers(rows: DataFrame, targets: Targets, files: Sequence[DataFile]) -> DataFrame:
    """The numbers in ``files``, each of which a task reads."""
    numbers = rows.sparkSession.range(0, len(files), 1, len(files))
    return map_in_arrow(numbers, partial(_read, targets, files), REFUSED_SCHEMA)


def _read(targets: Targets, files: Sequence[DataFile], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(targets.options)
    for batch in batches:
        yield from read_files(targets.of["refused"].table, [files[number] for number in batch.column(0).to_pylist()])
