"""The steps of a batch over stand-ins for Spark and the tables: their order, the gate, and what the commit tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.checkpoints.records import plan
from tests.spark.harness import quiet
from windowmill.checkpoints.batches import Written
from windowmill.expectations.gate import Verdict
from windowmill.jobs.batch import steps
from windowmill.jobs.spec_checks import runnable_of
from windowmill.jobs.ways import balance, input
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.windowing.errors import HeldError, WindowmillError
from windowmill.windowing.specfile import parse_pipeline

PIPELINE = parse_pipeline(
    {
        "pipeline": "p",
        "source": {"path": "/source"},
        "time": {"column": "t", "unit": "none"},
        "windows": [{"name": "w", "type": "tumbling", "size": 10}],
        "aggregates": {"n": {"count": "*"}},
        "sink": {"path": "/sink"},
    }
)
ROWS = pa.table({"window": ["w"], "n": [1]})


class Attempt:
    """Records what a batch asks of the protocol."""

    id = "me"

    def __init__(self, landed: str | None = None) -> None:
        self.landed, self.written, self.writes = landed, {"sink": Written(3, "id", 7)}, []
        self.counts: dict[str, int | None] = {}

    def verdict(self) -> str | None:
        return self.landed

    def app_id(self, role: str) -> str:
        return f"app/{role}"

    def metadata(self, **more: str) -> str:
        return json.dumps(more)

    def write(self, role: str, write: Callable[[], object], _same: Callable[[], bool], *, count: int | None = None) -> Any:
        self.writes.append(role)
        self.counts[role] = count
        write()
        return SimpleNamespace(version=7)


def batch_of(attempt: Attempt, monkeypatch: pytest.MonkeyPatch, **values: Any) -> Any:
    """A batch whose constructor, which opens tables, has not run; ``held`` and ``recorded`` are noted instead of written."""
    made: Any = object.__new__(steps._Steps)
    made.runnable, made.pipeline, made.attempt, made.plan, made.progress = (
        runnable_of(PIPELINE),
        PIPELINE,
        attempt,
        plan(3, **values),
        quiet(),
    )
    made.places, made.ledger = SimpleNamespace(held="/held", quarantine="/quarantine"), SimpleNamespace(open_batch=None)
    made.batch = SimpleNamespace(reading=SimpleNamespace(rows_ignored=5), sink_schema=ROWS.schema, instants=False)
    made.spark, made.collected = None, ROWS
    made.noted = []
    monkeypatch.setattr(steps._Steps, "_hold", lambda self, *_: self.noted.append("held"))
    monkeypatch.setattr(steps._Steps, "_record", lambda self, *_: self.noted.append("recorded"))
    return made


def result(quarantined: Any = None, **values: Any) -> Applied:
    counts = {"rows": ROWS, "windows": {"w": (1, 10, 10)}, "rows_applied": 6, "rows_late": 2}
    return Applied(Emission(20, 10, 0, 10), Computed(**counts | values), 9, quarantined)


@pytest.mark.covers("Q1")
def test_a_batch_that_a_critical_rule_fails_is_held_unless_it_has_been_ruled_on(monkeypatch):
    monkeypatch.setattr(steps, "validate", lambda *_, **__: Verdict("held", ()))
    held = batch_of(Attempt(), monkeypatch)
    with pytest.raises(HeldError, match="batch 3 is held, nothing was published"):
        held.validate(result(), None)
    assert held.noted == ["recorded", "held"]
    for ruling, verdict in (("release", "released"), ("discard", "discarded")):
        ruled = batch_of(Attempt(), monkeypatch)
        assert ruled.validate(result(), ruling) == verdict
        assert ruled.noted == ["recorded"]


@pytest.mark.covers("Q1")
def test_what_an_earlier_attempt_published_is_not_validated_again(monkeypatch):
    monkeypatch.setattr(steps, "validate", lambda *_, **__: Verdict("held", ()))
    found = batch_of(Attempt("warned"), monkeypatch)
    assert found.validate(result(), None) == "warned"
    assert found.noted == []


def test_a_discarded_batch_publishes_no_rows_and_its_commit_says_so(monkeypatch):
    batch = batch_of(Attempt(), monkeypatch)
    assert batch.publish(result(), "discarded") is None
    assert batch.attempt.writes == []
    told = batch._outcome(result(), "discarded", None, 4)
    assert (told.rows_published, told.windows, told.verdict) == (0, {}, "discarded")


def test_the_sinks_commit_tells_its_verdict(monkeypatch):
    """An attempt that finds the rows published takes it from there."""
    told = []
    monkeypatch.setattr(steps.sink, "takes_table", lambda *_: True)
    monkeypatch.setattr(steps.sink, "publish", lambda *_, metadata, **__: told.append(json.loads(metadata)))
    batch = batch_of(Attempt(), monkeypatch)
    assert batch.publish(result(), "released") == 7
    assert told == [{"verdict": "released"}]


@pytest.mark.parametrize(("builds_state", "counts"), [(True, {"sink": 1, "quarantine": 4}), (False, {"sink": None})])
def test_a_commit_is_to_hold_the_rows_computed_unless_it_replaces_others(monkeypatch, builds_state, counts):
    monkeypatch.setattr(steps.sink, "takes_table", lambda *_: True)
    monkeypatch.setattr(steps.sink, "publish", lambda *_, **__: None)
    monkeypatch.setattr(steps, "prepare", lambda *_: None)
    own = {} if builds_state else {"action": "backfill", "range_from": 0, "range_to": 10, "builds_state": False}
    batch = batch_of(Attempt(), monkeypatch, **own)
    batch.publish(result(quarantined=SimpleNamespace(schema=None, rows=4, append_to=lambda *_, **__: None)), "passed")
    assert batch.attempt.counts == counts


@pytest.mark.covers("P8")
@pytest.mark.parametrize(("builds_state", "writes"), [(True, ["quarantine"]), (False, [])], ids=["run", "backfill of a running pipeline"])
def test_only_batches_that_go_on_set_rows_aside(monkeypatch, builds_state, writes):
    """A backfill reads rows again that the batches before it have set aside."""
    monkeypatch.setattr(steps._Steps, "_publish", lambda *_: 7)
    monkeypatch.setattr(steps, "prepare", lambda *_: None)
    staged = SimpleNamespace(schema=None, rows=4, append_to=lambda *_, **__: None)
    own = {} if builds_state else {"action": "backfill", "range_from": 0, "range_to": 10, "builds_state": False}
    batch = batch_of(Attempt(), monkeypatch, **own)
    batch.publish(result(quarantined=staged), "passed")
    assert batch.attempt.writes == writes


def test_the_commit_tells_what_was_read_and_what_was_written_where(monkeypatch):
    told = batch_of(Attempt(), monkeypatch)._outcome(result(quarantined=SimpleNamespace(rows=3), new_state=11), "passed", 7, 8)
    assert (told.seen, told.emitted, told.window_end_min, told.window_end_max) == (20, 10, 10, 10)
    assert (told.rows_read, told.rows_applied, told.rows_late, told.rows_quarantined, told.rows_ignored) == (9, 6, 2, 3, 5)
    assert (told.sink_version, told.state_version, told.slices, told.rows_published) == (7, 8, 11, 1)
    assert told.written == {"sink": Written(3, "id", 7)}
    assert told.attempt == "me"


def test_the_ledger_is_told_last(monkeypatch):
    called = []

    class Steps:
        def __getattr__(self, name: str) -> Callable[..., object]:
            return lambda *_: called.append(name)

    @contextmanager
    def opened(*_: object) -> Iterator[Steps]:
        yield Steps()

    monkeypatch.setattr(steps, "_steps", opened)
    steps.run_batch(*[None] * 4)  # type: ignore[arg-type]
    assert called == ["survey", "restore", "apply", "validate", "publish", "remember", "commit", "compact"]


def applied(monkeypatch: pytest.MonkeyPatch, *, counted: int, set_aside: int, logged: int | None, filtered: bool = False) -> Applied:
    """A batch of ten rows that the source's log tells to be ``logged``."""
    monkeypatch.setattr(balance, "set_aside", lambda *_: SimpleNamespace(rows=set_aside, drop=lambda: None))
    source = SimpleNamespace(filter="v > 1" if filtered else None)
    batch: Any = SimpleNamespace(
        plan=plan(3),
        columns=SimpleNamespace(struct=SimpleNamespace(names=[])),
        files=[SimpleNamespace(rows=logged)],
        pipeline=PIPELINE,
        runnable=SimpleNamespace(source=source),
    )
    judged: Any = object()
    return balance.settle(batch, Emission(1, 1, 0, 1), Computed(rows_applied=counted, judged=judged), 10, "/staging")


@pytest.mark.parametrize(
    "counts",
    [
        {"counted": 9, "set_aside": 1, "logged": 10},
        {"counted": 10, "set_aside": 0, "logged": None},
        {"counted": 10, "set_aside": 0, "logged": 12, "filtered": True},
    ],
    ids=str,
)
def test_rows_read_are_applied_or_set_aside(monkeypatch, counts):
    assert applied(monkeypatch, **counts).rows_read == 10


@pytest.mark.parametrize(
    "counts",
    [
        {"counted": 9, "set_aside": 0, "logged": 10},
        {"counted": 9, "set_aside": 2, "logged": 10},
        {"counted": 10, "set_aside": 0, "logged": 11},
    ],
    ids=str,
)
def test_a_batch_that_loses_or_doubles_rows_is_not_published(monkeypatch, counts):
    with pytest.raises(WindowmillError, match="they must balance, so nothing was published"):
        applied(monkeypatch, **counts)


def test_the_future_begins_where_the_plan_was_made_however_late_the_retry(monkeypatch):
    seen = []

    class EnoughError(Exception):
        pass

    def read_rows(*_: object, now_us: int) -> None:
        seen.append(now_us)
        raise EnoughError

    monkeypatch.setattr(input, "read_rows", read_rows)
    batch: Any = SimpleNamespace(plan=plan(0, now_us=77), pipeline=PIPELINE, runnable=None, source=None, reading=None)
    spark: Any = None
    with pytest.raises(EnoughError):
        TableInput.read(batch, spark)
    assert seen == [77]
