"""Has a command run in a child of the fork server, as if it ran in this process. Imports nothing that takes time."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

from windowmill.jobs.warm import protocol

#: Commands that import much and that schedules run; the others run in processes of their own.
FORKED = ("run", "backfill", "release", "discard", "report", "maintain")
_HERE = ("localhost", "127.0.0.1", "::1")
_DEFAULT_PORT = 15002  # PySpark's
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def port_here(address: str) -> int | None:
    """Port of a Spark Connect server on this machine; null for others."""
    try:
        parts = urlsplit(address)
        return (parts.port or _DEFAULT_PORT) if parts.scheme == "sc" and parts.hostname in _HERE else None
    except ValueError:  # the run tells what is wrong with it
        return None


def is_served(port: int) -> bool:
    """Whether a fork server of this user answers beside the Spark Connect server on ``port``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(protocol.address_of(port))
        except OSError:
            return False
        return protocol.is_own(connection)


def forked(arguments: list[str]) -> int | None:
    """Run the command in a child of the fork server beside the Spark Connect server that ``SPARK_REMOTE`` names.

    Its streams are those of this process, which passes on signals and ends as the child ends: with its exit code, or by the same signal.

    Returns
    -------
    int or None
        Exit code; ``None`` if the command has to run in this process, which is said on stderr if a fork server has refused it or ended.
    """
    if not arguments or arguments[0] not in FORKED or (port := port_here(os.environ.get("SPARK_REMOTE", ""))) is None:
        return None
    if None in (sys.stdin, sys.stdout, sys.stderr):  # closed: a socket would take the number of the stream, and be sent for it
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(protocol.ANSWER_SECONDS)
        try:
            connection.connect(protocol.address_of(port))
            if not protocol.is_own(connection):
                return None
        except OSError:  # there is no fork server
            return None
        with _Signals() as signals:
            try:
                protocol.send_request(connection, protocol.Request.of_this_process(arguments))
            except TimeoutError:
                _tell_refusal("no answer")
                return None
            except OSError:  # it does not take the request
                return None
            return _followed(connection, signals)


def _followed(connection: socket.socket, signals: _Signals) -> int | None:
    """Wait for the end of the child; its exit code, or ``None`` if the fork server refuses the request or ends."""
    words = _words(connection)
    try:
        first = next(words, {})
    except OSError:
        first = {}
    if "pid" not in first:
        _tell_refusal(first.get("refused", "no answer"))
        return None
    signals.pass_on_to(first["pid"])
    connection.settimeout(None)
    last = next(words, {})
    if "signal" in last:
        signals.restore()
        _end_by(last["signal"])
    if "code" not in last:
        _say("the fork server has ended, and the command with it; it runs again in a process of its own")
        return None
    return int(last["code"])


def _tell_refusal(why: str) -> None:
    _say(f"the fork server does not take this command ({why}); it runs in a process of its own")


def _words(connection: socket.socket) -> Iterator[dict[str, Any]]:
    with connection.makefile() as lines:
        for line in lines:
            yield json.loads(line)


class _Signals:
    """Within its context, passes on signals that this process does not ignore to the child, as soon as the child's id is known."""

    def __init__(self) -> None:
        self._child: int | None = None
        self._waiting: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        heeded = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._take) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        if self._child is None:  # no child has come: they are for this process
            for number in self._waiting:
                os.kill(os.getpid(), number)

    def pass_on_to(self, child: int) -> None:
        self._child = child
        for number in self._waiting:
            self._take(number, None)

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: object) -> None:
        if self._child is None:
            self._waiting.append(number)
        else:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)


def _end_by(number: int) -> None:
    """End this process by the signal that has ended the child, so that whoever waits for it sees the same."""
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(what: str) -> None:
    print(f"windowmill: {what}", file=sys.stderr)
