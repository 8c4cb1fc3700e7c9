"""Killing a real run, or another command: its driver, Spark's JVM, or a Python worker, at a named step or at any instant."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VICTIMS = ("driver", "jvm", "worker")
#: The longest that a run may take to reach a step, or to end.
PATIENCE_SECONDS = 240.0
#: The command line as a script, with batches of any size on Spark.
BY_SPARK = """
import sys

from windowmill.jobs import cli
from windowmill.jobs.layouts import limits

limits.MAX_ROWS = 0
sys.exit(cli.main())
"""


@dataclass
class Run:
    """``windowmill run`` in a process group of its own; with ``place`` it pauses when it reaches that failpoint.

    ``by_spark`` leaves no batch to the driver, however small, so that there are Python workers. ``command`` is another command, and its
    options.
    """

    spec: Path
    place: str | None = None
    by_spark: bool = False
    command: Sequence[str] = ("run",)

    def __post_init__(self) -> None:
        self._resume = self.spec.with_name(f"{self.spec.name}.resume")
        self._resume.unlink(missing_ok=True)
        self.reached = self.spec.with_name(f"{self.spec.name}.resume.reached")
        self.reached.unlink(missing_ok=True)
        environment = os.environ | ({"WINDOWMILL_COMPUTE": "spark"} if self.by_spark else {})
        if self.place is not None:
            environment |= {"WINDOWMILL_FAILPOINT": f"{self.place}:pause", "WINDOWMILL_FAILPOINT_RESUME": str(self._resume)}
        name, *options = self.command
        program = ["-c", BY_SPARK] if self.by_spark else ["-m", "windowmill.jobs.cli"]
        command = [sys.executable, *program, name, str(self.spec), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )

    def wait_until_reached(self) -> bool:
        """Whether the run stands at its failpoint; it may end without coming there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.reached.exists():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                self.stop()
                raise TimeoutError(f"the run did not reach {self.place}")
            time.sleep(0.02)
        return True

    def resume(self) -> None:
        """Let the run go on from its failpoint."""
        self._resume.touch()

    def kill(self, victim: str) -> bool:
        """``kill -9`` the victim; whether there was one."""
        pids = [self.process.pid] if victim == "driver" else self._descendants("java" if victim == "jvm" else "spark.daemon")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return bool(pids)

    def end(self) -> int:
        """Wait for the run to end; its exit code. Whatever is left of its process group is stopped."""
        try:
            self.process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self.stop()
        return self.process.returncode

    def stop(self) -> None:
        """Kill what is left of the run."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def _descendants(self, what: str) -> list[int]:
        """Processes of the run's session whose command line holds ``what``."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                if session == self.process.pid and what in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except (OSError, ValueError, IndexError):
                continue
        return found
