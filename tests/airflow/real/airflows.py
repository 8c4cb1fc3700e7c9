"""A real Airflow whose parts can be killed one by one: API server, scheduler (LocalExecutor), DAG processor; SQLite, below one folder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
import psutil

from examples.flights.local_airflow import ANSWER_SECONDS, AirflowError, LocalAirflow, free_ports, settings_of
from windowmill.dags.pools import pool_of

START_SECONDS = 240
#: Short enough that a lost task is noticed within a test, long enough for a busy machine.
HEARTBEAT_TIMEOUT_SECONDS = 20
COMPONENTS = ("api-server", "scheduler", "dag-processor")
NOBODY: Mapping[str, str] = MappingProxyType({})


#: The scheduler needs two minutes to give up a backfill that SQLite cut off while it was made.
BACKFILL_SECONDS = 300


def request_backfill(api: LocalAirflow, dag_id: str, instant: str, last: str | None = None, *, active: int = 1) -> bool:
    """Ask once to recompute the interval that starts at ``instant``, or all until ``last``; whether Airflow has taken the request.

    ``active`` of their runs are under way at a time.

    A busy SQLite refuses it, and may keep a backfill without runs. Airflow refuses others beside that until its scheduler ends it.
    """
    asked = {
        "dag_id": dag_id,
        "from_date": instant,
        "to_date": last or instant,
        "reprocess_behavior": "completed",
        "max_active_runs": active,
    }
    try:
        api.call("POST", "/backfills", json=asked)
    except AirflowError as err:
        if "Database is locked" in str(err) or "already a running backfill" in str(err):
            return False
        raise
    return True


@dataclass(frozen=True, slots=True)
class SignedIn(LocalAirflow):
    """An Airflow at which ``user`` has logged in."""

    user: str

    @functools.lru_cache(maxsize=8)  # noqa: B019 - as that of its base
    def _client(self) -> httpx.Client:
        client = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS)
        answer = client.post("/auth/token", json={"username": self.user, "password": self.user})
        client.headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['access_token']}"
        return client


class RealAirflow:
    """Its components as processes of ours.

    ``users`` -> their roles: the password of each is the name, and the first asks where no other is named. Without users nobody logs in.
    """

    def __init__(self, home: Path, environment: Mapping[str, str], users: Mapping[str, str] = NOBODY) -> None:
        self.home, self._dags = home, home / "dags"
        self._dags.mkdir(parents=True)
        (home / "config").mkdir()
        (home / "config" / "airflow_local_settings.py").write_text("import windowmill.dags.preload\n")  # as docs/airflow.md advises
        passwords = home / "passwords.json"
        passwords.write_text(json.dumps({user: user for user in users}))
        ports = free_ports(4)
        bundle = {"name": "faults", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {"path": str(self._dags)}}
        self.settings = settings_of(home, ports) | {
            f"AIRFLOW__{name}": str(value)
            for name, value in {
                "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
                # New files are found soon; those that are known do not change.
                "DAG_PROCESSOR__REFRESH_INTERVAL": 1,
                "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 3600,
                # Standalone makes it for its components.
                "API_AUTH__JWT_SECRET": secrets.token_hex(32),
                "CORE__PARALLELISM": 3,
                "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
                "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": passwords,
                "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in users.items()),
                "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": not users,
                "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": HEARTBEAT_TIMEOUT_SECONDS,
                "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 3,
                "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 15,
                "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 5,
                "SCHEDULER__SCHEDULER_HEARTBEAT_SEC": 2,
                "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
            }.items()
        }
        # The tests' own Airflow has settings, too.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        self._environment = inherited | self.settings | environment
        self._components: dict[str, subprocess.Popen[bytes]] = {}
        # Only its client is used: the processes are ours.
        place = (str(home), os.getpid(), psutil.Process().create_time(), ports[0])
        self._clients: dict[str | None, LocalAirflow] = {user: SignedIn(*place, user) for user in users}
        self._api = next(iter(self._clients.values()), LocalAirflow(*place))

    @classmethod
    @contextlib.contextmanager
    def running(cls, home: Path, environment: Mapping[str, str], users: Mapping[str, str] = NOBODY) -> Iterator[RealAirflow]:
        """One that starts; whatever happens, no process of it is left at the end."""
        airflow = cls(home, environment, users)
        try:
            airflow.command("db", "migrate")
            for component in COMPONENTS:
                airflow.start(component)
            yield airflow
        finally:
            airflow.stop()

    def add(self, name: str, dag_file: str, dag_ids: Iterable[str]) -> None:
        """Take up the DAG file ``name``; returns when its DAGs are known and have their pools."""
        (self._dags / f"{name}.py").write_text(dag_file)
        for dag_id in dag_ids:
            self.call("POST", "/pools", json={"name": pool_of(dag_id), "slots": 1, "include_deferred": True})
            self.wait(f"the DAG {dag_id}", lambda dag_id=dag_id: self.knows(dag_id), START_SECONDS)

    def command(self, *arguments: str) -> None:
        """Run an ``airflow`` command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments], env=self._environment, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode:
            raise AirflowError(f"airflow {' '.join(arguments)}: {done.stderr[-2000:]}")

    def start(self, component: str) -> None:
        """Start a component; returns at once."""
        with (self.home / f"{component}.log").open("ab") as log:
            self._components[component] = subprocess.Popen(
                [sys.executable, "-m", "airflow", component],
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, component: str) -> None:
        """End a component by SIGKILL. Processes that it has started live on if they can."""
        process = self._components.pop(component)
        # An API server has children that hold its port.
        children = psutil.Process(process.pid).children(recursive=True) if component == "api-server" else []
        for one in (process, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(10)

    def stop(self) -> None:
        """End all that belongs to it: its components first, so that they start nothing more, then the tasks and their commands."""
        for process in self._components.values():
            process.kill()
            process.wait(10)
        for _ in range(3):
            processes = self.processes()
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=10)

    def processes(self) -> list[psutil.Process]:
        """Every process that works in this Airflow's folder, as components, tasks and commands do; workers overwrite their environment."""
        mine = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(self.home):
                    mine.append(process)
        return mine

    @property
    def url(self) -> str:
        """Its user interface."""
        return self._api.url

    def call(self, method: str, path: str, *, user: str | None = None, **arguments: Any) -> dict[str, Any]:
        """What the REST API answers ``user``; it may be starting again."""
        deadline = time.monotonic() + START_SECONDS
        client = self._clients.get(user, self._api)
        while True:
            try:
                return client.call(method, path, **arguments)
            except httpx.HTTPError as err:
                # A request whose answer is lost may have been carried out: only questions are repeated then.
                if time.monotonic() > deadline or not (method == "GET" or isinstance(err, httpx.ConnectError)):
                    raise
                time.sleep(0.5)

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG has been stored."""
        try:
            self.call("GET", f"/dags/{dag_id}")
        except AirflowError:
            return False
        return True

    def wait(self, what: str, condition: Callable[[], Any], seconds: float, *, every: float = 0.5) -> Any:
        """The first true answer of ``condition``; asked ``every`` so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for component, process in self._components.items():
                if process.poll() is not None:
                    raise AirflowError(f"the {component} has ended while waiting for {what}; its log is in {self.home}")
            if answer := condition():
                return answer
            time.sleep(every)
        raise AirflowError(f"{what}: not after {seconds:.0f} s; logs are in {self.home}")

    def unpause(self, dag_id: str) -> None:
        """Let the scheduler make the DAG's runs."""
        self._api.unpause(dag_id)

    def trigger(self, dag_id: str) -> str:
        """Start a run by hand; returns its id."""
        return str(self.call("POST", f"/dags/{dag_id}/dagRuns", json={"logical_date": None})["dag_run_id"])

    def backfill(self, dag_id: str, instant: str, last: str | None = None, *, active: int = 1) -> None:
        """Recompute the interval that starts at ``instant``, or all until ``last``, ``active`` at a time."""
        self.wait("the backfill", lambda: request_backfill(self._api, dag_id, instant, last, active=active), BACKFILL_SECONDS, every=2)

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """All runs of the DAG, by logical date."""
        return list(self.call("GET", f"/dags/{dag_id}/dagRuns", params={"limit": 100, "order_by": "logical_date"})["dag_runs"])

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Task instances of a run by task id."""
        answer = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {task["task_id"]: task for task in answer["task_instances"]}

    def wait_for_run(self, dag_id: str, run_id: str, seconds: float = 240) -> str:
        """The state in which the run ends."""

        def ended() -> str | None:
            state = self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"]
            return state if state in ("success", "failed") else None

        try:
            return str(self.wait(f"the end of {run_id} of {dag_id}", ended, seconds))
        except AirflowError as err:
            tasks = self.tasks(dag_id, run_id).values()
            raise AirflowError(f"{err}; tasks: { {task['task_id']: (task['state'], task['try_number']) for task in tasks} }") from err

    def events(self, asset: str) -> list[dict[str, Any]]:
        """Extras of the asset's events, oldest first. Airflow 3.3 answers 500 while a run that they have triggered is queued."""
        answer = self.call("GET", "/assets/events", params={"name_pattern": asset, "order_by": "timestamp", "limit": 100})
        return [event["extra"] for event in answer["asset_events"] if event["name"] == asset]

    def logs(self) -> Iterator[Path]:
        """Log files of all tasks."""
        return (self.home / "logs").rglob("*.log")


class Attempt:
    """Processes of one attempt at a micro-batch: ``command`` is windowmill, ``task`` its parent, ``supervisor`` the task's."""

    def __init__(self, command: psutil.Process) -> None:
        self.command = command
        self.task = command.parent()
        self.supervisor = self.task.parent()
        self._descendants = command.children(recursive=True)

    @classmethod
    def all_at(cls, airflow: RealAirflow, spec: Path) -> list[Attempt]:
        """Those at work on ``spec``."""
        found = []
        for process in airflow.processes():
            with contextlib.suppress(psutil.Error):
                arguments = process.cmdline()
                if "windowmill.jobs.cli" in arguments and str(spec) in arguments and {"run", "backfill"} & set(arguments):
                    found.append(cls(process))
        return found

    def is_over(self) -> bool:
        """Whether windowmill and all that it had started are gone."""
        return not any(map(_alive, (self.command, *self._descendants)))


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
