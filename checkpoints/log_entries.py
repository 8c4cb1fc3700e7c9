"""Whether the entries of a Delta table's log are whole.

A crash of the machine, or a full disk, can leave a log entry that is empty or ends early. Readers take an empty entry, or one cut between
two lines, for a commit that did less, and pass over lines of a kind that they do not know. But each entry begins with what the commit did:
how many files it added and removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from windowmill.checkpoints.log_files import LAST_CHECKPOINT, actions_of, entry_name, store_of

#: What entries of the pipeline's own tables consist of.
_KINDS = {"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata", "cdc", "checkpointMetadata", "sidecar"}
#: What writers call the numbers of files that a commit adds and removes: delta-rs, its OPTIMIZE, Spark.
_ADDED = ("num_added_files", "numFilesAdded", "numFiles", "numAddedFiles")
_REMOVED = ("num_removed_files", "numFilesRemoved", "numRemovedFiles")


def fault_of_log(table: DeltaTable) -> str | None:
    """What is wrong with an entry of the table's log; none where they are whole, or have given way to a checkpoint.

    On a local disk each entry since the last checkpoint is looked at, on object storage, which checks what it keeps, the last.
    """
    local, store = _is_local(table), store_of(table.table_uri)
    first = _last_checkpoint(store) + 1 if local else table.version()
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
    """Whether the log's first entries are gone though no checkpoint tells what they did.

    delta-rs takes the table for what the other entries tell, without the rows of those that are gone.
    """
    store = store_of(table.table_uri)
    if any(info.type == pa_fs.FileType.File for info in store.get_file_info([entry_name(0), LAST_CHECKPOINT])):
        return False
    log = store.get_file_info(pa_fs.FileSelector("_delta_log"))
    return not any(".checkpoint." in info.base_name for info in log)


def _is_local(table: DeltaTable) -> bool:
    return table.table_uri.startswith("file://")


def _last_checkpoint(store: pa_fs.FileSystem) -> int:
    try:
        with store.open_input_file(LAST_CHECKPOINT) as file:
            return int(json.loads(file.read())["version"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return -1


def _fault(name: str, entry: bytes) -> str | None:
    try:
        actions = actions_of(entry)
        told = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        metrics = told.get("operationMetrics") or {}
        strange = {kind for action in actions for kind in action} - _KINDS
        if strange:
            return f"{name} holds {min(strange)!r}, which no commit of this table has"
        for kind, names in (("add", _ADDED), ("remove", _REMOVED)):
            expected, found = _number(metrics, names), sum(kind in action for action in actions)
            if expected is not None and expected != found:
                return f"{name} should {kind} {expected} files, and has {found}"
        if _is_batch(told) and not any("txn" in action for action in actions):
            return f"{name} lacks the transaction of its batch"
    except (ValueError, TypeError, AttributeError, StopIteration):
        return f"{name} is cut or damaged ({len(entry):,} bytes)"
    return None


def _number(metrics: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = next((metrics[name] for name in names if name in metrics), None)
    return None if found is None else int(found)


def _is_batch(told: Mapping[str, Any]) -> bool:
    # Compactions have none of this, and bring none.
    try:
        return "batch" in json.loads(told.get("userMetadata") or "{}")
    except (TypeError, ValueError):
        return False
