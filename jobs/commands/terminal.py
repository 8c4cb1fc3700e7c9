"""The command line by typer, and what all commands share: arguments and options, specs, answers as text or JSON, how an action ends.

The module of a command is imported when it is run or its help is asked for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import Group
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from windowmill.jobs.commands import COMMANDS, command_of, summary_of
from windowmill.jobs.short_texts import PlainConsole, in_lines
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import SpecError, WindowmillError
from windowmill.windowing.fields import fixed_duration
from windowmill.windowing.redaction import as_written as text_as_written
from windowmill.windowing.redaction import redacted
from windowmill.windowing.specfile import read_spec

if TYPE_CHECKING:
    from windowmill.windowing.axis import Duration
    from windowmill.windowing.spec import Pipeline

Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="The pipeline's YAML file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
By = Annotated[str | None, typer.Option("--by", help="Who decided; the ledger records it.")]
AcceptChanges = Annotated[
    bool, typer.Option("--accept-changes", help="Continue although others have changed rows of the sink, quarantine or quality table.")
]
AcceptCode = Annotated[
    bool,
    typer.Option(
        "--accept-code", help="Continue although a module that the spec names was edited; you are sure that it computes the same."
    ),
]
Arrival = Annotated[
    Literal["log", "event_time"],
    typer.Option(
        "--arrival",
        help="Order in which historical rows count as arrived: log order, in which rows can be late, or event-time order.",
    ),
]
Last = Annotated[int, typer.Option("--last", min=1, help="How many to show, newest last.")]

console = PlainConsole()
errors = PlainConsole(stderr=True)
#: Exit code of a command that was interrupted from the keyboard: 128 plus the number of SIGINT, as in shells.
INTERRUPTED = 130
#: Texts with secret variables in the specs that this command has read, so that messages show ``${NAME}`` and not its value:
#: text as written -> the text with the values of variables.
_hidden: dict[str, str] = {}


@dataclass(frozen=True)
class Answer:
    """One answer in two forms: JSON values in ``data``, and in ``text`` what a terminal shows.

    A string in ``text``, also within a rich group, is wrapped; other renderables lay themselves out.
    """

    data: Any
    text: Any


def show(answer: Answer, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer.data))
        return
    for part in answer.text.renderables if isinstance(answer.text, Group) else (answer.text,):
        # A pipe, as to `grep`, gets whole lines unless COLUMNS says how many characters fit.
        if isinstance(part, str) and (console.is_terminal or "COLUMNS" in os.environ):
            console.print(Text("\n".join(in_lines(line, console.width) for line in part.splitlines())))
        else:
            console.print(Text(part) if isinstance(part, str) else part)


def report(text: str) -> None:
    """Print ``text`` on standard error: as one line, which a terminal shows in several that end between words."""
    errors.print(in_lines(text, errors.width, then="  ") if errors.is_terminal else text)


def wrapped(text: str, indent: str = "", then: str = "", *, width: int | None = None) -> str:
    """``text`` in lines that fit the terminal, or ``width`` if that is less; long words such as paths stay whole.

    The first line begins with ``indent``, the others with ``then``.
    """
    return in_lines(text, console.width if width is None else min(width, console.width), indent, then)


def load_pipeline(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None, *, opens_tables: bool = True) -> Pipeline:
    """As :func:`windowmill.windowing.specfile.load_pipeline`; :func:`as_written` then knows the spec's variables."""
    read = read_spec(path, environment, opens_tables=opens_tables)
    _hidden.update(read.hidden)
    return read.pipeline


def instant_of(option: str, text: str, pipeline: Pipeline) -> int:
    """The instant on the axis that ``option`` gives as ``text``; raises ``SpecError`` for another text."""
    try:
        return int(text) if pipeline.time.integer_axis else to_us(datetime.fromisoformat(text))
    except ValueError as err:
        instant = "an instant such as 2013-01-01 or 2013-01-01T06:00:00Z"
        raise SpecError(
            f"{option}: got {text!r}; expected {'an integer (time.unit is given)' if pipeline.time.integer_axis else instant}"
        ) from err


def range_of(begin: str | None, end: str | None, pipeline: Pipeline, what: str) -> tuple[int | None, int | None]:
    """The instants that ``--from`` and ``--to`` give, null for none; ``what`` happens to the windows that end in this range."""
    first, last = (None if text is None else instant_of(option, text, pipeline) for option, text in (("--from", begin), ("--to", end)))
    if first is not None and last is not None and first >= last:
        raise SpecError(f"--from {begin} is not before --to {end}; windows that end in (from, to] are {what}")
    return first, last


def in_bytes(size: float) -> str:
    """A number of bytes in three digits: ``2.35 MB``."""
    unit, factor = next(((unit, factor) for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)) if size >= factor), ("bytes", 1))
    return f"{size / factor:.3g} {unit}"


def counted(n: int, noun: str) -> str:
    """A number of things: ``1 key``, ``2,000 keys``."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def total(numbers: Sequence[int | None]) -> int | None:
    """The sum of ``numbers``; null if one of them is not known."""
    return None if None in numbers else sum(number or 0 for number in numbers)


def named_values(given: Sequence[str]) -> list[tuple[str, str | None]]:
    """The name and the value of each ``NAME=VALUE``; ``NAME`` alone means null."""
    return [(name, value if equals else None) for name, equals, value in (text.partition("=") for text in given)]


def write_file(path: Path, text: str, option: str = "") -> None:
    """Write the file that a user has named, by ``option``; raises ``SpecError`` if that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        what = f"{option} {path}".strip() + f": cannot be written ({err.strerror}); name a file in a folder that exists and may be written"
        raise SpecError(what) from err


def duration_of(option: str, text: str) -> Duration:
    """The duration of fixed length that ``option`` gives as ``text``; raises ``SpecError`` for another text."""
    try:
        return fixed_duration(text)
    except ValueError as err:
        raise SpecError(f"{option}: {err}") from err


def as_written(text: str) -> str:
    """``text`` with values of secret variables as their specs write them. Paths of tables keep the values."""
    return text_as_written(text, _hidden) if _hidden else text


class Debugging:
    """Whether errors are raised with their traceback, and not printed in one line."""

    on = False


def exit_code_of(action: Callable[[], Any]) -> int:
    """Run ``action``, and print the error that ends it; returns the exit code, 0 if nothing goes wrong."""
    try:
        result = action()
    except TyperException as err:
        # Without any argument the help has been printed, and there is no message.
        if message := err.format_message().replace("Value error, ", "", 1).rstrip("."):
            report(f"windowmill: {message}; see `windowmill --help`")
        return 2
    except typer.Abort:
        return _stopped()
    except WindowmillError as err:
        if Debugging.on:
            raise
        report(f"windowmill: {as_written(str(err))}")
        return err.exit_code
    except Exception as err:
        if Debugging.on:
            raise
        from windowmill.jobs.spark.failures import explain, raised_in_worker

        ours = raised_in_worker(err)
        report(f"windowmill: {as_written(redacted(explain(err)) if ours is None else str(ours))}")
        return 1 if ours is None else ours.exit_code
    if result == INTERRUPTED:  # typer has caught the KeyboardInterrupt
        return _stopped()
    # A bool is no exit code: True would be 1, a failure.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _stopped() -> int:
    report("windowmill: stopped; run again to continue")
    return INTERRUPTED


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
    _hidden.clear()
