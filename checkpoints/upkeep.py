"""Keeping Delta tables quick to open: small files merged, their log shortened, files that no version needs removed. No JVM."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from deltalake import DeltaTable

from checkpoints.features import delta_rs_can_write

#: Files of a small table above which they are merged.
FEW_FILES = 64
#: Bytes of a file that small ones are merged into: small enough to be rewritten now and then for the sake of 64 new ones.
MERGED_BYTES = 8 << 20
#: Hours after which a file that no commit names is the leftover of an attempt that died, and an older version's file is not read any more:
#: longer than any run, backfill or query lasts.
RETENTION_HOURS = 168


def merge_if_many(path: str) -> bool:
    """Merge the small files of the Delta table at ``path`` if there are many; whether it was done. Rows stay as they are."""
    if not DeltaTable.is_deltatable(path):
        return False
    table = DeltaTable(path)
    if len(table.file_uris()) <= FEW_FILES or not delta_rs_can_write(table):
        return False
    table.optimize.compact(target_size=MERGED_BYTES)
    return True


def shorten_log(path: str) -> None:
    """Checkpoint the log of the table at ``path``, and remove entries older than the table's own settings keep (30 days).

    Writers checkpoint every 100 commits by themselves; a table that is seldom written to would wait long for it.
    """
    table = DeltaTable(path)
    if table.metadata().configuration.get("delta.checkpointPolicy", "classic") == "classic":
        table.create_checkpoint()
    if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
        table.cleanup_metadata()


def vacuum(path: str, retention_hours: int = RETENTION_HOURS) -> int:
    """Remove files that no version within ``retention_hours`` needs; how many.

    Those that were never committed are included, unless something else is kept in the table's folder, too.
    """
    table = DeltaTable(path)
    # deltalake 1.6.6 knows no files of deletion vectors: a full vacuum would take them for leftovers.
    every = "deletionVectors" not in (table.protocol().reader_features or [])
    if every:
        leftovers = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=True)
        every = not _are_of_others(leftovers, path)
    return len(table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=every))


def _are_of_others(files: Iterable[str], path: str) -> bool:
    """Whether some of ``files``, relative to the table at ``path``, are no table's files, or those of a table below it."""
    places = {PurePosixPath(file) for file in files}
    folders = {parent for place in places for parent in place.parents if parent.name}
    return any(place.suffix != ".parquet" for place in places) or any(DeltaTable.is_deltatable(f"{path}/{folder}") for folder in folders)
