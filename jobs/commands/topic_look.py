"""Looks at topics of Kafka for ``windowmill init``: the columns of their newest messages, and these in order of arrival."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from windowmill.jobs.commands.source_look import Look, check_options, source_of
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.folder_columns import as_json, schema_of_objects
from windowmill.jobs.sources.folder_options import as_ddl
from windowmill.jobs.sources.kafka import newest_messages
from windowmill.jobs.sources.kafka_messages import MessageForm, batches_of_messages, messages_in
from windowmill.jobs.sources.kafka_options import OWN_COLUMNS, columns_of
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.text_files import json_object
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.windowing.errors import SourceMissingError, SpecError

#: An address: brokers with commas between them, and topics.
ADDRESS = re.compile(r"kafka://(?P<brokers>[^/]+)/(?P<topics>[^/]+)")
#: Messages of the sample, and parts of it between which rows are compared: a run plans more messages at once than a part has.
_MESSAGES, _PARTS = 100_000, 100
#: Columns that identify a message, in order.
_ORDER = ("kafka_topic", "kafka_partition", "kafka_offset")


def look_at_messages(address: str, given: Mapping[str, str]) -> Look:
    """What is found in the topics of ``kafka://BROKERS/TOPICS``; ``given`` are further options of the source.

    Raises
    ------
    SpecError
        If the address is none, or an option is wrong.
    SourceError
        If there is no such topic, it has no messages that are JSON objects, or no broker answers.
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise SpecError(f"--source: got {address!r}; expected kafka://host:9092,host:9092/topic, and --option for settings of the client")
    options = {"kafka.bootstrap.servers": found["brokers"], "subscribe": found["topics"], **given}
    settings = source_of(format="kafka", options=options)
    check_options(settings, wanting="schema")
    messages = newest_messages(settings, _MESSAGES)
    if "schema" not in options:
        own = schema_of_objects(_objects(messages), TextTimes.of(settings))
        own = pa.schema([field for field in own if field.name.lower() not in OWN_COLUMNS])
        if not own.names:
            raise SourceMissingError(
                f"source {settings.place}: has no message that is a JSON object; send the first ones, or give --option schema='k STRING, …'"
            )
        settings = source_of(format="kafka", options=options | {"schema": as_ddl(own)})
    columns = Columns.of(as_json(columns_of(settings.options["schema"])))
    sample = _in_order_of_arrival(messages, columns)
    bounds = [sample.num_rows * n // _PARTS for n in range(_PARTS + 1)]
    parts = tuple(end - begin for begin, end in pairwise(bounds) if begin < end)
    return Look(
        settings,
        columns,
        sample,
        parts,
        sample.nbytes,
        commit="parts of the messages",
        added=tuple(OWN_COLUMNS),
        order=("kafka_partition", "kafka_offset") if "," not in settings.options["subscribe"] else _ORDER,
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
