"""Reading a source's new rows in Spark: in arrival order, with their event time on the axis and the rows that have none set aside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegralType, StructType

from checkpoints.quoting import backquoted
from jobs.delta_log import AddedFile, SourceTable
from windowing.columnar.keyed import live_columns
from windowing.columnar.slices import CLOSED, LATE, TIME
from windowing.errors import SourceSchemaError
from windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Columns that reading adds beside the event time on the axis: places of its file and in the file; Delta version; why it is set aside.
FILE, ROW, VERSION, REASON = "_file", "_row", "_version", "_reason"
_ADDED = (TIME, FILE, ROW, VERSION, REASON)
#: Names that must not be the source's: those, and what judging by arrival adds.
_TAKEN = (*_ADDED, "_name", "_told", "_number", "_until", "_watermark", "_refused", "_block", "_before", "_seen", CLOSED, LATE)
#: Files up to which what is known of each is a constant of the query.
_FEW_FILES = 16


@dataclass(frozen=True, slots=True)
class Columns:
    """The source's columns as the plan pinned them."""

    struct: StructType

    @classmethod
    def of(cls, schema_json: str) -> Columns:
        return cls(StructType.fromJson(json.loads(schema_json)))

    @property
    def arrow(self) -> Mapping[str, pa.DataType]:
        """Arrow type of each column."""
        return {field.name: field.type for field in to_arrow_schema(self.struct, timezone="UTC")}

    def type_of(self, name: str) -> DataType:
        return self.struct[name].dataType

    def check(self, pipeline: Pipeline, place: str) -> None:
        """Every column that the spec names must exist; raises ``SourceSchemaError`` naming the field and the nearest column."""
        known = set(self.struct.names)
        wanted = [(f"keys.{i}", name) for i, name in enumerate(pipeline.keys)]
        wanted += [(f"time.tie_break.{i}", name) for i, name in enumerate(pipeline.time.tie_break)]
        axis = [("time.column", pipeline.time.column), *([("time.end", pipeline.time.end)] if pipeline.time.end else [])]
        for index, window in enumerate(pipeline.windows):
            policies = {"evict": getattr(window, "evict", None), "trigger": getattr(window, "trigger", None)}
            wanted += [
                (f"windows.{index}.{name}.delta.column", policy.delta.column)
                for name, policy in policies.items()
                if policy and policy.delta
            ]
        wanted += axis
        for where, name in wanted:
            if name not in known:
                raise SourceSchemaError(
                    f"pipeline {pipeline.pipeline}: {where}: {place} has no column {name!r}; its columns are {', '.join(sorted(known))}"
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


def check_unchanged(before: str, now: str, pipeline: Pipeline, place: str) -> None:
    """Columns may be added; those that the spec uses must stay as they were. Raises ``SourceSchemaError`` naming the column."""
    old, new = Columns.of(before).struct, Columns.of(now).struct
    used = {*pipeline.keys, pipeline.time.column, pipeline.time.end, *live_columns(pipeline, old.names)}
    for field in old:
        if field.name not in used:
            continue
        if field.name not in new.names:
            raise SourceSchemaError(
                f"source {place}: column {field.name!r} is gone since the last batch; bring it back, or rebuild in a new sink without it"
            )
        if new[field.name].dataType != field.dataType:
            raise SourceSchemaError(
                f"source {place}: column {field.name!r} was {field.dataType.simpleString()} and is now "
                f"{new[field.name].dataType.simpleString()}; "
                "bring the type back, or rebuild in a new sink"
            )


def read_rows(spark: SparkSession, table: SourceTable, files: Sequence[AddedFile], pipeline: Pipeline, *, now_us: int) -> DataFrame:
    """The rows of ``files``, each with the columns of ``_ADDED``.

    ``_reason`` is null for a row with a usable event time, else ``null_time``, ``bad_time`` or ``future_time``.
    """
    columns = Columns.of(table.schema_json)
    clash = next((name for name in columns.struct.names if name.lower() in _TAKEN), None)
    if clash:
        raise SourceSchemaError(f"source {table.path}: the column name {clash!r} is taken by windowmill; rename it in a view of the source")
    stored, logical = _physical(columns.struct, table)
    data = StructType([stored[name] for name in stored.names if logical[name] not in table.partition_columns])
    rows = spark.read.schema(data).parquet(*(_literal_path(table.path, file.path) for file in files))
    rows = rows.select("*", F.col("_metadata.file_name").alias("_name"), F.col("_metadata.row_index").alias(ROW))
    order = _order(files)
    if order.num_rows <= _FEW_FILES:
        rows = rows.select("*", _looked_up(order)).select("*", "_told.*")
    else:
        rows = rows.join(F.broadcast(spark.createDataFrame(order)), "_name")
    chosen = [F.col(backquoted(name)).cast(stored[name].dataType).alias(logical[name]) for name in stored.names]
    rows = rows.select(*chosen, FILE, ROW, VERSION)
    if pipeline.source and pipeline.source.filter:
        rows = rows.where(F.expr(pipeline.source.filter))
    time, reason = event_time(pipeline, columns, now_us)
    return rows.withColumn(TIME, time).withColumn(REASON, reason)


def _order(files: Sequence[AddedFile]) -> pa.Table:
    """Per file name its place in the order of arrival, its version and its partition values."""
    # As Arrow, since Spark makes a local relation of it: a Python list would become an RDD with a job and Python workers of its own.
    own = {"_name": [file.path.rsplit("/", 1)[-1] for file in files], VERSION: pa.array([file.version for file in files], pa.int64())}
    own |= {FILE: pa.array(range(len(files)), pa.int32())}
    return pa.table(own | {name: pa.array([file.partition[name] for file in files], pa.string()) for name in files[0].partition})


def _looked_up(order: pa.Table) -> Column:
    """What ``order`` tells of the row's file, as a struct: a constant, where a join would be a job more."""
    types = {FILE: "int", VERSION: "long"}
    told = [
        (F.lit(row.pop("_name")), F.struct(*(F.lit(value).cast(types.get(name, "string")).alias(name) for name, value in row.items())))
        for row in order.to_pylist()
    ]
    return F.create_map(*(part for pair in told for part in pair))[F.col("_name")].alias("_told")


def event_time(pipeline: Pipeline, columns: Columns, now_us: int) -> tuple[Column, Column]:
    """A row's event time on the axis, and why it has none that can be used: a key of :data:`jobs.quarantine.DETAILS`."""
    time, until = _on_axis(pipeline.time.column, columns), event_end(pipeline, columns)
    names = [name for name in (pipeline.time.column, pipeline.time.end) if name is not None]
    missing, unreadable = F.lit(False), F.lit(False)
    for name in names:
        missing, unreadable = missing | F.col(backquoted(name)).isNull(), unreadable | _on_axis(name, columns).isNull()
    reason = F.when(missing, F.lit("null_time")).when(unreadable, F.lit("bad_time"))
    if pipeline.time.end is not None:
        reason = reason.when(until < time, F.lit("end_before_time"))
    skew = pipeline.time.max_future_skew
    if skew is not None and pipeline.time.unit != "none":
        units = {"us": 1, "ms": 1_000, "s": 1_000_000, None: 1}[pipeline.time.unit]
        latest = now_us // units + skew.elapsed()
        reason = reason.when(time > F.lit(latest), F.lit("future_time"))
    return time, reason


def event_end(pipeline: Pipeline, columns: Columns) -> Column:
    """Where a row's event ends on the axis; of a point its time."""
    return _on_axis(pipeline.time.end or pipeline.time.column, columns)


def _on_axis(name: str, columns: Columns) -> Column:
    raw, kind = F.col(backquoted(name)), columns.type_of(name)
    if isinstance(kind, IntegralType):
        return raw.cast("long")
    if kind.typeName() == "date":
        return F.unix_micros(raw.cast("timestamp"))
    return F.unix_micros(raw.try_cast("timestamp") if kind.typeName() == "string" else raw.cast("timestamp"))


def _physical(struct: StructType, table: SourceTable) -> tuple[StructType, dict[str, str]]:
    """The schema with the names that the Parquet files use, and the table's name of each (they differ under column mapping)."""
    if table.configuration.get("delta.columnMapping.mode", "none") == "none":
        return struct, {name: name for name in struct.names}
    names = {field.metadata["delta.columnMapping.physicalName"]: field for field in struct}
    stored = StructType()
    for name, field in names.items():
        stored.add(name, field.dataType, field.nullable)
    return stored, {name: field.name for name, field in names.items()}


def _literal_path(root: str, path: str) -> str:
    # Spark expands globs in paths; a partition value may hold their characters.
    full = path if re.match(r"[a-z0-9]+:/|/", path) else f"{root.rstrip('/')}/{path}"
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", full)
