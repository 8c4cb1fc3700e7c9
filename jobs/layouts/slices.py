"""The part with state layout *slices*: the state keeps partials of slices, from which windows on grids are combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.state.reading import WithSpans
from windowmill.checkpoints.state.tables import slice_schema
from windowmill.jobs.layouts import lateness, limits
from windowmill.jobs.layouts.base import Lifted, Loaded, Part, PartialsWanted, unchanged
from windowmill.jobs.layouts.input import Emission, Input
from windowmill.jobs.layouts.lateness import usable
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar import known_spans, slices
from windowmill.windowing.columnar.added_columns import ARRIVAL, LATE, NUMBER_OF, REASON, SLICE, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.grid_windows import advanced, event_windows
from windowmill.windowing.columnar.known_spans import last_of
from windowmill.windowing.columnar.results import Advanced
from windowmill.windowing.columnar.rows import codes_of, distinct_values
from windowmill.windowing.columnar.slices import IntervalLifting, NodeStage, Revising, Sliced, SliceStage, WindowStage, spans_of
from windowmill.windowing.counts import Counts
from windowmill.windowing.grids import Nodes, Selection, Span
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.layouts import Slices
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.schedulers.local import NewRows
    from windowmill.windowing.columnar.hashes import Share
    from windowmill.windowing.slicing.edges import WindowGrid
    from windowmill.windowing.watermark import LatenessRule


class SlicePart(Part):
    """Computes windows on grids from slices; ``holds_nodes`` is whether the state before the batch may hold nodes over these."""

    name = "slices"
    reading: SliceStage

    def __init__(self, batch: Input, slices: Slices, *, holds_nodes: bool = False) -> None:
        super().__init__(batch, slices.pipeline)
        batch, layout, grids, ties = self.batch, slices.layout, slices.grids, slices.pipeline.time.tie_break
        #: The nodes that the state holds over the slices; null if it holds none.
        self._nodes = Nodes.of(grids.grids) if holds_nodes else None
        self._slices, self.grids, self.spans = grids, grids.grids, tuple(map(last_of, grids.known))
        # Late rows of a backfill may have revised windows that end after its range.
        self.may_emit_past_range = revises = batch.rule.revises
        kinds = {"nodes": self._nodes is not None, "intervals": grids.intervals, "revises": revises}
        schema = slice_schema({key: batch.types[key] for key in slices.pipeline.keys}, layout, known=grids.known, **kinds)
        intervals = IntervalLifting.of(batch.pipeline.windows, grids.grids, clips=layout.clips) if grids.intervals else None
        own = SliceStage(batch.pipeline.keys, ties, layout, grids.edges, batch.batch, schema, batch.check, revises, grids.known, intervals)
        self.reading, self.schema = own, own.stored_schema

    def judged(self, new: NewRows | None) -> pa.Table | None:
        return None if new is None else lateness.judged(new.table, self.batch, self.grids)

    def wanted(self, emission: Emission, *, has_rows: bool, revised_after: int | None) -> PartialsWanted | None:  # noqa: ARG002
        slices = self._wanted_slices(emission, revised_after)
        # A batch that completes no window may still extend a key's span into windows that are already complete.
        wanted = WithSpans(slices, self.spans) if self.spans and self.batch.restores else slices
        return None if wanted is None else PartialsWanted(self.schema, wanted, self.batch.batch)

    def _wanted_slices(self, emission: Emission, revised_after: int | None) -> Span | Selection | None:
        batch, nodes, grids = self.batch, self._nodes, self._slices
        if not batch.restores:
            return None
        after, through = self._shown(emission)
        if batch.emitted is None:
            # No nodes are stored yet, and later windows may hold all slices.
            every = (AXIS_BEGIN, through)
            return Span(*every, (every,) if grids.intervals else None) if after < through else None
        first = after if revised_after is None else min(after, max(emission.after, revised_after))
        if nodes is not None:
            closed = (batch.emitted, batch.emitted if emission.emitted is None else emission.emitted)
            selected = nodes.selection(after, through, closed, first)
            return selected and replace(selected, reaching=grids.spans_of_starts(first, through))
        after = first
        if not any(grid.count_ends(after, through) for grid in grids.grids):
            return None
        return Span(grids.first_slice_after(after), through, grids.spans_of_starts(after, through))

    def _shown(self, emission: Emission) -> tuple[int, int]:
        """The range (after, through] of the ends of windows that the batch shows for the first time."""
        batch = self.batch
        before, shown = emission.shows(batch)
        if batch.recomputes_range:
            return emission.after, min(emission.through, emission.after if shown is None else max(emission.after, shown))
        after = emission.after if before is None else before
        return after, after if shown is None else max(after, shown)

    def load(self, rows: pa.Table | None, stored: pa.Table | None, emission: Emission) -> Loaded:
        work = self.map_reduce(emission, has_late=rows is not None and LATE in rows.column_names)
        if stored is not None and work.reading.known:
            stored = _without_idle_spans(stored, rows, work.stage)
        if self.batch.is_limited:
            _check_fits(rows, stored, work.stage)
        return Loaded(work, None if rows is None else lateness.to_lift(rows), stored)

    def map_reduce(self, emission: Emission, *, has_late: bool) -> SliceMapReduce:
        # Rows that are late for a window need marks, which only slices have.
        if self.batch.is_bounded and self._slices.intervals and not has_late:
            return EventMapReduce(self._window_stage(emission), self.grids, None, self.batch.pipeline)
        return SliceMapReduce(self._window_stage(emission), self.grids, self.batch.rule if has_late else None)

    def _window_stage(self, emission: Emission) -> WindowStage:
        """Settings for combining slices into windows and into new state."""
        batch, grids, rule = self.batch, self._slices, self.batch.rule
        keep_from = nodes = None
        after, through = self._shown(emission)
        revising = Revising(rule.lateness, emission.after, rule.closings) if rule.revises else None
        if batch.builds_state:
            keep_from = AXIS_BEGIN if emission.emitted is None else grids.first_slice_after(emission.emitted)
            if self._nodes is not None and emission.emitted is not None:
                closed, (before, shown) = batch.emitted, emission.shows(batch)
                closed, before = (AXIS_BEGIN if at is None else at for at in (closed, before))
                now = emission.emitted if shown is None else shown
                nodes = NodeStage(self._nodes, before, now, closed_before=closed, closed_through=emission.emitted)
        return WindowStage(self.reading, grids.named, after, through, keep_from, batch.expressions.schema, nodes, revising, batch.restores)


@dataclass(frozen=True)
class SliceMapReduce:
    """Map lifts rows into slices, which are fewer; reduce combines these into windows on ``grids``. ``rule`` is null if no row is late."""

    stage: WindowStage
    grids: Sequence[WindowGrid]
    rule: LatenessRule | None
    most_readers: ClassVar[int] = 0

    @property
    def reading(self) -> SliceStage:
        return self.stage.slices

    @cached_property
    def keys(self) -> Mapping[str, str]:
        return {key: key for key in self.reading.keys}

    @property
    def width(self) -> int | None:
        layout = self.reading.layout
        # Partials that are Python objects may be of any size.
        return None if layout.objects else sum(layout.widths())

    def are_few(self, n_rows: int) -> bool:
        overlap = sum(grid.most_ends(grid.longest) for grid in self.grids)
        return n_rows <= limits.MAX_ROWS_OF_A_TASK and n_rows * overlap <= limits.MAX_COUNTED_OF_A_TASK

    def judged(self, rows: pa.Table) -> pa.Table:
        if self.rule is not None:
            return lateness.to_lift(lateness.judged_at(rows, self.rule, self.grids))
        rows = lateness.to_lift(rows)
        return rows.drop_columns([name for name in (NUMBER_OF, WATERMARK_OF) if name in rows.column_names])

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        batches = (batch for table in rows for batch in table.combine_chunks().to_batches())
        return (Lifted(each.slices, (each.rows, each.late, *each.missed)) for each in slices.sliced(self.reading, batches, share))

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:
        return advanced(self.stage, self.parts(lifted, stored))

    def parts(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> list[Sliced]:
        """All slices: ``stored`` ones first."""
        parts = [] if stored is None else list(slices.restored(self.reading, stored.combine_chunks().to_batches()))
        for each in lifted:
            rows, late, *missed = each.counts or (0, 0)
            parts.append(Sliced(each.rows, rows, late, tuple(missed)))
        return parts


@dataclass(frozen=True)
class EventMapReduce(SliceMapReduce):
    """As :class:`SliceMapReduce`, for a bounded input of interval events: no state needs slices, so map leaves rows as they are."""

    pipeline: Pipeline

    def map(self, rows: Iterable[pa.Table], share: Share | None) -> Iterator[Lifted]:
        return unchanged(rows, self.keys, share)

    def reduce(self, lifted: Sequence[Lifted], stored: pa.Table | None) -> Iterator[Advanced]:  # noqa: ARG002 - there is no state
        rows = pa.concat_tables([each.rows for each in lifted]) if lifted else None
        if rows is not None and rows.num_rows:
            yield Advanced(event_windows(self.stage, self.pipeline, rows), None, np.empty(0, np.int64), Counts(rows_applied=rows.num_rows))


def _without_idle_spans(stored: pa.Table, rows: pa.Table | None, stage: WindowStage) -> pa.Table:
    """``stored`` without the spans of keys that have no windows in this batch."""
    slices, keys = stored.filter(pc.is_valid(stored.column(SLICE))), list(stage.slices.keys)
    touched = slices.select(keys) if rows is None else pa.concat_tables([slices.select(keys), usable(rows).select(keys)])
    # Without key columns a table of keys would have no rows.
    needed = _spans(stored, stage).needed(touched, stage.after) if keys else stored.filter(pc.is_null(stored.column(SLICE)))
    return pa.concat_tables([slices, needed])


def _spans(stored: pa.Table, stage: WindowStage) -> known_spans.StoredSpans:
    own = stage.slices
    return known_spans.StoredSpans(own.known, stage.known_grids, own.keys, stored.filter(pc.is_null(stored.column(SLICE))))


def _check_fits(rows: pa.Table | None, stored: pa.Table | None, stage: WindowStage) -> None:
    """Raise ``TooLargeError`` if the partials of these rows, or the windows of rows and slices, are too many for this process."""
    tables = [table for table in (rows, stored) if table is not None and table.num_rows]
    if not tables:
        return
    if rows is not None:
        _check_partials(usable(rows), stage.slices)
    instants = [
        *((rows, name) for name in (TIME, UNTIL_OF) if rows is not None and name in rows.column_names),
        (stored, SLICE),
        *((stored, name) for name in known_spans.span_columns(stage.slices.known)),
    ]
    times = [pc.min_max(table.column(name)) for table, name in instants if table is not None and table.num_rows]
    lows = [low for span in times if (low := span["min"].as_py()) is not None]
    highs = [high for span in times if (high := span["max"].as_py()) is not None]
    if not lows:
        return
    _, n_keys = codes_of(tables, stage.slices.keys)
    begin = max(stage.after, min(lows))
    ends = sum(grid.count_ends(begin, min(stage.through, grid.last_end_holding(max(highs)))) for _, grid in stage.grids)
    revised = 0 if rows is None or stage.revising is None else _revised(rows, stage.revising, stage)
    later = 0
    if rows is not None and stored is not None and stage.slices.known:
        later = _spans(stored, stage).most_shown_later(usable(rows), stage.after)
    most = limits.rows_within(limits.MAX_RESULTS, stage.slices.layout)
    most_results = n_keys * ends + revised + later
    if most_results > most and _most_with_rows(rows, stored, stage) + revised > most:
        raise limits.too_many(most_results, "result rows at most, as one for each key and window end", most)


def _most_with_rows(rows: pa.Table | None, stored: pa.Table | None, stage: WindowStage) -> float:
    """Upper bound on windows with rows; infinite if empty windows are shown, or for nodes and interval events, which may be in many."""
    own = stage.slices
    if own.known or own.intervals is not None or stage.nodes is not None:
        return inf
    n_slices = (0 if rows is None else _n_partials(usable(rows), own)) + (0 if stored is None else stored.num_rows)
    # A window that holds a slice ends after the slice's start, and at most its own length after it.
    return n_slices * sum(grid.most_ends(grid.longest - 1) for _, grid in stage.grids)


def _check_partials(rows: pa.Table, stage: SliceStage) -> None:
    """Raise ``TooLargeError`` if the partials of usable ``rows`` are too many for this process."""
    n_rows, layout = rows.num_rows, stage.layout
    if stage.intervals is not None and (n := int(stage.intervals.most_partials(rows).sum())) > limits.MAX_PARTIALS:
        raise limits.too_many(n, "starts of windows that events cross", limits.MAX_PARTIALS)
    if n_rows <= limits.rows_within(limits.MAX_ROWS, layout):
        return
    # With interval events, or revisions, each row may have partials of its own.
    own = stage.intervals is not None or stage.revises
    if own or not limits.are_few_partials(_n_partials(rows, stage), n_rows, layout):
        raise limits.too_many(n_rows, "new rows with partials of this width", limits.rows_within(limits.MAX_ROWS, layout))


def _n_partials(rows: pa.Table, stage: SliceStage) -> int:
    """Number of pairs of a key and a slice that have ``rows``; O(n log n)."""
    codes, _ = codes_of([rows], stage.keys)
    starts, slices_of = np.unique(stage.edges.slice_starts(int64_of(rows.column(TIME).combine_chunks())), return_inverse=True)
    return len(distinct_values(codes * len(starts) + slices_of))


def _revised(rows: pa.Table, revising: Revising, stage: WindowStage) -> int:
    """Upper bound on the number of revisions that judged ``rows`` cause."""
    if ARRIVAL not in rows.column_names:
        return 0
    late = rows.filter(pc.and_(pc.is_valid(rows.column(ARRIVAL)), pc.is_null(rows.column(REASON))))
    times, stops = spans_of(late) if UNTIL_OF in late.column_names else (np.zeros(len(late), np.int64),) * 2
    ends = (grid.most_ends(np.minimum(grid.longest + (stops - times), revising.lateness)) for _, grid in stage.grids)
    return sum(int(each.sum()) for each in ends)
