"""The part that goes by positions: the state keeps a FlatFAT over each key's tuples, for windows with policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import Input
from windowmill.jobs.ways.keyed_parts import Keyed, KeyedPart
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.ways import Positions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.checkpoints.state.readers import State


class PositionPart(KeyedPart):
    """Computes a batch over positions."""

    way = "positions"

    def __init__(self, spark: Callable[[], SparkSession], batch: Input, positions: Positions, state: State) -> None:
        super().__init__(spark, replace(batch, pipeline=positions.pipeline), state)
        self._layout = positions.layout
        self._columns = PositionState(positions.pipeline, batch.types, positions.layout)
        self._table = state.positions(self.schema)

    @property
    def schema(self) -> pa.Schema:
        return self._columns.stored_schema

    @property
    def reading(self) -> PositionStage:
        batch = self._batch
        return self._stage(Emission(batch.seen, batch.emitted, AXIS_BEGIN, AXIS_BEGIN))

    def _stage(self, emission: Emission) -> PositionStage:
        batch = self._batch
        return PositionStage(
            batch.pipeline,
            self._layout,
            self._columns,
            batch.batch,
            batch.clock(emission),
            batch.ends(emission),
            batch.builds_state,
            batch.sink_schema,
            batch.check,
        )

    def keyed(self, emission: Emission) -> Keyed:
        stage = self._stage(emission)
        return Keyed(stage, self._columns.rows, self.schema, {key: key for key in stage.keys}, partial(advance, stage))

    def read(self, rows: pa.Table, emission: Emission) -> pa.Table | None:
        if not self._batch.restores:
            return self.schema.empty_table()
        return self._table.read(self._stage(emission), rows, limits.state_read(self._layout, limited=self._batch.is_limited))

    def restore(self, new: FileRows | NumberedRows | None, emission: Emission) -> DataFrame | None:
        if not self._batch.restores:
            return None
        stage = self._stage(emission)
        touched = None if new is None else new.frame(self._spark(), stage, self._columns.rows)
        return self._table.restore(stage, touched)
