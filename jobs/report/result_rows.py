"""Queries the result rows of one window for the report: figures of each key, and lines thinned to a number of points.

The table is never loaded whole: DataFusion scans it. Of each stretch of time it returns the extremes, which are actual rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import DeltaTable

from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.base import files_of
from windowmill.jobs.report.queries import clipped, literal, query
from windowmill.windowing.spec import Pipeline

Point = tuple[int, float]
#: The values of the key columns, as text; None is null.
Key = tuple[str | None, ...]
#: Points by key, in ascending time.
Lines = dict[Key, list[Point]]
#: Above this number, keys are counted approximately.
KEYS_COUNTED = 100_000
#: Stands for null where the parts of a key are joined by ``chr(31)``.
_NULL = "\x1e"


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

    Attributes
    ----------
    volume
        Position of the aggregate whose sum is a key's volume; null for its number of rows.
    conditions
        Conditions on the columns of the table, in SQL.
    """

    table: DeltaTable
    pipeline: Pipeline
    window: str
    aggregates: Sequence[str]
    volume: int | None
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
            columns += [
                f"last_value(v{i} ORDER BY e, g) AS last{i}", f"min(v{i}) AS low{i}", f"max(v{i}) AS high{i}",
                f"first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}",
                f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}",
                f"avg(v{i}) AS mean{i}", f"stddev_pop(v{i}) AS deviation{i}",
            ]  # fmt: skip
        by = f" GROUP BY {', '.join(self._key_names)}" if self._key_names else " HAVING count(*) > 0"
        order = f" ORDER BY {', '.join(self._key_names)}" if self._key_names else ""
        found = query(self.table, f"SELECT {', '.join(columns)} FROM ({rows}){by}{order}").to_pylist()
        return [
            KeyFigures(
                tuple(row[name] for name in self._key_names),
                row["n"],
                float(row["volume"] or 0),
                row["e"],
                [_figure(row, i) for i in range(len(self.aggregates))],
            )
            for row in found
        ]

    def lines(self, start: int, end: int, buckets: int, keys: Sequence[Key]) -> list[Lines]:
        """Points by key from ``start`` to before ``end``, at most two for each of ``buckets`` buckets, for each aggregate. One scan.

        They are the least and the greatest row of each bucket, at their own times: the line through them spans the same area as a line
        through all rows.
        """
        extremes = [
            f"min(v{i}) AS low{i}, max(v{i}) AS high{i}, first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}, "
            f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}"
            for i in range(len(self.aggregates))
        ]
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


def _figure(row: dict[str, object], i: int) -> Figure | None:
    names = ("last", "low", "low_at", "high", "high_at", "mean", "deviation")
    return Figure(*(row[f"{name}{i}"] for name in names)) if row[f"low{i}"] is not None else None  # type: ignore[arg-type]


def _finite(aggregate: str, name: str) -> str:
    value = f"CAST({quoted(aggregate)} AS DOUBLE)"
    # Comparisons use a total order in which NaN is greater than any number, so this excludes NaN and both infinities.
    return f"CASE WHEN {value} BETWEEN -1e300 AND 1e300 THEN {value} END AS {name}"


def text_of(column: str) -> str:
    """The SQL expression for a key column as text."""
    return f"CAST({quoted(column)} AS VARCHAR)"


def joined(texts: Sequence[str]) -> str:
    """The SQL expression for a whole key as one text."""
    return f"concat_ws(chr(31), {', '.join(f'coalesce({text}, chr(30))' for text in texts)})" if texts else "''"


def _joined(key: Key) -> str:
    return "\x1f".join(_NULL if part is None else part for part in key)


def key_text(key: Key) -> str:
    """A key as text of at most 60 characters; ``null`` for a null value.

    >>> key_text(("JFK", None))
    'JFK · null'
    """
    return clipped(" · ".join("null" if part is None else part for part in key), 60)
