"""Builds the DAGs of a pipeline from its spec: its runs, its backfills, and the maintenance of its tables.

Pools are stored in Airflow's database, which a DAG file must not access, and a task without its pool waits forever. So creating pools is a
step of deployment: ``python -m windowmill.dags.factory SPEC…``, or without arguments for all pipelines that dags/pipelines.py finds.
Repeating it is harmless.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from airflow.sdk import DAG, Asset, AssetWatcher, BaseOperator, CronDataIntervalTimetable, Param
from croniter import croniter

from windowmill.dags.alerts import settings_of
from windowmill.dags.folders import refuse_clash, spec_files
from windowmill.dags.operators import (
    AnnounceOperator,
    MaintainOperator,
    MicroBatchOperator,
    QualityReportOperator,
    VerifyOperator,
    default_args_of,
)
from windowmill.dags.specs import BACKFILL, MAINTENANCE, Spec, identity_of, name_of, read_pipeline, redacting
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.redaction import code_span, redacted
from windowmill.windowing.spec import SCHEDULE_WORDS, Pipeline
from windowmill.windowing.specfile import load_pipeline


def pool_of(pipeline: str) -> str:
    """Name of the pipeline's pool."""
    return f"windowmill_{pipeline}"


def create_pools(pipelines: Iterable[str], settings: Mapping[str, str] | None = None) -> list[str]:
    """Create the pools of ``pipelines`` in Airflow's database, or reset them to one slot; returns their names.

    Parameters
    ----------
    pipelines
        Names of the pipelines.
    settings
        Environment variables that select the Airflow installation, in addition to this process' own.
    """
    pools = {pool_of(name): {"slots": 1, "description": f"Runs of {name}, one at a time", "include_deferred": True} for name in pipelines}
    if pools:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pools.json"
            file.write_text(json.dumps(pools), encoding="utf-8")
            # Use Airflow's command, because its models are not a public interface.
            done = subprocess.run(
                [sys.executable, "-m", "airflow", "pools", "import", str(file)],
                env={**os.environ, **(settings or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no message"]
            raise WindowmillError(
                f"airflow pools import: failed with exit code {done.returncode}: {reason[0]}; check AIRFLOW_HOME, `airflow db check`"
            )
    return list(pools)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m windowmill.dags.factory", description="Create the Airflow pools of pipelines.")
    parser.add_argument(
        "specs", nargs="*", metavar="SPEC", help="a pipeline's YAML file (default: all in the folders of WINDOWMILL_PIPELINES)"
    )
    options = parser.parse_args(arguments)
    try:
        names = [load_pipeline(path).pipeline for path in options.specs or spec_files()]
        for pool in create_pools(names):
            print(f"{pool}: 1 slot")
    except WindowmillError as err:
        print(err, file=sys.stderr)
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())


#: Airflow's meaning of ``@quarterly``, the one schedule word that croniter does not know.
_QUARTERLY = "0 0 1 */3 *"


def timetable_of(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline) -> Any:
    """The argument ``schedule`` of the pipeline's DAG.

    Raises
    ------
    SpecError
        If the spec's schedule is not valid.
    """
    schedule = pipeline.schedule
    if schedule is None:
        return None
    if not isinstance(schedule, str):
        return [Asset.ref(name=schedule.asset)]
    _check_cron(name_of(spec), schedule)
    return cron_timetable(schedule)


@functools.cache
def cron_timetable(schedule: str) -> CronDataIntervalTimetable:
    """The timetable of a cron expression, shared by all DAGs that have it."""
    # Only this timetable gives scheduled, manual and backfill runs the same aligned intervals; a plain cron string gives empty ones.
    return CronDataIntervalTimetable(schedule, timezone="UTC")


def new_versions_of(spec: str | os.PathLike[str] | Pipeline, *, cron: str | None = None) -> Asset:
    """An asset that gets an event when the pipeline's source has rows that the pipeline has not read.

    In a DAG: ``schedule=[new_versions_of(spec)]``.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, as the triggerer sees it, or the pipeline itself.
    cron
        When to look, in UTC; without it, the spec's ``schedule``.

    Raises
    ------
    SpecError
        If the spec is wrong, or neither says when to look.
    """
    return source_asset(spec, read_pipeline(spec), cron)


def source_asset(spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline, cron: str | None = None) -> Asset:
    """As :func:`new_versions_of`, for a ``pipeline`` that has been read."""
    from windowmill.dags.triggers import NewVersionsTrigger, trigger_spec

    where = name_of(spec)
    check_new_versions(where, pipeline)
    cron = cron or (pipeline.schedule if isinstance(pipeline.schedule, str) else None)
    if cron is None:
        raise SpecError(f"{where}: schedule: got no cron expression; it says when to look for new versions of the source")
    _check_cron(where, cron)
    name = f"{pipeline.pipeline}__source"
    trigger = NewVersionsTrigger(**trigger_spec(Spec.of(spec)), cron=_QUARTERLY if cron == "@quarterly" else cron)
    # What this pipeline has not read is not the table itself, which may be an asset of its own.
    return Asset(name=name, uri=f"windowmill:{name}", group="windowmill", watchers=[AssetWatcher(name=name, trigger=trigger)])


def check_new_versions(where: str, pipeline: Pipeline) -> None:
    """Refuse ``new_versions`` for a pipeline whose windows an interval without rows completes too; ``where`` names the spec.

    Raises
    ------
    SpecError
        If the watermark is the end of the data interval.
    """
    if pipeline.time.watermark == "data_interval_end":
        raise SpecError(
            f"{where}: time.watermark: got data_interval_end, with which an interval without rows completes windows too; "
            "let it run at each instant of its schedule, or use watermark: max_event_time"
        )


def _check_cron(where: str, schedule: str) -> None:
    # Airflow checks the expression only when it stores the DAG, and then reports the whole file instead of this field.
    if schedule in SCHEDULE_WORDS or _is_cron(schedule):
        return
    with redacting():
        raise SpecError(
            f"{where}: schedule: got {schedule!r}; expected five cron fields such as '*/30 * * * *', "
            f"one of {', '.join(sorted(SCHEDULE_WORDS))}, or {{asset: name}}"
        )


@functools.cache
def _is_cron(schedule: str) -> bool:
    return len(schedule.split()) == 5 and bool(croniter.is_valid(schedule))


#: In the past, and equal at every parse; without ``catchup`` it means "from the next interval on".
START = datetime(2020, 1, 1, tzinfo=UTC)

#: Between two looks of a run that waits.
WAIT_SECONDS = 10.0

#: How a DAG runs only when its source has new versions.
NewVersions = Literal["wait", "watch"]

#: Of a manual run; a null is valid for each.
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
        ``"watch"``: at the instants of the spec's schedule the triggerer polls the source, and a run starts only if it has new rows.
        ``"wait"``: each scheduled run waits in the triggerer until there are some.
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
    dag_kwargs["default_args"] = default_args_of(pipeline, dag_kwargs.get("default_args"))
    arguments = _arguments(spec, pipeline, start_date, watched=new_versions == "watch") | dag_kwargs
    refuse_clash(arguments["dag_id"], spec)
    with DAG(**arguments) as dag:
        batch = batch_operator("micro_batch", spec, pipeline, conn_id, connect_conn_id, storage_conn_id, submit)
        _add_steps(before, _waiting(spec, batch) if new_versions == "wait" else batch, dag)
        _add_followers(batch, spec, pipeline, ask_when_held, approve_changes, storage_conn_id, connect_conn_id)
    if "params" not in dag_kwargs:
        # As arguments each operator would copy them, and DAG validate them: two fifths of the time to build a DAG.
        dag.params.update({name: copy(param) for name, param in PARAMS.items()})
    return dag


def _add_followers(
    batch: BaseOperator,
    spec: str | os.PathLike[str] | Pipeline,
    pipeline: Pipeline,
    ask_when_held: timedelta | None,
    approve_changes: timedelta | None,
    storage_conn_id: str | None,
    connect_conn_id: str | None,
) -> None:
    """Add the tasks after ``batch``."""
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


def sink_asset(pipeline: Pipeline) -> Asset:
    """The asset of the pipeline's sink, named like the pipeline, so that ``schedule: {asset: <pipeline>}`` follows it."""
    sink = pipeline.sink
    if sink is None:
        raise SpecError(f"{pipeline.pipeline}: sink: missing; without a table there is nothing to follow")
    if sink.path is None:
        return Asset(name=pipeline.pipeline, uri=f"windowmill:{sink.table}", group="windowmill")
    uri = identity_of(sink.path) if "://" in sink.path else Path(sink.path).absolute().as_uri()
    return Asset(name=pipeline.pipeline, uri=uri, group="windowmill")


def _arguments(
    spec: str | os.PathLike[str] | Pipeline, pipeline: Pipeline, start_date: datetime | None, *, watched: bool
) -> dict[str, Any]:
    """Arguments of ``DAG`` that follow from the pipeline."""
    settings = settings_of(pipeline)
    return {
        "dag_id": pipeline.pipeline,
        "description": redacted(f"Sliding-window aggregates of {pipeline.source.place if pipeline.source else 'no source'}"),
        "schedule": [source_asset(spec, pipeline)] if watched else timetable_of(spec, pipeline),
        "start_date": start_date or settings.start_date or START,
        "catchup": settings.catchup,
        # Batches of a pipeline run one at a time; the pool also excludes backfills, which Airflow counts separately.
        "max_active_runs": 1,
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
        _check_wait(where, option, wait)
    if new_versions is not None:
        if new_versions not in get_args(NewVersions):
            raise SpecError(f"{where}: new_versions: got {new_versions!r}; expected {' or '.join(map(repr, get_args(NewVersions)))}")
        check_new_versions(where, pipeline)


def _check_wait(where: str, option: str, wait: object) -> None:
    if wait is not None and not (isinstance(wait, timedelta) and wait > timedelta(0)):
        raise SpecError(f"{where}: {option}: got {wait!r}; expected how long a question waits, such as timedelta(hours=12)")


def _waiting(spec: str | os.PathLike[str] | Pipeline, batch: BaseOperator) -> BaseOperator:
    """The task before ``batch`` that waits for the source."""
    from windowmill.dags.sensors import SourceVersionSensor

    sensor = SourceVersionSensor(task_id="wait_for_source", spec=spec, poke_interval=WAIT_SECONDS)
    sensor >> batch
    return sensor


def _add_steps(steps: Sequence[Step], first: BaseOperator, dag: DAG) -> None:
    """Add the ``steps`` before the task ``first``."""
    for step in steps:
        if isinstance(step, BaseOperator):
            dag.add_task(step)
            step >> first
        else:
            step() >> first


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


def build_maintenance_dag(
    spec: str | os.PathLike[str] | Pipeline,
    *,
    schedule: str | None = "@daily",
    storage_conn_id: str | None = None,
    verify: int | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG ``<pipeline>__maintenance``; its tasks share the pool of the pipeline's runs, so they never overlap.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, or the pipeline itself.
    schedule
        A cron expression in UTC; none: only when triggered.
    storage_conn_id
        As in :func:`.build_dag`.
    verify
        Number of published rows that a task ``verify`` recomputes from the source after maintenance; none: there is no such task.
    **dag_kwargs
        Further arguments of ``DAG``; they override those set by this function. ``default_args`` are merged.
    """
    pipeline = read_pipeline(spec)
    arguments: dict[str, Any] = {
        "dag_id": f"{pipeline.pipeline}{MAINTENANCE}",
        "description": f"Compaction and clean-up of {pipeline.pipeline}",
        "schedule": cron_timetable(schedule) if schedule else None,
        "start_date": datetime(2020, 1, 1, tzinfo=UTC),
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["windowmill", "maintenance", *settings_of(pipeline).tags],
    }
    arguments |= dag_kwargs
    arguments["default_args"] = default_args_of(pipeline, dag_kwargs.get("default_args"))
    refuse_clash(arguments["dag_id"], spec)
    with DAG(**arguments) as dag:
        shared: dict[str, Any] = {"spec": spec, "storage_conn_id": storage_conn_id, "pool": pool_of(pipeline.pipeline)}
        maintain = MaintainOperator(task_id="maintain", **shared)
        if verify is not None:
            # No retry: it would take another sample, and a difference that one has found is there to stay.
            maintain >> VerifyOperator(task_id="verify", sample=verify, retries=0, **shared)
    return dag


#: Of every run; ``from`` and ``to`` have no default, so Airflow takes no run without them.
BACKFILL_PARAMS = {
    "from": Param(type="string", format="date-time", description="Recompute the windows that end after this instant."),
    "to": Param(type="string", format="date-time", description="… and at or before this one."),
    "as_arrived": Param(
        False, type="boolean", description="Take the rows that runs have read, also where the source has changed them since."
    ),
}


def build_backfill_dag(
    spec: str | os.PathLike[str] | Pipeline,
    *,
    conn_id: str | None = None,
    connect_conn_id: str | None = None,
    storage_conn_id: str | None = None,
    submit: Mapping[str, Any] | None = None,
    **dag_kwargs: Any,
) -> DAG:
    """Build the DAG ``<pipeline>__backfill``: ``backfill → announce``, one job and one asset event for a range of any length.

    It has no schedule, and its task shares the pool of the pipeline's runs, so they never overlap.

    Parameters
    ----------
    spec
        Path of the pipeline's YAML file, or the pipeline itself.
    conn_id, connect_conn_id, storage_conn_id, submit
        As in :func:`.build_dag`.
    **dag_kwargs
        Further arguments of ``DAG``; they override those set by this function. ``default_args`` are merged.
    """
    pipeline = read_pipeline(spec)
    check_options(name_of(spec), pipeline, conn_id, connect_conn_id, submit)
    arguments: dict[str, Any] = {
        "dag_id": f"{pipeline.pipeline}{BACKFILL}",
        "description": f"Recomputes a range of {pipeline.pipeline}",
        "schedule": None,
        "start_date": START,
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["windowmill", "backfill", *settings_of(pipeline).tags],
        "doc_md": (
            f"Recomputes the windows of **{pipeline.pipeline}** that end in (`from`, `to`], from the rows that the source holds now, as "
            "one job and one commit. `windowmill backfill SPEC --from … --to … --dry-run` says beforehand what it would read and replace."
        ),
    }
    arguments |= dag_kwargs
    arguments["default_args"] = default_args_of(pipeline, dag_kwargs.get("default_args"))
    refuse_clash(arguments["dag_id"], spec)
    with DAG(**arguments) as dag:
        backfill = batch_operator("backfill", spec, pipeline, conn_id, connect_conn_id, storage_conn_id, submit)
        backfill >> AnnounceOperator(task_id="announce", spec=spec, storage_conn_id=storage_conn_id, asset=sink_asset(pipeline))
    if "params" not in dag_kwargs:
        dag.params.update({name: copy(param) for name, param in BACKFILL_PARAMS.items()})
    return dag
