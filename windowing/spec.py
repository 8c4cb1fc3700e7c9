"""A pipeline as its owner writes it: source, keys, time, windows, aggregates, sink, checks and schedule.

Light on purpose: an Airflow DAG file imports this module while it is parsed.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from windowing.catalogue import Aggregates, AggregateSpec
from windowing.durations import Duration

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Column = Annotated[str, Field(min_length=1, max_length=255)]
Zero = Duration()

#: Columns of the sink that are ours; neither a key nor an aggregate may take these names.
RESERVED_COLUMNS = ("window", "window_start", "window_end", "trigger", "revision", "batch")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _positive(value: Duration) -> Duration:
    if value.is_zero or value.ticks < 0:
        raise ValueError("expected a duration longer than zero")
    return value


def _fixed(value: Duration) -> Duration:
    if value.months:
        raise ValueError("expected a fixed length; months have none")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as err:
        raise ValueError("expected a time zone of the IANA database, such as Europe/Vienna") from err
    return value


PositiveDuration = Annotated[Duration, BeforeValidator(lambda v: _positive(Duration.parse(v)))]


FixedDuration = Annotated[Duration, BeforeValidator(lambda v: _fixed(_positive(Duration.parse(v))))]
Zone = Annotated[str, AfterValidator(_zone)]


def _instant(value: object) -> object:
    if isinstance(value, datetime | int):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001 - a wall-clock instant; its zone is the window's
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise ValueError("expected an instant such as 2013-01-01T00:00:00Z (an integer on an integer axis)")


Instant = Annotated[
    datetime | int,
    BeforeValidator(_instant),
    PlainSerializer(lambda v: v.isoformat() if isinstance(v, datetime) else v, return_type=str | int),
]


class Table(_Part):
    """A Delta table by path or by catalog name; exactly one of the two."""

    path: str | None = None
    table: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError("expected either path or table")
        return self

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self.path or self.table or ""


class Source(Table):
    """Where events come from: any Spark batch reader; Delta is read by version."""

    format: str = "delta"
    options: dict[str, str] = {}
    filter: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.format == "kafka":
            return self
        return super()._one_place()  # type: ignore[operator, no-any-return]


class Time(_Part):
    """The time axis, how far out of order events may be, and how long a late one still counts."""

    column: Column
    end: Column | None = None
    unit: Literal["us", "ms", "s", "none"] | None = None
    tie_break: tuple[Column, ...] = ()
    disorder: Duration = Zero
    lateness: Duration = Zero
    max_future_skew: Duration | None = None
    watermark: Literal["max_event_time", "data_interval_end"] = "max_event_time"

    @model_validator(mode="after")
    def _fixed_lengths(self) -> Self:
        for name in ("disorder", "lateness", "max_future_skew"):
            value = getattr(self, name)
            if value is not None and value.months:
                raise ValueError(f"{name}: expected a fixed length; months have none")
            if value is not None and value.ticks < 0:
                raise ValueError(f"{name}: got {value}; expected zero or more")
        if self.max_future_skew is not None and self.unit == "none":
            raise ValueError("max_future_skew: an axis with unit: none has no now to measure from; leave it out")
        return self


class Delta(_Part):
    """A difference of a column's values that makes a policy act."""

    column: Column
    by: Annotated[int, Field(strict=True, ge=0)] | Annotated[float, Field(strict=True, ge=0)] | Duration


class Policy(_Part):
    """When tuples leave a window, or when it is evaluated: exactly one of the four kinds."""

    count: Annotated[int, Field(gt=0)] | None = None
    time: PositiveDuration | None = None
    delta: Delta | None = None
    punctuation: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [name for name in ("count", "time", "delta", "punctuation") if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"expected exactly one of count, time, delta, punctuation; got {', '.join(kinds) or 'none'}")
        return self


class _Window(_Part):
    name: Name
    output: Literal["window_end", "clip"] = "window_end"
    empty: Literal["skip", "emit"] = "skip"


class Tumbling(_Window):
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


class Hopping(_Window):
    """One window of ``size`` every ``hop``, counted from ``origin``."""

    type: Literal["hopping"]
    size: PositiveDuration
    hop: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None


class Cumulative(_Window):
    """Windows of step, 2·step … size that share their start."""

    type: Literal["cumulative"]
    size: PositiveDuration
    step: PositiveDuration
    origin: Instant | None = None
    timezone: Zone | None = None

    @model_validator(mode="after")
    def _whole_steps(self) -> Self:
        size, step = (self.size.months, self.size.elapsed() if not self.size.months else 0), self.step
        if step.months or self.size.months:
            whole = bool(step.months) and not self.size.months % step.months and not (step.days or step.ticks or size[1])
        else:
            whole = size[1] % step.elapsed() == 0
        if not whole:
            raise ValueError(f"expected size to be a whole number of steps; {self.size} is not a multiple of {step}")
        return self


class Session(_Window):
    """Per key: events at most ``gap`` apart share a window."""

    type: Literal["session"]
    gap: FixedDuration
    max_size: FixedDuration | None = None


class Snapshot(_Window):
    """Per key: the spans between consecutive start or end points of events."""

    type: Literal["snapshot"]


class Count(_Window):
    """Per key: spans of ``count`` consecutive distinct event start times (StreamInsight)."""

    type: Literal["count"]
    count: Annotated[int, Field(gt=0)]


class Custom(_Window):
    """Deterministic windows given by a function from record to (windows beginning, windows ending) (Cutty)."""

    type: Literal["custom"]
    function: Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


class Sliding(_Window):
    """SPL's sliding window: what leaves and when it is evaluated are two independent policies, per key."""

    type: Literal["sliding"]
    evict: Policy
    trigger: Policy = Policy(count=1)
    partial: bool = True
    origin: Instant | None = None
    idle_after: FixedDuration | None = None

    @model_validator(mode="after")
    def _no_punctuation(self) -> Self:
        if self.evict.punctuation is not None or self.trigger.punctuation is not None:
            raise ValueError("expected count, time or delta; punctuation closes tumbling windows only")
        if self.evict.time is not None and self.evict.time.months:
            raise ValueError(f"evict.time: got {self.evict.time}; expected an age of fixed length, such as 30 days; months have none")
        return self


Window = Annotated[
    Tumbling | Hopping | Cumulative | Session | Snapshot | Count | Custom | Sliding,
    Field(discriminator="type"),
]


class Expectation(BaseModel):
    """A Great Expectations rule over the rows about to be published; further fields are the rule's own arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[str, Field(pattern=r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$")]
    severity: Literal["critical", "warning", "info"] = "critical"

    @property
    def arguments(self) -> dict[str, Any]:
        """The rule's own arguments, as Great Expectations names them."""
        return dict(self.__pydantic_extra__ or {})


class AssetSchedule(_Part):
    """Run when an Airflow asset of this name has been updated."""

    asset: str


class Pipeline(_Part):
    """One pipeline. Unknown fields are refused; ``Pipeline.model_json_schema()`` is its JSON schema."""

    pipeline: Name
    source: Source | None = None
    keys: tuple[Column, ...] = ()
    time: Time
    windows: Annotated[tuple[Window, ...], Field(min_length=1)]
    aggregates: Aggregates
    emit: Literal["final", "revise"] = "final"
    sink: Table | None = None
    checkpoints: Table | None = None
    expectations: tuple[Expectation, ...] = ()
    schedule: str | AssetSchedule | None = None

    @model_validator(mode="after")
    def _names_do_not_clash(self) -> Self:
        taken: dict[str, str] = dict.fromkeys(RESERVED_COLUMNS, "a column of windowmill's own")
        for column in self.keys:
            if column.lower() in taken:
                raise ValueError(f"keys: {column!r} is taken by {taken[column.lower()]}; rename the column in the source or by a view")
            taken[column.lower()] = "a key"
        for name in self.aggregates:
            if name.lower() in taken:
                raise ValueError(f"aggregates.{name}: the name is taken by {taken[name.lower()]}; choose another name")
            taken[name.lower()] = "an aggregate"
        names = [window.name for window in self.windows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"windows: the name {twice!r} is given twice; each window needs its own")
        return self

    @model_validator(mode="after")
    def _lengths_fit_axis(self) -> Self:
        integer_axis = self.time.unit is not None
        for where, value in _durations(self):
            if value.plain != integer_axis and not value.is_zero:
                wanted = (
                    f"a plain integer (time.unit is {self.time.unit!r})" if integer_axis else "a duration with a unit, such as '5 minutes'"
                )
                raise ValueError(f"{where}: got {value}; expected {wanted}")
        for index, window in enumerate(self.windows):
            origin = getattr(window, "origin", None)
            if origin is not None and isinstance(origin, int) != integer_axis:
                wanted = "an integer, as on the axis" if integer_axis else "an instant such as 2013-01-01T00:00:00Z"
                raise ValueError(f"windows.{index}.origin: got {origin}; expected {wanted}")
            if integer_axis and getattr(window, "timezone", None):
                raise ValueError(f"windows.{index}.timezone: an integer axis has no time zone; leave it out")
        return self

    @model_validator(mode="after")
    def _interval_events(self) -> Self:
        for name, aggregate in self.aggregates.items():
            if aggregate.function == "time_weighted_mean" and self.time.end is None:
                raise ValueError(f"aggregates.{name}: time_weighted_mean needs interval events; set time.end to the column of their ends")
        return self

    def meaning(self) -> dict[str, Any]:
        """The part of the spec that decides the result rows, as JSON values: what the stored state depends on."""
        everything = self.model_dump(mode="json", exclude_defaults=True)
        kept: dict[str, Any] = {name: everything[name] for name in ("keys", "time", "windows", "aggregates", "emit") if name in everything}
        if self.source and self.source.filter:
            kept["filter"] = self.source.filter
        return kept

    def meaning_hash(self) -> str:
        """SHA-256 of :meth:`meaning`, hexadecimal."""
        return hashlib.sha256(json.dumps(self.meaning(), sort_keys=True).encode()).hexdigest()


def _durations(part: BaseModel, where: str = "") -> list[tuple[str, Duration]]:
    found: list[tuple[str, Duration]] = []
    for name, value in part:
        path = f"{where}{name}"
        if isinstance(value, Duration):
            found.append((path, value))
        elif isinstance(value, BaseModel):
            found += _durations(value, f"{path}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    found += _durations(item, f"{path}.{index}.")
    return found


__all__ = ["AggregateSpec", "Pipeline"]
