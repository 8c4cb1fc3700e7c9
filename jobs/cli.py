"""The command ``windowmill``: runs in a warm process where ``windowmill serve`` keeps one, else in this one."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command line in this process; returns the exit code."""
    from windowmill.jobs.commands import app

    return app.run(arguments)


def command() -> int:
    """Run the command line of this process, in a child of a fork server if there is one; returns the exit code."""
    from windowmill.jobs.warm.client import forked

    code = forked(sys.argv[1:])
    return main() if code is None else code


if __name__ == "__main__":
    sys.exit(command())
