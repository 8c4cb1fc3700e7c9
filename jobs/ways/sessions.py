"""The way by sessions: the state keeps bounds and partials of open sessions.

This process computes a small batch, Spark any other one. The choice is final once the state has been restored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.state.partials import PartialTable
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways import lateness_in_process as lateness
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input, TableInput
from windowmill.jobs.ways.new_rows import NewRows, counted
from windowmill.jobs.ways.sessions_on_spark import LoadedOnSpark, NumberedRows
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.checksums import SUM
from windowmill.windowing.columnar.log import NUMBER_OF
from windowmill.windowing.columnar.session_partials import SessionStage, advance, row_schema, state_schema
from windowmill.windowing.ways import Sessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.windowing.kernels.combine import Ints


class Loaded(Protocol):
    """New rows and restored state, both in Spark or both in this process."""

    def compute(self, stage: SessionStage) -> Computed:
        """Compute closed sessions and new state."""
        ...


@dataclass(frozen=True, slots=True)
class Surveyed:
    """New rows, null if the batch has none, and the windows that they complete."""

    new: NewRows | NumberedRows | None
    rows_read: int
    emission: Emission


@dataclass(frozen=True)
class LoadedInProcess:
    """New rows, null for none, and restored fragments of a small batch."""

    new: NewRows | None
    stored: pa.Table
    batch: Input

    def compute(self, stage: SessionStage) -> Computed:
        rows = stage.rows.empty_table() if self.new is None else usable(self.new.table, self.batch, stage)
        done = advance(stage, rows, self.stored)
        kept = done.state is not None and len(done.state)
        return Computed(
            rows=pa.concat_tables(done.results) if done.results else None,
            state=done.state if kept else None,
            windows=counted(done.results),
            rows_applied=done.applied,
            rows_late=done.late,
            new_state=0 if done.state is None else len(done.state),
            judged=None if self.new is None else NewRows(too_late(self.new.table, done.refused), self.new.in_spark).refused(),
        )


def usable(table: pa.Table, batch: Input, stage: SessionStage) -> pa.Table:
    """The rows of ``table``, which are in order of arrival, that have no quarantine reason, with the columns of ``stage.rows``."""
    marked = lateness.marked(table, batch).append_column(NUMBER_OF, pa.array(np.arange(len(table))))
    return marked.filter(pc.is_null(marked.column(REASON))).select(stage.rows.names).cast(stage.rows)


def too_late(table: pa.Table, numbers: Ints) -> pa.Table:
    """``table`` with the reason ``too_late`` for the rows of these ``numbers``."""
    late = np.zeros(len(table), np.bool_)
    late[numbers] = True
    reasons = pc.if_else(pa.array(late), "too_late", table.column(REASON))
    return table.set_column(table.schema.get_field_index(REASON), REASON, reasons)


class SessionWay:
    """A batch by sessions."""

    def __init__(self, spark: SparkSession, batch: TableInput, sessions: Sessions, state: str) -> None:
        self._spark, self._batch = spark, batch
        self._stage = stage_of(batch, sessions)
        self._table = PartialTable(spark, state, self._stage.schema.append(pa.field(SUM, pa.int64())), batch.check)

    def survey(self) -> Surveyed:
        batch = self._batch
        if not batch.files:
            return Surveyed(None, 0, self._emission(batch.seen))
        rows = batch.read(self._spark)
        if limits.are_few(batch.files, self._stage.layout):
            few = NewRows.collected(rows, self._stage)
            return Surveyed(few, len(few.table), self._emission(lateness.seen_after(few.table, batch.seen)))
        many = NumberedRows.surveyed(rows, batch)
        return Surveyed(many, many.survey.rows, self._emission(many.survey.seen))

    def _emission(self, seen: int | None) -> Emission:
        # A row that is judged by its arrival may have met sessions that end after a backfill's range.
        return self._batch.emission(seen, stops_at_range=self._batch.pipeline.time.watermark != "max_event_time")

    def restore(self, surveyed: Surveyed) -> Loaded:
        batch, new, wanted = self._batch, surveyed.new, self._wanted(surveyed)
        if not isinstance(new, NumberedRows):
            stored: pa.Table | None = self._stage.schema.empty_table()
            if wanted is not None:
                stored = self._table.read(wanted, before_batch=batch.batch, limit=limits.state_read(self._stage.layout))
            if stored is not None:
                return LoadedInProcess(new, stored, batch)
            new = None if new is None else NumberedRows.surveyed(new.in_spark, batch)
        stored_on_spark = None if wanted is None else self._table.restore(wanted, before_batch=batch.batch)
        return LoadedOnSpark(new, stored_on_spark, batch.partitions(self._spark))

    def _wanted(self, surveyed: Surveyed) -> OpenSessions | None:
        """The open sessions before the batch; null if it has no use for them."""
        batch = self._batch
        if not batch.restores or (surveyed.new is None and surveyed.emission.emitted == batch.emitted):
            return None
        gaps = tuple(dict.fromkeys(gap for _, gap in self._stage.gaps))
        return OpenSessions(gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)

    def apply(self, surveyed: Surveyed, restored: Loaded, staging: str) -> Applied:
        emission = surveyed.emission
        closed = AXIS_BEGIN if emission.emitted is None else emission.emitted
        stage = replace(self._stage, closed=closed, ends=emission.ends(self._batch.plan))
        return settle(self._batch, emission, restored.compute(stage), surveyed.rows_read, staging)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        """Never: ``windowmill maintain`` merges the files of sessions."""
        return False

    def compact(self) -> None:
        """Nothing to do: see :meth:`is_overgrown`."""


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
        schema=state_schema(batch.keys, layout),
        results=batch.sink_schema,
        check=batch.check,
    )
