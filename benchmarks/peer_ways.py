"""One process as the machine's limit: DuckDB with slices and window frames written by hand, polars' own rolling groups."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl

from benchmarks.by_hand import HOPPING


def files_of(task: dict[str, Any]) -> str:
    """The Parquet files of a task; what the log of a Delta table says of a table that was written once, its folder says, too."""
    form = task.get("form", "us.parquet")
    return f"{task['events']}/{form}" if form.endswith(".parquet") else f"{task['events']}/{form}/*.parquet"


class DuckHopping:
    """Hopping windows: the task's sizes are multiples of its hop."""

    def __init__(self, task: dict[str, Any]) -> None:
        hop, overlap = task["hop_us"], task["size_us"] // task["hop_us"]
        self._query = HOPPING.format(events=f"'{files_of(task)}'", hop=hop, overlap=overlap, before=overlap - 1)
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


#: DuckDB takes aggregates of a frame from a tree of partials, as FlatFAT does.
FRAMES = """
SELECT k, row_number() OVER (PARTITION BY k ORDER BY ts) - 1 AS trigger, max(v) OVER w AS top, stddev_samp(v) OVER w AS sd FROM '{events}'
WINDOW w AS (PARTITION BY k ORDER BY ts ROWS BETWEEN {before} PRECEDING AND CURRENT ROW)"""


class DuckTuples:
    """A window frame of rows."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._query = FRAMES.format(events=f"{task['events']}/us.parquet", before=task["count"] - 1)
        self._connection = duckdb.connect(config={"threads": 2})

    def run(self) -> dict[str, Any]:
        found = self._connection.execute(f"SELECT count(*), sum(trigger), sum(top), sum(sd) FROM ({self._query})")
        return {"rows": found.fetchall()[0][0]}

    def write(self, path: str) -> None:
        self._connection.execute(f"COPY ({self._query}) TO '{path}' (FORMAT parquet)")


WAYS = {"duckdb hopping": DuckHopping, "polars hopping": PolarsHopping, "duckdb tuples": DuckTuples}
