"""The DAG file that Airflow loads: the DAGs of every pipeline in the configured folders, with their connections (see dags/folders.py).

A spec that cannot be read is reported by broken_pipelines.py: Airflow stops scheduling every DAG of a file that has an import error.
"""

from __future__ import annotations

from airflow.sdk import DAG, get_parsing_context

from windowmill.dags.backfill import build_backfill_dag
from windowmill.dags.factory import build_dag
from windowmill.dags.folders import build_all, connections, options_of, verified_rows
from windowmill.dags.maintenance import build_maintenance_dag
from windowmill.dags.specs import ParsedFile
from windowmill.windowing.errors import SpecError


def dags_of(spec: ParsedFile) -> list[DAG]:
    """Build the DAGs of a pipeline: that of its runs, and those of backfills and maintenance."""
    # Airflow takes each DAG as it is built, so the one that finds the problems of a spec comes first.
    runs, own = build_dag(spec, **options_of(spec.pipeline)), connections()
    upkeep = build_maintenance_dag(spec, storage_conn_id=own["storage_conn_id"], verify=verified_rows())
    return [runs, build_backfill_dag(spec, **own), upkeep]


wanted = get_parsing_context().dag_id
built = build_all(dags_of, wanted)
if wanted is not None and wanted not in built.dags and built.problems:
    # A task is starting but its spec has become unreadable: report this in its log.
    raise SpecError("\n".join(built.problems))
globals().update(built.dags)
