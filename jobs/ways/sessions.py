"""The part that goes by sessions: the state keeps bounds and partials of open sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.state.wanted import OpenSessions
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.keyed_parts import Keyed, KeyedPart
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.joined_sessions import advance
from windowmill.windowing.columnar.session_partials import SessionStage, fragment_schema, row_schema
from windowmill.windowing.watermark import BEFORE
from windowmill.windowing.ways import Sessions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.checkpoints.state.readers import State


class SessionPart(KeyedPart):
    """Computes a batch by sessions."""

    way = "sessions"

    def __init__(self, spark: Callable[[], SparkSession], batch: Input, sessions: Sessions, state: State) -> None:
        super().__init__(spark, replace(batch, pipeline=sessions.pipeline), state)
        self._stage, self._gaps = stage_of(self._batch, sessions), sessions.gaps
        self._table = state.partials(self.schema)

    @property
    def schema(self) -> pa.Schema:
        return self._stage.schema.append(pa.field(SUM, pa.int64()))

    @property
    def reading(self) -> SessionStage:
        return self._stage

    def keyed(self, emission: Emission) -> Keyed:
        closed = BEFORE if emission.emitted is None else emission.emitted
        stage = replace(self._stage, closed=closed, ends=self._batch.ends(emission))
        return Keyed(stage, stage.rows, self.schema, {key: key for key in stage.keys}, partial(advance, stage))

    def read(self, rows: pa.Table, emission: Emission) -> pa.Table | None:
        wanted = self._wanted(emission, touches=rows.num_rows > 0)
        if wanted is None:
            return self._stage.schema.empty_table()
        return self._table.read(
            wanted, before_batch=self._batch.batch, limit=limits.state_read(self._stage.layout, limited=self._batch.is_limited)
        )

    def restore(self, new: FileRows | NumberedRows | None, emission: Emission) -> DataFrame | None:
        wanted = self._wanted(emission, touches=new is not None)
        return None if wanted is None else self._table.restore(wanted, before_batch=self._batch.batch)

    def _wanted(self, emission: Emission, *, touches: bool) -> OpenSessions | None:
        """The sessions that were open before the batch; null if it needs none. ``touches`` is whether it has new rows."""
        batch = self._batch
        if not batch.restores or (not touches and emission.emitted == batch.emitted):
            return None
        return OpenSessions(self._gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)


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
