"""The command about this machine: ``doctor``."""

from __future__ import annotations

import typer

from windowmill.jobs.commands.output import console


def doctor() -> None:
    """Check this machine: Java, jars, worker Python, versions, warehouse, disk, ports."""
    from windowmill.jobs.commands.doctor import examine, report

    raise typer.Exit(report(examine(), console))
