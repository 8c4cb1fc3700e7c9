"""A broker of Kafka for tests: one node in a JVM of its own, of jars that ``make test`` fetches (16 MB) and of jars that Spark has.

``python -m tests.kafka.brokers`` fetches the jars.
"""

from __future__ import annotations

import base64
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from windowmill.jobs.spark.jars import Jar, fetch_jars, find_java

VERSION = "4.2.0"
USER, PASSWORD = "reader", "hunter2hunter2"
_KAFKA = {
    "kafka-clients": "bcf39f152c5553c2501a491fc4a73c5b0330741e8eed96a481323b8ee89738af",
    "kafka-coordinator-common": "75c9ce733dd11759ef19f05d21af6397bacbf86dde83551ba46ecde51da1674d",
    "kafka-group-coordinator": "6038093c1823c622a71825297aa03881d66b7df15213cb3a5e930cc36c32d1fb",
    "kafka-group-coordinator-api": "7d3329e5696d48d84ebd0f7f25c4b27c14e397eb013d8a6113ce38d8e043c2aa",
    "kafka-metadata": "55fd69178bd1679ae484226e76d78556445e8d8668c03b511f351cf154bec845",
    "kafka-raft": "206c9580c4a9dde784e36508cdb1b020debb5a49b465712958e05cd6cc4da256",
    "kafka-server": "907c4c0ec05b99d311ab945be9747d5ac6f1697702529a8be55022126ca3742e",
    "kafka-server-common": "e99890e8e09784e4d84f9295db4012c73cde6c2cddba0a4e104cb102e18e4aa0",
    "kafka-share-coordinator": "0f5f3e3561c8102a4f45399d028a36e70e7947cb1393cd98394e22ed7618852e",
    "kafka-storage": "46316f7e8b3be51d83e0f2be63f6f4e61d7f19df1379fd0efe74c14c10582082",
    "kafka-storage-api": "188cf7523cf3684913c645007b8e442b3934badfbf9082a3a0572172cc9f1214",
    "kafka-tools-api": "0b0b73e897dfe87c2505695d72cacc5239aa15e9c8302ac918dc0705c30e70e9",
    "kafka-transaction-coordinator": "1f337382004c3f0213845af939564aeb87f5973d0cce42b912e2d5b8dcf80b69",
    "kafka_2.13": "0490bc0a8675f9217c52b788c8a586f692ad5ae34a50a3ed370d2533b01bdbcb",
}
JARS = (
    *(Jar("org.apache.kafka", artifact, VERSION, digest) for artifact, digest in _KAFKA.items()),
    Jar("com.google.re2j", "re2j", "1.8", "7b52c72156dd7f98b3237a5b35c1d34fba381b21048c89208913ad80a45dfbd7"),
    Jar("com.typesafe.scala-logging", "scala-logging_2.13", "3.9.6", "0ad0c3f4d89d538b3b6c300158555e266aa69cf1b5f6522aba8b5bad238eb994"),
    Jar("com.yammer.metrics", "metrics-core", "2.2.0", "6b7a14a6f34c10f8683f7b5e2f39df0f07b58c7dff0e468ebbc713905c46979c"),
    Jar("commons-validator", "commons-validator", "1.10.1", "ed74711a78d793ca37f6075e4a1e93d107233dfd20d0bb17e32bad88d38e56aa"),
    Jar("net.sf.jopt-simple", "jopt-simple", "5.0.4", "df26cc58f235f477db07f753ba5a3ab243ebe5789d9f89ecf68dd62ea9a66c28"),
    Jar("net.sourceforge.argparse4j", "argparse4j", "0.7.0", "65ceb669d88f63306c680f8088bbf765bbca72d288a61a03703000076c3d3f56"),
    Jar("org.hdrhistogram", "HdrHistogram", "2.2.2", "22d1d4316c4ec13a68b559e98c8256d69071593731da96136640f864fa14fad8"),
    Jar("org.pcollections", "pcollections", "4.0.2", "2bbeef5797a241300c4f7513cd546239629ed7deda4fc0c31df90bb95f5f13ef"),
)
#: Beginnings of the names of Spark's jars that the broker needs.
_OF_SPARK = ("scala-library-", "jackson-core-", "jackson-databind-", "jackson-annotations-", "jackson-dataformat-yaml-")
_OF_SPARK += ("log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "slf4j-api-", "zstd-jni-", "snappy-java-", "lz4-java-")
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: 16 bytes by the letters of URLs; a random id begins with a hyphen now and then, and the tool takes that for an option.
_CLUSTER = base64.urlsafe_b64encode(b"windowmill tests").decode().rstrip("=")
_NUMBERS = itertools.count()


def folder() -> Path:
    """Where the jars are."""
    return Path(sys.prefix, "share", "kafka-broker")


@dataclass(frozen=True)
class Broker:
    """A broker that runs, at an address for everyone, and one for those with a password."""

    address: str
    guarded: str

    @cached_property
    def admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})  # ends its requests with itself; outlives the broker

    def topic(self, partitions: int = 1, name: str | None = None) -> str:
        """Make a topic, and return its name."""
        name = name or f"readings{next(_NUMBERS)}"
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result()
        return name

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result()

    def remove(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result()

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        """Delete the messages before an offset, as retention does."""
        [done] = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        done.result()

    def send(self, topic: str, *values: bytes | None, partition: int = 0, key: str | bytes | None = None, at_ms: int = 0) -> None:
        self.send_each(topic, ((value, partition, at_ms) for value in values), key)

    def send_each(self, topic: str, messages: Iterable[tuple[bytes | None, int, int]], key: str | bytes | None = None) -> None:
        """Send values, each to a partition, with a time in milliseconds or, if that is 0, now."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 0})
        for value, partition, at_ms in messages:
            producer.produce(topic, value, key, partition=partition, **({"timestamp": at_ms} if at_ms else {}))
        producer.flush()

    def transact(self, topic: str, *values: bytes, commits: bool) -> None:
        producer = Producer({"bootstrap.servers": self.address, "transactional.id": f"tests{next(_NUMBERS)}"})
        producer.init_transactions()
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()


@contextmanager
def running(below: Path) -> Iterator[Broker]:
    """Start a broker whose files are in the folder ``below``."""
    missing = [jar.name for jar in JARS if not (folder() / jar.name).exists()]
    if missing:
        raise FileNotFoundError(f"{folder()}: the broker's jars are not there; run `python -m tests.kafka.brokers`, or `make test`")
    ports = _free_ports(3)
    settings = below / "server.properties"
    settings.write_text("".join(f"{name}={value}\n" for name, value in _settings(below, ports).items()))
    java = [
        str(find_java().home / "bin" / "java"),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        ":".join(_class_path()),
    ]
    make = [*java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", settings]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, timeout=60)
    process = subprocess.Popen([*java, "kafka.Kafka", settings], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        broker = Broker(*(f"127.0.0.1:{port}" for port in ports[:2]))
        _wait_for(broker, process)
        yield broker
    finally:
        process.kill()
        process.wait()


def _settings(below: Path, ports: Sequence[int]) -> Mapping[str, object]:
    """The broker's settings: one node, and files that cost little."""
    plain, guarded, controller = ports
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{guarded}"
    single = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor", "transaction.state.log.min.isr")
    single += ("offsets.topic.num.partitions", "transaction.state.log.num.partitions", "share.coordinator.state.topic.replication.factor")
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{_LOGIN} required user_{USER}="{PASSWORD}";',
        "log.dirs": below / "logs",
        "auto.create.topics.enable": "false",
        "log.retention.ms": -1,  # messages of tests are years old, and a broker that runs for minutes would delete them
        **dict.fromkeys(single, 1),
    }


def _class_path() -> list[str]:
    spark = Path(pyspark.__file__).parent / "jars"
    return [*(str(folder() / jar.name) for jar in JARS), *(str(jar) for jar in sorted(spark.iterdir()) if jar.name.startswith(_OF_SPARK))]


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _wait_for(broker: Broker, process: subprocess.Popen[bytes]) -> None:
    host, _, port = broker.address.partition(":")
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"the broker does not listen (exit code {process.poll()})")


if __name__ == "__main__":
    print(f"jars of Kafka {VERSION} are in {folder()} ({len(fetch_jars(folder(), JARS))} fetched)")
