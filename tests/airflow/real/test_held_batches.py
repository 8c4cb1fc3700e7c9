"""Under a real Airflow, to which people log in: a click in a browser or the REST API releases a held batch, which no silence does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from deltalake import DeltaTable
from playwright.sync_api import Browser, Page

from examples.flights.local_airflow import AirflowError
from tests.airflow.real.airflows import RealAirflow
from tests.airflow.specs import written
from tests.airflow.test_rulings import RULE, land
from tests.browser.chromium import opened
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.rulings import ANSWERS
from windowmill.jobs.cli import main
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.timeout(900)]

#: Pipelines -> how long the question about their held batch waits.
SECONDS = {"clicked": 3600, "called": 3600, "unanswered": 1, "discarded": 3600}
#: States of the tasks of a run whose batch has been released.
RELEASED = {
    "micro_batch": "failed",
    "quality_report": "success",
    "held_batch": "success",
    "leave_held": "skipped",
    "release": "success",
    "discard": "skipped",
    "announce": "success",
}
DAG_FILE = """
# Airflow looks into files that name it.
from datetime import timedelta
from pathlib import Path
from windowmill import build_dag

for name, seconds in {seconds!r}.items():
    build_dag(Path({specs!r}) / f"{{name}}.yaml", schedule=None, ask_when_held=timedelta(seconds=seconds))
"""


class Asked:
    """A run of each pipeline, whose first batch a rule holds."""

    def __init__(self, airflow: RealAirflow, folder: Path) -> None:
        self.airflow = airflow
        self._folder = folder
        self._runs = {name: airflow.trigger(name) for name in SECONDS}

    def spec(self, name: str) -> Path:
        """The pipeline's spec."""
        return self._folder / f"{name}.yaml"

    def page(self, name: str) -> str:
        """Where the user interface asks."""
        return f"{self.airflow.url}/dags/{name}/runs/{self._runs[name]}/tasks/held_batch/required_actions"

    def tasks(self, name: str) -> dict[str, str | None]:
        """States of the run's tasks."""
        return {task: instance["state"] for task, instance in self.airflow.tasks(name, self._runs[name]).items()}

    def wait_for_question(self, name: str) -> None:
        """Return when the question waits for an answer."""
        self.airflow.wait(f"the question of {name}", lambda: self.tasks(name)["held_batch"] == "awaiting_input", 240)
        # Airflow may kill a task that is answered in the second in which it has begun to wait; its retry would ask again.
        time.sleep(3)

    def question(self, name: str) -> dict[str, object]:
        """The question, as the REST API has it."""
        return self.airflow.call("GET", self._question(name))

    def answer(self, name: str, answer: str, user: str) -> None:
        """Give an answer by the REST API."""
        self.airflow.call("PATCH", self._question(name), user=user, json={"chosen_options": [answer], "params_input": {}})

    def ended(self, name: str) -> str:
        """The state in which the run ends."""
        return self.airflow.wait_for_run(name, self._runs[name], 300)

    def published(self, name: str) -> int:
        """Rows of the sink."""
        return DeltaTable(str(self._folder / name)).to_pyarrow_table().num_rows

    def ruling(self, name: str) -> tuple[str | None, str | None]:
        """What has become of the one batch, and who has said so."""
        [batch] = Ledger.open(load_pipeline(self.spec(name))).batches()
        return batch.verdict, batch.ruled_by

    def log(self, name: str, task: str) -> str:
        """The log of a task of the run."""
        return next(log.read_text() for log in self.airflow.logs() if {f"dag_id={name}", f"task_id={task}"} <= set(log.parts))

    def _question(self, name: str) -> str:
        return f"/dags/{name}/dagRuns/{self._runs[name]}/taskInstances/held_batch/-1/hitlDetails"


@pytest.fixture(scope="module")
def asked(real_airflow: RealAirflow, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("held")
    land(folder, range(6))
    for name in SECONDS:
        written(folder, name, **{'schedule: "*/30 * * * *"\n': RULE})
    real_airflow.add("held", DAG_FILE.format(seconds=SECONDS, specs=str(folder)), SECONDS)
    return Asked(real_airflow, folder)


def signed_in(browser: Browser, asked: Asked, name: str, user: str) -> Page:
    """The page with the question, for a user who has logged in."""
    page = opened(browser, 1400)
    page.goto(asked.page(name))
    for field in ("username", "password"):
        page.locator(f"input[name={field}]").fill(user)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text(f"{name}: batch 0 is held").wait_for()
    page.get_by_text("flights=2").first.wait_for()
    return page


def test_a_click_in_a_browser_releases_the_batch(asked: Asked, browser: Browser):
    asked.wait_for_question("clicked")
    page = signed_in(browser, asked, "clicked", "ada")
    page.get_by_role("button", name="Release").click()
    assert asked.ended("clicked") == "success"
    assert asked.tasks("clicked") == RELEASED
    assert (asked.ruling("clicked"), asked.published("clicked")) == (("released", "ada"), 4)


def test_a_click_of_somebody_who_may_only_look_does_nothing(asked: Asked, browser: Browser):
    asked.wait_for_question("called")
    page = signed_in(browser, asked, "called", "vera")
    with page.expect_response(lambda response: response.request.method == "PATCH") as answered:
        page.get_by_role("button", name="Release").click()
    assert answered.value.status == 403
    assert asked.question("called")["response_received"] is False
    assert asked.ruling("called") == ("held", None)


def test_an_answer_by_the_rest_api_releases_the_batch(asked: Asked):
    asked.wait_for_question("called")
    question = asked.question("called")
    assert (question["subject"], question["options"]) == ("called: batch 0 is held", list(ANSWERS))
    with pytest.raises(AirflowError, match="403"):
        asked.answer("called", "Release", "vera")
    asked.answer("called", "Release", "ada")
    assert asked.ended("called") == "success"
    assert asked.tasks("called") == RELEASED
    assert (asked.ruling("called"), asked.published("called")) == (("released", "ada"), 4)


def test_without_an_answer_the_batch_stays_held(asked: Asked):
    assert asked.ended("unanswered") == "failed"
    assert asked.tasks("unanswered") == RELEASED | {
        "release": "skipped",
        "leave_held": "success",
        "announce": "upstream_failed",
    }
    assert asked.ruling("unanswered") == ("held", None)


def test_a_batch_that_has_been_discarded_meanwhile_is_not_released(asked: Asked):
    asked.wait_for_question("discarded")
    assert main(["discard", str(asked.spec("discarded")), "--by", "grace"]) == 0
    asked.answer("discarded", "Release", "ada")
    assert asked.ended("discarded") == "failed"
    assert asked.tasks("discarded")["release"] == "failed"
    assert "batch 0 has been discarded by grace, so there is nothing to release" in asked.log("discarded", "release")
    assert asked.ruling("discarded") == ("discarded", "grace")
