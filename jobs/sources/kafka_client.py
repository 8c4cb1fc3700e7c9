"""The client of Kafka, confluent-kafka: topics and their offsets, and consumers that read ranges of offsets.

Offsets are those of committed messages. No group of consumers is used: what has been read is in the pipeline's own tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windowmill.jobs.sources.kafka_options import Partition
from windowmill.windowing.errors import MachineError, SourceError, SourceMissingError, SpecError, UnsupportedError
from windowmill.windowing.yamltext import VARIABLE

if TYPE_CHECKING:
    from windowmill.windowing.spec import Source

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

    Raises
    ------
    SpecError
        If a variable that they name is not set.
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
    try:
        import confluent_kafka
        from confluent_kafka.admin import AdminClient
    except ImportError as err:
        raise MachineError("Kafka's client is not installed; `pip install 'windowmill[kafka]'`, where Spark's workers run, too") from err
    made: Any = AdminClient if kind == "admin" else confluent_kafka.Consumer
    try:
        # Quiet: what it would log goes to the callback.
        return made({**settings, **own, "log_level": 0, "error_cb": errors})
    except (confluent_kafka.KafkaException, ValueError) as err:
        why = err.args[0].str() if isinstance(err, confluent_kafka.KafkaException) else err
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
        self._source, self._told = source, ClientErrors(source)
        self._admin = _made("admin", settings, {}, self._told)

    def topics(self, names: Sequence[str]) -> dict[str, tuple[str, list[int]]]:
        """For each topic its id, which another topic of that name does not have, and its partitions.

        Raises
        ------
        SourceMissingError
            If there is no such topic.
        SourceError
            If the brokers do not answer, or refuse.
        """
        from confluent_kafka import TopicCollection

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
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # exported, but not said to be

        if not partitions:
            return {}
        wanted = {TopicPartition(*each): which(OffsetSpec) for each in partitions}
        asked = self._admin.list_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_SECONDS)
        return {(of.topic, of.partition): int(self._answer(future, of.topic).offset) for of, future in asked.items()}

    def _answer(self, future: Any, topic: str) -> Any:
        from confluent_kafka import KafkaError, KafkaException

        try:
            return future.result()
        except KafkaException as err:
            error = err.args[0]
        if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):  # noqa: SLF001 - confluent_kafka names it so
            raise SourceMissingError(f"source {self._source}: there is no topic {topic!r}; make it, or correct source.options.subscribe")
        if error.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001
            self._admin.poll(0)  # for the callback
            raise self._told.error(f"no broker has answered within {_REQUEST_SECONDS:.0f} s")
        raise failure_of(self._source, error)
