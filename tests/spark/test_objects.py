"""Partials that are Python objects, in slices: on Spark and in this process, through the state, and after a release that kept rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.harness import Bench, check_runs_backfill_and_upkeep, differences, events, expected, quiet, run_over
from tests.spark.test_live import AGGREGATES
from windowmill.checkpoints.state.log import is_log
from windowmill.jobs.commands.maintenance import maintain
from windowmill.jobs.commands.state import state_of
from windowmill.jobs.ways import choose, limits

pytestmark = pytest.mark.spark

OBJECTS: dict[str, Any] = AGGREGATES | {
    "texts": {"concat": "label", "where": "v > 50"},
    "about": {"approx_distinct": "id"},
    "top": {"top_k": {"column": "i", "k": 2}},
    "p95": {"quantile": {"column": "i", "q": 0.95}},
}
GRIDS = [
    {"name": "slots", "type": "tumbling", "size": "10 minutes"},
    {"name": "rolling", "type": "hopping", "size": "47 minutes", "hop": "7 minutes"},
]
LONG = [{"name": "long", "type": "hopping", "size": "1500 minutes", "hop": "10 minutes"}]


@pytest.mark.parametrize("windows", [GRIDS, LONG], ids=["slices", "nodes"])
@pytest.mark.parametrize("place", ["process", "Spark"])
def test_any_cut_gives_the_rows_of_the_reference(spark, tmp_path, monkeypatch, place, windows):
    if place == "Spark":
        monkeypatch.setattr(limits, "MOST_ROWS", 0)
        monkeypatch.setattr(limits, "MOST_STATE_ROWS", -1)
    rows = events(31, 400)
    bench = Bench(tmp_path, {"aggregates": OBJECTS, "windows": windows})
    check_runs_backfill_and_upkeep(bench, rows)
    assert not is_log(str(tmp_path / "sink.windowmill" / "state"))


def test_state_shows_the_partials(spark, tmp_path):
    bench = Bench(tmp_path, {"aggregates": OBJECTS, "windows": GRIDS, "keys": []})
    run_over(bench, 8, events(32, 60), 1)
    [*_, last] = state_of(bench.pipeline, [], 5).data["entries"]
    assert isinstance(last["partials"]["distinct_label"], list)
    assert isinstance(last["partials"]["summary_i"], list)


def test_a_log_of_live_rows_of_an_older_release_goes_on(spark, tmp_path, monkeypatch):
    rows = events(33, 300)
    bench = Bench(tmp_path, {"aggregates": OBJECTS, "windows": GRIDS})
    with monkeypatch.context() as patched:
        patched.setattr(choose, "slices_of", lambda *_: None)
        run_over(bench, 9, rows[:200], 2)
    state = str(tmp_path / "sink.windowmill" / "state")
    assert is_log(state)
    run_over(bench, 10, rows[200:], 2)
    assert is_log(state)
    maintain(bench.pipeline, quiet())
    assert state_of(bench.pipeline, [], 5).data["state"]["kind"] == "live rows"
    assert differences(bench.rows(), expected(bench.pipeline, rows).rows) == []
