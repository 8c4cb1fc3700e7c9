"""A type of windows as a plugin would bring it, in one module: each event is a window of its own, a tick long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa

from windowmill.plugins import Window, register_window
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.reference.events import Course, Event, EventWindow, Tally, WindowResult
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import Clock


@register_window
class Each(Window):
    """Each event is a window of its own."""

    type: Literal["each"]

    def slicer(self, pipeline: Pipeline) -> EachSlicer:
        return EachSlicer()

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        for event in events:
            end = event.time + 1
            (tally.counted if end > event.closed else tally.refused).add(event.number)
            if event.closed < end <= course.closed:
                yield WindowResult((), EventWindow(event.time, end, [event]))

    def describe(self) -> str:
        return "each: one event"

    def reach(self) -> int:
        return 1


class EachSlicer:
    """Rows over all keys that wait for the watermark."""

    engine: Engine = "recompute"

    def __init__(self) -> None:
        self._waiting = np.empty(0, np.int64)

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        accepted = leaves.new & (leaves.time + 1 > clock.closed_at(leaves.watermark))
        waiting = leaves.among(self._waiting) | accepted
        shown = np.flatnonzero(waiting & (leaves.time + 1 <= clock.closed)).astype(np.int64)
        waiting[shown] = False
        self._waiting = leaves.number[waiting]
        members = np.arange(len(shown) + 1), shown
        windows = Windows.of(leaves.key[shown], leaves.time[shown], leaves.time[shown] + 1, members=members)
        return BatchEffect(accepted, leaves.new & ~accepted, waiting, [windows])

    def flipped(self, windows: Windows, flips: Ints) -> None:
        pass

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        return earliest(leaves, applied.kept, leaves.time + 1, clock.lateness)

    def snapshot(self) -> dict[str, pa.Table]:
        return {"keys": pa.table({}), "waiting": pa.table({"number": self._waiting})}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        self._waiting = tables["waiting"].column("number").to_numpy()
