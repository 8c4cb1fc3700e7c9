"""Windows over any Spark DataFrame: the engine of runs over a bounded input, without tables."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.state import state_schema
from windowmill.jobs import stages
from windowmill.jobs.arrival import Survey, judge, met, survey
from windowmill.jobs.conditions import columns_of, conditions_of
from windowmill.jobs.live import REFUSED, ROWS_PER_PARTITION, LiveRows, results
from windowmill.jobs.shipping import ship_modules
from windowmill.jobs.sources.columns import FILE, REASON, ROW, Columns
from windowmill.jobs.sources.rows import event_end, event_time
from windowmill.windowing.bounds import check_lengths
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.columnar.slices import TIME, SliceStage, WindowStage
from windowmill.windowing.errors import SpecError
from windowmill.windowing.spec import Pipeline, Sliding
from windowmill.windowing.specfile import load_pipeline, parse_pipeline
from windowmill.windowing.watermark import BEFORE, Clock
from windowmill.windowing.ways import Slices, slices_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A bounded input: every window lies between these two instants.
_BEFORE_ALL, _AFTER_ALL = -(1 << 62), 1 << 62
#: The whole input is one batch.
_BATCH = 0
#: Column of an event's end on the axis; bits of a row's number that count the rows of a Spark partition.
UNTIL, _ROW_BITS = "_until", 33
#: How many times more shares of the keys than for slices, where no survey has told how many rows there are: a worker holds one at a time.
_SHARES = 4


def aggregate(df: DataFrame, spec: Pipeline | Mapping[str, Any] | str | os.PathLike[str], *, arrival: str | None = None) -> DataFrame:
    """The result rows of ``spec`` over the rows of ``df``, as a DataFrame; computed when an action is called on it.

    ``df`` is all there is: at its end every window is complete. A DataFrame has no order of its own (Spark reads the parts of a file in
    any order), so no row of it is late, unless ``arrival`` says in what order they came. Rows without a usable event time count nowhere.

    Parameters
    ----------
    df
        Any DataFrame, of any origin.
    spec
        A pipeline, the same as nested mappings, or the path of its YAML file. Its source, sink, expectations and schedule are not used.
    arrival
        A column by which rows are put into the order of their arrival. Rows that come later than the spec's ``disorder`` and ``lateness``
        allow then count in no closed window, as in runs and in ``windowmill try``. To see whether there are any, the call itself sorts
        the rows and looks at their times; if there are, Spark keeps the sorted rows until the result is no longer referenced.

    Returns
    -------
    DataFrame
        The key columns, ``window``, ``window_start``, ``window_end``, ``trigger``, ``revision``, the aggregates in the spec's order,
        ``batch`` (always 0: the input is one batch). In no promised order.

    Raises
    ------
    SpecError
        If the spec is wrong, or does not fit the columns of ``df``.
    """
    pipeline = load_pipeline(spec) if isinstance(spec, str | os.PathLike) else parse_pipeline(spec)
    # Without runs there is no run's time: what a DataFrame gives depends on the clock only where the spec asks for it.
    latest = pipeline.time.latest(time.time_ns() // 1_000, by_default=False)
    return evaluate(df, pipeline, arrival=arrival, latest=latest).rows


@dataclass(frozen=True)
class Evaluated:
    """What a pipeline makes of a bounded input.

    Attributes
    ----------
    rows
        Result rows, as :func:`aggregate` gives them.
    refused
        Place of arrival and reason of the rows that count nowhere; none unless the input has an order of arrival.
    """

    rows: DataFrame
    refused: DataFrame | None


def evaluate(df: DataFrame, pipeline: Pipeline, *, arrival: str | None = None, final: bool = True, latest: int | None = None) -> Evaluated:
    """The engine of :func:`aggregate`.

    Parameters
    ----------
    arrival
        As of :func:`aggregate`.
    final
        Whether the input ends with ``df``; else only the windows are given that are complete by what ``df`` has shown.
    latest
        The greatest event time that is accepted, where that is bounded.

    Raises
    ------
    SpecError
        If the spec does not fit the columns of ``df``.
    """
    columns = Columns(df.schema)
    columns.check(pipeline, "the DataFrame")
    check_lengths(pipeline)
    if arrival is not None and arrival not in df.columns:
        raise SpecError(f"arrival: the DataFrame has no column {arrival!r}; its columns are {', '.join(sorted(df.columns))}")
    instant, reason = event_time(pipeline, columns, None if latest is None else f"{latest}L")
    rows = (df if arrival is None else df.orderBy(backquoted(arrival))).withColumns({TIME: instant, REASON: reason})
    slices = slices_of(pipeline, columns.arrow)
    found = None
    if slices is None or arrival is not None:
        rows = rows.withColumn(UNTIL, event_end(pipeline, columns))
        rows, found = _placed(rows, pipeline, columns, arrival)
    ship_modules(df.sparkSession, pipeline)
    if slices is not None:
        return _over_slices(rows, pipeline, columns, slices, found, arrival, final=final)
    return _over_live_rows(rows, pipeline, columns, found, arrival, final=final)


def _placed(rows: DataFrame, pipeline: Pipeline, columns: Columns, arrival: str | None) -> tuple[DataFrame, Survey | None]:
    """The rows with their places, which are those of their arrival if there is an order of it; and then the survey of it."""
    place = F.monotonically_increasing_id()
    # The number of the Spark partition is above the row's position in it, which has 33 bits.
    placed = rows.withColumns({FILE: F.shiftright(place, _ROW_BITS).cast("int"), ROW: place.bitwiseAND((1 << _ROW_BITS) - 1)})
    if arrival is None or pipeline.time.watermark == "data_interval_end":
        return placed, None
    options: dict[str, Any] = {"seen": None, "disorder": pipeline.time.disorder.elapsed(), "every": pipeline.emit == "revise"}
    found = survey(placed, **options)
    if found.behind:
        # Whether a row is late depends on all rows before it, so from here on their places must not change: sort them once.
        placed = placed.select(*map(backquoted, _needed(pipeline, columns, arrival)), TIME, UNTIL, FILE, ROW, REASON).localCheckpoint()
        found = survey(placed, **options)
    return placed, found


def _over_slices(
    rows: DataFrame, pipeline: Pipeline, columns: Columns, slices: Slices, found: Survey | None, arrival: str | None, *, final: bool
) -> Evaluated:
    axis = pipeline.time
    if found is not None and found.behind:
        rows = judge(rows, found, disorder=axis.disorder.elapsed(), lateness=axis.lateness.elapsed(), grids=slices.grids.grids)
    through = _AFTER_ALL if final else _BEFORE_ALL
    if not final and found is not None and found.seen is not None:
        through = found.seen - axis.disorder.elapsed() - axis.lateness.elapsed()
    keys = {key: columns.arrow[key] for key in pipeline.keys}
    schema = state_schema(keys, slices.layout)
    stage = SliceStage(pipeline.keys, axis.tie_break, slices.layout, slices.grids.edges, _BATCH, schema)
    windows = WindowStage(stage, slices.grids.named, _BEFORE_ALL, through, None, result_schema(pipeline, columns.arrow))
    results = stages.windows(stages.lift(rows, stage), windows, _partitions(rows))
    return Evaluated(results, None if arrival is None else _unusable(rows, arrival))


def _over_live_rows(
    rows: DataFrame, pipeline: Pipeline, columns: Columns, found: Survey | None, arrival: str | None, *, final: bool
) -> Evaluated:
    way, axis = LiveRows.of(pipeline, columns.arrow), pipeline.time
    numbered = rows.withColumn("_number", F.shiftleft(F.col(FILE).cast("long"), _ROW_BITS) + F.col(ROW))
    if found is None:
        numbered = numbered.withColumn("_watermark", F.lit(None).cast("long"))
        clock = Clock(0, axis.lateness.elapsed(), moves=False, seen=_greatest(rows) if final and _ticks_for_ever(pipeline) else BEFORE)
    else:
        numbered = met(numbered, found, disorder=axis.disorder.elapsed())
        clock = Clock(axis.disorder.elapsed(), axis.lateness.elapsed(), seen=BEFORE if found.seen is None else found.seen)
    fresh, partitions = way.fresh(numbered), _partitions(rows)
    if arrival is None:
        return Evaluated(way.windows(fresh, clock, _BATCH, partitions * _SHARES), None)
    fewest = 1 if found is None else -(-found.rows // ROWS_PER_PARTITION)
    worked = way.work(fresh, None, clock, _BATCH, max(partitions, fewest), final=final)
    worked = worked.persist()
    numbers = worked.where(F.col(REFUSED).isNotNull()).select(F.col(REFUSED).alias("_number"))
    late = numbered.join(numbers, "_number").select(backquoted(arrival), F.lit("too_late").alias(REASON))
    return Evaluated(results(worked), _unusable(rows, arrival).unionByName(late))


def _unusable(rows: DataFrame, arrival: str) -> DataFrame:
    return rows.where(F.col(REASON).isNotNull()).select(backquoted(arrival), REASON)


def _ticks_for_ever(pipeline: Pipeline) -> bool:
    """Whether a window's ticks only stop at the greatest event time of the whole input."""
    sliding = [window for window in pipeline.windows if isinstance(window, Sliding)]
    return any(window.trigger.time is not None and window.evict.time is None for window in sliding)


def _greatest(rows: DataFrame) -> int:
    found = rows.where(F.col(REASON).isNull()).agg(F.max(TIME)).head()
    return BEFORE if found is None or found[0] is None else int(found[0])


def _partitions(rows: DataFrame) -> int:
    return int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2)


def _needed(pipeline: Pipeline, columns: Columns, arrival: str) -> list[str]:
    conditions = (columns_of(condition) for condition in conditions_of(pipeline))
    live = live_columns(pipeline, columns.arrow)
    return list(dict.fromkeys([*pipeline.keys, *live, *chain(*conditions), arrival]))
