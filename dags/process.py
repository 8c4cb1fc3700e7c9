"""Runs a windowmill command as a child process: forwards its messages, returns its summary, and ends it with its parent.

A separate process keeps the JVM and hundreds of megabytes of libraries out of the orchestrator's task, and can be killed reliably.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any

from windowmill.windowing.errors import RefusedError, WindowmillError
from windowmill.windowing.redaction import redacted

#: The module for ``python -m``; it has the arguments and exit codes of the command ``windowmill``.
COMMAND = "windowmill.jobs.cli"

#: Airflow sends SIGKILL 5 s after SIGTERM; the child must have ended before, so that the task can report it.
GRACE_SECONDS = 3.0
NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


class JobFailedError(WindowmillError):
    """The command ended with exit code 1 or by a signal; running it again is safe and may help."""


class JobRefusedError(RefusedError):
    """The command refused its arguments, the spec or the source (exit code 2); running it again gives the same."""


class JobHeldError(WindowmillError):
    """A quality rule holds the batch (exit code 3); someone has to look."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command: exit code (negative: killed by that signal), last line of stdout, last line of stderr."""

    code: int
    output: str
    message: str


class CommandProcess:
    """One command, run once.

    Parameters
    ----------
    arguments
        Arguments of ``windowmill``, passed without a shell.
    environment
        Variables that it gets beside those of this process.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] = NO_ENVIRONMENT) -> None:
        self.arguments = tuple(arguments)
        self._environment = environment
        self._child: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self, log: Callable[[str], None]) -> CommandResult:
        """Run the command to its end; passes each line of stderr to ``log``."""
        from windowmill.jobs.child import tie_to_parent  # not needed for parsing

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", COMMAND, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env=os.environ | self._environment,
                start_new_session=True,
                preexec_fn=tie_to_parent(os.getpid()),  # noqa: PLW1509 - one call of prctl, which needs no lock
            )
            if self._stopped:  # stopped before the child started
                self.stop()
            try:
                message = _forward(child.stderr, log)
                code = child.wait()
            finally:
                if child.poll() is None:
                    self._kill()
                    child.wait()
            return CommandResult(code, _last_line(output), message)

    def stop(self) -> None:
        """Send SIGTERM to the child, and SIGKILL to its whole session after ``GRACE_SECONDS``; returns immediately."""
        self._stopped = True
        child = self._child
        if child is None or child.poll() is not None:
            return
        child.terminate()
        reaper = threading.Timer(GRACE_SECONDS, self._kill)
        reaper.daemon = True
        reaper.start()

    def _kill(self) -> None:
        # Kill the whole session even if the child has ended: a surviving JVM would keep stderr open and block this process.
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)


def summary_of(command: str, finished: CommandResult) -> dict[str, Any]:
    """Parse the JSON summary of a command that was run with ``--json``.

    Raises
    ------
    JobFailedError, JobRefusedError, JobHeldError
        If the exit code is not 0; the message is the command's last line.
    """
    raise_for(command, finished)
    try:
        summary = json.loads(finished.output)
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        raise JobFailedError(
            f"{command}: ended well, but its last line of output is {redacted(finished.output)!r}; expected its summary as JSON (--json)"
        )
    return summary


def raise_for(command: str, finished: CommandResult) -> None:
    """Raise the error for the exit code; none for 0."""
    if finished.code == 0:
        return
    reason = finished.message or "no message"
    if finished.code == JobRefusedError.exit_code:
        raise JobRefusedError(f"{command}: refused: {reason}")
    if finished.code == JobHeldError.exit_code:
        raise JobHeldError(f"{command}: held: {reason}")
    if finished.code < 0:
        raise JobFailedError(f"{command}: killed by {signal.Signals(-finished.code).name}; nothing is lost, run it again")
    raise JobFailedError(f"{command}: failed with exit code {finished.code}: {reason}")


def _forward(lines: IO[str] | None, log: Callable[[str], None]) -> str:
    last = ""
    for line in lines or ():
        # Libraries quote unreachable addresses, which may contain credentials.
        if text := redacted(line.rstrip()):
            log(text)
            last = text
    return last


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    last = ""
    for line in output:
        if text := line.strip():
            last = text
    return last
