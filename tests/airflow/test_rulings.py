"""A held batch in Airflow's user interface: who is asked, what the answers do, and that no answer leaves it held."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from deltalake import write_deltalake

from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.factory import build_dag
from windowmill.dags.folders import options_of
from windowmill.dags.rulings import ANSWERS, HeldBatchOperator, RulingOperator, _lines_of
from windowmill.jobs.cli import main
from windowmill.jobs.report.quality import Failure
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.usefixtures("commands_here")]

RULE = """compute: local
expectations:
  - {type: expect_column_values_to_be_between, column: flights, max_value: 1, severity: critical}
quarantine: {hold: 100 %}
schedule: "*/30 * * * *"
"""


def land(folder: Path, hours: range) -> None:
    """Two flights of each hour."""
    times = [datetime(2024, 1, 1, hour, minute, tzinfo=UTC) for hour in hours for minute in (0, 1)]
    rows = {"origin": ["JFK"] * len(times), "departed_at": pa.array(times, pa.timestamp("us", "UTC"))}
    write_deltalake(str(folder / "events"), pa.table(rows), mode="append")


def held_pipeline(write_spec, folder: Path) -> Path:
    """The spec of a pipeline whose first batch is held."""
    spec = write_spec(**{'schedule: "*/30 * * * *"\n': RULE})
    land(folder, range(6))
    assert main(["run", str(spec)]) == 3
    return spec


class Messages(dict):
    """XComs of a run."""

    def xcom_push(self, key: str, value: object) -> None:
        self[key] = value

    def xcom_pull(self, task_ids: str, key: str) -> object:
        assert task_ids == "held_batch"
        return self.get(key)


def test_the_question_and_the_tasks_of_its_answers(write_spec):
    dag = build_dag(write_spec(), ask_when_held=timedelta(hours=12))
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "micro_batch": {"quality_report", "announce"},
        "quality_report": {"held_batch"},
        "held_batch": {"release", "discard", "leave_held"},
        "release": {"announce"},
        "discard": {"announce"},
        "leave_held": set(),
        "announce": set(),
    }
    question = dag.get_task("held_batch")
    assert question.trigger_rule == "all_done"
    assert question.defaults == ["Leave it held"], "without an answer nothing is released"
    assert set(question.options_mapping.values()) == question.downstream_task_ids == set(ANSWERS.values())
    assert dag.get_task("announce").trigger_rule == "one_success"
    assert dag.get_task("release").pool == dag.get_task("micro_batch").pool


@pytest.mark.parametrize("option", ["ask_when_held", "approve_changes"])
def test_the_environment_asks_for_it(write_spec, monkeypatch, option):
    pipeline, variable = load_pipeline(write_spec()), f"WINDOWMILL_{option.upper()}"
    assert options_of(pipeline)[option] is None
    monkeypatch.setenv(variable, "12 hours")
    assert options_of(pipeline)[option] == timedelta(hours=12)
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(SpecError, match=rf"{variable}: .*; expected a duration such as 12 hours"):
        options_of(pipeline)


def test_nobody_is_asked_where_no_batch_is_held(write_spec):
    question = HeldBatchOperator(task_id="held_batch", spec=write_spec(), response_timeout=timedelta(hours=1))
    with pytest.raises(AirflowSkipException, match="no batch is held"):
        question.execute({"ti": Messages()})


def test_the_question_names_the_broken_rule(write_spec, tmp_path: Path):
    spec = held_pipeline(write_spec, tmp_path)
    question = HeldBatchOperator(task_id="held_batch", spec=spec, response_timeout=timedelta(hours=1))
    asked = question.question()
    assert (asked.about, asked.subject) == ({"batch": 0}, "delays: batch 0 is held")
    assert "Batch 0 read 12 rows and holds 4 results back" in asked.body
    assert "- `flights`: values to be between" in asked.body
    assert "flights=2`" in asked.body, "the value that breaks the rule"
    assert "/windowmill/pipelines/delays/report.html)" in asked.body


@pytest.mark.parametrize(
    ("other", "said", "unsaid"), [("discard", "leaves them out for good", "abandon"), ("abandon", "`windowmill abandon`", "for good")]
)
def test_the_question_offers_discard_where_it_is_possible(write_spec, tmp_path: Path, monkeypatch, other, said, unsaid):
    spec = held_pipeline(write_spec, tmp_path)
    monkeypatch.setattr("windowmill.jobs.batch.window_history.rulings", lambda *_: ("release", other))
    body = HeldBatchOperator(task_id="held_batch", spec=spec, response_timeout=timedelta(hours=1)).question().body
    assert said in body
    assert unsaid not in body


def test_nothing_in_the_data_speaks_in_a_question():
    wicked = "`\n\n# Approved by the data team\n[release it](http://x) <b>\x1b"
    failure = Failure(0, None, 0, "values *to be*", wicked, wicked, "failed", "critical", wicked, "", [{"k": wicked}], [{"n": wicked}])
    shown = "␊␊# Approved by the data team␊[release it](http://x) <b>␛"
    assert _lines_of(failure) == [
        rf"- `` `{shown} ``: values \*to be\* (`` `{shown} ``). `` `{shown} ``",
        f"  - ``k=`{shown}: n=`{shown}``",
    ]


def test_a_question_says_that_the_spec_has_changed_since(write_spec, tmp_path: Path):
    spec = held_pipeline(write_spec, tmp_path)
    spec.write_text(spec.read_text().replace("size: 1 hour", "size: 2 hours"))
    question = HeldBatchOperator(task_id="held_batch", spec=spec, response_timeout=timedelta(hours=1))
    assert "**The spec has changed since.** Put it back before you release or discard" in question.question().body
    task = RulingOperator(task_id="release", ruling="release", asked_by="held_batch", spec=spec)
    with pytest.raises(
        AirflowFailException, match="batch 0 is held: put the old ones back, release, discard or abandon it, and then change"
    ):
        task.execute({"ti": Messages(batch=0, by="ada")})


@pytest.mark.parametrize("option", ["ask_when_held", "approve_changes"])
@pytest.mark.parametrize("wait", [timedelta(0), -5, "12 hours"])
def test_a_question_that_cannot_wait_is_refused(write_spec, option, wait):
    with pytest.raises(SpecError, match=rf"delays\.yaml: {option}: got .*; expected how long a question waits, such as timedelta"):
        build_dag(write_spec(), **{option: wait})


@pytest.mark.parametrize(("ruling", "rows"), [("release", 4), ("discard", 0)])
def test_an_answer_is_carried_out_in_the_name_of_who_gave_it(write_spec, tmp_path: Path, ruling: str, rows: int):
    spec = held_pipeline(write_spec, tmp_path)
    task = RulingOperator(task_id=ruling, ruling=ruling, asked_by="held_batch", spec=spec)
    [done] = task.execute({"ti": Messages(batch=0, by="ada")})["batches"]
    assert done["verdict"] == {"release": "released", "discard": "discarded"}[ruling]
    batch = Ledger.open(load_pipeline(spec)).newest
    assert (batch.status, batch.ruled_by, batch.counts.rows_published) == ("committed", "ada", rows)


def test_an_answer_about_another_batch_is_refused(write_spec, tmp_path: Path, capsys):
    spec = held_pipeline(write_spec, tmp_path)
    assert main(["release", str(spec), "--batch", "7"]) == 2
    assert "batch 0 is held, not batch 7; look at its report before you release it" in capsys.readouterr().err
