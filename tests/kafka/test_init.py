"""``windowmill init`` over topics: the spec that it writes runs as it is, with the columns and the disorder of the messages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from tests.kafka.brokers import PASSWORD, USER, Broker
from windowmill.jobs.cli import main

#: They need the broker's jars, which `make test` fetches.
pytestmark = pytest.mark.thorough

BEGIN_MS = 1_704_067_200_000


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDOWMILL_COMPUTE", "local")


@pytest.fixture(scope="module")
def topic(broker: Broker) -> str:
    """A topic of two partitions with 600 readings of 5 sensors, one a minute, each up to 20 minutes late."""
    name, order, messages = broker.topic(2), random.Random(7), []
    for number in range(600):
        minute = number - order.choice((0, 0, 0, 5, 20))
        reading = {
            "sensor": f"s{number % 5}",
            "measured_at": f"2024-01-{1 + minute // 1440:02}T{minute // 60 % 24:02}:{minute % 60:02}:00Z" if minute >= 0 else None,
            "celsius": 20 + number % 7 / 2,
            "level": number % 9,
            "odd name": "x",
        }
        messages.append((json.dumps(reading).encode(), number % 2, BEGIN_MS + 60_000 * number))
    broker.send_each(name, [*messages, (b"no JSON", 0, BEGIN_MS), (b"", 0, BEGIN_MS)])
    return name


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["init", *arguments, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    capsys.readouterr()
    assert main(["init", *arguments]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_spec_runs_as_it_is(tmp_path, broker, topic, capsys):
    answer = told(capsys, "--source", f"kafka://{broker.address}/{topic}")
    assert answer["source"]["format"] == "kafka"
    assert answer["source"]["options"] == {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "schema": "sensor STRING, measured_at TIMESTAMP, celsius DOUBLE, level BIGINT, `odd name` STRING",
    }
    assert (answer["keys"], answer["time"]["column"]) == (["sensor"], "measured_at")
    assert answer["time"]["tie_break"] == ["kafka_partition", "kafka_offset"]
    assert answer["time"]["disorder"] == "30 minutes"
    assert list(answer["aggregates"]) == ["rows", "mean_celsius", "max_celsius", "mean_level", "max_level"]
    assert (answer["rows_examined"], answer["sink"]) == (602, {"path": str(tmp_path / f"{topic}_windows")})
    for step in answer["next"]:
        assert main(step.split()[1:]) == 0, step
    assert "parts of the messages: all but one row in a thousand come within" in Path(answer["spec"]).read_text()
    rows = DeltaTable(answer["sink"]["path"]).to_pyarrow_table().to_pylist()
    assert {row["sensor"] for row in rows} == {f"s{n}" for n in range(5)}
    capsys.readouterr()
    assert main(["status", answer["spec"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows_read"] == 602


def test_messages_that_were_sent_twice_are_told(broker, capsys):
    topic = broker.topic()
    sent = [json.dumps({"event_id": f"e{n}", "page": f"p{n % 3}", "n": n}).encode() for n in range(50)]
    broker.send(topic, *sent, *sent[:5])
    answer = told(capsys, "--source", f"kafka://{broker.address}/{topic}")
    assert yaml.safe_load(Path(answer["spec"]).read_text())["dedup"] == {"by": ["event_id"]}


def test_options_are_the_sources_own_and_a_secret_is_never_written(broker, topic, capsys, monkeypatch):
    monkeypatch.setenv("TOPICS_PASSWORD", PASSWORD)
    login = ("kafka.security.protocol=SASL_PLAINTEXT", "kafka.sasl.mechanism=PLAIN", f"kafka.sasl.username={USER}")
    flags = [word for option in (*login, "schema=sensor STRING, measured_at STRING") for word in ("--option", option)]
    source = ("--source", f"kafka://{broker.guarded}/{topic}")
    written = refused(capsys, *source, *flags, "--option", f"kafka.sasl.password={PASSWORD}")
    assert "kafka.sasl.password: expected the name of a variable" in written
    assert PASSWORD not in written
    answer = told(capsys, *source, *flags, "--option", "kafka.sasl.password=${TOPICS_PASSWORD}")
    assert answer["source"]["options"]["schema"] == "sensor STRING, measured_at STRING"
    text = Path(answer["spec"]).read_text()
    assert PASSWORD not in text
    assert "${TOPICS_PASSWORD}" in text
    assert main(["run", answer["spec"]]) == 0


def test_the_time_of_the_message_serves_where_it_has_no_other(broker, capsys):
    topic = broker.topic()
    broker.send(topic, *(json.dumps({"page": f"p{n % 3}", "n": n}).encode() for n in range(50)))
    answer = told(capsys, "--source", f"kafka://{broker.address}/{topic}")
    assert (answer["time"]["column"], answer["keys"]) == ("kafka_timestamp", ["page"])


def test_what_cannot_be_proposed_is_told_and_nothing_is_written(tmp_path, broker, topic, capsys):
    empty = broker.topic()
    here = f"kafka://{broker.address}"
    assert "expected kafka://host:9092" in refused(capsys, "--source", "kafka://only")
    assert "expected kafka://host:9092" in refused(capsys, "--source", "readings", "--format", "kafka")
    assert "there is no topic 'nowhere'" in refused(capsys, "--source", f"{here}/nowhere", code=1)
    assert "has no message that is a JSON object" in refused(capsys, "--source", f"{here}/{empty}", code=1)
    assert "expected name=value" in refused(capsys, "--source", f"{here}/{topic}", "--option", "schema")
    assert "source.options.group.id: unknown" in refused(capsys, "--source", f"{here}/{topic}", "--option", "group.id=x")
    assert "has no column 'sensr'; did you mean 'sensor'?" in refused(capsys, "--source", f"{here}/{topic}", "--keys", "sensr")
    assert not list(tmp_path.glob("*.yaml"))
