"""What a client and the fork server of the same user and machine say to each other, over an abstract Unix socket.

The server sends a byte when it takes the connection: streams that are sent to a stopped process would stay open, and whoever reads them
would wait. Then the client sends one :class:`Request` with its three standard streams. The server answers with lines of JSON:
``{"pid": …}`` once the child has started, then ``{"code": …}`` or ``{"signal": …}`` as it has ended; or ``{"refused": …}`` with the
reason. A connection that the client closes ends the child, so that a killed client leaves no run behind.

To the process that keeps it the server prints a word a line: that it takes requests, that a child has begun, that one has ended.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windowmill.jobs.own_code import code_in_use

#: The longest that either side waits for a message of the other; a run may take any time.
ANSWER_SECONDS = 10.0
#: Prefixes of variables that modules read at import. The fork server has imported them already, so a child cannot change them.
READ_AT_IMPORT = ("MKL_", "NUMBA_", "OMP_", "OPENBLAS_", "WINDOWMILL_FAILPOINT")
#: Words that the server prints for the process that keeps it.
READY, BEGUN, ENDED = "ready", "begun", "ended"
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
_STREAMS = 3
_TAKEN = b"\n"
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Request:
    """A command to run in a forked child.

    Attributes
    ----------
    arguments
        Of ``windowmill``.
    folder, umask, environment, path
        Those of the client: working directory, file mode mask, variables and ``sys.path``.
    kind
        What client and server must have in common: see :func:`kind_of_process`.
    """

    arguments: list[str]
    folder: str
    umask: int
    environment: dict[str, str]
    path: list[str]
    kind: dict[str, Any]

    @classmethod
    def of_this_process(cls, arguments: list[str]) -> Request:
        os.umask(umask := os.umask(0o077))  # the mask can only be read by setting another one
        return cls(arguments, str(Path.cwd()), umask, dict(os.environ), sys.path, kind_of_process(os.environ))


def kind_of_process(environment: Mapping[str, str]) -> dict[str, Any]:
    """What a child cannot change after the fork: interpreter, its options, code of windowmill, namespaces, variables read at import."""
    return {
        "interpreter": [sys.prefix, sys.version, sys.stdout.encoding, *map(int, sys.flags)],
        "windowmill": code_in_use(),
        "namespaces": [Path(f"/proc/self/ns/{name}").readlink().name for name in ("mnt", "pid", "user")],
        "variables": {name: value for name, value in sorted(environment.items()) if name.startswith(READ_AT_IMPORT)},
    }


def address_of(port: int) -> str:
    """The socket of the fork server beside the Spark Connect server on ``port``.

    It is in the abstract namespace, which belongs to the network namespace as ports do, and leaves no file behind. Any user may take the
    name, so each side asks the kernel for the other's user: see :func:`is_own`.
    """
    return f"\0windowmill-{os.getuid()}-{port}"


def is_own(connection: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user, as the kernel says."""
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def send_request(connection: socket.socket, request: Request) -> None:
    """Send ``request`` and the standard streams of this process; raises ``OSError`` if the server does not take them."""
    body = json.dumps(asdict(request)).encode()
    if connection.recv(len(_TAKEN)) != _TAKEN:
        raise ConnectionAbortedError
    socket.send_fds(connection, [_LENGTH.pack(len(body))], range(_STREAMS))
    connection.sendall(body)


def receive_request(connection: socket.socket) -> tuple[Request, list[int]]:
    """The request and its streams, as file descriptors that the caller closes.

    Raises
    ------
    ValueError
        If what comes is no request.
    OSError
        If nothing comes within the connection's timeout, or the client has gone.
    """
    connection.sendall(_TAKEN)
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, _STREAMS)
    try:
        if len(head) != _LENGTH.size or len(streams) != _STREAMS:
            raise ValueError("no request")
        [length] = _LENGTH.unpack(head)
        if length > _MAX_BYTES:
            raise ValueError("a request that is too long")
        body = bytearray()
        while len(body) < length:
            part = connection.recv(min(length - len(body), 1 << 16))
            if not part:
                raise ValueError("half a request")
            body += part
        return Request(**json.loads(body)), streams
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def answer(connection: socket.socket, **words: int | str) -> None:
    """Send a line of JSON to the client; raises ``OSError`` if it has gone."""
    connection.sendall(json.dumps(words).encode() + b"\n")
