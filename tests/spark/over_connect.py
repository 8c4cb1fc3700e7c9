"""The pipelines of each way, and ``aggregate``; ``python -m`` runs them as a client of the Spark Connect server of ``SPARK_REMOTE``.

A process has sessions of one kind, so the client of a server is a process of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.harness import SCHEMA, Bench, events
from tests.spark.two_executors import WAYS, own_package, run


def aggregated(folder: Path) -> dict[str, list[str]]:
    """Every row that ``aggregate`` gives for each pipeline, as a text."""
    from windowmill import aggregate, spark_session

    rows = pa.Table.from_pylist(events(72, 200), schema=SCHEMA)
    frame = spark_session(brief=True).createDataFrame(rows.append_column("n", pa.array(range(rows.num_rows)))).coalesce(1)
    found = {}
    for (name, changes), arrival in zip(WAYS.items(), ("n", None), strict=True):  # in an order of arrival, rows are late
        result = aggregate(frame, Bench(folder, changes).pipeline, arrival=arrival)
        found[name] = sorted(map(repr, result.toArrow().to_pylist()))
    return found


def main(folder: Path) -> None:
    """Run as a client; what only this process can import goes to the server's workers by the run itself."""
    sys.path.append(str(own_package(folder)))
    run(folder)
    (folder / "aggregated.json").write_text(json.dumps(aggregated(folder)))
    print(type(SparkSession.getActiveSession()).__module__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
