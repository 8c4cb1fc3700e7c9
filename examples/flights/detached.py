"""Processes that outlive the command that started them. Their id and time of creation identify them."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

_RECORD = "running.json"


@dataclass(frozen=True, slots=True)
class Detached:
    """A detached process whose files are in ``folder``; by the folder's ``running.json`` later commands find it.

    ``created`` (seconds since 1970) tells it from a later process with the same id.
    """

    folder: str
    pid: int
    created: float

    @classmethod
    def running(cls, folder: Path) -> Self | None:
        """The one that was recorded in ``folder`` and still lives."""
        try:
            known = cls(**json.loads((folder / _RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return known if known.process() is not None else None

    def process(self) -> psutil.Process | None:
        """Its process; ``None`` if it has ended, whoever has its id now."""
        return same_process(self.pid, self.created)

    def record(self) -> Self:
        """Write it down for later commands."""
        (Path(self.folder) / _RECORD).write_text(json.dumps(asdict(self)), encoding="utf-8")
        return self

    def forget(self) -> None:
        """Remove the record."""
        (Path(self.folder) / _RECORD).unlink(missing_ok=True)


def same_process(pid: int, created: float) -> psutil.Process | None:
    """The process ``pid`` that was created at ``created`` (seconds since 1970); ``None`` if it has ended, whoever has its id now."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1
    except psutil.NoSuchProcess:
        return None
    return process if same and _is_alive(process) else None


def send_signal(process: psutil.Process, number: signal.Signals) -> None:
    """Send the signal ``number``, unless the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # psutil checks that the id still belongs to this process


def wait_for_ends(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until all have ended, at most ``seconds``. A zombie counts as ended; psutil's own waiting would wait for it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_is_alive, processes)):
        time.sleep(0.1)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
