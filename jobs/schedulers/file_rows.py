"""The new rows of a batch in plain files, which tasks survey and read by Arrow, without the JVM.

The statistics in the source's log give bounds of the event times of most files. Only where they do not decide, event times are read.
If only Spark evaluates a condition, one job over the columns that it reads answers it before tasks read the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.checkpoints.stores import Options, options_of, use_options
from windowmill.jobs.conditions.truths import read_by
from windowmill.jobs.layouts import lateness, limits
from windowmill.jobs.layouts.base import columns_read, conditions_read
from windowmill.jobs.layouts.lateness import watermarks_at_arrival, with_arrival
from windowmill.jobs.layouts.output import RETURNED, collect_results, encode_result, returnable
from windowmill.jobs.schedulers.exchange import ROWS_PER_PARTITION, RowsOfFiles, numbers_in
from windowmill.jobs.sources.delta_log import span as span_of
from windowmill.jobs.sources.plain_files import CheckedFile, FilePart, NotPlainError, RowGroup, Tasks, all_examined, divided, number_of_rows
from windowmill.jobs.sources.plain_rows import NO_ANSWERS, Answers, PlainRows, batches_of
from windowmill.jobs.spark.access import SparkSession, access_to, map_in_arrow
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import FILE, NUMBER_OF, REASON, ROW, TIME
from windowmill.windowing.columnar.hashes import KeyShare
from windowmill.windowing.columnar.rows import without, without_empty_chunks
from windowmill.windowing.watermark import BEFORE, LatenessRule, first_of_commit, seen_before

if TYPE_CHECKING:
    from windowmill.jobs.layouts.base import MapReduce
    from windowmill.jobs.layouts.input import TableInput
    from windowmill.windowing.columnar.slices import RowColumns
    from windowmill.windowing.kernels.combine import Ints

#: Most rows whose answers the driver collects: five bytes for each row and condition in transit, an eighth of a byte once packed.
_MAX_ANSWERED_ROWS = 50_000_000
#: Value of the file column in the row that reports a file which Arrow does not read as Spark does.
_NOT_PLAIN = -1


@dataclass(frozen=True, slots=True)
class Times:
    """Number and event times of the rows of a file's part, as far as known."""

    rows: int  #: Number of rows that are not left out by the filter.
    last: int  #: One more than the greatest index in the file of such a row.
    low: int  #: An instant before which no usable row is.
    #: ``high_at_least``, ``high_at_most``: bounds of the greatest event time of usable rows; ``BEFORE`` if there is none.
    high_at_least: int
    high_at_most: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Survey of a batch's rows."""

    rows: int  #: Number of rows read.
    seen: int | None  #: Greatest event time after the batch; null if no row ever had one.
    starts: tuple[int, ...]  #: Number before the first row of each file.
    low: int | None  #: An event time that no late row is before; null if there are no late rows.
    watermarks: tuple[int | None, ...]  #: For each part, the watermark that its rows find; null where it makes no difference.

    @property
    def has_late(self) -> bool:
        return self.low is not None


def times_of(rows: Sequence[pa.Table]) -> Times:
    """The times of a part, from its ``rows`` as :meth:`.PlainRows.read_part` returns them."""
    usable = [pc.min_max(table.filter(pc.is_null(table.column(REASON))).column(TIME)).as_py() for table in rows]
    lows = [span["min"] for span in usable if span["min"] is not None]
    highs = [span["max"] for span in usable if span["max"] is not None]
    last = max((table.column(ROW)[-1].as_py() + 1 for table in rows if table.num_rows), default=0)
    high = max(highs, default=BEFORE)
    return Times(sum(table.num_rows for table in rows), last, min(lows, default=AXIS_END), high, high)


def bounds(batch: TableInput, plain: PlainRows, parts: Sequence[FilePart]) -> list[Times]:
    """The event times of ``parts`` by the source's log and the files' footers."""
    pipeline = batch.pipeline
    steps, axis = () if plain.steps is None else plain.steps.steps, batch.types[pipeline.time.column]
    # A filter decides how many rows there are.
    decides = pipeline.time.end is None and pipeline.own_filter is None
    decides = decides and not any(step.filters or pipeline.time.column in step.makes for step in steps)
    # Rows that are refused move no watermark.
    may_refuse = plain.conditions.may_fail or (plain.steps is not None and plain.steps.may_fail)
    least, greatest = accepted_times(pipeline)
    greatest = greatest if batch.latest is None else min(greatest, batch.latest)
    instants, tick_us = pa.types.is_timestamp(axis), pipeline.time.tick_us
    # The log writes dates and times without a zone in forms of their own.
    decides = decides and (pa.types.is_integer(axis) or (instants and axis.tz is not None))
    final = {part.index: place for place, part in enumerate(parts)}
    spans: dict[int, tuple[int, int, int] | None] = {}
    found = []
    for place, part in enumerate(parts):
        if part.index not in spans:
            name, stats = part.file.names.get(pipeline.time.column), batch.reading.files[part.index].stats
            span = None if name is None or not decides else span_of(stats, name, instants=instants, tick_us=tick_us)
            spans[part.index] = span if span is not None and least <= span[0] and span[2] <= greatest else None
        low, at_least, at_most = spans[part.index] or (AXIS_BEGIN, BEFORE, AXIS_END)
        # Statistics cover all parts of a file: its greatest time is sure to have arrived only with the last one.
        is_sure = place == final[part.index] and not may_refuse
        found.append(Times(part.rows, part.first + part.rows, low, at_least if is_sure else BEFORE, at_most))
    return found


def surveyed(batch: TableInput, files: Sequence[int], times: Sequence[Times], *, every: bool) -> Survey:
    """Survey parts of ``files`` (indices by arrival) with these ``times``; ``every`` makes the watermark at each row's arrival known."""
    index, low, high = np.array(files, np.int64), _column(times, "low"), _column(times, "high_at_least")
    # Parts that were not read cannot raise the watermark beyond that of parts before them.
    watermarks = watermarks_at_arrival(index, np.array(batch.commits, np.int64)[index], high, batch)
    late = low < watermarks
    known = late | (every & (index >= batch.snapshot_files))
    lows, highs = low[late], high[high > BEFORE]
    counts = np.zeros(1 + max(files, default=-1), np.int64)
    np.maximum.at(counts, index, _column(times, "last"))
    return Survey(
        sum(each.rows for each in times),
        max((at for at in (batch.seen, *highs.tolist()) if at is not None), default=None),
        tuple(lateness.starts_of(counts.tolist(), batch.commits, batch.first_row).tolist()),
        int(lows.min()) if len(lows) else None,
        tuple(int(at) if is_known else None for at, is_known in zip(watermarks, known, strict=True)),
    )


def undecided(batch: TableInput, files: Sequence[int], times: Sequence[Times], *, every: bool) -> list[int]:
    """Which of the parts must be read, because ``times`` do not decide; parameters as of :func:`surveyed`."""
    index, least, most = np.array(files, np.int64), _column(times, "high_at_least"), _column(times, "high_at_most")
    commits = np.array(batch.commits, np.int64)[index]
    # Read parts of which nothing is known, and those that may hold the greatest event time so far.
    asked = (most == AXIS_END) | (most > max([BEFORE if batch.seen is None else batch.seen, *least.tolist()]))
    if batch.closed_by_file is None:
        late = (_column(times, "low") < watermarks_at_arrival(index, commits, most, batch)) | (every & (index >= batch.snapshot_files))
        first, seen = first_of_commit(commits), seen_before(commits, least, batch.seen)
        for number in np.flatnonzero(late).tolist():
            asked[: first[number]] |= most[: first[number]] > seen[number]
    return [int(number) for number in np.flatnonzero(asked)]


def _column(times: Sequence[Times], name: str) -> Ints:
    return np.array([getattr(each, name) for each in times], np.int64)


for _kind in (CheckedFile, RowGroup, Times):
    returnable(_kind)


@dataclass(frozen=True)
class FileRows:
    """New rows of a batch that tasks read; picklable."""

    plain: PlainRows
    latest: int | None  #: Greatest accepted event time; null for no bound.
    tasks: Tasks
    places: Sequence[int]  #: For each task, the place of its first part among the parts of all tasks.
    survey: Survey
    rule: LatenessRule
    options: Mapping[str, Options]  #: If the source is in object storage, the settings of its client; they hold credentials.
    share: KeyShare | None = None  #: The keys whose rows are read for windows; null for all.
    left_out: Ints | None = None  #: Numbers of the duplicates, ascending; null before they are found.

    @classmethod
    def surveyed(cls, spark: SparkSession, batch: TableInput, stages: Sequence[RowColumns], *, every: bool) -> FileRows | None:
        """Survey the new rows of ``batch`` for ``stages``, null if only Spark reads them; ``every`` is as of :func:`surveyed`."""
        plain = batch.plain
        if plain is None:
            return None
        options = {} if (own := options_of(batch.source.path)) is None else {batch.source.path: own}
        found = examined_all(spark, plain, plain.needed(columns_read(*stages)), options)
        if found is None:
            return None
        cores = access_to(spark).cores()
        tasks = divided(plain.files, found, ROWS_PER_PARTITION, min(cores, len(plain.files)))
        parts = [part for task in tasks for part in task]
        files, times = [part.index for part in parts], bounds(batch, plain, parts)
        is_first = True
        while numbers := undecided(batch, files, times, every=every):
            latest = max(numbers, key=lambda number: times[number].high_at_most)
            # The part with the latest times, read first, mostly decides for all others.
            asked = [latest] if is_first and times[latest].high_at_most < AXIS_END else numbers
            for number, read in zip(asked, _times(spark, plain, parts, batch.latest, options, asked), strict=True):
                times[number] = read
            is_first = False
        survey = surveyed(batch, files, times, every=every)
        places = np.cumsum([0, *map(len, tasks)])[:-1].tolist()
        return cls(plain, batch.latest, tasks, places, survey, batch.rule, options)

    def shares(self) -> list[FileRows]:
        n = limits.shares_of(number_of_rows(self.tasks)) if self.plain.pipeline.keys else 1
        return [replace(self, share=KeyShare(number, n)) for number in range(n)] if n > 1 else [self]

    def source(self, work: MapReduce) -> RowsOfFiles:
        return RowsOfFiles(self.tasks, partial(self._judged, work))

    def _judged(self, work: MapReduce, task: int) -> Iterator[pa.Table]:
        """Runs in an executor."""
        stage = work.reading
        for _, batches in self.parts(task, columns_read(stage), conditions_read(stage)):
            yield from map(work.judged, batches if self.share is None else (self.share.rows(rows, stage.keys) for rows in batches))

    def parts(
        self, task: int, columns: Sequence[str] = (), conditions: Sequence[str] = ()
    ) -> Iterator[tuple[FilePart, Iterator[pa.Table]]]:
        """The parts of a task, each with all rows of the filter, as of :func:`.lateness.with_arrival`, in batches; without duplicates.

        Runs in an executor.
        """
        use_options(self.options)
        for place, part in enumerate(self.tasks[task], self.places[task]):
            yield part, self._arrived(part, self.survey.watermarks[place], columns, conditions)

    def _arrived(self, part: FilePart, found: int | None, columns: Sequence[str], conditions: Sequence[str]) -> Iterator[pa.Table]:
        for rows in self.plain.read_part(part, columns, conditions, latest=self.latest):
            watermarks = None if found is None else np.full(rows.num_rows, found, np.int64)
            arrived = with_arrival(rows, self.survey.starts[part.index] + rows.column(ROW).to_numpy(), watermarks)
            yield arrived if self.left_out is None else without(arrived, NUMBER_OF, self.left_out)


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


def answers_of(batch: TableInput, spark: SparkSession, options: Mapping[str, Options]) -> Answers:
    """Where the conditions that only Spark evaluates hold for the rows of ``batch``; none if Spark must read the rows itself."""
    plain = PlainRows.of(batch.pipeline, batch.source, batch.reading, None)
    if plain is None or plain.steps is not None or batch.expected_rows > _MAX_ANSWERED_ROWS:
        return NO_ANSWERS
    conditions = list(plain.conditions.outside)
    names = read_by(conditions, plain.form.types)
    if not batch.columns.in_conditions.keys() >= set(names):  # the rows that tasks give have no declared lengths and collations
        return NO_ANSWERS
    schema = pa.schema([(FILE, pa.int32()), (ROW, pa.int64()), *((name, plain.form.types[name]) for name in names)])
    files = spark.range(0, len(plain.files), 1, max(1, min(len(plain.files), access_to(spark).cores())))
    rows = map_in_arrow(files, partial(_read_for_conditions, plain, names, schema, options), schema)
    truths = [F.coalesce(F.expr(text), F.lit(False)).alias(f"_holds{number}") for number, text in enumerate(conditions)]
    found = without_empty_chunks(rows.select(FILE, ROW, *truths).toArrow())
    file = found.column(FILE).to_numpy()
    if (file == _NOT_PLAIN).any():
        return NO_ANSWERS
    place = found.column(ROW).to_numpy()
    counts = np.zeros(len(plain.files), np.int64)
    np.maximum.at(counts, file, place + 1)
    return Answers({text: _packed(found.column(f"_holds{number}"), file, place, counts.tolist()) for number, text in enumerate(conditions)})


def _packed(holds: pa.ChunkedArray, file: Ints, place: Ints, counts: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
    """For each file, one bit a row: whether ``holds`` is true for the row; ``file`` and ``place`` locate the values of ``holds``."""
    true = holds.to_numpy(zero_copy_only=False)
    packed = []
    for index, count in enumerate(counts):
        own, bits = file == index, np.zeros(count, np.bool_)
        bits[place[own]] = true[own]
        packed.append(np.packbits(bits))
    return packed


def _read_for_conditions(
    plain: PlainRows, names: Sequence[str], schema: pa.Schema, options: Mapping[str, Options], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for number in numbers_in(batches):
        first = 0
        try:
            for batch in batches_of(plain.files[number], plain.form, names):
                n = batch.num_rows
                own = [pa.repeat(pa.scalar(number, pa.int32()), n), pa.array(np.arange(first, first + n))]
                yield pa.record_batch([*own, *(batch.column(name) for name in names)], schema=schema)
                first += n
        except (NotPlainError, OSError, pa.ArrowException):  # Spark reads the rows, or says what is wrong
            columns = [pa.array([_NOT_PLAIN], pa.int32()), *(pa.nulls(1, field.type) for field in list(schema)[1:])]
            yield pa.record_batch(columns, schema=schema)
