"""Which rows arrived late: the watermark as each row found it, in arrival order, however the input was cut into batches.

The watermark a row finds is (greatest event time of the rows before it) − disorder. A running maximum over all rows in order would mean
sorting them all; instead the rows are surveyed in blocks of their files. Only blocks that hold a row behind the watermark (few, unless
the data is badly out of order) are looked at row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.windowing.axis import Edges, Grid
from windowmill.windowing.columnar.slices import CLOSED, LATE, TIME
from windowmill.windowing.kernels.slices import slice_starts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windowmill.windowing.kernels.combine import Ints

#: Smallest block, in rows; larger batches get larger blocks, so that the survey that comes to the driver stays small.
BLOCK_ROWS = 4_096
MAX_BLOCKS = 50_000
#: Bits of a row's number that count the rows of a batch; those above them count batches.
_BATCH_SHIFT = 43
#: Before every event time.
_NEVER = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Survey:
    """A batch's rows in blocks.

    Attributes
    ----------
    rows, unusable
        Rows read; rows without a usable event time.
    seen
        Greatest event time after the batch; null if no row ever had one.
    behind
        (file, block, greatest event time before the block) of the blocks that hold rows behind the watermark.
    starts
        For each file, in order, a number above the places of all rows in the files before it, counted on from theirs.
    """

    rows: int
    unusable: int
    seen: int | None
    block_rows: int
    behind: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...]


def survey(rows: DataFrame, *, seen: int | None, disorder: int, expected_rows: int = 0, every: bool = False, settled: int = 0) -> Survey:
    """Survey ``rows`` of one batch that follows others which have seen event times up to ``seen``.

    ``every`` takes all blocks for behind, where what each row has met matters. Rows of the first ``settled`` files count as arrived in
    the order of event time: none of them is behind.
    """
    block_rows = max(BLOCK_ROWS, expected_rows // MAX_BLOCKS)
    usable = F.when(F.col(REASON).isNull(), F.col(TIME))
    blocks = (
        rows.groupBy(FILE, F.floor(F.col(ROW) / block_rows).alias("block"))
        .agg(F.min(usable).alias("low"), F.max(usable).alias("high"), F.count("*").alias("rows"), F.count(usable).alias("usable"))
        .collect()
    )
    behind = []
    for block in sorted(blocks, key=lambda block: (block[FILE], block["block"])):
        if block["high"] is None:
            continue
        through = block["high"] if seen is None else max(seen, block["high"])
        if block[FILE] >= settled and (every or block["low"] < through - disorder):
            behind.append((block[FILE], block["block"], block["low"] if seen is None else seen))
        seen = through
    read, usable_rows = sum(block["rows"] for block in blocks), sum(block["usable"] for block in blocks)
    ends = dict.fromkeys(range(1 + max((block[FILE] for block in blocks), default=-1)), 0)
    for block in blocks:
        ends[block[FILE]] = max(ends[block[FILE]], (block["block"] + 1) * block_rows)
    starts = (0, *accumulate(ends.values()))[:-1]
    return Survey(read, read - usable_rows, seen, block_rows, tuple(behind), starts)


def survey_here(rows: pa.Table, *, seen: int | None) -> Survey:
    """Survey the rows of a little batch; they are looked at one by one later, and not in blocks."""
    highest = pc.max(_usable_times(rows)).as_py()
    now = max((time for time in (seen, highest) if time is not None), default=None)
    return Survey(rows.num_rows, rows.num_rows - rows.column(REASON).null_count, now, BLOCK_ROWS, (), ())


def judge_here(rows: pa.Table, *, seen: int | None, disorder: int, lateness: int, grids: Sequence[Grid], settled: int = 0) -> pa.Table:
    """As :func:`judge` over all rows of a little batch in the order of their arrival, which follows others that have ``seen``.

    Rows of the first ``settled`` files count as arrived in the order of event time.
    """
    times = pc.fill_null(_usable_times(rows), _NEVER).to_numpy()
    met = np.maximum.accumulate(np.append(_NEVER if seen is None else seen, times))[1:]
    met = np.where(rows.column(FILE).to_numpy() < settled, _NEVER, met)
    return _close_here(rows, met - (disorder + lateness), met - disorder, grids)


def judge_by_here(rows: pa.Table, closed: Ints, *, lateness: int, grids: Sequence[Grid]) -> pa.Table:
    """As :func:`judge_by`, over the rows of a little batch."""
    return _close_here(rows, closed, closed + lateness, grids)


def _usable_times(rows: pa.Table) -> pa.ChunkedArray:
    return pc.if_else(pc.is_null(rows.column(REASON)), rows.column(TIME), pa.scalar(None, pa.int64()))


def _close_here(rows: pa.Table, closed: Ints, watermark: Ints, grids: Sequence[Grid]) -> pa.Table:
    """As :func:`_close`; a watermark never passes what has been closed, so that only rows behind it can be late for a window."""
    times = pc.fill_null(_usable_times(rows), 1 << 62).to_numpy()
    late = times < watermark
    if not late.any():
        return rows
    first_end = np.min([grid.first_end_after(times) for grid in grids], axis=0)
    last_end = np.max([grid.last_end_holding(times) for grid in grids], axis=0)
    trains = np.array(Edges.of(grids).trains, np.int64)
    edges = slice_starts(closed, trains[:, 0].copy(), trains[:, 1].copy())
    reason = pc.if_else(pa.array((last_end > times) & (last_end <= closed)), "too_late", rows.column(REASON))
    judged = rows.set_column(rows.schema.get_field_index(REASON), REASON, reason)
    return judged.append_column(LATE, pa.array(late)).append_column(CLOSED, pa.array(edges, mask=first_end > closed))


def judge(rows: DataFrame, found: Survey, *, disorder: int, lateness: int, grids: Sequence[Grid]) -> DataFrame:
    """Where rows came late, add ``_late`` and ``_closed``, and the reason ``too_late`` where no window of ``grids`` was open any more.

    ``_late`` tells whether the row came behind the watermark. ``_closed`` is null when every window that holds the row was open to it;
    else a slice edge: the row counts in the windows that end after it.
    """
    if not found.behind:
        return rows
    block = F.floor(F.col(ROW) / found.block_rows)
    file, number, seen_before = zip(*found.behind, strict=True)
    before = rows.sparkSession.createDataFrame(pa.table({FILE: pa.array(file, pa.int32()), "_block": number, "_before": seen_before}))
    joined = rows.withColumn("_block", block).join(F.broadcast(before), [FILE, "_block"], "left")
    orderly = joined.where(F.col("_before").isNull()).withColumn(LATE, F.lit(False)).withColumn(CLOSED, F.lit(None).cast("long"))
    so_far = Window.partitionBy(FILE, "_block").orderBy(ROW)
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(so_far))
    late = joined.where(F.col("_before").isNotNull()).withColumn("_seen", seen)
    behind = _close(late, F.col("_seen") - F.lit(disorder + lateness), F.col("_seen") - F.lit(disorder), grids).drop("_seen")
    return orderly.unionByName(behind).drop("_block", "_before")


def met(rows: DataFrame, found: Survey, *, disorder: int) -> DataFrame:
    """Add ``_watermark``, the watermark that each row met, to those in blocks that are behind; to others null."""
    if not found.behind:
        return rows.withColumn("_watermark", F.lit(None).cast("long"))
    file, number, seen_before = zip(*found.behind, strict=True)
    before = rows.sparkSession.createDataFrame(pa.table({FILE: pa.array(file, pa.int32()), "_block": number, "_before": seen_before}))
    joined = rows.withColumn("_block", F.floor(F.col(ROW) / found.block_rows)).join(F.broadcast(before), [FILE, "_block"], "left")
    others = joined.where(F.col("_before").isNull()).withColumn("_watermark", F.lit(None).cast("long"))
    earlier = Window.partitionBy(FILE, "_block").orderBy(ROW).rowsBetween(Window.unboundedPreceding, -1)
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(earlier))
    behind = joined.where(F.col("_before").isNotNull()).withColumn("_watermark", seen - F.lit(disorder))
    return others.unionByName(behind).drop("_block", "_before")


def number(found: Survey, batch: int) -> Column:
    """A number for each row, ascending in the order of arrival over all batches."""
    starts = F.lit(list(found.starts)) if found.starts else F.array(F.lit(0))
    return F.lit(batch << _BATCH_SHIFT) + starts[F.col(FILE)].cast("long") + F.col(ROW)


def judge_by(rows: DataFrame, closed: Column, *, lateness: int, grids: Sequence[Grid]) -> DataFrame:
    """As :func:`judge`, where the orchestrator vouches for the watermark: each row found windows closed through ``closed``."""
    return _close(rows, closed, closed + F.lit(lateness), grids)


def _close(rows: DataFrame, closed: Column, watermark: Column, grids: Sequence[Grid]) -> DataFrame:
    """Mark rows behind ``watermark``, and those to which windows that end through ``closed`` were closed."""
    usable = F.col(REASON).isNull()
    time = F.when(usable, F.col(TIME))  # sums with times beyond the axis would overflow
    first_end, last_end = (
        _least([first_end_after(grid, time) for grid in grids]),
        _greatest([last_end_holding(grid, time) for grid in grids]),
    )
    too_late = usable & (last_end > time) & (last_end <= closed)
    return (
        rows.withColumn(LATE, usable & (time < watermark))
        .withColumn(CLOSED, F.when(usable & (first_end <= closed), slice_start(Edges.of(grids), closed)))
        .withColumn(REASON, F.when(too_late, F.lit("too_late")).otherwise(F.col(REASON)))
    )


def _least(columns: list[Column]) -> Column:
    return F.least(*columns) if len(columns) > 1 else columns[0]


def _greatest(columns: list[Column]) -> Column:
    return F.greatest(*columns) if len(columns) > 1 else columns[0]


def slice_start(edges: Edges, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Edges.slice_start` in Spark SQL."""
    return _greatest([time - F.pmod(time - F.lit(phase), F.lit(period)) for period, phase in edges.trains])


def first_end_after(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.first_end_after` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.size + grid.origin), F.lit(grid.hop)) + F.lit(grid.hop)


def last_end_holding(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.last_end_holding` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.origin), F.lit(grid.hop)) + F.lit(grid.size)
