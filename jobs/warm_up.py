"""Warms up the Spark Connect server that ``SPARK_REMOTE`` names: ``python -m windowmill.jobs.warm_up``.

Runs small pipelines by slices and by positions in a temporary folder, a few batches each, so that the server has loaded and compiled what
the run of a small batch needs, and its Python workers the kernels. The same windows are also computed over a DataFrame.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console

from windowmill.jobs.batch import loop
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.dataframe import aggregate
from windowmill.jobs.spark.access import Shipment, SparkSession
from windowmill.jobs.spark.remote import attach
from windowmill.jobs.spark.spark_settings import RUNTIME_CONF, SERVER
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.settings import COMPUTE
from windowmill.windowing.specfile import parse_pipeline

#: Batches of each pipeline, and rows of a batch.
ROUNDS, ROWS = 3, 1_000
_PIPELINES: dict[str, dict[str, Any]] = {
    "slices": {
        "windows": [{"name": "rolling", "type": "hopping", "size": 100, "hop": 10}],
        "aggregates": {"n": {"count": "*"}, "mean": {"mean": "value"}, "most": {"max": "value"}},
    },
    "positions": {
        "windows": [{"name": "last", "type": "sliding", "evict": {"count": 5}, "trigger": {"count": 50}}],
        "aggregates": {"n": {"count": "*"}, "total": {"sum": "value"}, "closing": {"last": "value"}},
    },
}


def warm_up(spark: SparkSession, folder: Path) -> None:
    """Run the pipelines below ``folder`` over a few batches each, and compute their windows on workers."""
    progress = Progress(Console(file=io.StringIO()))
    for name, shape in _PIPELINES.items():
        spec: dict[str, Any] = {
            "pipeline": name,
            "source": {"path": str(folder / name)},
            "keys": ["key"],
            "time": {"column": "at", "unit": "s"},
            "sink": {"path": str(folder / f"{name}_windows")},
        }
        pipeline = parse_pipeline(spec | shape)
        for round_ in range(ROUNDS):
            at = range(round_ * ROWS, (round_ + 1) * ROWS)
            rows = {"key": [f"k{t % 10}" for t in at], "at": list(at), "value": [float(t % 7) for t in at]}
            write_deltalake(folder / name, pa.table(rows), mode="append")
            loop.run(pipeline, progress)
        aggregate(spark.read.format("delta").load(str(folder / name)), pipeline).toArrow()


def main() -> int:
    try:
        os.environ[COMPUTE.name] = "spark"
        # Runs that ship no modules use this session.
        spark = attach(os.environ[SERVER], RUNTIME_CONF, code=Shipment().digest)
        with tempfile.TemporaryDirectory(prefix="windowmill-warm-") as folder:
            warm_up(spark, Path(folder))
    except WindowmillError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
