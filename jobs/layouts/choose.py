"""Divides the windows of a batch into parts, and imports only those parts."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from windowmill.checkpoints.state.readers import MemoryState, State
from windowmill.checkpoints.state.tables import joint_schema
from windowmill.jobs.layouts.base import Part
from windowmill.jobs.layouts.input import Input
from windowmill.windowing.layouts import divide
from windowmill.windowing.spec import Pipeline


def parts_of(batch: Input, state: State) -> list[Part]:
    """The parts of ``batch`` over its ``state``, as :mod:`windowmill.windowing.layouts` divides the windows and ``explain`` shows."""
    divided = divide(batch.pipeline, batch.types)
    parts: list[Part] = []
    if divided.slices is not None:
        from windowmill.jobs.layouts.slices import SlicePart

        parts.append(SlicePart(batch, divided.slices, holds_nodes=state.holds_nodes))
    if divided.sessions or divided.positions or divided.rows:
        from windowmill.jobs.layouts import keyed_parts

        if divided.sessions is not None:
            parts.append(keyed_parts.SessionPart(batch, divided.sessions))
        if divided.positions is not None:
            parts.append(keyed_parts.PositionPart(batch, divided.positions))
        if divided.rows is not None:
            parts.append(keyed_parts.LiveRowPart(batch, divided.rows))
    return parts


def state_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns of the state of ``pipeline`` over source columns of ``types``; raises ``SpecError`` if names clash."""
    parts = parts_of(Input(pipeline=pipeline, types=types, builds_state=True), MemoryState())
    return joint_schema(pipeline, [part.schema for part in parts])
