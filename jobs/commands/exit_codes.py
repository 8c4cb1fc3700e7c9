"""How an action of a command ends: its exit code, with the error told in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.exceptions import TyperException

from windowmill.jobs.commands.output import errors
from windowmill.jobs.commands.spec_values import as_written
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.redaction import redacted

#: Exit code of a command that was interrupted from the keyboard: 128 and the number of SIGINT, as shells have it.
INTERRUPTED = 130


class Debugging:
    """Whether an error is raised with its traceback, instead of being told in a line."""

    on = False


def exit_code_of(action: Callable[[], Any]) -> int:
    """Run ``action``, and print the error that ends it; returns the exit code, 0 if nothing goes wrong."""
    try:
        result = action()
    except TyperException as err:
        # Without any argument the help has been printed, and there is no message.
        if told := err.format_message().rstrip("."):
            errors.print(f"windowmill: {told}; see `windowmill --help`", markup=False)
        return 2
    except typer.Abort:
        return _stopped()
    except WindowmillError as err:
        if Debugging.on:
            raise
        errors.print(f"windowmill: {as_written(str(err))}", markup=False)
        return err.exit_code
    except Exception as err:
        if Debugging.on:
            raise
        from windowmill.jobs.spark.failures import explain, raised_in_worker

        ours = raised_in_worker(err)
        errors.print(f"windowmill: {as_written(redacted(explain(err)) if ours is None else str(ours))}", markup=False)
        return 1 if ours is None else ours.exit_code
    if result == INTERRUPTED:  # typer has caught the KeyboardInterrupt
        return _stopped()
    # A truth is no exit code: True would be 1, a failure.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _stopped() -> int:
    errors.print("windowmill: stopped; run again to continue", markup=False)
    return INTERRUPTED
