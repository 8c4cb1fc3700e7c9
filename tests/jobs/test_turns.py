"""One process at a time, and rulings on held batches alone; without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.checkpoints.records import NOW, commit, plan
from tests.spark.harness import quiet
from tests.specs import SECONDS, TENS, a_spec
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.protocol import lease
from windowmill.jobs.batch import loop
from windowmill.jobs.commands import maintenance_command
from windowmill.windowing.errors import LeaseTakenError, LedgerError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline


@pytest.fixture
def pipeline(tmp_path, monkeypatch) -> Pipeline:
    monkeypatch.setattr(loop, "LEASE_WAIT_SECONDS", 0)
    monkeypatch.setattr(maintenance_command, "LEASE_WAIT_SECONDS", 0)
    write_deltalake(str(tmp_path / "source"), pa.table({"t": [1]}))
    return parse_pipeline(a_spec(tmp_path, time=SECONDS, windows=[TENS]))


@pytest.fixture
def taken(pipeline) -> Iterator[Path]:
    """The pipeline's folder, which another run holds."""
    root = Places.of(pipeline).root
    with lease(root, wait_seconds=0, on_wait=print):
        yield Path(root)


COMMANDS: dict[str, Callable[[Pipeline], Any]] = {
    "run": lambda pipeline: loop.run(pipeline, quiet()),
    "backfill": lambda pipeline: loop.backfill(pipeline, quiet(), begin=0, end=10),
    "release": lambda pipeline: loop.run(pipeline, quiet(), ruling="release"),
    "abandon": lambda pipeline: loop.abandon(pipeline, quiet()),
    "maintain": lambda pipeline: maintenance_command.maintain(pipeline, quiet()),
}


@pytest.mark.covers("P7")
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_writes_waits_for_the_run_that_is_under_way(pipeline, taken, monkeypatch, command):
    monkeypatch.setattr(loop.Turn, "execute", lambda *_: pytest.fail("it did not wait"))
    with pytest.raises(LeaseTakenError, match="another run is under way"):
        COMMANDS[command](pipeline)


@pytest.mark.covers("P7")
def test_a_lease_cannot_be_taken_by_removing_its_file(pipeline, taken):
    (taken / ".lease").unlink()
    with pytest.raises(LeaseTakenError), lease(str(taken), wait_seconds=0, on_wait=print):
        pass


def recorded(pipeline: Pipeline, verdict: str) -> Ledger:
    """The ledger with one batch that has no files."""
    ledger = Ledger.open(pipeline)
    ledger.record(plan(0, pipeline="p", meaning=pipeline.meaning_hash()), commit(verdict=verdict), {}, NOW)
    return ledger


@pytest.mark.covers("Q1")
@pytest.mark.parametrize("ruling", ["release", "discard"])
def test_only_a_batch_that_is_held_is_ruled_on(pipeline, monkeypatch, ruling):
    recorded(pipeline, "passed")
    monkeypatch.setattr(loop.Turn, "execute", lambda *_: pytest.fail("no batch is held"))
    with pytest.raises(LedgerError, match=f"no batch is held, so there is nothing to {ruling}"):
        loop.run(pipeline, quiet(), ruling=ruling)


@pytest.mark.covers("Q1")
@pytest.mark.parametrize(("first", "second"), [("release", "discard"), ("discard", "release")])
def test_a_held_batch_is_ruled_on_once(pipeline, first, second):
    recorded(pipeline, "held")
    [done] = loop.run(pipeline, quiet(), ruling=first)
    assert done.outcome.verdict == {"release": "released", "discard": "discarded"}[first]
    with pytest.raises(LedgerError, match=f"no batch is held, so there is nothing to {second}"):
        loop.run(pipeline, quiet(), ruling=second)


def test_a_ruling_is_on_one_batch(pipeline, monkeypatch):
    """What comes after a held batch has not been looked at by whoever ruled."""
    recorded(pipeline, "held")
    monkeypatch.setattr(loop.Turn, "execute", lambda *_: pytest.fail("another batch"))
    assert [done.plan.batch for done in loop.run(pipeline, quiet(), ruling="release")] == [0]
