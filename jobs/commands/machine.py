"""Commands that need no spec: ``setup``, ``doctor``, ``serve``, ``tutorial``."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from windowmill.jobs.commands.terminal import Answer, AsJson, console, errors, report, show


def setup(
    with_s3: Annotated[bool, typer.Option("--s3", help="Also fetch the jars with which Spark reads s3:// (13 MB).")] = False,
    as_json: AsJson = False,
) -> None:
    """Get what Spark and the kernels need and this machine lacks: Delta's jars, an archive of classes, compiled code. Minutes, once."""
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.commands.setup import set_up

    show(set_up(Progress(errors), with_s3=with_s3), as_json)


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports, the server that SPARK_REMOTE names."""
    from windowmill.jobs.commands.doctor import examine, report

    answer = report(examine())
    show(answer, as_json)
    raise typer.Exit(1 if answer.data["wrong"] else 0)


def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 15002,
    idle_minutes: Annotated[int, typer.Option("--idle-minutes", min=0, help="End after this time without a client; 0 for never.")] = 0,
    max_age_hours: Annotated[
        int, typer.Option("--max-age-hours", min=0, help="Restart Spark after this time, once no client is connected; 0 for never.")
    ] = 24,
    max_memory_gib: Annotated[
        int, typer.Option("--max-memory-gib", min=0, help="Restart Spark when it takes more, once no client is connected; 0 for never.")
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Keep Spark warm on this machine, and print the address for SPARK_REMOTE; ends on SIGTERM and Ctrl-C."""
    from windowmill.jobs.warm.connect_server import Server, ServerLimits

    def ready(server: Server) -> None:
        data = {"address": server.address, "port": server.port, "pid": server.pid, "seconds": round(time.monotonic() - begun, 1)}
        show(Answer(data, server.address), as_json)

    begun = time.monotonic()
    server = Server(port, ServerLimits(idle_minutes * 60, max_age_hours * 3_600, max_memory_gib << 30), report)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.end())
    report(f"windowmill: starting and warming up Spark on port {server.port}, which takes about a minute")
    report(f"windowmill: the server has ended: {server.keep(ready)}")


def tutorial(
    folder: Annotated[Path | None, typer.Option("--folder", help="A new folder for its files; a temporary one unless given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show windows, late rows and a held batch on a small shop's orders, in seconds; no JVM."""
    from windowmill.jobs.commands.tutorial import run_tutorial

    data = run_tutorial(folder, (lambda _: None) if as_json else console.print)
    if as_json:
        print(json.dumps(data))
