"""Keeps a fork server running beside the Spark Connect server of ``windowmill serve``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO

from windowmill.jobs.child import tie_to_parent
from windowmill.jobs.warm.protocol import BEGUN, ENDED, READY

MODULE = "windowmill.jobs.warm.fork_server"
STOP_SECONDS = 5.0
#: Size of a read of what the fork server has told: more than a pipe holds.
_TOLD_BYTES = 1 << 20


class Keeper:
    """Keeps the fork server beside the Spark Connect server on ``port``; calls ``say`` with a line when it ends.

    A fork server that ends is started again. One that ends before it was ready is not: commands then run in processes of their own.
    """

    def __init__(self, port: int, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._port, self._environment, self._say = port, environment, say
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self.is_ready = False
        self._running = 0
        #: When a look last found a command that ran, or had begun or ended since the look before; of the monotonic clock.
        self.used = time.monotonic()

    @property
    def pid(self) -> int:
        """Process id of the fork server; 0 if there is none."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the fork server, which takes some seconds until it is ready."""
        self.is_ready, self._running = False, 0
        self._messages.seek(0)
        self._messages.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=self._messages,
            env=self._environment,
            start_new_session=True,  # an interrupt from the keyboard is for its parent
            preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509 - one call of prctl, which needs no lock
        )
        if self._process.stdout is not None:
            os.set_blocking(self._process.stdout.fileno(), False)

    def look(self) -> None:
        """Note whether the fork server has become ready and whether it is used, and start it again if it has ended."""
        process = self._process
        if process is None or process.stdout is None:
            return
        told = (process.stdout.read(_TOLD_BYTES) or b"").split()  # null where it has told nothing new
        self.is_ready |= READY.encode() in told
        self._running += told.count(BEGUN.encode()) - told.count(ENDED.encode())
        if told or self._running:
            self.used = time.monotonic()
        if process.poll() is None:
            return
        process.stdout.close()
        if self.is_ready:
            if process.returncode:
                self._say(f"the fork server has died (exit code {process.returncode}); it is started anew")
            self.start()
        else:
            self._process = None
            self._say(f"the fork server did not start: {self._last_message()}; each command has a process of its own")

    def wait(self, seconds: float) -> None:
        """Wait until the fork server is ready or has ended, at most ``seconds``."""
        begun = time.monotonic()
        while self._process is not None and not self.is_ready and time.monotonic() - begun < seconds:
            self.look()
            time.sleep(0.05)

    def stop(self) -> None:
        """End the fork server and its children."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._messages.close()

    def _last_message(self) -> str:
        self._messages.seek(0)
        lines = self._messages.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it has ended without a message"
