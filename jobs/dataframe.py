"""Computes windows over any Spark DataFrame as a bounded input, without tables."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.conditions.spark import asks_zone
from windowmill.jobs.conditions.truths import columns_of
from windowmill.jobs.layouts import lateness
from windowmill.jobs.layouts.input import SourceInput
from windowmill.jobs.layouts.slices import SliceMapReduce, Slicing
from windowmill.jobs.schedulers import tasks as numbering
from windowmill.jobs.schedulers.bounded import REFUSED, BoundedWork, FileScan, results_in, windows_of_files, windows_of_frame
from windowmill.jobs.schedulers.exchange import partitions_for, shuffle_partitions
from windowmill.jobs.schedulers.local import columns_read
from windowmill.jobs.schedulers.tasks import without_watermark
from windowmill.jobs.sources.columns import FILE, REASON, ROW, Columns
from windowmill.jobs.sources.spark_files import with_event_times
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.jobs.spark.access import access_to, mapped
from windowmill.jobs.spark.session import ship_modules
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.columnar.added_columns import NUMBER_OF, RETRACTED, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.errors import ArgumentError, SourceSchemaError, SpecError, no_column
from windowmill.windowing.layouts import divide, live_columns
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline, parse_pipeline
from windowmill.windowing.watermark import COMMIT_SHIFT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from windowmill.jobs.layouts.input import Input
    from windowmill.windowing.slicing.edges import WindowGrid


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
    """The result of a pipeline over a bounded input.

    Attributes
    ----------
    rows
        Result rows, as returned by :func:`aggregate`.
    refused
        Label and reason of each row that does not count; none if the input has no order of arrival.
    """

    rows: DataFrame
    refused: DataFrame | None


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

    Parameters
    ----------
    arrival
        As in :func:`aggregate`.
    label
        The column that identifies rows which do not count, and orders the rows of a commit; ``arrival`` unless given.
    final
        Whether the input ends with ``df``; otherwise returns only the windows that the rows of ``df`` complete.
    latest
        Greatest accepted event time; null for no bound.

    Raises
    ------
    SpecError
        If the spec does not fit the columns of ``df``.
    """
    columns = Columns(df.schema)
    if columns.taken is not None:
        raise SourceSchemaError(f"the DataFrame: the column name {columns.taken!r} is taken by windowmill; rename it in the DataFrame")
    pipeline = pipeline.model_copy(update={"source": None})  # its filter says nothing of these rows
    columns.check(pipeline, "the DataFrame")
    check_lengths(pipeline)
    if arrival is not None and arrival not in df.columns:
        raise SpecError(f"arrival: {no_column('the DataFrame', arrival, df.columns)}")
    ship_modules(df.sparkSession, pipeline)
    order = [] if arrival is None else list(dict.fromkeys([arrival, label or arrival]))
    if asks_zone(pipeline, columns.in_conditions) is None:
        return _evaluated(df, pipeline, columns, order, latest, final=final)
    rows, back = access_to(df.sparkSession).in_utc(df)
    found = _evaluated(rows, pipeline, columns, order, latest, final=final)
    return Evaluated(back(found.rows), None if found.refused is None else back(found.refused))


def _evaluated(df: DataFrame, pipeline: Pipeline, columns: Columns, order: Sequence[str], latest: int | None, *, final: bool) -> Evaluated:
    """The result over rows that arrived in the order of these columns; without columns none is late."""
    batch = SourceInput(pipeline=pipeline, columns=columns, ended=final, latest=latest)
    parts = divide(pipeline, batch.types)
    # Only grids over points are lifted before the shuffle: an interval event would become a partial for each start that it crosses.
    slices = parts.slices if parts.names == ("slices",) and pipeline.time.end is None else None
    slicing = None if slices is None else Slicing(batch, slices)
    if not order:
        by_files = _of_files(df, batch, slicing, latest, final=final)
        if by_files is not None:
            return Evaluated(by_files, None)
    rows = with_event_times(df, batch.times, columns)
    if pipeline.time.end is None:
        rows = rows.withColumn(UNTIL_OF, F.col(TIME))
    if not order or pipeline.time.watermark == "data_interval_end":
        bounded = _Bounded(batch, rows, None, order[-1] if order else None, final=final)
    else:
        arrived = Arrived.of(rows, batch, order, [*_needed(batch), *order, *batch.times.columns])
        bounded = _Bounded(batch, arrived.rows, arrived, order[-1], final=final)
    return bounded.by_keys() if slicing is None else bounded.by_slices(slicing)


def _of_files(df: DataFrame, batch: SourceInput, slicing: Slicing | None, latest: int | None, *, final: bool) -> DataFrame | None:
    """The result rows if ``df`` is a scan of files that tasks can read by Arrow; ``None`` if only Spark can read its rows."""
    pipeline, spark = batch.pipeline, df.sparkSession
    if slicing is not None:
        work = SliceMapReduce.of(slicing, batch.emission(None), None)
        scan = FileScan.of(df, batch, columns_read(work.reading), latest)
        return None if scan is None else _with_retracted(windows_of_files(spark, scan, work, shuffle_partitions(batch, spark)), batch)
    if pipeline.time.end is not None or (final and _ticks_past_tuples(pipeline)):
        return None
    bounded = BoundedWork.of(batch)
    scan = FileScan.of(df, batch, bounded.reading.source_columns, latest)
    return None if scan is None else bounded.results_of_files(spark, scan, shuffle_partitions(batch, spark))


@dataclass(frozen=True)
class _Bounded:
    """A bounded input; ``arrived`` is null if no row of it can be late, and ``label`` if it has no order of arrival."""

    batch: SourceInput
    rows: DataFrame
    arrived: Arrived | None
    label: str | None
    final: bool

    def by_slices(self, slicing: Slicing) -> Evaluated:
        batch, arrived, grids = self.batch, self.arrived, slicing.slices.grids.grids
        rule = batch.rule if arrived is not None and arrived.late else None
        work = SliceMapReduce.of(slicing, batch.emission(None if arrived is None else arrived.seen), rule)
        results = windows_of_frame(self.rows, work, batch.times, shuffle_partitions(batch, self.rows.sparkSession))
        results = _with_retracted(results, batch)
        if self.label is None:
            return Evaluated(results, None)
        refused = _unusable(self.rows, self.label)
        return Evaluated(
            results, refused if arrived is None or rule is None else refused.unionByName(arrived.too_late(batch, grids, self.label))
        )

    def by_keys(self) -> Evaluated:
        batch, arrived = self.batch, self.arrived
        partitions = shuffle_partitions(batch, self.rows.sparkSession)
        rows = without_watermark(numbered(self.rows)) if arrived is None else self.rows
        bounded = BoundedWork.of(batch, self._seen())
        if self.label is None:
            return Evaluated(bounded.results(rows, partitions * _PARTITIONS_OF_UNKNOWN), None)
        outcome = bounded.outcome(rows, partitions_for(1 if arrived is None else arrived.n_rows, partitions)).persist()
        numbers = outcome.where(F.col(REFUSED).isNotNull()).select(F.col(REFUSED).alias(NUMBER_OF))
        late = rows.join(numbers, NUMBER_OF).select(backquoted(self.label), F.lit(TOO_LATE).alias(REASON))
        return Evaluated(results_in(outcome), _unusable(rows, self.label).unionByName(late))

    def _seen(self) -> int | None:
        """Greatest event time of the input, where it makes a difference."""
        if self.arrived is not None:
            return self.arrived.seen
        return _greatest(self.rows) if self.final and _ticks_past_tuples(self.batch.pipeline) else None


def _with_retracted(results: DataFrame, batch: SourceInput) -> DataFrame:
    """``results`` of windows on grids, which are never retracted, with ``retracted`` where late rows bring revisions."""
    return results.withColumn(RETRACTED, F.lit(False)) if batch.revises else results


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
    return list(dict.fromkeys([*batch.pipeline.keys, *live_ones, *chain(*conditions)]))


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
