"""DuckDB's SQL for hopping windows, written by hand."""

#: Slices hold sums of squares, as one would write it: fast, and good to about half of the digits where values lie close together.
HOPPING = """
WITH slices AS (
    SELECT k, epoch_us(ts) // {hop} AS s, count(v) AS n, sum(v) AS t, max(v) AS x, sum(v * v) AS q FROM {events} GROUP BY ALL
), spans AS (
    SELECT k, min(s) AS a, max(s) AS z FROM slices GROUP BY k
), grid AS (
    SELECT k, unnest(range(a, z + {overlap})) AS s FROM spans
)
SELECT k, (s + 1) * {hop} AS window_end, n, t / n AS mean, x AS top, sqrt(greatest(q - t * t / n, 0) / nullif(n - 1, 0)) AS sd FROM (
    SELECT k, s, sum(n) OVER w AS n, sum(t) OVER w AS t, max(x) OVER w AS x, sum(q) OVER w AS q FROM grid LEFT JOIN slices USING (k, s)
    WINDOW w AS (PARTITION BY k ORDER BY s ROWS BETWEEN {before} PRECEDING AND CURRENT ROW)
) WHERE n > 0"""
