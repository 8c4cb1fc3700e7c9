"""Settings for computing one batch by slices, shared by Spark and this process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from windowmill.checkpoints.state.partials import has_nodes, slice_schema
from windowmill.checkpoints.state.wanted import WithSpans
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.known_spans import marks_of
from windowmill.windowing.columnar.lasting import Lasting
from windowmill.windowing.columnar.slices import NodeStage, Revising, SliceStage, WindowStage
from windowmill.windowing.nodes import Nodes, Selection, Span
from windowmill.windowing.ways import Slices


@dataclass(frozen=True)
class Slicing:
    """The slices of a batch.

    Attributes
    ----------
    nodes
        The nodes that the state holds over the slices; null if it holds none.
    """

    batch: Input
    slices: Slices
    nodes: Nodes | None = None

    @classmethod
    def over(cls, batch: Input, slices: Slices, state: str) -> Slicing:
        """The slices of a batch whose state table is at the path ``state``."""
        nodes = Nodes.of(slices.grids.grids)
        # Whether a table holds nodes is fixed when it is created.
        if nodes is not None and is_table(state) and not has_nodes(state):
            nodes = None
        return cls(batch, slices, nodes)

    @cached_property
    def stage(self) -> SliceStage:
        """Settings for lifting rows into slices."""
        batch, layout = self.batch, self.slices.layout
        pipeline, grids = batch.pipeline, self.slices.grids
        kinds = {"nodes": self.nodes is not None, "lasting": grids.lasting, "revises": batch.revises}
        schema = slice_schema(batch.keys, layout, known=grids.known, **kinds)
        lasting = Lasting.of(pipeline.windows, grids.grids, clips=layout.clips) if grids.lasting else None
        ties = pipeline.time.tie_break
        return SliceStage(pipeline.keys, ties, layout, grids.edges, batch.batch, schema, batch.check, batch.revises, grids.known, lasting)

    def wanted(self, emission: Emission, revised_after: int | None = None) -> Span | Selection | WithSpans | None:
        """The rows of the state that the batch needs; null if it needs none.

        ``revised_after`` is an instant after which all windows end that late rows of the batch revise; null if they revise none.
        """
        slices, known = self._wanted_slices(emission, revised_after), self.slices.grids.known
        # A batch that completes no window may still extend a key's span into windows that are already complete.
        return WithSpans(slices, marks_of(known)) if known and self.batch.restores else slices

    def _wanted_slices(self, emission: Emission, revised_after: int | None) -> Span | Selection | None:
        batch, nodes, grids = self.batch, self.nodes, self.slices.grids
        if not batch.restores:
            return None
        after, through = self._shown(emission)
        if batch.emitted is None:
            # No nodes are stored yet, and later windows may hold all slices.
            every = (AXIS_BEGIN, through)
            return Span(*every, (every,) if grids.lasting else None) if after < through else None
        first = after if revised_after is None else min(after, max(emission.after, revised_after))
        if nodes is not None:
            closed = (batch.emitted, batch.emitted if emission.emitted is None else emission.emitted)
            selected = nodes.selection(after, through, closed, first)
            return selected and replace(selected, reaching=grids.spans_of_starts(first, through))
        after = first
        if not grids.any_end(after, through):
            return None
        return Span(grids.first_slice_after(after), through, grids.spans_of_starts(after, through))

    def _shown(self, emission: Emission) -> tuple[int, int]:
        """The batch shows the windows for the first time that end after the one instant and at or before the other."""
        batch = self.batch
        if not batch.revises or not batch.builds_state:
            return emission.after, emission.through
        # Windows are shown at the watermark, which is ahead of the instant through which they are closed.
        after = emission.after if batch.emitted is None else batch.emitted + batch.lateness
        return after, after if emission.emitted is None else max(after, emission.emitted + batch.lateness)

    def window_stage(self, emission: Emission) -> WindowStage:
        """Settings for combining slices into windows and into new state."""
        batch, grids = self.batch, self.slices.grids
        keep_from = nodes = None
        after, through = self._shown(emission)
        revising = Revising(batch.lateness, emission.after) if batch.revises else None
        if batch.builds_state:
            keep_from = AXIS_BEGIN if emission.emitted is None else grids.first_slice_after(emission.emitted)
            if self.nodes is not None and emission.emitted is not None:
                before, now = AXIS_BEGIN if batch.emitted is None else batch.emitted, emission.emitted
                ahead = batch.lateness if batch.revises else 0
                nodes = NodeStage(self.nodes, before + ahead, now + ahead, closed_before=before, closed_through=now)
        return WindowStage(self.stage, grids.named, after, through, keep_from, batch.sink_schema, nodes, revising, batch.restores)
