"""What a batch uses: processor time, bytes read and written, and the size of the state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil
import pyarrow as pa
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.delta_tables import newest


class Resources:
    """Counts from its creation on."""

    def __init__(self) -> None:
        self._begun = processor_seconds()

    def used(self, bytes_read: int, changes: Mapping[str, Changes], state: str, *, elsewhere: bool) -> dict[str, float]:
        """What the batch has used, as its record says it.

        Parameters
        ----------
        bytes_read
            Size of the source's files that it read.
        changes
            Its files by role of their table.
        state
            Path of the state table, to which its files are not committed yet.
        elsewhere
            Whether Spark computed it in processes that this one did not start. Then the processor time is that of its client alone, which
            is no measure of the batch.
        """
        return {
            f"{'client_' if elsewhere else ''}processor_seconds": round(processor_seconds() - self._begun, 2),
            "bytes_read": bytes_read,
            "bytes_written": sum(file.size for each in changes.values() for file in each.files),
            "state_bytes": _state_bytes(state, changes.get("state", Changes())),
        }


def processor_seconds() -> float:
    """Processor time of this process and of its children and theirs: Spark's JVM and workers, if the session is of this process."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _state_bytes(path: str, changes: Changes) -> int:
    """Size of the state table at ``path`` with ``changes``."""
    sizes: dict[str, int] = {}
    with suppress(TableNotFoundError):
        files = pa.table(newest(path).get_add_actions(flatten=True)).select(["path", "size_bytes"])  # without statistics: no pandas
        sizes = {file["path"]: file["size_bytes"] for file in files.to_pylist()}
    left = sum(size for name, size in sizes.items() if name not in changes.removes)
    return left + sum(file.size for file in changes.files)
