"""Reads a source's rows in Spark, with their file, their place in it, and their position in order of arrival; evaluates conditions there.

Tasks give them event times, and a reason if they are unusable, by :class:`.EventTimes`. Where tasks receive the rows anyway, they do so on
what they receive. Elsewhere the columns are those of a user function, which Spark evaluates only where they are used.

A condition that fails on a row fails only that row, not the job: Spark itself evaluates what cannot fail and asks for no zone; tasks of
Python evaluate what else there is a rule for. A condition that only Spark evaluates goes to it as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby
from operator import or_
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.checkpoints.stores import Options, options_of, use_options
from windowmill.jobs.conditions.truths import columns_of, every_condition, may_fail, outside_problem, read_by, value_of, whole
from windowmill.jobs.sources.base import AddedFile, PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import DECLARED, Columns, physical_name, with_fields
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.plain_rows import batches_of, keeps_unread, places
from windowmill.jobs.sources.unusable_rows import EventTimes
from windowmill.jobs.spark.access import UNESCAPED, access_to, frame_of, map_in_arrow
from windowmill.jobs.spark.spark_settings import ABSOLUTE, full_path, literal_path, reader_options, spark_path
from windowmill.windowing.columnar.added_columns import FAILED, FILE, REASON, ROW, TIME, UNREAD, UNTIL_OF, URI, VERSION
from windowmill.windowing.errors import SourceSchemaError
from windowmill.windowing.fields import ExpressionStep, LookupStep
from windowmill.windowing.registry import resolve

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from windowmill.jobs.sources.delta_log import DeltaSource
    from windowmill.jobs.sources.folder import FolderSource
    from windowmill.jobs.sources.row_steps import RowSteps
    from windowmill.windowing.spec import Pipeline

_HOLDS, _FAILS = 1, 2
#: Columns that exist only while steps are evaluated: what a step computes, until it has its name; and whether filters leave the row.
_COMPUTED, _KEPT = "_ computed", "_ kept"
#: Parts of the names of types and functions whose result may depend on the session's zone.
_ABOUT_TIME = re.compile("csv|date|day|hour|interval|json|minute|month|quarter|second|time|unix|variant|week|xml|year|zone")
#: A file, its index among those that are read, and its version.
_Numbered = tuple[PlainFile, int, int]
#: Up to this many files, index, version and partition values of each file are constants in the query; for more files they are joined.
_FEW_FILES = 16
#: Columns that rows get in addition to those of the source.
_PLACE = ((FILE, pa.int32()), (ROW, pa.int64()), (VERSION, pa.int64()))


def rows_of(spark: SparkSession, table: DeltaSource | FolderSource, reading: Reading) -> DataFrame:
    """Implements :meth:`.SourceTable.rows` for a Delta table."""
    struct = Columns.of(table.schema_json).struct
    if not reading.files:
        empty = pa.schema([*Columns.of(table.schema_json).arrow.items(), *_PLACE]).empty_table()
        return frame_of(spark, empty)
    by_delta = reading.snapshot_files if reading.as_of is not None else 0
    parts = []
    if by_delta:
        parts.append(_by_delta(spark, table, reading, struct))
    if by_delta < len(reading.files):
        parts.append(_by_files(spark, table, reading.files[by_delta:], struct, first=by_delta))
    return reduce(DataFrame.unionByName, parts)


def _by_files(
    spark: SparkSession, table: DeltaSource | FolderSource, files: Sequence[AddedFile], struct: StructType, *, first: int
) -> DataFrame:
    """The rows of Parquet files without deletion vectors; ``first`` is the index of the first file."""
    stored, partitions = _stored(struct), set(files[0].partition)
    data = StructType([field for field in stored if field.name not in partitions])
    rows = spark.read.options(**reader_options(table.path)).schema(data).parquet(*(literal_path(table.path, file.path) for file in files))
    rows = _with_file_columns(rows, table.path, files, first)
    fixed = Columns(struct).fixed_lengths
    chosen: list[Column | str] = []
    for old, new in zip(stored, struct, strict=True):
        if old.name in partitions:
            chosen.append(_of_partition(old.name, new, fixed.get(new.name)))
        else:
            chosen.append(backquoted(old.name) if old == new else _renamed(old, new))
    return rows.select(*chosen, FILE, ROW, VERSION)


def _renamed(old: StructField, new: StructField) -> Column:
    """The column ``old`` as ``new``. A cast would take from it that its texts have a fixed length, by which Spark compares them."""
    column = F.col(backquoted(old.name))
    return (column if old.dataType == new.dataType else column.cast(new.dataType)).alias(new.name)


def _of_partition(name: str, field: StructField, fixed: int | None) -> Column:
    """A partition value, which the log gives as a text; as a column of files, a text is padded to the length ``fixed``."""
    raw = backquoted(name)
    if fixed is None:
        return F.col(raw).cast(field.dataType).alias(field.name)
    return F.expr(f"rpad({raw}, greatest({fixed}, length({raw})), ' ')").alias(field.name, metadata=_declaration(field))


def _by_delta(spark: SparkSession, table: DeltaSource | FolderSource, reading: Reading, struct: StructType) -> DataFrame:
    """The rows of the snapshot, read by Delta's own reader, which applies deletion vectors."""
    version = reading.as_of
    reader = spark.read.format("delta").options(**reader_options(table.path)).option("versionAsOf", str(version))
    frame = reader.load(spark_path(table.path))
    # A column may have been renamed since; with column mapping its physical name identifies it.
    names_then = {field: name for name, field in table.stored_names(version).items()}
    names = [names_then.get(field) for field in table.stored_names().values()]
    rows = _with_file_columns(frame, table.path, [replace(file, partition={}) for file in reading.files[: reading.snapshot_files]], 0)
    chosen = [
        F.lit(None).cast(field.dataType).alias(field.name) if name is None else _renamed(frame.schema[name], field)
        for name, field in zip(names, struct, strict=True)
    ]
    return rows.select(*chosen, FILE, ROW, VERSION)


def _with_file_columns(rows: DataFrame, root: str, files: Sequence[AddedFile], first: int) -> DataFrame:
    """Add each row's index in its file and the columns of the file; a row of a file that is not in ``files`` is an error."""
    uris = _uris(rows.sparkSession, root, files)
    rows = rows.selectExpr("*", f"_metadata.file_path AS {URI}", f"_metadata.row_index AS {ROW}")
    by_file = _file_columns(uris, files, first)
    if by_file.num_rows <= _FEW_FILES:
        rows = rows.selectExpr("*", f"{_lookup_sql(by_file)} AS _of_file").select("*", "_of_file.*")
    else:
        rows = rows.join(F.broadcast(frame_of(rows.sparkSession, by_file)), URI, "left")
    stray = f"raise_error(concat('windowmill: a row of a file that the plan does not name: ', {URI}))"
    return rows.withColumn(FILE, F.expr(f"coalesce({FILE}, CAST({stray} AS INT))"))


def _uris(spark: SparkSession, root: str, files: Sequence[AddedFile]) -> list[str]:
    """Each file's URI as in Spark's ``_metadata.file_path``."""
    access = access_to(spark)
    base = access.uri(spark_path(root)).rstrip("/")
    # To ask a JVM takes a millisecond per file, and is needed only for absolute and for non-ASCII paths.
    simple = [file.path.isascii() and not ABSOLUTE.match(file.path) for file in files]
    return [
        f"{base}/{quote(file.path, safe=UNESCAPED)}" if plain else access.uri(full_path(root, file.path))
        for plain, file in zip(simple, files, strict=True)
    ]


def _file_columns(uris: Sequence[str], files: Sequence[AddedFile], first: int) -> pa.Table:
    """One row per file: its URI, its index in the order of arrival, its version and its partition values."""
    # An Arrow table becomes a local relation in Spark; a Python list would become an RDD, with its own job and Python workers.
    own = {URI: pa.array(uris, pa.string()), VERSION: pa.array([file.version for file in files], pa.int64())}
    own |= {FILE: pa.array(range(first, first + len(files)), pa.int32())}
    return pa.table(own | {name: pa.array([file.partition[name] for file in files], pa.string()) for name in files[0].partition})


def _lookup_sql(by_file: pa.Table) -> str:
    """SQL of the row of ``by_file`` for a row's file, as a struct. The SQL looks it up in a constant; a join would need another job."""

    def constant(name: str, value: str | int | None) -> str:
        kind = {FILE: "INT", VERSION: "BIGINT"}.get(name, "STRING")
        return f"CAST({'NULL' if value is None else spark_text(str(value))} AS {kind})"

    pairs = [
        f"{spark_text(row.pop(URI))}, struct({', '.join(f'{constant(name, value)} AS {backquoted(name)}' for name, value in row.items())})"
        for row in by_file.to_pylist()
    ]
    return f"map({', '.join(pairs)})[{URI}]"


def _stored(struct: StructType) -> StructType:
    """The schema with the column names of the Parquet files, which differ under column mapping; Spark pads texts of fixed length."""
    own = with_fields(struct, lambda field: StructField(physical_name(field), field.dataType, field.nullable, _declaration(field)))
    return StructType(own.fields)


def _declaration(field: StructField) -> dict[str, str]:
    return {name: text for name, text in field.metadata.items() if name == DECLARED}


def rows_by_arrow(spark: SparkSession, table: SourceTable, plain: Sequence[PlainFile], reading: Reading) -> DataFrame:
    """Implements :meth:`.SourceTable.rows`; ``plain`` are the files of ``reading``."""
    form = Form(Columns.of(table.schema_json).arrow)
    unread = {UNREAD: pa.string()} if table.has_unread else {}
    files = [(file, index, reading.files[index].version) for index, file in enumerate(plain)]
    n_tasks = max(1, min(len(files), 4 * access_to(spark).cores()))
    parts = [files[len(files) * at // n_tasks : len(files) * (at + 1) // n_tasks] for at in range(n_tasks)]
    options = {} if (found := options_of(table.path)) is None else {table.path: found}
    schema = pa.schema([*form.types.items(), *unread.items(), *_PLACE])
    return map_in_arrow(spark.range(0, n_tasks, 1, n_tasks), partial(_read, parts, form, [*form.types, *unread], options), schema)


def _read(
    parts: Sequence[Sequence[_Numbered]],
    form: Form,
    columns: Sequence[str],
    options: Mapping[str, Options],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Runs in an executor."""
    use_options(options)
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        for file, index, version in parts[number]:
            first = 0
            for batch in batches_of(file, form, columns):
                own = places(index, version, first, batch.num_rows)
                yield pa.record_batch([*batch.columns, *own.values()], names=[*columns, *own])
                first += batch.num_rows


def read_rows(
    spark: SparkSession,
    table: SourceTable,
    reading: Reading,
    runnable: Runnable,
    *,
    now_us: int,
    select: Callable[[DataFrame], DataFrame] | None = None,
) -> DataFrame:
    """The rows of the files in ``reading`` that ``select`` leaves, with the columns of ``ADDED``; interval events also with their end.

    ``_reason`` is null for a usable row, else a key of :data:`windowmill.jobs.sources.unusable_rows.REASONS`.
    """
    columns, has_unread = Columns.of(table.schema_json), table.has_unread or table.reader is not None
    if columns.taken is not None:
        raise SourceSchemaError(f"source {table.path}: the column name {columns.taken!r} is taken by windowmill; rename it in the source")
    rows = table.rows(spark, reading)
    if table.reader is not None:
        rows, columns = evaluate_steps(rows, table.reader, columns), columns.seen_by(table.reader)
    wanted, pipeline = runnable.pipeline.own_filter, runnable.pipeline
    if wanted:
        chosen, failed = judged(wanted, columns.in_conditions)
        # Rows on which the filter fails, or that could not be read, are kept for quarantine.
        kept = [failed] if failed is not None else []
        kept += [F.col(backquoted(UNREAD)).isNotNull()] if has_unread and keeps_unread(wanted) else []
        rows = rows.where(reduce(or_, kept, F.coalesce(chosen, F.lit(False))) if kept else chosen)
    times = EventTimes(pipeline, pipeline.time.latest(now_us), has_unread)
    if select is None:
        return with_event_times(rows, times, columns)
    # Spark would move filters on event times, and with them the function of Python that gives these, below joins by which `select`
    # leaves few rows, and apply it to all.
    return with_event_times(select(rows), times, columns, in_place=True)


def evaluate_steps(rows: DataFrame, pipeline: Pipeline, columns: Columns) -> DataFrame:
    """The rows that filters of the steps of ``pipeline`` leave, with the columns that steps make, and ``UNREAD``.

    ``columns`` are those of the source; other columns of ``rows`` stay as they are. Without steps it returns ``rows``. Raises as
    :meth:`.RowSteps.of`.
    """
    steps = columns.steps(pipeline)
    if steps is None:
        return rows
    if UNREAD not in rows.columns:
        rows = rows.withColumn(UNREAD, F.lit(None).cast("string"))
    for is_outside, group in groupby(steps.steps, key=lambda step: step.field in steps.outside):
        own = list(group)
        if not is_outside:
            rows = _evaluate_in_python(rows, replace(steps, steps=own))
        for step in own if is_outside else ():
            rows = resolve(BY_SPARK[type(step)])(rows, step)
    return rows


def _evaluate_expression(rows: DataFrame, step: ExpressionStep) -> DataFrame:
    """``rows``, which have ``UNREAD``, with the column that ``step`` makes, or those that it lets through."""
    # Not evaluated on rows that could not be read, or that an earlier step has taken out: a failure would end the job.
    value = F.when(F.col(UNREAD).isNull(), F.expr(step.text))
    if step.column is None:  # rows that could not be read, or on which an earlier step fails, are kept for quarantine
        return rows.where(F.coalesce(value, F.lit(False)) | F.col(UNREAD).isNotNull())
    same = [name for name in rows.columns if name.lower() == step.column.lower()]
    return rows.withColumn(_COMPUTED, value).drop(*same).withColumnRenamed(_COMPUTED, step.column)


#: How Spark evaluates each kind of step on rows that have ``UNREAD``; a text names a function that is imported when a spec has such a step.
BY_SPARK: Mapping[type, Callable[[DataFrame, Any], DataFrame] | str] = {
    ExpressionStep: _evaluate_expression,
    LookupStep: "windowmill.jobs.sources.lookups:joined",
}


def _evaluate_in_python(rows: DataFrame, steps: RowSteps) -> DataFrame:
    """As :func:`evaluate_steps`, by one function of Python, which gets only the columns that ``steps`` read."""
    read = [*steps.columns_read((), [name for name in rows.columns if name != UNREAD]), UNREAD]
    # Of these alone: Arrow may have no type for others.
    types = {each.name: each.type for each in to_arrow_schema(StructType([rows.schema[name] for name in read]), timezone="UTC")}
    # `steps` are some of the pipeline's: `steps.made` has the types behind the last one of all.
    columns, _, _ = steps.computed(pa.table({name: pa.array([], types[name]) for name in read}))
    made = list(dict.fromkeys(name for step in steps.steps for name in step.makes if name in columns))
    kinds = {name: columns[name].type for name in made} | {UNREAD: pa.string(), _KEPT: pa.bool_()}
    fields = [StructField(f"_{n}", from_arrow_type(kind, prefer_timestamp_ntz=True)) for n, kind in enumerate(kinds.values())]

    def found(*given: pa.Array) -> pa.Array:
        columns, unread, kept = steps.computed(pa.table(list(given), names=read))
        own = [*(whole(columns[name]) for name in made), unread, pa.array(kept)]
        return pa.StructArray.from_arrays(own, names=[field.name for field in fields])

    # Spark evaluates it once for each row, and moves no filter below it. PySpark advises against the function type, which its stubs want.
    computed = arrow_udf(found, StructType(fields)).asNondeterministic()  # type: ignore[call-overload]
    rows = rows.withColumn(_COMPUTED, computed(*(F.col(backquoted(name)) for name in read)))
    gone = {name.lower() for name in kinds}
    others = [backquoted(name) for name in rows.columns if name.lower() not in gone and name != _COMPUTED]
    own = [F.col(f"{backquoted(_COMPUTED)}._{n}").alias(name) for n, name in enumerate(kinds)]
    rows = rows.select(*others, *own)
    return rows.where(F.col(backquoted(_KEPT))).drop(_KEPT)


def with_event_times(rows: DataFrame, times: EventTimes, columns: Columns, *, in_place: bool = False) -> DataFrame:
    """Add what :meth:`.EventTimes.of` reads and gives; ``columns`` are those of the source behind its steps.

    With ``in_place`` Spark evaluates it on these ``rows``, and moves no filter on it to where there are more.
    """
    failed = any_failure(times.pipeline, columns.in_conditions)
    rows = rows.withColumn(FAILED, F.lit(False) if failed is None else failed)

    def found(*given: pa.Array) -> pa.Array:
        own = times.of(pa.table(list(given), names=times.columns))
        return pa.StructArray.from_arrays([own.column(name).combine_chunks() for name in names], names=names)

    names = [TIME, REASON, *([UNTIL_OF] if times.pipeline.time.end is not None else [])]
    kinds = {REASON: "string"}
    # PySpark advises against the function type, which its stubs want.
    times_of = arrow_udf(found, ", ".join(f"{name} {kinds.get(name, 'bigint')}" for name in names))  # type: ignore[call-overload]
    times_of = times_of.asNondeterministic() if in_place else times_of
    own = times_of(*(F.col(backquoted(name)) for name in times.columns))
    return rows.withColumns({name: own[name] for name in names})


def judged(condition: str, types: Mapping[str, pa.DataType]) -> tuple[Column, Column | None]:
    """Whether ``condition`` holds over columns of ``types``, and whether it cannot be evaluated on a row, evaluated once.

    The first is null or false where evaluation fails; the second is null if it never fails, or if only Spark evaluates the condition.
    """
    if outside_problem(condition, types) is not None or not (may_fail(condition, types) or _is_about_time(condition, types)):
        return F.expr(condition), None
    found = _by_arrow(condition, types)
    return found == _HOLDS, found == _FAILS if may_fail(condition, types) else None


def truth(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """The former of :func:`judged`."""
    return judged(condition, types)[0]


def failing(conditions: Sequence[str], types: Mapping[str, pa.DataType]) -> Mapping[str, Column]:
    """For each condition that can fail, whether it fails on a row."""
    failures = {condition: judged(condition, types)[1] for condition in conditions}
    return {condition: column for condition, column in failures.items() if column is not None}


def any_failure(pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> Column | None:
    """Whether a condition of the spec, including the filter, cannot be evaluated on a row; ``None`` if none can fail."""
    failures = failing(every_condition(pipeline), types)
    return reduce(lambda one, other: one | other, failures.values()) if failures else None


def _by_arrow(condition: str, types: Mapping[str, pa.DataType]) -> Column:
    """``_HOLDS`` or ``_FAILS`` where ``condition`` does, evaluated by a task of Python."""
    names = read_by([condition], types)

    def found(*given: pa.Array) -> pa.Array:
        n = len(given[0])
        value = value_of(condition, dict(zip(names, given, strict=False)), n)
        holds = pc.fill_null(value.array, False).cast(pa.int8())
        return holds if value.failed is None else pc.if_else(pa.array(value.failed), pa.scalar(_FAILS, pa.int8()), holds)

    # PySpark advises against the function type, which its stubs want. A function of no column would not know the number of rows.
    function = arrow_udf(found, "tinyint")  # type: ignore[call-overload]
    column: Column = function(*(F.col(backquoted(name)) for name in names) if names else (F.lit(0),))
    return column


def asks_zone(pipeline: Pipeline, columns: Columns) -> str | None:
    """A condition or step over ``columns``, without the source's filter, that Spark evaluates and that may depend on the session's zone."""
    steps, types = columns.steps(pipeline), columns.seen_by(pipeline).in_conditions
    known = {**columns.in_conditions, **types}
    texts = [] if steps is None else [step.text for step in steps.steps if isinstance(step, ExpressionStep) and step.field in steps.outside]
    texts += [condition for condition in pipeline.conditions() if outside_problem(condition, types) is not None]
    return next((text for text in texts if _is_about_time(text, known)), None)


def _is_about_time(condition: str, types: Mapping[str, pa.DataType]) -> bool:
    from windowmill.jobs.conditions.checks import OF_ONE_ROW  # loads the parser

    words = set(re.findall(r"\w+", condition.lower())) - ({name.lower() for name in columns_of(condition)} - OF_ONE_ROW)
    return any("timestamp" in str(types[name]) for name in read_by([condition], types)) or any(map(_ABOUT_TIME.search, words))
