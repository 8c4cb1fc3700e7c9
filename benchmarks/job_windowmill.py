"""The job by windowmill: a first batch as ``windowmill backfill`` makes it, warm in a race; :func:`command` makes it cold."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from benchmarks.events import START_US
from windowmill.windowing.axis import from_us

DAY_US = 86_400_000_000


def spec(task: dict[str, Any]) -> dict[str, Any]:
    """The pipeline of the job."""
    window = {"name": "w", "type": "hopping", "size": f"{task['size_us']} microseconds", "hop": f"{task['hop_us']} microseconds"}
    return {
        "pipeline": "job",
        "source": {"path": task["source"]},
        "keys": ["k"],
        "time": {"column": "ts"},
        "windows": [window | task.get("window", {})],
        "aggregates": task.get("aggregates")
        or {"n": {"count": "v"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "sd": {"stddev_samp": "v"}},
        "sink": {"path": f"{task['out']}/windowmill"},
    }


def bounds(task: dict[str, Any]) -> tuple[int, int]:
    """Instants around all windows of the events."""
    return START_US - DAY_US, START_US + (task["minutes"] // 1_440 + 2) * DAY_US


def clear(task: dict[str, Any]) -> None:
    """Remove what the last job left, so that the next one is a first batch again."""
    for path in Path(task["out"]).glob("windowmill*"):
        shutil.rmtree(path)


def command(task: dict[str, Any]) -> list[str]:
    """The command of the job as a process of its own."""
    file, (begin, end) = Path(task["out"]) / "job.yaml", bounds(task)
    file.write_text(yaml.safe_dump(spec(task)))
    script = str(Path(sys.executable).with_name("windowmill"))
    return [script, "backfill", str(file), "--from", from_us(begin).isoformat(), "--to", from_us(end).isoformat(), "--json"]


class Job:
    """A first batch."""

    def __init__(self, task: dict[str, Any]) -> None:
        from benchmarks.spark_ways import session
        from windowmill.windowing.specfile import parse_pipeline

        self._task, self._spark, self._pipeline = task, session(), parse_pipeline(spec(task))

    def run(self) -> dict[str, Any]:
        from benchmarks.pipelines import quiet
        from windowmill.jobs.batch import loop

        clear(self._task)
        begin, end = bounds(self._task)
        done = loop.backfill(self._pipeline, quiet(), begin=begin, end=end)
        return {"steps": {step: round(seconds, 2) for step, seconds in done.outcome.timings.items()}}

    def write(self, path: str) -> None:
        from pyspark.sql import functions as F

        self.run()
        rows = self._spark.read.format("delta").load(f"{self._task['out']}/windowmill")
        rows.select("k", F.unix_micros("window_end").alias("window_end"), "n", "mean", "top", "sd").write.mode("overwrite").parquet(path)


WAYS = {"job": Job}
