"""The command ``windowmill``."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys


class FastExit:
    """Ends this process with the exit code ``code``, if it is set, where it is registered with ``atexit`` before all other functions.

    The interpreter would free a million objects one by one, a fifth of the time of a short command. ``atexit`` calls last what was
    registered first.
    """

    code: int | None = None

    def __call__(self) -> None:
        if self.code is not None:
            for stream in filter(None, (sys.stdout, sys.stderr)):  # null: closed
                try:
                    stream.flush()
                except OSError:  # the reader has gone
                    self.code = self.code or 1
            os._exit(self.code)


def main(arguments: list[str] | None = None) -> int:
    """Run the command of ``arguments``, by default those of the process; returns its exit code."""
    from windowmill.jobs.commands.terminal import app, exit_code_of

    given = sys.argv[1:] if arguments is None else arguments
    # An option of all commands, so it may stand behind any of them; the sort is stable.
    given = sorted(given, key=lambda argument: argument != "--debug")
    return exit_code_of(lambda: app(args=given, prog_name="windowmill", standalone_mode=False))


def command() -> int:
    """Run the command line of this process, which ends with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, where the locale's encoding lacks a sign
    ending = FastExit()
    atexit.register(ending)
    # Imports make 160,000 objects that stay. To look through them, as the default does twice, takes a tenth of a second.
    gc.set_threshold(1_000_000)
    ending.code = main()
    return ending.code


if __name__ == "__main__":
    sys.exit(command())
