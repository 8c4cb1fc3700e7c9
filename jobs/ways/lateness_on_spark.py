"""Which rows arrived late, in Spark: the watermark as each row found it, in arrival order, however the input was cut into batches.

The watermark a row finds is (greatest event time of the rows before it) − disorder. A running maximum over all rows in order would mean
sorting them all; instead the rows are surveyed in blocks of their files. Only blocks that hold a row behind the watermark (few, unless
the data is badly out of order) are looked at row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.windowing.axis import Edges, Grid
from windowmill.windowing.columnar.log import NUMBER_OF, WATERMARK_OF
from windowmill.windowing.columnar.slices import CLOSED, LATE, TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

    from windowmill.jobs.ways.input import Input

#: Smallest block, in rows; larger batches get larger blocks, so that the survey that comes to the driver stays small.
BLOCK_ROWS = 4_096
MAX_BLOCKS = 50_000
#: Bits of a row's number that count the rows of a batch; those above them count batches.
_BATCH_SHIFT = 43


@dataclass(frozen=True, slots=True)
class Survey:
    """A batch's rows in blocks.

    Attributes
    ----------
    rows
        Number of rows read.
    seen
        Greatest event time after the batch; null if no row ever had one.
    behind
        (file, block, greatest event time before the block) of the blocks that hold rows behind the watermark.
    starts
        For each file, in order, a number above the places of all rows in the files before it, counted on from theirs.
    """

    rows: int
    seen: int | None
    block_rows: int
    behind: tuple[tuple[int, int, int], ...]
    starts: tuple[int, ...]


def survey(rows: DataFrame, batch: Input) -> Survey:
    """Survey the ``rows`` of ``batch``.

    With ``emit: revise`` every block counts as behind: a revision is brought by a row at the watermark that it met. Rows of settled files
    count as arrived in the order of event time, so none of them is behind.
    """
    every, seen = batch.pipeline.emit == "revise", batch.seen
    block_rows = max(BLOCK_ROWS, batch.expected_rows // MAX_BLOCKS)
    usable = F.when(F.col(REASON).isNull(), F.col(TIME))
    blocks = (
        rows.groupBy(FILE, F.floor(F.col(ROW) / block_rows).alias("block"))
        .agg(F.min(usable).alias("low"), F.max(usable).alias("high"), F.count("*").alias("rows"))
        .collect()
    )
    behind = []
    for block in sorted(blocks, key=lambda block: (block[FILE], block["block"])):
        if block["high"] is None:
            continue
        through = block["high"] if seen is None else max(seen, block["high"])
        if block[FILE] >= batch.settled and (every or block["low"] < through - batch.disorder):
            behind.append((block[FILE], block["block"], block["low"] if seen is None else seen))
        seen = through
    ends = dict.fromkeys(range(1 + max((block[FILE] for block in blocks), default=-1)), 0)
    for block in blocks:
        ends[block[FILE]] = max(ends[block[FILE]], (block["block"] + 1) * block_rows)
    starts = (0, *accumulate(ends.values()))[:-1]
    return Survey(sum(block["rows"] for block in blocks), seen, block_rows, tuple(behind), starts)


def judged(rows: DataFrame, found: Survey, batch: Input, grids: Sequence[Grid]) -> DataFrame:
    """Where rows came late, add ``_late`` and ``_closed``, and the reason ``too_late`` where no window of ``grids`` was open any more.

    ``_late`` says whether the row came behind the watermark. ``_closed`` is null when every window that holds the row was open to it;
    else a slice edge: the row counts in the windows that end after it.
    """
    if batch.closed_by_file is not None:
        closed = _closed(batch.closed_by_file)
        return _close(rows, closed, closed + F.lit(batch.lateness), grids)
    if not found.behind:
        return rows
    orderly, behind = _by_blocks(rows, found)
    orderly = orderly.withColumn(LATE, F.lit(False)).withColumn(CLOSED, F.lit(None).cast("long"))
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(_so_far()))
    behind = behind.withColumn("_seen", seen)
    watermark = F.col("_seen") - F.lit(batch.disorder)
    late = _close(behind, watermark - F.lit(batch.lateness), watermark, grids).drop("_seen")
    return orderly.unionByName(late).drop("_block", "_before")


def met(rows: DataFrame, found: Survey, batch: Input) -> DataFrame:
    """Add the watermark that each row met; null to rows in blocks that are not behind, to which it makes no difference."""
    if batch.closed_by_file is not None:
        return rows.withColumn(WATERMARK_OF, _closed(batch.closed_by_file) + F.lit(batch.lateness))
    if not found.behind:
        return unmet(rows)
    orderly, behind = _by_blocks(rows, found)
    earlier = _so_far().rowsBetween(Window.unboundedPreceding, -1)
    seen = F.greatest(F.col("_before"), F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(earlier))
    return unmet(orderly).unionByName(behind.withColumn(WATERMARK_OF, seen - F.lit(batch.disorder))).drop("_block", "_before")


def unmet(rows: DataFrame) -> DataFrame:
    """As :func:`met` where no row is late."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))


def numbered(rows: DataFrame, found: Survey, batch: int) -> DataFrame:
    """Add a number to each row, ascending in the order of arrival over all batches."""
    starts = F.lit(list(found.starts)) if found.starts else F.array(F.lit(0))
    return rows.withColumn(NUMBER_OF, F.lit(batch << _BATCH_SHIFT) + starts[F.col(FILE)].cast("long") + F.col(ROW))


def _by_blocks(rows: DataFrame, found: Survey) -> tuple[DataFrame, DataFrame]:
    """The rows of blocks that are not behind, and those of blocks that are, with the greatest event time before the block."""
    file, number, seen_before = zip(*found.behind, strict=True)
    before = rows.sparkSession.createDataFrame(pa.table({FILE: pa.array(file, pa.int32()), "_block": number, "_before": seen_before}))
    joined = rows.withColumn("_block", F.floor(F.col(ROW) / found.block_rows)).join(F.broadcast(before), [FILE, "_block"], "left")
    return joined.where(F.col("_before").isNull()), joined.where(F.col("_before").isNotNull())


def _so_far() -> WindowSpec:
    """The rows of a block through the current one, in the order of arrival."""
    return Window.partitionBy(FILE, "_block").orderBy(ROW)


def _closed(by_file: Sequence[int]) -> Column:
    """The instant through which windows were closed to a row, where the orchestrator vouches for it."""
    return F.lit(list(by_file))[F.col(FILE)].cast("long")


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
    return _greatest([time - F.pmod(time - F.lit(phase), F.lit(period)) for period, phase in edges.sequences])


def first_end_after(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.first_end_after` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.size + grid.origin), F.lit(grid.hop)) + F.lit(grid.hop)


def last_end_holding(grid: Grid, time: Column) -> Column:
    """:meth:`windowmill.windowing.axis.Grid.last_end_holding` in Spark SQL."""
    return time - F.pmod(time - F.lit(grid.origin), F.lit(grid.hop)) + F.lit(grid.size)
