"""``windowmill validate`` and ``schema``: a spec alone, or against its source; and the JSON schema of specs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from rich.text import Text

from windowmill.jobs.commands.terminal import Answer, AsJson, show
from windowmill.jobs.conditions.truths import conditions_by_field, outside_by_field
from windowmill.jobs.sources.kinds import open_source
from windowmill.jobs.spec_checks import Problem, alert_problems, problems_of, source_problems
from windowmill.windowing.errors import SourceError, SpecError, WindowmillError
from windowmill.windowing.redaction import as_written
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.spec_guide import described_schema
from windowmill.windowing.specfile import ReadSpec, read_spec

#: Midnights of a winter and of a summer day.
_MIDNIGHTS = (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 7, 1, tzinfo=UTC))


def west_of_utc(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """The fields of time zones whose clocks are behind UTC at least a part of the year, and the zones."""
    for index, window in enumerate(pipeline.windows):
        zone = window.zone
        if zone is not None and any(at.astimezone(ZoneInfo(zone)).utcoffset() < timedelta(0) for at in _MIDNIGHTS):  # type: ignore[operator]
            yield f"windows.{index}.timezone", zone


def shifted_dates(pipeline: Pipeline, *, is_date: bool) -> str | None:
    """What happens to dates in windows of such zones; null for nothing. Without ``is_date`` the type of the time column is not known."""
    found = next(west_of_utc(pipeline), None)
    if found is None or (not is_date and pipeline.time.unit is not None):
        return None
    column, (where, zone) = pipeline.time.column, found
    dates = f"{column} is a DATE, which counts" if is_date else f"if {column} is a DATE, it counts"
    return f"{dates} at 00:00 UTC: in {zone} ({where}) that is the day before; leave timezone out, or give the source timestamps"


@dataclass(frozen=True)
class Checked:
    """What was found of one spec: ``data`` in the form of the answer, and the error of one that is not valid."""

    data: dict[str, Any]
    lines: Sequence[str] = ()
    error: WindowmillError | None = None


def specs_of(paths: Sequence[Path]) -> list[Path]:
    """The files of ``paths``: of a folder those that DAGs are made of, ``*.yaml``, by name."""
    found: list[Path] = []
    for path in paths:
        own = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
        if not own:
            raise SpecError(f"{path}: the folder holds no *.yaml file; name one that holds specs")
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
    problems = [*problems_of(pipeline), *alert_problems(pipeline)] or (list(source_problems(pipeline)) if source else [])
    looked: dict[str, Any] = {}
    lines: list[str] = []
    if source and not problems:
        looked, lines, wrong = _look(pipeline)
        problems += wrong
    if problems:
        raise SpecError("\n".join(read.problem(where, text) for where, text in problems))
    missing = [name for name in ("source", "sink") if getattr(pipeline, name) is None]
    note = f"; without {' and '.join(missing)} it serves `windowmill try` only" if missing else ""
    counts = ", ".join(
        f"{len(found)} {what}{'s' * (len(found) != 1)}"
        for found, what in ((pipeline.windows, "window"), (pipeline.aggregates, "aggregate"))
    )
    shown = partial(as_written, filled=read.hidden)
    name = shown(pipeline.pipeline)
    names = {"windows": [shown(window.name) for window in pipeline.windows], "aggregates": [shown(each) for each in pipeline.aggregates]}
    data: dict[str, Any] = {"pipeline": name, "status": "valid", **names, "missing": missing}
    outside = looked.pop("outside") if "outside" in looked else _outside(pipeline)
    outside = {where: shown(why) for where, why in outside.items()}
    data |= looked | ({"only_by_spark": outside} if outside else {})
    lines += [f"{where}: {why}" for where, why in outside.items()]
    return Checked(data, [f"{spec}: pipeline {name} is valid: {counts}{note}", *(f"  {line}" for line in lines)])


def _outside(pipeline: Pipeline, types: Mapping[str, Any] | None = None) -> dict[str, str]:
    """As :func:`.outside_by_field`, whose modules a spec without conditions does not need."""
    if not any(conditions_by_field(pipeline)):
        return {}

    return outside_by_field(pipeline, types)


def _look(pipeline: Pipeline) -> tuple[dict[str, Any], list[str], list[Problem]]:
    """What is found in rows of the source: its values by name, in lines, and problems."""
    from windowmill.checkpoints.catalog_tables import located
    from windowmill.jobs.commands.source_look import measured
    from windowmill.jobs.sources.columns import Columns

    pipeline = located(pipeline)
    opened = open_source(pipeline)
    seen = measured(pipeline, opened)
    wrong = None if seen is None else seen.problem(pipeline)
    columns = Columns.of(opened.schema_json)
    is_date = columns.type_of(pipeline.time.column).typeName() == "date" or pipeline.time.column in opened.days
    note = shifted_dates(pipeline, is_date=True) if is_date else None
    lines = ["its rows can be read by Spark only; none was read" if seen is None else seen.describe(), *([] if note is None else [note])]
    outside = _outside(pipeline, columns.in_conditions)
    found = {"rows": None if seen is None else seen.as_json(), "dates": note, "outside": outside}
    return found, lines, [] if wrong is None else [wrong]


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
        counted = f"{len(files)} spec{'s' if len(files) != 1 else ''}: {f'{len(wrong)} not valid' if wrong else 'all valid'}"
        show(Answer({"specs": every}, Text("\n".join([*(line for each in found for line in each.lines), counted]))), as_json)
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
    try:
        out.write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{out}: cannot be written ({err.strerror}); name a file in a folder that exists and may be written") from err
    text = f"{out}: the JSON schema of a spec; begin a spec with the line\n# yaml-language-server: $schema={out}"
    show(Answer({"schema": str(out)}, Text(text)), as_json)
