"""The part with state layout *positions*: the state keeps a FlatFAT over each key's tuples, for windows with policies."""

from __future__ import annotations

from functools import partial

from windowmill.jobs.layouts.base import Keyed, KeyedPart, PositionsWanted
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.layouts import Positions


class PositionPart(KeyedPart):
    """Computes windows over positions."""

    name = "positions"

    def __init__(self, batch: Input, positions: Positions) -> None:
        super().__init__(batch, positions.pipeline)
        self._layout = positions.layout
        self._columns = PositionState(positions.pipeline, batch.types, positions.layout)
        self.rows, self.schema = self._columns.rows, self._columns.stored_schema
        #: Names of the sequences that its windows form.
        self.sequences = tuple(self._columns.sequences)
        self.reading = self._stage(Emission(batch.seen, batch.emitted, AXIS_BEGIN, AXIS_BEGIN))

    def _stage(self, emission: Emission) -> PositionStage:
        batch = self.batch
        return PositionStage(
            batch.pipeline,
            self._layout,
            self._columns,
            batch.batch,
            emission.clock(batch.rule),
            emission.ends,
            batch.builds_state,
            batch.expressions.schema,
            batch.check,
            batch.is_bounded,
        )

    def keyed(self, emission: Emission) -> Keyed:
        stage = self._stage(emission)
        return Keyed(stage, self.rows, self.schema, {key: key for key in stage.keys}, partial(advance, stage), self.batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> PositionsWanted | None:  # noqa: ARG002
        return PositionsWanted(self.schema, self._stage(emission)) if self.batch.restores else None
