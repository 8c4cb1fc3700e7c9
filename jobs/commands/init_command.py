"""``windowmill init``: examines a source, asks at most three questions, and writes a spec that runs as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from windowmill.checkpoints.places import absolute, local_path
from windowmill.jobs.commands.first_spec import Chosen, as_yaml, name_of, proposed
from windowmill.jobs.commands.source_look import Look, check_column, look_at
from windowmill.jobs.commands.source_measure import measured
from windowmill.jobs.commands.terminal import Answer
from windowmill.jobs.sources.kinds import open_source
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
    table: str | None
    format: str | None
    options: Sequence[str]
    keys: str | None
    time: str | None
    out: Path | None
    sink: str | None
    pipeline: str | None
    force: bool


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A Delta table by its name, with its location and the folder of its database."""

    name: str
    location: str
    folder: str

    @classmethod
    def find(cls, name: str) -> NamedTable:
        """Ask the catalog, which starts Spark.

        Raises
        ------
        SourceError
            If the catalog has no such table, or it is no Delta table.
        """
        from windowmill.jobs.spark import spark_catalog
        from windowmill.jobs.spark.session import spark_session

        spark = spark_session("windowmill init", brief=True)
        location = spark_catalog.location_of(spark, name)
        if location is None:
            raise spark_catalog.not_found(spark, "--table", name)
        return cls(name, location, spark_catalog.folder_of(spark, name))

    def in_place_of_paths(self, spec: Mapping[str, Any], *, is_sink_given: bool) -> dict[str, Any]:
        """``spec``, which has paths, with the table's name, and with that of a sink in its database unless the sink's path is given."""
        named = dict(spec) | {"source": {"table": self.name}}
        if is_sink_given:
            return named
        database, _, _ = self.name.rpartition(".")
        pipeline = str(spec["pipeline"])
        named["sink"] = {"table": f"{database}.{pipeline}" if database else pipeline}
        # Ledger and state need a place of their own, which no catalog lists.
        place = {"checkpoints": {"path": f"{self.folder}/{pipeline}.windowmill"}}
        last = {"compute": named.pop("compute")}
        return named | place | last


def init(asked: Asked, *, ask: bool) -> Answer:
    """Write the spec; ``ask`` says whether a person may be asked.

    Raises
    ------
    SpecError
        If the file exists, the source is missing, or it has no column of the wanted kind.
    """
    question = _question if ask and sys.stdin.isatty() else lambda _, default: default
    look, named = _look(asked, question)
    chosen = _chosen(look, asked, question)
    spec, comments = proposed(look, chosen)
    read = parse_pipeline(spec)
    problems = problems_of(read) or list(source_problems(read))
    seen = None if problems else measured(read, open_source(read))
    wrong = None if seen is None else seen.problem(read)
    problems += [] if wrong is None else [wrong]
    spec = spec if named is None else named.in_place_of_paths(spec, is_sink_given=asked.sink is not None)
    path = asked.out or Path(f"{spec['pipeline']}.yaml")
    if path.exists() and not asked.force:
        raise SpecError(f"{path}: exists already; name another file with --out, or overwrite it with --force")
    text = as_yaml(spec, comments)
    if problems:
        raise SpecError("\n".join(f"{path}: {field}: {what}" for field, what in problems))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as err:
        raise SpecError(f"{path}: cannot be written ({err.strerror}); name a file in a folder that exists and may be written") from err
    steps = [f"windowmill explain {path}", f"windowmill run {path}", f"windowmill status {path}"]
    rows = None if look.sample is None else look.sample.num_rows
    data = {"spec": str(path), "rows_examined": rows, "commits_examined": len(look.commits), **spec, "next": steps}
    data["rows"] = None if seen is None else seen.as_json()
    examined = "only its columns could be read here" if rows is None else f"{rows:,} rows of {len(look.commits)} {look.commit} examined"
    found = "" if seen is None else f"\n  {seen.describe()}"
    shown = f"{path}: written and valid; {examined}{found}\n\n{text}\nNext:\n" + "\n".join(f"  {step}" for step in steps)
    return Answer(data, Text(shown))


def _look(asked: Asked, question: Ask) -> tuple[Look, NamedTable | None]:
    """What is found in the source; and its name, if it is a table of Spark's catalog."""
    given = _options(asked.options)
    if asked.table is not None:
        if asked.source is not None or asked.format is not None:
            raise SpecError("--table: a table of the catalog is given together with --source or --format; leave one of them out")
        named = NamedTable.find(asked.table)
        return look_at(named.location, "delta", given), named
    source = asked.source or question(
        "Where are the rows? (a Delta table, a folder of Parquet, CSV or JSON files, or kafka://broker:9092/topic)", ""
    )
    if not source:
        raise SpecError(
            "--source: missing; give the path of a Delta table, or of a folder of Parquet, CSV or JSON files, or kafka://broker:9092/topic"
        )
    if source.startswith("kafka:") or asked.format == "kafka":
        from windowmill.jobs.commands.topic_look import look_at_messages  # other sources do without Kafka's client

        return look_at_messages(source, given), None
    return look_at(_typed(source), asked.format, given), None


def _typed(place: str) -> str:
    """A place as a spec writes it, which may be typed in a shell with ``..``."""
    local = local_path(place)
    return str(local.resolve()) if local is not None and ".." in local.parts else absolute(place)


def _options(given: Sequence[str]) -> dict[str, str]:
    """Options of the source, as ``--option`` gives them."""
    pairs = [text.partition("=") for text in given]
    wrong = next((name for name, mark, _ in pairs if not name or not mark), None)
    if wrong is not None:
        raise SpecError(f"--option: got {wrong!r}; expected name=value, as in kafka.security.protocol=SASL_SSL")
    return {name: value for name, _, value in pairs}


def _chosen(look: Look, asked: Asked, question: Ask) -> Chosen:
    times = look.times()
    time = asked.time or (times[0] if times else None)
    if asked.time is None:
        time = question(f"Which column says when an event happened? ({_some(times)})", time or "") or None
    if time is None:
        names = ", ".join(look.columns.struct.names)
        raise SpecError(
            f"--time: no column of {look.settings.place} looks like a time; name one of {names}, or say how its texts are "
            "written: --option timestampFormat=…"
        )
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
    sink = None if asked.sink is None else _typed(asked.sink)
    return Chosen(time, named, sink, asked.pipeline or (name_of(asked.table.rpartition(".")[2]) if asked.table else None))


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) or "none seen"


def _question(text: str, default: str) -> str:
    return str(typer.prompt(text, default=default, err=True))
