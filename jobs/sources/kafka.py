"""Topics of Kafka as a source: a version is a range of offsets of each partition, as one run planned it.

A broker keeps no account of what a pipeline has read, so the pipeline does: the table of :mod:`windowmill.checkpoints.source_files` has the
ranges by version, written before a batch reads them. A partition that is new is read from its oldest message. Messages that retention
deleted before any run planned them are a version that changed rows, which ``source.changes: ignore`` passes over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from windowmill.checkpoints.source_files import Event, SeenFile, SeenFiles
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, PlainFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.kafka_messages import Brokers, MessageForm, Settings, settings_of
from windowmill.jobs.sources.options import Partition, columns_of, starting_offsets, topics_of
from windowmill.jobs.sources.reading import instant_of
from windowmill.jobs.sources.text_values import ISO, TextTimes
from windowmill.jobs.sources.unusable_rows import ExpectedColumns
from windowmill.windowing.errors import SourceRangeGoneError, SourceReplacedError

if TYPE_CHECKING:
    from windowmill.jobs.spark.access import DataFrame, SparkSession
    from windowmill.windowing.spec import Pipeline, Source

#: First offset of a range, and the one after its last.
_Range = tuple[int, int]
Ranges = Mapping[Partition, _Range]

#: Messages of a partition that one task reads; assumed size of a message in bytes, which no broker gives.
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
    """What has happened to the topics since ``known``: messages that are gone before they were planned, and new ones."""
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

    ``seen``: what has happened to them, by version.
    ``recorded``: how many of these versions the record holds.
    ``first``: the oldest offset of each partition that is kept.
    ``record``: place of the record; null if there is none.
    ``client``: settings of the client; they hold credentials.
    ``times``: what texts of messages are dates and instants.
    """

    unit: ClassVar[str] = "range of offsets"

    seen: tuple[SeenFile, ...] = field(repr=False, kw_only=True)
    recorded: int = field(kw_only=True)
    first: Mapping[Partition, int] = field(repr=False, kw_only=True)
    record: str | None = field(kw_only=True)
    client: Settings = field(repr=False, kw_only=True)
    times: TextTimes = field(default=ISO, kw_only=True)

    @property
    def has_unread(self) -> bool:
        return True

    def used_by(self, pipeline: Pipeline) -> KafkaSource:
        return replace(self, expected=ExpectedColumns.by(pipeline, [column["name"] for column in json.loads(self.schema_json)["fields"]]))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the versions, which tasks do without: they get the ranges that they read."""
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
        """A range whose oldest messages are gone."""
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
            PlainFile(file.path, names, {}, text=MessageForm(partition, *own, self.path, self.client, self.times, self.expected))
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
