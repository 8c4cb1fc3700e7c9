"""The command ``windowmill``."""

from __future__ import annotations

import gc
import io
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command line in this process; returns the exit code."""
    from windowmill.jobs.commands import app

    return app.run(arguments)


def command() -> int:
    """Run the command line of this process, which ends with its exit code."""
    from windowmill.jobs.ending import Ending

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, where the locale's encoding lacks a sign
    ending = Ending()
    # Imports make 160,000 objects that stay. To look through them, as the default does twice, takes a tenth of a second.
    gc.set_threshold(1_000_000)
    ending.code = main()
    return ending.code


if __name__ == "__main__":
    sys.exit(command())
