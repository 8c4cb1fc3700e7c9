"""Sliding windows with an eviction and a trigger policy: ``type: sliding``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from windowmill.windowing.fields import FixedDuration, Instant
from windowmill.windowing.windows.base import register
from windowmill.windowing.windows.rules import Policy, PolicyRules, RuledWindow

if TYPE_CHECKING:
    pass


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
