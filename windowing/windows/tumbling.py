"""Tumbling windows: ``type: tumbling`` with a ``size``, or with a policy ``evict``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from windowmill.windowing.axis import WindowGrid
from windowmill.windowing.costs import Shape
from windowmill.windowing.fields import FixedDuration, Instant, PositiveDuration, Zone
from windowmill.windowing.windows.base import Spacing
from windowmill.windowing.windows.grid_rules import GridRules
from windowmill.windowing.windows.policy_rules import Policy, PolicyRules
from windowmill.windowing.windows.registry import register
from windowmill.windowing.windows.ruled import RuledWindow

if TYPE_CHECKING:
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
            raise ValueError("expected either size (event time) or evict (a policy)")
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

    def shape(self, pipeline: Pipeline) -> Shape:
        if self.evict is None:
            return self._grid().shape(pipeline, f"the rows of {self.size}", "all of them", alone=True)
        n = self.evict.count
        held = {"count": f"{n} tuples", "time": f"the tuples of {self.evict.time}"}
        return Shape(
            "tuples",
            "tuples of a key are applied one by one, and flushed together",
            held.get(self.evict.kind, f"the tuples up to {self.evict.describe()}"),
            "all of them",
            n,
            n,
            alone=True,
            state="the tuples not yet flushed, and those that wait for the watermark",
            state_rows=n,
        )

    def spacing(self) -> Spacing:
        return Spacing(f"every {self.size}", self.size, self.size) if self.size is not None else super().spacing()

    def grid(self) -> WindowGrid:
        return self._grid().grid() if self.size is not None else super().grid()
