"""Metrics of pipelines by Airflow's own settings: StatsD, Datadog or OpenTelemetry, as ``[metrics]`` says; without it, none.

Each has the tag ``pipeline``. Where Airflow exports the older names of its own metrics (``[metrics] legacy_names_on``), which hold what
tags say for StatsD, each is also sent as ``windowmill.<pipeline>.<metric>``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Batch
    from windowmill.windowing.spec import Pipeline

#: Metric -> its kind, its tags in addition to ``pipeline``, and what it is; docs/reference/metrics.md lists them.
METRICS: Mapping[str, tuple[str, str, str]] = {
    "batches": ("counter", "`verdict`, `action`", "Committed batches."),
    "rows_read": ("counter", "", "Rows that committed batches read."),
    "rows_late": ("counter", "", "Rows among them that were late."),
    "late_missed": ("counter", "`window`", "Rows among them that came too late for a window of this name, quarantined ones included."),
    "rows_quarantined": ("counter", "", "Rows among them that were never applied."),
    "duplicates": ("counter", "", "Rows among them that were left out because one with the same values had been applied."),
    "filtered": ("counter", "", "Rows among them that filters left out."),
    "rows_published": ("counter", "", "Rows that committed batches published."),
    "step": ("timer", "`step`", "Milliseconds of a step of a batch."),
    "held": ("gauge", "", "1 while a batch is held, else 0."),
    "event_lag_seconds": ("gauge", "", "How far the newest event is behind now."),
    "watermark_lag_seconds": ("gauge", "", "How far the watermark is behind now."),
    "state_bytes": ("gauge", "", "Bytes of state after the last batch."),
}
#: Those that are counts of a batch.
_COUNTS = ["duplicates", "filtered", *(name for name in METRICS if name.startswith("rows_"))]


def count_batches(pipeline: str, batches: Iterable[Mapping[str, Any]]) -> None:
    """Count ``batches`` as the summary of a run has them: their rows, their verdicts, and the milliseconds of each step."""
    from airflow.sdk.observability import stats

    for batch in batches:
        _send(stats.incr, pipeline, "batches", 1, verdict=batch["verdict"], action=batch["action"])
        for metric in _COUNTS:
            _send(stats.incr, pipeline, metric, batch[metric])
        for window, rows in batch.get("late_missed", {}).items():
            _send(stats.incr, pipeline, "late_missed", rows, window=window)
        for step, seconds in batch.get("timings", {}).items():
            _send(stats.timing, pipeline, "step", 1000 * seconds, step=step)


def gauge_pipeline(pipeline: Pipeline, newest: Batch, last: Batch | None, now: datetime) -> None:
    """Tell whether the ``newest`` batch of a pipeline is held, how far its ``last`` advance is behind, and the bytes of its state."""
    from airflow.sdk.observability import stats

    name = pipeline.pipeline
    _send(stats.gauge, name, "held", int(newest.status == "held"))
    if last is None:
        return
    if isinstance(last.seen, datetime):
        lag = (now - last.seen).total_seconds()
        _send(stats.gauge, name, "event_lag_seconds", lag)
        if not pipeline.asserts_interval:  # else the orchestrator is the watermark
            _send(stats.gauge, name, "watermark_lag_seconds", lag + pipeline.time.disorder.elapsed() / 1e6)
    if "state_bytes" in last.outcome.used:
        _send(stats.gauge, name, "state_bytes", last.outcome.used["state_bytes"])


def _send(send: Callable[..., None], pipeline: str, metric: str, value: float, **tags: str) -> None:
    from airflow.sdk.configuration import conf

    send(f"windowmill.{metric}", value, tags={"pipeline": pipeline} | tags)
    if conf.getboolean("metrics", "legacy_names_on", fallback=True):
        send(".".join(["windowmill", pipeline, metric, *tags.values()]), value)
