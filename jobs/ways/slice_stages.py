"""Settings for computing one batch by slices, shared by Spark and this process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from deltalake import DeltaTable

from windowmill.checkpoints.state.partials import has_nodes, slice_schema
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.slices import NodeStage, SliceStage, WindowStage
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
        if nodes is not None and DeltaTable.is_deltatable(state) and not has_nodes(state):
            nodes = None
        return cls(batch, slices, nodes)

    @cached_property
    def stage(self) -> SliceStage:
        """Settings for lifting rows into slices."""
        batch, layout = self.batch, self.slices.layout
        schema = slice_schema(batch.keys, layout, nodes=self.nodes is not None)
        pipeline = batch.pipeline
        return SliceStage(pipeline.keys, pipeline.time.tie_break, layout, self.slices.grids.edges, batch.batch, schema, batch.check)

    def wanted(self, emission: Emission) -> Span | Selection | None:
        """The slices and nodes of the state that the batch needs; null if it needs none."""
        batch, nodes, grids = self.batch, self.nodes, self.slices.grids
        if not batch.restores:
            return None
        if batch.emitted is None:
            # No nodes are stored yet, and later windows may hold all slices.
            return Span(AXIS_BEGIN, emission.through) if emission.after < emission.through else None
        if nodes is not None:
            return nodes.selection(emission.after, emission.through)
        if not grids.any_end(emission.after, emission.through):
            return None
        return Span(grids.first_slice_after(emission.after), emission.through)

    def window_stage(self, emission: Emission) -> WindowStage:
        """Settings for combining slices into windows and into new state."""
        batch, grids = self.batch, self.slices.grids
        keep_from = nodes = None
        if batch.builds_state:
            keep_from = AXIS_BEGIN if emission.emitted is None else grids.first_slice_after(emission.emitted)
            if self.nodes is not None and emission.emitted is not None:
                nodes = NodeStage(self.nodes, AXIS_BEGIN if batch.emitted is None else batch.emitted, emission.emitted)
        return WindowStage(self.stage, grids.named, emission.after, emission.through, keep_from, batch.sink_schema, nodes)
