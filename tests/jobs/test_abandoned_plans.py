"""A plan that was dropped says nothing of what the pipeline has built: later plans are not compared with it. No JVM."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from windowmill.checkpoints.ledger import Ledger
from windowmill.jobs.batch.planning import next_run
from windowmill.jobs.spec_checks import runnable_of
from windowmill.windowing.errors import CodeChangedError, SpecChangedError
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

    def plan(self, **changes: Any) -> int:
        pipeline = parse_pipeline(self.spec | changes)
        plan = next_run(runnable_of(pipeline), Ledger.open(pipeline))
        assert plan is not None
        return plan.batch

    def abandon(self) -> None:
        ledger = Ledger.open(parse_pipeline(self.spec))
        ledger.record_abandoned(ledger.open_batch.plan, AT)


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_a_first_plan_with_a_wrong_definition_can_be_corrected(folder):
    changed = {"aggregates": {"n": {"sum": "v"}}}
    folder.plan()
    with pytest.raises(SpecChangedError):
        folder.plan(**changed)
    folder.abandon()
    assert folder.plan(**changed) == 1


def test_a_first_plan_over_a_wrong_source_can_be_corrected(folder):
    folder.plan()
    folder.abandon()
    assert folder.plan(source={"path": folder.source("other")}) == 1


def test_modules_of_a_dropped_plan_bind_nobody(folder, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.user_code.module_digests", lambda _: {"mine": "edited"})
    folder.plan()
    monkeypatch.setattr("windowmill.jobs.user_code.module_digests", lambda _: {"mine": "as it was"})
    with pytest.raises(CodeChangedError):
        folder.plan()
    folder.abandon()
    assert folder.plan() == 1


def test_time_zones_are_compared_with_those_of_the_newest_plan(folder, monkeypatch):
    monkeypatch.setattr("windowmill.jobs.user_code._zones", lambda _: ["Europe/Vienna"])
    folder.plan()
    assert folder.plan() == 0
    monkeypatch.setattr("windowmill.jobs.user_code._zone_digest", lambda *_: "as by other data")
    with pytest.raises(CodeChangedError, match="time zone Europe/Vienna"):
        folder.plan()
    folder.abandon()
    assert folder.plan() == 1


def test_many_dropped_plans(folder):
    for batch in range(12):
        assert folder.plan() == batch
        folder.abandon()
    ledger = Ledger.open(parse_pipeline(folder.spec))
    assert ledger.newest_kept is None
    assert ledger.written() == {}
    assert ledger.totals.batches == 0
