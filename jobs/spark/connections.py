"""The connections of this process to its JVM, whose end PySpark and Py4J take for errors: each prints a traceback.

A command that has succeeded kills the JVM that it started (:mod:`windowmill.jobs.spark.launch`), and one whose JVM has died learns it from
its next call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any

#: How long the end of a command waits for the JVM to answer that it has let go of an object.
MAX_SECONDS = 1.0


def silence_accumulators() -> None:
    """Have PySpark's server of accumulators say nothing where the JVM ends its connection, which it keeps for as long as it lives."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the server is nowhere else to be had
    server = getattr(context, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            report(request, client_address)

    server.handle_error = handle_error


def stoppable_collection(gateway: Any) -> Callable[[], None]:
    """Make it possible to stop a thread of Py4J, which names to the JVM of ``gateway`` objects that are not needed any more.

    Returns
    -------
    Callable
        Stops it, between two objects.
    """
    client = gateway._gateway_client  # noqa: SLF001 - Py4J cannot stop the thread without waiting for a second
    collect, turn = client.garbage_collect_object, Lock()

    def garbage_collect_object(target_id: str, enqueue: bool = True) -> None:
        if enqueue:
            collect(target_id, enqueue)
            return
        with turn:
            if client.is_connected:
                collect(target_id, enqueue)

    def stop() -> None:
        held = turn.acquire(timeout=MAX_SECONDS)
        client.is_connected = False
        if held:
            turn.release()

    client.garbage_collect_object = garbage_collect_object
    return stop
