"""``windowmill validate`` and ``schema``: a spec alone, or against its source; and the JSON schema of specs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from windowmill.jobs.commands.terminal import Answer, AsJson, counted, show, write_file
from windowmill.jobs.conditions.truths import outside_by_field
from windowmill.jobs.spec_checks import alert_problems, problems_of
from windowmill.windowing.errors import SourceError, SpecError, WindowmillError
from windowmill.windowing.paths import specs_in
from windowmill.windowing.redaction import as_written
from windowmill.windowing.spec_guide import described_schema
from windowmill.windowing.specfile import ReadSpec, read_spec


@dataclass(frozen=True)
class Checked:
    """What was found of one spec: ``data`` in the form of the answer, and the error of one that is not valid."""

    data: dict[str, Any]
    lines: Sequence[str] = ()
    error: WindowmillError | None = None


def specs_of(paths: Sequence[Path]) -> list[Path]:
    """The files of ``paths``: of a folder those that DAGs are made of, ``*.yaml`` and ``*.yml``, by name."""
    found: list[Path] = []
    for path in paths:
        own = specs_in(path) if path.is_dir() else [path]
        if not own:
            raise SpecError(f"{path}: the folder holds no *.yaml or *.yml file; name one that holds specs")
        found += own
    return list(dict.fromkeys(found))


def checked(spec: Path, *, source: bool) -> Checked:
    """The spec at ``spec``; with ``source`` also compared with its source, of which some rows are read."""
    try:
        read = read_spec(spec)
        return _checked(read, spec, source=source)
    except WindowmillError as err:
        return Checked({"spec": str(spec), "status": "invalid", "problems": str(err).splitlines()}, error=err)


def _checked(read: ReadSpec, spec: Path, *, source: bool) -> Checked:
    pipeline = read.pipeline
    problems = [*problems_of(pipeline), *alert_problems(pipeline)]
    looked: dict[str, Any] = {}
    lines: list[str] = []
    if source and not problems:
        from windowmill.jobs.commands import source_look  # loads what reads sources

        problems = list(source_look.source_problems(pipeline))
        if not problems:
            looked, lines, problems = source_look.looked_at(pipeline)
    if problems:
        raise SpecError("\n".join(read.problem(where, text) for where, text in problems))
    missing = [name for name in ("source", "sink") if getattr(pipeline, name) is None]
    note = f"; without {' and '.join(missing)} it serves `windowmill try` only" if missing else ""
    counts = f"{counted(len(pipeline.windows), 'window')}, {counted(len(pipeline.aggregates), 'aggregate')}"
    shown = partial(as_written, filled=read.hidden)
    name = shown(pipeline.pipeline)
    names = {"windows": [shown(window.name) for window in pipeline.windows], "aggregates": [shown(each) for each in pipeline.aggregates]}
    data: dict[str, Any] = {"pipeline": name, "status": "valid", **names, "missing": missing}
    outside = looked.pop("outside") if "outside" in looked else outside_by_field(pipeline)
    outside = {where: shown(why) for where, why in outside.items()}
    data |= looked | ({"only_by_spark": outside} if outside else {})
    lines += [f"{where}: {why}" for where, why in outside.items()]
    return Checked(data, [f"{spec}: pipeline {name} is valid: {counts}{note}", *(f"  {line}" for line in lines)])


def validate(
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="YAML files of pipelines, or folders of *.yaml files.")],
    source: Annotated[
        bool, typer.Option("--source", help="Also compare each spec with its source, and read some of its rows; no JVM.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check specs, with their conditions, functions and expectations; starts nothing."""
    files = specs_of(specs)
    found = [checked(spec, source=source) for spec in files]
    wrong = [each.error for each in found if each.error is not None]
    if len(files) > 1 or specs[0].is_dir():
        every = [{"spec": str(spec), **each.data} for spec, each in zip(files, found, strict=True)]
        result = f"{counted(len(files), 'spec')}: {f'{len(wrong)} not valid' if wrong else 'all valid'}"
        show(Answer({"specs": every}, Text("\n".join([*(line for each in found for line in each.lines), result]))), as_json)
    elif not wrong:
        show(Answer(found[0].data, Text("\n".join(found[0].lines))), as_json)
    if wrong:
        # One that no retry can mend decides how the command ends.
        ends = SpecError if any(error.exit_code == SpecError.exit_code for error in wrong) else SourceError
        raise wrong[0] if len(wrong) == 1 else ends("\n".join(map(str, wrong)))


def schema(
    out: Annotated[Path | None, typer.Option("--out", help="Write it to this file instead; an editor finds it there.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the JSON schema of a spec, by which editors complete fields and mark mistakes."""
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | described_schema()
    if out is None:
        print(json.dumps(described, indent=None if as_json else 2))
        return
    write_file(out, json.dumps(described, indent=2) + "\n")
    text = f"{out}: the JSON schema of a spec; begin a spec with the line\n# yaml-language-server: $schema={out}"
    show(Answer({"schema": str(out)}, Text(text)), as_json)
