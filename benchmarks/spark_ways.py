"""Ways on the one warm Spark session that windowmill configures: its own, Spark's windows and window frames, Structured Streaming."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from benchmarks.by_hand import hopping
from benchmarks.events import SCHEMA
from benchmarks.spark_files import DELTA
from windowmill import aggregate, spark_session

__all__ = [
    "Frame",
    "SparkHopping",
    "SparkTuples",
    "Streaming",
    "WindowmillHopping",
    "WindowmillTuples",
    "aggregate",
    "micros",
    "session",
    "spec",
]

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Aggregates of the benchmarks as windowmill names them and as Spark does.
SPEC_AGGREGATES = {"n": {"count": "v"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "sd": {"stddev_samp": "v"}}
SPARK_AGGREGATES = ("count(v) AS n", "avg(v) AS mean", "max(v) AS top", "stddev_samp(v) AS sd")
#: Parquet with instants in microseconds, as Spark does not write it unless told to.
US = "us.parquet"
#: Whether frames that move with each row keep a tree of partials; Spark's default is to compute each anew.
SEGMENT_TREES = "spark.sql.window.segmentTree.enabled"
#: Later than every window of every workload.
END_US = 1 << 52
COLUMNS = ("k", "window_end", "n", "mean", "top", "sd")
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def session() -> SparkSession:
    """The session of windowmill on two threads, as the peers have them; streams keep their state in RocksDB."""
    return spark_session("windowmill benchmarks", master="local[2]", conf=CONF)


def spec(window: dict[str, Any]) -> dict[str, Any]:
    """The pipeline of a benchmark: one window over the events."""
    # The input is complete, so that no row is late, as for Spark's own windows.
    time = {"column": "ts", "watermark": "data_interval_end"}
    return {"pipeline": "benchmark", "keys": ["k"], "time": time, "windows": [window], "aggregates": SPEC_AGGREGATES}


class Frame(ABC):
    """A DataFrame whose rows are all computed and dropped."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._spark = session()

    @cached_property
    def events(self) -> DataFrame:
        form = self._task.get("form", US)
        reader = self._spark.read if form == DELTA else self._spark.read.schema(from_arrow_schema(SCHEMA))
        return reader.format("delta" if form == DELTA else "parquet").load(f"{self._task['events']}/{form}")

    @abstractmethod
    def rows(self) -> DataFrame:
        """The task's result rows; built anew for each round, as a job would."""

    def run(self) -> None:
        self.rows().write.format("noop").mode("overwrite").save()

    def write(self, path: str) -> None:
        self.rows().write.mode("overwrite").parquet(path)


def micros(us: int) -> str:
    return f"{us} microseconds"


class WindowmillHopping(Frame):
    """``aggregate``: slices, then every window from its slices."""

    def rows(self) -> DataFrame:
        size, hop = micros(self._task["size_us"]), micros(self._task["hop_us"])
        rows = aggregate(self.events, spec({"name": "w", "type": "hopping", "size": size, "hop": hop}))
        return rows.select("k", F.unix_micros("window_end").alias("window_end"), *COLUMNS[2:])


class SparkHopping(Frame):
    """``groupBy(window())``."""

    def rows(self) -> DataFrame:
        window = F.window("ts", micros(self._task["size_us"]), micros(self._task["hop_us"]))
        rows = self.events.groupBy("k", window.alias("window")).agg(*map(F.expr, SPARK_AGGREGATES))
        return rows.select("k", F.unix_micros("window.end").alias("window_end"), *COLUMNS[2:])


class SparkStages(Frame):
    """Slices, and frames over every slice of a key, by segment trees where Spark takes them."""

    def rows(self) -> DataFrame:
        self._spark.conf.set(SEGMENT_TREES, "true")
        self.events.createOrReplaceTempView("events")
        return self._spark.sql(hopping("spark", "events", self._task))


class Streaming:
    """Structured Streaming, AvailableNow, state in RocksDB, from an empty checkpoint to the last window."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._spark = session()

    def run(self) -> None:
        self._stream("noop", {})

    def write(self, path: str) -> None:
        self._stream("parquet", {"path": f"{path}.all"})
        # Not in the query itself: Spark would push the condition down to the source, and the event ahead would move no watermark.
        self._spark.read.parquet(f"{path}.all").where("k >= 0").write.mode("overwrite").parquet(path)

    def _stream(self, format_: str, options: dict[str, str]) -> None:
        source = self._source()
        checkpoint = f"{self._task['events']}/checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        events = self._spark.readStream.schema(from_arrow_schema(SCHEMA)).parquet(str(source)).withWatermark("ts", "5 minutes")
        window = F.window("ts", micros(self._task["size_us"]), micros(self._task["hop_us"]))
        rows = events.groupBy("k", window.alias("window")).agg(*map(F.expr, SPARK_AGGREGATES))
        rows = rows.select("k", F.unix_micros("window.end").alias("window_end"), *COLUMNS[2:])
        writer = rows.writeStream.outputMode("append").format(format_).options(**options).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def _source(self) -> Path:
        """The events and, so that the watermark passes every window, one more of another key far ahead."""
        source = Path(self._task["events"]) / "stream"
        if not source.exists():
            source.mkdir()
            (source / "events.parquet").hardlink_to(source.parent / "us.parquet")
            ahead = pa.table({"k": [-1], "ts": pa.array([END_US], pa.timestamp("us", "UTC")), "v": [0.0]}, schema=SCHEMA)
            pq.write_table(ahead, source / "end.parquet")
        return source


class WindowmillTuples(Frame):
    """``aggregate`` with an eviction policy; every tuple triggers."""

    def rows(self) -> DataFrame:
        window = {"name": "w", "type": "sliding", "evict": {"count": self._task["count"]}, "trigger": {"count": 1}}
        pipeline = spec(window) | {"aggregates": {name: SPEC_AGGREGATES[name] for name in ("top", "sd")}}
        return aggregate(self.events, pipeline).select("k", "trigger", "top", "sd")


class SparkTuples(Frame):
    """A window frame of rows, each computed anew."""

    trees = "false"

    def rows(self) -> DataFrame:
        return self.events.select("k", *self._aggregates())

    def write(self, path: str) -> None:
        trigger = (F.row_number().over(Window.partitionBy("k").orderBy("ts")) - 1).cast("long").alias("trigger")
        self.events.select("k", trigger, *self._aggregates()).write.mode("overwrite").parquet(path)

    def _aggregates(self) -> list[Column]:
        self._spark.conf.set(SEGMENT_TREES, self.trees)
        frame = Window.partitionBy("k").orderBy("ts").rowsBetween(1 - self._task["count"], Window.currentRow)
        return [F.max("v").over(frame).alias("top"), F.stddev_samp("v").over(frame).alias("sd")]


class SparkTrees(SparkTuples):
    """A window frame of rows, by segment trees."""

    trees = "true"


WAYS = {
    "windowmill hopping": WindowmillHopping,
    "spark hopping": SparkHopping,
    "spark stages": SparkStages,
    "structured streaming hopping": Streaming,
    "windowmill tuples": WindowmillTuples,
    "spark tuples": SparkTuples,
    "spark tuples by trees": SparkTrees,
}
