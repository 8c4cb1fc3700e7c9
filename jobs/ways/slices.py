"""The way by slices: the state keeps partials of slices, from which windows on grids are combined.

This process computes a small batch, Spark any other one. The choice is final once the state has been restored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from windowmill.checkpoints.state.partials import PartialTable, compact_partials
from windowmill.checkpoints.state.wanted import Wanted
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.slice_stages import Slicing
from windowmill.jobs.ways.slices_in_process import InProcess
from windowmill.jobs.ways.slices_on_spark import OnSpark
from windowmill.windowing.ways import Slices

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.windowing.columnar.slices import WindowStage


class Place(Protocol):
    """A batch's new rows, in Spark or in this process."""

    @property
    def rows_read(self) -> int:
        """Number of new rows."""
        ...

    @property
    def seen(self) -> int | None:
        """Greatest event time including these rows; null if no row ever had one."""
        ...

    @property
    def revised_after(self) -> int | None:
        """An instant after which all windows end that these rows revise; null if they revise none."""
        ...

    def load(self, table: PartialTable, wanted: Wanted | None, stage: WindowStage) -> Loaded:
        """Load the ``wanted`` rows of the state; moves to Spark if they are too many for this process."""
        ...


class Loaded(Protocol):
    """New rows and restored state, both in Spark or both in this process."""

    def compute(self) -> Computed:
        """Compute complete windows and new state."""
        ...


@dataclass(frozen=True, slots=True)
class Surveyed:
    """New rows, and the windows that they complete."""

    place: Place
    emission: Emission


class SliceWay:
    """A batch by slices."""

    def __init__(self, spark: SparkSession, batch: TableInput, slices: Slices, state: str) -> None:
        self._spark, self._batch, self._state = spark, batch, state
        self._slicing = Slicing.over(batch, slices, state)
        self._table = PartialTable(spark, state, self._slicing.stage.storing.schema, batch.check)

    def survey(self) -> Surveyed:
        place, batch = self._arrived(), self._batch
        # Late rows of a backfill may have revised windows that end after its range.
        stops_at_range = not (batch.revises and batch.pipeline.time.watermark == "max_event_time")
        return Surveyed(place, batch.emission(place.seen, stops_at_range=stops_at_range))

    def _arrived(self) -> Place:
        batch = self._batch
        if not batch.files:
            return InProcess.without_rows(self._spark, self._slicing)
        rows = batch.read(self._spark)
        if limits.are_few(batch.files, self._slicing.slices.layout):
            return InProcess.collected(rows, self._slicing)
        return OnSpark.surveyed(rows, self._slicing)

    def restore(self, surveyed: Surveyed) -> Loaded:
        place, emission = surveyed.place, surveyed.emission
        wanted = self._slicing.wanted(emission, place.revised_after)
        return place.load(self._table, wanted, self._slicing.window_stage(emission))

    def apply(self, surveyed: Surveyed, restored: Loaded, staging: str) -> Applied:
        return settle(self._batch, surveyed.emission, restored.compute(), surveyed.place.rows_read, staging)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        """Whether the spans that batches look for lie in many files; otherwise ``windowmill maintain`` merges the files of slices."""
        return bool(self._slicing.slices.grids.known) and self._table.is_scattered()

    def compact(self) -> None:
        compact_partials(self._state, self._slicing.all_but_old_spans())
