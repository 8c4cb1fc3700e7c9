"""Pipelines of both kinds, by slices and by live rows with an aggregate of the user's own; ``python -m`` runs them on two executors.

A process has one Spark session, so the cluster is in a process of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.harness import Bench, events

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
LIVE: dict[str, Any] = {
    "windows": [
        {"name": "last_5", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 2}},
        {"name": "visits", "type": "session", "gap": "4 minutes", "max_size": "1 hour"},
    ],
    "aggregates": {
        "n": {"count": "*"},
        "total": {"sum": "v"},
        "closing": {"last": "v"},
        "width": {"use": "own_aggregates.widest:Widest", "args": ["i"]},
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
    """Both pipelines below ``folder``, each in two batches of which the second restores what the first has left."""
    benches = {"slices": Bench(folder / "slices"), "live rows": Bench(folder / "live", LIVE)}
    rows = events(71, 400)
    for bench in benches.values():
        for part in (rows[:250], rows[250:]):
            bench.land(part)
            bench.run()
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
