"""The new rows of a batch in plain files, which tasks read by Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.stores import Options, options_of, use_options
from windowmill.jobs.sources.columns import REASON, ROW
from windowmill.jobs.sources.file_parts import Examined, Tasks, all_examined, divided
from windowmill.jobs.sources.plain_files import RowGroup
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.jobs.ways import lateness_in_process as lateness
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.file_survey import FileSurvey, Times, bounds, surveyed, times_of
from windowmill.jobs.ways.partitioning import ROWS_PER_PARTITION
from windowmill.jobs.ways.returning import returnable
from windowmill.jobs.ways.task_output import RETURNED, returned, taken
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.sources.plain_files import FilePart
    from windowmill.jobs.ways.input import TableInput
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.columnar.slices import Reading
    from windowmill.windowing.kernels.combine import Ints


for _kind in (Examined, RowGroup, Times):
    returnable(_kind)


@dataclass(frozen=True, slots=True)
class Rule:
    """Implements :class:`.lateness.Rule`; picklable."""

    disorder: int
    lateness: int
    by_row: bool
    revises: bool


@dataclass(frozen=True)
class Arrived:
    """Some ``rows`` of a part of a file.

    Attributes
    ----------
    watermark
        The watermark that each row found; null if none of the part's rows can be late.
    numbers
        Number of each row.
    """

    rows: pa.Table
    watermark: Ints | None
    numbers: Ints
    rule: Rule

    def judged(self, grids: Sequence[WindowGrid]) -> pa.Table:
        """As :func:`.lateness.judged_at`."""
        found = np.full(self.rows.num_rows, AXIS_BEGIN, np.int64) if self.watermark is None else self.watermark
        return lateness.judged_at(self.rows, found, self.numbers, self.rule, grids)

    def marked(self) -> pa.Table:
        """As :func:`.lateness.marked_at`, with numbers and ends of events.

        If no row of the part can be late, the watermark, and through which windows were closed, make no difference, and are null.
        """
        rows = self.rows
        if self.watermark is not None:
            rows = lateness.marked_at(rows, self.watermark, self.rule.lateness)
        else:
            rows = rows.append_column(LATE, pa.repeat(False, rows.num_rows))
            for name in (CLOSED, WATERMARK_OF):
                rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
        rows = rows.append_column(NUMBER_OF, pa.array(self.numbers))
        return rows if UNTIL_OF in rows.column_names else rows.append_column(UNTIL_OF, rows.column(TIME))


@dataclass(frozen=True)
class FileRows:
    """New rows of a batch that tasks read; picklable.

    Attributes
    ----------
    latest
        Greatest accepted event time; null for no bound.
    places
        For each task, the place of its first part among the parts of all tasks.
    options
        Of the place in object storage, what its client is told: it holds credentials.
    """

    plain: PlainRows
    latest: int | None
    tasks: Tasks
    places: Sequence[int]
    survey: FileSurvey
    rule: Rule
    options: Mapping[str, Options]

    @classmethod
    def surveyed(cls, spark: SparkSession, batch: TableInput, stages: Sequence[Reading], *, every: bool) -> FileRows | None:
        """Survey the new rows of ``batch``, of which ``stages`` read columns; null if only Spark can read them.

        ``every`` makes the watermark at each row's arrival known.
        """
        plain = batch.plain
        if plain is None or plain.conditions.depend_on_texts:
            return None
        columns = list(dict.fromkeys(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)))
        options = {} if (own := options_of(batch.source.path)) is None else {batch.source.path: own}
        found = examined_all(spark, plain, plain.needed(columns), options)
        if found is None:
            return None
        cores = access_to(spark).cores()
        tasks = divided(plain.files, found, ROWS_PER_PARTITION, min(cores, len(plain.files)))
        parts = [part for task in tasks for part in task]
        read = partial(_times, spark, plain, parts, batch.latest, options)
        survey = surveyed(batch, parts, bounds(batch, plain, parts), read, every=every)
        rule = Rule(batch.disorder, batch.lateness, batch.by_row and batch.closed_by_file is None, batch.revises)
        places = np.cumsum([0, *map(len, tasks)])[:-1].tolist()
        return cls(plain, batch.latest, tasks, places, survey, rule, options)

    def judged(self, task: int, stage: Reading, grids: Sequence[WindowGrid]) -> Iterator[pa.RecordBatch]:
        """The usable rows of a task for windows on ``grids``, as :func:`.lateness.judged` gives them; runs in an executor."""
        for arrived in self._read(task, stage):
            rows = usable(arrived.judged(grids) if self.survey.has_late else arrived.rows)
            yield from rows.drop_columns([ROW, REASON]).combine_chunks().to_batches()

    def marked(self, task: int, stage: Reading, schema: pa.Schema) -> Iterator[pa.Table]:
        """The usable rows of a task, as :meth:`.NewRows.usable`; runs in an executor."""
        return (usable(arrived.marked()).select(schema.names).cast(schema) for arrived in self._read(task, stage))

    def frame(self, spark: SparkSession, stage: Reading, schema: pa.Schema) -> DataFrame:
        """:meth:`marked` of all tasks as a DataFrame."""
        return map_in_arrow(self.numbers(spark), partial(_frame, self, stage, schema), schema)

    def numbers(self, spark: SparkSession) -> DataFrame:
        """The numbers of the tasks, each in a Spark partition of its own."""
        return spark.range(0, len(self.tasks), 1, max(1, len(self.tasks)))

    def parts(self, task: int, columns: Sequence[str] = (), conditions: Sequence[str] = ()) -> Iterator[tuple[FilePart, Iterator[Arrived]]]:
        """The parts of a task, each with all its rows that the filter does not leave out, in batches; runs in an executor."""
        use_options(self.options)
        for place, part in enumerate(self.tasks[task], self.places[task]):
            yield part, self._arrived(part, self.survey.watermarks[place], columns, conditions)

    def _arrived(self, part: FilePart, found: int | None, columns: Sequence[str], conditions: Sequence[str]) -> Iterator[Arrived]:
        for rows in self.plain.read_part(part, columns, conditions, latest=self.latest):
            watermark = None
            if found is not None:
                watermark, found = self._watermarks(rows, found)
            yield Arrived(rows, watermark, self.survey.starts[part.index] + rows.column(ROW).to_numpy(), self.rule)

    def _read(self, task: int, stage: Reading) -> Iterator[Arrived]:
        """The rows of a task with what ``stage`` reads."""
        columns = list(dict.fromkeys((*stage.keys, *stage.ties, *stage.source_columns)))
        for _, batches in self.parts(task, columns, list(dict.fromkeys(stage.conditions))):
            yield from batches

    def _watermarks(self, rows: pa.Table, found: int) -> tuple[Ints, int]:
        """The watermark that each row finds, of which the first one found ``found``, and the watermark after them."""
        if not self.rule.by_row:
            return np.full(rows.num_rows, found, np.int64), found
        low = AXIS_BEGIN + self.rule.disorder
        times = pc.if_else(pc.is_null(rows.column(REASON)), rows.column(TIME), pa.scalar(low, pa.int64())).to_numpy()
        so_far = np.maximum.accumulate(np.concatenate(([found], np.maximum(times, low) - self.rule.disorder)))
        return so_far[:-1], int(so_far[-1])


def usable(rows: pa.Table) -> pa.Table:
    """Those of ``rows`` without a quarantine reason."""
    reason = rows.column(REASON)
    return rows if reason.null_count == rows.num_rows else rows.filter(pc.is_null(reason))


def _frame(new: FileRows, stage: Reading, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for task in numbers_in(batches):
        for rows in new.marked(task, stage, schema):
            yield from rows.combine_chunks().to_batches()


def numbers_in(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of tasks that a worker receives."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def examined_all(spark: SparkSession, plain: PlainRows, columns: Sequence[str], options: Mapping[str, Options]) -> list[Examined] | None:
    """What the files hold; null if one is not plain. Many footers are read by tasks."""
    if len(plain.files) <= limits.MAX_FILES:
        return all_examined(plain.files, plain.form, columns)

    def look(numbers: Sequence[int]) -> Sequence[Examined] | None:
        return all_examined([plain.files[number] for number in numbers], plain.form, columns)

    parts = _in_tasks(spark, range(len(plain.files)), look, options)
    return None if any(part is None for part in parts) else [each for part in parts for each in part]


def _times(
    spark: SparkSession,
    plain: PlainRows,
    parts: Sequence[FilePart],
    latest: int | None,
    options: Mapping[str, Options],
    numbers: Sequence[int],
) -> list[Times]:
    """Read the event times of the parts of these ``numbers``: here if that takes less time than a Spark job."""

    def look(some: Sequence[int]) -> list[Times]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda number: times_of(list(plain.read_part(parts[number], (), (), latest=latest))), some))

    if sum(parts[number].rows for number in numbers) <= limits.MAX_ROWS_SURVEYED_HERE:
        return look(numbers)
    return [each for some in _in_tasks(spark, numbers, look, options) for each in some]


def _in_tasks(
    spark: SparkSession, numbers: Sequence[int], look: Callable[[Sequence[int]], object], options: Mapping[str, Options]
) -> list[Any]:
    """What ``look`` finds for ``numbers``, divided among tasks in their order."""
    n_tasks = min(len(numbers), 4 * access_to(spark).cores())
    pieces = [list(numbers[len(numbers) * at // n_tasks : len(numbers) * (at + 1) // n_tasks]) for at in range(n_tasks)]
    found = taken(map_in_arrow(spark.range(0, n_tasks, 1, n_tasks), partial(_look, pieces, look, options), RETURNED))
    return [what for _, what in sorted(found, key=lambda pair: pair[0])]


def _look(
    pieces: Sequence[Sequence[int]],
    look: Callable[[Sequence[int]], object],
    options: Mapping[str, Options],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for number in numbers_in(batches):
        yield from returned((number, look(pieces[number])))
