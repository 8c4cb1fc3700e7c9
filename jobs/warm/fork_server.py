"""The process that has imported what runs need, and forks a child for each: ``python -m windowmill.jobs.warm.fork_server PORT``.

It keeps one thread, and opens no table and no connection to Spark before a fork: a child has its own. Clients are watched without
blocking, each child by a file descriptor of its process. It prints when it takes requests, and when a child has begun or ended. It ends on
SIGTERM, with its parent, or when the code of windowmill has changed; a child ends with it.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from windowmill.jobs.child import tie_to_parent
from windowmill.jobs.ending import Ending
from windowmill.jobs.own_code import code_in_use
from windowmill.jobs.warm import protocol
from windowmill.jobs.warm.protocol import BEGUN, ENDED, READY, Request

_WAITING = 64


@dataclass
class _Run:
    """A child and its client."""

    child: int
    process: int  # file descriptor of the child, readable once it has ended
    client: socket.socket


class ForkServer:
    """Forks children for the clients of ``address``.

    Parameters
    ----------
    address
        Of the socket, as :func:`~windowmill.jobs.warm.protocol.address_of` gives it.
    kind
        What requests must have in common with this process, as it was when it imported its modules.
    """

    def __init__(self, address: str, kind: dict[str, object]) -> None:
        self._kind = kind
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(address)
        self._listening.listen(_WAITING)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._runs: list[_Run] = []
        self._is_stale = False

    def serve(self) -> tuple[Request, list[int]] | None:
        """Fork children until the code of windowmill has changed and the last child has ended.

        Returns
        -------
        tuple or None
            In each child its request and its streams (file descriptors); in this process ``None``.
        """
        while self._runs or not self._is_stale:
            for key, _ in self._selector.select():
                if key.data is None:
                    request = self._take()
                    if request is not None:
                        return request
                elif key.fileobj == key.data.process:
                    self._reap(key.data)
                elif key.data in self._runs:
                    self._abandon(key.data)
        return None

    def _take(self) -> tuple[Request, list[int]] | None:
        """Fork a child for a new client; returns its request and streams in the child."""
        connection, _ = self._listening.accept()
        try:
            connection.settimeout(protocol.ANSWER_SECONDS)
            admitted = self._admitted(connection)
        except (OSError, ValueError, TypeError):  # the client has gone, or is none
            admitted = None
        if admitted is None:
            connection.close()
            return None
        try:
            child = os.fork()
        except OSError as err:  # of processes or memory
            self._refuse(connection, admitted[1], f"no child can be made: {err}")
            connection.close()
            return None
        if child == 0:
            self._leave()
            connection.close()
            return admitted
        for stream in admitted[1]:
            os.close(stream)
        self._watch(child, connection)
        return None

    def _admitted(self, connection: socket.socket) -> tuple[Request, list[int]] | None:
        if not protocol.is_own(connection):
            return None
        request, streams = protocol.receive_request(connection)
        refusal = self._refusal(request)
        if refusal is None:
            return request, streams
        self._refuse(connection, streams, refusal)
        return None

    def _refuse(self, connection: socket.socket, streams: list[int], reason: str) -> None:
        for stream in streams:
            os.close(stream)
        with suppress(OSError):  # the client has gone
            protocol.answer(connection, refused=reason)

    def _refusal(self, request: Request) -> str | None:
        """Why no child of this process can run ``request``; null if one can."""
        if code_in_use() != self._kind["windowmill"]:
            self._is_stale = True
            return "the code of windowmill has changed since it started; it starts anew"
        differing = [name for name, value in self._kind.items() if request.kind.get(name) != value]
        return f"it differs in {' and '.join(differing)}" if differing else None

    def _watch(self, child: int, client: socket.socket) -> None:
        run = _Run(child, os.pidfd_open(child), client)
        self._runs.append(run)
        self._selector.register(run.process, selectors.EVENT_READ, run)
        self._selector.register(client, selectors.EVENT_READ, run)
        print(BEGUN, flush=True)
        with suppress(OSError):  # a client that has gone is noticed as one that closes
            protocol.answer(client, pid=child)

    def _abandon(self, run: _Run) -> None:
        """Kill a child whose client has gone: a client sends nothing after its request, so its socket is readable once it is closed."""
        self._selector.unregister(run.client)
        try:
            os.killpg(run.child, signal.SIGKILL)
        except ProcessLookupError:  # it has not yet made itself a group
            os.kill(run.child, signal.SIGKILL)

    def _reap(self, run: _Run) -> None:
        _, status = os.waitpid(run.child, 0)
        self._selector.unregister(run.process)
        os.close(run.process)
        with suppress(KeyError):
            self._selector.unregister(run.client)
        code = os.waitstatus_to_exitcode(status)
        with suppress(OSError):
            protocol.answer(run.client, **({"signal": -code} if code < 0 else {"code": code}))
        run.client.close()
        self._runs.remove(run)
        print(ENDED, flush=True)

    def _leave(self) -> None:
        """Close what belongs to the parent, in the child."""
        self._selector.close()
        self._listening.close()
        for run in self._runs:
            run.client.close()
            os.close(run.process)


def preload() -> None:
    """Import what a run of a small batch uses, and load its kernels, before the first fork; nothing that opens a table or a connection."""
    # GX imports PySpark, and not the other way round. The commands are left to the child: their consoles look at its streams.
    for name in ("jobs.batch.steps", "jobs.batch.loop", "jobs.report.page", "jobs.spark.remote"):
        importlib.import_module(f"windowmill.{name}")
    for name in ("pyspark.sql.connect.session", "typer"):
        importlib.import_module(name)
    from windowmill.expectations.engine import load
    from windowmill.windowing.kernels.__main__ import warm

    load()
    warm()
    _validate()
    gc.collect()
    gc.freeze()  # a child's collector would write to the pages that it shares with its siblings


def _validate() -> None:
    """Evaluate the rules that every pipeline has over one row: Great Expectations loads what it needs for it."""
    from windowmill.expectations.gate import validate
    from windowmill.windowing.specfile import parse_pipeline

    windows = [{"name": "w", "type": "tumbling", "size": 1}]
    spec = {"pipeline": "warm", "time": {"column": "t", "unit": "none"}, "windows": windows, "aggregates": {"n": {"count": "*"}}}
    row = {"window": "w", "window_start": 0, "window_end": 1, "trigger": None, "revision": 0, "n": 1, "batch": 0}
    importlib.import_module("tqdm").tqdm.monitor_interval = 0  # no thread that watches progress bars, here nor in the children
    validate(pa.Table.from_pylist([row]), parse_pipeline(spec))


def become(request: Request, streams: list[int]) -> None:
    """Give this child the client's streams, folder, variables and path, and a session (of processes) of its own."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.umask(request.umask)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    tempfile.tempdir = None  # it keeps what TMPDIR was
    sys.path[:] = request.path
    sys.argv[1:] = request.arguments
    importlib.invalidate_caches()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def main() -> int:
    """Serve until told to end; in a child, run the client's command."""
    kind = protocol.kind_of_process(os.environ)  # before imports change the environment
    ending = Ending()  # before they register what is to come first
    preload()
    tie = tie_to_parent(os.getpid())
    server = ForkServer(protocol.address_of(int(sys.argv[1])), kind)
    print(READY, flush=True)
    taken = server.serve()
    if taken is None:
        return 0
    if tie is not None:
        tie()
    become(*taken)
    from windowmill.jobs import cli

    ending.code = cli.main(taken[0].arguments)
    return ending.code


if __name__ == "__main__":
    sys.exit(main())
