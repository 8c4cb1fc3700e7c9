"""Reads a source's new rows in Spark, with their place in the order of arrival, their event time, and a reason if they are unusable."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DecimalType, IntegralType, MapType, StructField, StructType

from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.checkpoints.runnable import Runnable
from windowmill.jobs.delta_log import AddedFile, SourceTable, physical_names, schema_at
from windowmill.jobs.instants import instant_sql
from windowmill.jobs.reading import Reading
from windowmill.jobs.spark_conditions import any_failure, failure, truth
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.keyed import live_columns
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.columnar.slices import CLOSED, LATE, TIME
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import slices_of

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

#: Columns added to each row besides the event time: index of its file, index in the file, Delta version, reason for quarantine.
FILE, ROW, VERSION, REASON = "_file", "_row", "_version", "_reason"
_ADDED = (TIME, FILE, ROW, VERSION, REASON)
#: Temporary column: URI of the row's file.
_URI = "_uri"
#: Column names that a source must not have: those above, and those that :mod:`windowmill.jobs.arrival` adds.
_TAKEN = (*_ADDED, _URI, "_told", "_number", "_until", "_watermark", "_refused", "_block", "_before", "_seen", CLOSED, LATE)
#: Up to this many files, the columns of a file are constants in the query; for more they are joined.
_FEW_FILES = 16
#: For each type, the types that can represent all its values.
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
#: Characters that a Java URI does not escape in a path, besides letters and digits.
_KEPT = "/@_-!.~'()*,;:$&+="
_ABSOLUTE = re.compile(r"[a-z0-9]+:/|/")


@dataclass(frozen=True, slots=True)
class Columns:
    """The source's columns, as pinned in the plan."""

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
        """Raise ``SourceSchemaError``, naming the field and all columns, if a column that the spec names does not exist."""
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
    """Check that the columns that the spec uses have not changed since the schema ``before``.

    Columns may be added, and a type may become wider if the columns of state and sink stay the same. Raises ``SourceSchemaError``
    naming the column.
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
        if wider != field.dataType and not (_widens(field.dataType, wider) and _same_form(pipeline, Columns(old), Columns(new))):
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
    """Whether sink and state have the same columns for both; never for live rows, whose log stores the source's types."""
    slices = [slices_of(pipeline, columns.arrow) for columns in (old, new)]
    if slices[0] is None or slices[1] is None:
        return False
    fields = [[(stored.name, stored.type) for stored in part.layout.fields] for part in slices if part is not None]
    return fields[0] == fields[1] and result_schema(pipeline, old.arrow) == result_schema(pipeline, new.arrow)


def read_rows(spark: SparkSession, table: SourceTable, reading: Reading, runnable: Runnable, *, now_us: int) -> DataFrame:
    """The rows of the files in ``reading``, with the columns of ``_ADDED``.

    ``_reason`` is null for a row with a usable event time, else a key of :data:`windowmill.jobs.quarantine.DETAILS`.
    """
    columns = Columns.of(table.schema_json)
    clash = next((name for name in columns.struct.names if name.lower() in _TAKEN), None)
    if clash:
        raise SourceSchemaError(f"source {table.path}: the column name {clash!r} is taken by windowmill; rename it in a view of the source")
    by_delta = reading.settled if reading.by_delta is not None else 0
    parts = []
    if by_delta:
        parts.append(_by_delta(spark, table, reading, columns.struct))
    if by_delta < len(reading.files):
        parts.append(_by_files(spark, table, reading.files[by_delta:], columns.struct, first=by_delta))
    rows = reduce(DataFrame.unionByName, parts)
    wanted, pipeline = runnable.source.filter, runnable.pipeline
    if wanted:
        chosen, failed = truth(wanted, columns.arrow), failure(wanted, columns.arrow)
        # A row on which the filter fails is kept, to be quarantined.
        rows = rows.where(chosen if failed is None else F.coalesce(chosen, F.lit(False)) | failed)
    latest = pipeline.time.latest(now_us)
    time, reason = event_time(pipeline, columns, None if latest is None else _unchanging(latest))
    return rows.withColumns({TIME: time, REASON: reason})


def _unchanging(number: int) -> str:
    """SQL of a constant that does not change the code that Spark generates.

    Spark inlines a literal into the generated code, so another value means another compilation, and the first rows run interpreted: 0.2 s
    for 50,000 rows. An array is passed to the code as an argument, and an index that depends on the row prevents constant folding.
    """
    return f"get(array({number}L), least({FILE}, 0))"


def _by_files(spark: SparkSession, table: SourceTable, files: Sequence[AddedFile], struct: StructType, *, first: int) -> DataFrame:
    """The rows of Parquet files without deletion vectors; ``first`` is the index of the first file."""
    stored, partitions = _stored(struct), set(files[0].partition)
    data = StructType([field for field in stored if field.name not in partitions])
    rows = spark.read.schema(data).parquet(*(_literal_path(table.path, file.path) for file in files))
    rows = _with_places(rows, table.path, files, first)
    # The log gives partition values as texts.
    chosen = [
        backquoted(old.name) if old == new and old.name not in partitions else _renamed(old.name, new)
        for old, new in zip(stored, struct, strict=True)
    ]
    return rows.select(*chosen, FILE, ROW, VERSION)


def _renamed(name: str, field: StructField) -> Column:
    return F.col(backquoted(name)).cast(field.dataType).alias(field.name)


def _by_delta(spark: SparkSession, table: SourceTable, reading: Reading, struct: StructType) -> DataFrame:
    """The rows of the snapshot, read by Delta's own reader, which applies deletion vectors."""
    version = reading.by_delta
    held = spark.read.format("delta").option("versionAsOf", str(version)).load(_root(table.path))
    # A column may have been renamed since; with column mapping its physical name identifies it.
    then = {field: name for name, field in physical_names(schema_at(table, version)).items()}
    names = [then.get(field) for field in physical_names(table.schema_json).values()]
    rows = _with_places(held, table.path, [replace(file, partition={}) for file in reading.files[: reading.settled]], 0)
    chosen = [
        F.lit(None).cast(field.dataType).alias(field.name) if name is None else _renamed(name, field)
        for name, field in zip(names, struct, strict=True)
    ]
    return rows.select(*chosen, FILE, ROW, VERSION)


def _with_places(rows: DataFrame, root: str, files: Sequence[AddedFile], first: int) -> DataFrame:
    """Add each row's index in its file and the columns of the file; a row of a file that is not in ``files`` is an error."""
    uris = _uris(rows.sparkSession, root, files)
    rows = rows.selectExpr("*", f"_metadata.file_path AS {_URI}", f"_metadata.row_index AS {ROW}")
    told = _told(uris, files, first)
    if told.num_rows <= _FEW_FILES:
        rows = rows.selectExpr("*", f"{_looked_up(told)} AS _told").select("*", "_told.*")
    else:
        rows = rows.join(F.broadcast(rows.sparkSession.createDataFrame(told)), _URI, "left")
    stray = f"raise_error(concat('windowmill: a row of a file that the plan does not name: ', {_URI}))"
    return rows.withColumn(FILE, F.expr(f"coalesce({FILE}, CAST({stray} AS INT))"))


def _uris(spark: SparkSession, root: str, files: Sequence[AddedFile]) -> list[str]:
    """Each file's URI as in Spark's ``_metadata.file_path``: Hadoop qualifies paths and escapes some characters."""
    java: Any = spark._jvm  # noqa: SLF001 - only Hadoop itself escapes exactly as Hadoop does
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def uri(path: str) -> str:
        told = java.org.apache.hadoop.fs.Path(path)
        qualified = told.getFileSystem(hadoop).makeQualified(told).toString()
        return str(java.org.apache.hadoop.fs.Path(qualified).toUri().toString())

    base = uri(_root(root)).rstrip("/")
    # A call into Java takes a millisecond per file, and is needed only for absolute and for non-ASCII paths.
    simple = [file.path.isascii() and not _ABSOLUTE.match(file.path) for file in files]
    return [
        f"{base}/{quote(file.path, safe=_KEPT)}" if plain else uri(_full_path(root, file.path))
        for plain, file in zip(simple, files, strict=True)
    ]


def _told(uris: Sequence[str], files: Sequence[AddedFile], first: int) -> pa.Table:
    """One row per file: its URI, its index in the order of arrival, its version and its partition values."""
    # An Arrow table becomes a local relation in Spark; a Python list would become an RDD, with its own job and Python workers.
    own = {_URI: pa.array(uris, pa.string()), VERSION: pa.array([file.version for file in files], pa.int64())}
    own |= {FILE: pa.array(range(first, first + len(files)), pa.int32())}
    return pa.table(own | {name: pa.array([file.partition[name] for file in files], pa.string()) for name in files[0].partition})


def _looked_up(told: pa.Table) -> str:
    """SQL that looks up the row of ``told`` for a row's file, as a struct. It is a constant; a join would need another job."""

    def constant(name: str, value: str | int | None) -> str:
        kind = {FILE: "INT", VERSION: "BIGINT"}.get(name, "STRING")
        return f"CAST({'NULL' if value is None else spark_text(str(value))} AS {kind})"

    pairs = [
        f"{spark_text(row.pop(_URI))}, struct({', '.join(f'{constant(name, value)} AS {backquoted(name)}' for name, value in row.items())})"
        for row in told.to_pylist()
    ]
    return f"map({', '.join(pairs)})[{_URI}]"


def event_time(pipeline: Pipeline, columns: Columns, latest: str | None) -> tuple[Column, Column]:
    """A row's event time on the axis, and the reason if it is unusable: a key of :data:`windowmill.jobs.quarantine.DETAILS`.

    ``latest`` is SQL of the greatest time that is not too far in the future; null if the future is unlimited.
    """
    # Written as SQL: each Column method in Python takes a call or two into the JVM, and dozens of them would cost 0.1 s per run.
    names = [name for name in (pipeline.time.column, pipeline.time.end) if name is not None]
    time, until = _on_axis(names[0], columns), _on_axis(names[-1], columns)
    least, greatest = accepted_times(pipeline)
    within = [f"({at}) BETWEEN {least} AND {greatest}" for at in dict.fromkeys((time, until))]
    reasons = {
        "bad_condition": any_failure(pipeline, columns.arrow),
        "null_time": " OR ".join(f"{backquoted(name)} IS NULL" for name in names),
        "bad_time": " OR ".join(f"({_on_axis(name, columns)}) IS NULL" for name in names),
        "time_out_of_range": f"NOT ({' AND '.join(within)})",
        "end_before_time": f"({until}) < ({time})" if pipeline.time.end is not None else None,
        "future_time": f"({time}) > {latest}" if latest is not None else None,
    }
    cases = " ".join(f"WHEN {holds} THEN '{reason}'" for reason, holds in reasons.items() if holds is not None)
    return F.expr(time), F.expr(f"CASE {cases} END")


def event_end(pipeline: Pipeline, columns: Columns) -> Column:
    """The end of a row's event on the axis; for a point event its time."""
    return F.expr(_on_axis(pipeline.time.end or pipeline.time.column, columns))


def _on_axis(name: str, columns: Columns) -> str:
    """SQL of the value of a time column on the axis."""
    raw, kind = backquoted(name), columns.type_of(name)
    if isinstance(kind, IntegralType):
        return f"CAST({raw} AS BIGINT)"
    return instant_sql(raw) if kind.typeName() == "string" else f"unix_micros(CAST({raw} AS TIMESTAMP))"


def _stored(struct: StructType) -> StructType:
    """The schema with the column names of the Parquet files, which differ under column mapping."""
    return StructType([StructField(_stored_name(field), _stored_type(field.dataType), field.nullable) for field in struct])


def _stored_name(field: StructField) -> str:
    return str(field.metadata.get("delta.columnMapping.physicalName", field.name))


def _stored_type(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return _stored(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(_stored_type(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_stored_type(kind.keyType), _stored_type(kind.valueType), kind.valueContainsNull)
    return kind


def _root(path: str) -> str:
    # The JVM resolves relative paths in the folder where it was started.
    return path if re.match(r"[a-z0-9]+:/", path) else str(Path(path).absolute())


def _full_path(root: str, path: str) -> str:
    return path if _ABSOLUTE.match(path) else f"{_root(root).rstrip('/')}/{path}"


def _literal_path(root: str, path: str) -> str:
    # Spark expands globs in paths, and partition values may contain their characters.
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", _full_path(root, path))
