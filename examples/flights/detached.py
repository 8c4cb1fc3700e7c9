"""Processes that outlive the command that has started them, found again by id and time of creation."""

from __future__ import annotations

import contextlib
import signal
import time

import psutil


def same_process(pid: int, created: float) -> psutil.Process | None:
    """The process ``pid`` that was created then; none when that has ended, whoever may have its id by now."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1
    except psutil.NoSuchProcess:
        return None
    return process if same and _is_alive(process) else None


def send_signal(process: psutil.Process, number: signal.Signals) -> None:
    """Send it, unless the process has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)  # psutil makes sure that the id is still the same process


def wait_for_ends(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until all have ended, at most ``seconds``; zombies have ended, for which psutil's own waiting would wait."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(map(_is_alive, processes)):
        time.sleep(0.1)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
