"""What batches cost: seconds by step, Spark's tasks, rows and bytes of each batch, and how the latest compare with those before."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from windowmill.checkpoints.batches import Batch
from windowmill.jobs.report.chart_data import bars_of
from windowmill.jobs.report.texts import elapsed

#: Steps of a run in their order -> the colour of each; ``start`` is that of Spark.
_STEPS = {"start": "b-start"} | {
    step: f"b-t{i}" for i, step in enumerate(("survey", "restore", "apply", "validate", "publish", "remember", "commit"))
}
#: The trend compares the median of so many batches with that of as many before them.
COMPARED = 10


def seconds_of(batch: Batch) -> float:
    """Seconds of all steps."""
    return float(sum(batch.timings.get(step, 0.0) for step in _STEPS))


def bytes_of(batch: Batch) -> int | None:
    """Bytes of the data files that the batch wrote; null if they were so many that the ledger names them elsewhere."""
    return None if batch.manifest else sum(file.size for changes in batch.changes.values() for file in changes.files)


def tasks_of(batch: Batch) -> int:
    """Number of Spark's tasks; 0 if another engine computed it."""
    tasks = batch.compute.get("tasks", 0)
    return tasks if isinstance(tasks, int) else 0


def cost_bars(shown: Sequence[Batch]) -> dict[str, dict[str, Any] | None]:
    """Bars of each batch: seconds by step, rows read and published, Spark's tasks, and bytes written."""
    labels = [batch.number for batch in shown]
    steps = {colour: (step, [batch.timings.get(step, 0.0) for batch in shown]) for step, colour in _STEPS.items()}
    figures: dict[str, dict[str, tuple[str, Sequence[float]]]] = {
        "timings": {colour: (step, seconds) for colour, (step, seconds) in steps.items() if any(seconds)},
        "read": {"s0": ("rows read", [batch.rows_read for batch in shown])},
        "tasks": {"s1": ("Spark tasks", [tasks_of(batch) for batch in shown])},
        "bytes": {"s2": ("bytes written", [bytes_of(batch) or 0 for batch in shown])},
    }
    return {name: bars_of(labels, stacks) for name, stacks in figures.items()}


def timings_of(shown: Sequence[Batch]) -> list[tuple[str, float, float, float]]:
    """Step, median, maximum and sum of its seconds over the batches shown; the last row is the whole run."""
    timed = [batch.timings for batch in shown if batch.timings]
    if not timed:
        return []
    columns = {step: [timings.get(step, 0.0) for timings in timed] for step in _STEPS if any(step in timings for timings in timed)}
    columns["whole run"] = [seconds_of(batch) for batch in shown if batch.timings]
    return [(name, statistics.median(values), max(values), sum(values)) for name, values in columns.items()]


def median_seconds(shown: Sequence[Batch]) -> float | None:
    """Median seconds of the latest runs; null without one."""
    seconds = [seconds_of(batch) for batch in shown if batch.timings and not batch.is_backfill][-COMPARED:]
    return statistics.median(seconds) if seconds else None


def trend_of(shown: Sequence[Batch]) -> str:
    """The median seconds of the latest batches against as many before them; empty if they are too few."""
    seconds = [seconds_of(batch) for batch in shown if batch.timings and not batch.is_backfill]
    half = min(len(seconds) // 2, COMPARED)
    if half < 3:
        return ""
    latest, before = statistics.median(seconds[-half:]), statistics.median(seconds[-2 * half : -half])
    change = f", {(latest - before) / before:+.0%}".replace("-", "−") if before else ""
    return f"median of the latest {half} runs {elapsed(latest)}, of the {half} before {elapsed(before)}{change}"
