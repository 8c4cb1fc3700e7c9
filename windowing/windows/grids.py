"""Windows on a grid: ``type: tumbling`` with a ``size`` (or flushed by a policy ``evict``), ``hopping``, ``cumulative``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import model_validator

from windowmill.windowing.axis import WindowGrid
from windowmill.windowing.fields import FixedDuration, Instant, PositiveDuration, Zone
from windowmill.windowing.windows.base import Spacing, register
from windowmill.windowing.windows.rules import GridRules, Policy, PolicyRules, RuledWindow

if TYPE_CHECKING:
    pass


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
        return self._grid()

    def _grid(self) -> GridRules:
        assert self.size is not None
        return GridRules(self.size, hop=self.size, origin=self.origin, timezone=self.timezone)

    def describe(self) -> str:
        return f"tumbling: evict {self.evict.describe()}" if self.evict is not None else f"tumbling: {self.size}"

    def spacing(self) -> Spacing:
        return Spacing(f"every {self.size}", self.size, self.size) if self.size is not None else super().spacing()

    def grid(self) -> WindowGrid:
        return self._grid().grid() if self.size is not None else super().grid()


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

        Examples
        --------
        >>> Hopping(name="day", type="hopping", size="24 hours", hop="5 minutes").describe()
        'hopping: 24 hours, every 5 minutes'
        """
        return f"hopping: {self.size}, every {self.hop}"

    def spacing(self) -> Spacing:
        return Spacing(f"{self.size} every {self.hop}", self.size, self.hop)

    def grid(self) -> WindowGrid:
        return self.rules().grid()

    @property
    def ends_can_coincide(self) -> bool:
        # 29, 30 and 31 January plus a month are all the last of February. Where the clocks are set back, two starts an hour apart have one
        # wall-clock time, and so have their ends a day later. Of two midnights that are one because a zone skips the day between them, each
        # may end a window.
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

    def grid(self) -> WindowGrid:
        return self.rules().grid()
