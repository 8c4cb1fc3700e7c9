"""What a session of processes uses, as /proc tells: Spark's workers leave their parent's process group, but not its session."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

SECONDS_BETWEEN = 0.1
#: Between two looks at the processor time of a process.
LOOK_SECONDS = 0.05
T = TypeVar("T")


def session_processes(session: int) -> dict[Path, list[str]]:
    """Folders in /proc of a session's processes, with the fields of ``stat`` that follow the name."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                found[stat.parent] = fields
    return found


def cpu_seconds(session: int) -> float:
    """Processor time of a session's processes so far, of those that have ended included."""
    ticks = sum(sum(map(int, fields[11:15])) for fields in session_processes(session).values())
    return ticks / os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(process: int) -> float:
    """Processor time of a process so far, and of those children that have ended."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


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
            with suppress(OSError):
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
                with suppress(OSError, StopIteration):  # it ended meanwhile
                    name = "JVM" if (process / "comm").read_text().startswith("java") else "Python"
                    found[name] = found.get(name, 0) + _resident_bytes(process)
            if sum(found.values()) > self.peak_bytes:
                self.peak_bytes, self.at_peak = sum(found.values()), found


def _resident_bytes(process: Path) -> int:
    """Bytes in memory, a page that n processes share counted as an nth of it (the kernel's "proportional set size")."""
    line = next(line for line in (process / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024
