"""Snapshot windows: ``type: snapshot``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from windowmill.windowing.costs import Shape
from windowmill.windowing.windows.base import Window
from windowmill.windowing.windows.registry import register
from windowmill.windowing.windows.wording import ONCE, kept_before

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@register
class Snapshot(Window):
    """Per key: the spans between consecutive start or end points of events."""

    type: Literal["snapshot"]

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.event_slicers import SnapshotSlicer
        from windowmill.windowing.slicing.replay import SnapshotReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer

        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, _cells: SnapshotReplay(times))
        return SnapshotSlicer(pipeline)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.event_windows import Snapshots, event_rows

        return event_rows(Snapshots(), events, tally, course)

    def describe(self) -> str:
        return "snapshot"

    def shape(self, pipeline: Pipeline) -> Shape:
        points = pipeline.time.end is None
        return Shape(
            "snapshots",
            "cut at every start and end of an event",
            "the rows that live in the span",
            "all of them" if points else "those that begin there",
            in_order=points,
            alone=points,
            listed=ONCE if points else "events end in any order; those that live in a span are combined one by one",
            state=f"the rows still open{kept_before(pipeline)}",
        )

    def reach(self) -> int:
        return 1  # spans begin and end with events; a point lasts one tick
