"""Topics as sources: each message once, whatever comes meanwhile and wherever a run dies; what a topic has lost is never passed over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from tests.kafka.brokers import PASSWORD, USER, Broker
from windowmill.checkpoints.failpoints import InjectedError, arm, disarm
from windowmill.jobs.cli import main
from windowmill.jobs.sources import kafka
from windowmill.jobs.sources.base import open_source
from windowmill.jobs.sources.unread import SourceProbe, SourceWatch
from windowmill.windowing.specfile import load_pipeline, parse_pipeline

#: They need the broker's jars, which `make test` fetches.
pytestmark = [pytest.mark.thorough, pytest.mark.local]

SCHEMA = "k STRING, t TIMESTAMP, v DOUBLE"


def message(k: str, minute: int, v: float | None = 1.0) -> bytes:
    return json.dumps({"k": k, "t": f"2024-01-01 {minute // 60:02}:{minute % 60:02}:00", "v": v}).encode()


class Pipe:
    """A pipeline over a topic, and what its runs tell."""

    def __init__(self, folder: Path, broker: Broker, topic: str, **options: str) -> None:
        self.path, self.sink = folder / "spec.yaml", str(folder / "out")
        self.spec: dict[str, Any] = {
            "pipeline": "visits",
            "source": {
                "format": "kafka",
                "options": {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "schema": SCHEMA} | options,
            },
            "keys": ["k"],
            "time": {"column": "t"},
            "windows": [{"name": "hourly", "type": "tumbling", "size": "1 hour"}],
            "aggregates": {"n": {"count": "*"}, "total": {"sum": "v"}},
            "sink": {"path": self.sink},
            "quarantine": {"warn": "100 %", "hold": "100 %"},
        }
        self.write()

    def write(self, **changes: Any) -> None:
        self.spec |= changes
        self.path.write_text(yaml.safe_dump(self.spec))

    def option(self, **options: str) -> None:
        self.write(source=self.spec["source"] | {"options": self.spec["source"]["options"] | options})

    def run(self, capsys: pytest.CaptureFixture[str]) -> list[int]:
        """Rows read by each batch of a run."""
        return [batch["rows_read"] for batch in self.told(capsys)["batches"]]

    def told(self, capsys: pytest.CaptureFixture[str], command: str = "run", *arguments: str) -> Any:
        code = main([command, str(self.path), *arguments, "--json"])
        told = capsys.readouterr()
        assert code == 0, told.err
        return json.loads(told.out)

    def refused(self, capsys: pytest.CaptureFixture[str], command: str = "run", *arguments: str, code: int = 2) -> str:
        """The one line with which a command ends."""
        capsys.readouterr()
        assert main([command, str(self.path), *arguments]) == code
        [*_, line] = capsys.readouterr().err.splitlines()
        return line

    def results(self) -> dict[tuple[str, str], tuple[int, float | None]]:
        rows = DeltaTable(self.sink).to_pyarrow_table().to_pylist()
        return {(row["k"], row["window_end"].strftime("%H")): (row["n"], row["total"]) for row in rows}

    def rows(self) -> list[tuple[Any, ...]]:
        """The results, each with its batch last."""
        rows = DeltaTable(self.sink).to_pyarrow_table().to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=str)

    def quarantined(self) -> list[tuple[str, dict[str, Any]]]:
        rows = DeltaTable(f"{self.sink}.windowmill/quarantine").to_pyarrow_table().to_pylist()
        return [(row["reason"], json.loads(row["row"])) for row in rows]


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.topic()


@pytest.fixture
def pipe(tmp_path, broker, topic) -> Pipe:
    return Pipe(tmp_path, broker, topic)


def test_each_run_reads_each_new_message_once(pipe, broker, topic, capsys):
    assert pipe.run(capsys) == [], "an empty topic"
    broker.send(topic, message("a", 10), message("a", 70, 2.0))
    assert main(["validate", str(pipe.path), "--source"]) == 0
    capsys.readouterr()
    assert pipe.run(capsys) == [2]
    assert pipe.run(capsys) == []
    broker.send(topic, message("a", 80, 4.0), message("b", 190))
    assert pipe.told(capsys, "status")["versions_waiting"] == 1
    assert pipe.run(capsys) == [2]
    assert pipe.run(capsys) == []
    assert pipe.results() == {("a", "01"): (1, 1.0), ("a", "02"): (2, 6.0)}


def test_several_topics_are_read_by_all_partitions_and_a_new_partition_from_its_beginning(tmp_path, broker, capsys):
    one, two = broker.topic(2), broker.topic()
    pipe = Pipe(tmp_path, broker, f"{two}, {one}")
    broker.send(one, message("a", 10), partition=0)
    broker.send(one, message("a", 11), message("a", 12), partition=1)
    broker.send(two, message("a", 13))
    assert pipe.run(capsys) == [4]
    broker.grow(one, 3)
    broker.send(one, message("a", 50), message("a", 70), partition=2)
    broker.send(two, message("b", 20))
    assert pipe.run(capsys) == [3]
    assert pipe.results() == {("a", "01"): (5, 5.0), ("b", "01"): (1, 1.0)}


def test_the_columns_of_a_message_can_be_named_like_those_of_its_value(pipe, broker, topic, capsys):
    at = int(datetime(2024, 1, 1, 0, 30, tzinfo=UTC).timestamp() * 1_000)
    broker.send(topic, b'{"v": 1}', b'{"v": 2}', key="x", at_ms=at)
    broker.send(topic, b'{"v": 4}', b'{"v": 8}', at_ms=at + 3_600_000)
    pipe.write(keys=["kafka_key"], time={"column": "kafka_timestamp", "tie_break": ["kafka_partition", "kafka_offset"]})
    assert pipe.run(capsys) == [4]
    [row] = DeltaTable(pipe.sink).to_pyarrow_table().to_pylist()
    assert (row["kafka_key"], row["n"], row["total"]) == ("x", 2, 3.0)


ODD: dict[str, bytes | None] = {
    "no JSON": b"oops",
    "no object": b"[1]",
    "two objects": b'{"k": "a"} {"k": "b"}',
    "no UTF-8": b'{"k": "\xff"}',
    "empty": b"",
    "a tombstone": None,
    "half a surrogate pair": b'{"k": "\\ud83d"}',
    "half a surrogate pair as it is": b'{"k": "\xed\xa0\x80"}',
    "nested too deeply": b"[" * 50_000,
}


def test_messages_without_an_object_are_quarantined_with_their_text(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 1), *ODD.values(), b'{"k": "a",\n "t": "2024-01-01 01:01:00"}', b'{"k": "a", "t": "soon"}', b"{}")
    assert pipe.run(capsys) == [13]
    told = pipe.quarantined()
    bad = [row for reason, row in told if reason == "bad_row"]
    texts = ["oops", "[1]", '{"k": "a"} {"k": "b"}', '{"k": "\ufffd"}', "", ""]
    texts += ['{"k": "\\ud83d"}', '{"k": "\ufffd\ufffd\ufffd"}', "[" * 50_000]
    assert [row["_corrupt_record"] for row in bad] == texts
    assert [row["kafka_offset"] for row in bad] == [*range(1, 10)]
    assert [reason for reason, _ in told if reason != "bad_row"] == ["bad_time", "null_time"]
    assert pipe.results() == {("a", "01"): (1, 1.0)}


def test_a_value_that_does_not_fit_is_quarantined_by_its_offset_with_its_text(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 1), b'{"k": "a", "t": "2024-01-01 00:02:00", "v": "many"}')
    assert pipe.run(capsys) == [2]
    [row] = DeltaTable(f"{pipe.sink}.windowmill/quarantine").to_pyarrow_table().to_pylist()
    assert (row["reason"], row["detail"]) == ("cannot_cast", f'{topic}/0, offset 1: v: got "\\"many\\""; expected DOUBLE')


def test_keys_that_are_not_utf_8_stay_apart(pipe, broker, topic, capsys):
    pipe.write(keys=["kafka_key"])
    for key in (b"\xff", b"\xfe", b"ok"):
        broker.send(topic, message("a", 1), message("a", 61), key=key)
    assert pipe.run(capsys) == [6]
    keys = DeltaTable(pipe.sink).to_pyarrow_table().column("kafka_key").to_pylist()
    assert sorted(keys) == ["\\xfe", "\\xff", "ok"]


def test_a_filter_leaves_tombstones_out(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 1), None, message("a", 61))
    pipe.write(source=pipe.spec["source"] | {"filter": "_corrupt_record IS NULL"})
    assert pipe.run(capsys) == [3]
    assert pipe.told(capsys, "status")["filtered"] == 1


def die() -> None:
    raise InjectedError("failpoint")


STEPS = ("compute.begin", "validate.begin", "record.begin", "publish.begin", "compact.before")


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_dies_has_read_each_message_once(pipe, broker, topic, capsys, step):
    broker.send(topic, message("a", 10), message("a", 30))
    assert pipe.run(capsys) == [2]
    broker.send(topic, message("a", 40), message("a", 70))
    arm(step, die)
    assert main(["run", str(pipe.path)]) == 1
    disarm()
    capsys.readouterr()
    broker.send(topic, message("a", 50), message("a", 130))
    pipe.run(capsys)
    broker.send(topic, message("a", 190))
    pipe.run(capsys)
    assert pipe.run(capsys) == []
    first, second = pipe.results()["a", "01"], pipe.results()["a", "02"]
    assert second == (1, 1.0)
    # What came after the death is late only to a batch that was recorded before it.
    late = sum(reason == "too_late" for reason, _ in pipe.quarantined()) if first[0] == 3 else 0
    assert first[0] + late == 4
    read = [batch["rows_read"] for batch in pipe.told(capsys, "history")]
    assert sum(read) == 7


def test_two_attempts_plan_the_same_ranges(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 10))
    pipeline = load_pipeline(pipe.path)
    source = open_source(pipeline)
    broker.send(topic, message("a", 70))
    source.remember(source.version)
    again = open_source(pipeline)
    assert [version.added for version in again.versions(-1, 0)] == [version.added for version in source.versions(-1, 0)]
    assert again.mark(0) == source.mark(0)
    assert [file.path for version in again.versions(0, 1) for file in version.added] == [f"{topic}/0/1-2"]


def test_what_retention_deleted_before_it_was_read_is_refused_or_passed_over(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 10))
    assert pipe.run(capsys) == [1]
    broker.send(topic, message("a", 20), message("a", 30), message("a", 70))
    broker.expire(topic, 3)
    told = pipe.refused(capsys)
    assert f"version 1 ({topic}/0/1-3: deleted by retention) changed or removed rows" in told
    assert "set source.changes to ignore" in told
    pipe.write(source=pipe.spec["source"] | {"changes": "ignore"})
    told = pipe.told(capsys)
    assert [(batch["rows_read"], batch["rows_ignored"]) for batch in told["batches"]] == [(1, 2)]
    assert pipe.results() == {("a", "01"): (1, 1.0)}
    assert pipe.run(capsys) == []


def test_history_is_computed_again_as_long_as_the_topic_keeps_it(pipe, broker, topic, capsys):
    ranges = ("--from", "2024-01-01T00:00", "--to", "2024-01-01T02:00")
    broker.send(topic, message("a", 10), message("a", 70))
    assert pipe.run(capsys) == [2]
    broker.send(topic, message("b", 80), message("a", 190))
    assert pipe.run(capsys) == [2]
    before = pipe.results()
    pipe.told(capsys, "backfill", *ranges)
    assert pipe.results() == before == {("a", "01"): (1, 1.0), ("a", "02"): (1, 1.0), ("b", "02"): (1, 1.0)}
    broker.expire(topic, 1)
    for more in ((), ("--as-arrived",), ("--arrival", "event_time")):
        told = pipe.refused(capsys, "backfill", *ranges, *more)
        assert "deleted by the topic's retention" in told
        assert f"{topic}/0/0-2 of version 0" in told
    assert pipe.results() == before
    broker.send(topic, message("a", 260))
    assert pipe.run(capsys) == [1], "runs go on"
    assert "as long as the topic keeps" in json.dumps(pipe.told(capsys, "explain"))


def test_another_topic_of_the_same_name_is_refused(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 10), message("a", 70))
    assert pipe.run(capsys) == [2]
    broker.remove(topic)
    assert f"there is no topic '{topic}'" in pipe.refused(capsys, code=1)
    broker.topic(name=topic)
    broker.send(topic, message("a", 10), message("a", 70), message("a", 80))
    assert "this is another table" in pipe.refused(capsys)


@pytest.mark.parametrize(
    ("begins", "read"),
    [
        ({}, [3]),
        ({"startingOffsets": "earliest"}, [3]),
        ({"startingOffsets": "latest"}, [0]),
        ({"startingTimestamp": "2024-01-02T00:00:00Z"}, [2]),
        ({"startingTimestamp": "2024-01-09"}, [0]),
        ({"startingOffsets": '{"TOPIC": {"0": 2}}'}, [1]),
    ],
)
def test_where_a_pipeline_begins(pipe, broker, topic, capsys, begins, read):
    for day in (1, 2, 3):
        broker.send(topic, message("a", day), at_ms=int(datetime(2024, 1, day, 12, tzinfo=UTC).timestamp() * 1_000))
    pipe.option(**{name: value.replace("TOPIC", topic) for name, value in begins.items()})
    assert pipe.run(capsys) == read
    broker.send(topic, message("a", 4))
    assert pipe.run(capsys) == [1]
    assert pipe.run(capsys) == []


def test_an_offset_to_begin_at_that_is_gone_is_refused(pipe, broker, topic, capsys):
    broker.send(topic, message("a", 10), message("a", 70))
    broker.expire(topic, 1)
    pipe.option(startingOffsets=json.dumps({topic: {"0": 0}}))
    assert "deleted by the topic's retention" in pipe.refused(capsys)
    pipe.option(startingOffsets=json.dumps({topic: {"0": 7}}))
    assert "ends at offset 2" in pipe.refused(capsys)


def test_messages_of_transactions_count_once_they_are_committed(pipe, broker, topic, capsys):
    broker.transact(topic, message("a", 10), message("a", 20), commits=True)
    broker.transact(topic, message("a", 30), message("a", 40), commits=False)
    assert pipe.run(capsys) == [2]
    broker.send(topic, message("a", 70))
    broker.transact(topic, message("a", 80), commits=True)
    assert pipe.run(capsys) == [2]
    assert pipe.results() == {("a", "01"): (2, 2.0)}


def test_a_backlog_is_cut_into_batches(tmp_path, broker, capsys):
    topic = broker.topic(2)
    pipe = Pipe(tmp_path, broker, topic, maxOffsetsPerTrigger="4")
    for partition in (0, 1):
        broker.send(topic, *(message("a", minute) for minute in range(0, 100, 20)), partition=partition)
    assert [sum(pipe.run(capsys)), *pipe.run(capsys)] == [10]
    assert len(pipe.told(capsys, "history")) == 3
    assert pipe.results() == {("a", "01"): (6, 6.0)}


def test_the_triggerer_sees_new_messages(pipe, broker, topic, capsys):
    watch = SourceWatch(load_pipeline(pipe.path))
    look = SourceProbe(watch.source)
    assert watch.poll(look()) is None
    broker.send(topic, message("a", 10))
    found = watch.poll(look())
    assert found is not None
    assert (found.version, found.planned) == (0, -1)
    assert pipe.run(capsys) == [1]
    assert watch.poll(look()) is None


def test_a_password_is_named_and_never_told(pipe, broker, topic, capsys, monkeypatch):
    broker.send(topic, message("a", 10), message("a", 70))
    login = {"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": USER}
    pipe.option(**login, **{"kafka.bootstrap.servers": broker.guarded, "kafka.sasl.password": PASSWORD})
    assert "kafka.sasl.password" in (told := pipe.refused(capsys))
    assert PASSWORD not in told
    pipe.option(**{"kafka.sasl.password": "${TOPICS_PASSWORD}"})
    assert "TOPICS_PASSWORD is not set" in pipe.refused(capsys)
    monkeypatch.setenv("TOPICS_PASSWORD", PASSWORD)
    assert pipe.run(capsys) == [2]
    for command in ("status", "explain", "history"):
        main([command, str(pipe.path)])
    shown = capsys.readouterr()
    assert PASSWORD not in shown.out + shown.err + repr(load_pipeline(pipe.path)) + repr(open_source(load_pipeline(pipe.path)))
    for root, _, names in os.walk(pipe.path.parent):
        assert not any(PASSWORD.encode() in Path(root, name).read_bytes() for name in names)


def test_brokers_that_do_not_answer_fail_the_run_for_another_try(pipe, capsys, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.sources.kafka._REQUEST_SECONDS", 2.0)
    pipe.option(**{"kafka.bootstrap.servers": "127.0.0.1:1"})
    told = pipe.refused(capsys, code=1)
    assert told.startswith("windowmill: source kafka://127.0.0.1:1/")
    assert "refused" in told


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"subscribe": ""}, "source.options.subscribe: missing"),
        ({"schema": ""}, "source.options.schema: missing"),
        ({"schema": "k STRING, kafka_key STRING"}, "source.options.schema: got the column 'kafka_key'"),
        ({"startingOffsets": "sometime"}, "source.options.startingOffsets: got 'sometime'"),
        ({"startingOffsets": '{"other": {"0": 1}}'}, "source.options.startingOffsets: got 1 for partition 0 of 'other'"),
        ({"startingOffsets": "latest", "startingTimestamp": "2024-01-01"}, "source.options: startingOffsets and startingTimestamp"),
        ({"maxOffsetsPerTrigger": "0"}, "source.options.maxOffsetsPerTrigger: got '0'"),
        ({"maxFilesPerTrigger": "1"}, "source.options.maxFilesPerTrigger: unknown"),
        ({"kafka.group.id": "x"}, "source.options.kafka.group.id: unknown"),
        ({"kafka.security.protocol": "TELEPATHY"}, "the client of Kafka refuses its settings"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(pipe, capsys, changes, told):
    pipe.option(**changes)
    assert told in pipe.refused(capsys)


def test_a_topic_has_no_path(pipe, capsys):
    pipe.write(source=pipe.spec["source"] | {"path": "/data/in"})
    assert "source.options.subscribe" in pipe.refused(capsys, "validate") or "path" in pipe.refused(capsys, "validate")
    assert parse_pipeline(pipe.spec | {"source": {k: v for k, v in pipe.spec["source"].items() if k != "path"}}).source is not None


def test_without_the_client_a_run_says_what_to_install(pipe, capsys, monkeypatch):
    monkeypatch.setattr(kafka, "_MISSING", ImportError())
    assert "pip install 'windowmill[kafka]'" in pipe.refused(capsys, code=1)


def test_a_spec_is_checked_without_the_client(pipe):
    script = "import sys; sys.modules['confluent_kafka'] = None; from windowmill.jobs.cli import main; sys.exit(main(sys.argv[1:]))"
    assert subprocess.run([sys.executable, "-c", script, "validate", str(pipe.path)], check=False).returncode == 0
