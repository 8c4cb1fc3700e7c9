"""Asks in Airflow's user interface what becomes of a held batch, or whether a changed spec is applied, and carries the answer out.

The question waits as a required action of the DAG run, without a worker or the triggerer. Its default changes nothing: only a person
releases or applies. The ledger records who answered.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.hitl import HITLBranchOperator
from airflow.sdk import BaseOperator, Context, TriggerRule
from airflow.sdk.exceptions import AirflowSkipException

from windowmill.checkpoints.places import Places
from windowmill.dags.commands import CommandProcess, failing_fast, raise_for, summary_of
from windowmill.dags.links import PAGES, page_of
from windowmill.dags.operators import CommandOperator, ComputingOperator, storage_environment, storage_variables
from windowmill.dags.specs import Spec, redacting
from windowmill.windowing.errors import SOMETHING_TO_DO, HeldError
from windowmill.windowing.redaction import code_span, in_markdown, redacted
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from windowmill.jobs.report.quality import Failure


#: Answers -> the tasks that carry them out.
ANSWERS = {"Leave it held": "leave_held", "Release": "release", "Discard": "discard"}
#: What the answers do, where the batch can be discarded and where it cannot.
_EFFECTS = "*Release* publishes them as they are, *Discard* leaves them out for good. Later windows count the events either way."
_NOT_DISCARDED = (
    "*Release* publishes them as they are. **Discard is refused, because the batch renumbers published triggers: run `windowmill abandon` "
    "instead.**"
)
#: Broken rules that a question lists, and rows of each.
RULES_LISTED, ROWS_LISTED = 10, 3
#: XCom of a question: who has answered.
BY = "by"


@dataclass(frozen=True, slots=True)
class Question:
    """A question: its headline, its text in Markdown, and the XComs that the tasks of its answers need."""

    subject: str
    body: str
    about: Mapping[str, Any]


class QuestionOperator(HITLBranchOperator):
    """Asks a question about a pipeline in the user interface, and goes on to the task of the answer; is skipped if there is none to ask.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, or the pipeline itself.
    answers
        Answers -> the tasks that carry them out; the first is taken where nobody answers.
    storage_conn_id
        As in :class:`.PipelineOperator`.
    response_timeout
        How long the question waits. Later runs of the DAG wait meanwhile.
    """

    operator_extra_links = PAGES
    template_fields = ()  # rows and messages are not rendered

    def __init__(
        self,
        *,
        spec: str | os.PathLike[str] | Pipeline,
        answers: Mapping[str, str],
        storage_conn_id: str | None = None,
        response_timeout: timedelta,
        **kwargs: Any,
    ) -> None:
        options = list(answers)
        super().__init__(options=options, options_mapping=dict(answers), defaults=options[0], response_timeout=response_timeout, **kwargs)
        self.spec = Spec.of(spec)
        self.storage_conn_id = storage_conn_id

    @abstractmethod
    def question(self) -> Question:
        """What to ask; raises ``AirflowSkipException`` if there is nothing to."""

    def execute(self, context: Context) -> Any:
        question = self.question()
        self.subject, self.body = question.subject, question.body
        for key, value in question.about.items():
            context["ti"].xcom_push(key=key, value=value)
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        user = event.get("responded_by_user") or {}
        context["ti"].xcom_push(key=BY, value=user.get("name") or user.get("id"))
        return super().execute_complete(context, event)


class HeldBatchOperator(QuestionOperator):
    """Asks whether the held batch is released, discarded or left held; is skipped if none is held."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(subject="A quality rule holds a batch back", answers=ANSWERS, **kwargs)

    def question(self) -> Question:
        from windowmill.checkpoints.ledger import Ledger  # not needed for parsing
        from windowmill.jobs.batch.window_history import rulings
        from windowmill.jobs.report.quality import read_quality

        pipeline = self.spec.read()
        with redacting(), storage_environment(self.storage_conn_id):
            ledger = Ledger.open(pipeline)
            held = ledger.held_batch
            if held is None:
                raise AirflowSkipException("no batch is held, so there is nothing to ask")
            places, refused = Places.of(pipeline), "discard" not in rulings(ledger, held.plan)
            broken = [failure for failure in read_quality(places.quality, held.number).failures if failure.batch == held.number]
        rules = [line for each in broken[:RULES_LISTED] for line in _lines_of(each)]
        same = pipeline.means(held.plan.definition, held.plan.meaning)
        paragraphs = [
            f"Batch {held.number} read {held.counts.rows_read:,} rows and holds {held.outcome.counts.rows_published:,} results back:",
            "\n".join(rules or ["- see the report"]),
            _NOT_DISCARDED if refused else _EFFECTS,
            "" if same else "**The spec has changed since.** Put it back before you release or discard: both are refused until then.",
            f"[Report]({page_of(pipeline.pipeline, 'report.html')}): {code_span(places.report)}",
        ]
        body = "\n\n".join(filter(None, paragraphs))
        return Question(f"{pipeline.pipeline}: batch {held.number} is held", redacted(body), {"batch": held.number})


def _lines_of(broken: Failure) -> list[str]:
    """A broken rule, and below it a few of the rows that break it, with their values."""
    bounds = f" ({code_span(broken.arguments)})" if broken.arguments else ""
    column = f"{code_span(broken.column)}: " if broken.column else ""
    message = f". {code_span(broken.message)}" if broken.message else ""
    rows = (f"  - {code_span(row)}" for row in broken.examples[:ROWS_LISTED])
    return [f"- {column}{in_markdown(broken.title)}{bounds}{message}", *rows]


class RulingOperator(CommandOperator):
    """Releases or discards the batch that the question was about.

    Parameters
    ----------
    ruling
        ``release`` or ``discard``.
    asked_by
        Id of the task that asked.
    """

    def __init__(self, *, ruling: str, asked_by: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ruling, self.asked_by = ruling, asked_by

    def execute(self, context: Context) -> Mapping[str, Any]:
        ti = context["ti"]
        batch, by = (ti.xcom_pull(task_ids=self.asked_by, key=key) for key in ("batch", BY))
        with failing_fast(), self.spec.file() as path:
            named = ["--by", str(by)] if by else []
            return summary_of(self.ruling, self.run_job([self.ruling, path, "--batch", str(batch), *named, "--json"]))


def ask_after(
    report: BaseOperator,
    announce: BaseOperator,
    spec: str | os.PathLike[str] | Pipeline,
    pool: str,
    *,
    storage_conn_id: str | None,
    response_timeout: timedelta,
) -> None:
    """Add the question after ``report``, and before ``announce`` the tasks that carry an answer out, inside a DAG.

    A run whose batch has been released or discarded ends in success, as ``announce`` then has a predecessor that succeeded.
    """
    common: dict[str, Any] = {"spec": spec, "storage_conn_id": storage_conn_id}
    question = HeldBatchOperator(task_id="held_batch", trigger_rule="all_done", response_timeout=response_timeout, **common)
    leave, *rulings = ANSWERS.values()
    report >> question >> EmptyOperator(task_id=leave)
    for ruling in rulings:
        carry_out = RulingOperator(task_id=ruling, ruling=ruling, asked_by=question.task_id, pool=pool, priority_weight=10, **common)
        question >> carry_out >> announce
    announce.trigger_rule = TriggerRule.ONE_SUCCESS


#: Answers -> the tasks that carry them out.
CHANGE_ANSWERS = {"Leave it": "leave_spec", "Apply": "apply"}
#: XCom of the question: the plan, as ``windowmill plan --out`` keeps it.
PLAN = "plan"


class ChangedSpecOperator(QuestionOperator):
    """Asks whether the spec's change is applied; is skipped if the spec means what the pipeline was computed by."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(subject="The spec has changed", answers=CHANGE_ANSWERS, **kwargs)

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
    leave, apply = CHANGE_ANSWERS.values()
    batch >> question >> EmptyOperator(task_id=leave)
    common |= {"asked_by": question.task_id, "connect_conn_id": connect_conn_id, "pool": pool, "priority_weight": 10}
    question >> ApplyOperator(task_id=apply, **common) >> announce
    announce.trigger_rule = TriggerRule.ONE_SUCCESS


def _body(plan: Mapping[str, Any]) -> str:
    changes = [
        f"- {field[:-1]} {code_span(each['name'])} is {each['fate']}: {in_markdown(each['why'])}"
        for field in ("windows", "aggregates")
        for each in plan[field]
    ]
    seconds = "" if plan["seconds"] is None else f", and takes about {plan['seconds']:,.0f} s"
    listed = "\n".join(changes)
    return (
        f"It means something else than what batch {plan['batch'] - 1} was computed by. Nothing runs until it is applied or put back.\n\n"
        f"{listed}\n\n"
        f"*Apply* computes this in one batch: {in_markdown(plan['summary'].partition('; ')[0])}{seconds}. *Leave it* changes nothing."
    )
