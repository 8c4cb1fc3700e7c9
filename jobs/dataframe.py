"""Computes windows over any Spark DataFrame as a bounded input, without tables.

The input is one batch that continues from no state and leaves none. One exchange brings the rows of a key together. A task computes the
keys of its partition as one process computes a small batch, over an empty state in memory, by the parts that ``windowmill explain`` names.
As no state is kept, no partials are made for it: windows over positions are combined from rows by two stacks, and windows on grids over
interval events from the events. If all windows are on grids over points, rows are lifted before the exchange.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from operator import or_
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints import stores
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.checkpoints.state.readers import MemoryState
from windowmill.jobs.batch.job import parts_of
from windowmill.jobs.conditions.truths import columns_of
from windowmill.jobs.layouts import lateness, limits
from windowmill.jobs.layouts.base import Lifted, Readings, columns_read, conditions_read, unchanged
from windowmill.jobs.layouts.input import Input, SourceInput
from windowmill.jobs.layouts.lateness import usable
from windowmill.jobs.layouts.slices import SliceMapReduce, SlicePart
from windowmill.jobs.layouts.unique import Deduplication, reading_of
from windowmill.jobs.schedulers.exchange import (
    ROWS_PER_PARTITION,
    Exchange,
    GroupsOf,
    RowsOfFiles,
    RowsOfFrame,
    partitions_for,
    shuffle_partitions,
)
from windowmill.jobs.schedulers.local import NewRows, input_names, load, refused_by_all
from windowmill.jobs.schedulers.tasks import inputs, judged, without_watermark
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import read_version
from windowmill.jobs.sources.plain_files import Form, NotPlainError, Tasks, all_examined, divided, file_parts
from windowmill.jobs.sources.plain_rows import PlainRows, local_conditions
from windowmill.jobs.sources.spark_files import asks_zone, evaluate_steps, with_event_times
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.jobs.spark.access import access_to, mapped, sql_type
from windowmill.jobs.spark.session import ship_modules
from windowmill.jobs.spec_checks import condition_problems, refuse_first
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.columnar import grid_windows, slices
from windowmill.windowing.columnar.added_columns import FILE, NUMBER_OF, REASON, RETRACTED, ROW, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.results import Advanced, with_retracted
from windowmill.windowing.columnar.rows import distinct_values, without
from windowmill.windowing.columnar.slices import GRID, WindowStage
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import ArgumentError, SourceError, SourceSchemaError, SpecError, no_column
from windowmill.windowing.kernels.lift import condition_column, order_key
from windowmill.windowing.layouts import divide, live_columns
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from windowmill.jobs.spark.file_ranges import DeltaScan
    from windowmill.windowing.columnar.hashes import Share
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.watermark import LatenessRule

#: Columns of :meth:`BoundedWork.outcome`: a result row, or the number of a row that came too late for every window.
_RESULT, _REFUSED = "result", "refused"
#: Greatest number of rows in an Arrow batch that a worker returns.
_CHUNK_ROWS = 100_000
#: Partition multiplier when the row count is unknown: a worker holds one partition at a time.
_PARTITIONS_OF_UNKNOWN = 4


def aggregate(df: DataFrame, spec: Pipeline | Mapping[str, object] | str | os.PathLike[str], *, arrival: str | None = None) -> DataFrame:
    """The result rows of ``spec`` over the rows of ``df``, as a DataFrame; lazily evaluated.

    ``df`` is the whole input: at its end every window is complete. A DataFrame has no order (Spark reads the parts of a file in any
    order), so no row is late unless ``arrival`` gives an order of arrival. Rows without a usable event time do not count.

    Instants are in UTC as in runs, whatever the session's zone: a ``timestamp_ntz``, a date or a text without a zone is one of UTC, and
    conditions see the hour of UTC. Over Spark Connect, a condition that windowmill does not translate (docs/semantics.md) and that asks for
    the zone needs a session in UTC.

    Parameters
    ----------
    df
        Any DataFrame, of any origin.
    spec
        A pipeline, the same as nested mappings, or the path of its YAML file. Its source, sink, expectations and schedule are not used.
    arrival
        A column that gives the order of arrival; rows with equal values are a commit. Rows later than the spec's ``disorder`` and
        ``lateness`` allow then count in no closed window, as in runs and in ``windowmill try``. To detect them, the call itself sorts the
        rows and reads their times. If there are late rows, Spark keeps the sorted rows until the result is no longer referenced.

    Returns
    -------
    DataFrame
        The key columns, ``window``, ``window_start``, ``window_end``, ``trigger``, ``revision``, the aggregates in the spec's order,
        ``batch`` (always 0: the input is one batch). The order of rows is unspecified.

    Raises
    ------
    SpecError
        If the spec is wrong, or does not fit the columns of ``df``.
    ArgumentError
        If ``df`` is no Spark DataFrame, or ``arrival`` no column's name.
    """
    _check_frame(df)
    if arrival is not None and not isinstance(arrival, str):
        raise ArgumentError(f"aggregate: got {type(arrival).__qualname__} as arrival; expected the name of a column of df")
    pipeline = load_pipeline(spec, opens_tables=False) if isinstance(spec, str | os.PathLike) else parse_pipeline(spec, opens_tables=False)
    # Without a run there is no run's time: the result depends on the clock only if the spec asks for it.
    latest = pipeline.time.latest(time.time_ns() // 1_000, by_default=False)
    return evaluate(df, pipeline, arrival=arrival, latest=latest).rows


def _check_frame(df: object) -> None:
    if isinstance(df, DataFrame):
        return
    kind = type(df)
    given = f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"
    if given in ("pandas.DataFrame", "pyarrow.Table"):
        remedy = "pass spark_session().createDataFrame(df)"
    elif given == "polars.DataFrame":
        remedy = "pass spark_session().createDataFrame(df.to_arrow())"
    else:
        remedy = "read a table first, as in spark_session().read.load(path)"
    raise ArgumentError(f"aggregate: got {given} as df; expected a Spark DataFrame, classic or of Spark Connect: {remedy}")


@dataclass(frozen=True)
class Evaluated:
    """The result of a pipeline over a bounded input."""

    rows: DataFrame  #: Result rows, as returned by :func:`aggregate`.
    refused: DataFrame | None  #: Label and reason of each row that does not count; none if the input has no order of arrival.


def evaluate(
    df: DataFrame,
    pipeline: Pipeline,
    *,
    arrival: str | None = None,
    label: str | None = None,
    final: bool = True,
    latest: int | None = None,
) -> Evaluated:
    """The engine of :func:`aggregate`.

    - ``arrival``: as in :func:`aggregate`.
    - ``label``: the column that identifies rows which do not count, and orders the rows of a commit; ``arrival`` unless given.
    - ``final``: whether the input ends with ``df``; otherwise returns only the windows that the rows of ``df`` complete.
    - ``latest``: greatest accepted event time; null for no bound.

    Raises ``SpecError`` if the spec does not fit the columns of ``df``.
    """
    columns = Columns(df.schema)
    if columns.taken is not None:
        raise SourceSchemaError(f"the DataFrame: the column name {columns.taken!r} is taken by windowmill; rename it in the DataFrame")
    pipeline = pipeline.model_copy(update={"source": None})  # its filter does not apply to these rows
    columns.check(pipeline, "the DataFrame")
    check_lengths(pipeline)
    refuse_first(pipeline, condition_problems(pipeline))
    if arrival is not None and arrival not in df.columns:
        raise SpecError(f"arrival: {no_column('the DataFrame', arrival, df.columns)}")
    ship_modules(df.sparkSession, pipeline)
    order = [] if arrival is None else list(dict.fromkeys([arrival, label or arrival]))
    if asks_zone(pipeline, columns) is None:
        return _evaluated(df, pipeline, columns, order, latest, final=final)
    rows, back = access_to(df.sparkSession).in_utc(df)
    found = _evaluated(rows, pipeline, columns, order, latest, final=final)
    return Evaluated(back(found.rows), None if found.refused is None else back(found.refused))


def _evaluated(df: DataFrame, pipeline: Pipeline, columns: Columns, order: Sequence[str], latest: int | None, *, final: bool) -> Evaluated:
    """The result over rows that arrived in the order of these columns; without columns none is late."""
    seen = columns.seen_by(pipeline)
    batch = SourceInput(pipeline=pipeline, columns=seen, ended=final, latest=latest, has_unread=bool(pipeline.steps))
    parts = divide(pipeline, batch.types)
    # Only grids over points are lifted before the shuffle: an interval event would become a partial for each start that it crosses.
    # Expressions are evaluated where result rows are whole.
    slices = parts.slices if parts.names == ("slices",) and pipeline.time.end is None and not batch.expressions.texts else None
    part = None if slices is None else SlicePart(batch, slices)
    if not order and pipeline.dedup is None:
        by_files = _of_files(df, batch, part, latest, final=final)
        if by_files is not None:
            return Evaluated(by_files, None)
    rows = with_event_times(evaluate_steps(df, pipeline, columns), batch.times, seen)
    if pipeline.time.end is None:
        rows = rows.withColumn(UNTIL_OF, F.col(TIME))
    if not order or pipeline.time.watermark == "data_interval_end":
        rows = rows if pipeline.dedup is None else _unique(rows, batch, order[0] if order else None)
        given = _RowsOfInput(batch, rows, None, order[-1] if order else None, final=final)
    else:
        arrived = Arrived.of(rows, batch, order, [*_needed(batch), *order, *batch.times.columns])
        arrived = arrived if pipeline.dedup is None else replace(arrived, rows=_unique(arrived.rows, batch, None))
        given = _RowsOfInput(batch, arrived.rows, arrived, order[-1], final=final)
    return given.by_keys() if part is None else given.by_slices(part)


def _of_files(df: DataFrame, batch: SourceInput, part: SlicePart | None, latest: int | None, *, final: bool) -> DataFrame | None:
    """The result rows if ``df`` is a scan of files that tasks can read by Arrow; ``None`` if only Spark can read its rows."""
    pipeline, spark = batch.pipeline, df.sparkSession
    if part is not None:
        work = part.map_reduce(batch.emission(None), has_late=False)
        scan = FileScan.of(df, batch, columns_read(work.reading), latest)
        return None if scan is None else _by_slices(spark, work, RowsOfFiles(scan.tasks, partial(_usable, scan)), batch)
    if pipeline.time.end is not None or (final and _ticks_past_tuples(pipeline)):
        return None
    bounded = BoundedWork.of(batch)
    scan = FileScan.of(df, batch, bounded.reading.source_columns, latest)
    return None if scan is None else bounded.results(spark, bounded.source_of(scan), shuffle_partitions(batch, spark))


@dataclass(frozen=True)
class _RowsOfInput:
    """A bounded input; ``arrived`` is null if no row of it can be late, and ``label`` if it has no order of arrival."""

    batch: SourceInput
    rows: DataFrame
    arrived: Arrived | None
    label: str | None
    final: bool

    def by_slices(self, part: SlicePart) -> Evaluated:
        batch, arrived = self.batch, self.arrived
        late = arrived if arrived is not None and arrived.late else None
        work = part.map_reduce(batch.emission(None if arrived is None else arrived.seen), has_late=late is not None)
        own = [] if late is None else [NUMBER_OF, WATERMARK_OF]
        sent = self.rows.select(*own, *inputs(self.rows, work.reading, also=batch.times.columns))
        results = _by_slices(self.rows.sparkSession, work, RowsOfFrame(sent, partial(judged, batch.times, work), 0), batch)
        if self.label is None:
            return Evaluated(results, None)
        refused = _unusable(self.rows, self.label)
        if late is not None:
            refused = refused.unionByName(late.too_late(batch, part.grids, self.label))
        return Evaluated(results, refused)

    def by_keys(self) -> Evaluated:
        batch, arrived, spark = self.batch, self.arrived, self.rows.sparkSession
        partitions = shuffle_partitions(batch, spark)
        rows = without_watermark(self.rows.withColumn(NUMBER_OF, _place())) if arrived is None else self.rows
        bounded = BoundedWork.of(batch, self._seen())
        if self.label is None:
            sent = rows.select(NUMBER_OF, *inputs(rows, bounded.reading, also=batch.times.columns))
            source = RowsOfFrame(sent, partial(judged, batch.times, bounded), 0)
            return Evaluated(bounded.results(spark, source, partitions * _PARTITIONS_OF_UNKNOWN), None)
        outcome = bounded.outcome(rows, partitions_for(1 if arrived is None else arrived.n_rows, partitions)).persist()
        numbers = outcome.where(F.col(_REFUSED).isNotNull()).select(F.col(_REFUSED).alias(NUMBER_OF))
        late = rows.join(numbers, NUMBER_OF).select(backquoted(self.label), F.lit(TOO_LATE).alias(REASON))
        results = outcome.where(F.col(_RESULT).isNotNull()).select(f"{_RESULT}.*")
        return Evaluated(results, _unusable(rows, self.label).unionByName(late))

    def _seen(self) -> int | None:
        """Greatest event time of the input; null if it makes no difference."""
        if self.arrived is not None:
            return self.arrived.seen
        return _greatest(self.rows) if self.final and _ticks_past_tuples(self.batch.pipeline) else None


def _unusable(rows: DataFrame, label: str) -> DataFrame:
    return rows.where(F.col(REASON).isNotNull()).select(backquoted(label), REASON)


def _ticks_past_tuples(pipeline: Pipeline) -> bool:
    """Whether some window ticks until the greatest event time of the whole input."""
    return any(window.ticks_past_its_tuples for window in pipeline.windows)


def _greatest(rows: DataFrame) -> int | None:
    row = rows.where(F.col(REASON).isNull()).agg(F.max(TIME)).head()
    return None if row is None or row[0] is None else int(row[0])


def _needed(batch: SourceInput) -> list[str]:
    conditions = (columns_of(condition) for condition in batch.pipeline.conditions())
    live_ones = live_columns(batch.pipeline, batch.types)
    by = () if batch.pipeline.dedup is None else columns_read(reading_of(batch.pipeline))
    return list(dict.fromkeys([*batch.pipeline.keys, *by, *live_ones, *chain(*conditions)]))


def _unique(rows: DataFrame, batch: SourceInput, arrival: str | None) -> DataFrame:
    """``rows`` without duplicates; rows without numbers are one commit, or those with equal values of ``arrival`` are."""
    work = Deduplication.of(batch, None)
    by = [F.col(backquoted(name)) for name in work.reading.source_columns]
    # Rows with a null have no duplicates, so that they need not come together.
    id_of = F.when(reduce(or_, (column.isNull() for column in by)), _place()).otherwise(F.xxhash64(*by))
    gathered = rows.repartition(shuffle_partitions(batch, rows.sparkSession) * _PARTITIONS_OF_UNKNOWN, id_of)
    schema = pa.schema(list(Columns(gathered.schema).arrow.items()))
    return mapped(gathered, partial(_first_of_each, work, arrival, schema), schema)


def _first_of_each(
    work: Deduplication, arrival: str | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor: the rows of its ids that are no duplicates."""
    rows = pa.concat_tables([schema.empty_table(), *(pa.Table.from_batches([batch]).cast(schema) for batch in batches)]).combine_chunks()
    if WATERMARK_OF not in rows.column_names:
        number = np.arange(rows.num_rows)
        if arrival is not None:
            commit = order_key(rows.column(arrival).combine_chunks())
            ranks = np.searchsorted(distinct_values(commit), commit).astype(np.int64)
            order = np.argsort(ranks, kind="stable")
            rows, number = rows.take(pa.array(order)), (ranks[order] << COMMIT_SHIFT) + number
        rows = lateness.with_arrival(rows, number, None)
    found = work.found(work.judged(rows))
    left = without(rows, NUMBER_OF, found.numbers)
    yield from left.select(schema.names).to_batches(_CHUNK_ROWS)


#: Columns of a commit: value of the column of arrival, number of the commit and of its first row.
_VALUE, _COMMIT, _FIRST = "_ value", "_ commit", "_ first"


@dataclass(frozen=True)
class Arrived:
    """Rows in order of arrival."""

    rows: DataFrame  #: The rows with their number, and the watermark at their arrival, null where it makes no difference.
    n_rows: int  #: Number of rows.
    seen: int | None  #: Greatest event time of all; null if there is none.
    late: bool  #: Whether there are late rows.

    @classmethod
    def of(cls, rows: DataFrame, batch: Input, order: Sequence[str], needed: Sequence[str]) -> Self:
        """``rows`` in ``order`` of these columns, the first of which numbers commits; reads ``needed`` columns to find late rows."""
        arrival = order[0]
        # Sorted by ranges of the first column alone, so that no commit is split between Spark partitions.
        ordered = rows.repartitionByRange(backquoted(arrival)).sortWithinPartitions(*map(backquoted, order))
        # The number of a row consists of the number of its Spark partition and its own number there.
        place = _place()
        parts = {FILE: F.shiftright(place, COMMIT_SHIFT).cast("int"), ROW: place.bitwiseAND((1 << COMMIT_SHIFT) - 1)}
        ordered = ordered.withColumns(parts | {NUMBER_OF: place})
        found = cls._by_commit(ordered, batch, arrival)
        if not found.late and batch.pipeline.dedup is None:
            return found
        # Whether a row is late depends on all rows before it, so the numbers must not change any more: sort once.
        own = [TIME, UNTIL_OF, FILE, ROW, REASON, NUMBER_OF]
        return cls._by_commit(ordered.select(*map(backquoted, dict.fromkeys(needed)), *own).localCheckpoint(), batch, arrival)

    @classmethod
    def _by_commit(cls, rows: DataFrame, batch: Input, arrival: str) -> Self:
        usable = F.when(F.col(REASON).isNull(), F.col(TIME))
        # A client of Spark Connect warns of a window without partitions; Spark removes a constant from the plan.
        in_order = Window.partitionBy(F.lit(0)).orderBy(_FIRST)
        seen = F.max("_high").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        commits = (
            rows.groupBy(F.col(backquoted(arrival)).alias(_VALUE))
            .agg(F.min(NUMBER_OF).alias(_FIRST), F.min(usable).alias("_low"), F.max(usable).alias("_high"), F.count("*").alias("_rows"))
            .withColumns({_COMMIT: F.row_number().over(in_order).cast("long"), WATERMARK_OF: seen - F.lit(batch.rule.disorder)})
        )
        late = F.max(F.col("_low") < F.col(WATERMARK_OF))
        n_rows, greatest, is_late = commits.agg(F.sum("_rows"), F.max("_high"), late).collect()[0]
        if not is_late and batch.pipeline.dedup is None:
            return cls(without_watermark(rows), n_rows or 0, greatest, late=False)
        found = commits.select(_VALUE, _FIRST, _COMMIT, WATERMARK_OF)
        joined = rows.join(found, F.col(backquoted(arrival)).eqNullSafe(F.col(backquoted(_VALUE))))
        number = F.shiftleft(F.col(backquoted(_COMMIT)), COMMIT_SHIFT) + F.col(NUMBER_OF) - F.col(backquoted(_FIRST))
        return cls(joined.withColumn(NUMBER_OF, number).drop(_VALUE, _FIRST, _COMMIT), n_rows, greatest, late=True)

    def too_late(self, batch: Input, grids: Sequence[WindowGrid], label: str) -> DataFrame:
        """``label`` and reason of the rows that are too late for windows on ``grids``."""
        behind = self.rows.where(F.col(REASON).isNull() & (F.col(TIME) < F.col(WATERMARK_OF)))
        schema = pa.schema([(label, batch.types[label]), (REASON, pa.string())])
        own = behind.select(backquoted(label), TIME, UNTIL_OF, NUMBER_OF, WATERMARK_OF)
        return mapped(own, partial(_too_late, batch.rule, grids, schema), schema)


def _too_late(
    rule: LatenessRule, grids: Sequence[WindowGrid], schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for batch in batches:
        rows = lateness.marked(pa.Table.from_batches([batch]), rule)
        late = rows.filter(pc.is_in(rows.column(NUMBER_OF), pa.array(lateness.too_late_among(rows, None, grids))))
        yield from late.append_column(REASON, pa.repeat(TOO_LATE, late.num_rows)).select(schema.names).cast(schema).to_batches()


def _place() -> Column:
    # Its low 33 bits count the rows of a Spark partition, like the low bits of a row's number those of a commit.
    return F.monotonically_increasing_id()


@dataclass(frozen=True)
class FileScan:
    """A pipeline's input in files; small and picklable."""

    plain: PlainRows
    columns: Sequence[str]  #: Columns of the source that :meth:`rows` gives.
    latest: int | None  #: Greatest accepted event time; null for no bound.
    tasks: Tasks
    options: Mapping[str, Mapping[str, str]]  #: Place of the files, and ``storage_options`` with which tasks open them there.

    @classmethod
    def of(cls, df: DataFrame, batch: SourceInput, columns: Sequence[str], latest: int | None) -> FileScan | None:
        """The scan that ``df`` consists of; ``None`` if only Spark can read it, or evaluate the spec's conditions and times."""
        try:
            conditions = local_conditions(batch.pipeline, batch.columns)
        except NotPlainError:
            return None
        own = Columns(df.schema)
        steps = own.steps(batch.pipeline)
        if conditions.outside or (steps is not None and steps.outside) or TIME in columns:
            return None
        access, form = access_to(df.sparkSession), Form(own.arrow, own.fixed_lengths)
        plain = PlainRows(batch.pipeline, (), (), form, conditions, steps is not None, steps=steps)
        delta = access.delta_scan(df)
        if delta is not None:
            return cls._of_delta(delta, plain, columns, latest, access.cores())
        ranges = access.file_ranges(df)
        tasks = None if ranges is None else file_parts(ranges, form, plain.needed(columns))
        return None if tasks is None else cls(plain, tuple(dict.fromkeys(columns)), latest, tasks, {})

    @classmethod
    def _of_delta(cls, delta: DeltaScan, plain: PlainRows, columns: Sequence[str], latest: int | None, cores: int) -> FileScan | None:
        needed = plain.needed(columns)
        try:
            source = read_version(delta.path, delta.version)
            types = Columns.of(source.schema_json).arrow
            if any(types.get(name) != plain.form.types[name] for name in needed):
                return None
            files = source.plain_files(source.reading())
        except SourceError:  # Spark reads it, or says what is wrong
            return None
        found = None if files is None else all_examined(files, plain.form, needed)
        if files is None or found is None:
            return None
        tasks = divided(files, found, ROWS_PER_PARTITION, min(cores, len(files)))
        options = stores.options_of(delta.path)
        return cls(plain, tuple(dict.fromkeys(columns)), latest, tasks, {} if options is None else {delta.path: options})

    def rows(self, task: int) -> Iterator[tuple[pa.RecordBatch, Ints]]:
        """The usable rows of a task, and their places among all rows of the task.

        Beside ``columns`` they have their event times in the column ``TIME``, and for each condition of the aggregates and windows its
        truth in a :func:`.condition_column`.
        """
        stores.use_options(self.options)
        conditions, before = self.plain.pipeline.conditions(), 0
        names = [*self.columns, TIME, *map(condition_column, conditions)]
        for part in self.tasks[task]:
            for rows in self.plain.read_part(part, self.columns, conditions, latest=self.latest):
                usable = rows if rows.column(REASON).null_count == len(rows) else rows.filter(pc.is_null(rows.column(REASON)))
                places = usable.column(ROW).to_numpy() - part.first + before
                if usable.num_rows:
                    yield usable.select(names).combine_chunks().to_batches()[0], places
            before += part.rows

    def usable(self, task: int) -> Iterator[pa.RecordBatch]:
        return (rows for rows, _ in self.rows(task))


@dataclass(frozen=True)
class BoundedWork:
    """The computation of a bounded input by all its parts at once; map leaves rows as they are. See :class:`.MapReduce`."""

    batch: Input
    seen: int | None  #: Greatest event time of the input; null if it makes no difference.
    reading: Readings  #: What the parts read of a row.
    most_readers: ClassVar[int] = limits.MAX_READINGS

    @classmethod
    def of(cls, batch: Input, seen: int | None = None) -> Self:
        """The computation for ``batch``, which takes from it only the pipeline, types, end of the input and latest time."""
        own = Input(pipeline=batch.pipeline, types=batch.types, ended=batch.ended, latest=batch.latest, is_bounded=True)
        readings = [part.reading for part in parts_of(own, MemoryState())]
        return cls(own, seen, Readings(batch.pipeline.keys, (), columns_read(*readings), conditions_read(*readings)))

    @property
    def keys(self) -> Mapping[str, str]:
        return {key: key for key in self.batch.pipeline.keys}

    @property
    def width(self) -> int:
        return len(self._schema)

    @property
    def _schema(self) -> pa.Schema:
        """Columns of the rows that the parts read; no row is late."""
        types = {name: self.batch.types.get(name, pa.bool_()) for name in input_names(self.reading)}
        ends = [] if self.batch.pipeline.time.end is None else [(UNTIL_OF, pa.int64())]
        return pa.schema([*types.items(), (TIME, pa.int64()), *ends, (NUMBER_OF, pa.int64())])

    def are_few(self, n_rows: int) -> bool:  # noqa: ARG002 - as of slices
        return False

    def judged(self, rows: pa.Table) -> pa.Table:
        names = [*self._schema.names, *([WATERMARK_OF] if WATERMARK_OF in rows.column_names else [])]
        return usable(rows).select(names)

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        return unchanged(rows, self.keys, share)

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:  # noqa: ARG002 - there is no state
        """The result rows, and at last the numbers of the rows that came too late for all parts."""
        new = NewRows(complete(pa.concat_tables([each.rows for each in lifted]).combine_chunks()))
        parts, refused = parts_of(self.batch, MemoryState()), list[np.ndarray]()
        emission = self.batch.emission(self.seen)
        for part in parts:
            loaded, numbers = load(part, new, emission, MemoryState()), [np.empty(0, np.int64)]
            for done in loaded.advanced():
                yield Advanced(done.results, None, np.empty(0, np.int64), done.counts)
                numbers.append(done.refused)
            if not part.grids:
                refused.append(np.concatenate(numbers))
        if WATERMARK_OF in new.table.column_names:
            grids = [grid for part in parts for grid in part.grids]
            yield Advanced((), None, refused_by_all(new, refused, grids, self.batch), Counts())

    def source_of(self, scan: FileScan) -> RowsOfFiles:
        return RowsOfFiles(scan.tasks, partial(_numbered, scan, self._schema))

    def outcome(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Result rows and numbers of refused ones; ``rows`` have event times, reasons, numbers and the watermark at their arrival."""
        schema = pa.schema([(_RESULT, pa.struct(list(self._result_schema))), (_REFUSED, pa.int64())])
        own = [name for name in (TIME, UNTIL_OF, NUMBER_OF, WATERMARK_OF) if name != UNTIL_OF or UNTIL_OF in self._schema.names]
        sent = rows.where(F.col(REASON).isNull()).select(*inputs(rows, self.reading), *own)
        exchange = Exchange(rows.sparkSession, self, RowsOfFrame(sent, _as_tables, 0), None, partitions)
        gathered, groups_of = exchange.gathered()
        return mapped(gathered, partial(_outcome, self, schema, groups_of), schema)

    def results(self, spark: SparkSession, source: RowsOfFiles | RowsOfFrame, partitions: int) -> DataFrame:
        """The result rows of ``source``, none of which is late.

        Spark copies data from Python row by row, so columns that are the same in every row are added in Spark.
        """
        pipeline, schema = self.batch.pipeline, self._result_schema
        same = {"batch": F.lit(self.batch.batch)}
        if pipeline.emit == "final":
            same["revision"] = F.lit(0)
        if len(pipeline.windows) == 1:
            same["window"] = F.lit(pipeline.windows[0].name)
        varying = pa.schema([field for field in schema if field.name not in same])
        gathered, groups_of = Exchange(spark, self, source, None, partitions).gathered()
        found = mapped(gathered, partial(_results, self, varying, groups_of), varying)
        cells = {name: F.col(backquoted(name)) for name in varying.names} | same
        return found.select(*(cells[field.name].cast(sql_type(field.dataType)).alias(field.name) for field in from_arrow_schema(schema)))

    @property
    def _result_schema(self) -> pa.Schema:
        """Columns of a result row: those of a sink, with ``retracted`` where late rows bring revisions."""
        schema = self.batch.expressions.schema
        return schema.append(pa.field(RETRACTED, pa.bool_())) if self.batch.rule.revises else schema

    def tables(self, done: Advanced) -> Iterator[pa.Table]:
        found = (self.batch.expressions.over(rows) for rows in done.results if rows.num_rows)
        return (with_retracted(rows) if self.batch.rule.revises else rows for rows in found)


def complete(rows: pa.Table) -> pa.Table:
    """``rows`` in order of arrival, with the columns of new rows."""
    number = rows.column(NUMBER_OF).to_numpy()
    if (number[1:] < number[:-1]).any():
        rows = rows.take(pa.array(np.argsort(number, kind="stable")))
    n = rows.num_rows
    own = {FILE: pa.repeat(pa.scalar(0, pa.int32()), n), ROW: pa.array(np.arange(n)), REASON: pa.nulls(n, pa.string())}
    own |= {WATERMARK_OF: pa.nulls(n, pa.int64())}
    for name, column in own.items():
        rows = rows if name in rows.column_names else rows.append_column(name, column)
    return rows


def _results(own: BoundedWork, schema: pa.Schema, groups_of: GroupsOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for lifted, _ in groups_of(batches):
        for done in own.reduce(lifted, None):
            for found in own.tables(done):
                yield from found.select(schema.names).to_batches(_CHUNK_ROWS)


def _outcome(own: BoundedWork, schema: pa.Schema, groups_of: GroupsOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for lifted, _ in groups_of(batches):
        for done in own.reduce(lifted, None):
            for batch in (batch for found in own.tables(done) for batch in found.to_batches(_CHUNK_ROWS)):
                cells = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field(_RESULT).type))
                yield pa.record_batch([cells, pa.nulls(len(cells), pa.int64())], schema=schema)
            numbers = pa.array(done.refused, pa.int64())
            yield pa.record_batch([pa.nulls(len(numbers), schema.field(_RESULT).type), numbers], schema=schema)


def _as_tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Runs in an executor."""
    return (pa.Table.from_batches([batch]) for batch in batches)


def _numbered(scan: FileScan, schema: pa.Schema, task: int) -> Iterator[pa.Table]:
    """Runs in an executor: the rows of a task with the columns of ``schema``, a table for each batch that is read."""
    for rows, places in scan.rows(task):
        numbers = pa.array((task << COMMIT_SHIFT) + places)
        yield pa.table([numbers if name == NUMBER_OF else rows.column(name) for name in schema.names], names=schema.names)


def _usable(scan: FileScan, task: int) -> Iterator[pa.Table]:
    """Runs in an executor."""
    return _as_tables(scan.usable(task))


def _by_slices(spark: SparkSession, work: SliceMapReduce, source: RowsOfFiles | RowsOfFrame, batch: SourceInput) -> DataFrame:
    """The result rows of windows on grids, which are never retracted, over the rows of ``source``."""
    gathered, groups_of = Exchange(spark, work, source, None, shuffle_partitions(batch, spark)).gathered()
    results = _completed(mapped(gathered, partial(_windows, work, groups_of), work.stage.declared_schema), work.stage)
    return results.withColumn(RETRACTED, F.lit(False)) if batch.rule.revises else results


def _windows(work: SliceMapReduce, groups_of: GroupsOf, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    for lifted, _ in groups_of(batches):
        for combined in grid_windows.combined(work.stage, work.parts(lifted, None)):
            for table in combined.windows:
                yield from table.to_batches(slices.BATCH_ROWS)


def _completed(bare: DataFrame, stage: WindowStage) -> DataFrame:
    """As :func:`windowmill.windowing.columnar.grid_windows.result_rows`, in Spark: Python need not send columns that Spark can derive."""
    # Written as SQL: each Column method makes a call or two into the JVM, and hundreds of them would cost 0.1 s.
    number = f"{backquoted(GRID)} + 1"
    implied = {
        "window": f"element_at(array({', '.join(spark_text(name) for name, _ in stage.grids)}), {number})",
        "trigger": "CAST(NULL AS BIGINT)",
        "revision": "0L",
        "batch": f"{stage.slices.batch}L",
    }
    if stage.hopping is not None:
        size = f"element_at(array({', '.join(f'{grid.size}L' for grid in stage.hopping)}), {number})"
        instants = pa.types.is_timestamp(stage.schema.field("window_end").type)
        implied["window_start"] = f"timestamp_micros(unix_micros(window_end) - {size})" if instants else f"window_end - {size}"
    given = {name: backquoted(name) for name in bare.columns}
    return bare.selectExpr(*(f"{(implied | given)[name]} AS {backquoted(name)}" for name in stage.schema.names))
