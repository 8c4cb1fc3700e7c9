"""Computes batches of any size on Spark: numbers the new rows, loads each part, and quarantines what no part applied.

The watermark at a row's arrival is (greatest event time of the commits before its own) − disorder. One job surveys the files, and gives
the watermark that each of them finds; only files with a row behind it are read again. Tasks give the rows that they receive their event
times (:class:`.EventTimes`), and judge what the watermark means for them (:mod:`windowmill.jobs.layouts.lateness`).

To quarantine the rows that no part applied, tasks that read plain files find them first, and then read all columns of the parts that hold
some. Where only Spark reads rows, it sends those that may be among them, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from windowmill.checkpoints.data_files import read_files
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.state.reading import rows_of
from windowmill.checkpoints.stores import is_table
from windowmill.jobs import json_lines
from windowmill.jobs.conditions.truths import every_condition
from windowmill.jobs.layouts.base import (
    BatchSurvey,
    MapReduce,
    Part,
    PartialsWanted,
    columns_read,
    conditions_read,
    emits_within_range_only,
)
from windowmill.jobs.layouts.lateness import JUDGED_BY, marked, too_late_among, usable, usable_times
from windowmill.jobs.layouts.output import FAILURE, JSON, RETURNED, Output, QuarantineRows, chosen_rows, encode_result
from windowmill.jobs.schedulers.exchange import (
    Exchange,
    RowsOfFrame,
    StoredRows,
    numbers_in,
    numbers_of_tasks,
    output_of,
    shuffle_partitions,
)
from windowmill.jobs.schedulers.file_rows import FileRows, Survey, Times, examined_all, surveyed
from windowmill.jobs.schedulers.writing import OutputWriter, Targets
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_files import number_of_rows
from windowmill.jobs.sources.spark_files import failing, read_rows, truth
from windowmill.jobs.sources.unusable_rows import BAD_CONDITION, EventTimes, failure_of, with_too_late
from windowmill.jobs.spark.access import frame_of, map_in_arrow, mapped
from windowmill.windowing.axis import AXIS_END
from windowmill.windowing.columnar.added_columns import FILE, NUMBER_OF, REASON, ROW, TIME, UNREAD, UNTIL_OF, VERSION, WATERMARK_OF
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.watermark import BEFORE

if TYPE_CHECKING:
    from windowmill.checkpoints.data_files import DataFile
    from windowmill.checkpoints.state.readers import DeltaState
    from windowmill.jobs.layouts.input import Emission, SourceInput, TableInput
    from windowmill.jobs.layouts.output import Role
    from windowmill.jobs.layouts.unique import Deduplication
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.watermark import LatenessRule

#: Columns of a survey: file, least and greatest event time, number of rows and of usable ones, greatest index.
_FILES = pa.schema([(FILE, pa.int32()), *((name, pa.int64()) for name in ("low", "high", "rows", "usable", "last"))])


@dataclass(frozen=True)
class NumberedRows:
    """New rows of ``batch`` as they ``arrived``, and their survey."""

    arrived: DataFrame
    survey: Survey
    files: tuple[int, ...]  #: The indices of the files with rows, as the survey has them.
    unusable: tuple[int, ...]  #: The indices of files with rows that have a quarantine reason.
    batch: SourceInput
    left_out: Ints | None = None  #: Numbers of the duplicates, ascending; null before they are found.

    @classmethod
    def surveyed(cls, arrived: DataFrame, batch: TableInput, *, every: bool = False) -> NumberedRows:
        """Survey the rows in one Spark job; ``every`` is as of :func:`.file_rows.surveyed`."""
        chosen = arrived.select(FILE, ROW, *map(backquoted, batch.times.columns))
        found = _joined([mapped(chosen, partial(_surveyed, batch.times), _FILES).toArrow()]).sort_by(FILE).to_pylist()
        files, unusable = tuple(each[FILE] for each in found), tuple(each[FILE] for each in found if each["usable"] < each["rows"])
        return cls(arrived, surveyed(batch, files, [_times(each) for each in found], every=every), files, unusable, batch)

    @property
    def _behind(self) -> dict[int, int]:
        """For each file with rows that may be late, the watermark that they find."""
        return {file: at for file, at in zip(self.files, self.survey.watermarks, strict=True) if at is not None}

    @cached_property
    def rows(self) -> DataFrame:
        """The rows with end of event, number in order of arrival, and watermark at arrival; without duplicates."""
        ended = self.arrived
        if UNTIL_OF not in ended.columns:
            ended = ended.withColumn(UNTIL_OF, F.col(TIME))
        starts = F.lit(list(self.survey.starts)) if self.survey.starts else F.array(F.lit(0))
        numbered = ended.withColumn(NUMBER_OF, starts[F.col(FILE)].cast("long") + F.col(ROW))
        if self.left_out is not None and len(self.left_out):
            copies = frame_of(numbered.sparkSession, pa.table({NUMBER_OF: pa.array(self.left_out)}))
            numbered = numbered.join(F.broadcast(copies), [NUMBER_OF], "left_anti")
        if not self._behind:
            return without_watermark(numbered)
        # Null in files without late rows, where it makes no difference.
        found = pa.table({FILE: pa.array(self._behind, pa.int32()), WATERMARK_OF: pa.array(self._behind.values())})
        return numbered.join(F.broadcast(frame_of(numbered.sparkSession, found)), [FILE], "left")

    @property
    def doubtful(self) -> DataFrame:
        """As ``rows``, of files that may hold rows that are not applied."""
        return self.rows.where(F.col(FILE).isin(*{*self._behind, *self.unusable}))

    def source(self, work: MapReduce) -> RowsOfFrame:
        read = self.rows.select(NUMBER_OF, WATERMARK_OF, *inputs(self.rows, work.reading, also=self.batch.times.columns))
        return RowsOfFrame(read, partial(judged, self.batch.times, work), self.survey.rows)


def judged(times: EventTimes, work: MapReduce, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Runs in an executor: the rows that Spark sends, with their event times, as ``work`` maps them."""
    needless = [name for name in times.read if name not in columns_read(work.reading)]
    for batch in batches:
        yield work.judged(times.of(pa.Table.from_batches([batch])).drop_columns(needless))


def read(batch: TableInput, spark: SparkSession) -> DataFrame:
    return read_rows(spark, batch.source, batch.reading, batch.runnable, now_us=batch.plan.now_us)


def read_by_spark(batch: TableInput, stages: Sequence[RowColumns], spark: SparkSession) -> DataFrame:
    """The new rows of ``batch``, read by Spark, with what the ``stages`` read, and all columns that this process can write as JSON."""
    rows = read(batch, spark)
    whole = batch.types if json_lines.has_spark_json(batch.types.values()) else {}
    return rows.select(FILE, ROW, VERSION, *inputs(rows, *stages, also=[*whole, *batch.times.columns]))


def inputs(rows: DataFrame, *stages: RowColumns, also: Sequence[str] = ()) -> list[Column]:
    """The columns that stages read: of the source, those named in ``also``, and the conditions' truth."""
    names, texts = dict.fromkeys([*columns_read(*stages), *also]), conditions_read(*stages)
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


def without_watermark(rows: DataFrame) -> DataFrame:
    """Add a watermark to the rows of an input without late ones: all null."""
    return rows.withColumn(WATERMARK_OF, F.lit(None).cast("long"))


def survey(spark: SparkSession, batch: TableInput, parts: Sequence[Part]) -> BatchSurvey[FileRows | NumberedRows]:
    stops = emits_within_range_only(batch, parts)
    if not batch.reading.files:
        return BatchSurvey(None, Counts(), batch.emission(batch.seen, emits_within_range_only=stops))
    # Whether a row is remembered depends on the watermark that a later one finds.
    every = bool(batch.finds_duplicates_by) or (batch.rule.revises and any(part.needs_arrival_watermark for part in parts))
    stages = [*(part.reading for part in parts), *batch.finds_duplicates_by]
    new: FileRows | NumberedRows | None = FileRows.surveyed(spark, batch, stages, every=every)
    if isinstance(new, FileRows):
        stored: int | None = number_of_rows(new.tasks)
    else:
        new, stored = NumberedRows.surveyed(read(batch, spark), batch, every=every), stored_rows(batch, spark)
    kept, seen = new.survey.rows, new.survey.seen
    stored = kept if stored is None else stored
    counts = Counts(rows_read=stored, filtered=stored - kept)
    return BatchSurvey(new, counts, batch.emission(seen, emits_within_range_only=stops), seen)


def stored_rows(batch: TableInput, spark: SparkSession) -> int | None:
    """The number of rows of the files that Spark reads, before filters; null without filters, where it is that of the rows that come."""
    if not batch.pipeline.filters_rows:
        return None
    files = batch.reading.files
    if all(file.rows is not None and file.is_counted for file in files):
        return sum(file.rows or 0 for file in files)
    return int(batch.source.rows(spark, batch.reading).count())


def without_duplicates(
    spark: SparkSession, batch: TableInput, new: FileRows | NumberedRows, work: Deduplication, targets: Targets
) -> tuple[FileRows | NumberedRows, Output]:
    """``new`` without the duplicates that tasks find; and their number, the files of entries, and those of the duplicates' numbers."""
    seen, refused = targets.of["seen"], targets.of["refused"]
    own = replace(targets, of={"state": seen, "refused": refused})
    done = Exchange(spark, work, new.source(work), None, shuffle_partitions(batch, spark)).compute(own)
    files: dict[Role, tuple[DataFile, ...]] = {"seen": done.files.get("state", ()), "refused": done.files.get("refused", ())}
    parts = [batch.column(0).to_numpy() for batch in read_files(refused.table, files["refused"])]
    numbers = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
    return replace(new, left_out=numbers), Output(files, Counts(duplicates=len(numbers)), executors=done.executors)


def load(part: Part, new: FileRows | NumberedRows | None, emission: Emission, state: DeltaState, spark: SparkSession) -> Exchange:
    batch, survey = part.batch, None if new is None else new.survey
    revised_after = survey.low if survey is not None and batch.rule.revises else None
    wanted = part.wanted(emission, has_rows=new is not None, revised_after=revised_after)
    stored = None
    if wanted is not None and is_table(state.name):
        most = 0
        if isinstance(wanted, PartialsWanted):
            where = rows_of(wanted.wanted)
            most = sum(int(file["num_records"]) for file in files_of(newest(state.name)) if where.may_hold(file))
        stored = StoredRows(state, wanted, most)
    work = part.map_reduce(emission, has_late=survey is not None and survey.has_late)
    return Exchange(spark, work, None if new is None else new.source(work), stored, shuffle_partitions(batch, spark))


@dataclass(frozen=True)
class Quarantining:
    """The quarantine of a batch's rows; picklable."""

    quarantine: QuarantineRows
    targets: Targets
    rule: LatenessRule
    #: For each part that refuses rows, the files that hold their numbers; null if a part refuses none, and no row can be too late.
    refusing: Sequence[Sequence[DataFile]] | None = None
    grids: Sequence[WindowGrid] = ()  #: The grids of the other parts.

    def write_of_files(self, spark: SparkSession, new: FileRows) -> Output | None:
        """Have tasks write those of ``new`` that were not applied; null if only Spark can read all columns, or write them as JSON."""
        plain = new.plain
        if not json_lines.has_spark_json(plain.types.values()) or examined_all(spark, plain, list(plain.form.types), new.options) is None:
            return None
        return output_of(map_in_arrow(numbers_of_tasks(spark, len(new.tasks)), partial(_write_of_files, self, new), RETURNED))

    def write_of_frame(self, rows: DataFrame, columns: Sequence[str]) -> Output:
        """Have tasks write those of ``rows`` with ``columns`` of the source that were not applied.

        Only rows without a reason need numbers and the watermark at their arrival, and only where rows may be too late.
        """
        failed = failing(every_condition(self.quarantine.pipeline), Columns(rows.select(*map(backquoted, columns)).schema).in_conditions)
        why = [F.when(column, F.lit(failure_of(text))) for text, column in failed.items()]
        own = (REASON, VERSION, FILE, ROW, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF, UNREAD)
        asked = F.col(REASON).isNotNull()
        chosen = rows.where(asked if self.refusing is None else asked | (F.col(TIME) < F.col(WATERMARK_OF))).select(
            *(F.col(backquoted(name)) for name in own if name in rows.columns),
            (F.when(F.col(REASON) == BAD_CONDITION, F.coalesce(*why)) if why else F.lit(None).cast("string")).alias(FAILURE),
            F.to_json(F.struct(*(F.col(backquoted(name)) for name in columns)), {"ignoreNullFields": "false"}).alias(JSON),
        )
        return output_of(map_in_arrow(chosen, partial(_write_of_frame, self), RETURNED))

    @cached_property
    def refused(self) -> Ints | None:
        """Numbers of the rows that all refusing parts refuse; null if no part refuses rows."""
        table = self.targets.of["refused"].table
        parts = [[batch.column(0).to_numpy() for batch in read_files(table, files)] for files in self.refusing or ()]
        numbers = [np.concatenate([np.empty(0, np.int64), *found]) for found in parts]
        return reduce(np.intersect1d, numbers) if numbers else None

    def not_applied(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows``, as of :func:`.lateness.with_arrival`, that were not applied, each with its reason."""
        if self.refusing is not None and rows.column(WATERMARK_OF).null_count < rows.num_rows:
            rows = marked(rows, self.rule)
            late = too_late_among(usable(rows).select(JUDGED_BY.names), self.refused, self.grids)
            rows = with_too_late(rows, pc.is_in(rows.column(NUMBER_OF), pa.array(late)))
        return rows.filter(pc.is_valid(rows.column(REASON)))

    def of_task(self, new: FileRows, task: int) -> Iterator[pa.Table]:
        """The rows of the quarantine table for the rows of a task that reads files."""
        names = list(new.plain.types)
        for part, batches in new.parts(task):
            found = [self.not_applied(arrived).select([ROW, REASON, WATERMARK_OF]) for arrived in batches]
            chosen = pa.concat_tables(found) if found else None
            if chosen is None or not chosen.num_rows:
                continue
            for rows in new.plain.read_part(part, names, (), latest=new.latest):
                own = chosen_rows(rows, chosen, [ROW])
                own = own.append_column(VERSION, pa.repeat(pa.scalar(new.plain.versions[part.index], pa.int64()), own.num_rows))
                own = own.append_column(FILE, pa.repeat(pa.scalar(part.index, pa.int32()), own.num_rows))
                if own.num_rows:
                    yield self.quarantine.of(own, names)


def _write_of_files(own: Quarantining, new: FileRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    return _write(own.targets, (rows for task in numbers_in(batches) for rows in own.of_task(new, task)))


def _write_of_frame(own: Quarantining, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    found = (own.not_applied(pa.Table.from_batches([batch])) for batch in batches)
    return _write(own.targets, (own.quarantine.entries(rows) for rows in found if rows.num_rows))


def _write(targets: Targets, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    with OutputWriter(targets) as writer:
        for rows in tables:
            writer.quarantine_rows(rows)
        done = writer.output()
    yield from encode_result(done)
