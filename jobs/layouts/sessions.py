"""The part with state layout *sessions*: the state keeps bounds and partials of open sessions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.state.reading import OpenSessions
from windowmill.jobs.layouts.base import Keyed, KeyedPart, PartialsWanted
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import GAP, SUM
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.columnar.sessions import SessionStage, advance, fragment_schema, row_schema
from windowmill.windowing.layouts import Sessions
from windowmill.windowing.watermark import BEFORE


class SessionPart(KeyedPart):
    """Computes sessions; ``gaps`` are their distinct gaps."""

    name = "sessions"
    reading: SessionStage

    def __init__(self, batch: Input, sessions: Sessions) -> None:
        super().__init__(batch, sessions.pipeline)
        batch, pipeline, layout = self.batch, sessions.pipeline, sessions.layout
        self.gaps, keys = sessions.gaps, {key: batch.types[key] for key in pipeline.keys}
        self.reading = SessionStage(
            keys=pipeline.keys,
            ties=pipeline.time.tie_break,
            layout=layout,
            limits=sessions.limits,
            batch=batch.batch,
            closed_before=BEFORE if batch.emitted is None else batch.emitted,
            closed=BEFORE,  # nothing yet
            shown_before=BEFORE,
            shown=BEFORE,
            ends=None,
            keep=batch.builds_state,
            rows=row_schema(pipeline, batch.types, layout, revises=batch.rule.revises),
            schema=fragment_schema(keys, layout, revises=batch.rule.revises, cuts=sessions.cuts),
            results=batch.expressions.schema,
            check=batch.check,
        )
        self.rows, self.schema = self.reading.rows, self.reading.schema.append(pa.field(SUM, pa.int64()))

    def keyed(self, emission: Emission) -> Keyed:
        closed = BEFORE if emission.emitted is None else emission.emitted
        before, shown = (BEFORE if at is None else at for at in emission.shows(self.batch))
        stage = replace(self.reading, closed=closed, shown_before=before, shown=shown, ends=emission.ends)
        own = partial(_advance, stage, self.batch.kept_gaps)
        return Keyed(stage, stage.rows, self.schema, {key: key for key in stage.keys}, own, self.batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> PartialsWanted | None:  # noqa: ARG002
        """The sessions that were open before the batch."""
        batch = self.batch
        before, shown = emission.shows(batch)
        if not batch.restores or not (has_rows or emission.emitted != batch.emitted or shown != before):
            return None
        was_open = OpenSessions(self.gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)
        return PartialsWanted(self.schema, was_open, batch.batch)


def _advance(stage: SessionStage, kept_gaps: tuple[int, ...], rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new rows to the stored ones of some keys; leaves out the state of sessions with ``kept_gaps``, whose stored rows stay."""
    done = advance(stage, rows, stored)
    if done.state is None or not kept_gaps:
        return done
    return replace(done, state=done.state.filter(pc.invert(pc.is_in(done.state.column(GAP), pa.array(kept_gaps, pa.int64())))))
