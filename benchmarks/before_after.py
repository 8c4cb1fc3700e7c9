"""Compare this checkout with another one, round by round: ``python -m benchmarks.before_after --before FOLDER``.

Each checkout has a process and a warm Spark session of its own; both land the same rows and run in turn, the one that begins changing
from round to round, so that what slows the machine down slows both. A ratio above 1 means that this checkout is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLICED = {"name": "w", "type": "hopping", "size": "1 hour", "hop": "1 minute"}
LONG = {"name": "w", "type": "hopping", "size": "10 hours", "hop": "1 minute"}
POLICY = {"name": "w", "type": "sliding", "evict": {"count": 100}, "trigger": {"count": 10}}
LIVE = {"name": "w", "type": "count", "count": 100}
DELTA = {"name": "w", "type": "sliding", "evict": {"delta": {"column": "t", "by": "1 hour"}}, "trigger": {"count": 10}}
AGGREGATES = {"n": {"count": "v"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "sd": {"stddev_samp": "v"}}


@dataclass(frozen=True)
class Workload:
    """A pipeline after ``history`` rows that takes ``rows`` new ones a run; no history: ``rows`` events in one DataFrame."""

    window: dict[str, Any]
    rows: int
    history: int = 0
    keys: int = 1_000
    rows_per_minute: int = 3_500


WORKLOADS = {
    "1,000 new rows, slices": Workload(SLICED, 1_000, history=500_000, keys=100, rows_per_minute=50),
    "1,000 new rows, policies": Workload(POLICY, 1_000, history=100_000, keys=100, rows_per_minute=50),
    "1,000 new rows, delta eviction": Workload(DELTA, 1_000, history=100_000, keys=100, rows_per_minute=50),
    "1,000 new rows, live rows": Workload(LIVE, 1_000, history=100_000, keys=100, rows_per_minute=50),
    "50,000 new rows, slices": Workload(SLICED, 50_000, history=1_000_000),
    "50,000 new rows, windows of 10 hours": Workload(LONG, 50_000, history=4_000_000),
    "50,000 new rows, policies": Workload(POLICY, 50_000, history=500_000),
    "50,000 new rows, delta eviction": Workload(DELTA, 50_000, history=500_000),
    "50,000 new rows, live rows": Workload(LIVE, 50_000, history=500_000),
    "aggregate, 2 M rows, hopping": Workload(SLICED, 2_000_000),
    "aggregate, 2 M rows, sliding": Workload(POLICY, 2_000_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the commit to compare with")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[1], help="the other checkout (default: this one)")
    parser.add_argument("--repetitions", type=int, default=9, help="counted rounds (default %(default)s)")
    parser.add_argument("--warm", type=int, default=4, help="rounds before them (default %(default)s)")
    parser.add_argument("--only", default="", help="workloads whose name holds this text")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory() as scratch:
        sides = {name: Side(path.absolute(), Path(scratch) / name) for name, path in (("before", given.before), ("after", given.after))}
        try:
            for name in (name for name in WORKLOADS if given.only in name):
                _compare(name, sides, given.warm, given.repetitions)
        finally:
            for side in sides.values():
                side.stop()


def _compare(name: str, sides: dict[str, Side], warm: int, repetitions: int) -> None:
    """Print a line for the workload ``name``: seconds of both, and the ratios pair by pair, of time and of processor time."""
    for process in sides.values():
        process.ask(do="prepare", workload=name)
    taken: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for round_ in range(-warm, repetitions):
        for side in list(sides) if round_ % 2 else reversed(sides):
            reply = sides[side].ask(do="run", workload=name)
            if round_ >= 0:
                taken[side].append((reply["seconds"], reply["cpu"]))
    seconds, processor = ([[pair[of] for pair in pairs] for pairs in taken.values()] for of in (0, 1))
    told = [f"{side} {statistics.median(values):.3f} s" for side, values in zip(taken, seconds, strict=True)]
    for what, (before, after) in (("time", seconds), ("processor time", processor)):
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        told.append(f"{what} × {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"{name}: {', '.join(told)}", flush=True)


class Side:
    """A process that works with the code of ``checkout``."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        folder.mkdir()
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--worker", str(folder)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # so that it can be stopped together with its JVM and workers
        )

    def ask(self, **command: str) -> dict[str, float]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} has ended:\n{Path(self._log.name).read_text()[-4000:]}")
        reply: dict[str, float] = json.loads(line)
        return reply

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def work(folder: Path) -> None:
    """Carry out what comes on stdin, and reply on stdout."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries and JVMs print goes to the log
    from benchmarks.processes import timed
    from benchmarks.spark_ways import session

    session()
    ready: dict[str, Any] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name, workload = command["workload"], WORKLOADS[command["workload"]]
        seconds = cpu = 0.0
        if command["do"] == "prepare":
            ready[name] = _frame(folder, workload) if not workload.history else _growing(folder / f"pipeline_{len(ready)}", workload)
        elif workload.history:
            ready[name].land(workload.rows)
            _, seconds, cpu = timed(ready[name].run)
        else:
            _, seconds, cpu = timed(ready[name])
        print(json.dumps({"seconds": seconds, "cpu": cpu}), file=replies, flush=True)


def _growing(folder: Path, workload: Workload) -> Any:
    from benchmarks.pipelines import Growing

    pipeline = Growing(folder, [workload.window], AGGREGATES, keys=workload.keys, rows_per_minute=workload.rows_per_minute)
    pipeline.land_history(workload.history)
    return pipeline


def _frame(folder: Path, workload: Workload) -> Any:
    from benchmarks.events import Events
    from benchmarks.spark_ways import aggregate, session, spec

    events = f"{Events(workload.rows, workload.keys).land(folder / 'events')}/us.parquet"
    pipeline = spec(workload.window) | {"aggregates": AGGREGATES}
    return lambda: aggregate(session().read.parquet(events), pipeline).write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main()
