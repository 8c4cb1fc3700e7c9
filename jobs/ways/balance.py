"""Checks that every row read was applied or quarantined."""

from __future__ import annotations

from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.task_output import Output
from windowmill.windowing.errors import WindowmillError


def check_balance(batch: TableInput, done: Output, rows_read: int) -> None:
    """Raise ``WindowmillError`` if the rows of ``batch`` do not balance."""
    filtered, quarantined = batch.runnable.source.filter is not None, sum(done.reasons.values())
    logged = [file.rows for file in batch.files]
    by_log = sum(rows for rows in logged if rows is not None)
    if rows_read != done.rows_applied + quarantined or (None not in logged and not filtered and by_log != rows_read):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {rows_read} rows of {by_log} in the "
            f"log, applied {done.rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )
