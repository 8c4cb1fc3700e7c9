"""Appending to a Delta table without Spark, once a version: milliseconds where a commit by Spark takes about a second."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

#: Rows up to which a batch's rows of one table come to this process to be appended; more are written by Spark's executors.
LITTLE_ROWS = 100_000


def append_once(
    path: str, rows: pa.Table | pa.RecordBatchReader, *, app_id: str, version: int, metadata: str | None = None, widen: bool = False
) -> None:
    """Append ``rows`` in one commit that carries ``version`` of ``app_id``; a version that is there already changes nothing.

    delta-rs does not skip a repeated transaction as Spark does, so the table is asked first; of two writers at the same time the second
    one's commit fails, because the other's transaction has the same name.

    Parameters
    ----------
    metadata
        What the table's history tells as the commit's ``userMetadata``.
    widen
        Whether columns that the table does not have are added to it.
    """
    if _transaction(path, app_id) >= version:
        return
    if "://" not in path:
        Path(path).mkdir(parents=True, exist_ok=True)
    told = {} if metadata is None else {"userMetadata": metadata}
    once = CommitProperties(app_transactions=[Transaction(app_id, version)], custom_metadata=told)
    write_deltalake(path, rows, mode="append", schema_mode="merge" if widen else None, commit_properties=once)


def _transaction(path: str, app_id: str) -> int:
    try:
        version = DeltaTable(path).transaction_version(app_id)
    except TableNotFoundError:
        return -1
    return -1 if version is None else version
