"""Raises the problems of specs in the configured folders, for Airflow to show as an import error; defines no DAG.

This file is separate from pipelines.py, because an import error takes all DAGs of its file off the schedule.
"""

from __future__ import annotations

from airflow.sdk import DAG, get_parsing_context

from windowmill.dags.factory import build_dag
from windowmill.dags.folders import build_all, options_of
from windowmill.dags.maintenance import build_maintenance_dag
from windowmill.dags.specs import ParsedFile
from windowmill.windowing.errors import SpecError


def unregistered_dags_of(spec: ParsedFile) -> list[DAG]:
    """Build both DAGs of a pipeline, unregistered, to find their problems."""
    return [build_dag(spec, **options_of(spec.pipeline), auto_register=False), build_maintenance_dag(spec, auto_register=False)]


if get_parsing_context().dag_id is None:  # a starting task does not need this file
    problems = build_all(unregistered_dags_of).problems
    if problems:
        raise SpecError("\n".join(problems))
