"""Builds the DAG that maintains a pipeline's tables: compaction, vacuum, removal of expired slices; and that verifies published rows."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG

from windowmill.dags.factory import new_dag
from windowmill.dags.operators import MaintainOperator, VerifyOperator
from windowmill.dags.pools import pool_of
from windowmill.dags.schedules import cron_timetable, settings_of
from windowmill.dags.specs import MAINTENANCE, read_pipeline
from windowmill.windowing.spec import Pipeline


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
    arguments = {
        "dag_id": f"{pipeline.pipeline}{MAINTENANCE}",
        "description": f"Compaction and clean-up of {pipeline.pipeline}",
        "schedule": cron_timetable(schedule) if schedule else None,
        "tags": ["windowmill", "maintenance", *settings_of(pipeline).tags],
    }
    with new_dag(spec, pipeline, arguments, dag_kwargs) as dag:
        shared: dict[str, Any] = {"spec": spec, "storage_conn_id": storage_conn_id, "pool": pool_of(pipeline.pipeline)}
        maintain = MaintainOperator(task_id="maintain", **shared)
        if verify is not None:
            # No retry: it would take another sample, and a difference that one has found is there to stay.
            maintain >> VerifyOperator(task_id="verify", sample=verify, retries=0, **shared)
    return dag
