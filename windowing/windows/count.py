"""Count windows: ``type: count``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from windowmill.windowing.costs import Shape
from windowmill.windowing.fields import Number
from windowmill.windowing.windows.base import Window
from windowmill.windowing.windows.registry import register
from windowmill.windowing.windows.wording import kept_before

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@register
class Count(Window):
    """Per key: spans of ``count`` consecutive distinct event start times (StreamInsight)."""

    type: Literal["count"]
    count: Number

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.event_slicers import CountSlicer
        from windowmill.windowing.slicing.replay import CountReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer

        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, _cells: CountReplay(times, self.count))
        return CountSlicer(self.count, pipeline)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.event_windows import CountWindows, event_rows

        return event_rows(CountWindows(self), events, tally, course)

    def describe(self) -> str:
        return f"count: {self.count:,} start times"

    def shape(self, pipeline: Pipeline) -> Shape:
        why = f"a window begins at each start time and spans {self.count:,} of them"
        state = f"the rows of open windows{kept_before(pipeline)}"
        return Shape("start times", why, f"the rows of {self.count:,} times", "those of one time", self.count, 1, state=state)

    def reach(self) -> int:
        return 1  # windows begin and end with events; one ends a tick past the last start time

    @property
    def ends_can_coincide(self) -> bool:
        # A row that comes late between two start times may give the next window the end of the one before.
        return True
