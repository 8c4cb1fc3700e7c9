"""Files of a Delta table's log, and what they have lost: entries that are truncated, or the beginning of the log.

A machine crash or a full disk can leave a log entry that is empty or truncated. Readers take an empty entry, or one truncated between two
lines, for a smaller commit, and skip lines of unknown kinds. But each entry begins with the number of files that the commit added and
removed, so truncation is detected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from windowmill.checkpoints.stores import store_of

#: Names the last checkpoint of the log.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
#: Kinds of actions in the log entries of a pipeline's own tables.
_KINDS = {"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata", "cdc", "checkpointMetadata", "sidecar"}
#: Metrics in which delta-rs, its OPTIMIZE, and Spark record the numbers of files added and removed.
_ADDED = ("num_added_files", "numFilesAdded", "numFiles", "numAddedFiles")
_REMOVED = ("num_removed_files", "numFilesRemoved", "numRemovedFiles")


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
    local, store = _is_local(table), store_of(table.table_uri)
    first = floor_of(table.table_uri) + 1 if local else table.version()
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


def _is_local(table: DeltaTable) -> bool:
    return table.table_uri.startswith("file://")


def _fault(name: str, entry: bytes) -> str | None:
    try:
        actions = actions_of(entry)
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        metrics = info.get("operationMetrics") or {}
        unknown = {kind for action in actions for kind in action} - _KINDS
        if unknown:
            return f"{name} holds {min(unknown)!r}, which no commit of this table has"
        for kind, names in (("add", _ADDED), ("remove", _REMOVED)):
            expected, listed = _number(metrics, names), sum(kind in action for action in actions)
            if expected is not None and expected != listed:
                return f"{name} should {kind} {expected} files, and has {listed}"
        if _is_batch(info) and not any("txn" in action for action in actions):
            return f"{name} lacks the transaction of its batch"
    except (ValueError, TypeError, AttributeError, StopIteration):
        return f"{name} is cut or damaged ({len(entry):,} bytes)"
    return None


def _number(metrics: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    number = next((metrics[name] for name in names if name in metrics), None)
    return None if number is None else int(number)


def _is_batch(info: Mapping[str, Any]) -> bool:
    # A compaction has neither metadata nor a transaction.
    try:
        return "batch" in json.loads(info.get("userMetadata") or "{}")
    except (TypeError, ValueError):
        return False
