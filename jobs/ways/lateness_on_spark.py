"""Finds late rows in Spark: computes the watermark at each row's arrival, independent of how the input is split into batches.

The watermark at a row's arrival is (greatest event time of the rows before it) − disorder. A running maximum over all rows would need a
full sort. Instead, rows are surveyed in blocks of their files. Only blocks with a row behind the watermark are processed row by row; they
are few unless the data is badly out of order.
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
from windowmill.windowing.axis import Edges, Grid, WindowGrid, all_hopping
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, LATE, NUMBER_OF, ORDER, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.grids import closing_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

    from windowmill.jobs.ways.input import Input

#: Column of a struct of what decides in which windows a late row counts, and the struct's fields.
_CLOSING, _VALUES = "_ closing", ("first_end", "last_end", "edge")


@dataclass(frozen=True, slots=True)
class Survey:
    """Survey of a batch's rows by blocks.

    Attributes
    ----------
    rows
        Number of rows read.
    seen
        Greatest event time after the batch; null if no row ever had one.
    behind
        (file, block, greatest event time before the block) of each block with rows behind the watermark.
    starts
        Offset of each file, in order, for numbering rows: greater than the number of every row in earlier files.
    low
        An event time that no late row is before; null if there are no late rows.
    """

    rows: int
    seen: int | None
    block_rows: int
    behind: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...]
    low: int | None = None


def survey(rows: DataFrame, batch: Input, *, every: bool = False) -> Survey:
    """Survey the ``rows`` of ``batch`` in one Spark job.

    Rows of settled files count as arrived in order of event time, so none of them is late. ``every`` treats all other blocks as late, which
    makes the watermark at each row's arrival known.
    """
    seen = batch.seen
    block_rows = row_numbers.block_rows(batch)
    usable = F.when(F.col(REASON).isNull(), F.col(TIME))
    blocks = (
        rows.groupBy(FILE, F.floor(F.col(ROW) / block_rows).alias("block"))
        .agg(F.min(usable).alias("low"), F.max(usable).alias("high"), F.count("*").alias("rows"))
        .collect()
    )
    behind, lows = [], []
    for block in sorted(blocks, key=lambda block: (block[FILE], block["block"])):
        if block["high"] is None:
            continue
        through = block["high"] if seen is None else max(seen, block["high"])
        late = block[FILE] >= batch.settled and block["low"] < through - batch.disorder
        if late or (every and block[FILE] >= batch.settled):
            behind.append((block[FILE], block["block"], block["low"] if seen is None else seen))
        if batch.closed_by_file is not None:
            late = block["low"] < batch.closed_by_file[block[FILE]] + batch.lateness
        if late:
            lows.append(block["low"])
        seen = through
    last: dict[int, int] = {}
    for block in blocks:
        last[block[FILE]] = max(last.get(block[FILE], 0), block["block"])
    starts = row_numbers.starts_of(last, block_rows)
    return Survey(sum(block["rows"] for block in blocks), seen, block_rows, tuple(behind), starts, min(lows, default=None))


def judged(rows: DataFrame, surveyed: Survey, batch: Input, grids: Sequence[WindowGrid]) -> DataFrame:
    """Add ``_late`` and ``_closed`` if there are late rows, and the reason ``too_late`` to rows for which no window was open.

    ``_late`` is whether the row arrived behind the watermark. ``_closed`` is null if every window that contains the row was open at its
    arrival. Otherwise it is a slice edge, and the row counts in the windows of ``grids`` that end after it.

    Where late rows bring revisions, ``_closed`` is null if no window that contains the row had been shown at its arrival. Otherwise it is
    the watermark then, and ``_arrival`` is the row's number. ``_order`` is the number of every row.
    """
    number = _number(surveyed) if batch.revises else None
    if batch.closed_by_file is not None:
        closed = _closed(batch.closed_by_file)
        return _close(rows, closed, closed + F.lit(batch.lateness), grids, number)
    if not surveyed.behind:
        return rows
    orderly, behind = _by_blocks(rows, surveyed)
    orderly = orderly.withColumn(LATE, F.lit(False)).withColumn(CLOSED, F.lit(None).cast("long"))
    if batch.revises:
        orderly = orderly.withColumns({ARRIVAL: F.lit(None).cast("long"), ORDER: _number(surveyed)})
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(_so_far()))
    behind = behind.withColumn("_seen", seen)
    watermark = F.col("_seen") - F.lit(batch.disorder)
    late = _close(behind, watermark - F.lit(batch.lateness), watermark, grids, number).drop("_seen")
    return orderly.unionByName(late).drop("_block", "_before")


def with_watermark_at_arrival(rows: DataFrame, surveyed: Survey, batch: Input) -> DataFrame:
    """Add the watermark at each row's arrival; null in blocks without late rows, where it makes no difference."""
    if batch.closed_by_file is not None:
        return rows.withColumn(WATERMARK_OF, _closed(batch.closed_by_file) + F.lit(batch.lateness))
    if not surveyed.behind:
        return without_watermark(rows)
    orderly, behind = _by_blocks(rows, surveyed)
    earlier = _so_far().rowsBetween(Window.unboundedPreceding, -1)
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(earlier))
    late = behind.withColumn(WATERMARK_OF, seen - F.lit(batch.disorder))
    return without_watermark(orderly).unionByName(late).drop("_block", "_before")


def without_watermark(rows: DataFrame) -> DataFrame:
    """As :func:`with_watermark_at_arrival`, for an input without late rows: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))


def numbered(rows: DataFrame, surveyed: Survey, batch: int) -> DataFrame:
    """Add a number to each row, ascending in order of arrival over all batches."""
    return rows.withColumn(NUMBER_OF, F.lit(batch << row_numbers.BATCH_SHIFT) + _number(surveyed))


def _number(surveyed: Survey) -> Column:
    """A row's number, ascending in order of arrival."""
    starts = F.lit(list(surveyed.starts)) if surveyed.starts else F.array(F.lit(0))
    return starts[F.col(FILE)].cast("long") + F.col(ROW)


def _by_blocks(rows: DataFrame, surveyed: Survey) -> tuple[DataFrame, DataFrame]:
    """The rows of blocks without late rows, and those of the other blocks with the greatest event time before the block."""
    file, number, seen_before = zip(*surveyed.behind, strict=True)
    told = pa.table({FILE: pa.array(file, pa.int32()), "_block": number, "_before": seen_before})
    before = rows.sparkSession.createDataFrame(without_empty_chunks(told))
    joined = rows.withColumn("_block", F.floor(F.col(ROW) / surveyed.block_rows)).join(F.broadcast(before), [FILE, "_block"], "left")
    return joined.where(F.col("_before").isNull()), joined.where(F.col("_before").isNotNull())


def _so_far() -> WindowSpec:
    """A window over the rows of a block through the current row, in order of arrival."""
    return Window.partitionBy(FILE, "_block").orderBy(ROW)


def _closed(by_file: Sequence[int]) -> Column:
    """The instant through which windows were closed at a row's arrival, by vouched time."""
    return F.lit(list(by_file))[F.col(FILE)].cast("long")


def _close(rows: DataFrame, closed: Column, watermark: Column, grids: Sequence[WindowGrid], number: Column | None) -> DataFrame:
    """Mark rows behind ``watermark``, and those that lie in a window that ends at or before ``closed``.

    Where late rows bring revisions, ``number`` is theirs, and those that lie in a window that ends at or before ``watermark`` are marked.
    """
    usable = F.col(REASON).isNull()
    time = F.when(usable, F.col(TIME))  # arithmetic on times outside the axis would overflow
    last = last_instant(rows, usable)
    late = usable & (time < watermark)
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
    if number is not None:
        missed = usable & (first_end <= watermark)
        marks |= {CLOSED: F.when(missed, watermark), ARRIVAL: F.when(missed, number), ORDER: number}
    return rows.withColumns({**marks, REASON: F.when(too_late, F.lit("too_late")).otherwise(F.col(REASON))}).drop(_CLOSING)


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
