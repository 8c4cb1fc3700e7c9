"""Windows that the events of a key begin and end: ``type: session``, ``snapshot``, ``count``, and ``custom`` by a user's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from windowmill.windowing.costs import Shape
from windowmill.windowing.fields import FixedDuration, Number
from windowmill.windowing.windows.base import ONCE, Window, kept_before, register

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

    def session_gap(self) -> int:
        return self.gap.elapsed()

    def greatest_size(self) -> int | None:
        return None if self.max_size is None else self.max_size.elapsed()

    @property
    def ends_can_coincide(self) -> bool:
        # A session that was cut is closed at its end, one that ends by its gap past it: a late row may begin another that ends there.
        return self.max_size is not None

    def reach(self) -> int:
        return self.gap.longest + (self.max_size.longest if self.max_size is not None else 0) + 1


@register
class Snapshot(Window):
    """Per key: the spans between consecutive start or end points of events."""

    type: Literal["snapshot"]

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.event_slicers import SnapshotSlicer
        from windowmill.windowing.slicing.replay import SnapshotReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer

        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, _cells: SnapshotReplay(times), clips=True)
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


@register
class Custom(Window):
    """Deterministic windows given by a function from record to (windows beginning, windows ending) (Cutty)."""

    type: Literal["custom"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]

    def slicer(self, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.imports import imported_for
        from windowmill.windowing.slicing.custom_slicer import CustomSlicer
        from windowmill.windowing.slicing.replay import CustomReplay
        from windowmill.windowing.slicing.revised_slicer import RevisedSlicer

        function = imported_for("function", self.function)
        if pipeline.emit == "revise":
            return RevisedSlicer(lambda times, cells: CustomReplay(times, function, cells.__getitem__), reads_cells=True)
        return CustomSlicer(function)

    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.event_windows import Customs, event_rows

        return event_rows(Customs(self), events, tally, course)

    def describe(self) -> str:
        return f"custom: {self.function}"

    def shape(self, pipeline: Pipeline) -> Shape:  # noqa: ARG002 - what the function keeps open is not known
        why = f"cut where {self.function} begins or ends a window"
        leaves, new = "the rows that the function gives it", "those since the window before"
        return Shape("custom", why, leaves, new, state="the rows of open windows")

    def reach(self) -> int:
        return 1  # windows begin at a row, and end a tick past one

    def functions(self) -> Mapping[str, str]:
        return {"function": self.function}

    @property
    def reads_whole_rows(self) -> bool:
        # Which columns its function looks at is not known.
        return True

    @property
    def ends_can_coincide(self) -> bool:
        # The function may close several windows at one event.
        return True
