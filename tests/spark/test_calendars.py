"""Windows on calendars and cumulative windows by slices: on Spark and in this process, with late rows, equal to the reference."""

from __future__ import annotations

import pytest

from tests.spark.harness import Bench, check_runs_backfill_and_upkeep, events
from windowmill.checkpoints.state.log import is_log
from windowmill.jobs.ways import limits

pytestmark = pytest.mark.spark

WINDOWS = [
    {"name": "half_days", "type": "hopping", "size": "1 day", "hop": "1 hour", "timezone": "America/New_York"},
    {"name": "months", "type": "tumbling", "size": "1 month", "timezone": "Pacific/Apia"},
    {"name": "so_far", "type": "cumulative", "size": "2 hours", "step": "15 minutes"},
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
]
STEPS = [{"name": "steps", "type": "cumulative", "size": "1 hour", "step": "15 minutes"}]


@pytest.mark.parametrize("windows", [WINDOWS, STEPS], ids=["mixed", "cumulative"])
@pytest.mark.parametrize("place", ["process", "Spark"])
def test_any_cut_gives_the_rows_of_the_reference(spark, tmp_path, monkeypatch, place, windows):
    if place == "Spark":
        monkeypatch.setattr(limits, "MOST_ROWS", 0)
        monkeypatch.setattr(limits, "MOST_STATE_ROWS", -1)
    rows = events(41, 400)
    bench = Bench(tmp_path, {"windows": windows})
    done = check_runs_backfill_and_upkeep(bench, rows)
    assert sum(d.commit.rows_late for d in done) > 0, "no row was late, so lateness was not tried"
    assert not is_log(str(tmp_path / "sink.windowmill" / "state"))
