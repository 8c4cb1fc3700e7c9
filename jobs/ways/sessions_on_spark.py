"""Computes a batch by sessions on Spark: one shuffle brings the new rows and open sessions of a key together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways import keyed_pass, slices_on_spark
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.live_row_pass import partitions
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.pass_output import computed, output, output_schema
from windowmill.windowing.columnar.checksums import SUM
from windowmill.windowing.columnar.session_partials import SessionStage, advance
from windowmill.windowing.columnar.slices import CLOSED, TIME

if TYPE_CHECKING:
    from windowmill.windowing.columnar.slices import WindowStage


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and restored fragments in Spark; either may be null. ``slices`` is for windows on grids; null if there are none."""

    new: NumberedRows | None
    stored: DataFrame | None
    partitions: int
    slices: slices_on_spark.LoadedOnSpark | None

    def compute(self, stage: SessionStage, state: pa.Schema) -> Computed:
        sessions = self._sessions(stage)
        if self.slices is None:
            return sessions
        try:
            sessions = _refused_by_both(sessions, self.slices.stage)
            on_grids = self.slices.compute()
        except BaseException:
            sessions.release()
            raise
        return replace(
            sessions,
            rows=_union(sessions.rows, on_grids.rows),
            state=_union(*(None if part.state is None else _with_columns(part.state, state) for part in (sessions, on_grids))),
            windows=sessions.windows | on_grids.windows,
            new_state=sessions.new_state + on_grids.new_state,
            cached=(*sessions.cached, *on_grids.cached),
        )

    def _sessions(self, stage: SessionStage) -> Computed:
        new = None if self.new is None else self.new.read_by(stage)
        if new is None and self.stored is None:
            return Computed()
        n_rows = 0 if self.new is None else self.new.survey.rows
        schema = output_schema(stage.results, stage.schema.append(pa.field(SUM, pa.int64())))
        both = keyed_pass.by_key(new, self.stored, stage.keys, partitions(n_rows, self.partitions))
        worked = both.mapInArrow(partial(_work, stage, schema), from_arrow_schema(schema))
        return computed(worked, None if self.new is None else self.new.rows, keeps=stage.keep)


def _refused_by_both(sessions: Computed, stage: WindowStage) -> Computed:
    """``sessions`` without the refusals of rows that count in a window on a grid: a row is too late if both refuse it."""
    if not sessions.rows_refused or sessions.judged is None:
        return sessions
    refused, time, closed = F.col(REASON) == "too_late", F.col(TIME), F.col(CLOSED)
    last_end = lateness.closing([grid for _, grid in stage.grids], F.when(refused, time), F.when(refused, closed))["last_end"]
    counts = F.coalesce(last_end > F.greatest(time, closed), F.lit(False))
    judged = sessions.judged.withColumn(REASON, F.when(refused & counts, F.lit(None)).otherwise(F.col(REASON)))
    n = judged.where(F.col(REASON) == "too_late").count()
    taken = sessions.rows_refused - n
    return replace(
        sessions, judged=judged, rows_refused=n, rows_applied=sessions.rows_applied + taken, rows_late=sessions.rows_late + taken
    )


def _union(*parts: DataFrame | pa.Table | None) -> DataFrame | None:
    frames = [part for part in parts if isinstance(part, DataFrame)]
    return reduce(DataFrame.unionByName, frames) if frames else None


def _with_columns(rows: DataFrame | pa.Table, schema: pa.Schema) -> DataFrame:
    """``rows`` with the columns of ``schema``; columns that ``rows`` lacks are null."""
    assert isinstance(rows, DataFrame)
    return rows.select(
        *(
            F.col(backquoted(field.name)) if field.name in rows.columns else F.lit(None).cast(field.dataType).alias(field.name)
            for field in from_arrow_schema(schema)
        )
    )


def _work(stage: SessionStage, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in an executor over the rows and fragments of one Spark partition, in any order."""
    both = keyed_pass.split(batches, stage.rows, stage.schema.append(pa.field(SUM, pa.int64())))
    if both is None:
        return
    done = advance(stage, *both)
    yield from output(schema, done.results, done.state, done.refused, applied=done.applied, late=done.late)
