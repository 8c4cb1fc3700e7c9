"""What a small run costs, and that the history behind it does not matter: ``python -m benchmarks.small_runs``.

Two pipelines with the same spec, one with ten times the history of the other, take batches of 1,000 new rows in turn on one warm Spark
session; seconds by step, Spark-side commits, and the ratio of the two pair by pair.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import WARM_ROUNDS, Growing
from benchmarks.race import Result, ratios
from benchmarks.spark_ways import session

WINDOWS = (
    {"name": "hour", "type": "hopping", "size": "1 hour", "hop": "5 minutes"},
    {"name": "day", "type": "hopping", "size": "1 day", "hop": "1 hour"},
)
AGGREGATES = {"n": {"count": "*"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "spread": {"stddev_samp": "v"}}
KEYS, ROWS_PER_MINUTE = 100, 50
COUNTED_STEPS = ("survey", "restore", "apply", "validate", "publish", "remember", "commit")


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=100_000, help="rows of the shorter history (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    days = given.history / ROWS_PER_MINUTE / 1440
    workload = f"{given.rows:,} new rows of {KEYS} keys after {days:.1f} days of history, and after ten times as much"
    measured = Measurement("small_runs", "runs over few rows, 12 and 24 windows at a time", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        pipelines = {
            name: Growing(Path(scratch).absolute() / name, WINDOWS, AGGREGATES, keys=KEYS, rows_per_minute=ROWS_PER_MINUTE)
            for name in ("short", "long")
        }
        for (name, pipeline), factor in zip(pipelines.items(), (1, 10), strict=True):
            console.print(f"{name} history: {given.history * factor:,} rows")
            pipeline.land_history(given.history * factor)
        results = {name: Result(f"run after the {name} history") for name in pipelines}
        steps: dict[str, list[float]] = {step: [] for step in COUNTED_STEPS}
        commits = []
        for round_ in range(-WARM_ROUNDS, given.repetitions):
            for name, pipeline in pipelines.items():
                pipeline.land(given.rows)
                seconds, done, spark_commits = pipeline.run()
                console.print(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {name} history: {seconds:.2f} s")
                if round_ >= 0:
                    results[name].take(round_, seconds)
                    commits.append(float(spark_commits))
                    for step in COUNTED_STEPS:
                        steps[step].append(done.outcome.timings.get(step, 0.0))
    measured.take(list(results.values()))
    measured.figures = [
        Figure("a run", results["short"].seconds + results["long"].seconds, most=3, unit="s"),
        Figure("Spark-side commits", commits, most=2, unit="commits"),
        Figure("long history / short", ratios(results["short"], results["long"]), most=1.2),
    ]
    measured.notes.append("seconds by step: " + ", ".join(f"{step} {statistics.median(taken):.2f}" for step, taken in steps.items()))
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
