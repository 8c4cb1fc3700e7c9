"""The sink: result rows leave in one idempotent Delta commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable

from windowing.axis import from_us
from windowing.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Rows per file: a batch's few rows should not leave as many files as Spark has partitions.
ROWS_PER_FILE = 1_000_000


def publish(
    rows: DataFrame, count: int, path: str, *, app_id: str, batch: int, metadata: str, replaces: tuple[int, int] | None, instants: bool
) -> int:
    """Write ``rows`` as batch ``batch`` and give the sink's version.

    Parameters
    ----------
    replaces
        (begin, end] of the window ends whose rows are replaced (a backfill of a running pipeline); by default rows are appended.
    instants
        Whether window ends are timestamps; else integers.

    Raises
    ------
    SinkError
        If the commit did not land.
    """
    writer = (
        rows.coalesce(max(1, count // ROWS_PER_FILE))
        .write.format("delta")
        .option("txnAppId", app_id)
        .option("txnVersion", batch)
        .option("userMetadata", metadata)
    )
    if replaces is None:
        writer.mode("append").save(path)
    else:
        begin, end = (_literal(bound, instants) for bound in replaces)
        writer.mode("overwrite").option("replaceWhere", f"window_end > {begin} AND window_end <= {end}").save(path)
    table = DeltaTable(path)
    # Delta skips a version it has seen without a word, and reports a lost race as success: ask what the table holds now.
    if (table.transaction_version(app_id) or 0) < batch:
        raise SinkError(f"sink {path}: the commit of batch {batch} did not land; run again")
    return table.version()


def _literal(bound: int, instants: bool) -> str:
    return f"TIMESTAMP '{from_us(bound):%Y-%m-%d %H:%M:%S.%f} UTC'" if instants else str(bound)
