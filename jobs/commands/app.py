"""The command line by typer. Each command imports what it needs when it runs: ``validate`` and a run with nothing new start no JVM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from windowmill.jobs.commands import COMMANDS
from windowmill.jobs.commands.output import errors
from windowmill.jobs.commands.spec_values import as_written, forget
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.redaction import redacted

#: Exit code of a command that was interrupted from the keyboard: 128 and the number of SIGINT, as shells have it.
INTERRUPTED = 130


class _Parsers(Mapping[str, Any]):
    """The registry's commands as typer's parsers, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        alone = typer.Typer(add_completion=False)
        alone.command(name=name)(COMMANDS[name])
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # A view that only reads, as typer does once it has the group.
        self.commands = cast("MutableMapping[str, Any]", _Parsers())


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sliding-window aggregates on Spark and Delta, batch by batch.",
)


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    _State.debug = debug


class _State:
    debug = False


def run(arguments: list[str] | None = None) -> int:
    """Run the command of ``arguments``, by default those of the process; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # An option of all commands, so it may stand behind any of them; the sort is stable.
    given = sorted(given, key=lambda argument: argument != "--debug")
    forget()
    return _guarded(lambda: app(args=given, prog_name="windowmill", standalone_mode=False))


def _guarded(action: Callable[[], Any]) -> int:
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
        if _State.debug:
            raise
        errors.print(f"windowmill: {as_written(str(err))}", markup=False)
        return err.exit_code
    except Exception as err:
        if _State.debug:
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
