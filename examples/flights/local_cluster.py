"""A Spark cluster of the example's own: a standalone master and workers on this machine, from the installed pyspark; started, stopped."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyspark

from examples.flights.local_airflow import free_ports
from windowmill.jobs.spark.jars import find_java
from windowmill.jobs.spark.launch import tie_to_parent

WORKERS = 2
#: Master and workers are three JVMs, each of which needs 2 to 4 s on idle cores.
START_SECONDS = 120
_LOCALHOST = "127.0.0.1"
#: Master and workers have little to do on one machine: what costs is their start, of which compiling is half.
_DAEMONS = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


class ClusterError(RuntimeError):
    """The cluster does not start; one line for the user."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running cluster. Its processes end with the one that started it, whatever that dies of."""

    port: int
    web_port: int
    folder: Path
    processes: tuple[subprocess.Popen[bytes], ...]

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator[LocalCluster]:
        """A cluster of ``WORKERS`` workers, each with a core and 1 GiB; logs and the work of executors are below ``folder``.

        Raises
        ------
        ClusterError
            If a process ends, or the workers are not there after ``START_SECONDS``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        port, web_port = free_ports(2)
        master = ("master", "org.apache.spark.deploy.master.Master", "--port", str(port), "--webui-port", str(web_port))
        worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        workers = [
            (f"worker-{n}", *worker, "--work-dir", str(folder / f"worker-{n}"), f"spark://{_LOCALHOST}:{port}")
            for n in range(1, WORKERS + 1)
        ]
        with contextlib.ExitStack() as stack:
            processes = tuple(stack.enter_context(_process(folder, *command)) for command in (master, *workers))
            cluster = cls(port, web_port, folder, processes)
            cluster._wait_until_ready()
            yield cluster

    def state(self) -> dict[str, Any]:
        """What the master tells of its workers and applications."""
        return dict(httpx.get(f"http://{_LOCALHOST}:{self.web_port}/json/", timeout=10).raise_for_status().json())

    def applications(self) -> list[str]:
        """The applications that have run, oldest first, each in a line."""
        ended = sorted(self.state()["completedapps"], key=lambda app: app["starttime"])
        return [f"{app['name']}: {app['cores']} cores, {app['state'].lower()}, {app['duration'] / 1000:.0f} s" for app in ended]

    def keep_events(self) -> dict[str, str]:
        """Have applications write what they do below the cluster's folder; returns the variables by which Spark finds that setting."""
        folder, conf = self.folder / "events", self.folder / "conf"
        for each in (folder, conf):
            each.mkdir(exist_ok=True)
        values = {"enabled": "true", "dir": folder.as_uri(), "compress": "false", "rolling.enabled": "false"}
        (conf / "spark-defaults.conf").write_text("".join(f"spark.eventLog.{name} {value}\n" for name, value in values.items()))
        return {"SPARK_CONF_DIR": str(conf)}

    def tasks_by_worker(self) -> dict[str, dict[str, int]]:
        """For each application that kept its events, by its id, the number of tasks that each worker's executors have ended."""
        return {log.name: self._tasks(log) for log in sorted((self.folder / "events").glob("app-*")) if log.is_file()}

    def _tasks(self, log: Path) -> dict[str, int]:
        counts: Counter[str] = Counter()
        with log.open() as events:
            for event in map(json.loads, events):
                if event["Event"] == "SparkListenerTaskEnd":
                    # A worker keeps the files of an executor in a folder of their own.
                    [ran] = self.folder.glob(f"worker-*/{log.name}/{event['Task Info']['Executor ID']}")
                    counts[ran.parent.parent.name] += 1
        return dict(counts)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = next((process for process in self.processes if process.poll() is not None), None)
            if ended is not None:
                raise ClusterError(f"process {ended.pid} of Spark ended while starting; the output is in {self.folder}")
            # Before the master listens the connection is refused; then, for a moment, its page for people answers in place of the JSON.
            with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
                if sum(worker["state"] == "ALIVE" for worker in self.state()["workers"]) == WORKERS:
                    return
            time.sleep(0.5)
        raise ClusterError(f"the {WORKERS} workers were not there after {START_SECONDS} s; their output is in {self.folder}")


def spark_environment() -> dict[str, str]:
    """Java and Spark as Spark's own scripts look for them; this machine is the address, as its name may lead elsewhere."""
    return {"SPARK_HOME": str(Path(pyspark.__file__).parent), "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": _LOCALHOST}


@contextlib.contextmanager
def _process(folder: Path, name: str, main_class: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    # The script gives way to Java (exec), so that the process started is the JVM itself.
    settings = os.environ | spark_environment() | _DAEMONS | {"PYSPARK_PYTHON": sys.executable}
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(Path(pyspark.__file__).parent / "bin" / "spark-class"), main_class, "--host", _LOCALHOST, *arguments],
            cwd=folder,
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the one that started it, which then stops all in order
            preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509 - one call of prctl, which needs no lock
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
