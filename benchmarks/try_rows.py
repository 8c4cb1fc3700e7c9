"""What ``windowmill try`` takes, reading and printing included: ``make bench-try``.

A million generated rows through pipelines of three windows and five aggregates that bring about a million result rows, each run as its user
would run it: the command in a process of its own, its output in a file. Then the same spec over ten rows: what starting costs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console
from rich.table import Table

from windowmill.jobs.commands.try_command import KernelEngine, TryBatch
from windowmill.jobs.json_lines import read_rows, result_lines
from windowmill.windowing.specfile import load_pipeline

KEYS = 1_000
#: 2024-01-01T00:00:00Z.
START_US = 1_704_067_200_000_000
#: Microseconds from a row to the next; a million rows cover 27 hours and 47 minutes.
STEP_US = 100_000
#: How far rows stray from the order of time.
DISORDER_US = 20_000_000
_SPEC: dict[str, Any] = {
    "pipeline": "bench",
    "keys": ["k"],
    "time": {"column": "t", "disorder": "20 seconds"},
    "aggregates": {
        "n": {"count": "*"},
        "mean": {"mean": "v"},
        "top": {"max": "v"},
        "spread": {"stddev_samp": "v"},
        "worst": {"arg_max": ["v", "id"]},
    },
}
#: Windows by the name of their mix. Hops and triggers are chosen for about a result row an input row.
MIXES: dict[str, list[dict[str, Any]]] = {
    "sessions": [
        {"name": "minutes", "type": "tumbling", "size": "5 minutes"},
        {"name": "rolling", "type": "hopping", "size": "1 hour", "hop": "4 minutes"},
        {"name": "visits", "type": "session", "gap": "3 minutes"},
    ],
    "policies": [
        {"name": "rolling", "type": "hopping", "size": "1 hour", "hop": "20 minutes"},
        {"name": "last", "type": "sliding", "evict": {"count": 50}, "trigger": {"count": 10}},
        {"name": "spans", "type": "count", "count": 10},
    ],
}
SMALL_ROWS = 10


def write_rows(path: Path, rows: int) -> None:
    """``rows`` JSON lines of ``KEYS`` keys, out of order by up to ``DISORDER_US``."""
    rng = np.random.default_rng(7)
    t = START_US + np.arange(rows) * STEP_US - rng.integers(0, DISORDER_US, rows)
    stamps = np.datetime_as_string(t.astype("datetime64[us]"), unit="us")
    keys, values = rng.integers(0, KEYS, rows), rng.normal(10.0, 25.0, rows).round(3)
    with path.open("w") as out:
        out.writelines(
            f'{{"k": "key{key}", "t": "{stamp}Z", "v": {value}, "id": {place}}}\n'
            for place, (key, stamp, value) in enumerate(zip(keys.tolist(), stamps.tolist(), values.tolist(), strict=True))
        )


def timed(spec: Path, rows: Path, out: Path) -> float:
    """Seconds of one command, from its start to its end."""
    command = [sys.executable, "-m", "windowmill.jobs.cli", "try", str(spec), "--input", str(rows), "--engine", "kernel"]
    begun = time.perf_counter()
    with out.open("wb") as printed, out.with_suffix(".err").open("wb") as told:
        subprocess.run(command, stdout=printed, stderr=told, check=True)
    return time.perf_counter() - begun


def split(spec: Path, rows: Path, out: Path) -> dict[str, float]:
    """Seconds of each part of the command's work, in this process."""
    seconds: dict[str, float] = {}
    begun = time.perf_counter()

    def told(part: str) -> None:
        nonlocal begun
        begun, before = time.perf_counter(), begun
        seconds[part] = begun - before

    pipeline = load_pipeline(spec)
    read = read_rows(rows.read_bytes(), pipeline)
    told("read")
    engine = KernelEngine(pipeline, float("inf"))
    engine.feed(TryBatch(read.table, {}, np.arange(read.table.num_rows)))
    results = engine.finish(final=True)
    told("compute")
    with out.open("wb") as printed:
        printed.writelines(result_lines(results.rows, pipeline))
    told("print")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="input rows (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default %(default)s)")
    options = parser.parse_args()
    console = Console()
    table = Table(title=f"windowmill try: seconds, {options.rounds} runs each", title_justify="left")
    for column in ("windows", "rows in", "rows out", "best", "median", "worst", "read", "compute", "print"):
        table.add_column(column, justify="left" if column == "windows" else "right")
    with tempfile.TemporaryDirectory(prefix="windowmill-bench-") as scratch:
        folder = Path(scratch)
        inputs = {SMALL_ROWS: folder / "few.jsonl", options.rows: folder / "rows.jsonl"}
        spec, out = folder / "spec.yaml", folder / "results.jsonl"
        for rows, path in inputs.items():
            console.print(f"writing {rows:,} rows")
            write_rows(path, rows)
        for name, windows in MIXES.items():
            spec.write_text(yaml.safe_dump(_SPEC | {"windows": windows}, sort_keys=False))
            for rows, path in inputs.items():
                seconds = []
                for round_ in range(options.rounds):
                    seconds.append(timed(spec, path, out))
                    console.print(f"{name}, {rows:,} rows, run {round_ + 1} of {options.rounds}: {seconds[-1]:.2f} s")
                with out.open("rb") as printed:
                    results = sum(1 for _ in printed)
                # The small input comes first, so that what is split has its libraries loaded: the rest of a command's seconds is that.
                parts = split(spec, path, out)
                shown = [min(seconds), statistics.median(seconds), max(seconds), *(parts.values() if rows > SMALL_ROWS else ())]
                table.add_row(name, f"{rows:,}", f"{results:,}", *(f"{value:.2f}" for value in shown))
    console.print(table)


if __name__ == "__main__":
    main()
