"""The columns of a source: their types, those that a spec requires, and those that reading adds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegralType, MapType, StructType

from windowmill.jobs.column_names import ADDED, FILE, REASON, ROW, TAKEN, URI, VERSION
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide

__all__ = ["ADDED", "FILE", "REASON", "ROW", "TAKEN", "URI", "VERSION", "Columns", "check_unchanged"]
#: For each type, the types that can represent all its values.
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The source's columns, as the plan pins them."""

    struct: StructType

    @classmethod
    def of(cls, schema_json: str) -> Columns:
        """The columns of a schema written as the JSON of a Spark ``StructType``."""
        return cls(StructType.fromJson(json.loads(schema_json)))

    @property
    def arrow(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column."""
        return {field.name: field.type for field in to_arrow_schema(self.struct, timezone="UTC")}

    @property
    def taken(self) -> str | None:
        """The first column whose name windowmill uses for one of its own; null if there is none."""
        return next((name for name in self.struct.names if name.lower() in TAKEN), None)

    def type_of(self, name: str) -> DataType:
        """Spark type of the column ``name``."""
        return self.struct[name].dataType

    def check(self, pipeline: Pipeline, place: str) -> None:
        """Raise ``SourceSchemaError``, naming the field and all columns, if a column that the spec names does not exist or fit."""
        known = set(self.struct.names)
        wanted = [(f"keys.{i}", name) for i, name in enumerate(pipeline.keys)]
        wanted += [(f"time.tie_break.{i}", name) for i, name in enumerate(pipeline.time.tie_break)]
        axis = [("time.column", pipeline.time.column), *([("time.end", pipeline.time.end)] if pipeline.time.end else [])]
        for index, window in enumerate(pipeline.windows):
            wanted += [(f"windows.{index}.{field}", use.column) for field, use in window.columns().items()]
        wanted += axis
        for where, name in wanted:
            if name not in known:
                raise SourceSchemaError(
                    f"pipeline {pipeline.pipeline}: {where}: {place} has no column {name!r}; its columns are {', '.join(sorted(known))}"
                )
        for index, name in enumerate(pipeline.time.tie_break):
            if isinstance(self.type_of(name), ArrayType | MapType | StructType):
                raise SourceSchemaError(
                    f"pipeline {pipeline.pipeline}: time.tie_break.{index}: {name!r} is {self.type_of(name).simpleString()}; "
                    "expected values that have an order"
                )
        for where, name in axis:
            self._check_axis(pipeline, where, name)

    def _check_axis(self, pipeline: Pipeline, where: str, name: str) -> None:
        kind, place = self.type_of(name), f"pipeline {pipeline.pipeline}: {where}"
        whole = isinstance(kind, IntegralType)
        if whole and pipeline.time.unit is None:
            raise SourceSchemaError(f"{place}: {name!r} is {kind.simpleString()}; say what it counts with time.unit (us, ms, s or none)")
        if pipeline.time.unit is not None and not whole:
            raise SourceSchemaError(f"{place}: time.unit: {name!r} is {kind.simpleString()}, not an integer; leave time.unit out")
        if not whole and kind.typeName() not in ("timestamp", "timestamp_ntz", "date", "string"):
            raise SourceSchemaError(f"{place}: {name!r} is {kind.simpleString()}; expected a timestamp, a date or an integer")


def check_unchanged(before: str, now: str, pipeline: Pipeline, place: str, *, keeps_log: bool) -> None:
    """Check that the columns that the spec uses have not changed since the schema ``before``.

    The source may add columns, and widen a type if the columns of state and sink stay the same. ``keeps_log`` is whether the state is a
    log of live rows, which stores the source's types. Raises ``SourceSchemaError`` naming the column.
    """
    old, new = Columns.of(before).struct, Columns.of(now).struct
    used = {*pipeline.keys, pipeline.time.column, pipeline.time.end, *live_columns(pipeline, old.names)}
    for field in old:
        if field.name not in used:
            continue
        if field.name not in new.names:
            raise SourceSchemaError(
                f"source {place}: column {field.name!r} is gone since the last batch; bring it back, or rebuild in a new sink without it"
            )
        wider = new[field.name].dataType
        if wider == field.dataType:
            continue
        if keeps_log or not (_widens(field.dataType, wider) and _same_form(pipeline, Columns(old), Columns(new))):
            raise SourceSchemaError(
                f"source {place}: column {field.name!r} was {field.dataType.simpleString()} and is now "
                f"{new[field.name].dataType.simpleString()}; "
                "bring the type back, or rebuild in a new sink"
            )


def _widens(old: DataType, new: DataType) -> bool:
    """Whether ``new`` can represent every value of ``old``."""
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return new.typeName() in _WIDER.get(old.typeName(), ())


def _same_form(pipeline: Pipeline, old: Columns, new: Columns) -> bool:
    """Whether sink and state have the same columns for ``old`` and ``new``; false if it stores the source's types with rows."""
    parts = [divide(pipeline, columns.arrow) for columns in (old, new)]
    if any(part.positions is not None or part.rows is not None for part in parts):
        return False
    layouts = [part.layout for part in parts if part.layout is not None]
    forms = [(layout.stored_columns, [held.types for held in layout.objects]) for layout in layouts]
    return forms[0] == forms[1] and result_schema(pipeline, old.arrow) == result_schema(pipeline, new.arrow)
