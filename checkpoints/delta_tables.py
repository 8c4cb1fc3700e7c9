"""Opens Delta tables once for the length of a run, since updating one costs a tenth of opening it; and reads files of their logs.

A machine crash or a full disk can leave a log entry that is empty or truncated. Readers take an empty entry, or one truncated between two
lines, for a smaller commit, and skip lines of unknown kinds. But each entry begins with the number of files that the commit added and
removed, so truncation is detected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.stores import store_of, table_at

#: Modification time and size of a file.
Mark = tuple[int | None, int | None]
#: Names the last checkpoint of the log.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
#: Kinds of actions in the log entries of a pipeline's own tables.
_KINDS = {"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata", "cdc", "checkpointMetadata", "sidecar"}
#: Metrics in which delta-rs, its OPTIMIZE, and Spark record the numbers of files added and removed.
_ADDED = ("num_added_files", "numFilesAdded", "numFiles", "numAddedFiles")
_REMOVED = ("num_removed_files", "numFilesRemoved", "numRemovedFiles")


class KeptTable:
    """The Delta table at ``path``, opened on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: pa_fs.FileSystem | None = None
        self._table: DeltaTable | None = None
        #: Of the log when the table was opened or updated: the entry of its version, and the pointer to the last Delta log checkpoint.
        self._seen: list[Mark | None] = []

    def newest(self) -> DeltaTable:
        """The table at its newest version; raises ``TableNotFoundError`` and other errors of ``DeltaTable``.

        Returns the same object each time, updated, as long as the log entry of its version is unchanged. If the entry is missing or
        different, the table was recreated or restored, or its log cleaned up; then it is opened again. So it is after a new Delta log
        checkpoint: older entries may be gone, which an open table still reads to look up a transaction.
        """
        later, *seen = [None] * 3 if self._table is None else self._marks(self._table.version())
        if self._table is None or seen[0] is None or seen != self._seen:
            self._table = table_at(self._path)
        elif later is not None:
            self._table.update_incremental()
        else:
            return self._table
        _, *self._seen = self._marks(self._table.version())
        return self._table

    def _marks(self, version: int) -> list[Mark | None]:
        """Marks of the log entries of ``version + 1`` and ``version`` and of the last checkpoint; none for what does not exist."""
        if self._files is None:
            self._files = store_of(self._path)
        found = self._files.get_file_info([entry_name(version + 1), entry_name(version), LAST_CHECKPOINT])
        return [(info.mtime_ns, info.size) if info.type == pa_fs.FileType.File else None for info in found]


_KEPT: ContextVar[dict[str, KeptTable] | None] = ContextVar("kept_tables", default=None)


@contextmanager
def tables_kept(kept: dict[str, KeptTable] | None = None) -> Iterator[None]:
    """In this context and thread, :func:`newest` opens each table only once.

    ``kept`` holds tables by path. A caller that passes the same one again reuses the tables of its earlier contexts.
    """
    token = _KEPT.set({} if kept is None else kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def newest(path: str) -> DeltaTable:
    """The Delta table at ``path`` at its newest version; raises the same errors as ``DeltaTable``.

    Within :func:`tables_kept` all callers share one object, and a later call updates it. A caller that needs a fixed version keeps its
    own :class:`KeptTable`.
    """
    kept = _KEPT.get()
    return KeptTable(path).newest() if kept is None else kept.setdefault(path, KeptTable(path)).newest()


def existing(path: str) -> DeltaTable | None:
    """:func:`newest`; none if there is no table at ``path``."""
    try:
        return newest(path)
    except TableNotFoundError:
        return None


def sizes_of(table: DeltaTable) -> dict[str, int]:
    """Size in bytes of each file of ``table``, by its path."""
    files = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))


def files_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The Delta log's entry of each file of ``table``: size, number of rows and statistics. Reads no data file."""
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def entry_name(version: int) -> str:
    """Path of a version's log entry below the table's folder."""
    return f"_delta_log/{version:020d}.json"


def actions_of(entry: bytes) -> list[dict[str, Any]]:
    """The actions of a log entry; raises ``ValueError`` if it is damaged."""
    # JSON texts, such as the least value of a column, may hold the other characters at which Python would split lines.
    return [json.loads(line) for line in entry.split(b"\n") if line.strip()]


def floor_of(place: str) -> int:
    """Version of the last checkpoint of the log of the table at ``place``; −1 if there is none.

    Entries of older versions may have been removed. A writer that was stalled can then make one again: it counts for nothing.
    """
    try:
        with store_of(place).open_input_file(LAST_CHECKPOINT) as file:
            return int(json.loads(file.read())["version"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return -1


def fault_of_log(table: DeltaTable) -> str | None:
    """Describe the fault of an incomplete log entry; none if all entries are complete or replaced by a checkpoint.

    On a local disk this checks each entry since the last checkpoint, on object storage, which verifies its content, only the last one.
    """
    store = store_of(table.table_uri)
    first = floor_of(table.table_uri) + 1 if table.table_uri.startswith("file://") else table.version()
    for version in range(table.version(), first - 1, -1):
        name = entry_name(version)
        try:
            with store.open_input_file(name) as file:
                fault = _fault(name, file.read())
        except FileNotFoundError:
            return None
        if fault is not None:
            return fault
    return None


def has_lost_its_beginning(table: DeltaTable) -> bool:
    """Whether the log's first entries are missing and no checkpoint replaces them.

    delta-rs would read such a table without the rows that the missing entries added.
    """
    store = store_of(table.table_uri)
    if any(info.type == pa_fs.FileType.File for info in store.get_file_info([entry_name(0), LAST_CHECKPOINT])):
        return False
    log = store.get_file_info(pa_fs.FileSelector("_delta_log"))
    return not any(".checkpoint." in info.base_name for info in log)


def _fault(name: str, entry: bytes) -> str | None:
    try:
        actions = actions_of(entry)
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        metrics = info.get("operationMetrics") or {}
        unknown = {kind for action in actions for kind in action} - _KINDS
        if unknown:
            return f"{name} holds {min(unknown)!r}, which no commit of this table has"
        for kind, names in (("add", _ADDED), ("remove", _REMOVED)):
            expected, listed = next((metrics[name] for name in names if name in metrics), None), sum(kind in action for action in actions)
            if expected is not None and int(expected) != listed:
                return f"{name} should {kind} {expected} files, and has {listed}"
        if _is_batch(info) and not any("txn" in action for action in actions):
            return f"{name} lacks the transaction of its batch"
    except (ValueError, TypeError, AttributeError, StopIteration):
        return f"{name} is cut or damaged ({len(entry):,} bytes)"
    return None


def _is_batch(info: Mapping[str, Any]) -> bool:
    # A compaction has neither metadata nor a transaction.
    try:
        return "batch" in json.loads(info.get("userMetadata") or "{}")
    except (TypeError, ValueError):
        return False
