"""Reads ranges of offsets as typed rows, a JSON object a message: the same function in this process and in tasks of Spark.

Values are parsed as those of JSON lines. A message that is no JSON object has nulls, and its text in a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windowmill.jobs.column_names import CORRUPT, UNREAD
from windowmill.jobs.sources.json_rows import parse_json
from windowmill.jobs.sources.kafka_client import Settings, failure_of, new_consumer
from windowmill.jobs.sources.kafka_options import OWN_COLUMNS, Partition
from windowmill.jobs.sources.text_times import ISO, TextTimes
from windowmill.jobs.sources.text_values import parsed
from windowmill.jobs.sources.unread_rows import ExpectedColumns, unread_of
from windowmill.windowing.errors import SourceRangeGoneError, SourceReplacedError

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form

#: Messages that are made one batch of rows.
_BATCH = 10_000
#: Seconds without any message after which a broker is taken not to answer.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The messages of a partition with offsets [begin, end), and the settings of the client that reads them.

    Between the first and the last there may be fewer messages: a log that is compacted, or written by transactions, has gaps.
    """

    partition: Partition
    begin: int
    end: int
    source: str
    #: They hold credentials.
    settings: Settings = field(repr=False)
    times: TextTimes = ISO
    expected: ExpectedColumns = field(default_factory=ExpectedColumns)

    def batches(self, file: PlainFile, form: Form, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as of TextForm
        """The ``columns`` of all messages, in order."""
        return batches_of_messages(self, columns, form)


def messages_in(form: MessageForm) -> Iterator[list[Any]]:
    """The messages in order of their offsets.

    Raises
    ------
    SourceRangeGoneError
        If the first ones have been deleted.
    SourceReplacedError
        If the partition ends before the range does.
    SourceError
        If the broker does not answer, or refuses.
    """
    from confluent_kafka import KafkaError, TopicPartition

    topic, number = form.partition
    with new_consumer(form.settings, form.source) as (consumer, errors):
        consumer.assign([TopicPartition(topic, number, form.begin)])
        at = form.begin
        while at < form.end:
            found = consumer.poll(_PATIENCE)
            if found is None:
                raise errors.error(f"no message of {topic}/{number} came within {_PATIENCE:.0f} s")
            own = []
            # Those that have come already: to wait for a number would be to wait in vain where offsets have no message.
            for message in [found, *consumer.consume(min(_BATCH, form.end - at), 0)]:
                error = message.error()
                if error is None:
                    at = message.offset() + 1
                    if message.offset() < form.end:
                        own.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - confluent_kafka names it so
                    if message.offset() < form.end:
                        raise SourceReplacedError(
                            f"source {form.source}: {topic}/{number} ends at offset {message.offset()}, but a run has planned to read "
                            f"through {form.end - 1}; the topic was recreated or has lost messages: rebuild this pipeline in a new sink"
                        )
                    at = form.end
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):  # noqa: SLF001
                    raise SourceRangeGoneError(
                        f"source {form.source}: offset {at} of {topic}/{number} was deleted while it was read; run again"
                    )
                else:
                    raise failure_of(form.source, error)
            if own:
                yield own


def batches_of_messages(form: MessageForm, columns: Sequence[str], kinds: Form) -> Iterator[pa.RecordBatch]:
    """The ``columns`` of all messages, in order."""
    topic, number = form.partition
    of_values = {name: kind for name, kind in kinds.types.items() if name not in OWN_COLUMNS}
    expected = form.expected.among(of_values) if UNREAD in columns else ExpectedColumns()
    read = [name for name in dict.fromkeys([*columns, *expected.names]) if name in of_values]
    for messages in messages_in(form):
        sent = [message.value() or b"" for message in messages]
        cells = parse_json(sent, {name: of_values[name] for name in read})
        texts = dict(zip(read, cells.columns, strict=True))
        own = {name: parsed(column, kinds.types[name], form.times) for name, column in texts.items()}
        where = partial(_place_of, topic, number, messages)
        unread = unread_of(texts, own, expected, cells.bad, where, sent.__getitem__) if UNREAD in columns else None
        own[UNREAD] = pa.nulls(len(messages), pa.string()) if unread is None else unread
        corrupt = [text.decode(errors="replace") if index in cells.bad else None for index, text in enumerate(sent)]
        own[CORRUPT] = pa.array(corrupt, pa.string())
        own |= {name: pa.array(map(_OWN[name], messages), kinds.types[name]) for name in columns if name in _OWN}
        yield pa.record_batch([own[name] for name in columns], names=list(columns))


def _place_of(topic: str, partition: int, messages: Sequence[Any], index: int) -> str:
    return f"{topic}/{partition}, offset {messages[index].offset()}"


def _time_of(message: Any) -> int | None:
    kind, milliseconds = message.timestamp()
    return milliseconds * 1_000 if kind and milliseconds >= 0 else None


def _key_of(message: Any) -> str | None:
    key = message.key()
    # Bytes that are no text are written as \\xff, so that other ones are another key.
    return None if key is None else key.decode(errors="backslashreplace")


#: What each column of a message holds that is not of its JSON object.
_OWN: Mapping[str, Callable[[Any], Any]] = {
    "kafka_topic": lambda message: message.topic(),
    "kafka_partition": lambda message: message.partition(),
    "kafka_offset": lambda message: message.offset(),
    "kafka_timestamp": _time_of,
    "kafka_key": _key_of,
}
