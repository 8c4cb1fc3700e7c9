"""``windowmill init``: reads a source and proposes a spec for it, as YAML that runs as it is."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer
import yaml
from rich.text import Text

from windowmill.checkpoints.places import absolute, local_path
from windowmill.jobs.commands import source_look
from windowmill.jobs.commands.source_look import Look, MeasuredArrivals, Unit
from windowmill.jobs.commands.terminal import Answer, AsJson, show, write_file
from windowmill.jobs.layouts.limits import MAX_BYTES
from windowmill.jobs.sources.base import KINDS, formats, open_source
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.folder_columns import schema_of_objects
from windowmill.jobs.sources.kafka import MessageForm, batches_of_messages, messages_in, newest_messages
from windowmill.jobs.sources.options import OWN_COLUMNS, as_ddl, columns_of
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_files import json_object
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.jobs.spark.session import folder_of, location_of, not_found, spark_session
from windowmill.jobs.spec_checks import problems_of
from windowmill.windowing.errors import SourceMissingError, SpecError
from windowmill.windowing.paths import within
from windowmill.windowing.specfile import parse_pipeline

#: Formats of sources, as help names them.
_FORMATS = " or ".join(", ".join(formats(KINDS.built_in)).rsplit(", ", 1))
_SECOND, _MINUTE, _HOUR, _DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
#: Name and length of a window, and of a longer one that moves by it. The first pair with few windows in the sample is taken.
_SIZES = (
    ("by_second", _SECOND, "rolling_minute", _MINUTE),
    ("by_minute", _MINUTE, "rolling_hour", _HOUR),
    ("by_5_minutes", 5 * _MINUTE, "rolling_hour", _HOUR),
    ("hourly", _HOUR, "rolling_day", _DAY),
    ("daily", _DAY, "rolling_week", 7 * _DAY),
)
_WITHOUT_SAMPLE = _SIZES[3]
#: Windows of the shortest length that the sample holds, at most.
_MOST_WINDOWS = 400
#: Columns of numbers that get aggregates.
_MEASURES = 3
_UNITS = ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (_SECOND, "second"), (1_000, "millisecond"), (1, "microsecond"))
#: Roundings of a measured disorder, upwards.
_ROUND = tuple(n * _SECOND for n in (1, 5, 30, 60, 300, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400))


def proposed(look: Look, column: str, keys: Sequence[str], sink: str | None, pipeline: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    path, unit = look.settings.path, look.unit_of(column)
    name = pipeline or name_of(look.name)
    arrivals = look.arrivals(column)
    short, long = _windows(arrivals, unit)
    measures = look.measures([column, *keys])[:_MEASURES]
    tie_break = look.tie_break([column, *keys])
    time: dict[str, Any] = {"column": column} | ({} if unit is None else {"unit": unit})
    time |= {} if unit in (None, "none") else {"axis": "instants"}
    time |= {"tie_break": tie_break} if tie_break else {}
    disorder, why = _disorder(arrivals, unit)
    time |= {"disorder": disorder} if disorder else {}
    own = f"{path.rstrip('/').rpartition('/')[0] or '.'}/{name}" if path else absolute(name)
    own += "_results" if path and within(own, path) else ""
    options = dict(look.settings.options)
    source = {"format": look.settings.format} | ({"path": path} if path else {}) | ({"options": options} if options else {})
    steps = {name: text for name, text in look.fields.numbers.items() if name in (*measures, *keys)}
    copied = look.copied()
    spec = {
        "pipeline": name,
        "source": source,
        **({"steps": [{"columns": steps}]} if steps else {}),
        **({} if copied is None else {"dedup": {"by": [copied]}}),
        "keys": list(keys),
        "time": time,
        "windows": [short, long],
        "aggregates": _aggregates(measures, keys),
        "sink": {"path": sink or own},
        "schedule": _schedule(arrivals, unit),
        "compute": "auto",
    }
    few = look.size_bytes <= MAX_BYTES
    repeated = look.repeated()
    comments = {
        "time": why,
        "windows": "size and hop; docs/semantics.md has every type: sessions, counts, policies",
        "keys": "one result row for each of these and each window" if keys else "none: one group of all rows",
        "sink": "the result table, which the first run makes; with `current:` a second one has each key's newest window",
        "schedule": "when Airflow runs it; `windowmill run` runs it at once",
        "compute": "small batches without Spark" if few else "the first batch goes to Spark, later small ones do without it",
    }
    if copied is not None:
        comments["dedup"] = f"some rows come twice, with the same {copied}: of these only the first counts"
    elif repeated is not None:
        name, share = repeated
        comments["aggregates"] = f"{share:.1%} of the rows repeat a value of {name}: they count as often as they come (docs/semantics.md)"
    return spec, comments


def name_of(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "events"
    return (plain if plain[0].isalpha() else f"p_{plain}")[:40] + "_windows"


def _windows(arrivals: MeasuredArrivals | None, unit: Unit | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if unit == "none":
        span = 7 * _DAY if arrivals is None else max(1, arrivals.last - arrivals.first)
        size = max(1, 10 ** (len(str(span // 20)) - 1))
        lengths: tuple[Any, Any] = (size, 10 * size)
        names = ("steps", "rolling")
    else:
        short, size, long, length = _WITHOUT_SAMPLE if arrivals is None else _length(arrivals)
        lengths = shown(size), shown(length)
        names = (short, long)
    return (
        {"name": names[0], "type": "tumbling", "size": lengths[0]},
        {"name": names[1], "type": "hopping", "size": lengths[1], "hop": lengths[0]},
    )


def _schedule(arrivals: MeasuredArrivals | None, unit: Unit | None) -> str:
    """As often as windows of the shortest length end, at most every fifteen minutes."""
    if arrivals is None or unit == "none":
        return "@daily"
    length = _length(arrivals)[1]
    return "@daily" if length >= _DAY else "@hourly" if length >= _HOUR else "*/15 * * * *"


def _length(arrivals: MeasuredArrivals) -> tuple[str, int, str, int]:
    span_us = max(1, arrivals.last - arrivals.first) * arrivals.tick_us
    return next((each for each in _SIZES if span_us / each[1] <= _MOST_WINDOWS), _SIZES[-1])


def _disorder(arrivals: MeasuredArrivals | None, unit: Unit | None) -> tuple[Any, str]:
    if arrivals is None:
        return None, "disorder: how far behind the latest event rows may come; the rows could not be looked at"
    if arrivals.commits < 2:
        return None, "disorder: nothing to measure in one commit; say here how far behind the latest event later rows may come"
    if not arrivals.late:
        return None, f"disorder: none needed, over {arrivals.commits} {arrivals.commit} no row came behind the latest event before it"
    tick = 1 if unit == "none" else arrivals.tick_us
    rounded = arrivals.disorder if unit == "none" else _rounded(arrivals.disorder * tick)
    if not rounded:
        late = _told(arrivals.late, tick, unit)
        return None, f"disorder: 0, as fewer than one row in a thousand is late, by up to {late}; those miss windows that have ended"
    measured = f"measured over {arrivals.commits} {arrivals.commit}"
    measured += f": all but one row in a thousand come within {_told(arrivals.disorder, tick, unit)}"
    return (rounded if unit == "none" else shown(rounded)), f"{measured}, the latest within {_told(arrivals.late, tick, unit)}"


def _rounded(length: int) -> int:
    if not length:
        return 0
    return next((each for each in _ROUND if length <= each), -(-length // _DAY) * _DAY)


def _told(ticks: int, tick: int, unit: Unit | None) -> str:
    return str(ticks) if unit == "none" else shown(ticks * tick)


def shown(length: int) -> str:
    """A length of time in its two largest units: ``1 second 234 milliseconds``."""
    parts: list[str] = []
    left = length
    for size, name in _UNITS:
        if left >= size and len(parts) < 2:
            n, left = divmod(left, size)
            parts.append(f"{n} {name}{'' if n == 1 else 's'}")
    return " ".join(parts) or "0 seconds"


def _aggregates(measures: Sequence[str], taken: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"rows": {"count": "*"}}
    for column in measures:
        plain = re.sub(r"\W+", "_", column).strip("_") or "value"
        found |= {f"mean_{plain}": {"mean": column}, f"max_{plain}": {"max": column}}
    lower = {name.lower() for name in taken}
    return {f"{name}_of_window" if name.lower() in lower else name: aggregate for name, aggregate in found.items()}


def as_yaml(spec: dict[str, Any], comments: dict[str, str]) -> str:
    """``spec`` as YAML, a field or two a line, with its comments."""
    lines = []
    for name, value in spec.items():
        if name in comments:
            lines.append(f"# {comments[name]}")
        if name in ("windows", "steps"):
            lines += [f"{name}:", *(f"  - {_flow(item)}" for item in value)]
        elif name in ("aggregates", "source", "time"):
            lines += [f"{name}:", *(f"  {_flow({key: item})[1:-1]}" for key, item in value.items())]
        else:
            lines.append(_flow({name: value})[1:-1])
    return "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True).strip()


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
        """Ask the catalog, which starts Spark."""
        spark = spark_session("windowmill init", brief=True)
        location = location_of(spark, name)
        if location is None:
            raise not_found(spark, "--table", name)
        return cls(name, location, folder_of(spark, name))

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
    def question(text: str, default: str) -> str:
        return str(typer.prompt(text, default=default, err=True)) if ask and sys.stdin.isatty() else default

    look, named = _look(asked, question)
    column, keys = _chosen(look, asked, question)
    sink = None if asked.sink is None else _typed(asked.sink)
    name = asked.pipeline or (name_of(asked.table.rpartition(".")[2]) if asked.table else None)
    spec, comments = proposed(look, column, keys, sink, name)
    read = parse_pipeline(spec)
    problems = problems_of(read) or list(source_look.source_problems(read))
    seen = None if problems else source_look.measured(read, open_source(read))
    wrong = None if seen is None else seen.problem(read)
    problems += [] if wrong is None else [wrong]
    spec = spec if named is None else named.in_place_of_paths(spec, is_sink_given=asked.sink is not None)
    path = asked.out or Path(f"{spec['pipeline']}.yaml")
    if path.exists() and not asked.force:
        raise SpecError(f"{path}: exists already; name another file with --out, or overwrite it with --force")
    text = as_yaml(spec, comments)
    if problems:
        raise SpecError("\n".join(f"{path}: {field}: {what}" for field, what in problems))
    write_file(path, text)
    steps = [f"windowmill explain {path}", f"windowmill run {path}", f"windowmill status {path}"]
    rows = None if look.sample is None else look.sample.num_rows
    data = {"spec": str(path), "rows_examined": rows, "commits_examined": len(look.commits), **spec, "next": steps}
    data["rows"] = None if seen is None else seen.as_json()
    examined = "only its columns could be read here" if rows is None else f"{rows:,} rows of {len(look.commits)} {look.commit} examined"
    found = "" if seen is None else f"\n  {seen.describe()}"
    shown = f"{path}: written and valid; {examined}{found}\n\n{text}\nNext:\n" + "\n".join(f"  {step}" for step in steps)
    return Answer(data, Text(shown))


def _look(asked: Asked, question: Ask) -> tuple[Look, NamedTable | None]:
    given = _options(asked.options)
    if asked.table is not None:
        if asked.source is not None or asked.format is not None:
            raise SpecError("--table: a table of the catalog is given together with --source or --format; leave one of them out")
        named = NamedTable.find(asked.table)
        return source_look.look_at(named.location, "delta", given), named
    source = asked.source or question(
        "Where are the rows? (a Delta table, a folder of Parquet, CSV or JSON files, or kafka://broker:9092/topic)", ""
    )
    if not source:
        raise SpecError(
            "--source: missing; give the path of a Delta table, or of a folder of Parquet, CSV or JSON files, or kafka://broker:9092/topic"
        )
    if source.startswith("kafka:") or asked.format == "kafka":
        return look_at_messages(source, given), None
    return source_look.look_at(_typed(source), asked.format, given), None


def _typed(place: str) -> str:
    """A place as a spec writes it, which may be typed in a shell with ``..``."""
    local = local_path(place)
    return str(local.resolve()) if local is not None and ".." in local.parts else absolute(place)


def _options(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    wrong = next((name for name, mark, _ in pairs if not name or not mark), None)
    if wrong is not None:
        raise SpecError(f"--option: got {wrong!r}; expected name=value, as in kafka.security.protocol=SASL_SSL")
    return {name: value for name, _, value in pairs}


def _chosen(look: Look, asked: Asked, question: Ask) -> tuple[str, Sequence[str]]:
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
    source_look.check_column(look, "--time", time)
    if look.columns.type_of(time).typeName() not in _TIMES:
        kind = look.columns.type_of(time).simpleString()
        raise SpecError(f"--time: {time!r} is {kind}; expected a timestamp, a date, a text that is one, or an integer")
    likely = look.keys(time)
    keys = asked.keys
    if keys is None:
        keys = question(f"By which columns are events grouped? (of {_some(likely)}; with commas between, - for none)", ",".join(likely[:1]))
    named = tuple(name.strip() for name in keys.split(",") if name.strip() not in ("", "-"))
    for name in named:
        source_look.check_column(look, "--keys", name)
    return time, named


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) or "none seen"


def init_command(
    source: Annotated[
        str | None, typer.Option("--source", help="A Delta table, a folder of Parquet, CSV or JSON files, or kafka://HOST:PORT/TOPIC.")
    ] = None,
    table: Annotated[str | None, typer.Option("--table", help="Instead: a Delta table of Spark's catalog, as schema.table.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help=f"{_FORMATS}; found by itself.")] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="An option of the source, as name=value; repeat it.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", help="Columns by which events are grouped: a,b; - for none.")] = None,
    time: Annotated[str | None, typer.Option("--time", help="The column that says when an event happened.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; by default <pipeline>.yaml.")] = None,
    sink: Annotated[str | None, typer.Option("--sink", help="Where results go; by default next to the source.")] = None,
    pipeline: Annotated[str | None, typer.Option("--pipeline", help="The pipeline's name; by default that of the source.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing: take what the source shows.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a source, ask at most three questions, and write a spec that runs as it is."""
    asked = Asked(source, table, format_, options or [], keys, time, out, sink, pipeline, force)
    show(init(asked, ask=not yes and not as_json), as_json)


#: An address: brokers with commas between them, and topics.
ADDRESS = re.compile(r"kafka://(?P<brokers>[^/]+)/(?P<topics>[^/]+)")
#: Messages of the sample, and parts of it between which rows are compared: a run plans more messages at once than a part has.
_MESSAGES, _PARTS = 100_000, 100
#: Columns that identify a message, in order.
_ORDER = ("kafka_topic", "kafka_partition", "kafka_offset")


def look_at_messages(address: str, given: Mapping[str, str]) -> Look:
    """What is found in the topics of ``kafka://BROKERS/TOPICS``; ``given`` are further options of the source."""
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise SpecError(f"--source: got {address!r}; expected kafka://host:9092,host:9092/topic, and --option for settings of the client")
    options = {"kafka.bootstrap.servers": found["brokers"], "subscribe": found["topics"], **given}
    settings = source_look.source_of(format="kafka", options=options)
    source_look.check_options(settings, wanting="schema")
    messages = newest_messages(settings, _MESSAGES)
    if "schema" not in options:
        own = schema_of_objects(_objects(messages), TextTimes.of(settings))
        own = pa.schema([field for field in own if field.name.lower() not in OWN_COLUMNS])
        if not own.names:
            raise SourceMissingError(
                f"source {settings.place}: has no message that is a JSON object; send the first ones, or give --option schema='k STRING, …'"
            )
        settings = source_look.source_of(format="kafka", options=options | {"schema": as_ddl(own)})
    columns = Columns.of_arrow(columns_of(settings.options["schema"]))
    sample = _in_order_of_arrival(messages, columns)
    bounds = [sample.num_rows * n // _PARTS for n in range(_PARTS + 1)]
    parts = tuple(end - begin for begin, end in pairwise(bounds) if begin < end)
    seen, rows, fields = source_look.with_fields(columns, sample)
    return Look(
        settings,
        seen,
        rows,
        parts,
        sample.nbytes,
        commit="parts of the messages",
        added=tuple(OWN_COLUMNS),
        order=("kafka_partition", "kafka_offset") if "," not in settings.options["subscribe"] else _ORDER,
        fields=fields,
    )


def _objects(messages: Sequence[MessageForm]) -> Iterator[dict[str, Any]]:
    for form in messages:
        for some in messages_in(form):
            yield from (json_object(message.value()) or {} for message in some if message.value())


def _in_order_of_arrival(messages: Sequence[MessageForm], columns: Columns) -> pa.Table:
    """The messages by the brokers' time; equal times in the order of partitions and offsets."""
    form = Form(columns.arrow, columns.fixed_lengths)
    schema = pa.schema(list(form.types.items()))
    rows = pa.Table.from_batches([rows for each in messages for rows in batches_of_messages(each, schema.names, form)], schema)
    order = [(name, "ascending") for name in ("kafka_timestamp", *_ORDER)]
    return rows.sort_by(order).combine_chunks()
