"""What the rest of windowmill asks of a window, whatever its type, and the rules by which windows are made."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, reduce
from inspect import isabstract
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from windowmill.windowing.axis import Duration
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.fields import Column, Condition, Name, Number, PositiveDuration, SpecMapping
from windowmill.windowing.registry import Registry

Kind = Literal["count", "time", "delta", "punctuation"]
_KINDS: tuple[Kind, ...] = ("count", "time", "delta", "punctuation")


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A column that a window reads, and the type required of it: ``number`` or ``instant``."""

    column: str
    required: Literal["number", "instant"]


@dataclass(frozen=True, slots=True)
class Spacing:
    """How the ends of a window lie along the axis."""

    #: For a reader of the report.
    words: str
    #: Length of a window, and distance of neighbouring ends; ``None`` where they follow the data.
    size: Duration | None = None
    step: Duration | None = None


class Window(SpecMapping):
    """One window of a pipeline: the fields that all types share, and what its type decides.

    A type is a subclass whose ``type`` is a ``Literal``. It implements the abstract methods, and overrides the others where their
    defaults do not hold. What computes its windows is found by its type, in layers above: :func:`.grid_of`, :func:`.slicer_of`,
    :func:`.rows_of`. So a DAG file, which imports this package, loads neither numpy nor numba.
    """

    name: Name
    output: Literal["window_end", "clip"] = "window_end"
    empty: Literal["skip", "emit"] = "skip"
    type: str

    #: The field to lengthen where an event would be in too many windows.
    hop_field: ClassVar[str] = "hop"
    #: Whether rows at most a gap apart share a window, as in sessions.
    joins_by_gap: ClassVar[bool] = False
    #: Whether it may read any column of the source.
    reads_whole_rows: ClassVar[bool] = False

    @property
    def restarts_triggers(self) -> bool:
        """Whether it forgets idle keys, whose triggers are numbered from 0 again."""
        rules = rules_of(self)
        return isinstance(rules, PolicyRules) and rules.idle_after is not None

    # -- What explain and the report say

    @abstractmethod
    def describe(self) -> str:
        """Its type and lengths in a few words."""

    def spacing(self) -> Spacing:
        """How the ends of its windows lie along the axis; they follow the data unless the type says otherwise."""
        return Spacing(self.describe())

    # -- Its place on the axis

    @abstractmethod
    def reach(self) -> int:
        """Upper bound, in ticks, on the distance from an event's time to the start or end of its windows, or to ticks that show it."""

    def windows_of_event(self, duration: int = 1) -> int:
        """Maximum number of windows of a grid that contain an event of this ``duration``; 1 for windows that are not on a grid."""
        rules = rules_of(self)
        return rules.windows_of_event(duration) if isinstance(rules, GridRules) else 1

    @property
    def on_grid(self) -> bool:
        """Whether its windows lie on a grid, and are made of partials of slices."""
        return isinstance(rules_of(self), GridRules)

    def session_gap(self) -> int:
        """The gap in ticks if it joins rows by a gap; ``UnsupportedError`` otherwise."""
        raise UnsupportedError(f"window {self.name}: {self.type} windows join no rows by a gap")

    def greatest_size(self) -> int | None:
        """The length in ticks at which windows that join rows by a gap are cut; null if they are not."""
        return None

    @property
    def fills_gaps(self) -> bool:
        """Whether its windows are on a grid, and those that hold nothing have a row where they lie between events of their key."""
        return self.on_grid and self.empty == "emit"

    @property
    def follows_policies(self) -> bool:
        """Whether policies apply the tuples of a key one by one."""
        return isinstance(rules_of(self), PolicyRules)

    def policies(self) -> PolicyRules:
        """Its policies; ``UnsupportedError`` if it has none."""
        rules = rules_of(self)
        if isinstance(rules, PolicyRules):
            return rules
        raise UnsupportedError(f"window {self.name}: {self.type} windows have no policies")

    @property
    def counted_from(self) -> datetime | int | None:
        """The instant given to count its edges or ticks from."""
        rules = rules_of(self)
        return None if rules is None else rules.origin

    @property
    def zone(self) -> str | None:
        """The time zone whose calendar it follows."""
        rules = rules_of(self)
        return None if rules is None else rules.timezone

    # -- What it reads, by path of the field below the window

    def columns(self) -> Mapping[str, ColumnUse]:
        """Columns that it reads in addition to keys and time."""
        rules = rules_of(self)
        return rules.columns() if isinstance(rules, PolicyRules) else {}

    def conditions(self) -> Mapping[str, str]:
        """Spark SQL conditions on the rows."""
        rules = rules_of(self)
        return rules.conditions() if isinstance(rules, PolicyRules) else {}

    def functions(self) -> Mapping[str, str]:
        """Functions of the user's, as ``module:name``."""
        return {}

    # -- What its result rows are like

    @property
    def numbers_triggers(self) -> bool:
        """Whether its rows have the number of their trigger, and may be shown at the very tuple where they start."""
        return self.follows_policies

    @property
    def ends_can_coincide(self) -> bool:
        """Whether two windows of a key may end at the same instant."""
        return False

    @property
    def ticks_past_its_tuples(self) -> bool:
        """Whether ticks show a window again and again, until the greatest event time of the whole input."""
        return False


#: In the order of registration, which messages and the JSON schema follow.
TYPES: Registry[type[Window]] = Registry("window type", {})
_W = TypeVar("_W", bound=Window)


def register(kind: type[_W]) -> type[_W]:
    """Make ``kind`` a type that specs can name; a class decorator.

    Raises
    ------
    TypeError
        If the class leaves a method out, or does not say what specs call it.
    PluginError
        If another class has the name.
    """
    place = f"{kind.__module__}.{kind.__qualname__}"
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise TypeError(f"window type {place}: lacks {missing}; implement them as windowmill.plugins.Window says")
    annotation = kind.model_fields["type"].annotation
    if get_origin(annotation) is not Literal:
        raise TypeError(f'window type {place}: type: got {annotation}; expected the name that specs give it, as in Literal["session"]')
    [name] = get_args(annotation)
    if kind.__module__.startswith(f"{__package__}."):
        TYPES.build_in(name, kind)
    else:
        TYPES.register(name, kind, kind.__module__)
    return kind


class ByType:
    """Marks a field of a spec that holds a window of any type.

    Types are looked up when a spec is read, so that one may be registered after the model that holds the field was built. A window of one
    of windowmill's own types imports no plugin.
    """

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda value: _adapter(_candidates(value)).validate_python(value))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_adapter(tuple(TYPES.values())).core_schema)


def _candidates(value: object) -> tuple[type[Window], ...]:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    own = TYPES.built_in
    return tuple((own if not isinstance(name, str) or name in own else TYPES).values())


@lru_cache(maxsize=2)
def _adapter(types: tuple[type[Window], ...]) -> TypeAdapter[Window]:
    union: Any = reduce(or_, types)
    return TypeAdapter(Annotated[union, Field(discriminator="type")])


@dataclass(frozen=True, slots=True)
class GridRules:
    """What a window on a grid is made of, whatever its type."""

    #: A window of ``size`` begins every ``hop``.
    size: Duration
    hop: Duration
    #: If given, windows of ``step``, 2·``step`` … ``size`` share their start.
    step: Duration | None = None
    #: From where, and by which calendar, hops are counted.
    origin: datetime | int | None = None
    timezone: str | None = None

    def reach(self) -> int:
        return self.size.longest + self.hop.longest

    def windows_of_event(self, duration: int) -> int:
        size = self.size.longest
        if self.step is not None:
            return (duration + size - 1) // size * (size // max(1, self.step.shortest)) + 1
        return (size + duration - 1) // max(1, self.hop.shortest) + 1


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
        return self._given()[0]

    def describe(self) -> str:
        """Its kind and value in a few words.

        >>> Policy(count=3).describe(), Policy(delta=Delta(column="x", by=2.5)).describe()
        ('count 3', 'delta of x by 2.5')
        """
        value = f"of {self.delta.column} by {self.delta.by}" if self.delta is not None else getattr(self, self.kind)
        return f"{self.kind} {value}"


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """What a window that follows policies is made of, whatever its type."""

    evict: Policy
    #: When a sliding window is evaluated; ``None`` for a window that ``evict`` flushes.
    trigger: Policy | None = None
    #: Whether a window is shown before it was full once.
    partial: bool = True
    #: From where, and by which calendar, the ticks of a time policy are counted.
    origin: datetime | int | None = None
    timezone: str | None = None
    #: How long a key without tuples is remembered; ``None`` for ever.
    idle_after: Duration | None = None

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

    def columns(self) -> Mapping[str, ColumnUse]:
        return {
            f"{field}.delta.column": ColumnUse(policy.delta.column, "instant" if isinstance(policy.delta.by, Duration) else "number")
            for field, policy in self._policies().items()
            if policy.delta is not None
        }

    def conditions(self) -> Mapping[str, str]:
        return {f"{field}.punctuation": policy.punctuation for field, policy in self._policies().items() if policy.punctuation is not None}


class RuledWindow(Window):
    """A window that its rules describe, except for what ``explain`` and the report say about its type."""

    @abstractmethod
    def rules(self) -> GridRules | PolicyRules:
        """The rules that its fields describe."""

    def reach(self) -> int:
        return self.rules().reach()


def rules_of(window: Window) -> GridRules | PolicyRules | None:
    """The rules that describe its windows; null for a type with windows of its own, which may have a field ``rules``."""
    return window.rules() if isinstance(window, RuledWindow) else None
