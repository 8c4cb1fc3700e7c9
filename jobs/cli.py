"""The command ``windowmill``."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys


class FastExit:
    """Ends this process with the exit code ``code``, if it is set, after all other functions that are registered with ``atexit``.

    The interpreter would free a million objects one by one, a fifth of the time of a short command. ``atexit`` calls last what was
    registered first, so make this before other modules register theirs.
    """

    def __init__(self) -> None:
        self.code: int | None = None
        atexit.register(self)

    def __call__(self) -> None:
        if self.code is not None:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # null: closed
                try:
                    stream.flush()
                except OSError:  # the reader has gone
                    self.code = self.code or 1
            os._exit(self.code)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line in this process; returns the exit code."""
    from windowmill.jobs.commands import app

    return app.run(arguments)


def command() -> int:
    """Run the command line of this process, which ends with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, where the locale's encoding lacks a sign
    ending = FastExit()
    # Imports make 160,000 objects that stay. To look through them, as the default does twice, takes a tenth of a second.
    gc.set_threshold(1_000_000)
    ending.code = main()
    return ending.code


if __name__ == "__main__":
    sys.exit(command())
