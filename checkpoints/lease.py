"""One writer at a time on one machine: a lock on the pipeline's folder, which the kernel releases even after ``kill -9``.

The ledger's fence already lets only one of two writers commit. The lease saves the other the wasted work. It also protects commits of two
JVMs on a local file system, between which Delta itself has no mutual exclusion.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from windowmill.checkpoints.places import local_path
from windowmill.windowing.errors import LeaseTakenError, LedgerError


@contextmanager
def lease(root: str, *, wait_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lease of the pipeline whose folder is ``root``; object storage has no lease, only the ledger's fence.

    Parameters
    ----------
    wait_seconds
        How long to wait for another run to end.
    on_wait
        Called once with a message if there is another run to wait for.

    Raises
    ------
    LeaseTakenError
        If the other run has not ended in time.
    LedgerError
        If the folder cannot be written.
    """
    path = local_path(root)
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Lock the folder itself: a lock file could be removed, and a second process could lock its replacement.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        holder_file = path / ".lease"
        holder_file.touch()
    except OSError as err:
        raise LedgerError(f"{root}: cannot be written ({err.strerror}); correct sink.path, or the permissions of its folder") from err
    try:
        deadline, told = time.monotonic() + wait_seconds, False
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(holder_file)
                if time.monotonic() >= deadline:
                    raise LeaseTakenError(
                        f"{root}: another run is under way ({holder}); wait for it to end, or stop it, and run again"
                    ) from None
                if not told:
                    on_wait(f"another run of this pipeline is under way ({holder}); waiting for it to end")
                    told = True
                time.sleep(0.2)
        holder_file.write_text(f"process {os.getpid()}")
        yield
    finally:
        os.close(folder)


def _holder(file: Path) -> str:
    try:
        return file.read_text().strip() or "unknown process"
    except OSError:
        return "unknown process"
