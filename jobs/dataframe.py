"""Windows over any Spark DataFrame: the engine of runs over a bounded input, without tables."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from checkpoints.state import state_schema
from jobs import stages
from jobs.arrival import judge, survey
from jobs.conditions import columns_of, conditions_of
from jobs.sources import FILE, REASON, ROW, Columns, event_time
from windowing.columnar.slices import TIME, SliceStage, WindowStage
from windowing.errors import SpecError
from windowing.hopping import Grids, check_sliceable
from windowing.kernels.layout import Layout
from windowing.spec import Pipeline
from windowing.specfile import load_pipeline, parse_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A bounded input: every window lies between these two instants.
_BEFORE_ALL, _AFTER_ALL = -(1 << 62), 1 << 62
#: The whole input is one batch.
_BATCH = 0


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
    UnsupportedError
        If the windows or aggregates do not run on Spark yet.
    """
    pipeline = load_pipeline(spec) if isinstance(spec, str | os.PathLike) else parse_pipeline(spec)
    columns = Columns(df.schema)
    columns.check(pipeline, "the DataFrame")
    check_sliceable(pipeline)
    return _over_slices(_usable(df, pipeline, columns, arrival), pipeline, columns)


def _over_slices(rows: DataFrame, pipeline: Pipeline, columns: Columns) -> DataFrame:
    grids, layout = Grids.of(pipeline), Layout.of(pipeline, columns.arrow)
    keys = {key: columns.arrow[key] for key in pipeline.keys}
    slices = SliceStage(pipeline.keys, pipeline.time.tie_break, layout, grids.edges, _BATCH, state_schema(keys, layout))
    schema = stages.sink_schema(keys, layout, instants=pipeline.time.unit is None)
    stage = WindowStage(slices, grids.named, _BEFORE_ALL, _AFTER_ALL, None, schema)
    return stages.windows(stages.lift(rows, slices), stage, int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2))


def _usable(df: DataFrame, pipeline: Pipeline, columns: Columns, arrival: str | None) -> DataFrame:
    """The rows with their event time, and why those count nowhere that do not; judged by their arrival if there is an order of it."""
    if arrival is not None and arrival not in df.columns:
        raise SpecError(f"arrival: the DataFrame has no column {arrival!r}; its columns are {', '.join(sorted(df.columns))}")
    instant, reason = event_time(pipeline, columns, time.time_ns() // 1_000)
    rows = (df if arrival is None else df.orderBy(stages.quoted(arrival))).withColumns({TIME: instant, REASON: reason})
    if arrival is None or pipeline.time.watermark == "data_interval_end":
        return rows
    return _judged(rows, pipeline)


def _judged(rows: DataFrame, pipeline: Pipeline) -> DataFrame:
    axis, disorder, grids = pipeline.time, pipeline.time.disorder.elapsed(), Grids.of(pipeline).grids
    place = F.monotonically_increasing_id()
    # The number of the Spark partition is above the row's position in it, which has 33 bits.
    placed = rows.withColumns({FILE: F.shiftright(place, 33).cast("int"), ROW: place.bitwiseAND((1 << 33) - 1)})
    found = survey(placed, seen=None, disorder=disorder)
    if found.behind:
        # Whether a row is late depends on all rows before it, so from here on their places must not change: sort them once.
        placed = placed.select(*map(stages.quoted, _needed(pipeline)), TIME, FILE, ROW, REASON).localCheckpoint()
        found = survey(placed, seen=None, disorder=disorder)
    return judge(placed, found, disorder=disorder, lateness=axis.lateness.elapsed(), grids=grids)


def _needed(pipeline: Pipeline) -> list[str]:
    conditions = (columns_of(condition) for condition in conditions_of(pipeline))
    arguments = (aggregate.columns for aggregate in pipeline.aggregates.values())
    return list(dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *chain(*arguments), *chain(*conditions)]))
