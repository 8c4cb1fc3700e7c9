"""Builds the DAG of a pipeline from its spec."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

from airflow.sdk import DAG, BaseOperator, Param

from windowmill.dags.folders import refuse_clash
from windowmill.dags.operators import AnnounceOperator, MicroBatchOperator, QualityReportOperator, default_args_of
from windowmill.dags.pools import pool_of
from windowmill.dags.schedules import check_new_versions, settings_of, sink_asset, timetable_of
from windowmill.dags.specs import BACKFILL, name_of, read_pipeline
from windowmill.windowing.errors import SpecError
from windowmill.windowing.redaction import code_span, redacted
from windowmill.windowing.spec import Pipeline

#: In the past, and equal at every parse; without ``catchup`` it means "from the next interval on".
START = datetime(2020, 1, 1, tzinfo=UTC)

#: Interval between two polls of a run that waits.
WAIT_SECONDS = 10.0

#: How the runs of a DAG wait for new versions of its source.
NewVersions = Literal["wait"]

#: Params of a manual run; each may be null.
PARAMS = {
    "from": Param(
        None, type=["null", "string"], format="date-time", description="Recompute the windows that end after this instant; needs `to`."
    ),
    "to": Param(None, type=["null", "string"], format="date-time", description="… and at or before this one."),
    "max_batches": Param(None, type=["null", "integer"], minimum=1, description="Stop after so many batches; empty: until drained."),
}

#: A function that creates a task inside the DAG (one under ``@task``, for example), or an existing operator.
Step = Callable[[], Any] | BaseOperator


def build_dag(
    spec: str | os.PathLike[str] | Pipeline,
    *,
    start_date: datetime | None = None,
    before: Sequence[Step] = (),
    conn_id: str | None = None,
    connect_conn_id: str | None = None,
    storage_conn_id: str | None = None,
    submit: Mapping[str, Any] | None = None,
    new_versions: NewVersions | None = None,
    ask_when_held: timedelta | None = None,
    approve_changes: timedelta | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG of a pipeline: ``[before…] → [wait_for_source] → micro_batch → [quality_report, announce]``.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, or the pipeline itself.
    start_date
        Start of the first data interval; by default that of the spec. Intervals before now get runs only with ``catchup=True``.
    before
        Steps that must succeed before the micro-batch starts, such as landing its data.
    conn_id
        Airflow connection of type Spark; spark-submit then sends the micro-batch to its master. Without it, Spark runs in the task.
    connect_conn_id
        Airflow connection of type Spark Connect; the micro-batch then uses its server, which ``windowmill serve`` keeps warm.
    storage_conn_id
        Airflow connection with the credentials of object storage; a submitted micro-batch, and the triggerer, have their own.
    submit
        Further arguments of ``SparkSubmitOperator`` (``conf``, ``jars``, ``deploy_mode`` …); only with ``conn_id``.
    new_versions
        ``"wait"``: each scheduled run waits in the triggerer until the source has new rows.
    ask_when_held
        Ask in the user interface what becomes of a held batch, and wait so long for an answer; without one it stays held.
    approve_changes
        As ``ask_when_held``, after a run that a changed spec has failed: whether the change is applied. Not with ``conn_id``.
    **dag_kwargs
        Further arguments of ``DAG``; they override those set by this function and by the spec's ``airflow``. ``default_args`` are merged.

    Raises
    ------
    SpecError
        With file, line and field of each problem, or both files of a DAG that is built twice. In a DAG file it becomes the import error.
    """
    pipeline = read_pipeline(spec)
    check_options(name_of(spec), pipeline, conn_id, connect_conn_id, submit, new_versions, approve_changes, ask_when_held)
    with new_dag(spec, pipeline, _arguments(spec, pipeline, start_date), dag_kwargs) as dag:
        batch = batch_operator("micro_batch", spec, pipeline, conn_id, connect_conn_id, storage_conn_id, submit)
        first = batch
        if new_versions == "wait":
            from windowmill.dags.sensors import SourceVersionSensor

            first = SourceVersionSensor(task_id="wait_for_source", spec=spec, poke_interval=WAIT_SECONDS)
            first >> batch
        _add_steps(before, first, dag)
        # Also after a held batch, when the report is needed most.
        report = QualityReportOperator(task_id="quality_report", spec=spec, storage_conn_id=storage_conn_id, trigger_rule="all_done")
        announce = AnnounceOperator(task_id="announce", spec=spec, storage_conn_id=storage_conn_id, asset=sink_asset(pipeline))
        batch >> [report, announce]
        common: dict[str, Any] = {"spec": spec, "pool": pool_of(pipeline.pipeline), "storage_conn_id": storage_conn_id}
        # These load a provider, which few DAG files need.
        if ask_when_held is not None:
            from windowmill.dags.rulings import ask_after

            ask_after(report, announce, response_timeout=ask_when_held, **common)
        if approve_changes is not None:
            from windowmill.dags.rulings import ask_about_changes

            ask_about_changes(batch, announce, response_timeout=approve_changes, connect_conn_id=connect_conn_id, **common)
    if "params" not in dag_kwargs:
        # As arguments, each operator would copy and each DAG validate them: two fifths of the time to build a DAG.
        dag.params.update({name: copy(param) for name, param in PARAMS.items()})
    return dag


def new_dag(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline, arguments: Mapping[str, Any], given: Mapping[str, Any]) -> DAG:
    """A DAG of ``pipeline`` with these ``arguments``, which those ``given`` by the caller override; ``default_args`` are merged.

    Raises ``SpecError`` if the files that ship build it from another place, too.
    """
    # Batches of a pipeline run one at a time; the pool also excludes runs of its other DAGs, and backfills, which Airflow counts apart.
    own: dict[str, Any] = {"start_date": START, "catchup": False, "max_active_runs": 1, **arguments, **given}
    own["default_args"] = default_args_of(pipeline, given.get("default_args"))
    refuse_clash(own["dag_id"], spec)
    return DAG(**own)


def _add_steps(steps: Sequence[Step], first: BaseOperator, dag: DAG) -> None:
    for step in steps:
        if isinstance(step, BaseOperator):
            dag.add_task(step)
            step >> first
        else:
            step() >> first


def batch_operator(
    task_id: str,
    spec: str | os.PathLike[str] | Pipeline,
    pipeline: Pipeline,
    conn_id: str | None,
    connect_conn_id: str | None,
    storage_conn_id: str | None,
    submit: Mapping[str, Any] | None,
) -> BaseOperator:
    """The task that computes a batch, in the pipeline's pool; the arguments are those of :func:`build_dag`."""
    # Higher priority than maintenance, which uses the same pool.
    common: dict[str, Any] = {"task_id": task_id, "pool": pool_of(pipeline.pipeline), "priority_weight": 10, "spec": spec}
    if conn_id is None:
        return MicroBatchOperator(**common, connect_conn_id=connect_conn_id, storage_conn_id=storage_conn_id)
    from windowmill.dags.submit import SubmittedBatchOperator  # loads the Spark provider, which few DAG files need

    return SubmittedBatchOperator(**common, conn_id=conn_id, **dict(submit or {}))


def _arguments(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline, start_date: datetime | None) -> dict[str, Any]:
    settings = settings_of(pipeline)
    return {
        "dag_id": pipeline.pipeline,
        "description": redacted(f"Sliding-window aggregates of {pipeline.source.place if pipeline.source else 'no source'}"),
        "schedule": timetable_of(spec, pipeline),
        "start_date": start_date or settings.start_date or START,
        "catchup": settings.catchup,
        "doc_md": _doc(pipeline),
        "tags": ["windowmill", *settings.tags],
    }


def check_options(
    where: str,
    pipeline: Pipeline,
    conn_id: str | None,
    connect_conn_id: str | None,
    submit: Mapping[str, Any] | None,
    new_versions: str | None = None,
    approve_changes: timedelta | None = None,
    ask_when_held: timedelta | None = None,
) -> None:
    """Refuse options of :func:`build_dag` that contradict each other or the pipeline; raises ``SpecError``."""
    if pipeline.sink is None:
        raise SpecError(f"{where}: sink: missing; a pipeline that runs on a schedule needs a table to publish to")
    if submit and conn_id is None:
        raise SpecError(f"{where}: submit is given without conn_id; name the Airflow connection of the Spark master")
    if conn_id is not None and connect_conn_id is not None:
        raise SpecError(f"{where}: conn_id and connect_conn_id are both given; name a Spark master or a Spark Connect server")
    if conn_id is not None and approve_changes is not None:
        raise SpecError(
            f"{where}: approve_changes and conn_id are both given; an approved change would be computed by the worker: apply changes by "
            "`windowmill apply` where the Spark master is within reach"
        )
    for option, wait in (("ask_when_held", ask_when_held), ("approve_changes", approve_changes)):
        if wait is not None and not (isinstance(wait, timedelta) and wait > timedelta(0)):
            raise SpecError(f"{where}: {option}: got {wait!r}; expected how long a question waits, such as timedelta(hours=12)")
    if new_versions is not None:
        if new_versions not in get_args(NewVersions):
            raise SpecError(f"{where}: new_versions: got {new_versions!r}; expected {' or '.join(map(repr, get_args(NewVersions)))}")
        check_new_versions(where, pipeline)


def _doc(pipeline: Pipeline) -> str:
    sink = pipeline.sink.place if pipeline.sink else "nowhere"
    windows = "\n".join(f"- {code_span(window.name)}: {window.type}" for window in pipeline.windows)
    aggregates = ", ".join(map(code_span, pipeline.aggregates))
    keys = ", ".join(map(code_span, pipeline.keys)) or "none: one group"
    return redacted(
        f"**{pipeline.pipeline}** publishes {aggregates} to {code_span(sink)}.\n\n"
        f"Keys: {keys}. Windows:\n\n{windows}\n\n"
        "A scheduled run takes up what is new in the source; a backfill recomputes its data interval. "
        f"To recompute any other range, trigger `{pipeline.pipeline}{BACKFILL}`, or this DAG with `from` and `to`."
    )
