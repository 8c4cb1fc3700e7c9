"""The way by sessions: the state keeps bounds and partials of open sessions, and slices if the pipeline also has windows on grids.

This process computes a small batch, Spark any other. The choice is final once the state has been restored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from windowmill.checkpoints.state.partials import PartialTable, compact_partials
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.ways import limits, slices_in_process, slices_on_spark
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.input import Input, TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.sessions_in_process import LoadedInProcess
from windowmill.jobs.ways.sessions_on_spark import LoadedOnSpark
from windowmill.jobs.ways.slice_stages import Slicing
from windowmill.jobs.ways.surveyed import Surveyed
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.checksums import SUM
from windowmill.windowing.columnar.session_partials import GAP, SessionStage, fragment_schema, row_schema
from windowmill.windowing.ways import Sessions, Slices

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Loaded(Protocol):
    """New rows and restored state, both in Spark or both in this process."""

    def compute(self, stage: SessionStage, state: pa.Schema) -> Computed:
        """Compute complete windows and new state, which has the columns ``state``."""
        ...


class SessionWay:
    """Computes a batch by sessions, and by slices if the pipeline also has windows on grids."""

    def __init__(self, spark: SparkSession, batch: TableInput, sessions: Sessions, slices: Slices | None, state: str) -> None:
        self._spark, self._batch, self._state = spark, batch, state
        self._stage = stage_of(batch, sessions)
        # One table: sessions and slices are read by their own columns, and appended together with the columns of both.
        own = self._stage.schema.append(pa.field(SUM, pa.int64()))
        self._sessions = self._table = PartialTable(spark, state, own, batch.check)
        self._slicing = None
        if slices is not None:
            self._slicing = Slicing.over(batch, slices, state)
            on_grids = self._slicing.stage.storing.schema
            self._slices = PartialTable(spark, state, on_grids, batch.check)
            self._table = PartialTable(spark, state, joint_schema(on_grids, own), batch.check)

    def survey(self) -> Surveyed:
        return Surveyed.of(self._spark, self._batch, self._stage)

    def restore(self, surveyed: Surveyed) -> Loaded:
        new = surveyed.new
        if not isinstance(new, NumberedRows):
            few = self._few(new, surveyed)
            if few is not None:
                return few
            new = None if new is None else NumberedRows.surveyed(new.in_spark, self._batch)
        return self._on_spark(new, surveyed)

    def _few(self, new: NewRows | None, surveyed: Surveyed) -> LoadedInProcess | None:
        """Load a batch in this process; null if its state or windows turn out to be too large."""
        batch, wanted, slicing = self._batch, self._wanted(surveyed), self._slicing
        stored: pa.Table | None = self._stage.schema.empty_table()
        if wanted is not None:
            stored = self._sessions.read(wanted, before_batch=batch.batch, limit=limits.state_read(self._stage.layout))
        if stored is None:
            return None
        if slicing is None:
            return LoadedInProcess(new, stored, batch, None)
        needed, stage = slicing.wanted(surveyed.emission), slicing.window_stage(surveyed.emission)
        slices = slices_in_process.InProcess(self._spark, slicing, new).load_few(self._slices, needed, stage)
        return None if slices is None else LoadedInProcess(new, stored, batch, slices)

    def _on_spark(self, new: NumberedRows | None, surveyed: Surveyed) -> LoadedOnSpark:
        spark, batch, wanted, slicing = self._spark, self._batch, self._wanted(surveyed), self._slicing
        stored = None if wanted is None else self._sessions.restore(wanted, before_batch=batch.batch)
        slices = None
        if slicing is not None:
            needed, stage = slicing.wanted(surveyed.emission), slicing.window_stage(surveyed.emission)
            if new is None:
                slices = slices_on_spark.load(spark, None, slicing, self._slices, needed, stage)
            else:
                slices = slices_on_spark.OnSpark(new.arrived, new.survey, slicing).load(self._slices, needed, stage)
        return LoadedOnSpark(new, stored, batch.partitions(spark), slices)

    def _wanted(self, surveyed: Surveyed) -> OpenSessions | None:
        """The sessions that were open before the batch; null if it needs none."""
        batch = self._batch
        if not batch.restores or (surveyed.new is None and surveyed.emission.emitted == batch.emitted):
            return None
        gaps = tuple(dict.fromkeys(gap for _, gap in self._stage.gaps))
        return OpenSessions(gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)

    def apply(self, surveyed: Surveyed, restored: Loaded, staging: str) -> Applied:
        emission = surveyed.emission
        closed = AXIS_BEGIN if emission.emitted is None else emission.emitted
        stage = replace(self._stage, closed=closed, ends=emission.ends(self._batch.plan))
        return settle(self._batch, emission, restored.compute(stage, self._table.schema), surveyed.rows_read, staging)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        """Whether the spans that batches look for lie in many files; otherwise ``windowmill maintain`` merges the files of sessions."""
        return self._slicing is not None and bool(self._slicing.slices.grids.known) and self._table.is_scattered()

    def compact(self) -> None:
        if self._slicing is not None:
            compact_partials(self._state, self._slicing.all_but_old_spans())


def joint_schema(slices: pa.Schema, sessions: pa.Schema) -> pa.Schema:
    """Schema of a state table of slices and sessions; a row is null in the columns of the other kind."""
    before = [field for field in slices if field.name not in sessions.names]
    first = sessions.get_field_index(GAP)
    return pa.schema([*list(sessions)[:first], *before, *list(sessions)[first:]])


def stage_of(batch: Input, sessions: Sessions) -> SessionStage:
    """Settings for ``batch`` before anything is closed."""
    pipeline, layout = batch.pipeline, sessions.layout
    return SessionStage(
        keys=pipeline.keys,
        ties=pipeline.time.tie_break,
        layout=layout,
        gaps=sessions.gaps,
        batch=batch.batch,
        closed=AXIS_BEGIN,
        ends=None,
        keep=batch.builds_state,
        rows=row_schema(pipeline, batch.types, layout),
        schema=fragment_schema(batch.keys, layout),
        results=batch.sink_schema,
        check=batch.check,
    )
