"""Few new rows by Structured Streaming, ``availableNow``: ``python -m benchmarks.job_streaming TASK`` (JSON), or warm in a race."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import functions as F

from benchmarks.job_spark import session

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
AGGREGATES = ("count(*) AS n", "avg(v) AS mean", "max(v) AS top", "stddev_samp(v) AS spread")


class Stream:
    """Takes what is new in a Delta table into another one, with its state in RocksDB."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._spark = session(**{"spark.sql.streaming.stateStore.providerClass": ROCKSDB})

    def run(self) -> None:
        events = self._spark.readStream.format("delta").load(self._task["source"]).withWatermark("t", "1 minute")
        rows = events.groupBy("k", F.window("t", "1 hour", "5 minutes").alias("window")).agg(*map(F.expr, AGGREGATES))
        writer = rows.writeStream.outputMode("append").format("delta").option("checkpointLocation", f"{self._task['out']}.checkpoint")
        writer.trigger(availableNow=True).start(self._task["out"]).awaitTermination()


WAYS = {"stream": Stream}

if __name__ == "__main__":
    Stream(json.loads(sys.argv[1])).run()
