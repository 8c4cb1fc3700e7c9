"""The field ``time`` of a spec: the column of event times, what its numbers count, and how far out of order events may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from windowmill.windowing.durations import SECOND_US, Duration
from windowmill.windowing.fields import Column, SpecMapping

_ZERO = Duration()
#: Microseconds of each unit that counts from 1970.
TICKS_US = {"us": 1, "ms": 1_000, "s": SECOND_US}


class Time(SpecMapping):
    """The time axis, how far out of order events may be, and how long a late one still counts."""

    column: Column
    end: Column | None = None
    unit: Literal["us", "ms", "s", "none"] | None = None
    #: Whether numbers of a unit are instants; unless given they are where a length or an origin of the spec is one of time.
    axis: Literal["instants"] | None = None
    tie_break: tuple[Column, ...] = ()
    disorder: Duration = _ZERO
    lateness: Duration = _ZERO
    #: Null for no limit, as on an axis without a clock (``unit: none``).
    max_future_skew: Annotated[Duration | None, Field(json_schema_extra={"default": "1 day"})] = Duration(days=1)
    watermark: Literal["max_event_time", "data_interval_end"] = "max_event_time"

    @model_validator(mode="before")
    @classmethod
    def _no_future_without_a_clock(cls, fields: Any) -> Any:
        if isinstance(fields, Mapping) and fields.get("unit") == "none" and "max_future_skew" not in fields:
            return {**fields, "max_future_skew": None}
        return fields

    @model_validator(mode="after")
    def _fixed_lengths(self) -> Self:
        for name in ("disorder", "lateness", "max_future_skew"):
            value = getattr(self, name)
            if value is not None and value.months:
                raise ValueError(f"{name}: got {value}; expected a fixed length; months have none")
            if value is not None and value.ticks < 0:
                raise ValueError(f"{name}: got {value}; expected zero or more")
        if "max_future_skew" in self.model_fields_set and self.max_future_skew is not None and self.unit == "none":
            raise ValueError("max_future_skew: an axis with unit: none has no now to measure from; leave it out")
        if self.axis is not None and self.unit in (None, "none"):
            raise ValueError("axis: only numbers since 1970 can be instants by it; give unit: us, ms or s, or leave it out")
        return self

    @property
    def integer_axis(self) -> bool:
        """Whether times are plain integers, and lengths so many of them."""
        return self.unit is not None and self.axis is None

    @property
    def tick_us(self) -> int:
        """What a value of a column of times is multiplied by to be on the axis; 1 unless it counts milliseconds or seconds of instants."""
        return TICKS_US[self.unit or "us"] if self.axis == "instants" else 1

    @property
    def delay(self) -> int:
        """How long after its time an event still counts, in ticks of the axis."""
        return self.disorder.elapsed() + self.lateness.elapsed()

    def latest(self, now_us: int, *, by_default: bool = True) -> int | None:
        """The greatest event time on the axis that is accepted at ``now_us``, in ticks of the axis; ``None`` for no bound.

        ``by_default`` says whether the default bound also applies to a spec that does not set one.
        """
        skew = self.max_future_skew
        if skew is None or self.unit == "none" or not (by_default or "max_future_skew" in self.model_fields_set):
            return None
        tick_us = TICKS_US[self.unit or "us"] if self.integer_axis else 1
        return now_us // tick_us + (skew.ticks if skew.plain else skew.elapsed() // tick_us)
