"""What a small run costs, and that the history behind it does not matter: ``make bench-incremental``.

Two pipelines with the same spec, one with ten times the history of the other, take batches of 1,000 new rows in turn on one warm Spark
session; seconds by step, Spark-side commits, and the ratio of the two pair by pair.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rich.console import Console
from rich.table import Table

from jobs import runs
from jobs.maintenance import maintain
from jobs.progress import Progress
from windowing.axis import from_us
from windowing.spec import Pipeline
from windowing.specfile import parse_pipeline

MINUTE_US = 60_000_000
START_US = 1_700_000_040_000_000
KEYS = 100
ROWS_PER_MINUTE = 50
COUNTED_STEPS = ("restore", "apply", "validate", "publish", "remember", "commit")


class Bench:
    """A pipeline over generated events, its source and sink below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rng, self.rows = folder, np.random.default_rng(7), 0
        self.pipeline: Pipeline = parse_pipeline(
            {
                "pipeline": folder.name,
                "source": {"path": str(folder / "source")},
                "keys": ["k"],
                "time": {"column": "t", "disorder": "1 minute"},
                "windows": [
                    {"name": "hour", "type": "hopping", "size": "1 hour", "hop": "5 minutes"},
                    {"name": "day", "type": "hopping", "size": "1 day", "hop": "1 hour"},
                ],
                "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "spread": {"stddev_samp": "v"}},
                "sink": {"path": str(folder / "sink")},
            }
        )

    def land(self, rows: int) -> None:
        """Append ``rows`` events that follow those before."""
        t = START_US + (self.rows + np.arange(rows)) * MINUTE_US // ROWS_PER_MINUTE
        events = {"k": self.rng.integers(0, KEYS, rows), "t": pa.array(t, pa.timestamp("us", "UTC")), "v": self.rng.random(rows)}
        write_deltalake(str(self.folder / "source"), pa.table(events), mode="append")
        self.rows += rows

    def backfill(self) -> None:
        """Take the whole history in one batch, as a new user would."""
        end = START_US + self.rows * MINUTE_US
        runs.backfill(self.pipeline, _quiet(), begin=START_US - 1, end=end)

    def run(self) -> tuple[float, dict[str, float], int]:
        """One run: seconds, seconds by step, Spark-side commits."""
        tables = [str(self.folder / "sink"), f"{self.folder / 'sink'}.windowmill/state"]
        before = [DeltaTable(path).version() for path in tables]
        begun = time.perf_counter()
        [done] = runs.run(self.pipeline, _quiet())
        seconds = time.perf_counter() - begun
        return seconds, done.commit.timings, sum(DeltaTable(path).version() - v for path, v in zip(tables, before, strict=True))


def _quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", type=int, default=100_000, help="rows of the shorter history (default %(default)s)")
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="counted runs of each (default %(default)s)")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="windowmill-bench-") as scratch:
        benches = {name: Bench(Path(scratch) / name) for name in ("short", "long")}
        for (name, bench), factor in zip(benches.items(), (1, 10), strict=True):
            days = options.history * factor / ROWS_PER_MINUTE / 1440
            console.print(f"{name}: {options.history * factor:,} rows of history ({days:.1f} days), landed in 20 versions and backfilled")
            for _ in range(20):
                bench.land(options.history * factor // 20)
            bench.backfill()
            maintain(bench.pipeline, _quiet())
        taken: dict[str, list[tuple[float, dict[str, float], int]]] = {name: [] for name in benches}
        for round_ in range(options.rounds + 2):
            for name, bench in benches.items():
                bench.land(options.rows)
                result = bench.run()
                if round_ >= 2:  # the first two warm Spark up
                    taken[name].append(result)
            console.print(
                f"round {round_ + 1} of {options.rounds + 2}, through {from_us(START_US + benches['long'].rows * MINUTE_US // 50):%Y-%m-%d}"
            )
        _tell(console, taken)


def _tell(console: Console, taken: dict[str, list[tuple[float, dict[str, float], int]]]) -> None:
    table = Table(title="seconds of a run, median (min to max)", title_justify="left")
    for column in ("history", "whole run", *COUNTED_STEPS, "Spark-side commits"):
        table.add_column(column, justify="right")
    for name, results in taken.items():
        seconds = [s for s, _, _ in results]
        steps = [f"{statistics.median(t.get(step, 0.0) for _, t, _ in results):.2f}" for step in COUNTED_STEPS]
        whole = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        table.add_row(name, whole, *steps, str(max(c for _, _, c in results)))
    console.print(table)
    ratios = [b[0] / a[0] for a, b in zip(taken["short"], taken["long"], strict=True)]
    console.print(f"long / short, pair by pair: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
