"""What a session of processes uses: Spark's workers leave their parent's process group, but not its session."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import psutil

SECONDS_BETWEEN = 0.1
#: Between two looks at the processor time of a process.
LOOK_SECONDS = 0.05
T = TypeVar("T")


def session_processes(session: int) -> list[psutil.Process]:
    """The processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(OSError):  # it ended meanwhile
            if os.getsid(process.pid) == session:
                found.append(process)
    return found


#: Processor time of each process of a session, as of the last look at it; by session, process and when it began.
_LOOKED_AT: dict[tuple[int, int, float], float] = {}


def cpu_seconds(session: int) -> float:
    """Processor time of a session's processes so far, of those that have ended included."""
    of_children, there = 0.0, set()
    for process in session_processes(session):
        with suppress(psutil.Error):  # it ended meanwhile
            times, known = process.cpu_times(), (session, process.pid, process.create_time())
            _LOOKED_AT[known] = times.user + times.system
            of_children += times.children_user + times.children_system
            there.add(known)
    every = {known: used for known, used in _LOOKED_AT.items() if known[0] == session}
    # The kernel adds a child to its parent only if that waits for it; the daemon of Spark's workers does not.
    unseen = of_children - sum(used for known, used in every.items() if known not in there)
    return sum(every.values()) + max(0.0, unseen)


def timed(act: Callable[[], T]) -> tuple[T, float, float]:
    """What ``act`` gives, its seconds, and the processor time that the session of this process took meanwhile."""
    session = os.getsid(0)
    begun, used = time.perf_counter(), cpu_seconds(session)
    found = act()
    return found, time.perf_counter() - begun, cpu_seconds(session) - used


def alone(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, str]:
    """Seconds of a command as a process of its own, its processor time, and its messages; raises ``AssertionError`` if it fails."""
    begun, used = time.perf_counter(), 0.0
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True)
        while process.poll() is None:  # nobody waits for the JVM of a client
            used = max(used, cpu_seconds(process.pid))
            time.sleep(LOOK_SECONDS)
        seconds = time.perf_counter() - begun
        file.seek(0)
        messages = file.read().decode(errors="replace")
    if process.returncode:
        raise AssertionError(messages[-4_000:])
    return seconds, used, messages


class MemoryWatch:
    """Looks ten times a second at the memory of a session's processes, until its context ends."""

    def __init__(self, session: int) -> None:
        self.peak_bytes = 0
        self.at_peak: dict[str, int] = {}
        self._session, self._done = session, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(SECONDS_BETWEEN):
            found: dict[str, int] = {}
            for process in session_processes(self._session):
                with suppress(psutil.Error):  # it ended meanwhile
                    name = "JVM" if process.name().startswith("java") else "Python"
                    # A page that n processes share counts as an nth of it: the kernel's "proportional set size".
                    found[name] = found.get(name, 0) + process.memory_full_info().pss
            if sum(found.values()) > self.peak_bytes:
                self.peak_bytes, self.at_peak = sum(found.values()), found
