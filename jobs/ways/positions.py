"""The way over positions: the state keeps a FlatFAT over each key's tuples, for windows that evict from the front.

This process computes a small batch, Spark any other. The choice is final once the state has been restored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from windowmill.checkpoints.state.positions import PositionTable, compact_positions, overgrown_from
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.positions_in_process import LoadedInProcess
from windowmill.jobs.ways.positions_on_spark import LoadedOnSpark
from windowmill.jobs.ways.surveyed import Surveyed
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.ways import Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Loaded(Protocol):
    """New rows and restored state, both in Spark or both in this process."""

    def compute(self) -> Computed:
        """Compute complete windows and new state."""
        ...


class PositionWay:
    """Computes a batch over positions."""

    def __init__(self, spark: SparkSession, batch: TableInput, positions: Positions, state: str) -> None:
        self._spark, self._batch, self._positions, self._path = spark, batch, positions, state
        self._state = PositionState(batch.pipeline, batch.types, positions.layout)
        self._table = PositionTable(spark, state, self._state.stored_schema, batch.check)
        # Whether the state kept a small batch from being computed in this process.
        self._is_beyond_limit = False

    def survey(self) -> Surveyed:
        return Surveyed.of(self._spark, self._batch, self._stage(self._batch.emission_by_arrival(self._batch.seen)))

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

    def restore(self, surveyed: Surveyed) -> Loaded:
        batch, new, stage = self._batch, surveyed.new, self._stage(surveyed.emission)
        if not isinstance(new, NumberedRows):
            rows = stage.state.rows.empty_table() if new is None else new.usable(batch, stage.state.rows)
            stored = self._table.read(stage, rows, limits.state_read(stage.layout)) if batch.restores else self._table.empty()
            if stored is not None:
                return LoadedInProcess(new, rows, stored, stage)
            self._is_beyond_limit = True
            new = None if new is None else NumberedRows.surveyed(new.in_spark, batch)
        touched = None if new is None else new.usable()
        restored = self._table.restore(stage, touched) if batch.restores else None
        return LoadedOnSpark(new, restored, stage, batch.partitions(self._spark))

    def apply(self, surveyed: Surveyed, restored: Loaded, staging: str) -> Applied:
        return settle(self._batch, surveyed.emission, restored.compute(), surveyed.rows_read, staging)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        return DeltaTable.is_deltatable(self._path) and self._overgrown_from() is not None

    def compact(self) -> None:
        compact_positions(self._path, self._batch.batch + 1, self._overgrown_from())

    def _overgrown_from(self) -> int | None:
        return overgrown_from(self._path, lay_out=self._is_beyond_limit)
