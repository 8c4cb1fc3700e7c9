"""What every benchmark shares: options, the machine it ran on, the summary at the end, and the record from which the report is made."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.race import ROOT, Result, cpu_of, ratios, seconds_of, spread

FOLDER = ROOT / ".bench"
RESULTS = ROOT / "benchmarks/results.jsonl"
_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "numba", "numpy")
_PEERS = ("apache-flink", "duckdb", "polars")


@dataclass(frozen=True)
class Figure:
    """A ratio, or another number, with what is to be reached.

    ``values`` come one from each round; ``most`` or ``least`` bounds their median. ``at_least``: the other way was stopped before its end,
    so that the values are lower bounds.
    """

    name: str
    values: Sequence[float]
    least: float | None = None
    most: float | None = None
    unit: str = "×"
    at_least: bool = False

    @classmethod
    def faster(cls, ours: Result, theirs: Result, *, least: float | None = None) -> Figure:
        """How many times as long as ours theirs takes."""
        stopped = theirs.over is not None and not theirs.seconds
        values = [theirs.over / seconds for seconds in ours.seconds] if stopped and theirs.over else ratios(ours, theirs)
        return cls(f"{theirs.label} / {ours.label}", values, least=least, at_least=stopped)

    @property
    def reached(self) -> bool | None:
        """Whether the median is within its bound; None if there is no bound, or no value."""
        if not self.values or (self.least is None and self.most is None):
            return None
        median = statistics.median(self.values)
        if self.at_least and self.least is not None and median < self.least:
            return None
        return (self.least is None or median >= self.least) and (self.most is None or median <= self.most)

    @property
    def value(self) -> str:
        """The values with their unit."""
        return f"{'more than ' if self.at_least else ''}{spread(self.values)} {self.unit}" if self.values else "not measured"

    @property
    def goal(self) -> str:
        return f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}" if self.most is not None else ""


@dataclass
class Measurement:
    """One run of one benchmark; ``name`` and ``workload`` together say what was measured."""

    name: str
    title: str
    workload: str
    results: list[dict[str, Any]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    load: list[float] = field(default_factory=lambda: [os.getloadavg()[0]])

    def take(self, results: Sequence[Result]) -> None:
        """Add the results of a race."""
        self.results += [result.record() for result in results]

    def finish(self, console: Console, to: Path) -> None:
        """Print the summary and append the record to the file ``to``."""
        self.load.append(os.getloadavg()[0])
        self._tell(console)
        record = asdict(self) | {
            "figures": [
                asdict(figure) | {"reached": figure.reached, "value": figure.value, "goal": figure.goal} for figure in self.figures
            ],
            "command": command(self.name, sys.argv[1:]),
            "commit": commit(),
            "taken": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": versions(),
        }
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def _tell(self, console: Console) -> None:
        if self.results:
            table = Table(title=f"{self.title}: {self.workload}", title_justify="left")
            for column in ("", "seconds, median (least to greatest)", "of processor time", "rounds"):
                table.add_column(column)
            for result in self.results:
                table.add_row(result["label"], seconds_of(result), cpu_of(result), str(len(result.get("seconds", []))))
            console.print(table)
        for figure in self.figures:
            verdict = {True: "reached", False: "NOT reached", None: ""}[figure.reached]
            console.print(f"{figure.name}: {figure.value}  {figure.goal} {verdict}".rstrip())
        for note in self.notes:
            console.print(note)
        console.print(f"load average {self.load[0]:.1f} before, {self.load[-1]:.1f} after")


def terminal() -> Console:
    """A console for progress lines and summaries, which does not break lines."""
    return Console(soft_wrap=True, highlight=False)


def options(description: str | None, *, rows: int, keys: int) -> argparse.ArgumentParser:
    """A parser with the options that every race takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help="events (default %(default)s)")
    parser.add_argument("--keys", type=int, default=keys, help="keys (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="counted rounds (default %(default)s)")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a way is stopped (default %(default)s)")
    parser.add_argument("--warm", type=float, default=10, help="seconds a quick way runs before each round (default %(default)s)")
    parser.add_argument("--budget", type=float, default=100, help="seconds of rounds after which a way rests (default %(default)s)")
    return place(parser)


def place(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that say where things are written."""
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for events and scratch files (default %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to append the record to (default %(default)s)")
    return parser


def command(name: str, arguments: Sequence[str]) -> str:
    """The command that measures the same again, without the places of this machine."""
    places = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    rest = place(places).parse_known_args(arguments)[1]
    return shlex.join(["python", "-m", f"benchmarks.{name}", *rest])


def commit() -> str:
    """The commit of the code that was measured, marked if files differ from it."""
    said = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """The machine, as far as figures depend on it."""
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    memory_gib = round(psutil.virtual_memory().total / (1 << 30))
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": memory_gib, "system": platform.system()}


def versions() -> dict[str, str]:
    """Versions of what was measured, peers' from their locks."""
    pinned = dict(
        line.split(" ")[0].split("==") for name in ("peers", "flink") for line in _lines(ROOT / f"benchmarks/{name}.lock") if "==" in line
    )
    own = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **own, **{name: pinned[name] for name in _PEERS}}


def _lines(path: str | Path) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []
