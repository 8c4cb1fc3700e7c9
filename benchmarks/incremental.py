"""A run over 50,000 new events: ``python -m benchmarks.incremental``.

Three pipelines (a short history, one ten times as long, windows ten times as long) take the same new events in turn on one warm
session, and so do two others on the tables of the second: Spark recomputing the windows that the events completed, and Structured
Streaming, which took the same history before. Runs restore, validate, publish, and remember; the others write the rows to Delta.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import MINUTE_US, WARM_ROUNDS, Growing
from benchmarks.processes import timed
from benchmarks.race import Result, ratios
from benchmarks.rows import compare
from benchmarks.spark_ways import SPARK_AGGREGATES, SPEC_AGGREGATES, session
from windowmill.jobs.batch.progress import CommittedBatch
from windowmill.windowing.axis import from_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECOMPUTE, STREAM = "Spark recomputing", "Structured Streaming"


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=500_000, help="rows of the shorter history (default %(default)s)")
    parser.add_argument("--rows", type=int, default=50_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000, help="keys (default %(default)s)")
    parser.add_argument("--rows-per-minute", type=int, default=3_500, help="events a minute (default %(default)s)")
    parser.add_argument("--size", type=int, default=60, help="minutes of the shorter windows, one every minute (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="counted runs of each (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    workload = (
        f"{given.rows:,} new events of {given.keys:,} keys ({given.rows / given.rows_per_minute:.1f} minutes) "
        f"after {given.history:,} and after {10 * given.history:,}; windows of {given.size} minutes and of {10 * given.size}, every minute"
    )
    measured = Measurement("incremental", "runs over new events", workload)
    console.print(workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch).absolute()
        sizes = {"base": (1, 1), "history": (10, 1), "windows": (10, 10)}
        pipelines = {name: _pipeline(folder / name, factor * given.size, given) for name, (_, factor) in sizes.items()}
        labels = {"base": "short history", "history": "10× the history", "windows": "10× the history, 10× the windows"}
        for name, pipeline in pipelines.items():
            console.print(f"{labels[name]}: {sizes[name][0] * given.history:,} rows")
            pipeline.land_history(sizes[name][0] * given.history)
        peers = Peers(pipelines["history"], given.size)
        console.print(f"{STREAM}, the history: {timed(peers.stream)[1]:.1f} s")
        results = {label: Result(label) for label in (*labels.values(), RECOMPUTE, STREAM)}
        restored: dict[str, list[float]] = {name: [] for name in pipelines}
        for round_ in range(-WARM_ROUNDS, given.repetitions):
            taken: dict[str, tuple[float, float]] = {}
            for name, pipeline in pipelines.items():
                pipeline.land(given.rows)
                (seconds, done, _), _, cpu = timed(pipeline.run)
                taken[labels[name]] = seconds, cpu
                if name == "history":
                    peers.follow(done)
                if round_ >= 0:
                    restored[name].append(float(pipeline.restored_rows(done)))
            for label, way in ((RECOMPUTE, peers.recompute), (STREAM, peers.stream)):
                taken[label] = timed(way)[1:]
            console.print(
                f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: "
                + "; ".join(f"{label} {seconds:.2f} s" for label, (seconds, _) in taken.items())
            )
            if round_ >= 0:
                for label, (seconds, cpu) in taken.items():
                    results[label].take(round_, seconds, cpu)
        measured.notes += peers.agreements()
    measured.take(list(results.values()))
    base, history, windows = (results[labels[name]] for name in labels)
    measured.figures = [
        Figure("10× the history: time", ratios(base, history), most=1.2),
        Figure("10× the history: state rows read", _over(restored["base"], restored["history"]), most=1.2),
        Figure("10× the windows: time", ratios(history, windows), most=1.5),
        Figure.faster(history, results[RECOMPUTE], least=5),
        Figure.faster(history, results[STREAM], least=1),
    ]
    measured.notes.append(
        "state rows read: " + ", ".join(f"{labels[name]} {statistics.median(rows):,.0f}" for name, rows in restored.items())
    )
    measured.finish(console, given.results)
    return measured


def _pipeline(folder: Path, minutes: int, given: argparse.Namespace) -> Growing:
    window = {"name": "w", "type": "hopping", "size": f"{minutes} minutes", "hop": "1 minute"}
    return Growing(folder, [window], SPEC_AGGREGATES, keys=given.keys, rows_per_minute=given.rows_per_minute)


def _over(before: list[float], after: list[float]) -> list[float]:
    return [b / a for a, b in zip(before, after, strict=True) if a]


class Peers:
    """Spark's own ways to keep a table of the windows of ``pipeline``, each with a Delta sink of its own."""

    def __init__(self, pipeline: Growing, minutes: int) -> None:
        self._spark, self._pipeline, self._size_us = session(), pipeline, minutes * MINUTE_US
        self._window = F.window("t", f"{minutes} minutes", "1 minute")
        self._recomputed, self._streamed = (str(pipeline.folder / name) for name in ("recomputed", "streamed"))
        self._through: list[tuple[int, int]] = []

    def follow(self, done: CommittedBatch) -> None:
        """Take note of which windows a run of the pipeline completed."""
        assert done.plan.emitted is not None
        assert done.outcome.emitted is not None
        self._through.append((done.plan.emitted, done.outcome.emitted))

    def recompute(self) -> None:
        """The windows that the last run completed, from the source's events."""
        after, through = self._through[-1]
        begin, end = from_us(after + 1 - self._size_us), from_us(through)
        events = self._spark.read.format("delta").load(self._pipeline.source).where((F.col("t") >= begin) & (F.col("t") < end))
        ends = F.unix_micros("window.end")
        self._windows(events).where((ends > after) & (ends <= through)).write.format("delta").mode("append").save(self._recomputed)

    def stream(self) -> None:
        """Whatever is new in the source, by AvailableNow with RocksDB; the first time this is the history."""
        events = self._spark.readStream.format("delta").load(self._pipeline.source).withWatermark("t", "1 minute")
        writer = self._windows(events).writeStream.outputMode("append").format("delta")
        writer = writer.option("checkpointLocation", f"{self._streamed}.checkpoint")
        writer.trigger(availableNow=True).start(self._streamed).awaitTermination()

    def _windows(self, events: DataFrame) -> DataFrame:
        return events.groupBy("k", self._window.alias("window")).agg(*map(F.expr, SPARK_AGGREGATES))

    def agreements(self) -> list[str]:
        """The rows of the counted and warm-up runs, compared with what the peers wrote."""
        after, through = self._through[0][0], self._through[-1][1]
        tables = {
            "windowmill": self._spark.read.format("delta").load(self._pipeline.sink).withColumn("window_end", F.unix_micros("window_end"))
        }
        for label, path in ((RECOMPUTE, self._recomputed), (STREAM, self._streamed)):
            tables[label] = self._spark.read.format("delta").load(path).withColumn("window_end", F.unix_micros("window.end"))
        paths = {}
        for label, rows in tables.items():
            paths[label] = self._pipeline.folder / f"rows of {label}"
            within = rows.where((F.col("window_end") > after) & (F.col("window_end") <= through))
            within.select("k", "window_end", "n", "mean", "top", "sd").write.parquet(str(paths[label]))
        notes = []
        for label in (RECOMPUTE, STREAM):
            found = compare(paths["windowmill"], paths[label], key=("k", "window_end"), exact=("n", "top"), floats=("mean", "sd"))
            notes.append(f"{label} against windowmill: {'same rows' if found.same else 'OTHER ROWS'}: {found.describe()}")
        return notes


if __name__ == "__main__":
    main()
