"""The job as a script of DuckDB and delta-rs: ``python -m benchmarks.job_duckdb TASK`` (JSON), or warm in a race."""

from __future__ import annotations

import json
import sys
from typing import Any

import duckdb
from deltalake import DeltaTable, write_deltalake

from benchmarks.by_hand import hopping


class Job:
    """Reads a Delta table, and writes the windows that are complete into another one."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._source, self._out = task["source"], f"{task['out']}/duckdb"
        self._task = task
        self._connection = duckdb.connect(config={"threads": 2})

    def run(self) -> None:
        files = f"read_parquet({DeltaTable(self._source).file_uris()})"
        query = hopping("duckdb", files, self._task)
        rows: Any = self._connection.execute(
            f"SELECT k, make_timestamp(window_end) AS window_end, n::BIGINT AS n, mean, top, sd FROM ({query}) "
            f"WHERE window_end <= (SELECT max(epoch_us(ts)) FROM {files})"
        )
        write_deltalake(self._out, rows.to_arrow_reader(1_000_000), mode="overwrite")

    def write(self, path: str) -> None:
        self.run()
        files = f"read_parquet({DeltaTable(self._out).file_uris()})"
        self._connection.execute(f"COPY (SELECT * REPLACE (epoch_us(window_end) AS window_end) FROM {files}) TO '{path}' (FORMAT parquet)")


WAYS = {"job": Job}

if __name__ == "__main__":
    Job(json.loads(sys.argv[1])).run()
