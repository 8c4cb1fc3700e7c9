"""Child processes that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int) -> Callable[[], None] | None:
    """A function for the child to run first: has the kernel kill it when ``parent`` dies, even by SIGKILL (Linux only).

    Otherwise, after a worker restarts, its Spark application would run at the same time as the retry of its task.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)  # loaded before the fork: the child should only call it

    def tie() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return tie
