"""PySpark's daemon with the modules that tasks need: ``python -m windowmill.jobs.spark.daemon``, by ``spark.python.daemon.module``.

The daemon forks Python workers, and ends those that have been idle for a minute. A worker that is forked later has the modules at once,
where it would import them for a second and a half. A JVM that windowmill starts takes longer than that to come to its first task. So
:mod:`.launch` starts a daemon at the same time, which imports and waits. The process that Spark starts then gives it its streams.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys

#: Variable that names the socket at which a daemon waits.
WAITING = "WINDOWMILL_DAEMON"


def main() -> None:
    """Import, then fork workers until the executor ends, unless a waiting daemon takes over."""
    place = os.environ.get(WAITING)
    if place is None or not _handed_over(place):
        _import()
        _fork_workers()


def wait(place: str) -> None:
    """Import, wait at the socket ``place`` for the streams and the environment of a daemon, and go on as that one."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen(1)
        _import()
        connection, _ = server.accept()
    with connection:
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        for own, given in enumerate(streams):
            os.dup2(given, own)
            os.close(given)
        with connection.makefile("rb") as lines:
            environment = json.loads(lines.readline())
        os.environ.clear()
        os.environ.update(environment)
        _fork_workers()


def _handed_over(place: str) -> bool:
    """Give this process's streams and environment to the daemon that waits at ``place``, and wait for its end; false if none waits."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(place)
            socket.send_fds(connection, [b"\n"], [0, 1, 2])
            connection.sendall(json.dumps(dict(os.environ)).encode() + b"\n")
            connection.recv(1)
        except OSError:
            return False
        return True


def _import() -> None:
    importlib.import_module("pyspark.daemon")
    for name in ("task", "compute"):
        importlib.import_module(f"windowmill.jobs.batch.{name}")
    import pyarrow as pa

    from windowmill.windowing.columnar.hashes import Share, in_buckets

    for _ in in_buckets(pa.table({"k": [0]}), ["k"], Share.every(2)):
        pass  # a process's first kernel takes 0.4 s, whichever it is
    gc.collect()
    gc.freeze()  # a worker's collector would write to the pages that it shares with the others


def _fork_workers() -> None:
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] == "wait":
        wait(sys.argv[2])
    else:
        main()
