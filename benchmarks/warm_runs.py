"""What a run costs as a process of its own, cold and on a warm Spark Connect server: ``python -m benchmarks.warm_runs``.

Pipelines with the same windows and history take 1,000 new rows in turn by ``windowmill run``: one reads them itself, one has a filter for
which it must start Spark, one uses the server of ``windowmill serve``. ``--before`` adds the runs of another checkout.
Processor time is that of the client and of all that it starts, and of the Spark Connect server meanwhile.
``--soak`` goes on with runs on the server, to see that time and memory stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing
from benchmarks.processes import alone, cpu_seconds
from benchmarks.race import Result, ratios
from benchmarks.small_runs import AGGREGATES, KEYS, ROWS_PER_MINUTE, WINDOWS
from windowmill.jobs.spark.connect_server import memory_bytes

HISTORY = 100_000
#: Runs on a new server that are not counted, beside those that warmed it up.
WARM_ROUNDS = 2
#: A filter that takes every row, and that only Spark evaluates.
_BY_SPARK = "hash(k) IS NOT NULL"


def script(python: str) -> str:
    """The command ``windowmill`` of the environment of ``python``."""
    return str(Path(python).with_name("windowmill"))


@contextmanager
def served() -> Iterator[dict[str, Any]]:
    """What ``windowmill serve --json`` tells of its server, which ends with the context."""
    with subprocess.Popen([script(sys.executable), "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def run(spec: Path, environment: dict[str, str], python: str = sys.executable) -> tuple[float, float]:
    """Seconds of a run as a process of its own, and its processor time."""
    # By the script: modules of this folder would hide those of another checkout.
    seconds, used, messages = alone([script(python), "run", str(spec), "--json"], environment)
    if "Spark of its own" in messages:
        raise AssertionError(messages)
    return seconds, used


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    parser.add_argument("--before", type=Path, help="another checkout, with an environment of its own, whose cold runs take part")
    parser.add_argument("--soak", type=int, default=0, help="further runs on the server (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    measured = Measurement("warm_runs", "runs as processes of their own", f"{given.rows:,} new rows of {KEYS} keys after {HISTORY:,} rows")
    given.folder.mkdir(parents=True, exist_ok=True)
    alone = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch, served() as server:
        console.print(f"the server is warm after {server['seconds']} s")
        with_server = alone | {"SPARK_REMOTE": server["address"]}
        ways = [_Way("cold", "a cold run", alone), _Way("spark", "a cold run that starts Spark", alone, where=_BY_SPARK)]
        if given.before:
            ways.append(_Way("before", "a cold run before", alone, python=str(given.before / ".venv/bin/python")))
        ways.append(_Way("warm", "a run on the server", with_server))
        for way in ways:
            way.prepare(Path(scratch).absolute(), with_server)

        def step(round_: int, way: _Way, result: Result) -> None:
            before = cpu_seconds(server["pid"])
            seconds, used = way.take(given.rows)
            used += cpu_seconds(server["pid"]) - before
            console.print(
                f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {result.label}: {seconds:.2f} s, {used:.2f} s of processor time"
            )
            if round_ >= 0:
                result.take(round_, seconds, used)

        results = {way.name: Result(way.label) for way in ways}
        for round_ in range(-WARM_ROUNDS, given.repetitions):
            for way in ways:
                if round_ >= 0 or way.name == "warm":
                    step(round_, way, results[way.name])
        measured.take(list(results.values()))
        reference = results["before" if given.before else "spark"]
        for name, most in (("cold", 0.6), ("warm", 0.4)):
            own = results[name]
            measured.figures += [
                Figure(f"{own.label} / {reference.label}", ratios(reference, own), most=most),
                Figure(f"processor time, {own.label} / {reference.label}", _ratios_of_processor_time(own, reference), most=most),
            ]
        if given.soak:
            soaked, held = Result("soak"), [memory_bytes(server["pid"])]
            for round_ in range(given.soak):
                step(round_, ways[-1], soaked)
                held.append(memory_bytes(server["pid"]))
            measured.notes.append(_soak_note(soaked, held))
    measured.finish(console, given.results)
    return measured


@dataclass
class _Way:
    """A pipeline of its own, and how its runs are started; ``where`` is its source's filter."""

    name: str
    label: str
    environment: dict[str, str]
    where: str | None = None
    python: str = sys.executable

    def prepare(self, folder: Path, environment: dict[str, str]) -> None:
        """Land the history and take it in one run: in ``environment``, or in its own if another checkout runs it."""
        self.pipeline = Growing(folder / self.name, WINDOWS, AGGREGATES, keys=KEYS, rows_per_minute=ROWS_PER_MINUTE)
        self.pipeline.land(HISTORY)
        self.spec = self.pipeline.folder / "pipeline.yaml"
        spec = self.pipeline.pipeline.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        if self.where:
            spec["source"]["filter"] = self.where
        self.spec.write_text(yaml.safe_dump(spec))
        run(self.spec, environment if self.python == sys.executable else self.environment, self.python)

    def take(self, rows: int) -> tuple[float, float]:
        """Seconds and processor time of a run over ``rows`` new rows."""
        self.pipeline.land(rows)
        return run(self.spec, self.environment, self.python)


def _ratios_of_processor_time(own: Result, reference: Result) -> list[float]:
    return [one / other for one, other in zip(own.cpu_seconds, reference.cpu_seconds, strict=True)]


def _soak_note(soaked: Result, held: list[int]) -> str:
    tenth = max(1, len(soaked.seconds) // 10)
    first, last = (statistics.median(part) for part in (soaked.seconds[:tenth], soaked.seconds[-tenth:]))
    return (
        f"{len(soaked.seconds)} runs in a row on the server: {first:.2f} s at first, {last:.2f} s at last; "
        f"its memory {held[0] / 2**30:.2f} GiB before, {max(held) / 2**30:.2f} at most, {held[-1] / 2**30:.2f} at last"
    )


if __name__ == "__main__":
    main()
