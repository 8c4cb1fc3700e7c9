"""Windows on a grid, and sessions, recomputed by plain Spark SQL over the rows between their bounds; shares nothing with the engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted, spark_text
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.row_steps import kind_of
from windowmill.jobs.spark.access import frame_of
from windowmill.jobs.spark.spark_settings import spark_path
from windowmill.jobs.verify.source_rows import CLOSED, Arrival, Reaches, RereadRows, condition_names, with_conditions
from windowmill.jobs.verify.sql_forms import SqlForm, form_of, joined
from windowmill.windowing.axis import from_us, to_us
from windowmill.windowing.columnar.added_columns import FILE, ROW, TIME, UNTIL_OF
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True)
class PublishedRow:
    """A row of the sink; instants are integers along the axis."""

    key: tuple[Any, ...]  #: Values of the key columns.
    window: str
    start: int | None
    end: int
    trigger: int | None
    revision: int
    batch: int
    values: Mapping[str, Any]  #: Values of the aggregates, by name.


@dataclass(frozen=True, slots=True)
class RecomputedValue:
    """A recomputed value, with the size of what cancelled out in it, and the bound of a sketch."""

    value: Any
    scale: float | None = None
    bound: float = 0.0


#: No column of a source has such names, except perhaps those of the bounds, which SQL of aggregates has without quotes.
_ID, _BEGIN, _END, _KEY = "_ id", "_begin", "_end", "_ key"
#: Times [from, to) of the rows by which a window is recomputed, and the gap of a session.
_FROM, _TO, _GAP = "_ from", "_ to", "_ gap"
_FIRST, _LAST, _NEW, _SESSION = "_ first", "_ last", "_ new", "_ session"


class Plain(RereadRows):
    """Plain queries over the rows of a source."""

    def forms(self, conditions: Mapping[str, str]) -> dict[str, SqlForm]:
        """The aggregates that have a form in SQL; ``conditions`` gives the SQL of each condition of the spec."""
        found = {
            name: form_of(spec, self.pipeline, self.types, None if spec.where is None else conditions[spec.where])
            for name, spec in self.pipeline.over_rows().aggregates.items()
        }
        return {name: form for name, form in found.items() if form is not None}

    def read_for(self, sampled: Sequence[PublishedRow], gaps: Sequence[int | None]) -> list[int]:
        """Indices of the files of the source that :meth:`recomputed` reads."""
        return self.files.overlapping([_reach(row, gap) for row, gap in zip(sampled, gaps, strict=True)])

    def recomputed(
        self, sampled: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None], arrival: Arrival, found: pa.Table | None
    ) -> list[dict[str, RecomputedValue] | None]:
        """The values of the windows with the bounds of the rows ``sampled``, whose keys are ``keys``.

        ``gaps`` are those of sessions, null for windows on a grid. The value of a session is null if none begins and ends there. ``found``
        are the rows of :meth:`reaches` that this process has read; null if Spark reads them.
        """
        rows, conditions = (
            self._by_spark(sampled, keys, gaps, arrival) if found is None else self._here(sampled, keys, gaps, arrival, found)
        )
        rows = rows.where(F.col(_GAP).isNotNull() | F.col(CLOSED).isNull() | (F.col(CLOSED) < F.col(_END)))
        if any(gap is not None for gap in gaps):
            rows = _of_sessions(rows)
        return self._values(rows, conditions, gaps)

    def reaches(self, sampled: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None]) -> Reaches:
        """The rows by which the windows of ``sampled`` are recomputed."""
        return Reaches.of(keys, [_reach(row, gap) for row, gap in zip(sampled, gaps, strict=True)], self.types)

    def _here(
        self, sampled: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None], arrival: Arrival, found: pa.Table
    ) -> tuple[DataFrame, Mapping[str, str]]:
        """The rows of each window among those ``found``, with its bounds, and the column of each condition."""
        windows, places = self.reaches(sampled, keys, gaps).pairs(found)
        rows = found.take(pa.array(places))
        closed = pa.array(arrival.closed, pa.int64()).take(rows.column(FILE))
        for name, column in (_bounds(sampled, gaps) | {_ID: pa.array(range(len(sampled)), pa.int64())}).items():
            rows = rows.append_column(name, column.take(pa.array(windows)))
        conditions = condition_names(self.pipeline)
        rows = rows.append_column(CLOSED, closed).rename_columns({condition_column(text): name for text, name in conditions.items()})
        return frame_of(self.spark, rows), conditions

    def _by_spark(
        self, sampled: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None], arrival: Arrival
    ) -> tuple[DataFrame, Mapping[str, str]]:
        """As :meth:`_here`, of rows that Spark reads."""
        windows = _frame(self.spark, sampled, keys, gaps)
        read = self.read(self.read_for(sampled, gaps), arrival.closed, lambda rows: rows.join(windows, self._near(), "left_semi"))
        within = (F.col(TIME) < F.col(_TO)) & (F.greatest(F.col(UNTIL_OF), F.col(TIME) + 1) > F.col(_FROM))
        rows = read.join(windows, within & _same_key(self.pipeline), "inner")
        return with_conditions(self.without_quarantined(rows, [_ID]), self.pipeline, self.types)

    def _near(self) -> Column:
        """Whether a row of the source may be of a window: by its key, and by its time if Spark can read it."""
        time, near = self.pipeline.time, _same_key(self.pipeline)
        kinds = [self.types[name] for name in (time.column, time.end or time.column)]
        # Other values Spark takes to the axis otherwise than a pipeline does.
        if not all(pa.types.is_integer(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None) for kind in kinds):
            return near
        begin, until = (F.expr(_axis(name, self.types, time.tick_us)) for name in (time.column, time.end or time.column))
        return near & (begin < F.col(_TO)) & ((begin >= F.col(_FROM)) | (until > F.col(_FROM)))

    def of_keys(self, keys: pa.Table, arrival: Arrival) -> DataFrame:
        # A window of a policy may hold nothing, and begin nowhere: only the keys are asked for.
        own = _keys(keys) if keys.num_columns else {_ID: pa.array([0])}
        found = F.broadcast(frame_of(self.spark, pa.table(own)).distinct())
        every = range(len(self.files.files))
        rows = self.read(every, arrival.closed, lambda rows: rows.join(found, _same_key(self.pipeline), "left_semi"))
        return self.without_quarantined(rows, [])

    def _values(
        self, rows: DataFrame, conditions: Mapping[str, str], gaps: Sequence[int | None]
    ) -> list[dict[str, RecomputedValue] | None]:
        forms = self.forms(conditions)
        asked = {f"v{n}": form.sql for n, form in enumerate(forms.values())}
        asked |= {f"s{n}": form.scale for n, form in enumerate(forms.values()) if form.scale is not None}
        # The bounds are the same in all rows of a window, and aggregates may name them.
        grouped = rows.groupBy(_ID, _BEGIN, _END).agg(
            F.lit(True).alias("_found"), *(F.expr(sql).alias(name) for name, sql in asked.items())
        )
        by_id = {row[_ID]: row for row in grouped.drop(_BEGIN, _END).toArrow().to_pylist()}
        # A window on a grid without rows has a row, too, if its pipeline shows empty ones.
        lacking = [n for n, gap in enumerate(gaps) if gap is None and n not in by_id]
        if lacking:
            # Over no rows, so the bounds do not matter.
            unbound = {name: sql.replace(_BEGIN, "0L").replace(_END, "0L") for name, sql in asked.items()}
            none = rows.where(F.lit(False)).agg(*(F.expr(sql).alias(name) for name, sql in unbound.items()))
            empty = none.toArrow().to_pylist()[0]
            by_id |= dict.fromkeys(lacking, empty)
        names = list(forms)
        return [None if n not in by_id else _expected(by_id[n], names, forms) for n in range(len(gaps))]

    def query(self, row: PublishedRow, gap: int | None, *, without: Sequence[str] = ()) -> str:
        """A query that recomputes ``row`` by itself; of a session with a ``gap``, and without files whose rows came too late for it."""
        pipeline, end = self.pipeline, row.end if gap is None else row.end - gap + 1
        bounds = f"{_instant(row.start, pipeline)}, {_instant(row.end, pipeline)}"
        forms = self.forms({condition: condition for condition in pipeline.conditions()})
        values = ",\n  ".join(f"{form.sql} AS {backquoted(name)}" for name, form in forms.items())
        values = values.replace(_BEGIN, str(row.start)).replace(_END, str(row.end))
        lasts = pipeline.time.end is not None
        named = {
            TIME: _axis(pipeline.time.column, self.types, pipeline.time.tick_us),
            UNTIL_OF: _axis(pipeline.time.end or pipeline.time.column, self.types, pipeline.time.tick_us),
            FILE: "_metadata.file_path",
            ROW: "monotonically_increasing_id()",
        }
        read = {TIME} | ({UNTIL_OF} if lasts else set()) | ({FILE} if without else set())
        added = {name: f"{sql} AS {name}" for name, sql in named.items() if name in read or name in values}
        table = f"delta.{backquoted(spark_path(self.source.path))}"
        if pipeline.steps:
            of_files = [added.pop(name) for name in (FILE, ROW) if name in added]
            table = _steps_sql(pipeline, f"(SELECT {', '.join(['*', *of_files])} FROM {table})", Columns.of(self.source.schema_json))
        tests = [f"{backquoted(name)} <=> {_literal(value)}" for name, value in zip(pipeline.keys, row.key, strict=True)]
        tests += [f"{TIME} < {end}", f"greatest({UNTIL_OF}, {TIME} + 1) > {row.start}" if lasts else f"{TIME} >= {row.start}"]
        tests += [f"({pipeline.own_filter})"] if pipeline.own_filter else []
        tests += [f"NOT endswith({FILE}, {spark_text(path)})" for path in without]
        said = f"-- {row.window} [{bounds})\n"
        return f"{said}SELECT\n  {values}\nFROM (SELECT {', '.join(['*', *added.values()])} FROM {table})\nWHERE {' AND '.join(tests)}"


def _steps_sql(pipeline: Pipeline, table: str, columns: Columns) -> str:
    """A query of the rows of ``table``, which has ``columns``, once they have gone through the steps."""
    known = {name.lower() for name in columns.struct.names}
    for step in pipeline.row_steps:
        table = kind_of(step).sql(step, table, known)
        known |= {name.lower() for name in step.makes}
    return table


def _reach(row: PublishedRow, gap: int | None) -> tuple[int, int]:
    """The times [begin, end) of rows by which ``row`` is recomputed; of a session with a ``gap`` also those that would join it."""
    assert row.start is not None  # only windows with policies may have no start
    return (row.start, row.end) if gap is None else (row.start - gap, row.end + 1)


def _frame(spark: SparkSession, sampled: Sequence[PublishedRow], keys: pa.Table, gaps: Sequence[int | None]) -> DataFrame:
    reaches = [_reach(row, gap) for row, gap in zip(sampled, gaps, strict=True)]
    own: dict[str, pa.Array | pa.ChunkedArray] = {
        _ID: pa.array(range(len(sampled)), pa.int64()),
        _FROM: pa.array([begin for begin, _ in reaches], pa.int64()),
        _TO: pa.array([end for _, end in reaches], pa.int64()),
    }
    return F.broadcast(frame_of(spark, pa.table(own | _bounds(sampled, gaps) | _keys(keys))))


def _bounds(sampled: Sequence[PublishedRow], gaps: Sequence[int | None]) -> dict[str, pa.Array]:
    """The bounds of each window, and the gap of a session."""
    return {
        _BEGIN: pa.array([row.start for row in sampled], pa.int64()),
        _END: pa.array([row.end for row in sampled], pa.int64()),
        _GAP: pa.array(gaps, pa.int64()),
    }


def _keys(keys: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {f"{_KEY}{n}": keys.column(name) for n, name in enumerate(keys.column_names)}


def _of_sessions(rows: DataFrame) -> DataFrame:
    """Those of ``rows`` that are in the session of their window, and those of windows on grids."""
    own = Window.partitionBy(_ID)
    in_time = own.orderBy(TIME)
    begins = F.when(F.col(TIME) - F.lag(TIME).over(in_time) <= F.col(_GAP), 0).otherwise(1)
    rows = rows.withColumn(_NEW, begins).withColumn(_SESSION, F.sum(_NEW).over(in_time.rangeBetween(Window.unboundedPreceding, 0)))
    session = Window.partitionBy(_ID, _SESSION)
    rows = rows.withColumn(_FIRST, F.min(TIME).over(session)).withColumn(_LAST, F.max(TIME).over(session))
    found = (F.col(_FIRST) == F.col(_BEGIN)) & (F.col(_LAST) + F.col(_GAP) == F.col(_END))
    return rows.where(F.col(_GAP).isNull() | found)


def _same_key(pipeline: Pipeline) -> Column:
    same = F.lit(True)
    for n, name in enumerate(pipeline.keys):
        same &= F.col(backquoted(name)).eqNullSafe(F.col(f"{_KEY}{n}"))
    return same


def _expected(row: Mapping[str, Any], names: Sequence[str], forms: Mapping[str, SqlForm]) -> dict[str, RecomputedValue]:
    values = {name: row[f"v{n}"] for n, name in enumerate(names)}
    values |= {name: joined(values[name]) for name, form in forms.items() if form.joined and values[name] is not None}
    return {name: RecomputedValue(values[name], row.get(f"s{n}"), forms[name].bound) for n, name in enumerate(names)}


def _axis(name: str, types: Mapping[str, pa.DataType], tick_us: int) -> str:
    """A time column as an integer along the axis, in SQL; null for a number beyond 64 bits."""
    column, kind = backquoted(name), types[name]
    if not pa.types.is_integer(kind):
        return f"unix_micros(CAST({column} AS TIMESTAMP))"
    whole = f"CAST({column} AS BIGINT)"
    return whole if tick_us == 1 else f"try_multiply({whole}, {tick_us}L)"


def _instant(point: int | None, pipeline: Pipeline) -> str:
    return str(point) if point is None or pipeline.time.integer_axis else from_us(point).isoformat().replace("+00:00", "Z")


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"timestamp_micros({to_us(value)})"
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"double('{value}')"
    return str(value) if isinstance(value, int) else spark_text(str(value))
