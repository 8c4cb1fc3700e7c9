"""Windows that the events of a key begin and end: ``type: session``, ``snapshot``, ``count``, ``sliding``, and ``custom`` by a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from windowmill.windowing.fields import FixedDuration, Instant, Number
from windowmill.windowing.windows.base import Window, register
from windowmill.windowing.windows.rules import Policy, PolicyRules, RuledWindow

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

    def reach(self) -> int:
        return 1  # windows begin at a row, and end a tick past one

    def functions(self) -> Mapping[str, str]:
        return {"function": self.function}

    @property
    def reads_whole_rows(self) -> bool:
        # Which columns its function reads is not known.
        return True

    @property
    def ends_can_coincide(self) -> bool:
        # The function may close several windows at one event.
        return True


@register
class Sliding(RuledWindow):
    """SPL's sliding window: what leaves and when it is evaluated are two independent policies, per key."""

    type: Literal["sliding"]
    evict: Policy
    trigger: Policy = Policy(count=1)
    partial: bool = True
    origin: Instant | None = None
    idle_after: FixedDuration | None = None

    @model_validator(mode="after")
    def _no_punctuation(self) -> Self:
        for name, policy in (("evict", self.evict), ("trigger", self.trigger)):
            if policy.punctuation is not None:
                raise ValueError(f"{name}: got punctuation; expected count, time or delta: punctuation closes tumbling windows only")
        if self.evict.time is not None and self.evict.time.months:
            raise ValueError(f"evict.time: got {self.evict.time}; expected an age of fixed length, such as 30 days; months have none")
        return self

    def rules(self) -> PolicyRules:
        return PolicyRules(self.evict, self.trigger, self.partial, self.origin, idle_after=self.idle_after)

    def describe(self) -> str:
        return f"sliding: evict {self.evict.describe()}, trigger {self.trigger.describe()}"

    @property
    def ticks_past_its_tuples(self) -> bool:
        return self.trigger.time is not None and self.evict.time is None
