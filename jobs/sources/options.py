"""The options of sources that are folders of files, and what paths below these say; and of topics of Kafka. Loads no client of Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.instants import PatternError, pattern_of
from windowmill.windowing.columnar.added_columns import CORRUPT
from windowmill.windowing.errors import SourceSchemaError, SpecError
from windowmill.windowing.fields import VARIABLE
from windowmill.windowing.redaction import names_secret

if TYPE_CHECKING:
    from windowmill.windowing.fields import Source

#: Options of the formats whose values are texts, by Spark's names.
TIME_OPTIONS = ("dateFormat", "timestampFormat")
#: A version, or a limit of a batch.
_WHOLE = re.compile("[0-9]{1,18}")
#: Options by format, in addition to those of every source.
FOLDER_OPTIONS = {
    "parquet": ("mergeSchema", "pathGlobFilter", "schema"),
    "csv": (*TIME_OPTIONS, "escape", "header", "mergeSchema", "multiLine", "nullValue", "pathGlobFilter", "quote", "schema", "sep"),
    "json": (*TIME_OPTIONS, "mergeSchema", "pathGlobFilter", "schema"),
}
#: Formats of folders whose values are texts.
TEXT_FORMATS = tuple(name for name, options in FOLDER_OPTIONS.items() if set(TIME_OPTIONS) <= set(options))
#: Values of options that are true or false.
LOGICAL = {"true": True, "false": False}
_DDL = {
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real"), pa.float32()),
    **dict.fromkeys(("double",), pa.float64()),
    **dict.fromkeys(("string",), pa.string()),
    **dict.fromkeys(("boolean",), pa.bool_()),
    **dict.fromkeys(("date",), pa.date32()),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    **dict.fromkeys(("timestamp_ntz",), pa.timestamp("us")),
}
#: Names that a schema is read by, but not written.
_SYNONYMS = ("byte", "short", "integer", "long", "real", "timestamp_ltz")
_COLUMN = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*:?\s+(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(?:not\s+null)?\s*", re.IGNORECASE
)

#: The value of a column in the name of a folder whose rows have none.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_LETTER = r"[^\r\n\u0080-\U0010ffff]"
_LETTERS = {"sep": rf"{_LETTER}|\\t", "quote": f"{_LETTER}?", "escape": f"{_LETTER}?"}
_GLOB = re.compile(r"\\.|\[[!^]?(?:\\.|[^\]\\])+\]|.", re.DOTALL)
#: A topic, and the number of one of its partitions.
Partition = tuple[str, int]
#: Options that every source of topics gives.
_REQUIRED = {
    "kafka.bootstrap.servers": "the brokers, as in host:9092",
    "subscribe": "one topic, or several with commas between them",
    "schema": "the columns of a message's JSON object, as in 'k STRING, at TIMESTAMP, v DOUBLE'",
}
#: Settings of the client, by the names of librdkafka, which a spec gives as ``kafka.<name>``.
_SETTINGS = (
    *("bootstrap.servers", "client.id", "client.rack", "security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"),
    *("sasl.kerberos.service.name", "sasl.kerberos.principal", "sasl.kerberos.keytab"),
    *("sasl.oauthbearer.method", "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope"),
    "sasl.oauthbearer.token.endpoint.url",
    *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm"),
)
#: Options in addition to ``startingTimestamp``, by Spark's names; those of ``kafka.`` are settings of the client.
KAFKA_OPTIONS = (*TIME_OPTIONS, "maxOffsetsPerTrigger", "schema", "startingOffsets", "subscribe", *(f"kafka.{name}" for name in _SETTINGS))
#: Columns that every message has in addition to those of its JSON object.
OWN_COLUMNS: Mapping[str, pa.DataType] = {
    "kafka_topic": pa.string(),
    "kafka_partition": pa.int32(),
    "kafka_offset": pa.int64(),
    "kafka_timestamp": pa.timestamp("us", "UTC"),
    "kafka_key": pa.string(),
    # The text of a message that is no JSON object; empty for a message without a value.
    CORRUPT: pa.string(),
}


def pattern_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Problems with the patterns among ``options``, as pairs (path of the field, problem and remedy)."""
    for name in TIME_OPTIONS:
        try:
            if name in options:
                pattern_of(options[name])
        except PatternError as err:
            yield f"source.options.{name}", str(err)


def common_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Problems with the values of options that choose versions or limit a batch, as pairs (path of the field, problem and remedy)."""
    version, instant = options.get("startingVersion"), options.get("startingTimestamp")
    if version is not None and instant is not None:
        yield "source.options", "startingVersion and startingTimestamp are both given; remove one of them"
    if version is not None and not _WHOLE.fullmatch(version):
        yield "source.options.startingVersion", f"got {version!r}; expected a version of the table, such as 0"
    if instant is not None:
        try:
            instant_of(instant)
        except ValueError:
            yield "source.options.startingTimestamp", f"got {instant!r}; expected an instant such as 2024-03-01T00:00:00Z"
    for name in ("maxFilesPerTrigger", "maxBytesPerTrigger", "maxOffsetsPerTrigger"):
        most = options.get(name, "1")
        if not _WHOLE.fullmatch(most) or int(most) < 1:
            yield f"source.options.{name}", f"got {most!r}; expected a whole number greater than 0"


def instant_of(text: str) -> datetime:
    """The instant of an option; UTC where it names no zone. Raises ``ValueError`` for a text that is none."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def folder_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the values of options, as pairs (path of the field, problem and remedy)."""
    yield from pattern_problems(settings.options)
    for name, value in settings.options.items():
        if name in ("header", "mergeSchema", "multiLine") and value.lower() not in LOGICAL:
            yield f"source.options.{name}", f"got {value!r}; expected true or false"
        if name in _LETTERS and re.fullmatch(_LETTERS[name], value) is None:
            yield f"source.options.{name}", f"got {value!r}; expected one ASCII character that ends no line"
        elif name in ("quote", "escape") and value == settings.options.get("sep", ","):
            yield f"source.options.{name}", f"got {value!r}, which is also the separator; expected another character"
        if name in ("schema", "pathGlobFilter"):
            try:
                (declared if name == "schema" else name_pattern)(value)
            except SpecError as err:
                yield f"source.options.{name}", str(err)


def name_pattern(glob: str) -> re.Pattern[str]:
    """What fits a pattern of names as Hadoop reads it, of ``*``, ``?``, ``[a-c]``, ``[^a-c]``, ``{csv,txt}``, and backslashes.

    Raises ``SpecError`` if it is none.

    >>> bool(name_pattern("[^_]*.{csv,csv.gz}").fullmatch("a.csv.gz")), bool(name_pattern("*.csv").fullmatch("a_csv"))
    (True, False)
    """
    found, groups = [], 0
    for token in _GLOB.findall(glob):
        if token.startswith("[") and len(token) > 1:
            is_other = token[1] in "!^"
            letters = re.findall(r"\\?.", token[1 + is_other : -1], re.DOTALL)
            found.append(f"[{'^' * is_other}{''.join(each if each == '-' else re.escape(each[-1]) for each in letters)}]")
        elif token == "{" or (groups and token in ",}"):
            found.append({"{": "(?:", ",": "|", "}": ")"}[token])
            groups += {"{": 1, ",": 0, "}": -1}[token]
        else:
            found.append({"*": ".*", "?": ".", "[": "["}.get(token) or re.escape(token[-1]))
    try:
        return re.compile("".join(found), re.DOTALL)
    except re.error as err:  # a bracket or brace that is not closed, or an empty range
        raise SpecError(f"got {glob!r}; expected a pattern of names, as *.csv or *.{{csv,txt}}") from err


def partition_of(path: str) -> dict[str, str | None]:
    """The values in the folders ``name=value`` above a file.

    >>> partition_of("year=2024/site=a%20b/0.csv")
    {'year': '2024', 'site': 'a b'}
    """
    pairs = (folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder)
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in pairs}


def lacks_column(path: str, name: str) -> SourceSchemaError:
    """The error for a file without a column that the spec uses."""
    return SourceSchemaError(
        f"source file {path}: has no column {name!r}, which the spec uses; correct the file, or set source.options.mergeSchema to true if "
        "files may lack columns, which are null then"
    )


def declared(ddl: str) -> pa.Schema:
    """The columns of a schema as Spark writes it; raises ``SpecError`` if it is none, or has a type that files are not read in.

    >>> declared("origin STRING, at TIMESTAMP, `air time` DECIMAL(8, 2)").names
    ['origin', 'at', 'air time']
    """
    fields, at = [], 0
    while at < len(ddl):
        found = _COLUMN.match(ddl, at)
        kind = None if found is None else _declared_type(found[3].lower(), found[4], found[5])
        if found is None or kind is None or (found.end() < len(ddl) and ddl[found.end()] != ","):
            known = ", ".join(name.upper() for name in (*_DDL, "decimal(p, s)"))
            raise SpecError(f"got {ddl[at : at + 80].strip()!r}; expected name TYPE, …, each type one of {known}")
        fields.append(pa.field((found[1] or found[2]).replace("``", "`"), kind))
        at = found.end() + 1
    twice = next((field.name for at, field in enumerate(fields) if any(field.name == other.name for other in fields[:at])), None)
    if twice is not None:
        raise SpecError(f"got two columns {twice!r}; expected one of each name")
    if not fields:
        raise SpecError("got no column; expected name TYPE, …")
    return pa.schema(fields)


def as_ddl(schema: pa.Schema) -> str:
    """``schema`` as :func:`declared` reads it.

    >>> as_ddl(declared("origin STRING, `air time` BIGINT"))
    'origin STRING, `air time` BIGINT'
    """
    return ", ".join(f"{_written(field.name)} {ddl_of(field.type)}" for field in schema)


def ddl_of(kind: pa.DataType) -> str:
    """A type as :func:`declared` reads it.

    >>> ddl_of(pa.int64()), ddl_of(pa.decimal128(8, 2))
    ('BIGINT', 'DECIMAL(8, 2)')
    """
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return next((name.upper() for name, own in _DDL.items() if own == kind and name not in _SYNONYMS), str(kind))


def _written(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else backquoted(name)


def _declared_type(name: str, precision: str | None, scale: str | None) -> pa.DataType | None:
    if name in ("decimal", "dec", "numeric"):
        return pa.decimal128(int(precision or 10), int(scale or 0)) if 0 < int(precision or 10) <= 38 else None
    return _DDL.get(name) if precision is None else None


def kafka_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the values of options, as pairs (path of the field, problem and remedy)."""
    options = settings.options
    yield from pattern_problems(options)
    for name, what in _REQUIRED.items():
        if not options.get(name, "").strip():
            yield f"source.options.{name}", f"missing; give {what}"
    for name, value in options.items():
        # The message must not repeat a value, which may be a secret.
        if names_secret(name) and not VARIABLE.fullmatch(value):
            yield (f"source.options.{name}", "expected the name of a variable, as in ${NAME}; a secret is never written in a spec")
    if "startingOffsets" in options and "startingTimestamp" in options:
        yield "source.options", "startingOffsets and startingTimestamp are both given; remove one of them"
    try:
        if options.get("schema"):
            columns_of(options["schema"])
    except SpecError as err:
        yield "source.options.schema", str(err)
    try:
        starting_offsets(settings)
    except SpecError as err:
        yield "source.options.startingOffsets", str(err)


def topics_of(settings: Source) -> list[str]:
    """The topics that a spec names."""
    return sorted({topic.strip() for topic in settings.options["subscribe"].split(",") if topic.strip()})


def columns_of(ddl: str) -> pa.Schema:
    """The columns of a message: those declared of its JSON object, and its own; raises ``SpecError``."""
    own = declared(ddl)
    taken = next((name for name in own.names if name.lower() in OWN_COLUMNS), None)
    if taken is not None:
        raise SpecError(f"got the column {taken!r}, which every message has ({', '.join(OWN_COLUMNS)}); leave it out, or rename the field")
    return pa.schema([*own, *OWN_COLUMNS.items()])


def starting_offsets(settings: Source) -> str | Mapping[Partition, int]:
    """Where a pipeline begins to read: ``earliest``, ``latest``, or an offset for some of the partitions; raises ``SpecError``."""
    value = settings.options.get("startingOffsets", "earliest")
    if value in ("earliest", "latest"):
        return value
    expected = 'earliest, latest, or offsets such as {"readings": {"0": 120, "1": 95}} as JSON'
    try:
        given = json.loads(value)
        offsets = {(topic, int(number)): offset for topic, of in given.items() for number, offset in of.items()}
    except (ValueError, AttributeError) as err:
        raise SpecError(f"got {value!r}; expected {expected}") from err
    for (topic, number), offset in offsets.items():
        if type(offset) is not int or offset < 0 or topic not in topics_of(settings):
            raise SpecError(f"got {offset!r} for partition {number} of {topic!r}; expected {expected}, for topics of subscribe")
    return offsets
