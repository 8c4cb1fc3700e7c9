"""The command ``windowmill``: runs in a child of the fork server of ``windowmill serve``, if there is one, else in this process."""

from __future__ import annotations

import gc
import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command line in this process; returns the exit code."""
    from windowmill.jobs.commands import app

    return app.run(arguments)


def command() -> int:
    """Run the command line of this process, in a child of a fork server if there is one; returns the exit code."""
    from windowmill.jobs.ending import Ending
    from windowmill.jobs.warm.client import forked

    ending = Ending()
    code = forked(sys.argv[1:])
    if code is None:
        # Imports make a million objects that stay. Collecting every 700 new objects, the default, takes a tenth of a short command.
        gc.set_threshold(100_000)
        code = main()
    ending.code = code
    return code


if __name__ == "__main__":
    sys.exit(command())
