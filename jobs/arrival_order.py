"""The order of arrival of a DataFrame's rows, by a column: their numbers, and the watermark at their arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.layouts import lateness
from windowmill.jobs.reasons import TOO_LATE
from windowmill.jobs.schedulers.spark import numbered_rows as numbering
from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.jobs.spark.access import mapped
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windowmill.jobs.layouts.input import Input
    from windowmill.windowing.slicing.edges import WindowGrid

#: Columns of a commit: value of the column of arrival, number of the commit and of its first row.
_VALUE, _COMMIT, _FIRST = "_ value", "_ commit", "_ first"


@dataclass(frozen=True)
class Arrived:
    """Rows in order of arrival.

    Attributes
    ----------
    rows
        The rows with their number, and the watermark at their arrival, null where it makes no difference.
    n_rows
        Number of rows.
    seen
        Greatest event time of all; null if there is none.
    late
        Whether there are late rows.
    """

    rows: DataFrame
    n_rows: int
    seen: int | None
    late: bool

    @classmethod
    def of(cls, rows: DataFrame, batch: Input, order: Sequence[str], needed: Sequence[str]) -> Self:
        """The ``rows`` in order of the columns ``order``; rows with equal values of the first one are a commit.

        Late rows are found by reading the ``needed`` columns once.
        """
        arrival = order[0]
        # Sorted by ranges of the first column alone, so that no commit is split between Spark partitions.
        ordered = _placed(rows.repartitionByRange(backquoted(arrival)).sortWithinPartitions(*map(backquoted, order)))
        found = cls._by_commit(ordered, batch, arrival)
        if not found.late:
            return found
        # Whether a row is late depends on all rows before it, so the numbers must not change any more: sort once.
        own = [TIME, UNTIL_OF, FILE, ROW, REASON, NUMBER_OF]
        return cls._by_commit(ordered.select(*map(backquoted, dict.fromkeys(needed)), *own).localCheckpoint(), batch, arrival)

    @classmethod
    def _by_commit(cls, rows: DataFrame, batch: Input, arrival: str) -> Self:
        usable = F.when(F.col(REASON).isNull(), F.col(TIME))
        # Of a window without partitions a client of Spark Connect warns; Spark takes a constant out of the plan.
        in_order = Window.partitionBy(F.lit(0)).orderBy(_FIRST)
        seen = F.max("_high").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        commits = (
            rows.groupBy(F.col(backquoted(arrival)).alias(_VALUE))
            .agg(F.min(NUMBER_OF).alias(_FIRST), F.min(usable).alias("_low"), F.max(usable).alias("_high"), F.count("*").alias("_rows"))
            .withColumns({_COMMIT: F.row_number().over(in_order).cast("long"), WATERMARK_OF: seen - F.lit(batch.rule.disorder)})
        )
        late = F.max(F.col("_low") < F.col(WATERMARK_OF))
        n_rows, greatest, is_late = commits.agg(F.sum("_rows"), F.max("_high"), late).collect()[0]
        if not is_late:
            return cls(numbering.without_watermark(rows), n_rows or 0, greatest, late=False)
        found = commits.select(_VALUE, _FIRST, _COMMIT, WATERMARK_OF)
        joined = rows.join(found, F.col(backquoted(arrival)).eqNullSafe(F.col(backquoted(_VALUE))))
        number = F.shiftleft(F.col(backquoted(_COMMIT)), COMMIT_SHIFT) + F.col(NUMBER_OF) - F.col(backquoted(_FIRST))
        return cls(joined.withColumn(NUMBER_OF, number).drop(_VALUE, _FIRST, _COMMIT), n_rows, greatest, late=True)

    def too_late(self, batch: Input, grids: Sequence[WindowGrid], label: str) -> DataFrame:
        """``label`` and reason of the rows that are too late for windows on ``grids``."""
        behind = self.rows.where(F.col(REASON).isNull() & (F.col(TIME) < F.col(WATERMARK_OF)))
        schema = pa.schema([(label, batch.types[label]), (REASON, pa.string())])
        own = behind.select(backquoted(label), TIME, UNTIL_OF, NUMBER_OF, WATERMARK_OF)
        return mapped(own, partial(_too_late, batch.lateness, grids, schema), schema)


def _too_late(
    lateness_of: int, grids: Sequence[WindowGrid], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for batch in batches:
        rows = lateness.marked(pa.Table.from_batches([batch]), lateness_of)
        late = rows.filter(pc.is_in(rows.column(NUMBER_OF), pa.array(lateness.too_late_among(rows, None, grids))))
        yield from late.append_column(REASON, pa.repeat(TOO_LATE, late.num_rows)).select(schema.names).cast(schema).to_batches()


def numbered(rows: DataFrame) -> DataFrame:
    """Add a number to each row, in the order of ``rows``."""
    return rows.withColumn(NUMBER_OF, _place())


def _placed(rows: DataFrame) -> DataFrame:
    """Add to each row its number, and what it consists of: the number of the Spark partition, and of the row in it."""
    place = _place()
    own = {FILE: F.shiftright(place, COMMIT_SHIFT).cast("int"), ROW: place.bitwiseAND((1 << COMMIT_SHIFT) - 1), NUMBER_OF: place}
    return rows.withColumns(own)


def _place() -> Column:
    # Its low 33 bits count the rows of a Spark partition, as those of a number count the rows of a commit.
    return F.monotonically_increasing_id()
