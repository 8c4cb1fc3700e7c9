"""Types of a spec's fields: those that pipelines and their windows share, ``time``, tables, and what rows go through."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, NamedTuple, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PrivateAttr,
    Tag,
    WithJsonSchema,
    model_validator,
)

from windowmill.windowing.axis import SECOND_US, ZERO, Duration
from windowmill.windowing.paths import checked_path
from windowmill.windowing.redaction import redacted

#: A variable of the environment in a text; its group is the name.
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,12})?)\s*%")
_EXPECTED = "expected a percentage such as 1 %, a share from 0 to less than 1, or never"
#: Microseconds of each unit that counts from 1970.
TICKS_US = {"us": 1, "ms": 1_000, "s": SECOND_US}


class SpecMapping(BaseModel):
    """A mapping in a spec: unknown fields are refused, and what has been read does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def _positive(value: Duration) -> Duration:
    if value == ZERO or value.ticks < 0:
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


def _begin(value: object) -> datetime:
    """The instant, in UTC, which also holds where it names no zone."""
    try:
        begin = _instant(value) if isinstance(value, str | date) else value
        if isinstance(begin, datetime):
            return begin.replace(tzinfo=UTC) if begin.tzinfo is None else begin.astimezone(UTC)
    except (ValueError, OverflowError):  # it is none, or in UTC before the year 1 or after 9999
        pass
    raise ValueError("expected an instant such as 2024-01-01 or 2024-01-01T06:00:00+02:00")


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Column = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_column)]
Condition = Annotated[str, AfterValidator(_condition)]
#: Kernels keep an index a tuple in 64 bits with room to spare; no window of this size could be held anyway.
Number = Annotated[int, BeforeValidator(_whole), Field(gt=0, le=1_000_000_000)]
PositiveDuration = Annotated[Duration, BeforeValidator(lambda v: _positive(Duration.parse(v)))]
FixedDuration = Annotated[Duration, BeforeValidator(lambda v: _fixed(_positive(Duration.parse(v))))]
Zone = Annotated[str, AfterValidator(_zone)]
Instant = Annotated[
    datetime | int,
    BeforeValidator(_instant),
    PlainSerializer(lambda v: v.isoformat() if isinstance(v, datetime) else v, return_type=str | int),
]


def fixed_duration(text: str) -> Duration:
    """A duration of fixed length, more than nothing, such as ``30 days``; raises ``ValueError`` for another text."""
    return _fixed(_positive(Duration.parse(text)))


def _share(value: object) -> float | None:
    if value is None or value == "never":
        return None
    if isinstance(value, str) and (percent := _PERCENT.fullmatch(value.strip())) and float(percent[1]) <= 100:
        # Not divided by 100, which would round again: 7 rows of 1,000 are not more than 0.7 %.
        return float(f"{percent[1]}e-2")
    # 1 could be meant as 1 % or as all rows.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise ValueError(_EXPECTED)


def percentage(share: float | None) -> str:
    """``share`` as a spec writes it; of null, ``never``.

    >>> percentage(0.01), percentage(0.125), percentage(1.0), percentage(None)
    ('1 %', '12.5 %', '100 %', 'never')
    """
    return "never" if share is None else f"{share * 100:.12g} %"


Share = Annotated[
    float | None,
    BeforeValidator(_share),
    PlainSerializer(percentage, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": rf"^(\s*{_PERCENT.pattern}\s*|never)$"},
                {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
                {"type": "null"},
            ]
        }
    ),
]


class QuarantineLimits(SpecMapping):
    """Shares of a batch's rows above which quarantined rows, for whatever reason, are a warning, or hold the batch."""

    warn: Share = 0.01
    hold: Share = 0.1

    @model_validator(mode="after")
    def _limits_agree(self) -> Self:
        if self.warn is not None and self.hold is not None and self.warn > self.hold:
            warn, hold = percentage(self.warn), percentage(self.hold)
            if "hold" in self.model_fields_set:
                raise ValueError(f"hold: got {hold}; expected at least the share of warn ({warn}), or never")
            raise ValueError(f"warn: got {warn}; expected at most the share of hold ({hold} by default); raise hold, too")
        return self


class SavepointPolicy(SpecMapping):
    """When maintenance makes savepoints, and how many of those that it has made it keeps."""

    every: FixedDuration
    keep: Number = 4


#: What `module:name` names, for a function that is imported when it is called.
Place = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", max_length=250)]


class AirflowSettings(SpecMapping):
    """Settings of a pipeline's DAGs. They are no part of what its results mean."""

    catchup: bool = False
    start_date: Annotated[datetime, BeforeValidator(_begin)] | None = None
    retries: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=100)] | None = None
    owner: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    tags: tuple[Annotated[str, Field(min_length=1, max_length=100)], ...] = ()
    #: Called with the context of a task that has failed for good.
    on_failure: Place | None = None
    #: Called after a task that has committed batches with warnings.
    on_warning: Place | None = None

    @model_validator(mode="after")
    def _begins_somewhere(self) -> Self:
        if self.catchup and self.start_date is None:
            raise ValueError("start_date: missing; with catchup: true it says where the runs begin, as in 2024-01-01")
        return self


#: The field ``airflow``: settings, or ``own``, where a DAG file of the user's builds the DAGs.
AirflowField = Annotated[
    Annotated[AirflowSettings, Tag("AirflowSettings")] | Annotated[Literal["own"], Tag("str")],
    Discriminator(lambda value: "str" if isinstance(value, str) else "AirflowSettings"),
]


class Time(SpecMapping):
    """The time axis, how far out of order events may be, and how long a late one still counts."""

    column: Column
    end: Column | None = None
    unit: Literal["us", "ms", "s", "none"] | None = None
    #: Whether numbers of a unit are instants; unless given they are where a length or an origin of the spec is one of time.
    axis: Literal["instants"] | None = None
    tie_break: tuple[Column, ...] = ()
    disorder: Duration = ZERO
    lateness: Duration = ZERO
    #: Null for no limit, as on an axis without a clock (``unit: none``).
    max_future_skew: Annotated[Duration | None, Field(json_schema_extra={"default": "1 day"})] = Duration(days=1)
    watermark: Literal["max_event_time", "data_interval_end"] = "max_event_time"

    @model_validator(mode="after")
    def _fixed_lengths(self) -> Self:
        if self.unit == "none" and "max_future_skew" not in self.model_fields_set:
            self.__dict__["max_future_skew"] = None
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


def quoted_path(name: str) -> str:
    """A field of a struct as Spark SQL.

    >>> quoted_path("user.id")
    '`user`.`id`'
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def _only_names(options: Any) -> Any:
    # The message must not repeat a value, which may be a secret.
    for name, value in options.items() if isinstance(options, Mapping) else ():
        if not isinstance(value, str) or not VARIABLE.fullmatch(value):
            raise ValueError(f"{name}: expected the name of an environment variable, as in ${{NAME}}; a secret is never written in a spec")
    return options


def _own_names(columns: Any) -> Any:
    """A list of columns as a mapping of each to itself."""
    if isinstance(columns, list | tuple) and all(isinstance(name, str) for name in columns):
        twice = next((name for place, name in enumerate(columns) if name in columns[:place]), None)
        if twice is not None:
            raise ValueError(f"the name {twice!r} is given twice")
        return {name: name for name in columns}
    return columns


class Table(SpecMapping):
    """A Delta table by path or by catalog name; exactly one of the two."""

    path: Annotated[str, AfterValidator(checked_path)] | None = None
    #: Options of delta-rs for object storage -> ``${NAME}``, the environment variable with the value.
    storage_options: Annotated[dict[str, str], BeforeValidator(_only_names)] = {}
    table: Annotated[str, Field(pattern=r"^[\w-]+(\.[\w-]+){0,2}$", max_length=255)] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError(f"got {'neither' if self.path is None else 'both'}; expected either path or table")
        return self

    @property
    def place(self) -> str:
        """Path or name of the table, for messages, with credentials redacted."""
        return redacted(self.path or self.table or "")


class Sink(Table):
    """The table that receives result rows; and, where wanted, one with the newest of them for each key and window."""

    current: Annotated[str, AfterValidator(checked_path)] | None = None


def _as_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, int | float) else value


#: Options of a Delta source, by Delta's own names.
DELTA_OPTIONS = ("maxBytesPerTrigger", "maxFilesPerTrigger", "startingTimestamp", "startingVersion")
#: Options of Delta's readers that the field ``changes`` replaces.
_CHANGES_OPTIONS = ("ignoreChanges", "ignoreDeletes", "skipChangeCommits")


#: Kind of a source that is another pipeline; specs do not write it.
PUBLISHED = "pipeline"


class Source(Table):
    """Where events come from: a Delta table, read by version, a folder of files, topics of Kafka, or what another pipeline publishes."""

    #: File of the other pipeline's spec, from the folder of the spec that names it.
    pipeline: Annotated[str, Field(min_length=1, max_length=4_096)] | None = None
    #: ``window``, ``windows``: names of the windows whose results are the rows; it needs none where the other pipeline has one window.
    window: Name | None = None
    windows: tuple[Name, ...] = ()
    format: str = "delta"
    options: dict[str, Annotated[str, BeforeValidator(_as_text)]] = {}
    filter: Condition | None = None
    #: Treatment of versions of a Delta source that update or remove rows.
    changes: Literal["refuse", "ignore", "restate"] = "refuse"

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.pipeline is not None:
            return self._of_pipeline()
        if self.window is not None or self.windows:
            raise ValueError(f"window{'s' if self.windows else ''}: got no pipeline; only the results of another pipeline have windows")
        if self.format == "kafka":
            given = next((name for name in ("path", "table", "storage_options") if getattr(self, name)), None)
            if given is not None:
                raise ValueError(f"{given}: a source of format kafka has none; options.subscribe names its topics")
            return self
        super()._one_place()  # type: ignore[operator]  # pydantic types the inherited validator as its proxy
        unknown = next((name for name in self.options if name not in DELTA_OPTIONS), None) if self.format == "delta" else None
        if unknown in _CHANGES_OPTIONS:
            raise ValueError(f"options.{unknown}: unknown; set source.changes: ignore instead")
        if unknown is not None:
            raise ValueError(f"options.{unknown}: unknown; the options of a Delta source are {', '.join(DELTA_OPTIONS)}")
        return self

    def _of_pipeline(self) -> Self:
        other = ("path", "table", "storage_options", "format", "options", "filter", "changes")
        given = next((name for name in other if name in self.model_fields_set), None)
        if given is not None:
            instead = "; leave rows out by a step (steps: [{filter: …}])" if given == "filter" else "; leave it out"
            raise ValueError(f"{given}: the results of another pipeline are read from its sink, as its spec says{instead}")
        if self.window is not None and self.windows:
            raise ValueError("windows: got window, too; give one of the two")
        _refuse_twice("windows", self.windows)
        # Not fields that were given: the same source is made of those.
        self.__dict__ |= {"format": PUBLISHED, "changes": "restate"}
        return self

    @property
    def place(self) -> str:
        if self.pipeline is not None:
            return redacted(self.pipeline)
        if self.format != "kafka":
            return super().place
        return redacted(f"kafka://{self.options.get('kafka.bootstrap.servers', '')}/{self.options.get('subscribe', '')}")


class Lookup(Table):
    """Columns of another table, taken by equal values: a Delta table, a table of a catalog, or a folder of Parquet files."""

    #: Name for `windowmill restate --lookup` and messages; the last part of path or table unless given.
    name: Annotated[str, Field(pattern=r"^[\w-]+$", max_length=63)] | None = None
    format: Literal["delta", "parquet"] = "delta"
    #: Columns of the rows, or fields of structs -> columns of the table; a row of the table matches if all are equal.
    on: Annotated[dict[Column, Column], Field(min_length=1)]
    #: Columns to take, under their own names, or new name -> column of the table; they may replace columns of the rows.
    columns: Annotated[
        dict[Column, Column], Field(min_length=1), BeforeValidator(_own_names, json_schema_input_type=list[str] | dict[str, str])
    ]
    #: Column of the table with the time from which a row of it is valid; without it no two rows may match.
    valid_from: Column | None = None
    #: What becomes of a row without a match: its new columns are null, or it is quarantined as ``no_match``.
    missing: Literal["keep", "quarantine"] = "keep"
    #: Where a table of a catalog lies, once that has been looked up.
    _location: str | None = PrivateAttr(default=None)

    @property
    def location(self) -> str | None:
        """Path of the table; null for a table of a catalog that has not been located."""
        return self.path or self._location

    def located_at(self, location: str) -> Lookup:
        """The lookup in a table of a catalog that lies there."""
        located = self.model_copy()
        located._location = location  # noqa: SLF001 - its own class
        return located

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.format != "delta" and self.table is not None:
            raise ValueError("table: a table of a catalog is read as Delta; give the path of the folder")
        _refuse_twice("columns", self.columns)
        if self.name is None:
            last = self.path.rstrip("/").rpartition("/")[2] if self.path is not None else str(self.table).rpartition(".")[2]
            self.__dict__["name"] = re.sub(r"[^\w-]", "_", last)[:63]
        return self


class SourceStep(SpecMapping):
    """What rows of the source go through before they meet a window: computed columns, a lookup in another table, or a filter."""

    #: Name -> Spark SQL over the columns that the step finds, and over those before it in the same step; it may replace one of the name.
    columns: Annotated[dict[Column, Condition], Field(min_length=1)] | None = None
    lookup: Lookup | None = None
    filter: Condition | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("columns", "lookup", "filter") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"got {' and '.join(given) or 'none'}; expected one of columns, lookup and filter")
        _refuse_twice("columns", self.columns or ())
        return self

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return tuple(self.columns or (() if self.lookup is None else self.lookup.columns))


def _refuse_twice(field: str, names: Collection[str]) -> None:
    """Refuse ``names`` of which two are the same but for case."""
    lower = [name.lower() for name in names]
    twice = next((name for name in names if lower.count(name.lower()) > 1), None)
    if twice is not None:
        raise ValueError(f"{field}: the name {twice!r} is given twice, case aside")


class Dedup(SpecMapping):
    """Which rows are duplicates: of those with equal values only the first to arrive counts."""

    #: Columns, or fields of structs; rows with a null among them are all kept.
    by: Annotated[tuple[Column, ...], Field(min_length=1)]
    #: An applied row is remembered until the watermark has passed its time by this, and the values may be used again that long after it.
    #: Null: they are not used again, and are remembered as long as any window may count a late row.
    within: Duration | None = None

    @model_validator(mode="after")
    def _is_a_length(self) -> Self:
        _refuse_twice("by", self.by)
        if self.within is not None and (self.within.months or self.within.ticks < 0):
            raise ValueError(f"within: got {self.within}; expected a fixed length, zero or more")
        return self


class ExpressionStep(NamedTuple):
    """One expression of a :class:`SourceStep`: it computes a column of each row, or it is a filter."""

    field: str  #: Path of its field in the spec, as ``steps.0.columns.delay``.
    column: str | None  #: Name of the column; null for a filter.
    text: str  #: Spark SQL over one row.

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return () if self.column is None else (self.column,)

    @property
    def texts(self) -> tuple[str, ...]:
        """Spark SQL of what it reads of a row."""
        return (self.text,)

    @property
    def filters(self) -> tuple[str, ...]:
        """The conditions on which it lets rows through."""
        return (self.text,) if self.column is None else ()

    def describe(self) -> str:
        return self.text if self.column is None else f"{self.column} = {self.text}"


class LookupStep(NamedTuple):
    """A :class:`Lookup` of a :class:`SourceStep`."""

    field: str  #: Path of its field in the spec, as ``steps.0.lookup``.
    lookup: Lookup
    time: Time  #: The axis of event times.
    source: Source | None = None  #: Says how texts are times.
    table: Any = None  #: The table in a version, as :mod:`windowmill.jobs.sources.lookups` opens it; null for the newest one.

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of the columns that it makes."""
        return tuple(self.lookup.columns)

    @property
    def texts(self) -> tuple[str, ...]:
        """Spark SQL of what it reads of a row."""
        time = () if self.lookup.valid_from is None else (quoted_path(self.time.column),)
        return (*map(quoted_path, self.lookup.on), *time)

    @property
    def filters(self) -> tuple[str, ...]:
        """The conditions on which it lets rows through."""
        return ()

    def describe(self) -> str:
        own = self.lookup
        columns = ", ".join(name if name == theirs else f"{name} = {theirs}" for name, theirs in own.columns.items())
        on = " and ".join(f"{theirs} = {ours}" for ours, theirs in own.on.items())
        valid = "" if own.valid_from is None else f", valid from {own.valid_from} as of {self.time.column}"
        return f"{columns} of {own.place} where {on}{valid}"


#: One thing that rows go through; :mod:`windowmill.jobs.sources.row_steps` has what each kind does.
RowStep = ExpressionStep | LookupStep
