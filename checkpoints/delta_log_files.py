"""Files of a Delta table's log, read without the table."""

from __future__ import annotations

import json
from typing import Any

from windowmill.checkpoints.stores import store_of

#: Names the last checkpoint of the log.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


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
