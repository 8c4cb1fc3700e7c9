"""The end of *apply*: rows that were not applied are set aside, and every row read has been applied or set aside."""

from __future__ import annotations

from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.quarantine import check_bad_rows, set_aside
from windowmill.windowing.errors import WindowmillError


def settle(batch: TableInput, emission: Emission, computed: Computed, rows_read: int, staging: str) -> Applied:
    """The batch applied, after its rows with a reason were staged under the folder ``staging``.

    Raises
    ------
    TooManyBadRowsError
        If conditions fail on a great part of the rows.
    WindowmillError
        If the rows do not balance.
    """
    applied = Applied(emission, computed, rows_read)
    try:
        if computed.judged is not None and computed.rows_applied < rows_read:
            staged = set_aside(computed.judged, batch.columns.struct.names, batch.pipeline, batch.plan, f"{staging}/quarantine")
            applied = applied.with_quarantined(staged)
            check_bad_rows(staged, rows_read, batch.pipeline, batch.plan.batch)
        _check_balance(batch, applied)
    except BaseException:
        # Spark takes what it has cached for a later reading of the same tables, though they have been repaired since.
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
