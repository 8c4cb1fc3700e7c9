"""A changed spec in Airflow: the run fails with what the change does, a person approves it in the user interface, and it is applied."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.airflow.test_rulings import land
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.factory import build_dag
from windowmill.dags.operators import MicroBatchOperator
from windowmill.dags.rulings import CHANGE_ANSWERS, ApplyOperator, ChangedSpecOperator
from windowmill.jobs.cli import main
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.usefixtures("commands_here")]

LOCAL = {"keys: [origin]": "compute: local\nkeys: [origin]"}
ADDED = '  flights: {count: "*"}\n  last: {max: departed_at}'
RUN = {"dag_run": SimpleNamespace(conf={}, run_type="scheduled"), "params": {}}


class Messages(dict):
    """XComs of a run."""

    def xcom_pull(self, task_ids: str, key: str) -> object:
        assert task_ids == "changed_spec"
        return self.get(key)


@pytest.fixture
def changed(write_spec, tmp_path: Path) -> Path:
    """The spec of a pipeline with one batch, to which an aggregate has been added since."""
    spec = write_spec(**LOCAL)
    land(tmp_path, range(6))
    assert main(["run", str(spec)]) == 0
    return write_spec(**LOCAL, **{'  flights: {count: "*"}': ADDED})


def asked(spec: Path) -> ChangedSpecOperator:
    return ChangedSpecOperator(task_id="changed_spec", spec=spec, response_timeout=timedelta(hours=1))


def test_a_run_fails_with_what_the_change_does_and_is_not_retried(changed, capsys):
    with pytest.raises(AirflowFailException, match=r"carry it out by `windowmill apply SPEC`"):
        MicroBatchOperator(task_id="micro_batch", spec=changed).execute(RUN)
    assert "aggregate last: filled: new" in capsys.readouterr().out


def test_the_question_and_the_tasks_of_its_answers(write_spec):
    dag = build_dag(write_spec(), approve_changes=timedelta(hours=12))
    assert {task.task_id: task.downstream_task_ids for task in dag.tasks} == {
        "micro_batch": {"quality_report", "announce", "changed_spec"},
        "quality_report": set(),
        "changed_spec": {"apply", "leave_spec"},
        "apply": {"announce"},
        "leave_spec": set(),
        "announce": set(),
    }
    question = dag.get_task("changed_spec")
    assert question.trigger_rule == "one_failed", "a run that succeeds starts no process for it"
    assert question.defaults == ["Leave it"], "without an answer nothing is applied"
    assert set(question.options_mapping.values()) == question.downstream_task_ids == set(CHANGE_ANSWERS.values())
    assert dag.get_task("announce").trigger_rule == "one_success"
    assert dag.get_task("apply").pool == dag.get_task("micro_batch").pool


def test_both_questions_have_tasks_of_their_own(write_spec):
    dag = build_dag(write_spec(), approve_changes=timedelta(hours=12), ask_when_held=timedelta(hours=12))
    assert dag.get_task("announce").upstream_task_ids == {"micro_batch", "release", "discard", "apply"}


def test_an_approval_is_refused_where_the_worker_would_compute_it(write_spec):
    with pytest.raises(SpecError, match="approve_changes and conn_id are both given; an approved change would be computed by the worker"):
        build_dag(write_spec(), conn_id="cluster", approve_changes=timedelta(hours=12))


def test_nobody_is_asked_about_a_spec_that_means_the_same(write_spec, tmp_path: Path):
    spec = write_spec(**LOCAL)
    land(tmp_path, range(6))
    assert main(["run", str(spec)]) == 0
    with pytest.raises(AirflowSkipException, match="nothing to ask"):
        asked(spec).question()


def test_the_question_says_what_the_change_does(changed):
    question = asked(changed).question()
    assert question.subject == "delays: the spec has changed"
    assert "than what batch 0 was computed by" in question.body
    assert "- aggregate `last` is filled: new" in question.body
    assert "- window `hourly` is kept: same meaning" in question.body
    assert "*Apply* computes this in one batch" in question.body


def test_an_approved_change_is_applied_in_the_name_of_who_approved_it(changed):
    plan = asked(changed).question().about["plan"]
    task = ApplyOperator(task_id="apply", asked_by="changed_spec", spec=changed)
    [done] = task.execute({"ti": Messages(plan=plan, by="ada")})["batches"]
    assert done["action"] == "apply"
    batch = Ledger.open(load_pipeline(changed)).newest
    assert (batch.action, batch.status, batch.ruled_by) == ("apply", "committed", "ada")
    assert MicroBatchOperator(task_id="micro_batch", spec=changed).execute(RUN)["batches"] == []


def test_a_pipeline_written_in_python_is_another_file_in_each_task(changed):
    pipeline = load_pipeline(changed)
    plan = asked(pipeline).question().about["plan"]
    task = ApplyOperator(task_id="apply", asked_by="changed_spec", spec=pipeline)
    assert len(task.execute({"ti": Messages(plan=plan, by=None)})["batches"]) == 1
    assert Ledger.open(pipeline).newest.ruled_by is None


def test_an_approval_of_a_spec_that_has_changed_since_is_refused(changed):
    plan = asked(changed).question().about["plan"]
    changed.write_text(changed.read_text().replace("last:", "latest:"))
    task = ApplyOperator(task_id="apply", asked_by="changed_spec", spec=changed)
    with pytest.raises(AirflowFailException, match="has changed since; make another plan"):
        task.execute({"ti": Messages(plan=plan, by="ada")})
    assert len(Ledger.open(load_pipeline(changed)).batches()) == 1
    assert json.loads(plan)["status"] == "changed"
