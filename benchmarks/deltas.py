"""Runs over few rows where windows are long: ``python -m benchmarks.deltas``.

Two pipelines take the same events in turn on one warm session: one holds the last tuples of a key, the other as many tuples that a delta
evicts from anywhere.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing, take_turns
from benchmarks.processes import timed
from benchmarks.race import ratios
from benchmarks.spark_ways import session

BY_COUNT, BY_DELTA = "the last tuples", "tuples that a delta evicts"
AGGREGATES = {"rows": {"count": "*"}, "total": {"sum": "v"}, "mean": {"mean": "v"}, "greatest": {"max": "code"}}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, default=100_000, help="live tuples of a key (default %(default)s)")
    parser.add_argument("--keys", type=int, default=4, help="keys (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    # A tuple leaves when it is up to twice as old as the window is long: half of those of its age have left before.
    history, by = 5 * given.live * given.keys // 2, 2 * given.live
    workload = f"{given.rows:,} new rows of {given.keys} keys after {history:,}; {given.live:,} tuples in a window, one every 100"
    measured = Measurement("deltas", "runs over few rows, by eviction", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()  # one that will live long; the first run would start one for a small batch
    evictions = {BY_COUNT: {"count": given.live}, BY_DELTA: {"delta": {"column": "level", "by": float(by)}}}
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        pipelines = {}
        for number, (name, evict) in enumerate(evictions.items()):
            window = {"name": "w", "type": "sliding", "evict": evict, "trigger": {"count": 100}}
            folder = Path(scratch).absolute() / f"evicts_{number}"
            pipeline = Growing(folder, [window], AGGREGATES, keys=given.keys, rows_per_minute=700, spread=float(by))
            _, seconds, _ = timed(partial(pipeline.land_history, history))
            console.print(f"{name}: {history:,} rows of history in {seconds:.0f} s, {pipeline.state}")
            pipelines[name] = pipeline
        results = take_turns(pipelines, given.rows, given.repetitions, console.print)
        measured.notes += [f"{name}: {pipeline.state}" for name, pipeline in pipelines.items()]
    measured.take(list(results.values()))
    measured.figures = [Figure(f"{BY_DELTA} / {BY_COUNT}", ratios(results[BY_COUNT], results[BY_DELTA]), most=3)]
    measured.notes.append(f"{BY_COUNT}: {statistics.median(results[BY_COUNT].seconds):.2f} s a run")
    measured.finish(console, given.results)
    return measured


if __name__ == "__main__":
    main()
