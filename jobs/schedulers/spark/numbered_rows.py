"""The new rows of a batch that Spark reads, with their place in the order of arrival, and the watermark at their arrival.

The watermark at a row's arrival is (greatest event time of the commits before its own) − disorder. One job surveys the files, and gives
the watermark that each of them finds; only files with a row behind it are read again. Tasks give the rows that they receive their event
times (:class:`.EventTimes`), and judge by :mod:`.lateness` what the watermark means for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import truth
from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.layouts.lateness import usable_times
from windowmill.jobs.schedulers.files.survey import Survey, Times, surveyed
from windowmill.jobs.schedulers.spark.exchange import RowsOfFrame
from windowmill.jobs.sources.columns import FILE, ROW, VERSION, Columns
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.sources.spark_rows import read_rows
from windowmill.jobs.spark.access import mapped
from windowmill.windowing.axis import AXIS_END
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.rows import without_empty_chunks
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.watermark import BEFORE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from windowmill.jobs.layouts.base import MapReduce
    from windowmill.jobs.layouts.input import SourceInput, TableInput
    from windowmill.windowing.columnar.slices import RowColumns

#: Columns of a survey: file, least and greatest event time, number of rows and of usable ones, greatest index.
_FILES = pa.schema([(FILE, pa.int32()), *((name, pa.int64()) for name in ("low", "high", "rows", "usable", "last"))])


@dataclass(frozen=True)
class NumberedRows:
    """New rows of ``batch`` as they ``arrived``, and their survey.

    Attributes
    ----------
    files
        The indices of the files with rows, as the survey has them.
    unusable
        Those of them with rows that have a quarantine reason.
    """

    arrived: DataFrame
    survey: Survey
    files: tuple[int, ...]
    unusable: tuple[int, ...]
    batch: SourceInput

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: TableInput, *, every: bool = False) -> NumberedRows:
        """Survey the rows in one Spark job; ``every`` is as of :func:`.files.survey.surveyed`."""
        chosen = arrived.select(FILE, ROW, *map(backquoted, batch.times.columns))
        found = _joined([mapped(chosen, partial(_surveyed, batch.times), _FILES).toArrow()]).sort_by(FILE).to_pylist()
        files, unusable = tuple(each[FILE] for each in found), tuple(each[FILE] for each in found if each["usable"] < each["rows"])
        return cls(arrived, surveyed(batch, files, [_times(each) for each in found], every=every), files, unusable, batch)

    @property
    def _behind(self) -> dict[int, int]:
        """The watermark that the rows of each file find of which some may be late."""
        return {file: at for file, at in zip(self.files, self.survey.watermarks, strict=True) if at is not None}

    @cached_property
    def rows(self) -> DataFrame:
        """The rows with end of event, number in order of arrival, and watermark at arrival."""
        ended = self.arrived
        if UNTIL_OF not in ended.columns:
            ended = ended.withColumn(UNTIL_OF, F.col(TIME))
        starts = F.lit(list(self.survey.starts)) if self.survey.starts else F.array(F.lit(0))
        numbered = ended.withColumn(NUMBER_OF, starts[F.col(FILE)].cast("long") + F.col(ROW))
        return _with_watermark(numbered, self._behind)

    @property
    def doubtful(self) -> DataFrame:
        """As ``rows``, of the files that hold rows which are not applied, if any is not."""
        return self.rows.where(F.col(FILE).isin(*{*self._behind, *self.unusable}))

    def source(self, work: MapReduce) -> RowsOfFrame:
        """The rows as ``work`` maps them."""
        read = self.rows.select(NUMBER_OF, WATERMARK_OF, *inputs(self.rows, work.reading, also=self.batch.times.columns))
        return RowsOfFrame(read, partial(judged, self.batch.times, work), self.survey.rows)


def judged(times: EventTimes, work: MapReduce, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Runs in an executor: the rows that Spark sends, with their event times, as ``work`` maps them."""
    reading = work.reading
    needless = [name for name in times.read if name not in (*reading.keys, *reading.ties, *reading.source_columns)]
    for batch in batches:
        yield work.judged(times.of(pa.Table.from_batches([batch])).drop_columns(needless))


def read(batch: TableInput, spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``."""
    return read_rows(spark, batch.source, batch.reading, batch.runnable, now_us=batch.plan.now_us)


def read_by_spark(batch: TableInput, stages: Sequence[RowColumns], spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``, read by Spark, with what the ``stages`` read, and all columns that this process can write as JSON."""
    rows = read(batch, spark)
    whole = batch.types if spark_form.takes(batch.types.values()) else {}
    return rows.select(FILE, ROW, VERSION, *inputs(rows, *stages, also=[*whole, *batch.times.columns]))


def inputs(rows: DataFrame, *stages: RowColumns, also: Sequence[str] = ()) -> list[Column]:
    """The columns that stages read: of the source, those named in ``also``, and the conditions' truth."""
    names = dict.fromkeys([*(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)), *also])
    texts = dict.fromkeys(text for stage in stages for text in stage.conditions)
    types = Columns(rows.schema).in_conditions if texts else {}
    truths = [truth(text, types).alias(condition_column(text)) for text in texts]
    return [*(F.col(backquoted(name)) for name in names), *truths]


def _times(found: Mapping[str, int | None]) -> Times:
    low, high, last, rows = (found[name] for name in ("low", "high", "last", "rows"))
    assert last is not None
    assert rows is not None
    greatest = BEFORE if high is None else high
    return Times(rows, last + 1, AXIS_END if low is None else low, greatest, greatest)


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


def _with_watermark(rows: DataFrame, behind: Mapping[int, int]) -> DataFrame:
    """Add the watermark at each row's arrival; null in files without late rows, where it makes no difference."""
    if not behind:
        return without_watermark(rows)
    found = pa.table({FILE: pa.array(behind, pa.int32()), WATERMARK_OF: pa.array(behind.values())})
    return rows.join(F.broadcast(rows.sparkSession.createDataFrame(without_empty_chunks(found))), [FILE], "left")


def without_watermark(rows: DataFrame) -> DataFrame:
    """Add a watermark to the rows of an input without late ones: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))
