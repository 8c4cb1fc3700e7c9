"""One process as the machine's limit: slices and frames over slices by DuckDB, polars and chDB, polars' own groups, and frames of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chdb.session
import datafusion
import duckdb
import polars as pl
import pyarrow.parquet as pq

from benchmarks.by_hand import hopping


def files_of(task: dict[str, Any]) -> str:
    """The Parquet files of a task; what the log of a Delta table says of a table that was written once, its folder says, too."""
    form = task.get("form", "us.parquet")
    return f"{task['events']}/{form}" if form.endswith(".parquet") else f"{task['events']}/{form}/*.parquet"


class DuckHopping:
    """Hopping windows in two stages."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._query = hopping("duckdb", f"'{files_of(task)}'", task)
        self._connection = duckdb.connect(config={"threads": 2})

    def run(self) -> dict[str, Any]:
        found = self._connection.execute(f"SELECT count(*), sum(window_end), sum(n), sum(mean), sum(top), sum(sd) FROM ({self._query})")
        return {"rows": found.fetchall()[0][0]}

    def write(self, path: str) -> None:
        self._connection.execute(f"COPY ({self._query}) TO '{path}' (FORMAT parquet)")


class PolarsHopping:
    """``group_by_dynamic``, its rows collected."""

    def __init__(self, task: dict[str, Any]) -> None:
        hop, size = (f"{task[name]}us" for name in ("hop_us", "size_us"))
        v = pl.col("v")
        before = f"-{task['size_us'] - task['hop_us']}us"  # else the windows that begin before a key's first event are left out
        events = pl.scan_parquet(files_of(task)).with_columns(pl.col("ts").cast(pl.Datetime("us"))).sort("ts")
        groups = events.group_by_dynamic("ts", every=hop, period=size, offset=before, group_by="k")
        windows = groups.agg(v.count().cast(pl.Int64).alias("n"), v.mean().alias("mean"), v.max().alias("top"), v.std().alias("sd"))
        end = (pl.col("ts").dt.epoch("us") + task["size_us"]).alias("window_end")
        self._windows = windows.select("k", end, "n", "mean", "top", "sd").filter(pl.col("n") > 0)

    def run(self) -> dict[str, Any]:
        return {"rows": self._windows.collect().height}

    def write(self, path: str) -> None:
        self._windows.collect().write_parquet(path)


class PolarsStages:
    """Hopping windows in two stages, by the streaming engine: slices, and rolling sums over every slice of a key."""

    def __init__(self, task: dict[str, Any]) -> None:
        hop, overlap = task["hop_us"], task["size_us"] // task["hop_us"]
        v, s = pl.col("v"), pl.col("s")
        slices = (
            pl.scan_parquet(files_of(task))
            .with_columns(pl.col("ts").cast(pl.Datetime("us")).dt.epoch("us").floordiv(hop).alias("s"))
            .group_by("k", "s")
            .agg(v.count().cast(pl.Int64).alias("n"), v.sum().alias("t"), v.max().alias("x"), (v * v).sum().alias("q"))
        )
        spans = slices.group_by("k").agg(pl.int_ranges(s.min(), s.max() + overlap).alias("s"))
        grid = spans.explode("s").join(slices, on=["k", "s"], how="left").sort("k", "s")
        rolled = [
            *(pl.col(name).fill_null(0).rolling_sum(overlap, min_samples=1).over("k").alias(name) for name in ("n", "t", "q")),
            pl.col("x").rolling_max(overlap, min_samples=1).over("k").alias("top"),
        ]
        n, t, q = pl.col("n"), pl.col("t"), pl.col("q")
        squares = pl.max_horizontal(q - t * t / n, 0.0) / (n - 1)
        deviation = pl.when(n > 1).then(squares.sqrt()).alias("sd")
        windows = grid.select("k", "s", *rolled).filter(n > 0)
        self._windows = windows.select("k", ((s + 1) * hop).alias("window_end"), "n", (t / n).alias("mean"), "top", deviation)

    def run(self) -> dict[str, Any]:
        return {"rows": self._windows.collect(engine="streaming").height}

    def write(self, path: str) -> None:
        self._windows.collect(engine="streaming").write_parquet(path)


#: Slices of aggregate states (-State), which frames merge (-Merge).
STATES = """
WITH slices AS (
    SELECT k, intDiv(toUnixTimestamp64Micro(ts), {hop}) AS s,
        countState(v) AS n, avgState(v) AS t, maxState(v) AS x, stddevSampStableState(v) AS d
    FROM file('{events}', Parquet) GROUP BY k, s
), grid AS (
    SELECT k, arrayJoin(range(min(s), max(s) + {overlap})) AS s FROM slices GROUP BY k
)
SELECT k, (s + 1) * {hop} AS window_end, toInt64(c) AS n, mean, top, if(c > 1, deviation, NULL) AS sd FROM (
    SELECT k, s,
        countMerge(n) OVER w AS c, avgMerge(t) OVER w AS mean, maxMerge(x) OVER w AS top, stddevSampStableMerge(d) OVER w AS deviation
    FROM grid LEFT JOIN slices USING (k, s)
    WINDOW w AS (PARTITION BY k ORDER BY s ROWS BETWEEN {before} PRECEDING AND CURRENT ROW)
) WHERE c > 0"""


class ChHopping:
    """Hopping windows in two stages by ClickHouse inside the process."""

    def __init__(self, task: dict[str, Any]) -> None:
        hop, overlap = task["hop_us"], task["size_us"] // task["hop_us"]
        self._query = STATES.format(events=files_of(task), hop=hop, overlap=overlap, before=overlap - 1)
        self._session = chdb.session.Session()

    def run(self) -> dict[str, Any]:
        query = f"SELECT count(), sum(window_end), sum(n), sum(mean), sum(top), sum(sd) FROM ({self._query}) SETTINGS max_threads = 2"
        return {"rows": int(str(self._session.query(query)).split(",")[0])}

    def write(self, path: str) -> None:
        Path(path).write_bytes(self._session.query(self._query, "Parquet").bytes())


#: DuckDB takes aggregates of a frame from a tree of partials, as FlatFAT does; DataFusion takes those that leave out of what it holds.
FRAMES = """
SELECT k, row_number() OVER (PARTITION BY k ORDER BY ts) - 1 AS trigger, max(v) OVER w AS top, stddev_samp(v) OVER w AS sd FROM {events}
WINDOW w AS (PARTITION BY k ORDER BY ts ROWS BETWEEN {before} PRECEDING AND CURRENT ROW)"""


class DuckTuples:
    """A window frame of rows."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._query = FRAMES.format(events=f"'{task['events']}/us.parquet'", before=task["count"] - 1)
        self._connection = duckdb.connect(config={"threads": 2})

    def run(self) -> dict[str, Any]:
        found = self._connection.execute(f"SELECT count(*), sum(trigger), sum(top), sum(sd) FROM ({self._query})")
        return {"rows": found.fetchall()[0][0]}

    def write(self, path: str) -> None:
        self._connection.execute(f"COPY ({self._query}) TO '{path}' (FORMAT parquet)")


class FusionTuples:
    """A window frame of rows by DataFusion."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._context = datafusion.SessionContext(datafusion.SessionConfig({"datafusion.execution.target_partitions": "2"}))
        self._context.register_parquet("events", f"{task['events']}/us.parquet")
        self._query = FRAMES.format(events="events", before=task["count"] - 1)

    def run(self) -> dict[str, Any]:
        [found] = self._context.sql(f"SELECT count(*) AS n, sum(trigger), sum(top), sum(sd) FROM ({self._query})").collect()
        return {"rows": found.column(0)[0].as_py()}

    def write(self, path: str) -> None:
        rows = self._context.sql(f"SELECT * REPLACE (CAST(trigger AS BIGINT) AS trigger) FROM ({self._query})")
        pq.write_table(rows.to_arrow_table(), path)


WAYS = {
    "duckdb hopping": DuckHopping,
    "polars hopping": PolarsHopping,
    "polars stages": PolarsStages,
    "chdb hopping": ChHopping,
    "duckdb tuples": DuckTuples,
    "datafusion tuples": FusionTuples,
}
