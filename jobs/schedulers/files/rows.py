"""The new rows of a batch in plain files, which tasks read by Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windowmill.checkpoints.stores import Options, options_of, use_options
from windowmill.jobs.layouts import limits
from windowmill.jobs.layouts.lateness import with_arrival
from windowmill.jobs.layouts.returning import RETURNED, collect_results, encode_result, returnable
from windowmill.jobs.schedulers.files.survey import Survey, Times, bounds, surveyed, times_of, undecided
from windowmill.jobs.schedulers.spark.exchange import RowsOfFiles
from windowmill.jobs.schedulers.spark.partitioning import ROWS_PER_PARTITION, numbers_in
from windowmill.jobs.sources.columns import ROW
from windowmill.jobs.sources.file_parts import CheckedFile, Tasks, all_examined, divided, number_of_rows
from windowmill.jobs.sources.plain_files import RowGroup
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.spark.access import access_to, map_in_arrow
from windowmill.windowing.columnar.buckets import KeyShare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.layouts.base import MapReduce
    from windowmill.jobs.layouts.input import TableInput
    from windowmill.jobs.sources.plain_files import FilePart
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.watermark import LatenessRule


for _kind in (CheckedFile, RowGroup, Times):
    returnable(_kind)


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
        If the source is in object storage, the settings of its client; they hold credentials.
    share
        The keys whose rows are read for windows; null for all.
    """

    plain: PlainRows
    latest: int | None
    tasks: Tasks
    places: Sequence[int]
    survey: Survey
    rule: LatenessRule
    options: Mapping[str, Options]
    share: KeyShare | None = None

    @classmethod
    def surveyed(cls, spark: SparkSession, batch: TableInput, stages: Sequence[RowColumns], *, every: bool) -> FileRows | None:
        """Survey the new rows of ``batch``, of which ``stages`` read columns; null if only Spark can read them.

        ``every`` makes the watermark at each row's arrival known.
        """
        plain = batch.plain
        if plain is None:
            return None
        columns = list(dict.fromkeys(name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)))
        options = {} if (own := options_of(batch.source.path)) is None else {batch.source.path: own}
        found = examined_all(spark, plain, plain.needed(columns), options)
        if found is None:
            return None
        cores = access_to(spark).cores()
        tasks = divided(plain.files, found, ROWS_PER_PARTITION, min(cores, len(plain.files)))
        parts = [part for task in tasks for part in task]
        files, times = [part.index for part in parts], bounds(batch, plain, parts)
        if numbers := undecided(batch, files, times, every=every):
            for number, read in zip(numbers, _times(spark, plain, parts, batch.latest, options, numbers), strict=True):
                times[number] = read
        survey = surveyed(batch, files, times, every=every)
        places = np.cumsum([0, *map(len, tasks)])[:-1].tolist()
        return cls(plain, batch.latest, tasks, places, survey, batch.rule, options)

    def shares(self) -> list[FileRows]:
        """These rows by shares of the keys."""
        n = limits.shares_of(number_of_rows(self.tasks)) if self.plain.pipeline.keys else 1
        return [replace(self, share=KeyShare(number, n)) for number in range(n)] if n > 1 else [self]

    def source(self, work: MapReduce) -> RowsOfFiles:
        """The rows for ``work`` to map."""
        return RowsOfFiles(self.tasks, partial(self._judged, work))

    def _judged(self, work: MapReduce, task: int) -> Iterator[pa.Table]:
        """Runs in an executor."""
        return map(work.judged, self._read(task, work.reading))

    def parts(
        self, task: int, columns: Sequence[str] = (), conditions: Sequence[str] = ()
    ) -> Iterator[tuple[FilePart, Iterator[pa.Table]]]:
        """The parts of a task, each with all its rows that the filter does not leave out, in batches; runs in an executor.

        The rows are as of :func:`.lateness.with_arrival`.
        """
        use_options(self.options)
        for place, part in enumerate(self.tasks[task], self.places[task]):
            yield part, self._arrived(part, self.survey.watermarks[place], columns, conditions)

    def _arrived(self, part: FilePart, found: int | None, columns: Sequence[str], conditions: Sequence[str]) -> Iterator[pa.Table]:
        for rows in self.plain.read_part(part, columns, conditions, latest=self.latest):
            watermarks = None if found is None else np.full(rows.num_rows, found, np.int64)
            yield with_arrival(rows, self.survey.starts[part.index] + rows.column(ROW).to_numpy(), watermarks)

    def _read(self, task: int, stage: RowColumns) -> Iterator[pa.Table]:
        """The rows of a task, with the columns that ``stage`` reads."""
        columns = list(dict.fromkeys((*stage.keys, *stage.ties, *stage.source_columns)))
        for _, batches in self.parts(task, columns, list(dict.fromkeys(stage.conditions))):
            yield from batches if self.share is None else (self.share.rows(rows, stage.keys) for rows in batches)


def examined_all(spark: SparkSession, plain: PlainRows, columns: Sequence[str], options: Mapping[str, Options]) -> list[CheckedFile] | None:
    """Examines the files: null if one is not plain. Tasks read the footers if they are many."""
    if len(plain.files) <= limits.MAX_FILES:
        return all_examined(plain.files, plain.form, columns)

    def look(numbers: Sequence[int]) -> Sequence[CheckedFile] | None:
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
    """The results of ``look`` for ``numbers``, divided among tasks in their order."""
    n_tasks = min(len(numbers), 4 * access_to(spark).cores())
    pieces = [list(numbers[len(numbers) * at // n_tasks : len(numbers) * (at + 1) // n_tasks]) for at in range(n_tasks)]
    found = collect_results(map_in_arrow(spark.range(0, n_tasks, 1, n_tasks), partial(_look, pieces, look, options), RETURNED))
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
        yield from encode_result((number, look(pieces[number])))
