"""``windowmill init``: looks at a source, asks at most three questions, and writes a spec that runs as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.text import Text

from windowmill.checkpoints.places import absolute
from windowmill.jobs.commands.first_spec import Chosen, as_yaml, proposed
from windowmill.jobs.commands.source_look import Look, check_column, look_at
from windowmill.jobs.commands.terminal import Answer
from windowmill.jobs.spec_checks import problems_of, source_problems
from windowmill.windowing.errors import SpecError
from windowmill.windowing.specfile import parse_pipeline

#: Spark's names of the types that an event time may have.
_TIMES = ("timestamp", "timestamp_ntz", "date", "string", "byte", "short", "integer", "long")
#: Asked a question with its default, gives the answer.
Ask = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What flags say; null for what they leave to a question, or to what the source shows."""

    source: str | None
    format: str | None
    keys: str | None
    time: str | None
    out: Path | None
    sink: str | None
    pipeline: str | None
    force: bool


def init(asked: Asked, *, ask: bool) -> Answer:
    """Write the spec; ``ask`` says whether a person may be asked.

    Raises
    ------
    SpecError
        If the file exists, the source is missing, or it has no column of the wanted kind.
    """
    question = _question if ask and sys.stdin.isatty() else lambda _, default: default
    source = asked.source or question("Where are the rows? (a Delta table, or a folder of Parquet, CSV or JSON files)", "")
    if not source:
        raise SpecError("--source: missing; give the path of a Delta table, or of a folder of Parquet, CSV or JSON files")
    look = look_at(absolute(source), asked.format)
    chosen = _chosen(look, asked, question)
    spec, comments = proposed(look, chosen)
    path = asked.out or Path(f"{spec['pipeline']}.yaml")
    if path.exists() and not asked.force:
        raise SpecError(f"{path}: exists already; name another file with --out, or overwrite it with --force")
    text = as_yaml(spec, comments)
    read = parse_pipeline(spec, name=str(path))
    problems = problems_of(read) or list(source_problems(read))
    if problems:
        raise SpecError("\n".join(f"{path}: {field}: {what}" for field, what in problems))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{path}: cannot be written ({err.strerror}); name a file in a folder that exists and may be written") from err
    steps = [f"windowmill explain {path}", f"windowmill run {path}", f"windowmill status {path}"]
    rows = None if look.sample is None else look.sample.num_rows
    data = {"spec": str(path), "rows_examined": rows, "commits_examined": len(look.commits), **spec, "next": steps}
    seen = "only its columns could be read here" if rows is None else f"{rows:,} rows of {len(look.commits)} commits examined"
    shown = f"{path}: written and valid; {seen}\n\n{text}\nNext:\n" + "\n".join(f"  {step}" for step in steps)
    return Answer(data, Text(shown))


def _chosen(look: Look, asked: Asked, question: Ask) -> Chosen:
    times = look.times()
    time = asked.time or (times[0] if times else None)
    if asked.time is None:
        time = question(f"Which column says when an event happened? ({_some(times)})", time or "") or None
    if time is None:
        names = ", ".join(look.columns.struct.names)
        raise SpecError(f"--time: no column of {look.settings.path} looks like a time; name one of {names}")
    check_column(look, "--time", time)
    if look.columns.type_of(time).typeName() not in _TIMES:
        kind = look.columns.type_of(time).simpleString()
        raise SpecError(f"--time: {time!r} is {kind}; expected a timestamp, a date, a text that is one, or an integer")
    likely = look.keys(time)
    keys = asked.keys
    if keys is None:
        keys = question(f"By which columns are events grouped? (of {_some(likely)}; with commas between, - for none)", ",".join(likely[:1]))
    named = tuple(name.strip() for name in keys.split(",") if name.strip() not in ("", "-"))
    for name in named:
        check_column(look, "--keys", name)
    return Chosen(time, named, asked.sink, asked.pipeline)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) or "none seen"


def _question(text: str, default: str) -> str:
    return str(typer.prompt(text, default=default, err=True))
