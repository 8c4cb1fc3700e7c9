"""The parts that advance whole keys: *sessions*, *positions* and *live rows*.

The state keeps bounds and partials of open sessions; a FlatFAT over each key's tuples, for windows with policies; and rows that later
windows may hold, which each batch reads again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.state.reading import OpenSessions
from windowmill.jobs.layouts.base import EntriesWanted, Keyed, KeyedPart, PartialsWanted, PositionsWanted
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar import position_batch, sessions
from windowmill.windowing.columnar.added_columns import GAP, NUMBER_OF, SUM, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.hashes import RowCheck, verify_once
from windowmill.windowing.columnar.keyed import PartitionTask, StateLog
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.columnar.sessions import SessionStage, fragment_schema, row_schema
from windowmill.windowing.layouts import Positions, Rows, Sessions
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE


class SessionPart(KeyedPart):
    """Computes sessions; ``gaps`` are their distinct gaps."""

    name = "sessions"
    reading: SessionStage

    def __init__(self, batch: Input, own: Sessions) -> None:
        super().__init__(batch, own.pipeline)
        batch, pipeline, layout = self.batch, own.pipeline, own.layout
        self.gaps, keys = own.gaps, {key: batch.types[key] for key in pipeline.keys}
        self.reading = SessionStage(
            keys=pipeline.keys,
            ties=pipeline.time.tie_break,
            layout=layout,
            limits=own.limits,
            batch=batch.batch,
            closed_before=BEFORE if batch.emitted is None else batch.emitted,
            closed=BEFORE,  # nothing yet
            shown_before=BEFORE,
            shown=BEFORE,
            ends=None,
            keep=batch.builds_state,
            rows=row_schema(pipeline, batch.types, layout, revises=batch.rule.revises),
            schema=fragment_schema(keys, layout, revises=batch.rule.revises, cuts=own.cuts),
            results=batch.expressions.schema,
            check=batch.check,
        )
        self.rows, self.schema = self.reading.rows, self.reading.schema.append(pa.field(SUM, pa.int64()))

    def keyed(self, emission: Emission) -> Keyed:
        closed = BEFORE if emission.emitted is None else emission.emitted
        before, shown = (BEFORE if at is None else at for at in emission.shows(self.batch))
        stage = replace(self.reading, closed=closed, shown_before=before, shown=shown, ends=emission.ends)
        own = partial(_advance_sessions, stage, self.batch.kept_gaps)
        return Keyed(stage, stage.rows, self.schema, {key: key for key in stage.keys}, own, self.batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> PartialsWanted | None:  # noqa: ARG002
        """The sessions that were open before the batch."""
        batch = self.batch
        before, shown = emission.shows(batch)
        if not batch.restores or not (has_rows or emission.emitted != batch.emitted or shown != before):
            return None
        was_open = OpenSessions(self.gaps, AXIS_BEGIN if batch.emitted is None else batch.emitted)
        return PartialsWanted(self.schema, was_open, batch.batch)


def _advance_sessions(stage: SessionStage, kept_gaps: tuple[int, ...], rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new rows to the stored ones of some keys; leaves out the state of sessions with ``kept_gaps``, whose stored rows stay."""
    done = sessions.advance(stage, rows, stored)
    if done.state is None or not kept_gaps:
        return done
    return replace(done, state=done.state.filter(pc.invert(pc.is_in(done.state.column(GAP), pa.array(kept_gaps, pa.int64())))))


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
        own = partial(position_batch.advance, stage)
        return Keyed(stage, self.rows, self.schema, {key: key for key in stage.keys}, own, self.batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> PositionsWanted | None:  # noqa: ARG002
        return PositionsWanted(self.schema, self._stage(emission)) if self.batch.restores else None


@dataclass(frozen=True)
class LiveRowReading:
    """What a batch of windows over live rows reads of new rows, and how it stores them."""

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    source_columns: Sequence[str]
    conditions: Sequence[str]
    log: StateLog  #: Layout of the state.
    schema: pa.Schema  #: Columns of the rows read: as those of ``log.fresh_schema``, by the names of the source's columns.
    layout: ClassVar[None] = None  #: No partials: rows are kept as they are.

    @classmethod
    def of(cls, pipeline: Pipeline, types: Mapping[str, pa.DataType], log: StateLog) -> Self:
        """For windows of ``pipeline`` over a source with columns of ``types``."""
        columns = [name for name, _ in log.columns_of_fresh()]
        own = [(name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF)]
        own += [(name, types[name]) for name in dict.fromkeys(columns)]
        schema = pa.schema([*own, *((name, pa.bool_()) for name in log.conditions)])
        return cls(pipeline.keys, pipeline.time.tie_break, columns, pipeline.conditions(), log, schema)

    @property
    def labels(self) -> Mapping[str, str]:
        """Columns of the state for columns of the source, and of conditions, that live rows keep."""
        return dict(self.log.columns_of_fresh()) | dict(self.log.conditions)

    def labelled(self, rows: pa.Table) -> pa.Table:
        """``rows`` with the columns of ``schema``, as those of ``log.fresh_schema``."""
        schema, log = self.log.fresh_schema, self.log
        labels = self.labels
        columns = {labels.get(name, name): rows.column(name) for name in rows.column_names}
        columns |= {label: columns[label].fill_null(False) for label in log.conditions.values()}
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)


class LiveRowPart(KeyedPart):
    """Computes the windows that keep live rows."""

    name = "live rows"
    reading: LiveRowReading
    needs_arrival_watermark = True

    def __init__(self, batch: Input, rows: Rows) -> None:
        super().__init__(batch, rows.pipeline)
        log = StateLog(rows.pipeline, batch.types, rows.pipeline.conditions(), shared=rows.shared)
        self.reading = LiveRowReading.of(rows.pipeline, batch.types, log)
        self.rows, self.schema = self.reading.schema, log.schema

    def keyed(self, emission: Emission) -> Keyed:
        batch, reading = self.batch, self.reading
        clock, schema = emission.clock(batch.rule), batch.expressions.schema
        task = PartitionTask(batch.pipeline, reading.log, schema, clock, batch.batch, keep=batch.builds_state)
        own = partial(_advance_live_rows, reading, task, emission.ends, batch.check)
        return Keyed(reading, reading.schema, self.schema, reading.log.keys, own, batch.rule)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> EntriesWanted | None:  # noqa: ARG002
        """All entries of the keys that have new rows or are due by the watermark."""
        batch, log = self.batch, self.reading.log
        if not batch.restores:
            return None
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in batch.pipeline.windows)
        return EntriesWanted(log.schema, list(log.live.values()) if whole else (), log.keys, batch.batch, emission.watermark)


def _advance_live_rows(
    reading: LiveRowReading, task: PartitionTask, ends: tuple[int, int] | None, check: RowCheck | None, rows: pa.Table, stored: pa.Table
) -> Advanced:
    """Apply new ``rows`` to the ``stored`` entries of some keys; only windows that end in the range ``ends`` give results.

    ``rows``: all new rows of these keys, with the columns of ``reading.schema``. ``stored``: all entries of these keys, with the columns of
    ``task.log.schema``, or without checksums if they are verified.
    """
    verify_once(check, stored)
    return task.work(stored, reading.labelled(rows), ends)
