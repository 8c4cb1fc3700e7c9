"""Divides the windows of a batch into parts, and imports only those parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windowmill.jobs.layouts.base import Part
from windowmill.jobs.layouts.input import Input
from windowmill.windowing.layouts import divide

if TYPE_CHECKING:
    from windowmill.checkpoints.state.readers import State


def parts_of(batch: Input, state: State) -> list[Part]:
    """The parts of ``batch``, given the ``state`` before it.

    :mod:`windowmill.windowing.layouts` divides the windows, and ``windowmill explain`` shows its choice.
    """
    divided = divide(batch.pipeline, batch.types)
    parts: list[Part] = []
    if divided.slices is not None:
        from windowmill.jobs.layouts.slices import SlicePart

        parts.append(SlicePart(batch, divided.slices, holds_nodes=state.holds_nodes))
    if divided.sessions is not None:
        from windowmill.jobs.layouts.sessions import SessionPart

        parts.append(SessionPart(batch, divided.sessions))
    if divided.positions is not None:
        from windowmill.jobs.layouts.positions import PositionPart

        parts.append(PositionPart(batch, divided.positions))
    if divided.rows is not None:
        from windowmill.jobs.layouts.live_rows import LiveRowPart

        parts.append(LiveRowPart(batch, divided.rows))
    return parts
