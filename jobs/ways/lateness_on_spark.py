"""Finds late rows in Spark: computes the watermark at each row's arrival, independent of how the input is split into batches.

The watermark at a row's arrival is (greatest event time of the commits before its own) − disorder. One job surveys the files, and tells
the watermark that each of them finds; only files with a row behind it are looked at again. With ``time.arrival: row`` the watermark moves
from row to row. Then files are surveyed in blocks, and only blocks with a row behind the watermark are processed row by row: a running
maximum over all rows would need a full sort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.jobs.ways import row_numbers
from windowmill.jobs.ways.file_survey import Survey
from windowmill.windowing.axis import Edges, Grid, WindowGrid, all_hopping
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LATE, NUMBER_OF, ORDER, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.grids import closing_of
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windowmill.jobs.ways.input import Input

#: Column of a struct of what decides in which windows a late row counts, and the struct's fields.
_CLOSING, _VALUES = "_ closing", ("first_end", "last_end", "edge")


#: Smallest block in rows, and greatest number of blocks: larger batches get larger blocks, so that the driver collects little.
_BLOCK_ROWS, _MAX_BLOCKS = 4_096, 50_000


@dataclass(frozen=True, slots=True)
class BlockSurvey(Survey):
    """Survey of a batch's rows by files, or by blocks of these where each row arrives by itself.

    Attributes
    ----------
    block_rows
        Number of successive rows of a file in a block; null if a block is a whole file.
    behind
        (file, block, watermark that the block finds) of each block with rows behind the watermark.
    """

    block_rows: int | None
    behind: tuple[tuple[int, int, int], ...]


def survey(rows: DataFrame, batch: Input, *, every: bool = False) -> BlockSurvey:
    """Survey the ``rows`` of ``batch`` in one Spark job.

    Rows of settled files count as arrived in order of event time, so none of them is late. ``every`` treats all other blocks as late, which
    makes the watermark at each row's arrival known.
    """
    by_row = batch.by_row and batch.closed_by_file is None
    block_rows = max(_BLOCK_ROWS, batch.expected_rows // _MAX_BLOCKS) if by_row else None
    usable = F.when(F.col(REASON).isNull(), F.col(TIME))
    found = (
        rows.groupBy(FILE, _block(block_rows).alias("block"))
        .agg(F.min(usable).alias("low"), F.max(usable).alias("high"), F.count("*").alias("rows"), F.max(ROW).alias("last"))
        .collect()
    )
    blocks = sorted(found, key=lambda block: (block[FILE], block["block"]))
    seen = arrived = batch.seen
    behind, lows, counts, commit = [], [], [0] * (1 + max((block[FILE] for block in blocks), default=-1)), None
    for block in blocks:
        file = block[FILE]
        counts[file] = max(counts[file], block["last"] + 1)
        if by_row:
            seen = arrived
        elif batch.commits[file] != commit:
            seen, commit = arrived, batch.commits[file]
        if block["high"] is None:
            continue
        arrived = block["high"] if arrived is None else max(arrived, block["high"])
        if batch.closed_by_file is not None:
            watermark = batch.closed_by_file[file] + batch.lateness
        elif file < batch.settled or (seen is None and not by_row):
            continue
        else:
            watermark = (block["low"] if seen is None else seen) - batch.disorder
        late = block["low"] < (arrived - batch.disorder if by_row else watermark)
        if late or every:
            behind.append((file, block["block"], watermark))
        if late:
            lows.append(block["low"])
    starts = row_numbers.starts_of(counts, batch.commits).tolist()
    n_rows, low = sum(block["rows"] for block in blocks), min(lows, default=None)
    return BlockSurvey(n_rows, arrived, tuple(starts), low, block_rows, tuple(behind))


def judged(rows: DataFrame, surveyed: BlockSurvey, batch: Input, grids: Sequence[WindowGrid]) -> DataFrame:
    """Add ``_late`` and ``_closed`` if there are late rows, and the reason ``too_late`` to rows for which no window was open.

    ``_late`` is whether the row arrived behind the watermark. ``_closed`` is null if every window that contains the row was open at its
    arrival. Otherwise it is a slice edge, and the row counts in the windows of ``grids`` that end after it.

    Where late rows bring revisions, ``_closed`` is null if no window that contains the row had been shown at its arrival. Otherwise it is
    the watermark then, and ``_arrival`` is the moment at which the row arrived. ``_order`` is that moment of every row.
    """
    if not surveyed.behind:
        return rows
    moment = moment_of(_number(surveyed), batch)
    orderly, behind = _by_blocks(rows, surveyed, batch)
    orderly = orderly.withColumns({LATE: F.lit(False), CLOSED: F.lit(None).cast("long")})
    if batch.revises:
        orderly = orderly.withColumns({ARRIVAL: F.lit(None).cast("long"), ORDER: moment})
    return orderly.unionByName(judged_by_watermark(behind, batch, grids, moment))


def with_watermark_at_arrival(rows: DataFrame, surveyed: BlockSurvey, batch: Input) -> DataFrame:
    """Add the watermark at each row's arrival; null in blocks without late rows, where it makes no difference."""
    if not surveyed.behind:
        return without_watermark(rows)
    orderly, behind = _by_blocks(rows, surveyed, batch)
    return without_watermark(orderly).unionByName(behind)


def without_watermark(rows: DataFrame) -> DataFrame:
    """As :func:`with_watermark_at_arrival`, for an input without late rows: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))


def numbered(rows: DataFrame, surveyed: BlockSurvey) -> DataFrame:
    """Add a number to each row, ascending in order of arrival over all batches."""
    return rows.withColumn(NUMBER_OF, _number(surveyed))


def _number(surveyed: BlockSurvey) -> Column:
    """A row's number, ascending in order of arrival."""
    starts = F.lit(list(surveyed.starts)) if surveyed.starts else F.array(F.lit(0))
    return starts[F.col(FILE)].cast("long") + F.col(ROW)


def moment_of(number: Column, batch: Input) -> Column:
    """:func:`windowmill.windowing.watermark.moments_of` in Spark."""
    return number if batch.by_row else F.shiftright(number, COMMIT_SHIFT)


def _block(block_rows: int | None) -> Column:
    """The block of a row in its file."""
    return F.lit(0).cast("long") if block_rows is None else F.floor(F.col(ROW) / block_rows)


def _by_blocks(rows: DataFrame, surveyed: BlockSurvey, batch: Input) -> tuple[DataFrame, DataFrame]:
    """The rows of blocks without late rows, and those of the other blocks with the watermark at their arrival."""
    file, number, watermark = zip(*surveyed.behind, strict=True)
    found = pa.table({FILE: pa.array(file, pa.int32()), "_block": number, WATERMARK_OF: watermark})
    found = rows.sparkSession.createDataFrame(without_empty_chunks(found))
    joined = rows.withColumn("_block", _block(surveyed.block_rows)).join(F.broadcast(found), [FILE, "_block"], "left")
    orderly, behind = joined.where(F.col(WATERMARK_OF).isNull()).drop(WATERMARK_OF), joined.where(F.col(WATERMARK_OF).isNotNull())
    if surveyed.block_rows is not None:
        earlier = Window.partitionBy(FILE, "_block").orderBy(ROW).rowsBetween(Window.unboundedPreceding, -1)
        seen = F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(earlier)
        behind = behind.withColumn(WATERMARK_OF, F.greatest(F.col(WATERMARK_OF), seen - F.lit(batch.disorder)))
    return orderly.drop("_block"), behind.drop("_block")


def judged_by_watermark(rows: DataFrame, batch: Input, grids: Sequence[WindowGrid], moment: Column) -> DataFrame:
    """As :func:`judged`, of rows with the watermark at their arrival, which is dropped, and that arrived at this ``moment``."""
    watermark = F.col(WATERMARK_OF)
    closed = watermark - F.lit(batch.lateness)
    usable = F.col(REASON).isNull()
    time = F.when(usable, F.col(TIME))  # arithmetic on times outside the axis would overflow
    last = last_instant(rows, usable)
    late = F.coalesce(usable & (time < watermark), F.lit(False))
    hopping = all_hopping(grids)
    if hopping is not None:
        first_end = _least([first_end_after(grid, time) for grid in hopping])
        last_end, edge = _greatest([last_end_holding(grid, last) for grid in hopping]), slice_start(Edges.of(hopping), closed)
    else:
        # ``closed`` never passes the watermark, so only late rows can have missed a window.
        rows = rows.withColumn(_CLOSING, closing(grids, F.when(late, time), closed, last))
        first_end, last_end, edge = (F.col(f"{backquoted(_CLOSING)}.{name}") for name in _VALUES)
    too_late = usable & (last_end > time) & (last_end <= closed)
    marks = {LATE: late, CLOSED: F.when(usable & (first_end <= closed), edge)}
    if batch.revises:
        missed = usable & (first_end <= watermark)
        marks |= {CLOSED: F.when(missed, watermark), ARRIVAL: F.when(missed, moment), ORDER: moment}
    reason = F.when(too_late, F.lit("too_late")).otherwise(F.col(REASON))
    return rows.withColumns({**marks, REASON: reason}).drop(_CLOSING, WATERMARK_OF)


def last_instant(rows: DataFrame, chosen: Column) -> Column:
    """The last instant of the events of the ``chosen`` rows: where events are points, their time. Null for other rows."""
    time = F.col(TIME)
    return F.when(chosen, F.greatest(F.col(UNTIL_OF) - 1, time) if UNTIL_OF in rows.columns else time)


def closing(grids: Sequence[WindowGrid], time: Column, closed: Column, last: Column) -> Column:
    """:func:`windowmill.windowing.grids.closing_of` in Spark: a struct of its three values, null where ``time`` is null."""

    def found(time: pa.Array, closed: pa.Array, last: pa.Array) -> pa.Array:
        return _closing(grids, time, closed, last)

    # PySpark advises against the function type, which its stubs want.
    made = arrow_udf(found, from_arrow_schema(pa.schema([(name, pa.int64()) for name in _VALUES])))  # type: ignore[call-overload]
    return cast("Column", made(time, closed, last))


def last_end(grids: Sequence[WindowGrid], time: Column, closed: Column, last: Column) -> Column:
    """The value ``last_end`` of :func:`windowmill.windowing.grids.closing_of` in Spark, null where ``time`` is null."""
    hopping = all_hopping(grids)
    if hopping is None:
        return closing(grids, time, closed, last)["last_end"]
    return _greatest([last_end_holding(grid, last) for grid in hopping])


def _closing(grids: Sequence[WindowGrid], time: pa.Array, closed: pa.Array, last: pa.Array) -> pa.Array:
    """Runs in an executor."""
    known = time.is_valid()
    closings = closing_of(grids, *(column.filter(known).to_numpy().astype(np.int64) for column in (time, closed, last)))
    rows = np.flatnonzero(known.to_numpy(zero_copy_only=False))
    places = np.zeros(len(time), np.int64)
    places[rows] = np.arange(len(rows))
    taken = pa.array(places, mask=~known.to_numpy(zero_copy_only=False))
    return pa.StructArray.from_arrays([pa.array(getattr(closings, name)).take(taken) for name in _VALUES], _VALUES)


def _least(columns: list[Column]) -> Column:
    return F.least(*columns) if len(columns) > 1 else columns[0]


def _greatest(columns: list[Column]) -> Column:
    return F.greatest(*columns) if len(columns) > 1 else columns[0]


def slice_start(edges: Edges, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Edges.slice_start` in Spark SQL."""
    return _greatest([time - F.pmod(time - F.lit(phase), F.lit(period)) for period, phase in edges.sequences])


def first_end_after(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.first_end_after` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.size + grid.origin), F.lit(grid.hop)) + F.lit(grid.hop)


def last_end_holding(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.last_end_holding` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.origin), F.lit(grid.hop)) + F.lit(grid.size)
