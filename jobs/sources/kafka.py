"""Topics of Kafka as a source: a version is a range of offsets of each partition, as one run planned it.

A broker keeps no record of what a pipeline has read, so the pipeline does: the table of :mod:`windowmill.checkpoints.source_files` has the
ranges by version, written before a batch reads them. A partition that is new is read from its oldest message. Messages that retention
deleted before any run planned them form a version that changed rows; ``source.changes: ignore`` skips it.

Offsets are those of committed messages, and no group of consumers is used. Rows are a JSON object a message, read by the same function in
this process and in tasks of Spark. A message that is no JSON object has nulls, and its text in a column of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from windowmill.checkpoints.source_files import Event, SeenFile, SeenFiles
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.options import OWN_COLUMNS, Partition, columns_of, instant_of, starting_offsets, topics_of
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
from windowmill.windowing.fields import VARIABLE

if TYPE_CHECKING:
    from windowmill.jobs.sources.plain_files import Form
    from windowmill.jobs.spark.access import DataFrame, SparkSession
    from windowmill.windowing.fields import Source
    from windowmill.windowing.spec import Pipeline


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
    """Errors of its connections that a client has reported: only they show why a request fails."""

    source: str
    reasons: list[str] = field(default_factory=list)

    def __call__(self, error: Any) -> None:
        self.reasons.append(error.str())

    def error(self, what: str) -> SourceError:
        """The error for a request to which no broker has answered."""
        why = f" ({self.reasons[0]})" if self.reasons else ""
        return SourceError(f"source {self.source}: {what}{why}; check the brokers and source.options.kafka.bootstrap.servers, run again")


def _failure_of(source: str, error: Any) -> SourceError:
    """The error for an answer of a broker."""
    return SourceError(f"source {source}: {error.str()}; check the topic, and what this user may read")


def _made(kind: str, settings: Settings, own: Mapping[str, Any], errors: ClientErrors) -> Any:
    if _MISSING is not None:
        missing = "Kafka's client is not installed; `pip install 'windowmill[kafka]'`, where Spark's workers run, too"
        raise MachineError(missing) from _MISSING
    made: Any = AdminClient if kind == "admin" else Consumer
    try:
        # Quiet: what it would log goes to the callback.
        return made({**settings, **own, "log_level": 0, "error_cb": errors})
    except (KafkaException, ValueError) as err:
        why = err.args[0].str() if isinstance(err, KafkaException) else err
        raise UnsupportedError(f"source.options: the client of Kafka refuses its settings ({why}); correct those of kafka.…") from err


class Brokers:
    """Asks the brokers for topics and offsets; ``source`` names the source in messages."""

    def __init__(self, settings: Settings, source: str) -> None:
        self._source, self._client_errors = source, ClientErrors(source)
        self._admin = _made("admin", settings, {}, self._client_errors)

    def topics(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """For each topic, its id, which changes if the topic is recreated, and its partitions.

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
        raise _failure_of(self._source, error)


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
    (topic, number), errors = form.partition, ClientErrors(form.source)
    with closing(_made("consumer", form.settings, _CONSUMER, errors)) as consumer:
        consumer.assign([TopicPartition(topic, number, form.begin)])
        at = form.begin
        while at < form.end:
            found = consumer.poll(_PATIENCE)
            if found is None:
                raise errors.error(f"no message of {topic}/{number} came within {_PATIENCE:.0f} s")
            own = []
            # Take only what has come: offsets may have no message, so waiting for a number of messages could be in vain.
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
                    raise _failure_of(form.source, error)
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
        if UNREAD in columns:
            own[UNREAD] = unread_of(texts, own, expected, cells.bad, where, sent.__getitem__, len(messages))
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
    # Bytes that are no text are written as \\xff, so that different bytes remain different keys.
    return None if key is None else key.decode(errors="backslashreplace")


#: The content of each column of a message that does not come from its JSON object.
_OWN: Mapping[str, Callable[[Any], Any]] = {
    "kafka_topic": lambda message: message.topic(),
    "kafka_partition": lambda message: message.partition(),
    "kafka_offset": lambda message: message.offset(),
    "kafka_timestamp": _time_of,
    "kafka_key": _key_of,
}


#: First offset of a range, and the one after its last.
_Range = tuple[int, int]
Ranges = Mapping[Partition, _Range]

#: Number of messages of a partition that one task reads; assumed size of a message in bytes, which brokers do not report.
_MESSAGES_OF_A_TASK, _MESSAGE_BYTES = 1_000_000, 64


@dataclass(frozen=True, slots=True)
class Topics:
    """Ids of topics by name, and of each partition the oldest offset that is kept and the one after its last message."""

    ids: Mapping[str, str]
    first: Mapping[Partition, int]
    ends: Mapping[Partition, int]


def probe_topics(settings: Source) -> Topics:
    """The topics of a spec's source as they are now."""
    brokers = Brokers(settings_of(settings), settings.place)
    found = brokers.topics(topics_of(settings))
    partitions = [(name, number) for name, (_, numbers) in found.items() for number in numbers]
    ids = {name: topic_id for name, (topic_id, _) in found.items()}
    return Topics(ids, brokers.first(partitions), brokers.ends(partitions))


def open_kafka(settings: Source, record: str | None, topics: Topics | None = None) -> KafkaSource:
    """The topics of a spec's source, with what has arrived since the last planned range.

    ``record``: place of the table of the ranges that the pipeline has planned; null for a pipeline without a place for it.
    ``topics``: the topics, as :func:`probe_topics` finds them.
    """
    known, _ = ([], None) if record is None else SeenFiles(record).load()
    topics = probe_topics(settings) if topics is None else topics
    seen = [*known, *_arrived(settings, known, topics.first, topics.ends)]
    return KafkaSource(
        path=settings.place,
        table_id="kafka/" + ",".join(f"{name}:{topic_id}" for name, topic_id in topics.ids.items()),
        version=len(seen) - 1,
        schema_json=Columns.of_arrow(columns_of(settings.options["schema"])).json,
        seen=tuple(seen),
        recorded=len(known),
        first=topics.first,
        record=record,
        client=settings_of(settings),
        times=TextTimes.of(settings),
    )


def newest_messages(settings: Source, most: int) -> list[MessageForm]:
    """The newest messages of each partition, about ``most`` in all; needs no schema.

    Raises ``SourceError`` if there is no such topic, or no broker answers.
    """
    topics, client = probe_topics(settings), settings_of(settings)
    share = max(1, most // max(1, len(topics.ends)))
    ranges = {partition: (max(topics.first[partition], end - share), end) for partition, end in topics.ends.items()}
    return [
        MessageForm(partition, begin, end, settings.place, client, TextTimes.of(settings))
        for partition, (begin, end) in ranges.items()
        if begin < end
    ]


def _arrived(settings: Source, known: Sequence[SeenFile], first: Mapping[Partition, int], ends: Mapping[Partition, int]) -> list[SeenFile]:
    """The changes of the topics since ``known``: messages deleted before they were planned, and new ones."""
    read: dict[Partition, int] = {}
    # New messages name every partition.
    newest = next((place for place in range(len(known) - 1, -1, -1) if known[place].event == "added"), 0)
    for file in known[newest:]:
        read |= {partition: end for partition, (_, end) in _ranges_of(file).items()}
    starts = {partition: read.get(partition, oldest) for partition, oldest in first.items()}
    begins_late = not known and ({"startingOffsets", "startingTimestamp"} & settings.options.keys())
    if begins_late:
        starts |= _chosen(settings, first, ends)
    for (topic, number), start in starts.items():
        if ends[topic, number] < start:
            raise SourceReplacedError(
                f"source {settings.place}: {topic}/{number} ends at offset {ends[topic, number]}, but the pipeline has read, or begins, at "
                f"{start}; the topic has lost messages: give the pipeline a new sink, or correct source.options.startingOffsets"
            )
    lost = {partition: (start, first[partition]) for partition, start in starts.items() if start < first[partition]}
    new = {partition: (max(start, first[partition]), ends[partition]) for partition, start in starts.items()}
    pieces: list[tuple[Ranges, Event]] = [(lost, "removed")] if lost else []
    most = settings.options.get("maxOffsetsPerTrigger")
    pieces += [(piece, "added") for piece in _pieces(new, None if most is None else int(most))]
    if begins_late and not any(event == "added" for _, event in pieces):
        pieces.append((new, "added"))  # no messages yet, but where they will begin
    now, last, found = time.time_ns(), known[-1] if known else None, []
    for ranges, event in pieces:
        last = replace(SeenFile.after(last, _text_of(ranges), _count(ranges) * _MESSAGE_BYTES, now, event), rows=_count(ranges))
        found.append(last)
    return found


def _chosen(settings: Source, first: Mapping[Partition, int], ends: Mapping[Partition, int]) -> dict[Partition, int]:
    """The offsets at which a first batch begins, as the spec says."""
    since = settings.options.get("startingTimestamp")
    if since is not None:
        brokers = Brokers(settings_of(settings), settings.place)
        found = brokers.since(list(first), int(instant_of(since).timestamp() * 1_000))
        return {partition: ends[partition] if offset < 0 else offset for partition, offset in found.items()}
    offsets = starting_offsets(settings)
    if isinstance(offsets, str):
        return dict(ends if offsets == "latest" else first)
    return {partition: offset for partition, offset in offsets.items() if partition in first}


def _pieces(ranges: Ranges, most: int | None) -> Iterator[Ranges]:
    """``ranges`` in pieces of about ``most`` messages, each with the same share of every partition."""
    total = _count(ranges)
    n_pieces = int(total > 0) if most is None else -(-total // most)
    for at in range(n_pieces):
        yield {
            partition: (begin + (end - begin) * at // n_pieces, begin + (end - begin) * (at + 1) // n_pieces)
            for partition, (begin, end) in ranges.items()
        }


def _count(ranges: Ranges) -> int:
    return sum(end - begin for begin, end in ranges.values())


def _text_of(ranges: Ranges) -> str:
    by_topic: dict[str, dict[str, _Range]] = {}
    for (topic, number), own in sorted(ranges.items()):
        by_topic.setdefault(topic, {})[str(number)] = own
    return json.dumps(by_topic, separators=(",", ":"))


def _ranges_of(file: SeenFile) -> dict[Partition, _Range]:
    return {(topic, int(number)): (begin, end) for topic, of in json.loads(file.path).items() for number, (begin, end) in of.items()}


@dataclass(frozen=True)
class KafkaSource(SourceTable):
    """Topics as they are now.

    ``seen``: the changes of the topics, by version.
    ``recorded``: how many of these versions the record holds.
    ``first``: the oldest offset of each partition that is kept.
    ``record``: place of the record; null if there is none.
    ``client``: settings of the client; they hold credentials.
    ``times``: which texts in messages are dates and instants.
    """

    unit: ClassVar[str] = "range of offsets"
    has_unread: ClassVar[bool] = True

    seen: tuple[SeenFile, ...] = field(repr=False, kw_only=True)
    recorded: int = field(kw_only=True)
    first: Mapping[Partition, int] = field(repr=False, kw_only=True)
    record: str | None = field(kw_only=True)
    client: Settings = field(repr=False, kw_only=True)
    times: TextTimes = field(default=ISO, kw_only=True)

    def used_by(self, pipeline: Pipeline) -> KafkaSource:
        return replace(self, expected=ExpectedColumns.by(pipeline, [column["name"] for column in json.loads(self.schema_json)["fields"]]))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the versions: tasks get the ranges that they read."""
        return self.__dict__ | {"seen": (), "first": {}}

    def versions(self, after: int, through: int) -> Iterator[LoggedVersion]:
        for file in self.seen[after + 1 : through + 1]:
            if file.event == "added":
                yield LoggedVersion(file.version, "new messages", tuple(_added(file)))
            else:
                gone = ", ".join(f"{topic}/{number}/{begin}-{end}" for (topic, number), (begin, end) in _ranges_of(file).items())
                yield LoggedVersion(file.version, f"{gone}: deleted by retention", (), changes=True, rows_changed=file.rows or 0)

    def snapshot(self, version: int) -> list[AddedFile]:
        files = [each for file in self.seen[: version + 1] if file.event == "added" for each in _added(file)]
        lost = next((file for file in self.seen[: version + 1] if file.event == "removed"), None)
        gone = self.missing(files) if lost is None else AddedFile(lost.path, lost.version, 0, None)
        if gone is not None:
            raise SourceRangeGoneError(
                f"source {self.path}: the {self.unit} {gone.path} of version {gone.version} is gone {self.when_missing()}"
            )
        return files

    def remember(self, through: int) -> None:
        if self.record is not None:
            SeenFiles(self.record).add(self.seen[self.recorded : through + 1], self.schema_json, after=self.recorded)

    def mark(self, version: int) -> str | None:
        return self.seen[version].digest if 0 <= version < len(self.seen) else None

    def missing(self, files: Sequence[AddedFile]) -> AddedFile | None:
        """The error for a range whose oldest messages are gone."""
        for file in files:
            partition, (begin, _) = _range_at(file)
            if begin < self.first.get(partition, begin):
                return file
        return None

    def when_missing(self) -> str:
        return (
            "(deleted by the topic's retention); rebuild this pipeline in a new sink, and keep messages longer than runs may pause; to "
            "recompute history that is older, write the topic to a Delta table and name that as the source"
        )

    def first_version_at(self, instant: datetime) -> int | None:  # noqa: ARG002 - the versions of a pipeline begin at startingTimestamp
        return 0

    def plain_files(self, reading: Reading) -> list[PlainFile]:
        names = {column["name"]: column["name"] for column in json.loads(self.schema_json)["fields"]}
        return [
            PlainFile(file.path, names, {}, row_form=MessageForm(partition, *own, self.path, self.client, self.times, self.expected))
            for file in reading.files
            for partition, own in [_range_at(file)]
        ]

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from windowmill.jobs.sources.spark_files import rows_by_arrow

        return rows_by_arrow(spark, self, self.plain_files(reading), reading)


def _added(file: SeenFile) -> Iterator[AddedFile]:
    """The ranges of a version that tasks read, ``topic/partition/begin-end``."""
    for (topic, number), (first, last) in _ranges_of(file).items():
        for begin in range(first, last, _MESSAGES_OF_A_TASK):
            end = min(begin + _MESSAGES_OF_A_TASK, last)
            yield AddedFile(f"{topic}/{number}/{begin}-{end}", file.version, (end - begin) * _MESSAGE_BYTES, end - begin, is_counted=False)


def _range_at(file: AddedFile) -> tuple[Partition, _Range]:
    topic, number, offsets = file.path.rsplit("/", 2)
    begin, _, end = offsets.partition("-")
    return (topic, int(number)), (int(begin), int(end))
