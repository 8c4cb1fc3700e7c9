"""The SQL of the curves: selects a window's rows of the drawn keys and thins them to a few hundred points per line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import DeltaTable

from windowmill.checkpoints.quoting import quoted
from windowmill.jobs.report.charts import Point
from windowmill.jobs.report.keys import Key, text_of
from windowmill.jobs.report.tables import literal, query
from windowmill.windowing.spec import Pipeline

#: Points by key, in ascending time.
Lines = dict[Key, list[Point]]


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows to draw: those of one window and some keys, with some aggregates.

    Its SQL names the columns k0… (key as text), e (window end as an integer), g (trigger), v0… (aggregates, finite or null).
    """

    table: DeltaTable
    pipeline: Pipeline
    window: str
    keys: Sequence[Key]
    aggregates: Sequence[str]

    @property
    def _key_names(self) -> list[str]:
        return [f"k{i}" for i in range(len(self.pipeline.keys))]

    def _sql(self, start: int) -> str:
        keys = [f"{text_of(column)} AS {name}" for column, name in zip(self.pipeline.keys, self._key_names, strict=True)]
        values = [_finite(aggregate, f"v{i}") for i, aggregate in enumerate(self.aggregates)]
        columns = ", ".join(["arrow_cast(window_end, 'Int64') AS e", '"trigger" AS g', "revision AS r", *keys, *values])
        instant = str(start) if self.pipeline.time.unit else f"arrow_cast({start}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
        # Compare the stored type: then statistics exclude the files of earlier times.
        where = f'"window" = {literal(self.window)} AND window_end >= {instant} AND ({" OR ".join(map(self._is, self.keys))})'
        rows = f"SELECT {columns} FROM t WHERE {where}"
        if self.pipeline.emit == "final":
            return rows
        one = ", ".join(["e", "g", *self._key_names])
        newest = ", ".join(f"last_value(v{i} ORDER BY r) AS v{i}" for i in range(len(self.aggregates)))
        return f"SELECT {one}, {newest} FROM ({rows}) GROUP BY {one}"

    def _is(self, key: Key) -> str:
        parts = zip(self.pipeline.keys, key, strict=True)
        return "(" + (" AND ".join(f"({text_of(column)} IS NOT DISTINCT FROM {literal(part)})" for column, part in parts) or "true") + ")"

    def lines(self, start: int, end: int, buckets: int) -> dict[str, Lines]:
        """Points by aggregate and key from ``start`` to ``end``, at most two for each of ``buckets`` buckets. One scan.

        They are the least and the greatest row of each bucket, at their own times: the line through them spans the same area as a line
        through all rows.
        """
        extremes = [
            f"min(v{i}) AS low{i}, max(v{i}) AS high{i}, first_value(e ORDER BY v{i} ASC NULLS LAST, e) AS low_at{i}, "
            f"first_value(e ORDER BY v{i} DESC NULLS LAST, e) AS high_at{i}"
            for i in range(len(self.aggregates))
        ]
        bucket = f"floor(CAST(e - ({start}) AS DOUBLE) * {buckets} / {float(end - start + 1)}) AS bucket"
        columns = ", ".join([*self._key_names, bucket, *extremes])
        by = ", ".join([*self._key_names, "bucket"])
        answer = query(self.table, f"SELECT {columns} FROM ({self._sql(start)}) GROUP BY {by} ORDER BY {by}").to_pydict()
        keys = list(zip(*(answer[name] for name in self._key_names), strict=True)) or [()] * len(answer["bucket"])
        by_aggregate: dict[str, Lines] = {}
        for i, aggregate in enumerate(self.aggregates):
            lines: Lines = defaultdict(list)
            lows, highs = (zip(answer[f"{name}_at{i}"], answer[f"{name}{i}"], strict=True) for name in ("low", "high"))
            for key, low, high in zip(keys, lows, highs, strict=True):
                if low[1] is not None:
                    lines[key] += sorted({low, high})
            by_aggregate[aggregate] = dict(lines)
        return by_aggregate

    def latest(self, start: int) -> list[tuple[Key, int, list[float | None]]]:
        """Each key's newest row from ``start`` on: key, window end, values of the aggregates."""
        newest = [f"last_value(v{i} ORDER BY e, g) AS v{i}" for i in range(len(self.aggregates))]
        names = ", ".join(self._key_names)
        by = f" GROUP BY {names} ORDER BY {names}" if names else ""
        rows = query(
            self.table, f"SELECT {', '.join([*self._key_names, 'max(e) AS e', *newest])} FROM ({self._sql(start)}){by}"
        ).to_pylist()
        return [(tuple(row[name] for name in self._key_names), row["e"], [row[f"v{i}"] for i in range(len(newest))]) for row in rows]


def _finite(aggregate: str, name: str) -> str:
    value = f"CAST({quoted(aggregate)} AS DOUBLE)"
    # Comparisons use a total order in which NaN is greater than any number, so this excludes NaN and both infinities.
    return f"CASE WHEN {value} BETWEEN -1e300 AND 1e300 THEN {value} END AS {name}"
