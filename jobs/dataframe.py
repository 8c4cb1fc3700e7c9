"""Windows over any Spark DataFrame: the engine of runs over a bounded input, without tables."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from jobs import arrival, stages
from jobs.conditions import columns_of, conditions_of
from jobs.sources import FILE, REASON, ROW, TIME, Columns, event_time
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


def aggregate(df: DataFrame, spec: Pipeline | Mapping[str, Any] | str | os.PathLike[str]) -> DataFrame:
    """The result rows of ``spec`` over the rows of ``df``, as a DataFrame.

    ``df`` is all there is: at its end every window is complete. Its rows arrive in their order (Spark partition, then position), and a
    row that comes later than the spec's ``disorder`` and ``lateness`` allow counts in no closed window, as it would in
    runs and in ``windowmill try``. Rows without a usable event time count nowhere.

    The call itself starts a short Spark job, which reads the time column to see whether any row is late; with
    ``watermark: data_interval_end`` none can be, and nothing runs. If there are late rows, the input is computed once and kept by Spark
    until the result is no longer referenced. All else runs when an action is called on the result.

    Parameters
    ----------
    df
        Any DataFrame, of any origin; rows of an input that was shuffled have no order that Spark would keep: sort them first.
    spec
        A pipeline, the same as nested mappings, or the path of its YAML file. Its source, sink, expectations and schedule are not used.

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
    return _over_slices(df, pipeline, columns)


def _over_slices(df: DataFrame, pipeline: Pipeline, columns: Columns) -> DataFrame:
    grids, layout = Grids.of(pipeline), Layout.of(pipeline, columns.arrow)
    judged = _judged(_numbered(df, pipeline, columns), pipeline, grids)
    slices = stages.lift(judged, pipeline.keys, layout, grids.edges, pipeline.time.tie_break, {}, _BATCH)
    keys = {key: columns.arrow[key] for key in pipeline.keys}
    instants = pipeline.time.unit is None
    schema = stages.sink_schema(keys, layout, instants=instants)
    stage = stages.WindowStage(pipeline.keys, layout, grids.named, _BEFORE_ALL, _AFTER_ALL, _BATCH, instants, schema)
    return stages.windows(slices, stage, int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 2))


def _numbered(df: DataFrame, pipeline: Pipeline, columns: Columns) -> DataFrame:
    """The rows with their event time, place of arrival, and why they count nowhere."""
    instant, reason = event_time(pipeline, columns, time.time_ns() // 1_000)
    place = F.monotonically_increasing_id()
    # The number of the Spark partition is above the row's position in it, which has 33 bits.
    placed = df.withColumns({FILE: F.shiftright(place, 33).cast("int"), ROW: place.bitwiseAND((1 << 33) - 1)})
    return placed.withColumns({TIME: instant, REASON: reason})


def _judged(rows: DataFrame, pipeline: Pipeline, grids: Grids) -> DataFrame:
    """The rows judged by their arrival."""
    axis, disorder = pipeline.time, pipeline.time.disorder.elapsed()
    if axis.watermark == "data_interval_end":
        return arrival.judge_by(rows, None, lateness=0, grids=grids.grids)
    found = arrival.survey(rows, seen=None, disorder=disorder)
    if found.behind:
        # Whether a row is late depends on all rows before it, so from here on their places must not change: compute them once.
        rows = rows.select(*_needed(pipeline), TIME, FILE, ROW, REASON).localCheckpoint()
        found = arrival.survey(rows, seen=None, disorder=disorder)
    return arrival.judge(rows, found, disorder=disorder, lateness=axis.lateness.elapsed(), grids=grids.grids)


def _needed(pipeline: Pipeline) -> list[str]:
    conditions = (columns_of(condition) for condition in conditions_of(pipeline))
    arguments = (aggregate.columns for aggregate in pipeline.aggregates.values())
    return list(dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *chain(*arguments), *chain(*conditions)]))
