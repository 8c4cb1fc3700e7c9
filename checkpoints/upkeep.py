"""Keeps Delta tables fast to open: merges small files, shortens the log, removes files that no version needs. No JVM."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import PurePosixPath
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from windowmill.checkpoints.committer import checkpoint
from windowmill.checkpoints.data_files import is_ours, remove
from windowmill.checkpoints.delta_tables import floor_of, sizes_of
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.stores import is_table, store_of, table_at

#: Number of files above which a table is compacted.
FEW_FILES = 64
#: Target size of compacted files, small enough that rewriting one for every 64 new files is cheap.
MERGED_BYTES = 8 << 20
#: Hours after which uncommitted files are leftovers of dead attempts, and files of older versions are no longer read: longer than any
#: run, backfill or query takes.
RETENTION_HOURS = 168
#: A file that delta-rs wrote, as a compaction does.
_BY_DELTA_RS = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}(?:\.\w+)?\.parquet")
#: A log entry or checkpoint, by its version.
_ENTRY = re.compile(r"(\d{20})\.")


def merge_if_many(path: str) -> bool:
    """Compact the Delta table at ``path`` if it has many files; returns whether it did. Rows do not change."""
    if not is_table(path):
        return False
    table = table_at(path)
    if len(table.file_uris()) <= FEW_FILES or not delta_rs_can_write(table):
        return False
    table.optimize.compact(target_size=MERGED_BYTES)
    return True


def shorten_log(path: str) -> None:
    """Checkpoint the log of the table at ``path``, and remove entries older than the table's log retention (30 days by default).

    Writers checkpoint only every 100 commits, which a rarely written table takes long to reach.
    """
    checkpoint(table_at(path))


def forget_log(path: str) -> int:
    """Checkpoint the log of the table at ``path``, and remove all entries before it, whatever the log's retention; returns how many.

    The statistics of removed files go with them, and older versions of the table can no longer be read.
    """
    checkpoint(table_at(path))
    store, newest = store_of(path), floor_of(path)
    names = [info.base_name for info in store.get_file_info(pa_fs.FileSelector("_delta_log")) if info.type == pa_fs.FileType.File]
    old = [name for name in names if (found := _ENTRY.match(name)) and int(found[1]) < newest]
    for name in old:
        store.delete_file(f"_delta_log/{name}")
    return len(old)


def vacuum(path: str, kept: Collection[str] = (), retention_hours: int = RETENTION_HOURS) -> int:
    """Remove files that no version within ``retention_hours`` needs; returns how many.

    Uncommitted files are removed too, except those ``kept``. If the table's folder also contains other data, only those of batches are.
    Without a retention those go, too, that count as removed later than now, by a clock that is ahead of this one.
    """
    table = table_at(path)
    every = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=True)
    # deltalake 1.6.6 does not know deletion vector files: a full vacuum would remove them as leftovers.
    mixed = "deletionVectors" in (table.protocol().reader_features or []) or _are_of_others(every, path)
    removed = len(table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=not mixed and not kept))
    leftovers = [file for file in every if is_ours(file) and file not in kept] if mixed or kept else []
    remove(path, leftovers)
    ahead = [] if retention_hours else old_files(path, kept)
    remove(path, ahead)
    return removed + len(leftovers) + len(ahead)


def old_files(path: str, kept: Collection[str] = ()) -> list[str]:
    """Files of the table at ``path`` that its newest version does not need, and that are its own, except those ``kept``."""
    table, store = table_at(path), store_of(path)
    there = {info.path for info in store.get_file_info(pa_fs.FileSelector("", recursive=True)) if info.type == pa_fs.FileType.File}
    needed = {*map(unquote, sizes_of(table))}
    data = [file for file in sorted(there - needed - {*kept}) if file.endswith(".parquet") and not file.startswith("_")]
    return [file for file in data if is_ours(file) or _BY_DELTA_RS.fullmatch(file)]


def _are_of_others(files: Iterable[str], path: str) -> bool:
    """Whether any of ``files``, relative to the table at ``path``, is not a Parquet file or belongs to a table in a subfolder."""
    places = {PurePosixPath(file) for file in files}
    folders = {parent for place in places for parent in place.parents if parent.name}
    return any(place.suffix != ".parquet" for place in places) or any(is_table(f"{path}/{folder}") for folder in folders)
