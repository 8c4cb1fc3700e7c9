"""Flink SQL's HOP on a local cluster inside the process; the job's submission, about 0.5 s, is in its time, the JVM's start is not."""

from __future__ import annotations

from typing import Any

from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "taskmanager.memory.managed.size": "1g",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
}
COLUMNS = "k BIGINT, window_end TIMESTAMP(3), n BIGINT, mean DOUBLE, top DOUBLE, sd DOUBLE"


def _parquet(path: str) -> str:
    return f"'connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'"


class Hopping:
    """HOP in streaming or in batch mode, Parquet in, rows to ``blackhole``."""

    def __init__(self, task: dict[str, Any], *, batch: bool) -> None:
        settings = EnvironmentSettings.in_batch_mode() if batch else EnvironmentSettings.in_streaming_mode()
        self._tables = TableEnvironment.create(settings)
        for key, value in SETTINGS.items():
            self._tables.get_config().set(key, value)
        watermark = "" if batch else ", WATERMARK FOR ts AS ts - INTERVAL '5' MINUTE"
        self._tables.execute_sql(
            f"CREATE TABLE events (k BIGINT, ts TIMESTAMP(3), v DOUBLE{watermark}) WITH ({_parquet(task['events'] + '/ms.parquet')})"
        )
        self._tables.execute_sql(f"CREATE TABLE hole ({COLUMNS}) WITH ('connector' = 'blackhole')")
        size, hop = (f"INTERVAL '{task[name] // 1_000_000}' SECONDS(8)" for name in ("size_us", "hop_us"))
        self._query = f"""SELECT k, window_end, COUNT(v), AVG(v), MAX(v), STDDEV_SAMP(v)
            FROM TABLE(HOP(TABLE events, DESCRIPTOR(ts), {hop}, {size})) GROUP BY k, window_start, window_end"""

    def run(self) -> None:
        self._tables.execute_sql(f"INSERT INTO hole {self._query}").wait()

    def write(self, path: str) -> None:
        self._tables.execute_sql(f"CREATE TEMPORARY TABLE file ({COLUMNS}) WITH ({_parquet(path)})")
        self._tables.execute_sql(f"INSERT INTO file {self._query}").wait()
        self._tables.execute_sql("DROP TEMPORARY TABLE file")


WAYS = {
    "flink streaming": lambda task: Hopping(task, batch=False),
    "flink batch": lambda task: Hopping(task, batch=True),
}
