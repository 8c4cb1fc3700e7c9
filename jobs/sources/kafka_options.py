"""The options of a source of Kafka topics, and what a spec of one may not say. Loads no client of Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.column_names import CORRUPT
from windowmill.jobs.sources.folder_options import declared
from windowmill.jobs.sources.text_values import OPTIONS as TIME_OPTIONS
from windowmill.jobs.sources.text_values import pattern_problems
from windowmill.windowing.errors import SpecError
from windowmill.windowing.redaction import names_secret
from windowmill.windowing.yamltext import VARIABLE

if TYPE_CHECKING:
    from windowmill.windowing.spec import Source

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
OPTIONS = (*TIME_OPTIONS, "maxOffsetsPerTrigger", "schema", "startingOffsets", "subscribe", *(f"kafka.{name}" for name in _SETTINGS))

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


def option_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the values of options, as pairs (path of the field, problem and remedy)."""
    options = settings.options
    yield from pattern_problems(options)
    for name, what in _REQUIRED.items():
        if not options.get(name, "").strip():
            yield f"source.options.{name}", f"missing; give {what}"
    for name, value in options.items():
        # The message must not repeat a value, which may be a secret.
        if names_secret(name) and not VARIABLE.fullmatch(value):
            yield (
                f"source.options.{name}",
                "expected the name of a variable, as in ${NAME}; a secret is never written in a spec",
            )
    most = options.get("maxOffsetsPerTrigger", "1")
    if not most.isdigit() or int(most) < 1:
        yield "source.options.maxOffsetsPerTrigger", f"got {most!r}; expected a whole number greater than 0"
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
