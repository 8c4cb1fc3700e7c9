"""The command line by typer, which imports the module of a command when it is run or its help is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from importlib.metadata import version as distribution_version
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from windowmill.jobs.commands import COMMANDS, command_of, summary_of
from windowmill.jobs.commands.terminal import Debugging, exit_code_of, forget


class _Parsers(Mapping[str, Any]):
    """The registry's commands as typer's parsers, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        alone = typer.Typer(add_completion=False)
        alone.command(name=name)(command_of(name))
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

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.commands = {name: TyperCommand(name, help=summary_of(name)) for name in COMMANDS}
        super().format_help(ctx, formatter)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Sliding-window aggregates on Spark and Delta, batch by batch.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"windowmill {distribution_version('windowmill')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    _version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)] = False,
) -> None:
    Debugging.on = debug


def run(arguments: list[str] | None = None) -> int:
    """Run the command of ``arguments``, by default those of the process; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    # An option of all commands, so it may stand behind any of them; the sort is stable.
    given = sorted(given, key=lambda argument: argument != "--debug")
    forget()
    return exit_code_of(lambda: app(args=given, prog_name="windowmill", standalone_mode=False))
