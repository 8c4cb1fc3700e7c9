"""The new rows of a batch that Spark reads, with their place in the order of arrival, and the watermark at their arrival.

The watermark at a row's arrival is (greatest event time of the commits before its own) − disorder. One job surveys the files, and tells
the watermark that each of them finds; only files with a row behind it are looked at again. With ``time.arrival: row`` the watermark moves
from row to row. Then files are surveyed in blocks, and only blocks with a row behind the watermark are processed row by row: a running
maximum over all rows would need a full sort. What the watermark means for a row, tasks judge by :mod:`.lateness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.sources.columns import FILE, REASON, ROW, VERSION, Columns
from windowmill.jobs.sources.rows import event_end
from windowmill.jobs.ways import row_numbers
from windowmill.jobs.ways.file_survey import Survey
from windowmill.jobs.ways.lateness import LatenessRule
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.jobs.ways.input import Input, SourceInput, TableInput
    from windowmill.windowing.columnar.slices import Reading

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


@dataclass(frozen=True)
class NumberedRows:
    """New rows of ``batch`` as they ``arrived``, and their survey."""

    arrived: DataFrame
    survey: BlockSurvey
    batch: SourceInput

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: SourceInput, *, every: bool = False) -> NumberedRows:
        """Survey the rows in one Spark job; ``every`` is as of :func:`survey`."""
        return cls(arrived, survey(arrived, batch, every=every), batch)

    @cached_property
    def rows(self) -> DataFrame:
        """The rows with end of event, number in order of arrival, and watermark at arrival."""
        ended = self.arrived.withColumn(UNTIL_OF, event_end(self.batch.pipeline, self.batch.columns))
        starts = F.lit(list(self.survey.starts)) if self.survey.starts else F.array(F.lit(0))
        numbered = ended.withColumn(NUMBER_OF, starts[F.col(FILE)].cast("long") + F.col(ROW))
        return with_watermark_at_arrival(numbered, self.survey, self.batch)

    @property
    def rule(self) -> LatenessRule | None:
        """What decides which of the rows are late; null if none can be late."""
        return LatenessRule.of(self.batch) if self.survey.behind else None

    def usable(self) -> DataFrame:
        """The rows without a quarantine reason."""
        return self.rows.where(F.col(REASON).isNull())

    def read_by(self, stage: Reading, schema: pa.Schema) -> DataFrame:
        """The usable rows with the columns that ``stage`` reads, and those of ``sent(schema)`` that the source does not have."""
        read, names = inputs(self.rows, stage), sent(schema).names
        return self.usable().select(*read, *(F.col(name) for name in (TIME, UNTIL_OF, NUMBER_OF, WATERMARK_OF) if name in names))


def read_by_spark(batch: TableInput, stages: Sequence[Reading], spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``, read by Spark, with what the ``stages`` read, and all columns that this process can write as JSON."""
    rows = batch.read(spark)
    own = [name for name in (FILE, ROW, VERSION, REASON, TIME, UNTIL_OF) if name in rows.columns]
    columns = dict.fromkeys(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns))
    whole = batch.types if spark_form.takes(batch.types.values()) else {}
    names = [backquoted(name) for name in dict.fromkeys([*columns, *whole])]
    return rows.select(*own, *names, *conditions(rows, *stages, where=F.col(REASON).isNull()))


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


def sent(schema: pa.Schema) -> pa.Schema:
    """The columns that Spark sends to tasks, so that these can make all columns of ``schema`` by :func:`.lateness.marked`."""
    if CLOSED not in schema.names:
        return schema
    return pa.schema([*(field for field in schema if field.name not in (CLOSED, LATE)), (WATERMARK_OF, pa.int64())])


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


def with_watermark_at_arrival(rows: DataFrame, surveyed: BlockSurvey, batch: Input) -> DataFrame:
    """Add the watermark at each row's arrival; null in blocks without late rows, where it makes no difference."""
    if not surveyed.behind:
        return without_watermark(rows)
    file, number, watermark = zip(*surveyed.behind, strict=True)
    found = pa.table({FILE: pa.array(file, pa.int32()), "_block": number, WATERMARK_OF: watermark})
    found = rows.sparkSession.createDataFrame(without_empty_chunks(found))
    joined = rows.withColumn("_block", _block(surveyed.block_rows)).join(F.broadcast(found), [FILE, "_block"], "left")
    if surveyed.block_rows is None:
        return joined.drop("_block")
    orderly, behind = joined.where(F.col(WATERMARK_OF).isNull()), joined.where(F.col(WATERMARK_OF).isNotNull())
    earlier = Window.partitionBy(FILE, "_block").orderBy(ROW).rowsBetween(Window.unboundedPreceding, -1)
    seen = F.max(F.when(F.col(REASON).isNull(), F.col(TIME))).over(earlier)
    behind = behind.withColumn(WATERMARK_OF, F.greatest(F.col(WATERMARK_OF), seen - F.lit(batch.disorder)))
    return orderly.unionByName(behind).drop("_block")


def without_watermark(rows: DataFrame) -> DataFrame:
    """As :func:`with_watermark_at_arrival`, for an input without late rows: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))


def _block(block_rows: int | None) -> Column:
    """The block of a row in its file."""
    return F.lit(0).cast("long") if block_rows is None else F.floor(F.col(ROW) / block_rows)
