"""Pipelines of each way, run wherever ``SPARK_REMOTE`` says; ``python -m`` runs them as a client of a Spark Connect server.

A process has sessions of one kind, so the client of a server is a process of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

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
#: Also an order of arrival, in which rows are late.
ARRIVALS = (None, "n")


def run(folder: Path) -> dict[str, Bench]:
    """Each pipeline below ``folder``: a batch in this process and two on Spark, and a backfill."""
    benches = {name: Bench(folder / name, changes) for name, changes in WAYS.items()}
    rows, few = events(71, 400), limits.MOST_ROWS
    for bench in benches.values():
        for part, most in ((rows[:150], 0), (rows[150:250], few), (rows[250:], 0)):
            limits.MOST_ROWS = most
            bench.land(part)
            import time; t=time.time(); bench.run(); print(bench.folder.name, most, round(time.time()-t,1), flush=True)
        ends = sorted(row["window_end"] for row in bench.rows())
        loop.backfill(bench.pipeline, quiet(), begin=ends[len(ends) // 4], end=ends[len(ends) // 2])
    limits.MOST_ROWS = few
    return benches


def aggregated(folder: Path) -> dict[str, list[str]]:
    """Every row that ``aggregate`` gives for each pipeline, as a text."""
    from windowmill import aggregate, spark_session

    rows = pa.Table.from_pylist(events(72, 200), schema=SCHEMA)
    found = {}
    for name, changes in WAYS.items():
        for arrival in ARRIVALS:
            frame = spark_session(brief=True).createDataFrame(rows.append_column("n", pa.array(range(rows.num_rows)))).coalesce(1)
            result = aggregate(frame, Bench(folder, changes).pipeline, arrival=arrival)
            found[f"{name}, arrival {arrival}"] = sorted(map(repr, result.toArrow().to_pylist()))
    return found


def main(folder: Path) -> None:
    """Run as a client; what only this process can import goes to the server's workers by the run itself."""
    sys.path.append(str(two_executors.own_package(folder)))
    run(folder)
    (folder / "aggregated.json").write_text(json.dumps(aggregated(folder)))
    print("over Connect" if "SPARK_CONNECT_MODE_ENABLED" in os.environ and "py4j.java_gateway" not in sys.modules else "here")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
