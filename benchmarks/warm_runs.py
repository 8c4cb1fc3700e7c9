"""What a run costs as a process of its own, cold and on a warm Spark Connect server: ``python -m benchmarks.warm_runs``.

Two pipelines with the same spec and history take 1,000 new rows in turn, by ``windowmill run`` as Airflow starts it: one starts Spark, the
other uses the servers of ``windowmill serve``. Processor time is that of the client and of all that it starts, of the Spark Connect server,
and of the fork server and its child meanwhile. ``--soak`` runs the second one on, to see that time and memory stay.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks import measurement
from benchmarks.measurement import Figure, Measurement
from benchmarks.pipelines import Growing
from benchmarks.processes import cpu_seconds, cpu_seconds_of
from benchmarks.race import Result, ratios
from benchmarks.small_runs import AGGREGATES, KEYS, ROWS_PER_MINUTE, WINDOWS
from windowmill.jobs.warm.connect_server import memory_bytes

HISTORY = 100_000
#: Between two looks at the processor time of a client, whose JVM nobody waits for.
LOOK_SECONDS = 0.05
#: Runs on a new server that are not counted, beside those that warmed it up.
WARM_ROUNDS = 2
_CLI = [sys.executable, "-m", "windowmill.jobs.cli"]


@contextmanager
def served() -> Iterator[dict[str, Any]]:
    """What ``windowmill serve --json`` tells of its server, which ends with the context."""
    with subprocess.Popen([*_CLI, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def run(spec: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of a run as a process of its own, and its processor time."""
    begun, used = time.perf_counter(), 0.0
    command = [*_CLI, "run", str(spec), "--json"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    while process.poll() is None:
        with suppress(OSError):
            used = max(used, cpu_seconds(process.pid))
        time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - begun
    _, messages = process.communicate()
    if process.returncode or b"Spark of its own" in messages:
        raise AssertionError(messages.decode())
    return seconds, used


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000, help="new rows a run (default %(default)s)")
    parser.add_argument("--repetitions", type=int, default=6, help="counted runs of each (default %(default)s)")
    parser.add_argument("--soak", type=int, default=0, help="further runs on the server (default %(default)s)")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    measured = Measurement("warm_runs", "runs as processes of their own", f"{given.rows:,} new rows of {KEYS} keys after {HISTORY:,} rows")
    given.folder.mkdir(parents=True, exist_ok=True)
    alone = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    cold, warm = Result("a cold run"), Result("a run on the server")
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch, served() as server:
        console.print(f"the server is warm after {server['seconds']} s")
        with_server = alone | {"SPARK_REMOTE": server["address"]}
        pipelines = {
            name: Growing(Path(scratch).absolute() / name, WINDOWS, AGGREGATES, keys=KEYS, rows_per_minute=ROWS_PER_MINUTE)
            for name in ("cold", "warm")
        }
        specs = {name: _landed(pipeline) for name, pipeline in pipelines.items()}
        for spec in specs.values():
            run(spec, with_server)

        def step(round_: int, result: Result, name: str, environment: dict[str, str]) -> None:
            pipelines[name].land(given.rows)
            before = _servers_cpu_seconds(server)
            seconds, used = run(specs[name], environment)
            used += _servers_cpu_seconds(server) - before
            console.print(
                f"  {'warm-up' if round_ < 0 else f'round {round_ + 1}'}: {result.label}: {seconds:.2f} s, {used:.2f} s of processor time"
            )
            if round_ >= 0:
                result.take(round_, seconds, used)

        for round_ in range(-WARM_ROUNDS, given.repetitions):
            if round_ >= 0:
                step(round_, cold, "cold", alone)
            step(round_, warm, "warm", with_server)
        measured.take([cold, warm])
        measured.figures = [
            Figure("cold / on the server", ratios(warm, cold), least=5),
            Figure("processor time, cold / on the server", _ratios_of_processor_time(cold, warm), least=5),
        ]
        if given.soak:
            soaked, held = Result("soak"), [memory_bytes(server["pid"])]
            for round_ in range(given.soak):
                step(round_, soaked, "warm", with_server)
                held.append(memory_bytes(server["pid"]))
            measured.notes.append(_soak_note(soaked, held))
    measured.finish(console, given.results)
    return measured


def _landed(pipeline: Growing) -> Path:
    """The spec's file of a pipeline whose source holds the history."""
    pipeline.land(HISTORY)
    spec = pipeline.folder / "pipeline.yaml"
    spec.write_text(yaml.safe_dump(pipeline.pipeline.model_dump(mode="json", exclude_defaults=True, by_alias=True)))
    return spec


def _servers_cpu_seconds(server: dict[str, Any]) -> float:
    return cpu_seconds(server["pid"]) + cpu_seconds_of(server["fork_server"])


def _ratios_of_processor_time(cold: Result, warm: Result) -> list[float]:
    return [on_its_own / on_server for on_its_own, on_server in zip(cold.cpu_seconds, warm.cpu_seconds, strict=True)]


def _soak_note(soaked: Result, held: list[int]) -> str:
    tenth = max(1, len(soaked.seconds) // 10)
    first, last = (statistics.median(part) for part in (soaked.seconds[:tenth], soaked.seconds[-tenth:]))
    return (
        f"{len(soaked.seconds)} runs in a row on the server: {first:.2f} s at first, {last:.2f} s at last; "
        f"its memory {held[0] / 2**30:.2f} GiB before, {max(held) / 2**30:.2f} at most, {held[-1] / 2**30:.2f} at last"
    )


if __name__ == "__main__":
    main()
