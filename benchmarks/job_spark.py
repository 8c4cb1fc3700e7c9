"""The job as a PySpark script: ``python -m benchmarks.job_spark TASK`` (JSON), or warm in a race."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

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
    }
    for name, value in (settings | conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Job:
    """Reads a Delta table, and writes the windows that are complete into another one."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._source, self._out = task["source"], f"{task['out']}/spark"
        self._size, self._hop = (f"{task[name]} microseconds" for name in ("size_us", "hop_us"))
        self._spark = session()

    def run(self) -> None:
        events = self._spark.read.format("delta").load(self._source)
        [last] = events.agg(F.max("ts")).collect()[0]
        window = F.window("ts", self._size, self._hop)
        rows = events.groupBy("k", window.alias("window")).agg(*map(F.expr, AGGREGATES)).where(F.col("window.end") <= F.lit(last))
        rows = rows.select("k", F.col("window.end").alias("window_end"), "n", "mean", "top", "sd")
        rows.write.format("delta").mode("overwrite").save(self._out)

    def write(self, path: str) -> None:
        self.run()
        rows = self._spark.read.format("delta").load(self._out)
        rows.withColumn("window_end", F.unix_micros("window_end")).write.mode("overwrite").parquet(path)


WAYS = {"job": Job}

if __name__ == "__main__":
    Job(json.loads(sys.argv[1])).run()
