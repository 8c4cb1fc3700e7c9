"""What computed columns, lookups and a table of current rows add to a run: ``python -m benchmarks.around_windows``.

Each run is a process of its own beside one of the same pipeline without the step: first batches over new sinks, by Spark where they have
more rows than ``compute: local`` takes, and runs over 1,000 changed keys of a million behind a table of current rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import START_US
from benchmarks.processes import MemoryWatch, alone
from benchmarks.race import Result, ratios
from benchmarks.warm_runs import script

HOUR_US = 3_600_000_000
CODES, CHANGED, KEYS = 100_000, 1_000, 999_999
_INSTANT = pa.timestamp("us", "UTC")
COLUMNS = {"both": "v + w", "share": "v / (w + 1)", "code": "upper(o)"}


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of a batch with computed columns (default %(default)s)")
    parser.add_argument("--looked-up", type=int, default=1_000_000, help="rows of a batch with a lookup (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="counted rounds (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    workload = f"{given.rows:,} rows, {given.looked_up:,} rows that look up {CODES:,}, {CHANGED:,} of {KEYS:,} keys"
    measured = Measurement("around_windows", "steps before windows, current rows behind them", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch).absolute()
        _first_batches(folder, given, measured)
        _current(folder, given.repetitions, measured)
    measured.finish(measurement.terminal(), given.results)
    return measured


@dataclass(frozen=True)
class _Way:
    """A pipeline below a folder, which ``windowmill run`` takes by its own process."""

    folder: Path
    name: str
    spec: Mapping[str, Any]

    def __post_init__(self) -> None:
        sink = {"path": str(self.sink)} | self.spec.get("sink", {})
        self.file.write_text(yaml.safe_dump({"pipeline": self.name, **self.spec, "sink": sink}))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def sink(self) -> Path:
        return self.folder / self.name

    def run(self) -> tuple[float, float, float]:
        """Seconds of a run, its processor time, and the greatest memory of its process in MiB; 0 by Spark."""
        if self.spec["compute"] == "spark":
            return *alone([script(sys.executable), "run", str(self.file)], os.environ)[:2], 0.0
        begun, command = time.perf_counter(), [script(sys.executable), "run", str(self.file)]
        with tempfile.TemporaryFile() as messages:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages, start_new_session=True)
            with MemoryWatch(process.pid) as watch:
                _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            messages.seek(0)
            assert process.returncode == 0, messages.read().decode()
        return time.perf_counter() - begun, used.ru_utime + used.ru_stime, watch.peak_bytes / (1 << 20)

    def forget(self) -> None:
        """Remove all that runs have written."""
        for path in (self.sink, Path(f"{self.sink}.windowmill")):
            shutil.rmtree(path, ignore_errors=True)


def _first_batches(folder: Path, given: argparse.Namespace, measured: Measurement) -> None:
    rng = np.random.default_rng(1)
    for name, rows in (("many", given.rows), ("some", given.looked_up)):
        times = START_US + np.arange(rows) * (24 * HOUR_US // rows)
        code = rng.integers(0, CODES, rows)
        own = {"t": pa.array(times, _INSTANT), "k": code % 1_000, "o": pa.array(code).cast(pa.string())}
        write_deltalake(folder / name, pa.table(own | {"v": rng.integers(0, 100, rows), "w": rng.integers(0, 100, rows)}))
    codes = [str(code) for code in range(CODES)]
    write_deltalake(folder / "codes", pa.table({"code": codes, "region": np.arange(CODES) % 1_000}))
    since = np.repeat([0, START_US + 8 * HOUR_US, START_US + 16 * HOUR_US], CODES)
    dated = {"code": codes * 3, "region": np.arange(3 * CODES) % 1_000, "since": pa.array(since, _INSTANT)}
    write_deltalake(folder / "codes_by_time", pa.table(dated))
    lookup = {"on": {"o": "code"}, "columns": ["region"]}
    ways = {
        "plain_many": _spec(folder / "many", "k", {"s": {"sum": "v"}, "m": {"max": "w"}, "c": {"max": "o"}}, compute="spark"),
        "columns": _spec(
            folder / "many", "k", {"s": {"sum": "both"}, "m": {"max": "share"}, "c": {"max": "code"}}, {"columns": COLUMNS}, compute="spark"
        ),
        "plain_some": _spec(folder / "some", "k", {"s": {"sum": "v"}}),
        "lookup": _spec(folder / "some", "region", {"s": {"sum": "v"}}, {"lookup": {"path": str(folder / "codes"), **lookup}}),
        "lookup_by_time": _spec(
            folder / "some",
            "region",
            {"s": {"sum": "v"}},
            {"lookup": {"path": str(folder / "codes_by_time"), **lookup, "valid_from": "since"}},
        ),
    }
    found = _rounds([_Way(folder, name, spec) for name, spec in ways.items()], given.repetitions, new_sinks=True)
    measured.take(list(found.values()))
    for name, other, most in (("columns", "plain_many", 1.3), ("lookup", "plain_some", 2.0), ("lookup_by_time", "plain_some", 2.0)):
        measured.figures.append(Figure(f"a first run with {name} / without", ratios(found[other], found[name]), most=most))


def _spec(source: Path, key: str, aggregates: dict[str, Any], *steps: dict[str, Any], compute: str = "local") -> dict[str, Any]:
    windows = [{"name": "hours", "type": "tumbling", "size": "1 hour"}]
    spec = {"source": {"path": str(source)}, "keys": [key], "time": {"column": "t"}, "windows": windows, "aggregates": aggregates}
    return spec | {"compute": compute} | ({"steps": list(steps)} if steps else {})


def _current(folder: Path, repetitions: int, measured: Measurement) -> None:
    source, rng = folder / "keys", np.random.default_rng(2)
    plain = _Way(folder, "append_only", _spec(source, "k", {"n": {"count": "*"}, "s": {"sum": "v"}}))
    kept = _Way(folder, "with_current", dict(plain.spec) | {"sink": {"current": str(folder / "now")}})

    def land(keys: np.ndarray, hour: int) -> None:
        # The last row closes the windows of the others.
        times = np.append(np.full(len(keys), START_US + hour * HOUR_US), START_US + (hour + 1) * HOUR_US)
        rows = {"t": pa.array(times, _INSTANT), "k": np.append(keys, 0), "v": rng.integers(0, 100, len(keys) + 1)}
        write_deltalake(source, pa.table(rows), mode="append")

    land(np.arange(KEYS), 0)
    for way in (plain, kept):
        way.run()
    hours, memory = iter(range(2, 1_000, 2)), dict[str, list[float]]()
    found = _rounds([plain, kept], repetitions, land=lambda: land(rng.choice(KEYS, CHANGED, replace=False), next(hours)), memory=memory)
    measured.take(list(found.values()))
    measured.figures.append(Figure("a run with current / append only", ratios(found["append_only"], found["with_current"]), most=2))
    more = [one - other for one, other in zip(memory["with_current"], memory["append_only"], strict=True)]
    measured.figures.append(Figure("memory more with current", more, most=300, unit="MiB"))
    shown = DeltaTable(folder / "now").to_pyarrow_table(columns=["k"])
    measured.notes.append(f"current: {len(shown):,} rows")


def _rounds(
    ways: list[_Way], repetitions: int, *, new_sinks: bool = False, land: Any = None, memory: dict[str, list[float]] | None = None
) -> dict[str, Result]:
    """Runs of the ``ways`` in turn, round by round, each round behind what ``land`` appends; the first round is not counted."""
    say, results = measurement.terminal().print, {way.name: Result(way.name) for way in ways}
    for round_ in range(-1, repetitions):
        if land is not None:
            land()
        for way in ways:
            if new_sinks:
                way.forget()
            seconds, used, peak = way.run()
            which = "warm-up" if round_ < 0 else f"round {round_ + 1}"
            say(f"  {which}: {way.name}: {seconds:.2f} s, {used:.2f} s of processor time{f', {peak:,.0f} MiB' if peak else ''}")
            if round_ >= 0:
                results[way.name].take(round_, seconds, used)
                if memory is not None:
                    memory.setdefault(way.name, []).append(peak)
    return results


if __name__ == "__main__":
    main()
