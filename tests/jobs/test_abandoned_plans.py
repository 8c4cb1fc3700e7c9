"""A batch that was dropped says nothing of what the pipeline has built: later plans are not compared with it. No JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.plans import Plan
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.errors import SpecChangedError
from windowmill.windowing.specfile import parse_pipeline

AT = datetime(2024, 1, 1, tzinfo=UTC)


class Folder:
    """A pipeline's spec over a source below a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec: dict[str, Any] = {
            "pipeline": "p",
            "source": {"path": self.source("source")},
            "time": {"column": "t", "unit": "none"},
            "windows": [{"name": "w", "type": "tumbling", "size": 10, "origin": 0}],
            "aggregates": {"n": {"count": "*"}},
            "sink": {"path": str(path / "sink")},
        }

    def source(self, name: str) -> str:
        write_deltalake(str(self.path / name), pa.table({"t": [1, 2], "v": [1.0, 2.0]}))
        return str(self.path / name)

    def plan(self, **changes: Any) -> Plan:
        pipeline = parse_pipeline(self.spec | changes)
        plan = next_run(runnable_of(pipeline), Ledger.open(pipeline))
        assert plan is not None
        return plan

    def hold(self) -> None:
        """Record the next batch, as held."""
        ledger = Ledger.open(parse_pipeline(self.spec))
        ledger.record(self.plan(), Outcome(seen=None, emitted=None, verdict="held"), {}, AT)

    def abandon(self) -> None:
        ledger = Ledger.open(parse_pipeline(self.spec))
        ledger.rule(Outcome(seen=None, emitted=None, verdict="abandoned"), None, AT)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_a_first_batch_with_a_wrong_definition_can_be_corrected(folder):
    changed = {"aggregates": {"n": {"sum": "v"}}}
    folder.hold()
    with pytest.raises(SpecChangedError):
        folder.plan(**changed)
    folder.abandon()
    assert folder.plan(**changed).batch == 1


def test_a_first_batch_over_a_wrong_source_can_be_corrected(folder):
    folder.hold()
    folder.abandon()
    assert folder.plan(source={"path": folder.source("other")}).batch == 1


def test_modules_of_a_dropped_batch_bind_nobody(folder, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.user_code.module_digests", lambda _: {"mine": "edited"})
    folder.hold()
    folder.abandon()
    monkeypatch.setattr("windowmill.jobs.user_code.module_digests", lambda _: {"mine": "as it was"})
    assert folder.plan().batch == 1


def test_time_zones_of_a_dropped_batch_bind_nobody(folder, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.user_code._zones", lambda _: ["Europe/Vienna"])
    folder.hold()
    folder.abandon()
    monkeypatch.setattr("windowmill.jobs.user_code._zone_digest", lambda *_: "as by other data")
    assert folder.plan().batch == 1


def test_many_dropped_batches(folder):
    for batch in range(12):
        assert folder.plan().batch == batch
        folder.hold()
        folder.abandon()
    ledger = Ledger.open(parse_pipeline(folder.spec))
    assert ledger.newest_kept is None
    assert ledger.written() == {}
    assert ledger.totals.batches == 0
