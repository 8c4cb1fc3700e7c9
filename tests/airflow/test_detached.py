"""Processes that outlive the command that started them: found again, signalled, waited for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from examples.flights import detached
from examples.flights.detached import same_process, send_signal, wait_for_ends


@pytest.fixture
def sleeping() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()


def test_a_process_that_is_signalled_ends(sleeping: psutil.Process) -> None:
    created = sleeping.create_time()
    found = same_process(sleeping.pid, created)
    assert found == sleeping
    send_signal(found, signal.SIGTERM)
    wait_for_ends([found], 10)
    assert same_process(sleeping.pid, created) is None  # a zombie: nobody has waited for it


def test_a_zombie_is_not_waited_for(sleeping: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    send_signal(sleeping, signal.SIGKILL)
    while sleeping.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    monkeypatch.setattr(detached.time, "sleep", lambda _: pytest.fail("waits for a zombie"))
    wait_for_ends([sleeping], 10)


def test_a_process_that_has_ended_is_not_signalled(sleeping: psutil.Process) -> None:
    sleeping.kill()
    sleeping.wait(10)
    send_signal(sleeping, signal.SIGTERM)
