"""Queries Delta tables for the report through DataFusion; no JVM. The size of answers does not depend on the table's.

For a window they are figures of each key, and lines thinned to a number of points: the extreme rows of each stretch of time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.quoting import quoted, sql_text
from windowmill.checkpoints.stores import table_at
from windowmill.windowing.errors import WindowmillError, first_line
from windowmill.windowing.redaction import printable
from windowmill.windowing.spec import Pipeline

#: Greatest number of batches in a chart; the tables hold older ones.
BATCHES_SHOWN = 60
_REASONS_SHOWN = 20
_TEXT_SHOWN = 400


class ReportError(WindowmillError):
    """A table of the report exists but cannot be read."""


def open_table(path: str) -> DeltaTable | None:
    """The Delta table at ``path``; None if there is none yet."""
    try:
        return table_at(path)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as err:
        raise _unreadable(path, err) from err


def query(table: DeltaTable, sql: str) -> pa.Table:
    """Run ``sql``, in which the table is called ``t``."""
    try:
        # `pa.table` would load pandas to see whether it is a frame.
        return pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(sql)).read_all()
    except Exception as err:  # deltalake raises a bare one where a data file is gone
        raise _unreadable(table.table_uri, err) from err


def rows_of(table: DeltaTable) -> int:
    return int(query(table, "SELECT count(*) AS n FROM t").column("n")[0].as_py())


def _unreadable(path: str, err: Exception) -> ReportError:
    return ReportError(
        f"table {path}: cannot be read for the report ({first_line(err)}); nothing has been written, mend the table and run it again"
    )


def literal(text: str | None) -> str:
    return "NULL" if text is None else sql_text(text)


def clipped(text: object, limit: int = _TEXT_SHOWN) -> str:
    """``text`` cut to at most ``limit`` characters, the last of which is then an ellipsis; controls are pictures."""
    words = "" if text is None else printable(str(text))
    return words if len(words) <= limit else words[: limit - 1] + "…"


def named(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason for quarantine: its numbers of rows and batches, and the keys and time of its latest row.

    The page is made to be shared, so it shows no other value of a row; the quarantine table holds them all.
    """

    reason: str
    rows: int
    batches: int
    last_batch: int
    first_event: datetime | int | None
    last_event: datetime | int | None
    detail: str
    example: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Quarantined rows by reason, and their counts by reason and batch for the batches shown."""

    reasons: list[Reason] = field(default_factory=list)
    by_batch: dict[str, dict[int, int]] = field(default_factory=dict)


def read_quarantine(path: str, first_batch: int, identity: Sequence[str]) -> Quarantine:
    """Count the quarantine table's rows; ``by_batch`` starts at ``first_batch``, examples show only the columns ``identity``."""
    table = open_table(path)
    if table is None:
        return Quarantine()
    # There are only a few reasons, but other programs may have written to the table: hence the limit.
    counts = "count(*) AS n, count(DISTINCT batch) AS batches, max(batch) AS last_batch"
    events = "min(event_time) AS first_event, max(event_time) AS last_event"
    latest = 'last_value(detail ORDER BY batch) AS detail, substr(last_value("row" ORDER BY batch), 1, 65536) AS example'
    rows = query(
        table, f"SELECT reason, {counts}, {events}, {latest} FROM t GROUP BY reason ORDER BY n DESC, reason LIMIT {_REASONS_SHOWN}"
    ).to_pylist()
    reasons = [
        Reason(
            clipped(row["reason"], 80), row["n"], row["batches"], row["last_batch"], row["first_event"], row["last_event"],
            clipped(row["detail"]), _named(row["example"], identity),
        )
        for row in rows
    ]  # fmt: skip
    by_batch: dict[str, dict[int, int]] = defaultdict(dict)
    shown = ", ".join(literal(row["reason"]) for row in rows if row["reason"] is not None) or "''"
    for row in query(
        table, f"SELECT reason, batch, count(*) AS n FROM t WHERE batch >= {first_batch} AND reason IN ({shown}) GROUP BY reason, batch"
    ).to_pylist():
        by_batch[clipped(row["reason"], 80)][row["batch"]] = row["n"]
    return Quarantine(reasons, dict(by_batch))


def _named(row: str | None, identity: Sequence[str]) -> str:
    try:
        values = json.loads(row or "{}")
    except ValueError:
        return ""
    return clipped(named({name: values[name] for name in identity if name in values}), 200) if isinstance(values, dict) else ""


Point = tuple[int, float]
#: The values of the key columns, as text; None is null.
Key = tuple[str | None, ...]
#: Points by key, in ascending time.
Lines = dict[Key, list[Point]]
#: Above this number, keys are counted approximately.
KEYS_COUNTED = 100_000
#: Stands for null where the parts of a key are joined by ``chr(31)``.
_NULL = "\x1e"


#: What the columns of a :class:`Figure` are called in the query, in the order of its fields.
_FIGURES = ("last", "low", "low_at", "high", "high_at", "mean", "deviation")


@dataclass(frozen=True, slots=True)
class Figure:
    """Figures of an aggregate for one key: its newest value, extremes with the window ends at which they occur, mean and deviation."""

    last: float | None
    low: float
    low_end: int
    high: float
    high_end: int
    mean: float
    deviation: float

    @property
    def change(self) -> float:
        """Distance of the newest value from the mean, in standard deviations."""
        return 0.0 if self.last is None or not self.deviation else abs(self.last - self.mean) / self.deviation


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """Figures of one key: number of rows, volume, newest window end, and by aggregate its figure; null where it has no values."""

    key: Key
    rows: int
    volume: float
    last_end: int
    figures: list[Figure | None]


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Result rows of one window with some aggregates, the newest revision of each.

    Its SQL names the columns k0… (key as text), e (window end as an integer), g (trigger), v0… (aggregates, finite or null).
    """

    table: DeltaTable
    pipeline: Pipeline
    window: str
    aggregates: Sequence[str]
    #: Position of the aggregate whose sum is a key's volume; null for its number of rows.
    volume: int | None
    #: Conditions on the columns of the table, in SQL.
    conditions: Sequence[str] = ()

    @property
    def _key_names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.pipeline.keys))]

    def _sql(self, start: int | None = None, keys: Sequence[Key] | None = None) -> str:
        texts = [text_of(column) for column in self.pipeline.keys]
        named = [f"{text} AS {name}" for text, name in zip(texts, self._key_names, strict=True)]
        values = [_finite(aggregate, f"v{i}") for i, aggregate in enumerate(self.aggregates)]
        columns = ["arrow_cast(window_end, 'Int64') AS e", '"trigger" AS g', "revision AS r", *named, *values]
        where = [f'"window" = {literal(self.window)}', *self.conditions]
        if start is not None:
            instant = str(start) if self.pipeline.time.integer_axis else f"arrow_cast({start}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
            # Compare the stored type: then statistics exclude the files of earlier times.
            where.append(f"window_end >= {instant}")
        if keys is not None and texts:
            where.append(f"{joined(texts)} IN ({', '.join(literal(_joined(key)) for key in keys)})")
        if all(file.get("max.revision") == 0 for file in files_of(self.table)):
            return f"SELECT {', '.join(columns)} FROM t WHERE {' AND '.join(where)}"
        retracts = any(field.name == "retracted" for field in self.table.schema().fields)
        columns += ["CASE WHEN \"trigger\" IS NULL THEN arrow_cast(window_start, 'Int64') END AS b"]
        columns += ["coalesce(retracted, false) AS d"] if retracts else []
        rows = f"SELECT {', '.join(columns)} FROM t WHERE {' AND '.join(where)}"
        one = ", ".join(["b", "e", "g", *self._key_names])
        names = [f"v{i}" for i in range(len(self.aggregates))] + (["d"] if retracts else [])
        newest = ", ".join(f"last_value({name} ORDER BY r) AS {name}" for name in names)
        latest = f"SELECT {one}, {newest} FROM ({rows}) GROUP BY {one}"
        return f"SELECT * FROM ({latest}) WHERE NOT d" if retracts else latest

    def figures(self, keys_count: int, start: int | None = None) -> list[KeyFigures]:
        """Figures of each key, of window ends from ``start`` on; of more than ``KEYS_COUNTED`` keys, of some with the most rows.

        One scan, or two.
        """
        rows = self._sql(start)
        if keys_count > KEYS_COUNTED:
            # Figures of all take memory per key. Keys with many rows fall into bins with many rows, so only the fullest bins are read.
            rows = f"SELECT *, substr(md5({joined(self._key_names)}), 1, 3) AS bin FROM ({rows})"
            fullest = query(self.table, f"SELECT bin FROM ({rows}) GROUP BY bin ORDER BY count(*) DESC, bin LIMIT 40").column("bin")
            rows = f"SELECT * FROM ({rows}) WHERE bin IN ({', '.join(literal(bin_) for bin_ in fullest.to_pylist())})"
        columns = [*self._key_names, "count(*) AS n", "max(e) AS e", "count(*) AS volume"]
        if self.volume is not None:
            columns[-1] = f"sum(v{self.volume}) AS volume"
        for i in range(len(self.aggregates)):
            others = f"last_value(v{i} ORDER BY e, g) AS last{i}, avg(v{i}) AS mean{i}, stddev_pop(v{i}) AS deviation{i}"
            columns += [_extremes(i), others]
        by = f" GROUP BY {', '.join(self._key_names)}" if self._key_names else " HAVING count(*) > 0"
        order = f" ORDER BY {', '.join(self._key_names)}" if self._key_names else ""
        found = query(self.table, f"SELECT {', '.join(columns)} FROM ({rows}){by}{order}").to_pylist()
        return [
            KeyFigures(
                tuple(row[name] for name in self._key_names),
                row["n"],
                float(row["volume"] or 0),
                row["e"],
                [
                    None if row[f"low{i}"] is None else Figure(*(row[f"{name}{i}"] for name in _FIGURES))
                    for i in range(len(self.aggregates))
                ],
            )
            for row in found
        ]

    def lines(self, start: int, end: int, buckets: int, keys: Sequence[Key]) -> list[Lines]:
        """Points by key from ``start`` to before ``end``, at most two for each of ``buckets`` buckets, for each aggregate. One scan.

        They are the least and the greatest row of each bucket, at their own times: the line through them spans the same area as a line
        through all rows.
        """
        extremes = [_extremes(i) for i in range(len(self.aggregates))]
        bucket = f"floor(CAST(e - ({start}) AS DOUBLE) * {buckets} / {float(end - start)}) AS bucket"
        columns = ", ".join([*self._key_names, bucket, *extremes])
        by = ", ".join([*self._key_names, "bucket"])
        rows = f"SELECT * FROM ({self._sql(start, keys)}) WHERE e < {end}"
        answer = query(self.table, f"SELECT {columns} FROM ({rows}) GROUP BY {by} ORDER BY {by}").to_pydict()
        found = list(zip(*(answer[name] for name in self._key_names), strict=True)) or [()] * len(answer["bucket"])
        by_aggregate: list[Lines] = []
        for i in range(len(self.aggregates)):
            lines: Lines = defaultdict(list)
            lows, highs = (zip(answer[f"{name}_at{i}"], answer[f"{name}{i}"], strict=True) for name in ("low", "high"))
            for key, low, high in zip(found, lows, highs, strict=True):
                if low[1] is not None:
                    lines[key] += sorted({low, high})
            by_aggregate.append(dict(lines))
        return by_aggregate


def _extremes(i: int) -> str:
    """The SQL of the least and the greatest value of an aggregate, and of the first window ends at which they are."""
    return (
        f"min(v{i}) AS low{i}, max(v{i}) AS high{i}, first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}, "
        f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}"
    )


def _finite(aggregate: str, name: str) -> str:
    value = f"CAST({quoted(aggregate)} AS DOUBLE)"
    # Comparisons use a total order in which NaN is greater than any number, so this excludes NaN and both infinities.
    return f"CASE WHEN {value} BETWEEN -1e300 AND 1e300 THEN {value} END AS {name}"


def text_of(column: str) -> str:
    return f"CAST({quoted(column)} AS VARCHAR)"


def joined(texts: Sequence[str]) -> str:
    """The SQL expression for a whole key as one text."""
    return f"concat_ws(chr(31), {', '.join(f'coalesce({text}, chr(30))' for text in texts)})" if texts else "''"


def _joined(key: Key) -> str:
    return "\x1f".join(_NULL if part is None else part for part in key)


def key_text(key: Key) -> str:
    """A key as text of at most 60 characters: ``JFK · null``."""
    return clipped(" · ".join("null" if part is None else part for part in key), 60)
