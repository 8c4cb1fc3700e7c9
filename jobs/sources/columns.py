"""The columns of a source: their types, those that a spec requires, and those that reading adds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

from windowmill.checkpoints.committer import widens
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.conditions.truths import columns_of, conditions_by_field, every_condition, read_by
from windowmill.jobs.sources.options import TEXT_FORMATS
from windowmill.windowing.columnar.added_columns import TAKEN
from windowmill.windowing.errors import SourceSchemaError, first_line, no_column
from windowmill.windowing.kernels.layout import WiderPartials
from windowmill.windowing.layouts import divide, live_columns
from windowmill.windowing.registry import imported
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import SourceTable
    from windowmill.jobs.sources.row_steps import RowSteps

#: Metadata of a column under column mapping: its id in the table and its name in the files, which it keeps when it is renamed.
COLUMN_ID, PHYSICAL = "delta.columnMapping.id", "delta.columnMapping.physicalName"
#: Metadata in which Spark keeps the declared type of a column of texts of limited or fixed length, or that holds such texts.
DECLARED = "__CHAR_VARCHAR_TYPE_STRING"
_FIXED = re.compile(r"\bchar\((\d+)\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Columns:
    """The source's columns, as the plan pins them."""

    struct: T.StructType

    @classmethod
    def of(cls, schema_json: str) -> Columns:
        """The columns of a schema written as the JSON of a Spark ``StructType``."""
        return cls(T.StructType.fromJson(json.loads(schema_json)))

    @classmethod
    def of_source(cls, source: SourceTable) -> Columns:
        """The columns of ``source`` that windows see: those that are left by the steps which its rows go through."""
        own = cls.of(source.schema_json)
        return own if source.reader is None else own.seen_by(source.reader)

    @classmethod
    def of_arrow(cls, schema: pa.Schema) -> Columns:
        """The columns of ``schema``; raises ``SourceSchemaError`` for a type that Spark does not have."""
        try:
            return cls(from_arrow_schema(schema, prefer_timestamp_ntz=True))
        except PySparkException as err:
            why = first_line(err)
            raise SourceSchemaError(f"the source has a column of a type that Spark does not have ({why}); leave it out") from err

    @property
    def arrow(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column."""
        return {field.name: field.type for field in to_arrow_schema(self.struct, timezone="UTC")}

    @property
    def in_conditions(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column that conditions evaluate to the same here and in Spark.

        Spark compares texts of fixed length with each other and with constants as if both were padded, and texts with a collation by it.
        """
        odd = set()
        for field in self.struct:
            is_collated = "collate" in field.dataType.simpleString() or any(key.startswith("__COLLATIONS") for key in field.metadata)
            if is_collated or _paddings(field):
                odd.add(field.name)
        return {name: kind for name, kind in self.arrow.items() if name not in odd}

    def steps(self, pipeline: Pipeline) -> RowSteps | None:
        """The steps of ``pipeline`` over these columns, null if it has none; raises as :meth:`.RowSteps.of`."""
        if not pipeline.steps:
            return None
        known = self.in_conditions
        spark_only = [name for name in self.struct.names if name not in known]
        steps: RowSteps = _steps().RowSteps.of(pipeline, self.arrow, spark_only)
        return steps

    def seen_by(self, pipeline: Pipeline) -> Columns:
        """The columns that windows of ``pipeline`` see: these, with those that its steps make; raises as :meth:`.RowSteps.of`."""
        if not pipeline.steps or (steps := self.steps(pipeline)) is None:
            return self
        return self.behind(steps)

    def behind(self, steps: RowSteps) -> Columns:
        """The columns that windows see once rows have gone through ``steps`` over these."""
        made = {name: T.StructField(name, from_arrow_type(kind, prefer_timestamp_ntz=True)) for name, kind in steps.made.items()}
        return Columns(T.StructType([made.get(name) or self.struct[name] for name in steps.after(self.struct.names)]))

    @property
    def taken(self) -> str | None:
        """The first column whose name windowmill uses for one of its own; null if there is none."""
        return next((name for name in self.struct.names if name.lower() in TAKEN), None)

    @property
    def fixed_lengths(self) -> Mapping[str, int]:
        """For each column of texts of fixed length, CHAR(n), its length: Spark pads shorter texts with spaces as it reads them."""
        declared = {field.name: _FIXED.fullmatch(field.metadata.get(DECLARED, "")) for field in self.struct}
        return {name: int(found[1]) for name, found in declared.items() if found}

    @property
    def json(self) -> str:
        """The columns as the JSON of a Spark ``StructType``."""
        return str(self.struct.json())

    def type_of(self, name: str) -> T.DataType:
        """Spark type of the column ``name``."""
        return self.struct[name].dataType

    def check(
        self, pipeline: Pipeline, place: str, unread: Mapping[str, str] = MappingProxyType({}), untyped: Collection[str] = ()
    ) -> None:
        """Raise ``SourceSchemaError``, naming the field and all columns, if a column that the spec names does not exist or fit.

        ``unread`` are further columns of the source that are not read, each with the reason; ``untyped`` those of these that
        have no value yet.
        """
        problems = list(self._problems_of_steps(pipeline, place, untyped)) if pipeline.steps else []
        instead = "write it in one type that is read, or give the columns as source.options.schema"
        problems += [(place, f"column {name!r} {unread[name]}; {instead}") for name in (read_columns(pipeline, unread) if unread else ())]
        for where, problem in problems or self.seen_by(pipeline).misfits(pipeline, place, untyped):
            raise SourceSchemaError(f"pipeline {pipeline.pipeline}: {where}: {problem}")

    def _problems_of_steps(self, pipeline: Pipeline, place: str, untyped: Collection[str]) -> Iterator[tuple[str, str]]:
        instead = "give the columns as source.options.schema, or run when a file has a value"
        for step in pipeline.row_steps:
            for name in read_by(step.texts, untyped):
                yield step.field, f"column {name!r} of {place} has no value yet, so that its type is not known; {instead}"
            for column in {*step.makes} & {*pipeline.keys} & {*self.struct.names}:
                path = step.texts[0].replace("`", "")
                if "." in path and path.replace(".", "_") == column:
                    yield "keys", f"{column!r}, the name of {path}, is a column of {place} too; give the field another name by a step"

    def misfits(self, pipeline: Pipeline, place: str, untyped: Collection[str]) -> Iterator[tuple[str, str]]:
        """Problems of the columns, which windows of ``pipeline`` see, as pairs (path of the field, problem and remedy)."""
        kinds = {each.name: each.dataType for each in self.struct}
        keys = [(f"keys.{index}", name) for index, name in enumerate(pipeline.keys)]
        ties = [(f"time.tie_break.{index}", name) for index, name in enumerate(pipeline.time.tie_break)]
        axis = [("time.column", pipeline.time.column), *([("time.end", pipeline.time.end)] if pipeline.time.end else [])]
        uses = [
            (f"windows.{index}.{field}", use) for index, window in enumerate(pipeline.windows) for field, use in window.columns().items()
        ]
        copies = [(f"dedup.by.{index}", name) for index, name in enumerate(() if pipeline.dedup is None else pipeline.dedup.by)]
        for where, name in [*keys, *ties, *copies, *((where, use.column) for where, use in uses), *axis]:
            if name not in self.struct.names:
                yield where, no_column(place, name, set(self.struct.names))
        for where, name in keys:
            if isinstance(kinds[name], T.ArrayType | T.MapType | T.StructType | T.VariantType):
                instead = "name a column of a simple type, a field of it (a.b), or a column that a step makes of it"
                yield where, f"{name!r} is {kinds[name].simpleString()}, which cannot be a key; {instead}"
        for where, name in ties:
            if isinstance(kinds[name], T.ArrayType | T.MapType | T.StructType):
                yield where, f"{name!r} is {kinds[name].simpleString()}; expected values that have an order"
        for where, name in copies:
            if isinstance(kinds[name], T.ArrayType | T.MapType | T.StructType | T.VariantType):
                instead = "name a column of a simple type, a field of it (a.b), or a column that a step makes of it"
                yield where, f"{name!r} is {kinds[name].simpleString()}, which identifies no row; {instead}"
        unit = pipeline.time.unit
        for where, name in axis:
            kind = kinds[name]
            whole, is_of = isinstance(kind, T.IntegralType), f"{name!r} is {kind.simpleString()}"
            if whole and unit is None:
                yield where, f"{is_of}; say what it counts with time.unit (us, ms, s or none)"
            if unit is not None and not whole:
                # One value that is not a whole number gives the column of a text file another type.
                in_text = pipeline.source is not None and pipeline.source.format in TEXT_FORMATS
                or_schema = f", or give source.options.schema with {name} BIGINT if the column counts units of time" if in_text else ""
                yield where, f"time.unit: {is_of}, not an integer; leave time.unit out{or_schema}"
            if not whole and kind.typeName() not in ("timestamp", "timestamp_ntz", "date", "string"):
                yield where, f"{is_of}; expected a timestamp, a date or an integer"
        for where, use in uses:
            kind = kinds[use.column]
            is_number = isinstance(kind, T.NumericType | T.BooleanType)
            is_instant = kind.typeName() in ("timestamp", "timestamp_ntz", "date")
            if use.column not in [name for _, name in axis] and not (is_number if use.required == "number" else is_instant):
                number = "a number, or a duration as `by`" if is_instant else "a number"
                expected = number if is_instant or use.required == "number" else "an instant or a date"
                yield where, f"{use.column!r} is {kind.simpleString()}; expected {expected}"
        # Where no column has the name, Spark takes `user` or `current_time` for the function.
        known = {name.lower() for name in self.struct.names}
        for where, text in conditions_by_field(pipeline):
            for name in sorted(name for name in columns_of(text) if name.lower() not in known):
                yield where, no_column(place, name, self.struct.names)
        # Problems of aggregates that compare, or compute with, a column whose type no value shows: as text, 9 comes after 10.
        for label, spec in pipeline.aggregates.items():
            declared = spec.declaration
            typed = spec.columns if declared.takes in ("number", "boolean") else spec.columns[:1] if declared.orders else ()
            instead = "give the columns as source.options.schema, or run when a file has a value"
            for name in [name for name in typed if name in untyped]:
                yield f"aggregates.{label}", f"column {name!r} of {place} has no value yet, so that its type is not known; {instead}"


def physical_name(field: T.StructField) -> str:
    """The name of a column, or of a field within one, in the Parquet files; it differs from its own under column mapping."""
    return str(field.metadata.get(PHYSICAL, field.name))


def read_columns(pipeline: Pipeline, names: Iterable[str]) -> list[str]:
    """Those of the source's columns ``names`` that the pipeline reads: those that its spec names, and those that its steps read."""
    names = list(names)
    if not pipeline.steps:
        return used_columns(pipeline, names)
    made = [name for step in pipeline.row_steps for name in step.makes]
    read: list[str] = _steps().RowSteps(pipeline.row_steps).columns_read(used_columns(pipeline, [*names, *made]), names)
    return read


def _steps() -> Any:
    from windowmill.jobs.sources import row_steps  # loads the parser, which a spec without steps does without

    return row_steps


def used_columns(pipeline: Pipeline, names: Iterable[str]) -> list[str]:
    """Those of the columns ``names`` behind the last step that the spec names, and those that windows over whole rows keep."""
    names = list(names)
    used = {*pipeline.keys, pipeline.time.column, pipeline.time.end, *live_columns(pipeline, names)}
    used |= set(read_by(every_condition(pipeline), names))
    used |= set(() if pipeline.dedup is None else (*pipeline.dedup.by, *pipeline.time.tie_break))
    return [name for name in names if name in used]


def check_unchanged(before: str, now: str, pipeline: Pipeline, place: str) -> None:
    """Check that the columns that the spec uses have not changed since the schema ``before``; raises ``SourceSchemaError`` naming one.

    The source may add columns, rename those that the spec does not use, and widen a type as far as state and sink can follow.
    """
    old, new = Columns.of(before).struct, Columns.of(now).struct
    if pipeline.dedup is not None and before != now:
        _check_ids(pipeline, pipeline.dedup.by, Columns(old), Columns(new), place)
    stored = {*pipeline.keys, pipeline.time.column, pipeline.time.end, *live_columns(pipeline, old.names)}
    used = set(read_columns(pipeline, old.names) if pipeline.steps else used_columns(pipeline, old.names))
    only_read = used - stored
    stored |= used if pipeline.steps else set()  # what steps make of them may be
    for field in old:
        if field.name not in used:
            continue
        if field.name not in new.names:
            raise SourceSchemaError(_gone(field, new, place))
        _check_same(field, new[field.name], field.name, place)
        wider = new[field.name].dataType
        is_padded_alike = _paddings(field) == _paddings(new[field.name])
        if is_padded_alike and (field.name not in stored or wider == field.dataType or _plain(wider) == _plain(field.dataType)):
            continue
        alone = T.StructType([new[each.name] if each.name == field.name else each for each in old])
        may_grow = field.name in only_read
        why = _why_not_wider(pipeline, Columns(old), Columns(alone), field.name, may_grow=may_grow) if is_padded_alike else ""
        if why is not None:
            raise SourceSchemaError(
                f"source {place}: column {field.name!r} was {_declared(field)} and is now {_declared(new[field.name])}{why}; "
                "bring the type back, or rebuild in a new sink"
            )


def _check_ids(pipeline: Pipeline, by: Sequence[str], old: Columns, new: Columns, place: str) -> None:
    """Raise ``SourceSchemaError`` if equal values of a column of ``dedup.by`` have other ids than before."""
    try:
        types = [columns.seen_by(pipeline).arrow for columns in (old, new)]
    except SourceSchemaError:  # the next check names the column that is gone
        return
    kind_of = imported("windowmill.windowing.columnar.duplicates:kind_of")
    for name in by:
        was, now = (kinds.get(name) for kinds in types)
        if was is not None and now is not None and kind_of(was) != kind_of(now):
            raise SourceSchemaError(
                f"source {place}: column {name!r} was {in_sql(was)} and is now {in_sql(now)}, and dedup.by names it: rows with its old "
                "values would not be remembered; bring the type back, or rebuild in a new sink"
            )


def unchanged_types(before: str, now: str, pipeline: Pipeline, place: str) -> str:
    """The columns ``now`` in types that the pipeline can take: those of ``before`` where it cannot take the new ones."""
    old, new = Columns.of(before).struct, Columns.of(now).struct
    for field in old:
        if field.name not in new.names or new[field.name].dataType == field.dataType:
            continue
        alone = T.StructType([new[field.name] if each.name == field.name else each for each in old])
        try:
            check_unchanged(before, alone.json(), pipeline, place)
        except SourceSchemaError:
            new = T.StructType([field if each.name == field.name else each for each in new])
    return str(new.json())


def _gone(field: T.StructField, new: T.StructType, place: str) -> str:
    """The message for the column ``field``, which the schema ``new`` does not have under its name."""
    renamed = next((other.name for other in new if PHYSICAL in field.metadata | other.metadata and _is_same(field, other)), None)
    if renamed is not None:
        return (
            f"source {place}: column {field.name!r} has been renamed to {renamed!r} since the last batch; rename it back, or rebuild in a "
            "new sink by the new name"
        )
    return f"source {place}: column {field.name!r} is gone since the last batch; bring it back, or rebuild in a new sink without it"


def _check_same(old: T.StructField, new: T.StructField, name: str, place: str) -> None:
    """Raise ``SourceSchemaError`` if ``new``, or a field within it, is another column of the table than ``old`` under the same name.

    With column mapping a name may pass from one column to another, by renaming or by dropping and adding; files identify them by
    id and physical name.
    """
    if not _is_same(old, new):
        raise SourceSchemaError(
            f"source {place}: column {name!r} is another column since the last batch (column mapping: {_stored_as(old)} before, "
            f"{_stored_as(new)} now), as after DROP and ADD COLUMN or RENAME; rename the old one back, or rebuild in a new sink"
        )
    for inner, later in _inner_fields(old.dataType, new.dataType):
        _check_same(inner, later, f"{name}.{inner.name}", place)


def _is_same(old: T.StructField, new: T.StructField) -> bool:
    ids = [field.metadata[COLUMN_ID] for field in (old, new) if COLUMN_ID in field.metadata]
    # Before column mapping was enabled there were no ids, and the files had the names of the schema.
    return physical_name(old) == physical_name(new) and len(set(ids)) <= 1


def _paddings(field: T.StructField) -> list[str]:
    """The lengths to which Spark pads texts of a column."""
    return _FIXED.findall(field.metadata.get(DECLARED, ""))


def _declared(field: T.StructField) -> str:
    """The type of a column as its owner has declared it."""
    return str(field.metadata.get(DECLARED, field.dataType.simpleString()))


def _stored_as(field: T.StructField) -> str:
    own = f", id {field.metadata[COLUMN_ID]}" if COLUMN_ID in field.metadata else ""
    return f"{physical_name(field)!r}{own}"


def _inner_fields(old: T.DataType, new: T.DataType) -> Iterator[tuple[T.StructField, T.StructField]]:
    """The fields of structs within two types that are at the same place and have the same name."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        yield from ((field, new[field.name]) for field in old if field.name in new.names)
    elif isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        yield from _inner_fields(old.elementType, new.elementType)
    elif isinstance(old, T.MapType) and isinstance(new, T.MapType):
        yield from _inner_fields(old.keyType, new.keyType)
        yield from _inner_fields(old.valueType, new.valueType)


def with_fields(kind: T.DataType, changed: Callable[[T.StructField], T.StructField]) -> Any:
    """``kind``, a type of the same class, with each field of structs within it ``changed``."""
    if isinstance(kind, T.StructType):
        own = (T.StructField(field.name, with_fields(field.dataType, changed), field.nullable, field.metadata) for field in kind)
        return T.StructType(list(map(changed, own)))
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(with_fields(kind.elementType, changed), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(with_fields(kind.keyType, changed), with_fields(kind.valueType, changed), kind.valueContainsNull)
    return kind


def _plain(kind: T.DataType) -> Any:
    """``kind`` without the metadata of fields within it, such as comments and physical names."""
    return with_fields(kind, lambda field: T.StructField(field.name, field.dataType, field.nullable))


def _why_not_wider(pipeline: Pipeline, old: Columns, new: Columns, name: str, *, may_grow: bool) -> str | None:
    """What follows the types in the message that refuses the column ``name``, all that differs in ``new``; null if it can be widened.

    ``may_grow`` is whether a struct may have more fields, as nothing but its fields is used.
    """
    kinds = [columns.arrow[name] for columns in (old, new)]
    # Files of a folder are read as doubles where some hold whole numbers; no Delta table turns these into doubles.
    if not _widens(*kinds, may_grow=may_grow) and not (pa.types.is_int64(kinds[0]) and pa.types.is_float64(kinds[1])):
        return ""
    types = [columns.seen_by(pipeline).arrow for columns in (old, new)]
    results = [Expressions.of(pipeline, each).schema for each in types]
    for before, after in zip(*results, strict=True):
        if not widens(before.type, after.type):
            return f", by which {before.name} of the results would turn from {in_sql(before.type)} into {in_sql(after.type)}"
    narrow, wide = (divide(pipeline, each).layout for each in types)
    # Policies and partials that are objects hold values themselves: 1 and 1.0, or 1.5 and 1.50, would be two.
    holding = {use.column for window in pipeline.windows for use in window.columns().values()}
    holding |= {column for held in (narrow.objects if narrow is not None else ()) for column in held.spec.columns}
    if WiderPartials.between(narrow, wide) is None or any(_form(types[0][each]) != _form(types[1][each]) for each in holding):
        return ", and the state holds partials of its values in the type that they had"
    return None


def _widens(old: pa.DataType, new: pa.DataType, *, may_grow: bool) -> bool:
    """Whether ``new`` holds all values of ``old``; with ``may_grow`` a struct may have more fields, and wider ones."""
    if not (may_grow and pa.types.is_struct(old) and pa.types.is_struct(new)):
        return old == new or widens(old, new)
    places = [new.get_field_index(field.name) for field in old]
    return all(at >= 0 and _widens(field.type, new.field(at).type, may_grow=True) for field, at in zip(old, places, strict=True))


def _form(kind: pa.DataType) -> tuple[bool, int | None]:
    """What values of a type have in common with those of another one in which they are the same in Python."""
    return pa.types.is_integer(kind), kind.scale if pa.types.is_decimal(kind) else None


def in_sql(kind: pa.DataType) -> str:
    """The name of a type in Spark's SQL, as ``BIGINT``."""
    return str(from_arrow_type(kind).simpleString()).upper()
