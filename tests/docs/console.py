"""Plays the console blocks of a page: commands behind ``$``, each with its real output.

Commands run in a folder of their own with ``compute: local`` and the rows that comments of the page ask for (``<!-- lands: name -->``). The
command of ``<!-- runs: command -->`` is not shown, nor is the statement of ``<!-- sql: statement -->``, for pages that Spark plays.
``windowmill`` runs in this process, everything else in a shell. ``python -m tests.docs.console`` writes the outputs into the pages.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from windowmill.jobs.cli import main
from windowmill.jobs.commands import terminal

ROOT = Path(__file__).parents[2]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
#: Pages that tests beside the server that they need play; the others are played in this process alone.
WITH_A_SERVER = {"catalog", "kafka"}
LOCAL = [page for page in HOW_TO if page.stem not in WITH_A_SERVER]
#: Columns of the terminal that pages show.
WIDTH = 120
#: How pages write the folder that commands run in.
_FOLDER = "/data"
_LANDS, _RUNS = re.compile(r"^<!-- lands: (?P<name>.+) -->$"), re.compile(r"^<!-- runs: (?P<command>.+) -->$")
_SQL = re.compile(r"^<!-- sql: (?P<statement>.+) -->$")
_VARYING = (
    (re.compile(r"\d+\.\d+ s\b"), "0.0 s"),
    (re.compile(r"\b(?:202[5-9]|20[3-9]\d)-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?"), "<instant>"),
    (re.compile(r"\b\d+(?:\.\d+)? (?:bytes|KB|MB)"), "<size>"),
    (re.compile(r"(\d+\.\d +){3,}\d+\.\d"), "<seconds>"),
    (re.compile(r"for example: \{.*\}"), "for example: <row>"),  # files of a source have random names, which order their rows
    (re.compile(r" +$", re.MULTILINE), ""),
)


def _orders(*rows: tuple[str, str, str, float]) -> pa.Table:
    shops, ids, times, amounts = zip(*rows, strict=True)
    at = [datetime.fromisoformat(f"2024-05-06T{time}+00:00") for time in times]
    return pa.table({"shop": list(shops), "order_id": list(ids), "ordered_at": at, "amount": list(amounts)})


def _history() -> Iterator[pa.Table]:
    """Orders of ten days, a day a commit, the days in no order."""
    for day in (3, 0, 7, 1, 9, 4, 2, 8, 6, 5):
        at = [datetime(2024, 4, 1, 9, tzinfo=UTC) + timedelta(days=day, hours=hour) for hour in range(8)]
        ids, amounts = [f"{day}-{hour}" for hour in range(8)], [4.0 + hour for hour in range(8)]
        yield pa.table({"shop": ["north", "south"] * 4, "order_id": ids, "ordered_at": at, "amount": amounts})


#: What lands in ``orders``, by name: a commit each.
LANDINGS: Mapping[str, Callable[[], Iterator[pa.Table]]] = {
    "a morning": lambda: iter([_orders(("north", "n1", "09:05", 4.5), ("south", "s1", "09:20", 7.0), ("north", "n2", "10:45", 9.0))]),
    "a large order": lambda: iter([_orders(("north", "n3", "11:10", 480.0), ("south", "s2", "12:45", 5.5))]),
    "an afternoon": lambda: iter([_orders(("north", "n4", "13:10", 6.0), ("south", "s3", "14:50", 5.0))]),
    "ten days in no order": _history,
}


def _land(rows: pa.Table) -> None:
    write_deltalake(str(Path.cwd() / "orders"), rows, mode="append")


def _no_sql(statement: str) -> None:
    raise AssertionError(f"{statement}: only pages that are played with Spark have statements")


@dataclass(frozen=True)
class Stage:
    """Where a page is played: who computes batches, and what takes the rows and the statements that comments ask for."""

    compute: str = "local"
    land: Callable[[pa.Table], None] = _land
    sql: Callable[[str], object] = _no_sql
    #: Variables of the environment; pages show their names' values as the second of each pair.
    variables: Mapping[str, tuple[str, str]] = field(default_factory=dict)


LOCALLY = Stage()


def play(text: str, folder: Path, stage: Stage = LOCALLY) -> str:
    """The page ``text`` with the real output of each command, played in ``folder``."""
    lines: list[str] = []
    waiting: list[str] | None = None
    for name, content in files_of(text).items():
        (folder / name).write_text(content)
    shown = {str(folder): _FOLDER, **dict(stage.variables.values())}
    own = {name: value for name, (value, _) in stage.variables.items()}
    with _in({"WAREHOUSE": str(folder), "WINDOWMILL_COMPUTE": stage.compute, **own}, folder):
        for line in text.splitlines():
            if waiting is None:
                if landing := _LANDS.match(line):
                    for rows in LANDINGS[landing["name"]]():
                        stage.land(rows)
                elif running := _RUNS.match(line):
                    _output(running["command"], shown)
                elif asking := _SQL.match(line):
                    stage.sql(asking["statement"].replace(_FOLDER, str(folder)))
                lines.append(line)
                waiting = [] if line == "```console" else None
            elif line == "```":
                for command in waiting:
                    lines += [f"$ {command}", *_output(command, shown)]
                lines.append(line)
                waiting = None
            elif line.startswith("$ "):
                waiting.append(line.removeprefix("$ "))
    return "\n".join(lines) + "\n"


def settled(text: str) -> str:
    """``text`` without what differs from one run to the next."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def _output(command: str, shown: Mapping[str, str]) -> list[str]:
    """Lines that a command prints, with what pages show in the place of folders and addresses."""
    words = shlex.split(command)
    if words[0] == "windowmill":
        written = io.StringIO()
        with redirect_stdout(written), redirect_stderr(written):
            code = main([os.path.expandvars(word) for word in words[1:]])
        out = written.getvalue()
    else:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        code, out = done.returncode, done.stdout + done.stderr
    for own, instead in shown.items():
        out = out.replace(own, instead)
    return [line.rstrip() for line in out.splitlines()] + ([f"(exit code {code})"] if code else [])


@contextmanager
def _in(own: Mapping[str, str], folder: Path) -> Iterator[None]:
    """Run in ``folder``, as a deployment with the variables ``own``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in own.items():
            patch.setenv(name, value)
        for console in (terminal.console, terminal.errors):
            patch.setattr(console, "width", WIDTH)  # rich takes COLUMNS once, when a console is made
        yield


def files_of(text: str) -> dict[str, str]:
    """The files that a page asks for: of each block ``yaml`` behind a line ```file.yaml``: its text."""
    return dict(re.findall(r"^`([\w-]+\.yaml)`:\n```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


if __name__ == "__main__":
    for page in LOCAL:
        with tempfile.TemporaryDirectory() as temporary:
            page.write_text(play(page.read_text(), Path(temporary)))
    sys.exit(0)
