"""Ends *apply*: stages the rows that were not applied for quarantine, and checks that every row read is applied or staged."""

from __future__ import annotations

from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.quarantine import set_aside
from windowmill.windowing.errors import WindowmillError


def settle(batch: TableInput, emission: Emission, computed: Computed, rows_read: int, staging: str) -> Applied:
    """Stage the batch's rows with a quarantine reason under the folder ``staging``, and return the applied batch.

    Raises
    ------
    WindowmillError
        If the rows do not balance.
    """
    applied = Applied(emission, computed, rows_read)
    try:
        if computed.judged is not None and computed.rows_applied < rows_read:
            staged = set_aside(computed.judged, batch.columns.struct.names, batch.pipeline, batch.plan, f"{staging}/quarantine")
            applied = applied.with_quarantined(staged)
        _check_balance(batch, applied)
    except BaseException:
        # Spark would reuse cached data for later reads of the same tables, even after they have been repaired.
        applied.release()
        raise
    return applied


def _check_balance(batch: TableInput, applied: Applied) -> None:
    rows_read, rows_applied, quarantined = applied.rows_read, applied.computed.rows_applied, applied.rows_quarantined
    filtered = batch.runnable.source.filter is not None
    logged = [file.rows for file in batch.files]
    by_log = sum(rows for rows in logged if rows is not None)
    if rows_read != rows_applied + quarantined or (None not in logged and not filtered and by_log != rows_read):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {rows_read} rows of {by_log} in the "
            f"log, applied {rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )
