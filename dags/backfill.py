"""Builds the DAG that recomputes a range of a pipeline's history in one job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from typing import Any

from airflow.sdk import DAG, Param

from windowmill.dags.factory import batch_operator, check_options, new_dag
from windowmill.dags.operators import AnnounceOperator
from windowmill.dags.schedules import settings_of, sink_asset
from windowmill.dags.specs import BACKFILL, name_of, read_pipeline
from windowmill.windowing.spec import Pipeline

#: Params of every run; ``from`` and ``to`` have no default, so Airflow takes no run without them.
PARAMS = {
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
    arguments = {
        "dag_id": f"{pipeline.pipeline}{BACKFILL}",
        "description": f"Recomputes a range of {pipeline.pipeline}",
        "schedule": None,
        "tags": ["windowmill", "backfill", *settings_of(pipeline).tags],
        "doc_md": (
            f"Recomputes the windows of **{pipeline.pipeline}** that end in (`from`, `to`], from the rows that the source holds now, as "
            "one job and one commit. `windowmill backfill SPEC --from … --to … --dry-run` says beforehand what it would read and replace."
        ),
    }
    with new_dag(spec, pipeline, arguments, dag_kwargs) as dag:
        backfill = batch_operator("backfill", spec, pipeline, conn_id, connect_conn_id, storage_conn_id, submit)
        backfill >> AnnounceOperator(task_id="announce", spec=spec, storage_conn_id=storage_conn_id, asset=sink_asset(pipeline))
    if "params" not in dag_kwargs:
        dag.params.update({name: copy(param) for name, param in PARAMS.items()})
    return dag
