"""Reads ranges of offsets as typed rows, a JSON object a message: the same function in this process and in tasks of Spark.

Offsets are those of committed messages. No group of consumers is used: what has been read is in the pipeline's own tables. Values are
parsed as those of JSON lines. A message that is no JSON object has nulls, and its text in a column of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windowmill.jobs.sources.options import OWN_COLUMNS, Partition
from windowmill.jobs.sources.text_files import parse_json
from windowmill.jobs.sources.text_values import ISO, TextTimes, parsed
from windowmill.jobs.sources.unusable_rows import ExpectedColumns, unread_of
from windowmill.windowing.columnar.added_columns import CORRUPT, UNREAD
from windowmill.windowing.errors import (
    MachineError,
    SourceError,
    SourceMissingError,
    SourceRangeGoneError,
    SourceReplacedError,
    SpecError,
    UnsupportedError,
)
from windowmill.windowing.spec import VARIABLE

if TYPE_CHECKING:
    from windowmill.jobs.sources.base import PlainFile
    from windowmill.jobs.sources.plain_files import Form
    from windowmill.windowing.spec import Source


try:
    from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # exported, but not said to be
except ImportError as err:
    _MISSING: ImportError | None = err
else:
    _MISSING = None

Settings = Mapping[str, str]
#: Seconds for which a request waits for the brokers.
_REQUEST_SECONDS = 15.0
_CONSUMER = {
    "group.id": "windowmill",  # the client wants one, though it joins none
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}


def settings_of(source: Source) -> Settings:
    """The client's settings in a spec, with secrets from the environment: never show them.

    Raises ``SpecError`` if a variable that they name is not set.
    """
    found = {}
    for option, text in source.options.items():
        if option.startswith("kafka."):
            named = VARIABLE.fullmatch(text)
            if named and named[1] not in os.environ:
                raise SpecError(f"source.options.{option}: the environment variable {named[1]} is not set; export it, then run again")
            found[option.removeprefix("kafka.")] = os.environ[named[1]] if named else text
    return found


@dataclass
class ClientErrors:
    """Errors that a client has reported of its connections; only here is the cause of a request that fails."""

    source: str
    reasons: list[str] = field(default_factory=list)

    def __call__(self, error: Any) -> None:
        self.reasons.append(error.str())

    def error(self, what: str) -> SourceError:
        """The error for a request to which no broker has answered."""
        why = f" ({self.reasons[0]})" if self.reasons else ""
        return SourceError(f"source {self.source}: {what}{why}; check the brokers and source.options.kafka.bootstrap.servers, run again")


def failure_of(source: str, error: Any) -> SourceError:
    """The error for an answer of a broker."""
    return SourceError(f"source {source}: {error.str()}; check the topic, and what this user may read")


def _made(kind: str, settings: Settings, own: Mapping[str, Any], errors: ClientErrors) -> Any:
    if _MISSING is not None:
        where = "where Spark's workers run, too"
        raise MachineError(f"Kafka's client is not installed; `pip install 'windowmill[kafka]'`, {where}") from _MISSING
    made: Any = AdminClient if kind == "admin" else Consumer
    try:
        # Quiet: what it would log goes to the callback.
        return made({**settings, **own, "log_level": 0, "error_cb": errors})
    except (KafkaException, ValueError) as err:
        why = err.args[0].str() if isinstance(err, KafkaException) else err
        raise UnsupportedError(f"source.options: the client of Kafka refuses its settings ({why}); correct those of kafka.…") from err


@contextmanager
def new_consumer(settings: Settings, source: str) -> Iterator[tuple[Any, ClientErrors]]:
    """A consumer of its own, which no other process or thread uses."""
    errors = ClientErrors(source)
    consumer = _made("consumer", settings, _CONSUMER, errors)
    try:
        yield consumer, errors
    finally:
        consumer.close()


class Brokers:
    """Asks the brokers for topics and offsets; ``source`` names the source in messages."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._source, self._client_errors = source, ClientErrors(source)
        self._admin = _made("admin", settings, {}, self._client_errors)

    def topics(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """For each topic its id, which another topic of that name does not have, and its partitions.

        Raises ``SourceMissingError`` if there is no such topic; ``SourceError`` if the brokers do not answer, or refuse.
        """
        asked = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_REQUEST_SECONDS)
        found = {name: self._answer(future, name) for name, future in asked.items()}
        return {name: (str(topic.topic_id), sorted(each.id for each in topic.partitions)) for name, topic in found.items()}

    def first(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The oldest offset of each partition that is kept."""
        return self._offsets(partitions, lambda spec: spec.earliest())

    def ends(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset after the last committed message of each partition."""
        return self._offsets(partitions, lambda spec: spec.latest())

    def since(self, partitions: Sequence[Partition], milliseconds: int) -> dict[Partition, int]:
        """The first offset of each partition whose message has this timestamp or a later one; −1 if there is none yet."""
        return self._offsets(partitions, lambda spec: spec.for_timestamp(milliseconds))

    def _offsets(self, partitions: Sequence[Partition], which: Callable[[Any], Any]) -> dict[Partition, int]:
        if not partitions:
            return {}
        wanted = {TopicPartition(*each): which(OffsetSpec) for each in partitions}
        asked = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_SECONDS)
        return {(of.topic, of.partition): int(self._answer(future, of.topic).offset) for of, future in asked.items()}

    def _answer(self, future: Any, topic: str) -> Any:
        try:
            return future.result()
        except KafkaException as err:
            error = err.args[0]
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):  # noqa: SLF001 - confluent_kafka names it so
            raise SourceMissingError(f"source {self._source}: there is no topic {topic!r}; make it, or correct source.options.subscribe")
        if error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001
            self._admin.poll(0)  # for the callback
            raise self._client_errors.error(f"no broker has answered within {_REQUEST_SECONDS:.0f} s")
        raise failure_of(self._source, error)


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

    Raises ``SourceRangeGoneError`` if the first ones have been deleted; ``SourceReplacedError`` if the partition ends before the range
    does; ``SourceError`` if the broker does not answer, or refuses.
    """
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
