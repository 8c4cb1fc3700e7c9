"""The model of a pipeline's spec: source, keys, time, windows, aggregates, sink, expectations and schedule; and what differs between two.

Types of windows are in :mod:`windowmill.windowing.windows`. Imports are few on purpose: Airflow imports this module when it parses DAGs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from itertools import combinations, product
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from windowmill.windowing.axis import AXIS_END, ZERO, Duration
from windowmill.windowing.catalogue import Aggregates
from windowmill.windowing.fields import (
    TICKS_US,
    VARIABLE,
    AirflowField,
    Column,
    Dedup,
    ExpressionStep,
    FixedDuration,
    Lookup,
    LookupStep,
    Name,
    QuarantineLimits,
    RowStep,
    SavepointPolicy,
    Sink,
    Source,
    SourceStep,
    SpecMapping,
    Table,
    Time,
    quoted_path,
)
from windowmill.windowing.paths import within
from windowmill.windowing.redaction import as_written, holds_secret, redacted
from windowmill.windowing.registry import imported
from windowmill.windowing.windows.base import ByType, GridRules, Window, rules_of

#: Version of the naming of the state's columns, a part of :meth:`Pipeline.meaning_hash`; since 2, names do not depend on the order of the
#: aggregates.
LABELS = 2
#: Key of the validation context under which a reader of specs passes the texts that it filled from the environment.
VARIABLES = "variables"
#: Key under which it passes them by the path of the field that they fill.
FIELDS_OF_VARIABLES = "fields"
#: Keys under which it passes the place of the spec, the files of the specs that lead to it, and its own arguments for reading others.
PLACE, READERS, READING = "place", "readers", "reading"
#: The times by which results of a pipeline are complete; the first one by default.
RESULT_TIMES = ("window_end", "window_start")
#: Columns of the sink that windowmill writes; no key or aggregate may have these names.
RESERVED_COLUMNS = ("window", "window_start", "window_end", "trigger", "revision", "retracted", "batch")


#: Type of the rule that the newest event of a run is at most ``freshness`` old; the type of an entry with this argument that names none.
FRESHNESS = "expect_newest_event_to_be_fresh"


class Expectation(BaseModel):
    """A Great Expectations rule over the rows about to be published; further fields are the rule's own arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[str, Field(pattern=r"^(expect_[a-z0-9_]+|unexpected_rows_expectation)$")]
    severity: Literal["critical", "warning", "info"] = "critical"

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, written: Any) -> Any:
        if isinstance(written, Mapping) and "freshness" in written and "type" not in written:
            return {"type": FRESHNESS, **written}
        return written

    @property
    def arguments(self) -> dict[str, Any]:
        """The rule's own arguments, as Great Expectations names them."""
        return dict(self.__pydantic_extra__ or {})


#: Schedules that are words; any other text is five cron fields.
SCHEDULE_WORDS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")


class AssetSchedule(SpecMapping):
    """Run when an Airflow asset of this name has been updated."""

    asset: Annotated[str, Field(pattern=r"\S", max_length=1_500)]


#: JSON schema of a pipeline over another one's results.
_CHAINED: dict[str, Any] = {
    "required": ["source"],
    "properties": {"source": {"type": "object", "required": ["pipeline"], "properties": {"pipeline": {"type": "string"}}}},
}


def _without_time(schema: dict[str, Any]) -> None:
    """Have a JSON ``schema`` require ``time``, except of a pipeline over another one's results."""
    schema["required"].remove("time")
    schema |= {"if": _CHAINED, "else": {"required": ["time"]}}


#: Values of the field ``compute``.
Compute = Literal["spark", "auto", "local"]


class Pipeline(SpecMapping):
    """One pipeline. Unknown fields are refused; ``Pipeline.model_json_schema()`` is its JSON schema."""

    model_config = ConfigDict(json_schema_extra=_without_time)

    pipeline: Name
    #: The name under which the pipeline built its sink, if it has been renamed since.
    renamed_from: Name | None = None
    source: Source | None = None
    #: What its rows go through, in this order; keys, times, windows, aggregates and their conditions see what the last step leaves.
    steps: tuple[SourceStep, ...] = ()
    #: Which rows behind the last step are left out, because one with equal values came before them.
    dedup: Dedup | None = None
    keys: tuple[Column, ...] = ()
    time: Time
    windows: Annotated[tuple[Annotated[Window, ByType()], ...], Field(min_length=1)]
    aggregates: Aggregates
    emit: Literal["final", "revise"] = "final"
    strict: bool = False
    sink: Sink | None = None
    checkpoints: Table | None = None
    expectations: tuple[Expectation, ...] = ()
    quarantine: QuarantineLimits = QuarantineLimits()
    savepoints: SavepointPolicy | None = None
    #: Age from which on maintenance keeps only the newest revision of a window.
    fold_revisions: FixedDuration | None = None
    schedule: str | AssetSchedule | None = None
    #: Settings of the DAGs; or ``own``: a DAG file of the user's builds them, and the files that ship leave the pipeline alone.
    airflow: AirflowField | None = None
    #: Who computes a batch: Spark's tasks, this process where a batch is small and no cluster is configured, or this process alone.
    compute: Compute = "spark"
    #: Whether a run carries out a changed spec itself, if it only adds windows or aggregates; otherwise ``windowmill apply`` does.
    apply: Literal["manual", "auto"] = "manual"
    #: Text with variables as written -> the text with their values.
    _variables: dict[str, str] = PrivateAttr(default_factory=dict)
    #: The same by the path of the field that they fill.
    _variables_of: dict[tuple[str | int, ...], dict[str, str]] = PrivateAttr(default_factory=dict)
    #: Whether the last of the steps is none of the spec's own: it makes columns of fields of structs that the spec names as columns.
    _has_fields: bool = PrivateAttr(default=False)
    #: Looked-up tables in the versions that a batch reads, by name of the lookup; see :meth:`with_tables`.
    _tables: dict[str, Any] = PrivateAttr(default_factory=dict)
    #: The pipeline whose results are the source, and the path of its spec.
    _upstream: Pipeline | None = PrivateAttr(default=None)
    _upstream_path: str = PrivateAttr(default="")

    @model_validator(mode="before")
    @classmethod
    def _results_have_a_time(cls, fields: Any) -> Any:
        source, time = (fields.get(name) for name in ("source", "time")) if isinstance(fields, Mapping) else (None, None)
        chained = source.get("pipeline") if isinstance(source, Mapping) else getattr(source, "pipeline", None)
        if chained is None or not (time is None or isinstance(time, Mapping)):
            return fields
        return {**fields, "time": {"column": RESULT_TIMES[0], **(time or {})}}

    def model_post_init(self, context: Any, /) -> None:
        """Keep what the reader of the spec filled from the environment, so that it can be shown and stored as written."""
        if isinstance(context, Mapping):
            self._variables = dict(context.get(VARIABLES, {}))
            self._variables_of = dict(context.get(FIELDS_OF_VARIABLES, {}))
        if self.source is not None and self.source.pipeline is not None:
            self._follow(self.source, context if isinstance(context, Mapping) else {})

    def _follow(self, source: Source, context: Mapping[str, Any]) -> None:
        """Read the pipeline whose results are the ``source``, and fill what ``time`` leaves out."""
        upstream, self._upstream_path = imported("windowmill.windowing.specfile:upstream_of")(source, context)
        assert isinstance(upstream, Pipeline)
        self._upstream = upstream
        if upstream.sink is None:
            raise ValueError(f"source.pipeline: the pipeline {upstream.pipeline} has no sink, so it publishes nothing; give it one")
        known = [window.name for window in upstream.windows]
        chosen = (source.window,) if source.window is not None else source.windows
        field = "source.windows" if source.windows else "source.window"
        if not chosen and len(known) > 1:
            raise ValueError(f"{field}: missing; the pipeline {upstream.pipeline} has the windows {', '.join(known)}: name one or several")
        for name in chosen:
            if name not in known:
                raise ValueError(f"{field}: got {name!r}; the windows of the pipeline {upstream.pipeline} are {', '.join(known)}")
        time, given = self.time, self.time.model_fields_set
        followed = next((name for name in ("disorder", "max_future_skew", "watermark") if name in given), None)
        if followed is not None:
            raise ValueError(
                f"time.{followed}: how far the input is complete follows from what {upstream.pipeline} has published; leave it out"
            )
        unit = upstream.time.unit if upstream.time.integer_axis else None
        if "unit" in given and time.unit != unit:
            expected = "instants; leave it out" if unit is None else f"numbers of unit {unit}"
            raise ValueError(f"time.unit: got {time.unit!r}, but the results of the pipeline {upstream.pipeline} have {expected}")
        column = time.column
        if column not in RESULT_TIMES:
            raise ValueError(f"time.column: got {column!r}; expected window_end or window_start, by which results are complete")
        made = next((index for index, step in enumerate(self.steps) for name in step.makes if name.lower() == column), None)
        if made is not None:
            raise ValueError(f"steps.{made}.columns.{column}: the time of results says how far they are complete; give another name")
        unbounded = next((window for window in self.upstream_windows if column == "window_start" and not window.on_grid), None)
        if unbounded is not None:
            raise ValueError(
                f"time.column: got {column!r}, but a window of {unbounded.name} ({unbounded.type}) may begin at any time before its end: "
                "results would never be complete; take window_end"
            )
        time = time.model_copy()
        # Not fields that were given: the same pipeline is made of those.
        time.__dict__ |= {"unit": unit, "max_future_skew": None, "watermark": "data_interval_end"}
        self.__dict__["time"] = time

    @property
    def upstream(self) -> Pipeline | None:
        """The pipeline whose results are the source; null for any other source."""
        return self._upstream

    @property
    def upstream_windows(self) -> tuple[Window, ...]:
        """Those of its windows whose results are the source."""
        if self._upstream is None or self.source is None:
            return ()
        chosen = (self.source.window, *self.source.windows)
        return tuple(window for window in self._upstream.windows if window.name in chosen or not any(chosen))

    @property
    def asserts_interval(self) -> bool:
        """Whether the end of each data interval is the watermark; over another pipeline's results it is what that one has published."""
        return self.time.watermark == "data_interval_end" and self._upstream is None

    def __eq__(self, other: object) -> bool:
        """Equal by the fields: it makes no difference which of them came from the environment."""
        return isinstance(other, Pipeline) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash(self.pipeline)

    @model_validator(mode="after")
    def _fields_become_columns(self) -> Self:
        # A last step, which the spec does not have, makes columns of the fields of structs, ``a.b``, that the spec names as columns; that
        # of a key is ``a_b``.
        made = {name for step in self.steps for name in step.makes}
        fields = {name.replace(".", "_"): quoted_path(name) for name in self.keys if "." in name and name not in made}
        if fields:
            self.__dict__["keys"] = tuple(name.replace(".", "_") if name.replace(".", "_") in fields else name for name in self.keys)
        fields |= {name: quoted_path(name) for _, name in self.named_columns() if "." in name and name not in made}
        if fields:
            self.__dict__["steps"] = (*self.steps, SourceStep(columns=fields))
            self._has_fields = True
        return self

    @model_validator(mode="after")
    def _names_do_not_clash(self) -> Self:
        taken: dict[str, str] = dict.fromkeys(RESERVED_COLUMNS, "a column of windowmill's own")
        for column in self.keys:
            if column.lower() in taken:
                own = f"copy it by a step, as in columns: {{of_{column}: {column}}}, and name the copy"
                remedy = "rename the column in the source" if self._upstream is None else own
                raise ValueError(f"keys: {column!r} is taken by {taken[column.lower()]}; {remedy}")
            taken[column.lower()] = "a key"
        for name in self.aggregates:
            if name.lower() in taken:
                raise ValueError(f"aggregates.{name}: the name is taken by {taken[name.lower()]}; choose another name")
            taken[name.lower()] = "an aggregate"
        if all(aggregate.expr is not None for aggregate in self.aggregates.values()):
            raise ValueError('aggregates: got only expressions; give one that is computed of rows, such as {count: "*"}, for them to use')
        own_steps = self.steps[:-1] if self._has_fields else self.steps
        for index, step in enumerate(own_steps):
            dated = step.lookup is not None and step.lookup.valid_from is not None
            if dated and any(self.time.column.lower() in map(str.lower, later.makes) for later in own_steps[index:]):
                raise ValueError(
                    f"steps.{index}.lookup.valid_from: {self.time.column!r}, the event's time, is made behind this step; make it before"
                )
        lookups = [step.lookup.name for step in self.steps if step.lookup is not None]
        again = next((name for name in lookups if lookups.count(name) > 1), None)
        if again is not None:
            raise ValueError(f"steps: two lookups are named {again!r}; give one of them another name (lookup.name)")
        names = [window.name for window in self.windows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"windows: the name {twice!r} is given twice; each window needs its own")
        return self

    @model_validator(mode="after")
    def _lengths_fit_axis(self) -> Self:
        # A duration that is compared with the clock may be one of time on any axis with a clock.
        lengths = {
            where: value for where, value in _durations(self) if value != ZERO and not (where == "time.max_future_skew" and not value.plain)
        }
        timed = next((where for where, value in lengths.items() if not value.plain), None) or next(
            (
                f"windows.{index}.{'timezone' if window.zone else 'origin'}"
                for index, window in enumerate(self.windows)
                if window.zone or isinstance(window.counted_from, datetime)
            ),
            None,
        )
        if timed is not None and self.time.unit in TICKS_US and self.time.axis is None:
            # Kept in the spec's meaning, so that windows which come and go do not change what the axis is.
            self.__dict__["time"] = self.time.model_copy(update={"axis": "instants"})
        integer_axis, unit = self.time.integer_axis, self.time.unit
        for where, value in lengths.items():
            if value.plain != integer_axis:
                wanted = f"a plain integer (time.unit is {unit!r})" if integer_axis else "a duration with a unit, such as '5 minutes'"
                because = f", as {timed} makes the numbers of time.unit: {unit} instants" if unit in TICKS_US and timed else ""
                raise ValueError(f"{where}: got {value}; expected {wanted}{because}")
        for index, window in enumerate(self.windows):
            origin = window.counted_from
            if origin is not None and isinstance(origin, int) != integer_axis:
                wanted = "an integer, as on the axis" if integer_axis else "an instant such as 2013-01-01T00:00:00Z"
                raise ValueError(f"windows.{index}.origin: got {origin}; expected {wanted}")
            if integer_axis and window.zone:
                raise ValueError(f"windows.{index}.timezone: an integer axis has no time zone; leave it out")
        return self

    @model_validator(mode="after")
    def _interval_events(self) -> Self:
        for name, aggregate in self.aggregates.items():
            if aggregate.declaration.clipped and self.time.end is None:
                raise ValueError(f"aggregates.{name}: {aggregate.function} needs interval events; set time.end to the column of their ends")
        policies = next((index for index, window in enumerate(self.windows) if window.follows_policies), None)
        if policies is not None and self.time.end is not None:
            raise ValueError(
                f"windows.{policies}: got {self.windows[policies].describe()}, and time.end; policies take in each event at one instant: "
                "use a grid (hopping, cumulative, or tumbling with a size) for interval events, or leave time.end out"
            )
        return self

    @model_validator(mode="after")
    def _tables_lie_apart(self) -> Self:
        levels, by_level, above = list[Pipeline]([self]), list[dict[str, str]](), self._upstream
        while above is not None:
            levels.append(above)
            above = above.upstream
        for level in levels:
            tables = {name: table.path for name in ("source", "sink", "checkpoints") if (table := getattr(level, name)) and table.path}
            if "checkpoints" not in tables and "sink" in tables:
                tables["the sink's checkpoints"] = f"{tables['sink'].rstrip('/')}.windowmill"
            by_level.append({"sink.current": level.sink.current, **tables} if level.sink and level.sink.current else tables)
        ours = by_level[0]
        theirs = [
            (f"the {name.split()[-1]} of {level.pipeline}", path)
            for level, tables in zip(levels[1:], by_level[1:], strict=True)
            for name, path in tables.items()
        ]
        for index, step in enumerate(self.steps):
            place = None if step.lookup is None else step.lookup.path
            own = next((name for name, path in ours.items() if name != "source" and place and within(place, path)), None)
            if own is not None:
                raise ValueError(f"steps.{index}.lookup.path: lies in {own}; look up a table that the pipeline does not write")
        for one, other in [*combinations(ours.items(), 2), *product(ours.items(), theirs)]:
            (inner, inner_path), (outer, outer_path) = (one, other) if within(one[1], other[1]) else (other, one)
            if within(inner_path, outer_path):
                how = "is that of" if within(outer_path, inner_path) else "lies below" if inner in ours else "holds"
                field, outer = (inner, outer) if inner in ours else (outer, inner)
                field = field if field == "sink.current" else f"{field}.path"
                raise ValueError(f"{field}: {how} {outer}; each needs a folder of its own, outside the other")
        return self

    def given_fields(self) -> dict[str, Any]:
        """The fields that were given, as JSON values, of which an equal pipeline is made: without the step that makes columns of fields."""
        given = self.model_dump(mode="json", exclude_unset=True)
        if self._has_fields:
            paths = {name: text.replace("`", "") for name, text in (self.steps[-1].columns or {}).items()}
            given["keys"] = [paths.get(name, name) for name in self.keys]
            given |= {"steps": given["steps"][:-1]} if "steps" in given else {}
        if self._upstream is not None:
            given["source"] |= {"pipeline": self._upstream_path}
        return given

    def named_columns(self) -> list[tuple[str, str]]:
        """Every column that a field names by itself, in the spec's order, as pairs (path of the field, name)."""
        named = [("time.column", self.time.column), *([("time.end", self.time.end)] if self.time.end else [])]
        named += [(f"keys.{index}", name) for index, name in enumerate(self.keys)]
        named += [(f"time.tie_break.{index}", name) for index, name in enumerate(self.time.tie_break)]
        named += [(f"dedup.by.{index}", name) for index, name in enumerate(() if self.dedup is None else self.dedup.by)]
        named += [(f"aggregates.{label}", name) for label, aggregate in self.aggregates.items() for name in aggregate.columns]
        for index, window in enumerate(self.windows):
            named += [(f"windows.{index}.{at}", use.column) for at, use in window.columns().items()]
        return named

    @property
    def row_steps(self) -> tuple[RowStep, ...]:
        """What rows go through, in this order, the source's filter first; empty if the spec has no steps."""
        if not self.steps:
            return ()
        found: list[RowStep] = []
        if self.source is not None and self.source.filter:
            found.append(ExpressionStep("source.filter", None, self.source.filter))
        for index, step in enumerate(self.steps):
            found += [ExpressionStep(f"steps.{index}.columns.{name}", name, text) for name, text in (step.columns or {}).items()]
            if step.lookup is not None:
                found.append(
                    LookupStep(f"steps.{index}.lookup", step.lookup, self.time, self.source, self._tables.get(str(step.lookup.name)))
                )
            found += [ExpressionStep(f"steps.{index}.filter", None, step.filter)] if step.filter is not None else []
        return tuple(found)

    @property
    def own_filter(self) -> str | None:
        """The source's filter, if it has one and the spec has no steps, else null; with steps it is the first of :attr:`row_steps`."""
        return self.source.filter if self.source is not None and not self.steps else None

    @property
    def filters_rows(self) -> bool:
        """Whether the source or a step has a filter."""
        return any(step.filters for step in self.row_steps) if self.steps else self.own_filter is not None

    def conditions(self) -> tuple[str, ...]:
        """The distinct conditions except filters of rows, in the spec's order."""
        conditions = [aggregate.where for aggregate in self.aggregates.values()]
        conditions += [text for window in self.windows for text in window.conditions().values()]
        return tuple(dict.fromkeys(text for text in conditions if text))

    @property
    def remembers_for(self) -> int:
        """How far, in ticks, the watermark passes the time of an applied row before it is forgotten; 0 without ``dedup``.

        By default rows are remembered as long as a row of their time may still count: so long behind the watermark windows are open.
        """
        if self.dedup is None:
            return 0
        if self.dedup.within is not None:
            return self.dedup.within.elapsed()
        longest = [rules.size.longest for window in self.windows if isinstance(rules := rules_of(window), GridRules)]
        longest += [window.session_gap() for window in self.windows if window.joins_by_gap]
        return min(self.time.delay + max(longest, default=0), AXIS_END)

    def over_rows(self) -> Pipeline:
        """The pipeline with those of its aggregates that are computed of a window's rows."""
        return self.model_copy(update={"aggregates": {name: each for name, each in self.aggregates.items() if each.expr is None}})

    def meaning(self) -> dict[str, Any]:
        """The part of the spec that determines the result rows and the stored state, as JSON values."""
        own = self
        if self._has_fields:
            # Fields that only windows and aggregates name come and go with these.
            staying = {*self.keys, self.time.column, self.time.end, *self.time.tie_break, *(self.dedup.by if self.dedup else ())}
            kept_fields = {name: text for name, text in (self.steps[-1].columns or {}).items() if name in staying}
            last = (SourceStep(columns=kept_fields),) if kept_fields else ()
            own = self.model_copy(update={"steps": (*self.steps[:-1], *last)})
        everything = own.model_dump(mode="json", exclude_defaults=True)
        kept: dict[str, Any] = {
            name: everything[name] for name in ("steps", "dedup", "keys", "time", "windows", "aggregates", "emit") if name in everything
        }
        if self.source and self.source.filter:
            kept["filter"] = self.source.filter
        if self._upstream is not None:
            # Neither its place nor its name: which pipeline it is follows from what has been read of it.
            kept["source"] = {"windows": sorted(window.name for window in self.upstream_windows)}
        return self._with_written_places(kept) if self.steps else kept

    def _with_written_places(self, meaning: dict[str, Any]) -> dict[str, Any]:
        """A :meth:`meaning` in which looked-up tables lie where the spec writes it: the values of variables may differ."""

        def written(step: dict[str, Any]) -> dict[str, Any]:
            lookup = step.get("lookup")
            if not lookup or "path" not in lookup:
                return step
            place = next((text for text, filled in self._variables.items() if filled == lookup["path"]), lookup["path"])
            return {**step, "lookup": {**lookup, "path": place}}

        return {**meaning, "steps": list(map(written, meaning["steps"]))} if "steps" in meaning else meaning

    def with_tables(self, tables: Mapping[str, Any]) -> Pipeline:
        """The pipeline over these looked-up tables, by name of the lookup; without it, each lookup reads its newest version."""
        pinned = self.model_copy()
        pinned._tables = dict(tables)  # noqa: SLF001 - its own class
        return pinned

    def table_of(self, lookup: str) -> Any:
        """The table of a lookup, by its name, as :meth:`with_tables` was given it; null for none."""
        return self._tables.get(lookup)

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """The lookups among its steps."""
        return tuple(step.lookup for step in self.steps if step.lookup is not None)

    def shown_meaning(self) -> dict[str, Any]:
        """:meth:`meaning` for the ledger and for messages: ``${NAME}`` in place of its value in fields that name it, and no credentials."""

        def shown(value: Any, path: tuple[str | int, ...]) -> Any:
            # Lengths of time hold no secret, and later changes are compared with what they were.
            if isinstance(value, str) and path not in _SETTINGS:
                filling = self._filling(path)
                whole = next((written for written, filled in filling.items() if filled == value), None)
                return redacted(as_written(value, filling) if whole is None else whole)
            if isinstance(value, dict):
                return {name: shown(item, (*path, name)) for name, item in value.items()}
            return [shown(item, (*path, index)) for index, item in enumerate(value)] if isinstance(value, list) else value

        written: dict[str, Any] = shown(self.meaning(), ())
        return written

    def _filling(self, path: tuple[str | int, ...]) -> dict[str, str]:
        """The variables that fill the field ``path`` of the meaning, and those that hold secrets wherever they are."""
        path = ("source", "filter") if path == ("filter",) else path
        # What lies deeper in a window or an aggregate may have another path there than in the spec.
        depth = {"windows": 3, "aggregates": 2}.get(str(path[0]), len(path))
        found = {text: value for text, value in self._variables.items() if any(map(holds_secret, VARIABLE.findall(text)))}
        for place, named in self._variables_of.items():
            found |= named if place[:depth] == path[:depth] else {}
        return found

    def meaning_hash(self) -> str:
        """SHA-256 of :meth:`meaning` and of :data:`LABELS` in hexadecimal, independent of the order of mappings."""
        return _hash_of(self.meaning())

    def means(self, written: Mapping[str, Any], meaning_hash: str) -> bool:
        """Whether the spec has the meaning that is ``written`` as by :meth:`shown_meaning` and hashed, whatever the order of windows.

        Numbers and lengths of time mean the same in any form: ``5`` and ``5.0``, ``24 hours`` and ``1 day``.
        """
        meaning = self.meaning()
        places = {window["name"]: place for place, window in enumerate(written.get("windows", ()))}
        if places.keys() == {window["name"] for window in meaning["windows"]}:
            meaning["windows"].sort(key=lambda window: places[window["name"]])
        if _hash_of(meaning) == meaning_hash:
            return True
        before = self.filled(dict(written))
        return (
            _hash_of(before) == meaning_hash
            and _without_settings(before) == _without_settings(meaning)
            and not [*_changed(before, meaning)]
        )

    def has_variables_of(self, written: Mapping[str, Any], meaning_hash: str) -> bool:
        """Whether the variables in an earlier :meth:`shown_meaning`, whose hash was ``meaning_hash``, have the values of now."""
        return _hash_of(self._with_written_places(self.filled(dict(written)))) == meaning_hash

    def meaning_as(self, written: Mapping[str, Any]) -> Pipeline:
        """The pipeline with the meaning of an earlier :meth:`shown_meaning`, whose variables have the values of now."""
        meaning = self.filled(dict(written))
        wanted = {"filter": meaning.pop("filter", None)}
        meaning.pop("source", None)
        source = None if self.source is None else self.source.model_copy(update=wanted)
        meant = Pipeline.model_validate({"pipeline": self.pipeline, **meaning}).model_copy(update={"source": source})
        meant._upstream, meant._upstream_path = self._upstream, self._upstream_path  # noqa: SLF001 - its own class
        return meant

    def filled(self, value: Any) -> Any:
        """``value`` with those of the variables in the place of their names."""
        if isinstance(value, str):
            return reduce(lambda text, pair: text.replace(*pair), self._variables.items(), value)
        if isinstance(value, dict):
            return {name: self.filled(item) for name, item in value.items()}
        return [self.filled(item) for item in value] if isinstance(value, list) else value


def _hash_of(meaning: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps({**meaning, "labels": LABELS}, sort_keys=True).encode()).hexdigest()


def _durations(part: BaseModel, where: str = "") -> list[tuple[str, Duration]]:
    durations: list[tuple[str, Duration]] = []
    for name, value in part:
        path = f"{where}{name}"
        if isinstance(value, Duration):
            durations.append((path, value))
        elif isinstance(value, BaseModel):
            durations += _durations(value, f"{path}.")
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, BaseModel):
                    durations += _durations(item, f"{path}.{index}.")
    return durations


#: A field that a spec leaves out.
_ABSENT = object()
#: Limits on the differences, and on the characters of a value, in a message.
_MAX_NAMED, _SHOWN = 5, 80
#: What becomes of a window or an aggregate: ``filled`` is new, or means something else than before.
Fate = Literal["kept", "filled", "dropped"]
#: Fields that hold windows and aggregates, and those that say which rows and values these see; a change of any other field of a meaning
#: makes another pipeline.
FIELDS, INPUT_FIELDS = ("windows", "aggregates"), ("filter", "steps", "dedup")
#: Paths of the settings that may change, which say when rows are late, and windows are shown; with their defaults.
_SETTINGS: Mapping[tuple[str, ...], Any] = {
    ("time", "disorder"): 0,
    ("time", "lateness"): 0,
    ("time", "max_future_skew"): "1 day",
    ("emit",): "final",
}


def describe_difference(before: Mapping[str, Any], now: Mapping[str, Any], actual: Mapping[str, Any]) -> str | None:
    """The differences between two specs in one line, each as field, old and new value; null if none is known.

    ``before`` and ``now`` are what the specs mean, with variables as written (:meth:`windowmill.windowing.spec.Pipeline.shown_meaning`);
    ``actual`` is as ``now``, with the values of variables.

    >>> describe_difference({"time": {"column": "t", "disorder": "1 hour"}}, *2 * ({"time": {"column": "t"}, "emit": "revise"},))
    'time.disorder was "1 hour" and is not given; emit was not given and is "revise"'
    """
    found = differences(before, now, actual)
    if not found:
        # As written they are the same, so the value of a variable must differ.
        found = [f"{where}: the value of {name} is another one" for where, name in variables(now)]
    more = f"; and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return "; ".join(found[:_MAX_NAMED]) + more or None


def differences(before: Any, now: Any, actual: Any) -> list[str]:
    """The differences between two values of a spec, each as field, old and new value; arguments as those of :func:`describe_difference`."""
    return [
        f"{f'{where} ' if where else ''}was {_shown(old)} and is {_shown(new)}" for where, old, new in _differences(before, now, actual, "")
    ]


def _differences(before: Any, now: Any, actual: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    # A text that now comes from the environment may still be the same.
    if before in (now, actual):
        return
    old, new, new_actual = (parts_of(value) for value in (before, now, actual))
    if old is None or new is None or new_actual is None:
        yield where, before, now
        return
    for name in dict.fromkeys([*old, *new]):
        old_part, new_part, actual_part = (part.get(name, _ABSENT) for part in (old, new, new_actual))
        yield from _differences(old_part, new_part, actual_part, f"{where}.{name}" if where else name)


def parts_of(value: Any) -> Mapping[str, Any] | None:
    """The fields of ``value``, or its items by their names, or places; null if it has neither."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        return {item.get("name", str(place)): item for place, item in enumerate(value)}
    return None


def variables(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The variables in the texts of ``value``, each with the path of its field."""
    if isinstance(value, str):
        for name in VARIABLE.findall(value):
            yield where, f"${{{name}}}"
    elif isinstance(value, list) and parts_of(value) is None:
        for item in value:
            yield from variables(item, where)
    for name, item in (parts_of(value) or {}).items():
        yield from variables(item, f"{where}.{name}" if where else name)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "not given"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


@dataclass(frozen=True, slots=True)
class SpecChange:
    """What becomes of a window or an aggregate; ``known`` is whether the pipeline had one of this name before."""

    name: str
    fate: Fate
    why: str
    known: bool = True


@dataclass(frozen=True, slots=True)
class SpecChanges:
    """What a changed spec means for a pipeline that runs."""

    windows: tuple[SpecChange, ...]
    aggregates: tuple[SpecChange, ...]
    #: The differences in keys and in the time column, each with the old and the new value; with any of them the spec cannot be applied.
    others: tuple[str, ...] = ()
    #: Whether another filter, other steps or another ``dedup`` give the windows other rows, or other values in them; all are filled then.
    input_differs: bool = False
    #: The differences in time settings and ``emit``, each with the old and the new value. They count from the next batch on.
    settings: tuple[str, ...] = ()
    #: Whether windows are recomputed as these settings would have given them from the beginning; all windows are filled then.
    rejudges: bool = False

    @property
    def changes_emit(self) -> bool:
        return any(setting.startswith("emit ") for setting in self.settings)

    def rejudging(self) -> SpecChanges:
        """The changes, if all windows are recomputed by the changed settings."""
        why = "; ".join(self.settings)
        windows = tuple(replace(each, fate="filled", why=why) if each.fate == "kept" else each for each in self.windows)
        return replace(self, windows=windows, rejudges=True)

    @property
    def only_add(self) -> bool:
        return (
            not self.others
            and not self.settings
            and all(each.fate == "kept" or not each.known for each in (*self.windows, *self.aggregates))
        )

    @property
    def redefined(self) -> tuple[str, ...]:
        """The windows and aggregates, as ``windows.NAME``, that meant something else before."""
        parts = {"windows": self.windows, "aggregates": self.aggregates}
        return tuple(f"{field}.{each.name}" for field in FIELDS for each in parts[field] if each.fate == "filled" and each.known)

    @property
    def filled(self) -> tuple[str, ...]:
        """Names of the windows whose rows are recomputed: all of them if an aggregate is filled."""
        every = any(each.fate == "filled" for each in self.aggregates)
        return tuple(each.name for each in self.windows if each.fate == "filled" or (every and each.fate == "kept"))


def compare(before: Mapping[str, Any], pipeline: Pipeline, edited: Mapping[tuple[str, str], str], *, same_variables: bool) -> SpecChanges:
    """Compare ``pipeline`` with the meaning ``before``, in which variables are as written.

    ``edited`` says why windows and aggregates, by field and name, compute something else although the spec says the same.
    ``same_variables`` is whether all variables have the values that they had before. Otherwise all fields with variables count as changed.
    """
    now, actual = pipeline.shown_meaning(), pipeline.meaning()
    found: dict[str, list[SpecChange]] = {}
    for field in FIELDS:
        old, new, values = (parts_of(meaning.get(field)) or {} for meaning in (before, now, actual))
        found[field] = []
        for name in new:
            why: str | None = "new"
            if name in old:
                why = _why(old[name], new[name], values[name], where=f"{field}.{name}", same_variables=same_variables)
                why = why or edited.get((field, name))
            found[field].append(SpecChange(name, "kept" if why is None else "filled", why or "same meaning", name in old))
        found[field] += [SpecChange(name, "dropped", "no longer in the spec") for name in old if name not in new]
    rest = ({name: value for name, value in each.items() if name not in (*FIELDS, *INPUT_FIELDS)} for each in (before, now, actual))
    reason = _why(*map(_without_settings, rest), where="", same_variables=same_variables)
    inputs = ({name: value for name, value in meaning.items() if name in INPUT_FIELDS} for meaning in (before, now, actual))
    other_input = _why(*inputs, where="", same_variables=same_variables)
    if other_input is not None:
        found["windows"] = [replace(each, fate="filled", why=other_input) if each.fate == "kept" else each for each in found["windows"]]
    # An older record may name a variable in the place of a length, whose value of then is not known.
    unknown = (
        []
        if same_variables
        else [f"{where}: the value of {name} may be another one" for where, name in variables(before.get("time"), "time")]
    )
    others = (*(() if reason is None else (reason,)), *(line for line in unknown if reason is None or line not in reason))
    settings = tuple(_changed(pipeline.filled(before), actual))
    return SpecChanges(tuple(found["windows"]), tuple(found["aggregates"]), others, other_input is not None, settings)


def _without_settings(meaning: Mapping[str, Any]) -> dict[str, Any]:
    time = {name: value for name, value in meaning.get("time", {}).items() if ("time", name) not in _SETTINGS}
    return {name: time if name == "time" else value for name, value in meaning.items() if (name,) not in _SETTINGS}


def setting_of(meaning: Mapping[str, Any], *path: str) -> Any:
    """The setting at ``path`` of what a spec means: a text, or a length in ticks of the axis; null for no limit."""
    held = meaning
    for name in path[:-1]:
        held = held.get(name, {})
    value = held.get(path[-1], _SETTINGS[path])
    return value if value is None or path == ("emit",) else Duration.parse(value).elapsed()


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """The settings that differ, each with the old and the new value."""
    for path in _SETTINGS:
        if setting_of(before, *path) != setting_of(now, *path):
            *fields, last = path
            old, new = (reduce(lambda held, name: held.get(name, {}), fields, meaning).get(last, _ABSENT) for meaning in (before, now))
            yield f"{'.'.join(path)} was {_shown(old)} and is {_shown(new)}"


def _why(before: Any, now: Any, actual: Any, *, where: str, same_variables: bool) -> str | None:
    """How two values of a spec differ, in words; null if they mean the same."""
    found = differences(before, now, actual)
    if not found and not same_variables:
        found = [f"{place or where}: the value of {name} may be another one" for place, name in variables(now)]
    return "; ".join(found) or None
