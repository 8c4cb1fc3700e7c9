"""Idempotent appends to a Delta table: by delta-rs in milliseconds, or by Spark in about a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import write_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

#: Up to this many rows of a batch that Spark has computed are collected and appended by this process; more are written by its executors.
SMALL_BATCH_ROWS = 100_000
#: Up to this many rows that are in this process already are appended by it: 552,000 rows of 200 bytes take it 0.4 s of processor time, and
#: Spark several times as much.
MOST_APPENDED = 1_000_000
#: Rows per file that Spark writes, so that a small batch does not leave one file per Spark partition.
ROWS_PER_FILE = 1_000_000


def append_once(
    path: str, rows: pa.Table | pa.RecordBatchReader, *, app_id: str, version: int, metadata: str | None = None, widen: bool = False
) -> None:
    """Append ``rows`` in one commit with the transaction (``app_id``, ``version``); does nothing if that version has landed already.

    Unlike Spark, delta-rs does not skip a repeated transaction, so the table is checked first. Of two concurrent writers the second
    fails to commit, because the first one's transaction has the same application id. Also unlike Spark, delta-rs silently converts values
    to the types of the table's columns, 2.75 to 2 or to a text, so ``rows`` should have those types.

    Parameters
    ----------
    metadata
        The commit's ``userMetadata`` in the table's history.
    widen
        Whether to add columns that the table lacks.
    """
    properties = {} if metadata is None else {"userMetadata": metadata}
    once = CommitProperties(app_transactions=[Transaction(app_id, version)], custom_metadata=properties)
    table = _load(path)
    local = local_path(path)
    if table is None and local is not None:
        local.mkdir(parents=True, exist_ok=True)
    if table is not None and _has(table, app_id, version):
        return
    # Write to the table object that was checked: after a reload, a commit in between would not be noticed.
    write_table(table or path, rows, mode="append", schema_mode="merge" if widen else None, commit_properties=once)


def writer_once(rows: DataFrame, count: int, *, app_id: str, version: int, metadata: str, order: Sequence[str] = ()) -> DataFrameWriter:
    """A Spark writer of ``count`` ``rows`` whose commit has the transaction (``app_id``, ``version``); each file is sorted by ``order``.

    Delta silently skips a version that has landed already, and reports a lost race as success; check :func:`landed` afterwards.
    """
    few = rows.coalesce(max(1, count // ROWS_PER_FILE))
    if order:
        few = few.sortWithinPartitions(*order)
    return few.write.format("delta").options(txnAppId=app_id, txnVersion=version, userMetadata=metadata)


def landed(path: str, *, app_id: str, version: int) -> int | None:
    """The current version of the table at ``path``, if ``version`` of ``app_id`` or a later one has landed in it; else none."""
    table = _load(path)
    return table.version() if table is not None and _has(table, app_id, version) else None


def _load(path: str) -> DeltaTable | None:
    try:
        return newest(path)
    except TableNotFoundError:
        return None


def _has(table: DeltaTable, app_id: str, version: int) -> bool:
    latest = table.transaction_version(app_id)
    return latest is not None and latest >= version
