"""Parts of a real Airflow die or are told otherwise in the middle of a batch; every batch is committed once, in order, with the right rows.

``WINDOWMILL_AIRFLOW_FAULTS=all`` (``make airflow-faults``) adds the scenarios that take minutes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import yaml

from tests.airflow.real.airflows import Attempt, RealAirflow
from tests.spark.harness import BASE, Bench, Row, differences, events
from windowmill.checkpoints.ledger import Ledger

pytestmark = [pytest.mark.dag, pytest.mark.timeout(900)]

ALL = os.environ.get("WINDOWMILL_AIRFLOW_FAULTS") == "all"
if_asked = pytest.mark.skipif(not ALL, reason="takes minutes; make airflow-faults")

#: In order, so that a backfill gives the rows that the runs have published.
ROWS: list[Row] = sorted((row for row in events(31, 620) if row["t"] is not None and row["t"] >= BASE), key=lambda row: row["t"])
THIRD = len(ROWS) // 3
VERSIONS = [ROWS[:THIRD], ROWS[THIRD : 2 * THIRD], ROWS[2 * THIRD :]]

NAMES = ["task_killed", "cleared"]
if ALL:
    NAMES += ["killed_after_commit", "scheduler_killed", "api_server_killed", "marked_failed", "marked_success"]
    NAMES += ["supervisor_killed", "beside_backfill"]

DAG_FILE = """
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import get_parsing_context
from windowmill.dags.factory import build_dag

wanted = get_parsing_context().dag_id
arguments = {{"start_date": datetime(2024, 3, 1, tzinfo=UTC)}}
arguments["default_args"] = {{"retry_delay": timedelta(seconds=1), "retry_exponential_backoff": False}}
scheduled = {{"catchup": True, "end_date": datetime(2024, 3, 2, tzinfo=UTC), "is_paused_upon_creation": True}}
for spec in sorted(Path({specs!r}).glob("*.yaml")):
    if wanted in (None, spec.stem):
        build_dag(spec, **arguments, **(scheduled if spec.stem == "beside_backfill" else {{}}))
"""


@dataclass
class Scenario:
    """A pipeline of its own."""

    airflow: RealAirflow
    name: str
    bench: Bench
    spec: Path
    landed: int = 0

    def land(self) -> None:
        """One more version of the source."""
        self.bench.land(VERSIONS[self.landed])
        self.landed += 1

    def trigger(self) -> str:
        return self.airflow.trigger(self.name)

    def ended(self, run_id: str) -> str:
        return self.airflow.wait_for_run(self.name, run_id)

    def begun(self) -> tuple[str, Attempt]:
        """A run over the first version, and the attempt that works on it."""
        self.land()
        run_id = self.trigger()
        return run_id, self.attempt_at(0)

    def batches(self) -> list:
        return Ledger.open(self.bench.pipeline).batches()

    def attempt_at(self, batch: int, *, other_than: Attempt | None = None) -> Attempt:
        """The attempt that works on batch number ``batch``, which it has planned and not recorded."""

        def found() -> Attempt | None:
            if not self.logs_say(f"{self.name}: batch {batch}: ") or len(self.batches()) > batch:
                return None
            known = other_than and other_than.command
            return next((attempt for attempt in Attempt.all_at(self.airflow, self.spec) if attempt.command != known), None)

        return self.airflow.wait(f"batch {batch} of {self.name} under way", found, 120)

    def stopped(self, attempt: Attempt) -> None:
        """Return when windowmill and its JVM have ended."""
        self.airflow.wait(f"the end of the processes of {self.name}", attempt.is_over, 60)

    def logs_say(self, text: str) -> bool:
        """Whether a task's log of this pipeline holds the text."""
        return any(text in log.read_text(errors="replace") for log in self.airflow.logs() if f"dag_id={self.name}" in str(log))

    def tries(self, run_id: str) -> int:
        return int(self.airflow.tasks(self.name, run_id)["micro_batch"]["try_number"])

    def goes_on(self) -> None:
        """A run takes the next version, and all is as it must be."""
        self.land()
        assert self.ended(self.trigger()) == "success"
        self.check()

    def check(self, actions: tuple[str, ...] | None = None) -> None:
        """One commit a batch, batches in order, and the rows of an undisturbed run; all batches announced once.

        By default all batches are runs: one, if the first attempt died before its record, so that the next took both versions.
        """
        batches = self.batches()
        actions = ("run",) * len(batches) if actions is None else actions
        assert [(batch.number, batch.status, batch.action) for batch in batches] == [
            (number, "committed", action) for number, action in enumerate(actions)
        ]
        assert all(before.ended_at <= after.planned_at for before, after in pairwise(batches))
        runs = [batch for batch in batches if batch.action == "run"]
        assert [-1, *(batch.to_version for batch in runs)] == [*(batch.from_version for batch in runs), self.landed - 1]
        rows = [row for version in VERSIONS[: self.landed] for row in version]
        assert differences(self.bench.rows(), self.bench.expected(rows).rows) == []
        told = [extra["batches"] for extra in self.airflow.events(self.name)]
        assert [number for first, last in told for number in range(first, last + 1)] == list(range(len(actions)))


@pytest.fixture(scope="module")
def scenarios(real_airflow: RealAirflow, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where their specs and tables are."""
    folder = tmp_path_factory.mktemp("faults")
    for name in NAMES:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(bench_of(folder, name).spec))
    real_airflow.add("scenarios", DAG_FILE.format(specs=str(folder)), NAMES)
    return folder


def bench_of(folder: Path, name: str) -> Bench:
    schedule = {"schedule": "@daily"} if name == "beside_backfill" else {}
    return Bench(folder / name, {"pipeline": name, "compute": "spark", **schedule})


@pytest.fixture
def scenario(real_airflow, scenarios, request) -> Scenario:
    """The scenario named like the test."""
    name = request.node.name.removeprefix("test_").replace("[", "_").removesuffix("]")
    return Scenario(real_airflow, name, bench_of(scenarios, name), scenarios / f"{name}.yaml")


@pytest.mark.covers("P5")
def test_task_killed(scenario):
    run, attempt = scenario.begun()
    attempt.task.kill()
    scenario.stopped(attempt)
    scenario.land()  # nothing has been recorded: the retry plans anew, and takes it too
    assert scenario.ended(run) == "success"
    assert scenario.tries(run) == 2
    scenario.check()


@pytest.mark.covers("P9")
def test_cleared(scenario):
    run, attempt = scenario.begun()
    scenario.airflow.call("POST", f"/dags/{scenario.name}/dagRuns/{run}/clear", json={"dry_run": False})
    scenario.stopped(attempt)
    scenario.land()
    assert scenario.ended(run) == "success"
    scenario.check()


@if_asked
@pytest.mark.covers("P5")
def test_killed_after_commit(scenario):
    run, attempt = scenario.begun()
    scenario.airflow.wait("the commit", lambda: any(batch.status == "committed" for batch in scenario.batches()), 120, every=0.02)
    attempt.task.kill()
    # The retry finds nothing new, and yet the batch is announced.
    assert scenario.ended(run) == "success"
    assert scenario.tries(run) == 2
    scenario.check(("run",))


@if_asked
@pytest.mark.covers("P5")
def test_scheduler_killed(scenario):
    run, attempt = scenario.begun()
    scenario.airflow.kill("scheduler")
    # Its workers live on with their task; the next scheduler takes the task for lost and starts another attempt beside it.
    assert not attempt.is_over()
    scenario.airflow.start("scheduler")
    assert scenario.ended(run) == "success"
    scenario.stopped(attempt)
    scenario.goes_on()


@if_asked
@pytest.mark.covers("P5")
def test_api_server_killed(scenario):
    scenario.land()
    run = scenario.trigger()
    scenario.attempt_at(0)
    scenario.airflow.kill("api-server")
    time.sleep(3)
    scenario.airflow.start("api-server")
    assert scenario.ended(run) == "success"
    scenario.goes_on()


@if_asked
@pytest.mark.covers("P9")
@pytest.mark.parametrize("state", ["failed", "success"])
def test_marked(scenario, state):
    run, attempt = scenario.begun()
    scenario.airflow.call("PATCH", f"/dags/{scenario.name}/dagRuns/{run}/taskInstances/micro_batch", json={"new_state": state})
    scenario.stopped(attempt)
    # Whatever Airflow has been told, the ledger has no batch.
    assert scenario.ended(run) == state
    assert scenario.batches() == []
    scenario.goes_on()


@if_asked
@pytest.mark.covers("P5")
def test_supervisor_killed(scenario):
    run, attempt = scenario.begun()
    attempt.supervisor.kill()
    # The task lives on unsupervised until it next speaks to its supervisor. Stopped, the command holds the lease meanwhile: either
    # the next attempt waits for it, or it has gone with its task, and the next attempt finds the lease free.
    with suppress(psutil.NoSuchProcess):
        attempt.command.suspend()
    try:
        waiting = scenario.attempt_at(0, other_than=attempt)
        waits = "another run of this pipeline is under way"
        scenario.airflow.wait("a waiting attempt, or the end of the first", lambda: scenario.logs_say(waits) or attempt.is_over(), 60)
        assert attempt.is_over() or not waiting.is_over()
    finally:
        with suppress(psutil.NoSuchProcess):
            attempt.command.resume()
    assert scenario.ended(run) == "success"
    scenario.stopped(attempt)
    scenario.goes_on()


@if_asked
@pytest.mark.covers("P8")
def test_beside_backfill(scenario):
    airflow, dag = scenario.airflow, scenario.name
    scenario.land()
    airflow.unpause(dag)
    airflow.wait("the first batch", lambda: [batch.status for batch in scenario.batches()] == ["committed"], 240)
    scenario.land()
    attempt = scenario.attempt_at(1)
    attempt.command.suspend()  # until the backfill waits
    try:
        airflow.wait("the end of the first run", lambda: airflow.runs(dag)[0]["state"] == "success", 120)
        run_id = airflow.runs(dag)[0]["dag_run_id"]
        airflow.backfill(dag, "2024-03-01T00:00:00Z")
        # max_active_runs lets it start beside the scheduled run; the pool keeps its batch waiting.
        airflow.wait("the backfill's task", lambda: airflow.tasks(dag, run_id)["micro_batch"]["state"] == "scheduled", 120)
        time.sleep(5)
        assert airflow.tasks(dag, run_id)["micro_batch"]["state"] == "scheduled"
    finally:
        attempt.command.resume()
    wanted = {("backfill", "success"), ("scheduled", "success")}
    airflow.wait("both runs", lambda: {(run["run_type"], run["state"]) for run in airflow.runs(dag)} == wanted, 240)
    scenario.check(("run", "run", "backfill"))
