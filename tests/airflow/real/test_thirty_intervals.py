"""Airflow's own backfill over thirty intervals, four runs at a time, while the schedule goes on (``make airflow-faults``)."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import yaml

from tests.airflow.real.airflows import RealAirflow
from tests.spark.harness import BASE, Bench, Row, differences, events
from windowmill.checkpoints.ledger import Ledger
from windowmill.windowing.axis import DAY_US

pytestmark = [
    pytest.mark.dag,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(os.environ.get("WINDOWMILL_AIRFLOW_FAULTS") != "all", reason="takes minutes; make airflow-faults"),
]

NAME, DAYS = "thirty", 30
WINDOWS = [
    {"name": "daily", "type": "tumbling", "size": "1 day"},
    {"name": "rolling", "type": "hopping", "size": "6 hours", "hop": "1 hour"},
    {"name": "visits", "type": "session", "gap": "2 hours"},
    {"name": "last", "type": "sliding", "evict": {"count": 20}, "trigger": {"count": 7}},
]
DAG_FILE = """
from datetime import UTC, datetime

from windowmill.dags.factory import build_dag  # Airflow looks only into files that name it

build_dag({spec!r}, start_date=datetime(2024, 3, 1, tzinfo=UTC), is_paused_upon_creation=True)
"""


def rows_of_days() -> list[Row]:
    """Rows in the order of their times over 31 days, so that a backfill gives what runs have published."""
    rows = [row for row in events(77, 1_550) if row["t"] is not None]
    return [row | {"t": BASE + n * 31 * DAY_US // len(rows)} for n, row in enumerate(rows)]


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path / NAME, {"pipeline": NAME, "schedule": "@daily", "windows": WINDOWS, "compute": "local"})


@pytest.fixture
def airflow(real_airflow, tmp_path, bench) -> RealAirflow:
    spec = tmp_path / f"{NAME}.yaml"
    spec.write_text(yaml.safe_dump(bench.spec))
    real_airflow.add(NAME, DAG_FILE.format(spec=str(spec)), [NAME])
    return real_airflow


def test_thirty_intervals_four_at_a_time_beside_the_schedule(airflow, bench):
    rows = rows_of_days()
    begun = len(rows) * 9 // 10
    bench.land(rows[:begun])
    airflow.unpause(NAME)
    airflow.wait("the first batch", lambda: batches_of(bench) == ["run"], 300)

    # A scheduler that takes up runs on SQLite while they are made ends with an error.
    airflow.kill("scheduler")
    airflow.backfill(NAME, "2024-03-01T00:00:00Z", "2024-03-30T00:00:00Z", active=4)
    airflow.start("scheduler")
    airflow.wait("some intervals", lambda: batches_of(bench).count("backfill") >= 5, 600)
    bench.land(rows[begun:])
    assert airflow.wait_for_run(NAME, airflow.trigger(NAME), 600) == "success"

    def ended() -> bool:
        states = [run["state"] for run in airflow.runs(NAME) if run["run_type"] == "backfill"]
        assert "failed" not in states
        return states == ["success"] * DAYS

    airflow.wait("all intervals", ended, 1_200, every=2)
    batches = Ledger.open(bench.pipeline).batches()
    assert sorted(batch.action for batch in batches) == ["backfill"] * DAYS + ["run"] * 2
    assert batches[-1].action == "backfill", "the run was one among the intervals"
    assert all(before.ended_at <= after.planned_at for before, after in pairwise(batches))
    assert differences(bench.rows(), bench.expected(rows).rows) == []


def batches_of(bench: Bench) -> list[str]:
    """What the committed batches did; in order."""
    return [batch.action for batch in Ledger.open(bench.pipeline).batches() if batch.status == "committed"]
