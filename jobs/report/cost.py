"""What batches cost: seconds by step, processor time, Spark's tasks, rows and bytes of each, the trend, and a month of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from croniter import croniter

from windowmill.checkpoints.batches import Batch
from windowmill.jobs.report.curves import bars_of
from windowmill.jobs.short_texts import elapsed, short
from windowmill.windowing.spec import Pipeline

#: Steps of a batch in their order -> the colour of each; ``start`` is that of Spark.
_STEPS = {"start": "b-start"} | {step: f"b-t{i}" for i, step in enumerate(("select", "survey", "restore", "apply", "compare", "validate"))}
#: The trend compares the median of so many batches with that of as many before them.
COMPARED = 10
DAYS_A_MONTH = 365 / 12
#: The rate of batches that no clock starts is known from so many.
_RATED = 3


def seconds_of(batch: Batch) -> float:
    return float(sum(batch.outcome.timings.values()))


def bytes_of(batch: Batch) -> int | None:
    """Bytes of the data files that the batch wrote; null if they were so many that the ledger names them elsewhere."""
    return None if batch.manifest else sum(file.size for changes in batch.changes.values() for file in changes.files)


def figures_of(batch: Batch) -> dict[str, Any]:
    """What a batch has cost: seconds, processor seconds and bytes; null where its record does not say."""
    used = {"bytes_written": bytes_of(batch)} | batch.outcome.used
    in_bytes = {name: None if (size := used.get(name)) is None else int(size) for name in ("bytes_read", "bytes_written", "state_bytes")}
    # If a Connect server or a cluster computed the batch, only the client's processor time is known.
    processor = {name: used.get(name) for name in ("processor_seconds", "client_processor_seconds")}
    return {"seconds": round(seconds_of(batch), 3), **processor, **in_bytes}


def tasks_of(batch: Batch) -> int:
    """Number of Spark's tasks; 0 if another engine computed it."""
    tasks = batch.outcome.compute.get("tasks", 0)
    return tasks if isinstance(tasks, int) else 0


def cost_bars(shown: Sequence[Batch]) -> dict[str, dict[str, Any] | None]:
    """Bars of each batch: seconds by step, rows read and published, Spark's tasks, and bytes written."""
    labels = [batch.number for batch in shown]
    steps = {colour: (step, [batch.outcome.timings.get(step, 0.0) for batch in shown]) for step, colour in _STEPS.items()}
    figures: dict[str, dict[str, tuple[str, Sequence[float]]]] = {
        "timings": {colour: (step, seconds) for colour, (step, seconds) in steps.items() if any(seconds)},
        "read": {"s0": ("rows read", [batch.counts.rows_read for batch in shown])},
        "tasks": {"s1": ("Spark tasks", [tasks_of(batch) for batch in shown])},
        "bytes": {"s2": ("bytes written", [bytes_of(batch) or 0 for batch in shown])},
    }
    used = {"processor_seconds": "processor seconds", "bytes_read": "bytes of source files read", "state_bytes": "bytes of state"}
    figures |= {name: {"s3": (words, [batch.outcome.used.get(name, 0) for batch in shown])} for name, words in used.items()}
    return {name: bars_of(labels, stacks) for name, stacks in figures.items()}


def timings_of(shown: Sequence[Batch]) -> list[tuple[str, float, float, float]]:
    """Step, median, maximum and sum of its seconds over the batches shown; the last row is the whole run."""
    timed = [batch.outcome.timings for batch in shown if batch.outcome.timings]
    if not timed:
        return []
    columns = {step: [timings.get(step, 0.0) for timings in timed] for step in _STEPS if any(step in timings for timings in timed)}
    columns["whole run"] = [seconds_of(batch) for batch in shown if batch.outcome.timings]
    return [(name, statistics.median(values), max(values), sum(values)) for name, values in columns.items()]


def median_seconds(shown: Sequence[Batch]) -> float | None:
    """Median seconds of the latest runs; null without one."""
    seconds = [seconds_of(batch) for batch in _runs(shown)][-COMPARED:]
    return statistics.median(seconds) if seconds else None


def trend_of(shown: Sequence[Batch]) -> str:
    """The median seconds of the latest runs against as many before them; empty if they are too few."""
    seconds = [seconds_of(batch) for batch in _runs(shown)]
    half = min(len(seconds) // 2, COMPARED)
    if half < 3:
        return ""
    latest, before = statistics.median(seconds[-half:]), statistics.median(seconds[-2 * half : -half])
    change = f", {(latest - before) / before:+.0%}".replace("-", "−") if before else ""
    return f"median of the latest {half} runs {elapsed(latest)}, of the {half} before {elapsed(before)}{change}"


@dataclass(frozen=True, slots=True)
class Month:
    """What a pipeline costs a month, if each run finds new rows as the latest did."""

    #: Number of runs a month, and where it comes from.
    runs: float
    basis: str
    #: Totals over all these runs; processor time is null if none of the latest batches recorded it.
    seconds: float
    processor_seconds: float | None
    #: Cost of ``seconds`` at the price of an hour; null without a price.
    price: float | None

    @classmethod
    def of(cls, pipeline: Pipeline, shown: Sequence[Batch], price_per_hour: float | None = None) -> Month | None:
        """The month by the latest runs of ``shown``; null if there are none, or it is not known how often they run."""
        runs = _runs(shown)
        # A pipeline's first batch has read the history that was there, which no later run does again.
        rate, later = _rate(pipeline, runs), runs[1:] if runs and not runs[0].number else runs
        if rate is None or not later:
            return None
        number, basis = rate
        seconds = number * statistics.fmean(seconds_of(batch) for batch in later[-COMPARED:])
        processor = [batch.outcome.used["processor_seconds"] for batch in later[-COMPARED:] if "processor_seconds" in batch.outcome.used]
        price = None if price_per_hour is None else seconds / 3600 * price_per_hour
        return cls(number, basis, seconds, number * statistics.fmean(processor) if processor else None, price)

    def describe(self) -> str:
        processor = "" if self.processor_seconds is None else f", {elapsed(self.processor_seconds)} of processor time"
        price = "" if self.price is None else f", {self.price:,.2f} at the price given"
        return f"a month: {short(round(self.runs))} runs ({self.basis}) take {elapsed(self.seconds)}{processor}{price}"

    def as_json(self) -> dict[str, Any]:
        return {name: round(value, 2) if isinstance(value, float) else value for name, value in asdict(self).items()}


def _runs(shown: Sequence[Batch]) -> list[Batch]:
    """Those of the batches that are runs; backfills, restatements and changed specs come when somebody asks for them."""
    return [batch for batch in shown if batch.outcome.timings and batch.action == "run"]


def _rate(pipeline: Pipeline, runs: Sequence[Batch]) -> tuple[float, str] | None:
    """Runs a month, and where the number comes from."""
    if isinstance(pipeline.schedule, str) and (scheduled := runs_a_month(pipeline.schedule)) is not None:
        return scheduled, f"schedule {pipeline.schedule}"
    days = (runs[-1].planned_at - runs[0].planned_at).total_seconds() / 86_400 if runs else 0.0
    if len(runs) < _RATED or not days:
        return None
    return (len(runs) - 1) / days * DAYS_A_MONTH, f"as often as the latest {len(runs)}"


def runs_a_month(schedule: str) -> float | None:
    """Number of instants of a cron expression in a month, a twelfth of a year; null if it is none."""
    if not croniter.is_valid(schedule):
        return None
    [minutes, hours, *days], _ = croniter.expand(schedule)
    times = (60 if minutes == ["*"] else len(minutes)) * (24 if hours == ["*"] else len(hours))
    dates = croniter(" ".join(["0", "0", *(",".join(map(str, field)) for field in days)]), datetime(2024, 12, 31, tzinfo=UTC))
    year = 0
    while dates.get_next(datetime).year == 2025:
        year += 1
    return times * year / 12
