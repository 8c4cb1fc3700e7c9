"""The types of windows: on a grid, and those that the events of a key begin and end.

``tumbling`` has a ``size``, or is flushed by a policy ``evict``; ``hopping``; ``cumulative``; ``session``, ``snapshot``, ``count``,
``sliding``, and ``custom`` by a function.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from windowmill.windowing.fields import FixedDuration, Instant, Number, PositiveDuration, Zone
from windowmill.windowing.windows.base import GridRules, Policy, PolicyRules, RuledWindow, Spacing, Window, register

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline


@register
class Tumbling(RuledWindow):
    """Windows side by side: of one size in event time, or flushed by an eviction policy."""

    type: Literal["tumbling"]
    size: PositiveDuration | None = None
    evict: Policy | None = None
    origin: Instant | None = None
    timezone: Zone | None = None
    idle_after: FixedDuration | None = None

    @model_validator(mode="after")
    def _size_or_policy(self) -> Self:
        if (self.size is None) == (self.evict is None):
            given = "neither" if self.size is None else "both"
            raise ValueError(f"got {given}; expected either size (event time) or evict (a policy)")
        if self.idle_after is not None and self.evict is None:
            raise ValueError("idle_after: only windows with a policy (evict) keep a key; leave it out")
        return self

    def rules(self) -> GridRules | PolicyRules:
        if self.evict is not None:
            return PolicyRules(self.evict, origin=self.origin, timezone=self.timezone, idle_after=self.idle_after)
        assert self.size is not None
        return GridRules(self.size, hop=self.size, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        return f"tumbling: evict {self.evict.describe()}" if self.evict is not None else f"tumbling: {self.size}"

    def spacing(self) -> Spacing:
        return Spacing(f"every {self.size}", self.size, self.size) if self.size is not None else super().spacing()


@register
class Hopping(RuledWindow):
    """One window of ``size`` every ``hop``, counted from ``origin``."""

    type: Literal["hopping"]
    size: PositiveDuration
    hop: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None

    def rules(self) -> GridRules:
        return GridRules(self.size, self.hop, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        """Its type and lengths in a few words.

        >>> Hopping(name="day", type="hopping", size="24 hours", hop="5 minutes").describe()
        'hopping: 24 hours, every 5 minutes'
        """
        return f"hopping: {self.size}, every {self.hop}"

    def spacing(self) -> Spacing:
        return Spacing(f"{self.size} every {self.hop}", self.size, self.hop)

    @property
    def ends_can_coincide(self) -> bool:
        # 29, 30 and 31 January plus a month are all the last of February. Where the clocks are set back, two starts an hour apart have one
        # wall-clock time, and so have their ends a day later. If a zone skips a day, the two midnights around it are one instant, at which
        # two windows may end.
        on_the_wall = self.timezone is not None and self.size.is_calendar and not self.hop.months
        return bool(self.size.months and not self.hop.months) or (on_the_wall and self.hop != self.size)


@register
class Cumulative(RuledWindow):
    """Windows of step, 2·step … size that share their start."""

    type: Literal["cumulative"]
    size: PositiveDuration
    step: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None

    hop_field: ClassVar[str] = "step"

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        size, step = (self.size.months, self.size.elapsed() if not self.size.months else 0), self.step
        if step.months or self.size.months:
            whole = bool(step.months) and not self.size.months % step.months and not (step.days or step.ticks or size[1])
        else:
            whole = size[1] % step.elapsed() == 0
        if not whole:
            raise ValueError(f"size: got {self.size}; expected a multiple of step, which is {step}")
        return self

    def rules(self) -> GridRules:
        return GridRules(self.size, hop=self.size, step=self.step, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        return f"cumulative: {self.size}, in steps of {self.step}"

    def spacing(self) -> Spacing:
        return Spacing(f"up to {self.size} in steps of {self.step}", self.size, self.step)


@register
class Session(Window):
    """Per key: events at most ``gap`` apart share a window."""

    type: Literal["session"]
    gap: FixedDuration
    max_size: FixedDuration | None = None

    joins_by_gap: ClassVar[bool] = True

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

    def describe(self) -> str:
        return "snapshot"

    def reach(self) -> int:
        return 1  # spans begin and end with events; a point lasts one tick


@register
class Count(Window):
    """Per key: spans of ``count`` consecutive distinct event start times (StreamInsight)."""

    type: Literal["count"]
    count: Number

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

    #: Which columns its function reads is not known.
    reads_whole_rows: ClassVar[bool] = True

    def describe(self) -> str:
        return f"custom: {self.function}"

    def reach(self) -> int:
        return 1  # windows begin at a row, and end a tick past one

    def functions(self) -> Mapping[str, str]:
        return {"function": self.function}

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


class PluginWindow(Window):
    """One window of a type that a plugin adds. Its module may import numpy and numba inside these methods alone, as DAG files load it."""

    @abstractmethod
    def slicer(self, pipeline: Pipeline) -> Slicer:
        """What cuts live rows into the windows of this one, for the kernels."""

    @abstractmethod
    def reference_rows(self, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        """The result rows of one key as the reference engine has them.

        Parameters
        ----------
        events
            All events of the key, in the order of arrival.
        tally
            Receives the numbers of the events that were counted and of those refused as late.
        """
