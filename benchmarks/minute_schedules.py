"""Many pipelines on a schedule of a minute under a real Airflow: ``python -m benchmarks.minute_schedules --pipelines 50 --minutes 10``.

A standalone Airflow (LocalExecutor) and a warm Spark Connect server run small pipelines whose sources get new rows every minute. The
figures are the time from a source's version to its commit, the runs that started later than their minute, and processor time by part and
by task. ``--schedule`` is ``cron`` (a run every minute) or ``wait`` (a run every minute, which waits for rows in the triggerer); ``none``
leaves Airflow out and starts ``windowmill run`` by itself.
With ``--idle`` no rows come, and no server is needed: what remains is the cost of Airflow and of runs that find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import yaml
from deltalake import write_deltalake
from rich.console import Console

from benchmarks import measurement
from benchmarks.airflow_parts import PartsWatch
from benchmarks.measurement import Figure, Measurement
from benchmarks.race import ROOT
from benchmarks.warm_runs import served
from examples.flights.local_airflow import LocalAirflow, settings_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.pools import create_pools
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import load_pipeline

KEYS, ROWS = 20, 200
MINUTE = 60.0
#: The rows land so many seconds before the minute ends, for the run of that minute.
LEAD_SECONDS = 3.0
#: Versions that do not count: the first is there before Airflow, the second comes while Airflow starts its triggerer.
UNCOUNTED = 2
#: After the last minute, to work off what is left.
DRAIN_SECONDS = 180.0
PAGE = 100


def main(arguments: list[str] | None = None) -> Measurement:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipelines", type=int, default=50, help="number of pipelines (default %(default)s)")
    parser.add_argument("--minutes", type=int, default=10, help="minutes that count, after a first one (default %(default)s)")
    parser.add_argument("--schedule", choices=("cron", "wait", "none"), default="wait", help="(default %(default)s)")
    parser.add_argument("--parallelism", type=int, default=8 * (os.cpu_count() or 1), help="tasks at a time (default %(default)s)")
    parser.add_argument("--idle", action="store_true", help="let no rows come")
    parser.add_argument("--no-preload", action="store_true", help="let each task load windowmill by itself")
    parser.add_argument("--keep", type=Path, help="keep Airflow's folder here")
    given = measurement.place(parser).parse_args(arguments)
    console = measurement.terminal()
    # SIGTERM unwinds the contexts below too, which stop Airflow and the server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rows = 0 if given.idle else ROWS
    workload = f"schedule {given.schedule}: {given.pipelines} pipelines, {rows} rows a minute each for {given.minutes} minutes"
    measured = Measurement("minute_schedules", "a minute schedule", workload)
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch, ExitStack() as running:
        folder = Path(scratch).absolute()
        specs = [_spec(folder, number) for number in range(given.pipelines)]
        landed = _Landed(specs)
        server = None
        if given.idle:
            _settle(landed, specs)
        else:
            landed.land()
            server = running.enter_context(served())
            console.print(f"the server is warm after {server['seconds']} s")
        remote: str | None = server["address"] if server else None
        airflow = None
        if given.schedule != "none":
            airflow = running.enter_context(_airflow(folder, given, remote))
            _unpause(airflow, given.pipelines, console)
        others = {"rows": os.getpid()} | ({"Spark server": server["pid"]} if server else {})
        with PartsWatch(airflow.pid if airflow else None, others) as watch:
            if airflow is None:
                runs = _without_airflow(specs, landed, given, remote)
            elif given.idle:
                time.sleep((-time.time()) % MINUTE + given.minutes * MINUTE)
            else:
                _land_every_minute(landed, given.minutes, console)
                _drain(landed, console)
        if airflow is None:
            watch.seconds["runs"] = runs
        if not given.idle:
            _tell_latency(measured, landed)
        _tell_parts(measured, watch, given)
        if airflow is not None:
            _tell_tasks(measured, airflow, watch)
            if given.keep:
                shutil.copytree(airflow.folder, given.keep, dirs_exist_ok=True)
    measured.finish(console, given.results)
    return measured


class _Landed:
    """When each version of each source was written, and when it was committed."""

    def __init__(self, specs: list[Path]) -> None:
        self.pipelines = [load_pipeline(spec) for spec in specs]
        self.at: dict[tuple[str, int], float] = {}
        self._rng = np.random.default_rng(7)
        self._next = 0

    def land(self) -> None:
        """Append one version to every source."""
        now_us = time.time_ns() // 1_000
        for pipeline in self.pipelines:
            times = np.sort(self._rng.integers(now_us - 60_000_000, now_us, ROWS))
            rows = {"k": self._rng.integers(0, KEYS, ROWS), "t": pa.array(times, pa.timestamp("us", "UTC")), "v": self._rng.random(ROWS)}
            write_deltalake(_source(pipeline), pa.table(rows), mode="append")
            self.at[pipeline.pipeline, self._next] = time.time()
        self._next += 1

    def latencies(self) -> list[float | None]:
        """Seconds from each version that counts to the commit that has read it; none if it has not been read."""
        seconds: list[float | None] = []
        for pipeline in self.pipelines:
            commits = [batch for batch in Ledger.open(pipeline).batches() if batch.status == "committed"]
            for version in range(UNCOUNTED, self._next):
                ended = next((batch.ended_at for batch in commits if batch.to_version >= version), None)
                seconds.append(None if ended is None else ended.timestamp() - self.at[pipeline.pipeline, version])
        return seconds


def _settle(landed: _Landed, specs: list[Path]) -> None:
    """Let every pipeline have read all of its source: one run, whose tables the others get as copies."""
    landed.land()
    first, *others = landed.pipelines
    subprocess.run([sys.executable, "-m", "windowmill.jobs.cli", "run", str(specs[0])], check=True)
    for pipeline in others:
        for suffix in ("", ".windowmill"):
            shutil.copytree(f"{_sink(first)}{suffix}", f"{_sink(pipeline)}{suffix}")
        shutil.rmtree(_source(pipeline))
        shutil.copytree(_source(first), _source(pipeline))


def _source(pipeline: Pipeline) -> str:
    assert pipeline.source is not None
    return str(pipeline.source.path)


def _sink(pipeline: Pipeline) -> str:
    assert pipeline.sink is not None
    return str(pipeline.sink.path)


def _spec(folder: Path, number: int) -> Path:
    name = f"minute_{number:03d}"
    spec = {
        "pipeline": name,
        "source": {"path": str(folder / "sources" / name)},
        "keys": ["k"],
        "time": {"column": "t", "disorder": "30 seconds"},
        "windows": [{"name": "minute", "type": "tumbling", "size": "1 minute"}],
        "aggregates": {"n": {"count": "*"}, "mean": {"mean": "v"}},
        "sink": {"path": str(folder / "sinks" / name)},
        "schedule": "* * * * *",
    }
    path = folder / "specs" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


@contextmanager
def _airflow(folder: Path, given: argparse.Namespace, remote: str | None) -> Iterator[LocalAirflow]:
    """A standalone Airflow with the pipelines' DAGs, all paused, and their pools."""
    home = folder / "airflow"
    if not given.no_preload:
        (home / "config").mkdir(parents=True)
        (home / "config" / "airflow_local_settings.py").write_text("import windowmill.dags.preload\n")
    bundle = {
        "name": "windowmill",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(ROOT / "dags")},
    }
    values = {
        "CORE__PARALLELISM": given.parallelism,
        "API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": 50,
        "SCHEDULER__MAX_DAGRUNS_PER_LOOP_TO_SCHEDULE": 50,
    }
    environment = {f"AIRFLOW__{name}": str(value) for name, value in values.items()} | {
        "WINDOWMILL_PIPELINES": str(folder / "specs"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    if remote is not None:
        environment["SPARK_REMOTE"] = remote
    if given.schedule == "wait":
        environment["WINDOWMILL_NEW_VERSIONS"] = given.schedule
    names = sorted(path.stem for path in (folder / "specs").glob("*.yaml"))
    airflow = LocalAirflow.start(home, environment)
    try:
        airflow.wait_until_ready(names[-1])
        create_pools(names, settings_of(home, [airflow.port] * 4))
        yield airflow
    finally:
        airflow.stop()


def _unpause(airflow: LocalAirflow, pipelines: int, console: Console) -> None:
    for number in range(pipelines):
        airflow.unpause(f"minute_{number:03d}")
    console.print(f"Airflow is ready at {datetime.now(UTC):%H:%M:%S}")


def _land_every_minute(landed: _Landed, minutes: int, console: Console) -> None:
    for minute in range(minutes + 1):
        time.sleep((-time.time() - LEAD_SECONDS) % MINUTE)
        landed.land()
        waiting = sum(seconds is None for seconds in landed.latencies()) - (len(landed.pipelines) if minute else 0)
        console.print(f"  minute {minute}: rows landed at {datetime.now(UTC):%H:%M:%S}; {waiting} earlier versions are not committed")


def _drain(landed: _Landed, console: Console) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS
    while time.monotonic() < deadline and any(seconds is None for seconds in landed.latencies()):
        time.sleep(2)
    console.print(f"  drained, or given up, at {datetime.now(UTC):%H:%M:%S}")


def _without_airflow(specs: list[Path], landed: _Landed, given: argparse.Namespace, remote: str | None) -> float:
    """Run each pipeline once a minute, ``--parallelism`` at a time; the processor time of these runs."""
    before, environment = psutil.Process().cpu_times(), os.environ | ({"SPARK_REMOTE": remote} if remote else {})

    def run(spec: Path) -> None:
        command = [sys.executable, "-m", "windowmill.jobs.cli", "run", str(spec), "--json"]
        subprocess.run(command, env=environment, capture_output=True, check=True)

    with ThreadPoolExecutor(given.parallelism) as pool:
        for _ in range(given.minutes + 1):
            time.sleep((-time.time() - LEAD_SECONDS) % MINUTE)
            if not given.idle:
                landed.land()
            list(pool.map(run, specs))
    after = psutil.Process().cpu_times()
    return float(after.children_user + after.children_system - before.children_user - before.children_system)


def _tell_latency(measured: Measurement, landed: _Landed) -> None:
    latencies = landed.latencies()
    read = sorted(seconds for seconds in latencies if seconds is not None)
    late = sum(seconds is None or seconds > MINUTE for seconds in latencies)
    measured.figures.append(Figure("versions not committed within a minute", [late], most=0, unit=f"of {len(latencies)}"))
    if read:
        p95 = read[int(0.95 * (len(read) - 1))]
        measured.notes.append(
            f"from a version to its commit: {statistics.median(read):.1f} s median, {p95:.1f} s p95, {read[-1]:.1f} s at most; "
            f"{latencies.count(None)} of {len(latencies)} not committed at the end"
        )


def _tell_parts(measured: Measurement, watch: PartsWatch, given: argparse.Namespace) -> None:
    total = sum(watch.seconds.values())
    parts = ", ".join(f"{part} {used:.1f}" for part, used in sorted(watch.seconds.items(), key=lambda item: -item[1]))
    measured.notes.append(
        f"processor seconds: {parts}; {total:.1f} in all, {total / given.pipelines / (given.minutes + 1):.2f} a pipeline and minute"
    )


def _tell_tasks(measured: Measurement, airflow: LocalAirflow, watch: PartsWatch) -> None:
    tasks = [task for task in _all(airflow, "/dags/~/dagRuns/~/taskInstances", "task_instances") if task["start_date"]]
    runs = _all(airflow, "/dags/~/dagRuns", "dag_runs")
    due = {(run["dag_id"], run["dag_run_id"]): _instant(run["run_after"]) for run in runs}
    started = [_instant(task["start_date"]) - due[task["dag_id"], task["dag_run_id"]] for task in tasks if task["task_id"] == "micro_batch"]
    late = sum(seconds > MINUTE for seconds in started)
    measured.figures.append(Figure("runs that started later than their minute", [late], most=0, unit=f"of {len(started)}"))
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for task in tasks:
        groups[task["task_id"], str(task["state"])].append(task)
    for (name, state), group in sorted(groups.items()):
        durations = [task["duration"] for task in group if task["duration"]]
        used = [watch.of_task[task["id"]] for task in group if task["id"] in watch.of_task]
        measured.notes.append(
            f"{name} ({state}): {len(group)}"
            + (f", {statistics.median(durations):.2f} s" if durations else "")
            + (f", {statistics.median(used):.2f} s of processor time" if used else ", no process of its own")
        )


def _all(airflow: LocalAirflow, path: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = airflow.call("GET", path, params={"limit": PAGE, "offset": len(found)})[name]
        found += page
        if len(page) < PAGE:
            return found


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()
