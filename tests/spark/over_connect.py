"""Pipelines of each way; ``python -m`` runs them as a client of the Spark Connect server that ``SPARK_REMOTE`` names.

A process has sessions of one kind, so the client of a server is a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark import two_executors
from tests.spark.harness import SCHEMA, Bench, events, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.ways import limits

SESSIONS: dict[str, Any] = {"windows": [{"name": "visits", "type": "session", "gap": "4 minutes"}]}
POSITIONS: dict[str, Any] = {"windows": [{"name": "last_40", "type": "sliding", "evict": {"count": 40}, "trigger": {"count": 3}}]}
WAYS: dict[str, dict[str, Any]] = {
    "slices": {},
    "sessions": SESSIONS,
    "positions": POSITIONS,
    "live rows": two_executors.LIVE,
}
#: What ``aggregate`` is tried with: a way, and an order of arrival, in which rows are late.
AGGREGATED = (("slices", "n"), ("sessions", None), ("live rows", None))


def run(folder: Path) -> dict[str, Bench]:
    """Each pipeline below ``folder``: two batches on Spark, and a backfill."""
    benches = {name: Bench(folder / name, changes) for name, changes in WAYS.items()}
    rows, few = events(71, 400), limits.MAX_ROWS
    limits.MAX_ROWS = 0
    for bench in benches.values():
        for part in (rows[:250], rows[250:]):
            bench.land(part)
            bench.run()
        ends = sorted(row["window_end"] for row in bench.rows())
        loop.backfill(bench.pipeline, quiet(), begin=ends[len(ends) // 4], end=ends[len(ends) // 2])
    limits.MAX_ROWS = few
    return benches


def aggregated(folder: Path) -> dict[str, list[str]]:
    """Every row that ``aggregate`` gives for each pipeline, as a text."""
    from windowmill import aggregate, spark_session

    rows = pa.Table.from_pylist(events(72, 200), schema=SCHEMA)
    found = {}
    for name, arrival in AGGREGATED:
        frame = spark_session(brief=True).createDataFrame(rows.append_column("n", pa.array(range(rows.num_rows)))).coalesce(1)
        result = aggregate(frame, Bench(folder, WAYS[name]).pipeline, arrival=arrival)
        found[name] = sorted(map(repr, result.toArrow().to_pylist()))
    return found


def main(folder: Path) -> None:
    """Run as a client; what only this process can import goes to the server's workers by the run itself."""
    sys.path.append(str(two_executors.own_package(folder)))
    run(folder)
    (folder / "aggregated.json").write_text(json.dumps(aggregated(folder)))
    print(type(SparkSession.getActiveSession()).__module__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
