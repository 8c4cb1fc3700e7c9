"""Pipelines of all ways, one of them with an aggregate of the user's own; ``python -m`` runs them on two executors.

A process has one Spark session, so the cluster is in a process of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.harness import WINDOWS, Bench, events, quiet
from windowmill.jobs.batch import loop
from windowmill.jobs.layouts import limits

OWN = {
    "__init__.py": "",
    "widest.py": """
class Widest:
    def lift(self, value):
        return value, value

    def combine(self, older, newer):
        return min(older[0], newer[0]), max(older[1], newer[1])

    def lower(self, pair):
        return pair[1] - pair[0]
""",
}
SESSION: dict[str, Any] = {"name": "visits", "type": "session", "gap": "4 minutes"}
LAST_40: dict[str, Any] = {"name": "last_40", "type": "sliding", "evict": {"count": 40}, "trigger": {"count": 3}}
WAYS: dict[str, dict[str, Any]] = {
    "slices, sessions, positions": {"windows": [*WINDOWS, SESSION, LAST_40]},
    "live rows": {
        "windows": [LAST_40 | {"name": "last_5", "evict": {"count": 5}}, SESSION | {"max_size": "1 hour"}],
        "aggregates": {
            "n": {"count": "*"},
            "total": {"sum": "v"},
            "closing": {"last": "v"},
            "width": {"use": "own_aggregates.widest:Widest", "args": ["i"]},
        },
    },
}


def own_package(folder: Path) -> Path:
    """Write the user's package below ``folder``; the folder to import it from."""
    package = folder / "own" / "own_aggregates"
    package.mkdir(parents=True, exist_ok=True)
    for name, text in OWN.items():
        (package / name).write_text(text)
    return package.parent


def run(folder: Path) -> dict[str, Bench]:
    """Each pipeline below ``folder``: two batches by many tasks, of which the second restores what the first has left, and a backfill."""
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


def _home_with_work_elsewhere(folder: Path) -> Path:
    """Spark's home with a folder of its own for what its workers write, which else is beside pyspark."""
    home = folder / "spark"
    home.mkdir()
    for place in Path(pyspark.__file__).parent.iterdir():
        if place.name != "work":
            (home / place.name).symlink_to(place)
    return home


def main(folder: Path) -> None:
    """Run on a cluster of two executors with a core each; what only this process can import goes to them by the run itself."""
    from windowmill.jobs.spark.session import spark_session

    os.environ["SPARK_HOME"] = str(_home_with_work_elsewhere(folder))
    sys.path.append(str(own_package(folder)))
    spark = spark_session(master="local-cluster[2,1,1024]", conf={"spark.scheduler.minRegisteredResourcesRatio": "1.0"}, brief=True)
    run(folder)
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1  # beside the driver
    spark.stop()
    print(f"{executors} executors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
