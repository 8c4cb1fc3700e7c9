"""The Spark engine of ``windowmill try``: ``aggregate`` over all rows, in the order of their lines, which are or make up commits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.jobs.commands.terminal import report
from windowmill.jobs.commands.try_command import Results, TryBatch, results_in_order
from windowmill.jobs.dataframe import evaluate
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.spark_files import judged
from windowmill.jobs.spark.access import frame_of
from windowmill.jobs.spark.session import shipment_of, spark_session
from windowmill.windowing.fields import SourceStep
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.spark.access import DataFrame

_PLACE, _COMMIT = "_ place", "_ arrival"


class SparkEngine:
    """Gathers rows until the input ends, since its results depend on no cut."""

    def __init__(self, pipeline: Pipeline, latest: float) -> None:
        self._pipeline = pipeline
        self._tables: list[pa.Table] = []
        self._latest = None if latest == math.inf else int(latest)

    def feed(self, batch: TryBatch) -> None:
        self._tables.append(batch.rows.append_column(_COMMIT, pa.array(batch.commits)))

    def finish(self, *, final: bool) -> Results:
        if not self._tables:
            return Results([], [])
        rows = pa.concat_tables(self._tables)
        rows = rows.append_column(_PLACE, pa.array(np.arange(rows.num_rows)))
        typed = [pa.field(field.name, pa.string() if pa.types.is_null(field.type) else field.type) for field in rows.schema]
        spark = spark_session("windowmill try", brief=True, shipment=shipment_of(self._pipeline), say=report)
        frame = frame_of(spark, rows.cast(pa.schema(typed)))
        frame, failed = self._read(frame)
        found = evaluate(frame, self._with_filter, arrival=_COMMIT, label=_PLACE, final=final, latest=self._latest)
        assert found.refused is not None
        refused = sorted([*failed, *((row[_PLACE], row["_reason"]) for row in found.refused.collect())])
        return Results(results_in_order([found.rows.toArrow()], self._pipeline), refused)

    @property
    def _with_filter(self) -> Pipeline:
        """The pipeline, of whose steps the source's filter is the first, as ``evaluate`` takes none from a source."""
        pipeline = self._pipeline
        if pipeline.source is None or pipeline.source.filter is None or pipeline.own_filter is not None:
            return pipeline
        return pipeline.model_copy(update={"steps": (SourceStep(filter=pipeline.source.filter), *pipeline.steps)})

    def _read(self, frame: DataFrame) -> tuple[DataFrame, list[tuple[int, str]]]:
        """The rows that the source's filter leaves, and places and reasons of those on which it fails."""
        wanted = self._pipeline.own_filter
        if not wanted:
            return frame, []
        chosen, failed = judged(wanted, Columns(frame.schema).in_conditions)
        if failed is None:
            return frame.where(chosen), []
        return frame.where(chosen & ~failed), [(row[_PLACE], "bad_condition") for row in frame.where(failed).select(_PLACE).collect()]
