"""Rules by which windows are made: those of a grid (tumbling of a size, hopping, cumulative), or policies (tumbling, sliding)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from windowmill.windowing.durations import Duration
from windowmill.windowing.fields import Column, Condition, Number, PositiveDuration, SpecMapping
from windowmill.windowing.windows.base import ColumnUse, Window

Kind = Literal["count", "time", "delta", "punctuation"]
_KINDS: tuple[Kind, ...] = ("count", "time", "delta", "punctuation")


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

    def reach(self) -> int:
        return self.size.longest + self.hop.longest

    def windows_of_event(self, duration: int) -> int:
        size = self.size.longest
        if self.step is not None:
            return (duration + size - 1) // size * (size // max(1, self.step.shortest)) + 1
        return (size + duration - 1) // max(1, self.hop.shortest) + 1

    def columns(self) -> Mapping[str, ColumnUse]:
        return {}

    def conditions(self) -> Mapping[str, str]:
        return {}


def _difference(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError("expected a number from 0, or a duration where the column is a time")
        return value
    return Duration.parse(value)


class Delta(SpecMapping):
    """A difference of a column's values that makes a policy act."""

    column: Column
    by: Annotated[Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | Duration, BeforeValidator(_difference)]


class Policy(SpecMapping):
    """When tuples leave a window, or when it is evaluated: exactly one of the four kinds."""

    count: Number | None = None
    time: PositiveDuration | None = None
    delta: Delta | None = None
    punctuation: Condition | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = self._given()
        if len(kinds) != 1:
            raise ValueError(f"expected exactly one of count, time, delta, punctuation; got {', '.join(kinds) or 'none'}")
        return self

    def _given(self) -> list[Kind]:
        return [name for name in _KINDS if getattr(self, name) is not None]

    @property
    def kind(self) -> Kind:
        """Which of the four it is."""
        return self._given()[0]

    def describe(self) -> str:
        """Its kind and value in a few words.

        Examples
        --------
        >>> Policy(count=3).describe(), Policy(delta=Delta(column="x", by=2.5)).describe()
        ('count 3', 'delta of x by 2.5')
        """
        value = f"of {self.delta.column} by {self.delta.by}" if self.delta is not None else getattr(self, self.kind)
        return f"{self.kind} {value}"


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What a window that follows policies is made of, whatever its type.

    Attributes
    ----------
    trigger
        When a sliding window is evaluated; ``None`` for a window that ``evict`` flushes.
    partial
        Whether a window is shown before it was full once.
    origin, timezone
        From where, and by which calendar, the ticks of a time policy are counted.
    idle_after
        How long a key without tuples is remembered; ``None`` for ever.
    """

    evict: Policy
    trigger: Policy | None = None
    partial: bool = True
    origin: datetime | int | None = None
    timezone: str | None = None
    idle_after: Duration | None = None

    #: Result rows have the number of their trigger.
    numbers_triggers = True

    @property
    def triggers_by_tuples(self) -> bool:
        """Whether a tuple causes each of its triggers, not the time of a tick."""
        return (self.trigger or self.evict).time is None

    def _policies(self) -> Mapping[str, Policy]:
        return {"evict": self.evict} | ({"trigger": self.trigger} if self.trigger is not None else {})

    def reach(self) -> int:
        """See :meth:`Window.reach`: a tick shows a window up to one period, and the age of its tuples, later."""
        idle = self.idle_after.longest if self.idle_after is not None else 0
        return 1 + idle + sum(2 * policy.time.longest for policy in self._policies().values() if policy.time is not None)

    def windows_of_event(self, duration: int) -> int:  # noqa: ARG002 - counts only on a grid
        return 1

    def columns(self) -> Mapping[str, ColumnUse]:
        return {
            f"{field}.delta.column": ColumnUse(policy.delta.column, "instant" if isinstance(policy.delta.by, Duration) else "number")
            for field, policy in self._policies().items()
            if policy.delta is not None
        }

    def conditions(self) -> Mapping[str, str]:
        return {f"{field}.punctuation": policy.punctuation for field, policy in self._policies().items() if policy.punctuation is not None}


class RuledWindow(Window):
    """A window that its rules describe but for what ``explain`` and the report say of its type."""

    @abstractmethod
    def rules(self) -> GridRules | PolicyRules:
        """The rules that its fields describe."""

    @property
    def restarts_triggers(self) -> bool:
        rules = self.rules()
        return isinstance(rules, PolicyRules) and rules.idle_after is not None

    @property
    def on_grid(self) -> bool:
        return isinstance(self.rules(), GridRules)

    @property
    def follows_policies(self) -> bool:
        return isinstance(self.rules(), PolicyRules)

    def policies(self) -> PolicyRules:
        rules = self.rules()
        return rules if isinstance(rules, PolicyRules) else super().policies()

    def reach(self) -> int:
        return self.rules().reach()

    def windows_of_event(self, duration: int = 1) -> int:
        return self.rules().windows_of_event(duration)

    @property
    def counted_from(self) -> datetime | int | None:
        return self.rules().origin

    @property
    def zone(self) -> str | None:
        return self.rules().timezone

    def columns(self) -> Mapping[str, ColumnUse]:
        return self.rules().columns()

    def conditions(self) -> Mapping[str, str]:
        return self.rules().conditions()

    @property
    def numbers_triggers(self) -> bool:
        return self.rules().numbers_triggers
