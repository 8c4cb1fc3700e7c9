"""Asks in Airflow's user interface whether a changed spec is applied, and applies it.

A run refuses a spec that means something else than the one that its pipeline was computed by. The question shows what the change does;
its default changes nothing: only a person applies. The ledger records who answered.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import BaseOperator, Context, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from windowmill.dags.commands import CommandProcess, failing_fast, raise_for
from windowmill.dags.operators import ComputingOperator, storage_variables
from windowmill.dags.rulings import BY, Question, QuestionOperator
from windowmill.windowing.errors import SOMETHING_TO_DO, HeldError
from windowmill.windowing.printable import code_span, in_markdown
from windowmill.windowing.redaction import redacted
from windowmill.windowing.spec import Pipeline

#: Answers -> the tasks that carry them out.
ANSWERS = {"Leave it": "leave_spec", "Apply": "apply"}
#: XCom of the question: the plan, as ``windowmill plan --out`` keeps it.
PLAN = "plan"


class ChangedSpecOperator(QuestionOperator):
    """Asks whether the spec's change is applied; is skipped if the spec means what the pipeline was computed by."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(subject="The spec has changed", answers=ANSWERS, **kwargs)

    def question(self) -> Question:
        with failing_fast(), self.spec.file() as path, tempfile.TemporaryDirectory(prefix="windowmill-") as folder:
            kept = Path(folder) / "plan.json"
            planned = CommandProcess(["plan", path, "--out", str(kept), "--json"], storage_variables(self.storage_conn_id))
            finished = planned.run(self.log.info)
            if finished.code == HeldError.exit_code:
                raise AirflowSkipException("a quality rule holds the batch that has applied the change, so it is not asked about")
            if finished.code != SOMETHING_TO_DO:
                raise_for("plan", finished)
                raise AirflowSkipException("the spec means the same as when the pipeline was last computed, so there is nothing to ask")
            plan = json.loads(kept.read_text(encoding="utf-8"))
        return Question(f"{plan['pipeline']}: the spec has changed", redacted(_body(plan)), {PLAN: json.dumps(plan)})


class ApplyOperator(ComputingOperator):
    """Applies the change that the question was about, if spec and pipeline are still as they were then; returns the command's summary.

    Parameters
    ----------
    asked_by
        Id of the task that asked.
    """

    def __init__(self, *, asked_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.asked_by = asked_by

    def execute(self, context: Context) -> dict[str, Any]:
        asked, by = (context["ti"].xcom_pull(task_ids=self.asked_by, key=key) for key in (PLAN, BY))
        with failing_fast(), self.spec.file() as path, tempfile.TemporaryDirectory(prefix="windowmill-") as folder:
            kept = Path(folder) / "plan.json"
            # A spec written in Python is another file in each task.
            kept.write_text(json.dumps(json.loads(asked) | {"spec": path}), encoding="utf-8")
            named = ["--by", str(by)] if by else []
            return self.computed(["apply", str(kept), *named], context)


def ask_about_changes(
    batch: BaseOperator,
    announce: BaseOperator,
    spec: str | os.PathLike[str] | Pipeline,
    pool: str,
    *,
    storage_conn_id: str | None,
    connect_conn_id: str | None,
    response_timeout: timedelta,
) -> None:
    """Add the question after a failed ``batch``, and before ``announce`` the task that applies the change, inside a DAG."""
    common: dict[str, Any] = {"spec": spec, "storage_conn_id": storage_conn_id}
    question = ChangedSpecOperator(task_id="changed_spec", trigger_rule=TriggerRule.ONE_FAILED, response_timeout=response_timeout, **common)
    leave, apply = ANSWERS.values()
    batch >> question >> EmptyOperator(task_id=leave)
    (
        question
        >> ApplyOperator(task_id=apply, asked_by=question.task_id, connect_conn_id=connect_conn_id, pool=pool, priority_weight=10, **common)
        >> announce
    )
    announce.trigger_rule = TriggerRule.ONE_SUCCESS


def _body(plan: Mapping[str, Any]) -> str:
    changes = [
        f"- {field[:-1]} {code_span(each['name'])} is {each['fate']}: {in_markdown(each['why'])}"
        for field in ("windows", "aggregates")
        for each in plan[field]
    ]
    seconds = "" if plan["seconds"] is None else f", and takes about {plan['seconds']:,.0f} s"
    return "\n".join(
        [
            f"It means something else than what batch {plan['batch'] - 1} was computed by. Nothing runs until it is applied or put back.",
            "",
            *changes,
            "",
            f"*Apply* computes this in one batch: {in_markdown(plan['summary'].partition('; ')[0])}{seconds}. *Leave it* changes nothing.",
        ]
    )
