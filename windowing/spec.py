"""A pipeline as its owner writes it: source, keys, time, windows, aggregates, sink, checks and schedule.

Light on purpose: an Airflow DAG file imports this module while it is parsed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date, datetime
from itertools import combinations
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from windowmill.windowing.catalogue import Aggregates, AggregateSpec
from windowmill.windowing.durations import SECOND_US, Duration
from windowmill.windowing.paths import path_problem, within
from windowmill.windowing.redaction import redacted

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]


def _column(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected the name of a column, which holds no null character")
    return value


def _condition(value: str) -> str:
    if not value.strip():
        raise ValueError("expected a Spark SQL condition; leave the field out where there is none")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool | float):
        raise ValueError("expected a whole number")
    return value


def _path(value: str) -> str:
    problem = path_problem(value)
    if problem:
        raise ValueError(problem)
    return value


Column = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_column)]
Condition = Annotated[str, AfterValidator(_condition)]
#: Kernels keep an index a tuple in 64 bits with room to spare; no window of this size could be held anyway.
Number = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=1_000_000_000)]
Zero = Duration()

#: How the state's columns are named, a part of :meth:`Pipeline.meaning_hash`: 2 since names do not depend on the order of the aggregates.
LABELS = 2
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

    path: Annotated[str, AfterValidator(_path)] | None = None
    table: Annotated[str, Field(pattern=r"^[\w-]+(\.[\w-]+){0,2}$", max_length=255)] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError("expected either path or table")
        return self

    @property
    def place(self) -> str:
        """Where it is, for messages: without credentials."""
        return redacted(self.path or self.table or "")


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, int | float) else value


#: Options of a Delta source; the names are Delta's own.
DELTA_OPTIONS = ("maxBytesPerTrigger", "maxFilesPerTrigger", "startingTimestamp", "startingVersion")
#: Options of Delta's readers in whose place a field of the spec stands.
_CHANGES_OPTIONS = ("ignoreChanges", "ignoreDeletes", "skipChangeCommits")


class Source(Table):
    """Where events come from: any Spark batch reader; Delta is read by version."""

    format: str = "delta"
    options: dict[str, Annotated[str, BeforeValidator(_as_text)]] = {}
    filter: Condition | None = None
    #: What becomes of versions of a Delta source that update or remove rows.
    changes: Literal["refuse", "ignore", "restate"] = "refuse"

    @model_validator(mode="after")
    def _known_options(self) -> Self:
        unknown = next((name for name in self.options if name not in DELTA_OPTIONS), None) if self.format == "delta" else None
        if unknown in _CHANGES_OPTIONS:
            raise ValueError(f"options.{unknown}: unknown; set source.changes: ignore instead")
        if unknown is not None:
            raise ValueError(f"options.{unknown}: unknown; the options of a Delta source are {', '.join(DELTA_OPTIONS)}")
        return self

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.format == "kafka":
            return self
        return super()._one_place()  # type: ignore[operator, no-any-return]  # pydantic types the inherited validator as its proxy


class Time(_Part):
    """The time axis, how far out of order events may be, and how long a late one still counts."""

    column: Column
    end: Column | None = None
    unit: Literal["us", "ms", "s", "none"] | None = None
    tie_break: tuple[Column, ...] = ()
    disorder: Duration = Zero
    lateness: Duration = Zero
    #: Null for no limit, as on an axis that is no time.
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
                raise ValueError(f"{name}: expected a fixed length; months have none")
            if value is not None and value.ticks < 0:
                raise ValueError(f"{name}: got {value}; expected zero or more")
        if "max_future_skew" in self.model_fields_set and self.max_future_skew is not None and self.unit == "none":
            raise ValueError("max_future_skew: an axis with unit: none has no now to measure from; leave it out")
        return self

    def latest(self, now_us: int, *, by_default: bool = True) -> int | None:
        """The greatest event time on the axis that is not too far in the future at ``now_us``; ``None`` for no such bound.

        ``by_default`` is whether the bound that specs have without saying so counts too.
        """
        skew = self.max_future_skew
        if skew is None or self.unit == "none" or not (by_default or "max_future_skew" in self.model_fields_set):
            return None
        tick_us = {"us": 1, "ms": 1_000, "s": SECOND_US, None: 1}[self.unit]
        return now_us // tick_us + (skew.ticks if skew.plain else skew.elapsed() // tick_us)


def _difference(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError("expected a number from 0, or a duration where the column is a time")
        return value
    return Duration.parse(value)


class Delta(_Part):
    """A difference of a column's values that makes a policy act."""

    column: Column
    by: Annotated[Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)] | Duration, BeforeValidator(_difference)]


class Policy(_Part):
    """When tuples leave a window, or when it is evaluated: exactly one of the four kinds."""

    count: Number | None = None
    time: PositiveDuration | None = None
    delta: Delta | None = None
    punctuation: Condition | None = None

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
    count: Number


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


#: Schedules that are words; any other text is five cron fields.
SCHEDULE_WORDS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


class AssetSchedule(_Part):
    """Run when an Airflow asset of this name has been updated."""

    asset: Annotated[str, Field(pattern=r"\S", max_length=1_500)]


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
            if where == "time.max_future_skew" and not value.plain:
                continue  # measured against a clock, so that on any axis which has one it may be a duration
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

    @model_validator(mode="after")
    def _tables_lie_apart(self) -> Self:
        tables = {name: table.path for name in ("source", "sink", "checkpoints") if (table := getattr(self, name)) and table.path}
        if "checkpoints" not in tables and "sink" in tables:
            tables["the sink's checkpoints"] = f"{tables['sink'].rstrip('/')}.windowmill"
        for one, other in combinations(tables, 2):
            inner, outer = (one, other) if within(tables[one], tables[other]) else (other, one)
            if within(tables[inner], tables[outer]):
                same = within(tables[outer], tables[inner])
                raise ValueError(
                    f"{inner}.path: {'is that of' if same else 'lies below'} {outer}; each needs a folder of its own, beside the other"
                )
        return self

    def conditions(self) -> tuple[str, ...]:
        """Every condition but the source's filter, each once, in the spec's order."""
        found = [aggregate.where for aggregate in self.aggregates.values()]
        found += [policy.punctuation for policy in self.policies()]
        return tuple(dict.fromkeys(text for text in found if text))

    def policies(self) -> list[Policy]:
        """Every eviction and trigger policy."""
        found = [window.evict for window in self.windows if isinstance(window, Tumbling | Sliding)]
        found += [window.trigger for window in self.windows if isinstance(window, Sliding)]
        return [policy for policy in found if policy]

    def meaning(self) -> dict[str, Any]:
        """The part of the spec that decides the result rows, as JSON values: what the stored state depends on."""
        everything = self.model_dump(mode="json", exclude_defaults=True)
        kept: dict[str, Any] = {name: everything[name] for name in ("keys", "time", "windows", "aggregates", "emit") if name in everything}
        if self.source and self.source.filter:
            kept["filter"] = self.source.filter
        return kept

    def meaning_hash(self) -> str:
        """SHA-256 of :meth:`meaning` and of how the state's columns are named, hexadecimal; the order of mappings changes nothing."""
        return _hash(self.meaning() | {"labels": LABELS})

    def older_meaning_hashes(self) -> tuple[str, ...]:
        """What earlier releases recorded for this spec as its :meth:`meaning_hash`.

        They named columns of the state by the order of the aggregates where their content gave no name of its own
        (:attr:`windowmill.windowing.kernels.layout.Layout.labels_by_order`), and had no limit to events from the future by default.
        """
        meaning = self.meaning()
        without = {name: value for name, value in meaning["time"].items() if name != "max_future_skew"}
        limits: list[dict[str, Any]] = [{}]
        if self.time.max_future_skew is not None:
            # As it is by default, with or without the spec's saying so; any other length is part of the meaning.
            given = {"max_future_skew": str(self.time.max_future_skew)}
            limits = [{}, given] if "max_future_skew" not in meaning["time"] else [given]
        return tuple(_hash(meaning | {"time": without | limit}) for limit in limits)


def _hash(meaning: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()


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
