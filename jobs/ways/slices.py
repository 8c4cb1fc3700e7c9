"""The part that goes by slices: the state keeps partials of slices, from which windows on grids are combined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from windowmill.checkpoints.state.partials import PartialTable
from windowmill.jobs.ways import limits
from windowmill.jobs.ways import slices_in_process as in_process
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.slice_stages import Slicing
from windowmill.jobs.ways.slices_on_spark import LoadedOnSpark, load
from windowmill.windowing.columnar.known_spans import marks_of
from windowmill.windowing.ways import Slices, WayName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.columnar.slices import SliceStage


class SlicePart:
    """Computes a batch by slices."""

    way: WayName = "slices"

    def __init__(self, spark: Callable[[], SparkSession], batch: TableInput, slices: Slices, state: str) -> None:
        self._spark, self._batch, self._state = spark, replace(batch, pipeline=slices.pipeline), state
        self._slicing = Slicing.over(self._batch, slices, state)
        self._table = PartialTable(spark, state, self.schema, batch.check)

    @property
    def schema(self) -> pa.Schema:
        return self._slicing.stage.storing.schema

    @property
    def reading(self) -> SliceStage:
        return self._slicing.stage

    @property
    def grids(self) -> Sequence[WindowGrid]:
        return self._slicing.slices.grids.grids

    @property
    def spans(self) -> Sequence[str]:
        return marks_of(self._slicing.slices.grids.known)

    @property
    def by_arrival(self) -> bool:
        # Late rows of a backfill may have revised windows that end after its range.
        return self._batch.revises

    def here(self, new: NewRows | None, emission: Emission) -> in_process.LoadedInProcess:
        slicing, layout = self._slicing, self._slicing.slices.layout
        judged = None if new is None else in_process.judged(new, slicing)
        wanted, stored = slicing.wanted(emission, in_process.revised_after(judged, slicing)), None
        if wanted is not None:
            stored = self._table.read(wanted, before_batch=self._batch.batch, limit=limits.state_read(layout))
            if stored is None:
                raise limits.state_beyond(self._state)
        return in_process.load(judged, stored, slicing, emission)

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        slicing = self._slicing
        revised_after = new.survey.low if new is not None and self._batch.revises else None
        wanted = slicing.wanted(emission, revised_after)
        stored = None if wanted is None else self._table.restore(wanted, before_batch=self._batch.batch)
        return load(self._spark(), new, stored, slicing, emission)
