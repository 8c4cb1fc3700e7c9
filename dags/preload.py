"""Loads what tasks and DAG files need, for processes that fork others: import it in Airflow's ``airflow_local_settings.py``.

An executor's worker and the DAG processor start each task and each parse by forking. What the parent has loaded, the child need not load
(decision 21).
"""

from __future__ import annotations

import windowmill.checkpoints.ledger
import windowmill.dags.backfill
import windowmill.dags.folders
import windowmill.dags.maintenance
import windowmill.dags.triggers
import windowmill.jobs.report
import windowmill.jobs.sources.unread  # noqa: F401
