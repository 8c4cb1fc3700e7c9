"""Appending to a Delta table once a version: without Spark in milliseconds, or by a commit of Spark's, which takes about a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

from checkpoints.kept_tables import newest
from checkpoints.places import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter

#: Rows up to which a batch's rows of one table come to this process to be appended; more are written by Spark's executors.
LITTLE_ROWS = 100_000
#: Rows per file that Spark writes: a batch's few rows should not leave as many files as Spark has partitions.
ROWS_PER_FILE = 1_000_000


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
    told = {} if metadata is None else {"userMetadata": metadata}
    once = CommitProperties(app_transactions=[Transaction(app_id, version)], custom_metadata=told)
    table = _load(path)
    local = local_path(path)
    if table is None and local is not None:
        local.mkdir(parents=True, exist_ok=True)
    if table is not None and _has(table, app_id, version):
        return
    # The table as it was asked: were it loaded anew to be written, a commit in between would go unnoticed.
    write_deltalake(table or path, rows, mode="append", schema_mode="merge" if widen else None, commit_properties=once)


def writer_once(rows: DataFrame, count: int, *, app_id: str, version: int, metadata: str, order: Sequence[str] = ()) -> DataFrameWriter:
    """A writer by Spark of ``count`` ``rows``, each file in the ``order`` of these columns; its commit carries ``version`` of ``app_id``.

    Delta skips a version that is there already without a word, and reports a lost race as success: ask afterwards what has :func:`landed`.
    """
    few = rows.coalesce(max(1, count // ROWS_PER_FILE))
    if order:
        few = few.sortWithinPartitions(*order)
    return few.write.format("delta").options(txnAppId=app_id, txnVersion=version, userMetadata=metadata)


def landed(path: str, *, app_id: str, version: int) -> int | None:
    """The version of the table at ``path``, if ``version`` of ``app_id`` or a later one is in it; versions count from 0."""
    table = _load(path)
    return table.version() if table is not None and _has(table, app_id, version) else None


def _load(path: str) -> DeltaTable | None:
    try:
        return newest(path)
    except TableNotFoundError:
        return None


def _has(table: DeltaTable, app_id: str, version: int) -> bool:
    found = table.transaction_version(app_id)
    return found is not None and found >= version
