"""SQL for hopping windows in two stages, slices and frames over slices, as an expert writes it."""

from __future__ import annotations

from typing import Any

#: Slices hold sums of squares, as one would write it: fast, and good to about half of the digits where values lie close together.
_HOPPING = """
WITH slices AS (
    SELECT k, {slice} AS s, count(v) AS n, sum(v) AS t, max(v) AS x, sum(v * v) AS q FROM {events} GROUP BY ALL
), spans AS (
    SELECT k, min(s) AS a, max(s) + {before} AS z FROM slices GROUP BY k
), grid AS (
    SELECT k, {grid} AS s FROM spans
)
SELECT k, (s + 1) * {hop} AS window_end, n, t / n AS mean, x AS top, sqrt(greatest(q - t * t / n, 0) / nullif(n - 1, 0)) AS sd FROM (
    SELECT k, s, sum(n) OVER w AS n, sum(t) OVER w AS t, max(x) OVER w AS x, sum(q) OVER w AS q FROM grid LEFT JOIN slices USING (k, s)
    WINDOW w AS (PARTITION BY k ORDER BY s ROWS BETWEEN {before} PRECEDING AND CURRENT ROW)
) WHERE n > 0"""
#: In each dialect: the number of an event's slice, and the numbers from ``a`` to ``z``.
DIALECTS = {
    "duckdb": ("epoch_us(ts) // {hop}", "unnest(range(a, z + 1))"),
    "spark": ("unix_micros(ts) div {hop}", "explode(sequence(a, z))"),
}


def hopping(dialect: str, events: str, task: dict[str, Any]) -> str:
    """The query over the table ``events``; the task's sizes are multiples of its hop."""
    number, grid = DIALECTS[dialect]
    hop, before = task["hop_us"], task["size_us"] // task["hop_us"] - 1
    return _HOPPING.format(slice=number.format(hop=hop), grid=grid, events=events, hop=hop, before=before)
