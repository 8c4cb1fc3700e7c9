"""Derives the windowmill command of an Airflow run, and runs it as a child process: forwards its messages, returns its summary.

A separate process keeps the JVM and hundreds of megabytes of libraries out of the orchestrator's task, and can be killed reliably. It ends
with its parent.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any

from airflow.sdk.exceptions import AirflowFailException

from windowmill.windowing.errors import RefusedError, SpecError, WindowmillError
from windowmill.windowing.redaction import redacted

#: Parameters of a manual run; any other name in ``dag_run.conf`` is refused.
PARAMS = ("from", "to", "max_batches", "as_arrived")
#: The module for ``python -m``; it has the arguments and exit codes of the command ``windowmill``.
COMMAND = "windowmill.jobs.cli"

#: Airflow sends SIGKILL 5 s after SIGTERM; the child must have ended before, so that the task can report it.
GRACE_SECONDS = 3.0


def command_of(context: Mapping[str, Any], *, asserts_interval: bool = False) -> list[str]:
    """The windowmill command (without spec) for a DAG run.

    A run of type backfill recomputes its data interval, and a manual run with ``from`` and ``to`` recomputes that range; with
    ``as_arrived`` from the rows that runs have read, and else from those that the source holds now. Every other run
    advances the pipeline from its ledger, regardless of its data interval, so no batch is repeated.

    ``asserts_interval`` is whether the end of the data interval is the watermark (``time.watermark: data_interval_end``). The context of a
    run without a data interval lacks its keys. Raises ``SpecError`` if ``dag_run.conf`` or the params are invalid.
    """
    dag_run, params = context["dag_run"], context.get("params") or {}
    unknown = sorted(set(dag_run.conf or {}) - set(PARAMS))
    if unknown:
        raise SpecError(f"dag_run.conf: unknown {', '.join(map(repr, unknown))}; known are {', '.join(PARAMS)}")
    start, end, max_batches, as_arrived = (params.get(name) for name in PARAMS)
    if as_arrived not in (None, False, True):
        raise SpecError(f"params: as_arrived: got {as_arrived!r}; expected true or false")
    # An enum or its value, depending on the origin of the context.
    if getattr(dag_run.run_type, "value", dag_run.run_type) == "backfill":
        if not (start is end is max_batches is None):
            raise SpecError("dag_run.conf: a backfill recomputes each run's own data interval; leave from, to and max_batches out")
        begin, until = context.get("data_interval_start"), context.get("data_interval_end")
        if begin is None or until is None:
            raise SpecError("this backfill run has no data interval to recompute; trigger a run with from and to instead")
        return _recompute(begin, until, as_arrived=as_arrived)
    if (start is None) != (end is None):
        raise SpecError(f"params: got from={start!r}, to={end!r}; give both (windows that end in (from, to] are recomputed) or neither")
    if start is not None:
        if max_batches is not None:
            raise SpecError("params: max_batches limits a run that advances; a range from … to is recomputed in one batch")
        return _recompute(_instant("from", start), _instant("to", end), as_arrived=as_arrived)
    if as_arrived:
        raise SpecError("params: as_arrived says which rows a range from … to is recomputed from; give from and to")
    command = ["run"] if max_batches is None else ["run", "--max-batches", str(int(max_batches))]
    if asserts_interval and context.get("data_interval_end") is not None:
        command += ["--data-interval-end", f"{context['data_interval_end'].astimezone(UTC):%Y-%m-%dT%H:%M:%S}"]
    return command


def advances(context: Mapping[str, Any]) -> bool:
    """Whether a DAG run advances the pipeline, so that without new rows it has nothing to do."""
    try:
        return command_of(context)[0] == "run"
    except SpecError:  # the micro-batch says what is wrong
        return False


@contextmanager
def failing_fast() -> Iterator[None]:
    """Raise errors that no retry can fix as the exception that Airflow does not retry."""
    try:
        yield
    except (JobHeldError, RefusedError) as err:
        # Without the cause, which would repeat the message in the log.
        raise AirflowFailException(redacted(str(err))) from None


def _recompute(start: datetime, end: datetime, *, as_arrived: bool | None) -> list[str]:
    if end <= start:
        raise SpecError(f"params: got from={start.isoformat()}, to={end.isoformat()}; expected from to be earlier")
    bounds = ["--from", start.astimezone(UTC).isoformat(), "--to", end.astimezone(UTC).isoformat()]
    return ["backfill", *bounds, *(["--as-arrived"] if as_arrived else [])]


def _instant(name: str, value: object) -> datetime:
    try:
        instant = datetime.fromisoformat(str(value))
    except ValueError as err:
        raise SpecError(f"params: {name}: got {value!r}; expected an instant such as 2013-02-01T00:00:00Z") from err
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


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
    """A command with the ``arguments`` of ``windowmill``, run once, with ``environment`` in addition to this process' variables."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.arguments = tuple(arguments)
        self._environment = dict(environment or {})
        self._child: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self, log: Callable[[str], None]) -> CommandResult:
        """Run the command to its end; passes each line of stderr to ``log``."""
        from windowmill.jobs.spark.launch import tie_to_parent  # not needed for parsing

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

    Raises ``JobFailedError``, ``JobRefusedError`` or ``JobHeldError`` if the exit code is not 0; the message is the command's last line.
    """
    raise_for(command, finished)
    summary = printed_summary(finished)
    if summary is None:
        raise JobFailedError(
            f"{command}: ended well, but its last line of output is {redacted(finished.output)!r}; expected its summary as JSON (--json)"
        )
    return summary


def printed_summary(finished: CommandResult) -> dict[str, Any] | None:
    """The JSON summary that a command has printed, also one that failed after it had committed batches; null if there is none."""
    try:
        summary = json.loads(finished.output)
    except ValueError:
        return None
    return summary if isinstance(summary, dict) else None


def raise_for(command: str, finished: CommandResult) -> None:
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
        last = line.strip() or last
    return last
