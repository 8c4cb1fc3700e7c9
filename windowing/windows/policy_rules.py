"""Policies, and what windows that follow them have in common: tumbling ones that a policy flushes, and sliding ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from windowmill.windowing.durations import Duration
from windowmill.windowing.fields import Column, Condition, Number, PositiveDuration, SpecMapping
from windowmill.windowing.windows.base import ColumnUse, Window

if TYPE_CHECKING:
    from windowmill.windowing.reference.events import Course, Event, Tally, WindowResult
    from windowmill.windowing.slicing.leaves import Slicer
    from windowmill.windowing.spec import Pipeline

Kind = Literal["count", "time", "delta", "punctuation"]
_KINDS: tuple[Kind, ...] = ("count", "time", "delta", "punctuation")


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

    def _policies(self) -> Mapping[str, Policy]:
        return {"evict": self.evict} | ({"trigger": self.trigger} if self.trigger is not None else {})

    def partials_problem(self, window: Window, where: str) -> str:
        """Why its windows are not made of partials of slices or sessions."""
        return f"{where}: {window.type} windows that follow policies are made of partials of tuples"

    def slicer(self, window: Window, pipeline: Pipeline) -> Slicer:
        from windowmill.windowing.slicing.policy_slicer import PolicySlicer

        return PolicySlicer(window, self, pipeline)

    def reference_rows(self, window: Window, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
        from windowmill.windowing.reference.policy_windows import policy_rows

        return policy_rows(window, self, events, tally, course)

    def reach(self) -> int:
        """See :meth:`Window.reach`: a tick shows a window up to one period, and the age of its tuples, later."""
        idle = self.idle_after.longest if self.idle_after is not None else 0
        return 1 + idle + sum(2 * policy.time.longest for policy in self._policies().values() if policy.time is not None)

    def windows_of_event(self, lasting: int) -> int:  # noqa: ARG002 - counts only on a grid
        return 1

    def columns(self) -> Mapping[str, ColumnUse]:
        return {
            f"{field}.delta.column": ColumnUse(policy.delta.column, "instant" if isinstance(policy.delta.by, Duration) else "number")
            for field, policy in self._policies().items()
            if policy.delta is not None
        }

    def conditions(self) -> Mapping[str, str]:
        return {f"{field}.punctuation": policy.punctuation for field, policy in self._policies().items() if policy.punctuation is not None}
