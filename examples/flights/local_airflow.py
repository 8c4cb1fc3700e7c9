"""An Airflow of the example's own: standalone on SQLite, everything below one folder, free ports, no log-in; started, watched, stopped."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from examples.flights.detached import Detached, send_signal, wait_for_ends

REPOSITORY = Path(__file__).resolve().parents[2]

#: Airflow's components need about 15 s on two idle cores.
START_SECONDS = 240
#: For one answer of the API; on a machine with work for ten times its cores, half a minute has been seen not to do.
ANSWER_SECONDS = 120
#: The scheduler lets a task at work end, which spares it a retry; nothing is lost by cutting it off.
STOP_SECONDS = 60


class AirflowError(RuntimeError):
    """Airflow does not start, or a run of it failed; one line for the user."""


@dataclass(frozen=True, slots=True)
class LocalAirflow(Detached):
    """A running standalone Airflow. ``folder`` is its home."""

    port: int

    @property
    def url(self) -> str:
        """Its user interface."""
        return f"http://localhost:{self.port}"

    @classmethod
    def start(cls, home: Path, environment: dict[str, str]) -> LocalAirflow:
        """Start one below ``home``, detached; returns at once. ``environment`` is for its DAG files and tasks."""
        home.mkdir(parents=True, exist_ok=True)
        ports = free_ports(4)
        settings = os.environ | settings_of(home, ports) | environment
        with (home / "standalone.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "standalone"],
                cwd=home,
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(str(home), process.pid, psutil.Process(process.pid).create_time(), ports[0]).record()

    def stop(self) -> None:
        """End it with all its components; a task at work has ``STOP_SECONDS`` to end."""
        parent = self.process()
        if parent is not None:
            components, tree = parent.children(), [parent, *parent.children(recursive=True)]
            # The scheduler first: it waits for its task, which needs the API server to report to. Their parent last: it reads their pipes.
            schedulers = [process for process in components if "scheduler" in process.cmdline()]
            for group, seconds in ((schedulers, STOP_SECONDS), (components, 10)):
                for process in group:
                    send_signal(process, signal.SIGTERM)
                wait_for_ends(group, seconds)
            for process in tree:
                send_signal(process, signal.SIGKILL)
            wait_for_ends(tree, 5)
        self.forget()

    def wait_until_ready(self, dag_id: str) -> None:
        """Return when the API answers and knows the DAG.

        Raises
        ------
        AirflowError
            When Airflow has ended, cannot read the DAG, or takes longer than ``START_SECONDS``.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process() is None:
                output = Path(self.folder) / "standalone.log"
                raise AirflowError(f"Airflow ended while starting; its output is in {output}:\n{_tail(output)}")
            try:
                self.call("GET", f"/dags/{dag_id}")
                return
            except (httpx.HTTPError, AirflowError):
                time.sleep(1)
        why = self._import_errors() or f"its output is in {self.folder}/standalone.log"
        raise AirflowError(f"Airflow did not know the DAG {dag_id} after {START_SECONDS} s; {why}")

    def call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        """What the REST API answers; ``arguments`` are httpx's, such as ``params`` and ``json``.

        Raises
        ------
        AirflowError
            When the answer is an error.
        """
        answer = self._client().request(method, f"/api/v2{path}", **arguments)
        if answer.is_error:
            raise AirflowError(f"Airflow answers {answer.status_code} to {method} {path}: {answer.text[:300]}")
        return dict(answer.json())

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler make the DAG's runs."""
        self.call("PATCH", f"/dags/{dag_id}", json={"is_paused": False})

    def runs(self, dag_id: str) -> dict[str, str]:
        """State of each scheduled run by the start of its data interval."""
        answer = self.call("GET", f"/dags/{dag_id}/dagRuns", params={"run_type": "scheduled", "limit": 100, "order_by": "logical_date"})
        return {run["data_interval_start"]: run["state"] for run in answer["dag_runs"]}

    def tasks(self, dag_id: str) -> list[dict[str, Any]]:
        """The latest task instances of the DAG, newest first."""
        answer = self.call("GET", f"/dags/{dag_id}/dagRuns/~/taskInstances", params={"limit": 50, "order_by": "-start_date"})
        return list(answer["task_instances"])

    def log_tail(self, task: dict[str, Any], lines: int = 20) -> str:
        """The last lines of a task's last attempt."""
        folder = Path(self.folder) / "logs" / f"dag_id={task['dag_id']}" / f"run_id={task['dag_run_id']}" / f"task_id={task['task_id']}"
        logs = sorted(folder.glob("attempt=*.log"), key=lambda path: path.stat().st_mtime)
        return "\n".join([*list(_messages(logs[-1]))[-lines:], f"(all of it: {logs[-1]})"]) if logs else f"(no log in {folder})"

    def _import_errors(self) -> str:
        try:
            errors = self.call("GET", "/importErrors")["import_errors"]
        except (httpx.HTTPError, AirflowError):
            return ""
        return "; ".join(f"{error['filename']}: {error['stack_trace'].strip().splitlines()[-1]}" for error in errors)

    @functools.lru_cache(maxsize=1)  # noqa: B019 - one Airflow a process, and its client lives as long
    def _client(self) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS)
        # Without log-in everyone gets a token.
        token = client.get("/auth/token").raise_for_status().json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
        return client


def settings_of(home: Path, ports: list[int]) -> dict[str, str]:
    """Airflow's settings as environment variables: small, quick to react, and nothing outside ``home``."""
    port, log_port, trigger_log_port, health_port = ports
    bundles = [
        {"name": name, "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(REPOSITORY / folder)}}
        for name, folder in (("windowmill", "dags"), ("flights", "examples/flights"))
    ]
    values = {
        "CORE__LOAD_EXAMPLES": False,
        "CORE__DAGS_FOLDER": REPOSITORY / "dags",
        "CORE__EXECUTOR": "LocalExecutor",
        "CORE__PARALLELISM": 2,
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
        "CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "API__HOST": "127.0.0.1",
        "API__PORT": port,
        "API__BASE_URL": f"http://localhost:{port}",
        "API__WORKERS": 1,
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "DAG_PROCESSOR__PARSING_PROCESSES": 1,
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 60,
        "LOGGING__BASE_LOG_FOLDER": home / "logs",
        "LOGGING__WORKER_LOG_SERVER_PORT": log_port,
        "LOGGING__TRIGGER_LOG_SERVER_PORT": trigger_log_port,
        "SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": health_port,
        "SCHEDULER__MAX_DAGRUNS_TO_CREATE_PER_LOOP": 1,
        "USAGE_DATA_COLLECTION__ENABLED": False,
    }
    # Standalone starts its components as `airflow`, found on the PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {"AIRFLOW_HOME": str(home), "PATH": path} | {f"AIRFLOW__{name}": str(value) for name, value in values.items()}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens at now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _messages(log: Path) -> Iterator[str]:
    """The messages of a task's log, whose lines are JSON."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield str(json.loads(line).get("event", line))
        except ValueError:
            yield line


def _tail(file: Path, lines: int = 15) -> str:
    return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
