"""The asset event: every committed batch is told at least once, whichever attempt committed it, and nothing new tells nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException

from tests.checkpoints.records import plan
from windowmill.checkpoints.batches import Batch, Outcome
from windowmill.checkpoints.ledger import Ledger
from windowmill.dags.operators import EVENTS_READ, AnnounceOperator
from windowmill.windowing.counts import Counts, WindowRows

pytestmark = pytest.mark.dag

ASSET = Asset(name="delays", uri="file:///tables/delays")
AT = datetime(2013, 2, 3, tzinfo=UTC)
HOUR = 3_600_000_000
FEBRUARY = 1_359_676_800_000_000


def windows(number: int, **rows: int) -> dict[str, WindowRows]:
    end = FEBRUARY + number * HOUR
    return {name: WindowRows(n, end, end + HOUR) for name, n in rows.items() if n}


def batch(number: int, rows: int = 5, *, status: str = "committed", action: str = "run", verdict: str = "passed", **changes) -> Batch:
    own = {"range_from": 0, "range_to": 1, "builds_state": False} if action == "backfill" else {}
    made = plan(number, f"attempt-{number}", action=action, generation="g1", source_id="source", meaning="meaning", **own)
    counts = Counts(**{"rows_late": 1, "quarantined": {"null_time": 2}, "windows": windows(number, hourly=rows)} | changes)
    return Batch(made, Outcome(None, None, verdict, counts), status, AT)


@pytest.fixture
def announce(monkeypatch, write_spec):
    """Runs the task over a ledger and the extras of earlier events, oldest first; returns the new event's extra."""
    spec = write_spec()

    def run(batches: list[Batch], earlier: list[dict | None] = (), generation: str = "g1", **context) -> dict:
        ledger = SimpleNamespace(since=lambda first: [batch for batch in batches if batch.number >= first], generation=generation)
        monkeypatch.setattr(Ledger, "open", classmethod(lambda *_: ledger))
        event = SimpleNamespace(extra={})
        inlets, outlets = {ASSET: Stored(earlier)}, {ASSET: event}
        returned = AnnounceOperator(task_id="announce", spec=spec, asset=ASSET).execute(
            {"inlet_events": inlets, "outlet_events": outlets, **context}
        )
        assert returned == event.extra == json.loads(json.dumps(returned))
        return returned

    return run


class Stored(list):
    """Airflow's accessor of stored events."""

    def __init__(self, extras):
        super().__init__(SimpleNamespace(extra=extra) for extra in extras)

    def ascending(self, ascending):
        return self if ascending else Stored([event.extra for event in reversed(self)])

    def limit(self, count):
        return Stored([event.extra for event in self[:count]])


def test_the_event_tells_rows_windows_verdict_and_interval(announce):
    batches = [batch(4, 3), batch(5, 4, verdict="warned", windows=windows(5, hourly=2, daily=2))]
    told = announce(batches, [{"batches": [0, 3], "generation": "g1"}], data_interval_start=datetime(2013, 2, 1, tzinfo=UTC))
    assert told == {
        "rows": 7,
        "windows": {"hourly": 5, "daily": 2},
        "window_end_min": "2013-02-01T04:00:00Z",
        "window_end_max": "2013-02-01T06:00:00Z",
        "verdict": "warned",
        "batches": [4, 5],
        "generation": "g1",
        "rows_late": 2,
        "rows_quarantined": 4,
        "data_interval_start": "2013-02-01T00:00:00+00:00",
    }


@pytest.mark.covers("P5")
def test_a_commit_whose_attempt_died_before_its_event_is_told_by_the_next(announce):
    # The retry found nothing new, so its summary names no batch.
    first = announce([batch(0), batch(1)], [{"batches": [0, 0], "generation": "g1"}])
    assert (first["batches"], first["rows"]) == ([1, 1], 5)
    with pytest.raises(AirflowSkipException):
        announce([batch(0), batch(1)], [{"batches": [0, 0], "generation": "g1"}, first])
    assert announce([batch(0), batch(1), batch(2)], [first])["batches"] == [2, 2]


def test_the_first_event_tells_the_whole_ledger(announce):
    assert announce([batch(0), batch(1, 0), batch(2)])["batches"] == [0, 2]


@pytest.mark.parametrize("batches", [[], [batch(0, status="open")], [batch(0, 0)], [batch(0), batch(1, 0, verdict="discarded")]])
def test_nothing_published_sends_no_event(announce, batches):
    with pytest.raises(AirflowSkipException):
        announce(batches, [{"batches": [0, 0], "generation": "g1"}] if len(batches) == 2 else [])


@pytest.mark.parametrize("status", ["abandoned", "held"])
def test_an_open_batch_is_told_once_it_has_been_committed(announce, status):
    first = announce([batch(0), batch(1, status=status)])
    assert first["batches"] == [0, 0]
    assert announce([batch(0), batch(1)], [first])["batches"] == [1, 1]


def test_a_backfill_is_told_even_when_it_leaves_no_rows(announce):
    told = announce([batch(0), batch(1, 0, action="backfill", windows={})], [{"batches": [0, 0], "generation": "g1"}])
    assert (told["batches"], told["rows"], told["window_end_min"]) == ([1, 1], 0, None)


def test_events_made_by_hand_and_of_another_ledger_say_nothing(announce):
    earlier = [{"batches": [0, 1], "generation": "g1"}, {"batches": [0, 99], "generation": "g0"}, {"from_rest_api": True}, {}, None]
    assert announce([batch(0), batch(1), batch(2)], earlier)["batches"] == [2, 2]
    with pytest.raises(AirflowSkipException):
        announce([batch(0), batch(1)], earlier)


def test_overlapping_announcements_do_not_take_the_mark_back(announce):
    earlier = [{"batches": [0, 2], "generation": "g1"}, {"batches": [0, 1], "generation": "g1"}]
    assert announce([batch(number) for number in range(4)], earlier)["batches"] == [3, 3]


def test_only_the_newest_events_are_read(announce):
    earlier = [{"batches": [0, 9], "generation": "g1"}] + [{"batches": [0, 1], "generation": "g1"}] * EVENTS_READ
    assert announce([batch(number) for number in range(4)], earlier)["batches"] == [2, 3]
