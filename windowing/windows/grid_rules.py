"""What windows on a grid have in common: tumbling ones of a size, hopping and cumulative ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from windowmill.windowing.axis import CumulativeGrid, Grid, WindowGrid
from windowmill.windowing.costs import Shape
from windowmill.windowing.durations import Duration
from windowmill.windowing.windows.base import ColumnUse, Window
from windowmill.windowing.windows.wording import kept_before

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class GridRules:
    """What a window on a grid is made of, whatever its type.

    Attributes
    ----------
    size, hop
        A window of ``size`` begins every ``hop``.
    step
        If given, windows of ``step``, 2·``step`` … ``size`` share their start.
    origin, timezone
        From where, and by which calendar, hops are counted.
    """

    size: Duration
    hop: Duration
    step: Duration | None = None
    origin: datetime | int | None = None
    timezone: str | None = None

    #: A window that the axis alone decides has no trigger.
    numbers_triggers = False

    def slicer(self, window: Window, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.grid_slicer import GridSlicer

        return GridSlicer(window, self, pipeline)

    def reference_rows(self, window: Window, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.grid_windows import grid_rows

        return grid_rows(window, self, events, tally, course)

    def shape(self, pipeline: Pipeline, leaves: str, new_leaves: str, *, alone: bool = False) -> Shape:
        """The windows over rows, where each holds ``leaves``, of which ``new_leaves`` are new."""
        late = "late rows are combined one by one"
        if pipeline.time.end is not None:
            late += ", and so are events that reach in from before the window"
        why = "rows of a key stand in order of time, and a window is a range of them"
        state = f"the rows of the last {self.size}{kept_before(pipeline)}"
        return Shape("rows", why, leaves, new_leaves, alone=alone, late=late, state=state)

    def reach(self) -> int:
        return self.size.longest + self.hop.longest

    def windows_of_event(self, lasting: int) -> int:
        size = self.size.longest
        if self.step is not None:
            return (lasting + size - 1) // size * (size // max(1, self.step.shortest)) + 1
        return (size + lasting - 1) // max(1, self.hop.shortest) + 1

    def partials_problem(self, window: Window, where: str) -> str | None:  # noqa: ARG002 - as policies answer it
        """Null: slices can make up its windows."""
        return None

    def grid(self) -> WindowGrid:
        """Its windows along the axis."""
        from windowmill.windowing.slicing.calendars import origin_of, zone_named

        zone = zone_named(self.timezone)
        origin = origin_of(self.origin, self.hop, zone, isinstance(self.origin, int))
        lengths = [length for length in (self.size, self.hop, self.step) if length is not None]
        if any(length.months or (length.days and zone.key != "UTC") for length in lengths):
            from windowmill.windowing.slicing.calendar_grid import CalendarGrid

            return CalendarGrid(self.size, self.hop, self.step, origin, zone.key)
        if self.step is not None:
            return CumulativeGrid(self.size.elapsed(), self.step.elapsed(), origin)
        return Grid(self.size.elapsed(), self.hop.elapsed(), origin)

    def columns(self) -> Mapping[str, ColumnUse]:
        return {}

    def conditions(self) -> Mapping[str, str]:
        return {}
