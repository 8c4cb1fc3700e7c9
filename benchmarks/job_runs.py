"""Runs over few new rows, each a process of its own, cold and on a warm server, beside Structured Streaming."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from benchmarks import job_streaming
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing
from benchmarks.processes import alone
from benchmarks.race import Engine, Result
from benchmarks.warm_runs import run, served

HISTORY, KEYS, ROWS_PER_MINUTE = 100_000, 100, 50
#: Rounds that are not counted: what is warm gets warm.
WARM_ROUNDS = 2
WINDOW = {"name": "hour", "type": "hopping", "size": "1 hour", "hop": "5 minutes"}
SPEC_AGGREGATES = {"n": {"count": "*"}, "mean": {"mean": "v"}, "top": {"max": "v"}, "spread": {"stddev_samp": "v"}}


@dataclass
class _Way:
    """One way to take new rows, from a source of its own with the same rows as the others'; ``most`` seconds are to be reached."""

    label: str
    growing: Growing
    take: Callable[[], tuple[float, float | None]]
    most: float | None = None
    result: Result = field(init=False)

    def __post_init__(self) -> None:
        self.result = Result(self.label)


@dataclass
class FewRows:
    """Runs over ``rows`` new rows after ``HISTORY``, below ``folder``."""

    folder: Path
    rows: int
    repetitions: int
    say: Callable[[str], None]

    def measure(self, measured: Measurement) -> None:
        """Run all ways in turn, and add their times."""
        self.folder.mkdir(parents=True)
        with served() as server, self._engine() as engine:
            ways = [*self._by_windowmill(server["address"]), *self._by_streaming(engine)]
            for way in ways:
                way.growing.land(HISTORY)
                way.take()
            for round_ in range(-WARM_ROUNDS, self.repetitions):
                for way in ways:
                    way.growing.land(self.rows)
                    seconds, used = way.take()
                    self.say(f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {way.label}: {seconds:.2f} s")
                    if round_ >= 0:
                        way.result.take(round_, seconds, used)
        measured.take([way.result for way in ways])
        measured.figures += [Figure(f"{self.rows:,} rows, {way.label}", way.result.seconds, most=way.most, unit="s") for way in ways]

    def _by_windowmill(self, address: str) -> Iterator[_Way]:
        plain = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        for compute, most_cold, most_warm in (("spark", 8, 1.2), ("local", None, None)):
            for where, own, most in (("cold", {}, most_cold), ("warm server", {"SPARK_REMOTE": address}, most_warm)):
                label = f"compute: {compute}, {where}"
                growing = self._growing(label)
                spec = growing.folder / "pipeline.yaml"
                growing.folder.mkdir()
                spec.write_text(yaml.safe_dump(growing.pipeline.model_dump(mode="json", exclude_defaults=True, by_alias=True)))
                environment = plain | own | {"WINDOWMILL_COMPUTE": compute}
                yield _Way(label, growing, partial(run, spec, environment), most)

    def _by_streaming(self, engine: Engine) -> Iterator[_Way]:
        cold = self._growing("Structured Streaming, cold")
        task = {"source": cold.source, "out": cold.sink}
        command = [sys.executable, "-m", job_streaming.__name__, json.dumps(task)]
        yield _Way("Structured Streaming, cold", cold, lambda: alone(command, dict(os.environ))[:2])
        warm = self._growing("Structured Streaming, warm")
        told = engine.ask(600, do="prepare", entry="stream", way="stream", task={"source": warm.source, "out": warm.sink})
        assert "error" not in told, told

        def ask() -> tuple[float, None]:
            reply = engine.ask(600, do="run", entry="stream")
            return reply["seconds"], None

        yield _Way("Structured Streaming, warm", warm, ask)

    def _growing(self, label: str) -> Growing:
        name = label.lower().replace(" ", "_").replace(":", "").replace(",", "")
        return Growing(self.folder / name, [WINDOW], SPEC_AGGREGATES, keys=KEYS, rows_per_minute=ROWS_PER_MINUTE)

    @contextmanager
    def _engine(self) -> Iterator[Engine]:
        engine = Engine(job_streaming.__name__, self.folder / "streaming.log", {})
        try:
            yield engine
        finally:
            engine.stop()
