"""Windows on a grid, and sessions, recomputed by plain Spark SQL: the rows between the bounds, grouped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.column_names import FILE, ROW
from windowmill.jobs.sources.base import SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.spark.object_storage import spark_path
from windowmill.jobs.verify.compare import RecomputedValue
from windowmill.jobs.verify.forms import SqlForm, form_of
from windowmill.jobs.verify.published import PublishedRow
from windowmill.jobs.verify.source_rows import CLOSED, with_conditions, without_quarantined
from windowmill.windowing.axis import from_us, to_us
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.windowing.spec import Pipeline

_ID, _BEGIN, _END, _KEY = "_id", "_begin", "_end", "_key"
_FIRST, _LAST = "_first", "_last"


@dataclass(frozen=True)
class Plain:
    """What plain queries over a source are made of.

    Attributes
    ----------
    columns
        The columns by which results are computed.
    quarantined
        Texts of the rows that were not applied; null if there are none.
    """

    spark: SparkSession
    pipeline: Pipeline
    source: SourceTable
    rows: DataFrame
    columns: Sequence[str]
    quarantined: DataFrame | None

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        return Columns.of(self.source.schema_json).arrow

    def forms(self, conditions: Mapping[str, str]) -> dict[str, SqlForm]:
        """The aggregates that have a form in SQL; ``conditions`` gives the SQL of each condition of the spec."""
        found = {
            name: form_of(spec, self.pipeline, self.types, None if spec.where is None else conditions[spec.where])
            for name, spec in self.pipeline.aggregates.items()
        }
        return {name: form for name, form in found.items() if form is not None}

    def on_grids(self, sampled: Sequence[PublishedRow], keys: pa.Table) -> list[dict[str, RecomputedValue] | None]:
        """The values of windows with these bounds; ``keys`` are those of the rows ``sampled``."""
        windows = _frame(self.spark, sampled, keys)
        within = (F.col(TIME) < F.col(_END)) & (F.greatest(F.col(UNTIL_OF), F.col(TIME) + 1) > F.col(_BEGIN))
        rows = self.rows.join(F.broadcast(windows), within & _same_key(self.pipeline), "inner")
        rows = without_quarantined(rows, self.quarantined, self.columns, [_ID])
        if CLOSED in rows.columns:
            rows = rows.where(F.col(CLOSED).isNull() | (F.col(CLOSED) < F.col(_END)))
        # A window without rows has a row, too, if its pipeline shows empty ones.
        return self._values(rows, len(sampled))

    def of_keys(self, sampled: Sequence[PublishedRow], keys: pa.Table) -> DataFrame:
        """All rows of the keys of the rows ``sampled``."""
        windows = _frame(self.spark, sampled, keys)
        named = [F.col(f"{_KEY}{n}") for n in range(len(self.pipeline.keys))]
        rows = self.rows.join(F.broadcast(windows.select(*named).distinct()), _same_key(self.pipeline), "left_semi")
        return without_quarantined(rows, self.quarantined, self.columns, [])

    def of_sessions(self, sampled: Sequence[PublishedRow], keys: pa.Table, gap: int) -> list[dict[str, RecomputedValue] | None]:
        """The values of the sessions with a ``gap`` that begin where those ``sampled`` do; null if none does, or it ends elsewhere."""
        windows, rows = _frame(self.spark, sampled, keys), self.of_keys(sampled, keys)
        keyed = Window.partitionBy(*(F.col(backquoted(name)) for name in self.pipeline.keys))
        in_time = keyed.orderBy(TIME)
        begins = F.when(F.col(TIME) - F.lag(TIME).over(in_time) <= gap, 0).otherwise(1)
        rows = rows.withColumn("_new", begins).withColumn(
            "_session", F.sum("_new").over(in_time.rangeBetween(Window.unboundedPreceding, 0))
        )
        session = Window.partitionBy(*(F.col(backquoted(name)) for name in self.pipeline.keys), "_session")
        rows = rows.withColumn(_FIRST, F.min(TIME).over(session)).withColumn(_LAST, F.max(TIME).over(session))
        found = (F.col(_FIRST) == F.col(_BEGIN)) & (F.col(_LAST) + gap == F.col(_END))
        rows = rows.join(F.broadcast(windows), found & _same_key(self.pipeline), "inner")
        return self._values(rows, len(sampled), every=False)

    def _values(self, rows: DataFrame, number: int, *, every: bool = True) -> list[dict[str, RecomputedValue] | None]:
        rows, conditions = with_conditions(rows, self.pipeline, self.types)
        forms = self.forms(conditions)
        asked = {f"v{n}": form.sql for n, form in enumerate(forms.values())}
        asked |= {f"s{n}": form.scale for n, form in enumerate(forms.values()) if form.scale is not None}
        # The bounds are the same in all rows of a window, and aggregates may name them.
        grouped = rows.groupBy(_ID, _BEGIN, _END).agg(
            F.lit(True).alias("_found"), *(F.expr(sql).alias(name) for name, sql in asked.items())
        )
        found = grouped.drop(_BEGIN, _END).toArrow().to_pylist()
        if every and len(found) < number:
            empty = (
                rows.where(F.lit(False)).agg(*(F.expr(_unbound(sql)).alias(name) for name, sql in asked.items())).toArrow().to_pylist()[0]
            )
            held = {row[_ID] for row in found}
            found += [empty | {_ID: n} for n in range(number) if n not in held]
        by_id = {row[_ID]: row for row in found}
        names = list(forms)
        return [None if n not in by_id else _expected(by_id[n], names, forms) for n in range(number)]

    def query(self, row: PublishedRow, gap: int | None, *, without: Sequence[str] = ()) -> str:
        """A query that recomputes ``row`` by itself; of a session with a ``gap``, and without files whose rows came too late for it."""
        pipeline, end = self.pipeline, row.end if gap is None else row.end - gap + 1
        bounds = f"{_instant(row.start, pipeline)}, {_instant(row.end, pipeline)}"
        forms = self.forms({condition: condition for condition in pipeline.conditions()})
        values = ",\n  ".join(f"{form.sql} AS {backquoted(name)}" for name, form in forms.items())
        values = values.replace(_BEGIN, str(row.start)).replace(_END, str(row.end))
        lasts = pipeline.time.end is not None
        named = {
            TIME: _axis(pipeline.time.column, self.types),
            UNTIL_OF: _axis(pipeline.time.end or pipeline.time.column, self.types),
            FILE: "_metadata.file_path",
            ROW: "monotonically_increasing_id()",
        }
        read = {TIME} | ({UNTIL_OF} if lasts else set()) | ({FILE} if without else set())
        added = ", ".join(f"{sql} AS {name}" for name, sql in named.items() if name in read or name in values)
        table = f"delta.{backquoted(spark_path(self.source.path))}"
        tests = [f"{backquoted(name)} <=> {_literal(value)}" for name, value in zip(pipeline.keys, row.key, strict=True)]
        tests += [f"{TIME} < {end}", f"greatest({UNTIL_OF}, {TIME} + 1) > {row.start}" if lasts else f"{TIME} >= {row.start}"]
        tests += [f"({pipeline.source.filter})"] if pipeline.source and pipeline.source.filter else []
        tests += [f"NOT endswith({FILE}, {spark_text(path)})" for path in without]
        said = f"-- {row.window} [{bounds})\n"
        return f"{said}SELECT\n  {values}\nFROM (SELECT *, {added} FROM {table})\nWHERE {' AND '.join(tests)}"


def _frame(spark: SparkSession, sampled: Sequence[PublishedRow], keys: pa.Table) -> DataFrame:
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        _ID: pa.array(range(len(sampled)), pa.int64()),
        _BEGIN: pa.array([row.start for row in sampled], pa.int64()),
        _END: pa.array([row.end for row in sampled], pa.int64()),
    }
    columns |= {f"{_KEY}{n}": keys.column(name) for n, name in enumerate(keys.column_names)}
    return spark.createDataFrame(without_empty_chunks(pa.table(columns)))


def _same_key(pipeline: Pipeline) -> Any:
    same = F.lit(True)
    for n, name in enumerate(pipeline.keys):
        same &= F.col(backquoted(name)).eqNullSafe(F.col(f"{_KEY}{n}"))
    return same


def _expected(row: Mapping[str, Any], names: Sequence[str], forms: Mapping[str, SqlForm]) -> dict[str, RecomputedValue]:
    return {name: RecomputedValue(row[f"v{n}"], row.get(f"s{n}"), forms[name].bound) for n, name in enumerate(names)}


def _unbound(sql: str) -> str:
    """``sql`` over no rows, of which no window has bounds."""
    return sql.replace(_BEGIN, "0L").replace(_END, "0L")


def _axis(name: str, types: Mapping[str, pa.DataType]) -> str:
    """A time column as an integer along the axis, in SQL."""
    column, kind = backquoted(name), types[name]
    return f"CAST({column} AS BIGINT)" if pa.types.is_integer(kind) else f"unix_micros(CAST({column} AS TIMESTAMP))"


def _instant(point: int | None, pipeline: Pipeline) -> str:
    return str(point) if point is None or pipeline.time.unit is not None else from_us(point).isoformat().replace("+00:00", "Z")


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"timestamp_micros({to_us(value)})"
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"double('{value}')"
    return str(value) if isinstance(value, int) else spark_text(str(value))
