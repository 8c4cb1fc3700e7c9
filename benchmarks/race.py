"""Races: several ways to do one task, timed in turn in the same run, each engine in a process of its own, warm.

A round asks every entry once. The first round writes the rows for comparison and warms the engines up; it is not counted, and neither is
what a quick entry runs before each of its rounds to warm up again. An entry that has used up its budget sits out the remaining rounds, and
one that exceeds the limit is stopped: "more than N s" is its figure.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_seconds

ROOT = Path(__file__).parents[1]
#: Module of an engine's ways -> its Python.
PYTHONS = {
    "benchmarks.spark_ways": Path(sys.executable),
    "benchmarks.job_windowmill": Path(sys.executable),
    "benchmarks.job_spark": Path(sys.executable),
    "benchmarks.job_duckdb": Path(sys.executable),
    "benchmarks.job_streaming": Path(sys.executable),
    "benchmarks.peer_ways": ROOT / ".venv-bench/peers/bin/python",
    "benchmarks.flink_ways": ROOT / ".venv-bench/flink/bin/python",
    "benchmarks.nexmark_spark": Path(sys.executable),
    "benchmarks.nexmark_flink": ROOT / ".venv-bench/flink/bin/python",
}


@dataclass(frozen=True)
class Entry:
    """A way of an engine with its task; ``label`` names it in tables.

    ``textbook``: its standard deviation comes from sums of squares, so it is compared by absolute difference.
    """

    label: str
    engine: str
    way: str
    task: dict[str, Any]
    textbook: bool = False


@dataclass
class Result:
    """Seconds of an entry's counted rounds, and how much processor time all its processes took."""

    label: str
    seconds: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    over: float | None = None
    error: str | None = None

    @property
    def out(self) -> bool:
        return self.over is not None or self.error is not None

    def take(self, round_: int, seconds: float, cpu: float | None = None) -> None:
        """Add a counted round, and its processor time where that is known."""
        self.rounds.append(round_)
        self.seconds.append(seconds)
        if cpu is not None:
            self.cpu_seconds.append(round(cpu, 2))

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value not in (None, {}, []) and name != "rounds"}


class OvertimeError(Exception):
    """An entry took longer than allowed; its process has been stopped."""


class Engine:
    """A running process of :mod:`benchmarks.contestant`."""

    def __init__(self, module: str, log: Path, environment: dict[str, str]) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [PYTHONS[module], "-m", "benchmarks.contestant", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "POLARS_MAX_THREADS": "2", **environment},  # the others are told by their ways
            start_new_session=True,  # so that it can be stopped together with its JVM and workers
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, limit: float, **command: Any) -> dict[str, Any]:
        """Send a command and wait for its reply; raises ``OvertimeError`` after ``limit`` seconds."""
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"its process has ended; see {self._log.name}"}
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.stop()
                raise OvertimeError
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": f"its process has ended; see {self._log.name}"}

    def stop(self) -> None:
        """End the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._log.close()


class Race:
    """Entries that compete on one task; used as a context, at whose end all processes are gone.

    Parameters
    ----------
    limit
        Seconds that one command may take.
    budget
        Seconds of counted rounds after which an entry rests.
    warm
        Seconds that an entry runs before each of its rounds, unless a single run takes longer.
    environment
        Added to the environment of the processes.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        folder: Path,
        *,
        limit: float,
        budget: float,
        warm: float = 0,
        say: Callable[[str], None],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.entries, self.folder, self.limit, self.budget, self.warm, self.say = entries, folder, limit, budget, warm, say
        self._environment = environment or {}
        self.results = {entry.label: Result(entry.label) for entry in entries}
        self._engines: dict[str, Engine] = {}
        self._prepared: set[tuple[int, str]] = set()
        self._last: dict[str, float] = {}

    def __enter__(self) -> Race:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the processes end with this one
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        for engine in self._engines.values():
            engine.stop()

    def compete(self, repetitions: int) -> None:
        """One round that writes each entry's rows to ``rows_of``, then ``repetitions`` counted ones."""
        for entry in self.entries:
            reply = self._ask(entry, "write", path=str(self.rows_of(entry.label)))
            self.say(f"  {entry.label}: rows written{self._told(entry, reply)}")
        for round_ in range(repetitions):
            for entry in self.entries:
                result = self.results[entry.label]
                if result.out or sum(result.seconds) > self.budget:
                    continue
                self._warm(entry)
                before = cpu_seconds(self.engine_of(entry).pid)
                reply = self._ask(entry, "run")
                if "seconds" in reply:
                    result.take(round_, reply["seconds"], cpu_seconds(self.engine_of(entry).pid) - before)
                    result.facts |= reply["facts"]
                self.say(f"  round {round_ + 1} of {repetitions}: {entry.label}{self._told(entry, reply)}")

    def _warm(self, entry: Entry) -> None:
        """Run a quick way uncounted: while others had their turns Spark has ended its idle Python workers, and compilers want many runs."""
        spent = 0.0
        while spent + self._last.get(entry.label, self.warm) < self.warm and "seconds" in (reply := self._ask(entry, "run")):
            spent += reply["seconds"]

    def rows_of(self, label: str) -> Path:
        """Folder or file of the rows that an entry wrote."""
        return self.folder / (label.replace(" ", "-").replace("/", "-") + ".parquet")

    def engine_of(self, entry: Entry) -> Engine:
        """The running process of an entry's engine."""
        if entry.engine not in self._engines:
            self._engines[entry.engine] = Engine(entry.engine, self.folder / f"{entry.engine}.log", self._environment)
        return self._engines[entry.engine]

    def _ask(self, entry: Entry, do: str, **more: Any) -> dict[str, Any]:
        result = self.results[entry.label]
        if result.out:
            return {}
        try:
            engine = self.engine_of(entry)
            if (engine.pid, entry.label) not in self._prepared:
                reply = engine.ask(self.limit, do="prepare", entry=entry.label, way=entry.way, task=entry.task)
                self._prepared.add((engine.pid, entry.label))
                if "error" in reply:
                    result.error = reply["error"]
                    return reply
            reply = engine.ask(self.limit, do=do, entry=entry.label, **more)
            result.error = reply.get("error")
            self._last[entry.label] = reply.get("seconds", self.warm)
        except OvertimeError:
            del self._engines[entry.engine]
            result.over = self.limit
            return {}
        return reply

    def _told(self, entry: Entry, reply: dict[str, Any]) -> str:
        result = self.results[entry.label]
        if result.error:
            return f" failed: {result.error.splitlines()[0][:200]}"
        return f": {reply['seconds']:.2f} s" if reply else f": more than {result.over:.0f} s"


def ratios(ours: Result, theirs: Result) -> list[float]:
    """Their seconds over ours, round by round."""
    own = dict(zip(ours.rounds, ours.seconds, strict=True))
    return [seconds / own[round_] for round_, seconds in zip(theirs.rounds, theirs.seconds, strict=True) if round_ in own]


def spread(values: Sequence[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def seconds_of(result: dict[str, Any]) -> str:
    """An entry's seconds as tables give them."""
    if "over" in result:
        return f"more than {result['over']:.0f}"
    if "error" in result:
        return "failed"
    return spread(result["seconds"]) if result.get("seconds") else ""


def cpu_of(result: dict[str, Any]) -> str:
    """An entry's processor time as tables give it; empty where the process does other things, too."""
    return f"{statistics.median(result['cpu_seconds']):.3g}" if result.get("cpu_seconds") else ""
