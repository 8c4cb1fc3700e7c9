"""The part that goes by sessions: the state keeps bounds and partials of open sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.state.partials import PartialTable
from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import Input, TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.sessions_in_process import LoadedInProcess
from windowmill.jobs.ways.sessions_on_spark import LoadedOnSpark
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.session_partials import SessionStage, fragment_schema, row_schema
from windowmill.windowing.watermark import BEFORE
from windowmill.windowing.ways import Sessions, WayName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.axis import WindowGrid


class SessionPart:
    """Computes a batch by sessions."""

    way: WayName = "sessions"
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    by_arrival = True

    def __init__(self, spark: Callable[[], SparkSession], batch: TableInput, sessions: Sessions, state: str) -> None:
        self._spark, self._batch, self._state = spark, replace(batch, pipeline=sessions.pipeline), state
        self._stage, self._gaps = stage_of(self._batch, sessions), sessions.gaps
        self._table = PartialTable(spark, state, self.schema, batch.check)

    @property
    def schema(self) -> pa.Schema:
        return self._stage.schema.append(pa.field(SUM, pa.int64()))

    @property
    def reading(self) -> SessionStage:
        return self._stage

    def here(self, new: NewRows | None, emission: Emission) -> LoadedInProcess:
        if new is not None:
            limits.check_rows(new.table.num_rows, self._stage.layout)
        batch, wanted = self._batch, self._wanted(new, emission)
        stored: pa.Table | None = self._stage.schema.empty_table()
        if wanted is not None:
            stored = self._table.read(wanted, before_batch=batch.batch, limit=limits.state_read(self._stage.layout))
        if stored is None:
            raise limits.state_beyond(self._state)
        return LoadedInProcess(new, stored, self._stage_after(emission), batch)

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        batch, wanted = self._batch, self._wanted(new, emission)
        stored = None if wanted is None else self._table.restore(wanted, before_batch=batch.batch)
        return LoadedOnSpark(self._spark(), new, stored, self._stage_after(emission), batch.partitions(self._spark()))

    def _wanted(self, new: NewRows | FileRows | NumberedRows | None, emission: Emission) -> OpenSessions | None:
        """The sessions that were open before the batch; null if it needs none."""
        batch = self._batch
        if not batch.restores or (new is None and emission.emitted == batch.emitted):
            return None
        return OpenSessions(self._gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)

    def _stage_after(self, emission: Emission) -> SessionStage:
        """Settings for the batch, with what is closed after it."""
        closed = BEFORE if emission.emitted is None else emission.emitted
        return replace(self._stage, closed=closed, ends=emission.ends(self._batch.plan))


def stage_of(batch: Input, sessions: Sessions) -> SessionStage:
    """Settings for ``batch`` before anything is closed."""
    pipeline, layout = batch.pipeline, sessions.layout
    return SessionStage(
        keys=pipeline.keys,
        ties=pipeline.time.tie_break,
        layout=layout,
        limits=sessions.limits,
        batch=batch.batch,
        closed_before=BEFORE if batch.emitted is None else batch.emitted,
        closed=BEFORE,
        ahead=batch.lateness if batch.revises else 0,
        ends=None,
        keep=batch.builds_state,
        rows=row_schema(pipeline, batch.types, layout),
        schema=fragment_schema(batch.keys, layout, revises=batch.revises, cuts=sessions.cuts),
        results=batch.sink_schema,
        by_row=batch.by_row,
        check=batch.check,
    )
