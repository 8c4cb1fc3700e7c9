"""The new rows of a batch that Spark reads, with their place in the order of arrival, and the watermark at their arrival.

The watermark at a row's arrival is (greatest event time of the commits before its own) − disorder. One job surveys the files, and tells
the watermark that each of them finds; only files with a row behind it are read again. Tasks give the rows that they receive their event
times (:class:`.EventTimes`), and judge by :mod:`.lateness` what the watermark means for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.schedulers.files.survey import Survey
from windowmill.jobs.sources.columns import FAILED, FILE, ROW, VERSION, Columns
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.spark.access import mapped
from windowmill.jobs.ways import row_numbers
from windowmill.jobs.ways.lateness import LatenessRule, marked, usable, usable_times
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.kernels.lift import condition_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.jobs.ways.input import Input, SourceInput, TableInput
    from windowmill.windowing.columnar.slices import Reading

#: Columns of a survey: file, least and greatest event time, number of rows and of usable ones, greatest index.
_FILES = pa.schema([(FILE, pa.int32()), *((name, pa.int64()) for name in ("low", "high", "rows", "usable", "last"))])


@dataclass(frozen=True, slots=True)
class TableSurvey(Survey):
    """Survey of a batch's rows by files.

    Attributes
    ----------
    behind
        (file, watermark that it finds) of each file with rows behind the watermark.
    unusable
        The files with rows that have a quarantine reason.
    """

    behind: tuple[tuple[int, int], ...]
    unusable: tuple[int, ...]


@dataclass(frozen=True)
class NumberedRows:
    """New rows of ``batch`` as they ``arrived``, and their survey."""

    arrived: DataFrame
    survey: TableSurvey
    batch: SourceInput

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: SourceInput, *, every: bool = False) -> NumberedRows:
        """Survey the rows in one Spark job; ``every`` is as of :func:`survey`."""
        return cls(arrived, survey(arrived, batch, every=every), batch)

    @cached_property
    def rows(self) -> DataFrame:
        """The rows with end of event, number in order of arrival, and watermark at arrival."""
        ended = self.arrived
        if UNTIL_OF not in ended.columns:
            ended = ended.withColumn(UNTIL_OF, F.col(TIME))
        starts = F.lit(list(self.survey.starts)) if self.survey.starts else F.array(F.lit(0))
        numbered = ended.withColumn(NUMBER_OF, starts[F.col(FILE)].cast("long") + F.col(ROW))
        return _with_watermark(numbered, self.survey)

    @property
    def doubtful(self) -> DataFrame:
        """As ``rows``, of the files that hold rows which are not applied, if any is not."""
        files = {file for file, _ in self.survey.behind} | set(self.survey.unusable)
        return self.rows.where(F.col(FILE).isin(*files))

    @property
    def rule(self) -> LatenessRule | None:
        """What decides which of the rows are late; null if none can be late."""
        return LatenessRule.of(self.batch) if self.survey.behind else None

    def frame(self, spark: SparkSession, stage: Reading, schema: pa.Schema) -> DataFrame:  # noqa: ARG002 - as of FileRows
        """The usable rows as a DataFrame, with the columns of ``schema``."""
        sent = Sent.of(self.batch, schema)
        return mapped(self.read_by(stage, sent).select(*map(backquoted, sent.schema.names)), partial(_usable, sent), schema)

    def read_by(self, stage: Reading, sent: Sent) -> DataFrame:
        """The rows with the columns that ``stage`` reads, and those of ``sent`` that the source does not have."""
        own = [name for name in (NUMBER_OF, WATERMARK_OF) if name in sent.schema.names]
        return self.rows.select(*inputs(self.rows, stage, also=sent.times.columns), *own)


@dataclass(frozen=True)
class Sent:
    """What Spark sends of new rows to tasks that need the columns ``wanted``; picklable.

    Attributes
    ----------
    types
        Arrow types of the source's columns.
    lateness
        The pipeline's, in ticks of the axis.
    """

    wanted: pa.Schema
    times: EventTimes
    types: Mapping[str, pa.DataType]
    lateness: int

    @classmethod
    def of(cls, batch: Input, wanted: pa.Schema) -> Self:
        """What is sent of the rows of ``batch``."""
        return cls(wanted, batch.times, batch.types, batch.lateness)

    @property
    def schema(self) -> pa.Schema:
        """The columns that are sent."""
        made = (TIME, UNTIL_OF, CLOSED, LATE)
        kinds = {field.name: field.type for field in self.wanted if field.name not in made}
        kinds |= {name: self.types.get(name, pa.string()) for name in self.times.read} | {FAILED: pa.bool_()}
        return pa.schema(kinds | ({WATERMARK_OF: pa.int64()} if CLOSED in self.wanted.names else {}))

    def usable(self, rows: pa.Table) -> pa.Table:
        """The usable ones of the ``rows`` that were sent, with the columns ``wanted``."""
        rows = usable(self.times.of(rows))
        if CLOSED in self.wanted.names:
            rows = marked(rows, self.lateness)
        elif UNTIL_OF not in rows.column_names:
            rows = rows.append_column(UNTIL_OF, rows.column(TIME))
        return rows.select(self.wanted.names).cast(self.wanted)


def _usable(sent: Sent, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for batch in batches:
        yield from sent.usable(pa.Table.from_batches([batch])).combine_chunks().to_batches()


def read(batch: TableInput, spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``."""
    return read_rows(spark, batch.source, batch.reading, batch.runnable, now_us=batch.plan.now_us)


def read_by_spark(batch: TableInput, stages: Sequence[Reading], spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``, read by Spark, with what the ``stages`` read, and all columns that this process can write as JSON."""
    rows = read(batch, spark)
    whole = batch.types if spark_form.takes(batch.types.values()) else {}
    return rows.select(FILE, ROW, VERSION, *inputs(rows, *stages, also=[*whole, *batch.times.columns]))


def inputs(rows: DataFrame, *stages: Reading, also: Sequence[str] = ()) -> list[Column]:
    """The columns that stages read: of the source, those named in ``also``, and the conditions' truth."""
    names = dict.fromkeys([*(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)), *also])
    texts = dict.fromkeys(text for stage in stages for text in stage.conditions)
    types = Columns(rows.schema).in_conditions if texts else {}
    truths = [truth(text, types).alias(condition_column(text)) for text in texts]
    return [*(F.col(backquoted(name)) for name in names), *truths]


def survey(rows: DataFrame, batch: Input, *, every: bool = False) -> TableSurvey:
    """Survey the ``rows`` of ``batch`` in one Spark job.

    Rows of settled files count as arrived in order of event time, so none of them is late. ``every`` treats all other files as late, which
    makes the watermark at each row's arrival known.
    """
    chosen = rows.select(FILE, ROW, *map(backquoted, batch.times.columns))
    found = mapped(chosen, partial(_surveyed, batch.times), _FILES).toArrow()
    files = _joined([found]).sort_by(FILE).to_pylist()
    seen = arrived = batch.seen
    behind, lows, counts, commit = [], [], [0] * (1 + max((each[FILE] for each in files), default=-1)), None
    for each in files:
        file = each[FILE]
        counts[file] = each["last"] + 1
        if batch.commits[file] != commit:
            seen, commit = arrived, batch.commits[file]
        if each["high"] is None:
            continue
        arrived = each["high"] if arrived is None else max(arrived, each["high"])
        if batch.closed_by_file is not None:
            watermark = batch.closed_by_file[file] + batch.lateness
        elif file < batch.snapshot_files or seen is None:
            continue
        else:
            watermark = seen - batch.disorder
        late = each["low"] < watermark
        if late or every:
            behind.append((file, watermark))
        if late:
            lows.append(each["low"])
    starts = row_numbers.starts_of(counts, batch.commits, batch.first_row).tolist()
    unusable = tuple(each[FILE] for each in files if each["usable"] < each["rows"])
    return TableSurvey(sum(each["rows"] for each in files), arrived, tuple(starts), min(lows, default=None), tuple(behind), unusable)


def _surveyed(times: EventTimes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: least and greatest usable event time, number of rows and greatest index of a row, of each file."""
    found = [_FILES.empty_table()]
    for batch in batches:
        rows = times.of(pa.Table.from_batches([batch]))
        time = usable_times(rows)
        one, usable_ones = pa.repeat(pa.scalar(1, pa.int64()), len(rows)), pc.is_valid(time).cast(pa.int64())
        columns = [rows.column(FILE), time, time, one, usable_ones, rows.column(ROW)]
        found.append(_joined([pa.table(columns, schema=_FILES)]))
    yield from _joined(found).combine_chunks().to_batches()


def _joined(surveyed: Sequence[pa.Table]) -> pa.Table:
    """One row for each file."""
    how = {"low": "min", "high": "max", "rows": "sum", "usable": "sum", "last": "max"}
    joined = pa.concat_tables(surveyed).group_by(FILE).aggregate(list(how.items()))
    return joined.rename_columns([FILE, *how]).cast(_FILES)


def _with_watermark(rows: DataFrame, surveyed: TableSurvey) -> DataFrame:
    """Add the watermark at each row's arrival; null in files without late rows, where it makes no difference."""
    if not surveyed.behind:
        return without_watermark(rows)
    file, watermark = zip(*surveyed.behind, strict=True)
    found = pa.table({FILE: pa.array(file, pa.int32()), WATERMARK_OF: watermark})
    return rows.join(F.broadcast(rows.sparkSession.createDataFrame(without_empty_chunks(found))), [FILE], "left")


def without_watermark(rows: DataFrame) -> DataFrame:
    """Add a watermark to the rows of an input without late ones: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))
