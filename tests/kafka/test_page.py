"""The page about topics shows what its commands print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

from tests.docs.console import ROOT, Stage, play, settled
from tests.kafka.brokers import Broker, running

#: It needs the broker's jars, which `make test` fetches.
pytestmark = pytest.mark.thorough

PAGE = ROOT / "docs" / "how-to" / "kafka.md"


def played(broker: Broker) -> str:
    """The page with what its commands print now."""
    broker.topic(name="orders")

    def send(rows: pa.Table) -> None:
        messages = []
        for row in rows.to_pylist():
            value: dict[str, Any] = row | {"ordered_at": row["ordered_at"].isoformat()}
            messages.append((json.dumps(value).encode(), 0, int(row["ordered_at"].timestamp() * 1_000)))
        broker.send_each("orders", messages)

    with TemporaryDirectory() as folder:  # a short path: tables wrap the long one of pytest
        return play(PAGE.read_text(), Path(folder), Stage(land=send, variables={"BROKERS": (broker.address, "broker-1:9092")}))


def test_the_page_shows_what_its_commands_print(broker):
    assert settled(played(broker)) == settled(PAGE.read_text()), "`python -m tests.kafka.test_page` writes what is printed now"


if __name__ == "__main__":
    with TemporaryDirectory() as temporary, running(Path(temporary)) as started:
        PAGE.write_text(played(started))
    sys.exit(0)
