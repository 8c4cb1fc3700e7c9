"""The part that goes by positions: the state keeps a FlatFAT over each key's tuples, for windows with policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from windowmill.checkpoints.state.positions import PositionTable
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.positions_in_process import LoadedInProcess
from windowmill.jobs.ways.positions_on_spark import LoadedOnSpark
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.ways import Positions, WayName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from windowmill.windowing.axis import WindowGrid


class PositionPart:
    """Computes a batch over positions."""

    way: WayName = "positions"
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    by_arrival = True

    def __init__(self, spark: Callable[[], SparkSession], batch: TableInput, positions: Positions, state: str) -> None:
        self._spark, self._batch, self._positions = spark, replace(batch, pipeline=positions.pipeline), positions
        self._path = state
        self._state = PositionState(positions.pipeline, batch.types, positions.layout)
        self._table = PositionTable(spark, state, self._state.stored_schema, batch.check)

    @property
    def schema(self) -> pa.Schema:
        return self._state.stored_schema

    @property
    def reading(self) -> PositionStage:
        return self._stage(self._batch.emission_by_arrival(self._batch.seen))

    def _stage(self, emission: Emission) -> PositionStage:
        batch = self._batch
        return PositionStage(
            batch.pipeline,
            self._positions.layout,
            self._state,
            batch.batch,
            batch.clock(emission),
            emission.ends(batch.plan),
            batch.builds_state,
            batch.sink_schema,
            batch.check,
        )

    def here(self, new: NewRows | None, emission: Emission) -> LoadedInProcess:
        batch, stage = self._batch, self._stage(emission)
        if new is not None:
            limits.check_rows(new.table.num_rows, stage.layout)
        rows = stage.state.rows.empty_table() if new is None else new.usable(batch, stage.state.rows)
        stored = self._table.read(stage, rows, limits.state_read(stage.layout)) if batch.restores else self._table.empty()
        if stored is None:
            raise limits.state_beyond(self._path)
        return LoadedInProcess(rows, stored, stage)

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        batch, stage, spark = self._batch, self._stage(emission), self._spark()
        restored = None
        if batch.restores:
            touched = new.frame(spark, stage, stage.state.rows) if isinstance(new, FileRows) else None if new is None else new.usable()
            restored = self._table.restore(stage, touched)
        return LoadedOnSpark(spark, new, restored, stage, batch.partitions(spark))
