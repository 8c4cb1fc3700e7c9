"""What the state of windows of a week takes when its slices hold ten times as many rows: ``python -m benchmarks.state_bytes``.

Each kind of aggregate has two pipelines over the same days and keys, one with ten times the rows a minute. Nothing is timed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing
from benchmarks.small_runs import AGGREGATES
from benchmarks.spark_ways import session
from windowmill.checkpoints.places import Places

KEYS, DAYS, TIMES = 2, 10, 10
WEEK = ({"name": "week", "type": "hopping", "size": "7 days", "hop": "1 hour"},)
KINDS: dict[str, dict[str, Any]] = {
    "numbers": AGGREGATES,
    "approx_distinct": {"about": {"approx_distinct": "v"}},
    "count_distinct of 20 values": {"codes": {"count_distinct": "code"}},
    "p95": {"p95": {"quantile": {"column": "v", "q": 0.95}}},
}
SKETCHES = ("approx_distinct", "p95")


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-per-minute", type=int, default=20, help="rows a minute of all keys, the fewer ones (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    rows = DAYS * 1440 * given.rows_per_minute
    title = f"{rows:,} and {TIMES * rows:,} rows of {KEYS} keys in {DAYS} days; windows of 7 days every hour"
    measured = Measurement("state_bytes", "bytes of state with ten times the rows", title)
    given.folder.mkdir(parents=True, exist_ok=True)
    session()
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        for number, (name, aggregates) in enumerate(KINDS.items()):
            sizes = []
            for times in (1, TIMES):
                folder, rate = Path(scratch).absolute() / f"kind_{number}_{times}", times * given.rows_per_minute
                pipeline = Growing(folder, WEEK, aggregates, keys=KEYS, rows_per_minute=rate)
                pipeline.land_history(times * rows)
                sizes.append(_bytes(pipeline))
                measured.notes.append(f"{name}, {times * rows:,} rows: {pipeline.state}")
                console.print(measured.notes[-1])
            # A sketch grows until it is full.
            most = None if name in SKETCHES else 1.2
            measured.figures.append(Figure(f"{name}: bytes with {TIMES} times the rows", [sizes[1] / sizes[0]], most=most))
    measured.finish(console, given.results)
    return measured


def _bytes(pipeline: Growing) -> int:
    return sum(DeltaTable(Places.of(pipeline.pipeline).state).get_add_actions(flatten=True)["size_bytes"].to_pylist())


if __name__ == "__main__":
    main()
