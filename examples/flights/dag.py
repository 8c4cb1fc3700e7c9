"""The example's DAG: land one day of flights, then take it up; a year of daily runs from February 2013 on, and maintenance."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import get_parsing_context, task

from windowmill.dags.factory import build_dag
from windowmill.dags.folders import connections
from windowmill.dags.maintenance import build_maintenance_dag
from windowmill.dags.specs import MAINTENANCE

SPEC = Path(__file__).with_name("pipeline.yaml")
PIPELINE = "flight_delays"

#: Last day to be scheduled; the data end with the year.
LAST_DAY = os.environ.get("FLIGHTS_LAST_DAY", "2013-12-31")


@task
def land(**context: object) -> int:
    """Land the flights scheduled on the day that the data interval covers; again and again gives the same."""
    from examples.flights.land import land_airports, land_day  # pyarrow and deltalake are for the run, not for parsing

    land_airports(f"{os.environ['WAREHOUSE']}/airports")
    start = context.get("data_interval_start")
    if not isinstance(start, datetime):
        return 0  # a run without an interval, such as a trigger without a date, takes up what has landed
    return land_day(start.date(), f"{os.environ['WAREHOUSE']}/flights")


wanted = get_parsing_context().dag_id
if wanted in (None, PIPELINE):
    build_dag(
        SPEC,
        before=[land],
        start_date=datetime(2013, 2, 1, tzinfo=UTC),
        end_date=datetime.fromisoformat(LAST_DAY).replace(tzinfo=UTC),
        catchup=True,
        **connections(),
    )
if wanted in (None, PIPELINE + MAINTENANCE):
    build_maintenance_dag(SPEC)
