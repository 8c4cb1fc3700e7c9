"""The job as a PySpark script: ``python -m benchmarks.job_spark TASK`` (JSON), or warm in a race."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.by_hand import hopping
from windowmill.jobs.spark.jars import find_java, jar_paths

AGGREGATES = ("count(v) AS n", "avg(v) AS mean", "max(v) AS top", "stddev_samp(v) AS sd")


def session(**conf: str) -> SparkSession:
    """A session as a script makes it, on two threads, with Delta from jars that are there already."""
    import os

    os.environ.setdefault("JAVA_HOME", str(find_java().home))
    builder = SparkSession.builder.master("local[2]").appName("job")
    settings = {
        "spark.jars": ",".join(map(str, jar_paths())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.memory": "4g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.window.segmentTree.enabled": "true",
    }
    for name, value in (settings | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Job:
    """Reads a Delta table, and writes the windows that are complete into another one, by slices and frames over slices."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task, self._source, self._out = task, task["source"], f"{task['out']}/spark"
        self._spark = session()

    def run(self) -> None:
        events = self._spark.read.format("delta").load(self._source)
        [last] = events.agg(F.max("ts")).collect()[0]
        self._windows(events).where(F.col("window_end") <= F.lit(last)).write.format("delta").mode("overwrite").save(self._out)

    def _windows(self, events: DataFrame) -> DataFrame:
        events.createOrReplaceTempView("events")
        return self._spark.sql(hopping("spark", "events", self._task)).withColumn("window_end", F.timestamp_micros("window_end"))

    def write(self, path: str) -> None:
        self.run()
        rows = self._spark.read.format("delta").load(self._out)
        rows.withColumn("window_end", F.unix_micros("window_end")).write.mode("overwrite").parquet(path)


class NaiveJob(Job):
    """The same by ``groupBy(window())``."""

    def _windows(self, events: DataFrame) -> DataFrame:
        window = F.window("ts", *(f"{self._task[name]} microseconds" for name in ("size_us", "hop_us")))
        rows = events.groupBy("k", window.alias("window")).agg(*map(F.expr, AGGREGATES))
        return rows.select("k", F.col("window.end").alias("window_end"), "n", "mean", "top", "sd")


WAYS = {"job": Job, "naive job": NaiveJob}

if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    WAYS[task.get("way", "job")](task).run()
