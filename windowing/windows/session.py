"""Session windows: ``type: session``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from windowmill.windowing.costs import Shape
from windowmill.windowing.fields import FixedDuration
from windowmill.windowing.windows.base import Window
from windowmill.windowing.windows.registry import register
from windowmill.windowing.windows.wording import ONCE, kept_before

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@register
class Session(Window):
    """Per key: events at most ``gap`` apart share a window."""

    type: Literal["session"]
    gap: FixedDuration
    max_size: FixedDuration | None = None

    joins_by_gap: ClassVar[bool] = True

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.event_slicers import SessionSlicer
        from windowmill.windowing.slicing.replay import SessionReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer
        from windowmill.windowing.watermark import AFTER

        size = self.greatest_size()
        gap, longest = self.gap.elapsed(), AFTER if size is None else size
        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, _cells: SessionReplay(times, gap, longest), latest_first=True)
        return SessionSlicer(gap, longest, pipeline)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.event_windows import SessionWindows, event_rows

        return event_rows(SessionWindows(self), events, tally, course)

    def describe(self) -> str:
        return f"session: gap {self.gap}" + (f", at most {self.max_size}" if self.max_size else "")

    def shape(self, pipeline: Pipeline) -> Shape:
        why = f"a window ends where no event comes for {self.gap}; an event between two makes them one"
        state = f"the rows of open sessions{kept_before(pipeline)}"
        return Shape("sessions", why, "the rows of the session", "all of them", alone=True, listed=ONCE, state=state)

    def partials_problem(self, where: str) -> str | None:  # noqa: ARG002 - sessions are made of partials
        return None

    def session_gap(self) -> int:
        return self.gap.elapsed()

    def greatest_size(self) -> int | None:
        return None if self.max_size is None else self.max_size.elapsed()

    def reach(self) -> int:
        return self.gap.longest + (self.max_size.longest if self.max_size is not None else 0) + 1
