"""``windowmill cost``: what the latest batches cost, whether it grows, and what that comes to a month. No JVM."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table

from windowmill.checkpoints.batches import Batch
from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.engine import describe_briefly
from windowmill.jobs.commands.answers import titled
from windowmill.jobs.commands.terminal import Answer, in_bytes
from windowmill.jobs.report.cost import Month, figures_of, trend_of
from windowmill.windowing.spec import Pipeline

#: Columns of the table by their names in JSON.
_SECONDS = {"seconds": "seconds", "processor_seconds": "processor"}
_BYTES = {"bytes_read": "read", "bytes_written": "written", "state_bytes": "state"}


def cost_of(pipeline: Pipeline, last: int, price_per_hour: float | None) -> Answer:
    """List what the ``last`` batches cost, newest last, and what a month costs."""
    batches = Ledger.open(pipeline).recent(last)
    month, trend = Month.of(pipeline, batches, price_per_hour), trend_of(batches)
    data = {
        "pipeline": pipeline.pipeline,
        "batches": [
            {"batch": batch.number, "action": batch.action, **figures_of(batch), "compute": batch.outcome.compute} for batch in batches
        ],
        "trend": trend or None,
        "month": None if month is None else month.as_json(),
    }
    unknown = "a month: not known; wait for a run after the first batch, which reads history, or without a schedule for three runs"
    elsewhere = "processor: – where a Connect server or a cluster computed the batch; see its own metrics"
    note = elsewhere if any("client_processor_seconds" in batch.outcome.used for batch in batches) else ""
    lines = [line for line in (trend, unknown if month is None else month.describe(), note) if line]
    return Answer(data, Group(_table(pipeline, batches), *lines))


def _table(pipeline: Pipeline, batches: Sequence[Batch]) -> Table:
    table = titled(f"cost of {pipeline.pipeline}'s batches", ("batch", *_SECONDS.values(), *_BYTES.values(), "tasks"))
    for batch in batches:
        figures = figures_of(batch)
        cells = ["–" if figures[name] is None else f"{figures[name]:.1f}" for name in _SECONDS]
        cells += ["–" if figures[name] is None else in_bytes(figures[name]) for name in _BYTES]
        table.add_row(str(batch.number), *cells, describe_briefly(batch.outcome.compute))
    return table
