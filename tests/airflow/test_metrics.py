"""Metrics of a run, as Airflow's own settings send them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk.observability import stats

from tests.airflow.test_rulings import land
from windowmill.dags.metrics import METRICS, count_batches, gauge_pipeline
from windowmill.dags.operators import MicroBatchOperator, QualityReportOperator
from windowmill.windowing.specfile import load_pipeline

pytestmark = [pytest.mark.dag, pytest.mark.usefixtures("commands_here")]

NOW = datetime(2024, 1, 2, tzinfo=UTC)
RUN = {"dag_run": SimpleNamespace(conf={}, run_type="scheduled"), "params": {}}


class Backend:
    """What a statistics server would be sent: by name and tags."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, ...], float] = {}

    def _take(self, stat: str, value: float, tags: dict[str, str] | None = None) -> None:
        self.sent[(stat, *(f"{name}={value}" for name, value in (tags or {}).items()))] = value

    def incr(self, stat, count=1, rate=1, *, tags=None) -> None:
        self._take(stat, count, tags)

    def timing(self, stat, dt, *, tags=None) -> None:
        self._take(stat, dt, tags)

    def gauge(self, stat, value, rate=1, delta=False, *, tags=None) -> None:
        self._take(stat, value, tags)


@pytest.fixture
def sent(monkeypatch) -> dict[tuple[str, ...], float]:
    backend = Backend()
    stats.initialize(factory=lambda: backend, export_legacy_names=False)
    yield backend.sent
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


@pytest.fixture
def spec(write_spec, tmp_path: Path) -> Path:
    land(tmp_path, range(6))
    return write_spec(**{"keys: [origin]": "compute: local\nkeys: [origin]"})


def test_a_run_counts_its_batches_and_its_report_tells_where_the_pipeline_stands(spec, sent, monkeypatch):
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    MicroBatchOperator(task_id="micro_batch", spec=spec).execute(RUN)
    assert sent["windowmill.batches", "pipeline=delays", "verdict=passed", "action=run"] == 1
    assert {name: sent[f"windowmill.{name}", "pipeline=delays"] for name in ("rows_read", "rows_late", "rows_quarantined")} == {
        "rows_read": 12,
        "rows_late": 0,
        "rows_quarantined": 0,
    }
    assert sent["windowmill.step", "pipeline=delays", "step=apply"] > 0
    QualityReportOperator(task_id="quality_report", spec=spec).execute(RUN)
    assert sent["windowmill.held", "pipeline=delays"] == 0
    assert sent["windowmill.state_bytes", "pipeline=delays"] > 0
    # All metrics that the reference lists, and under no older name; no row has missed a window.
    assert {name for name, *_ in sent if name.startswith("windowmill.")} == {
        f"windowmill.{name}" for name in METRICS.keys() - {"late_missed"}
    }


def test_rows_that_missed_windows_are_counted_by_window(sent):
    counts = dict.fromkeys(("rows_read", "rows_late", "rows_quarantined", "duplicates", "filtered", "rows_published"), 3)
    count_batches("delays", [counts | {"verdict": "passed", "action": "run", "late_missed": {"hourly": 2, "daily": 1}}])
    assert {tuple(tags): n for (name, *tags), n in sent.items() if name == "windowmill.late_missed"} == {
        ("pipeline=delays", "window=hourly"): 2,
        ("pipeline=delays", "window=daily"): 1,
    }


def test_statsd_gets_names_that_hold_the_pipeline(spec, sent):
    MicroBatchOperator(task_id="micro_batch", spec=spec).execute(RUN)
    assert (sent["windowmill.delays.rows_read",], sent["windowmill.delays.batches.passed.run",]) == (12, 1)
    assert ("windowmill.delays.step.apply",) in sent


def batch(**fields):
    own = {"status": "committed", "seen": NOW - timedelta(hours=3), "used": {"state_bytes": 4096}} | fields
    return SimpleNamespace(**own, outcome=SimpleNamespace(used=own["used"]))


def test_the_watermark_is_behind_the_newest_event_by_the_disorder(spec, sent):
    pipeline = load_pipeline(spec)
    gauge_pipeline(pipeline, batch(status="held"), batch(), NOW)
    assert {name: sent[f"windowmill.{name}", "pipeline=delays"] for name in ("held", "event_lag_seconds", "watermark_lag_seconds")} == {
        "held": 1,
        "event_lag_seconds": 3 * 3600,
        "watermark_lag_seconds": 3 * 3600 + pipeline.time.disorder.elapsed() / 1e6,
    }
    assert sent["windowmill.state_bytes", "pipeline=delays"] == 4096


@pytest.mark.parametrize(
    ("last", "missing"), [(None, "event_lag_seconds"), (batch(seen=7), "event_lag_seconds"), (batch(used={}), "state_bytes")]
)
def test_what_is_not_known_is_not_sent(spec, sent, last, missing):
    gauge_pipeline(load_pipeline(spec), batch(), last, NOW)
    assert (f"windowmill.{missing}", "pipeline=delays") not in sent
    assert sent["windowmill.held", "pipeline=delays"] == 0
