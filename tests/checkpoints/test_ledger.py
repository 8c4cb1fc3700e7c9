"""The ledger: plans, commits, and what happens when two attempts meet or a record is damaged."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from tests.checkpoints.records import NOW, commit, plan
from windowmill.checkpoints.lease import lease
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.record_table import DeltaRecords
from windowmill.checkpoints.records import Record
from windowmill.windowing.errors import FencedError, LeaseTakenError, LedgerCorruptError, LedgerError, SpecChangedError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "ledger")


def test_a_new_ledger_is_empty_and_leaves_no_trace(path):
    ledger = Ledger(path)
    assert (ledger.batches(), ledger.last_commit, ledger.open_batch) == ([], None, None)
    assert not Path(path).exists()


def test_a_batch_opens_with_its_plan_and_ends_with_its_commit(path):
    ledger = Ledger(path)
    ledger.record_plan(plan(0), NOW)
    assert Ledger(path).open_batch.plan == plan(0)
    ledger.record_commit(plan(0), commit(windows={"w": 3}, timings={"apply": 1.5}), NOW)
    again = Ledger(path)
    assert again.open_batch is None
    assert again.last_commit.outcome == commit(windows={"w": 3}, timings={"apply": 1.5})
    assert [(b.number, b.status, b.committed_at) for b in again.batches()] == [(0, "committed", NOW)]


#: Bodies of the records of the plans in the next test, byte for byte.
RUN = (
    '{"batch": 0, "action": "run", "attempt": "a", "generation": "g", "source_id": "s", "from_version": -1, "to_version": 0, "now_us": 0, '
    '"meaning": "m", "source_schema": "{}", "seen": 10, "emitted": 5, "range_from": null, "range_to": null, "interval_end": 9, '
    '"found_closed": [], "builds_state": true, "windowmill": "0.1.0", "snapshot": 0, "modules": {"m": "12"}, "tzdata": null, "zones": {}, '
    '"app": "windowmill/g", "source_mark": "5f", "pipeline": "p", "definition": {"keys": ["k"]}}'
)
BACKFILL = (
    '{"batch": 0, "action": "backfill", "attempt": "a", "generation": "g", "source_id": "s", "from_version": -1, "to_version": 0, '
    '"now_us": 0, "meaning": "m", "source_schema": "{}", "seen": null, "emitted": null, "range_from": -5, "range_to": 5, '
    '"interval_end": null, "found_closed": [[1, null], [2, 7]], "builds_state": false, "windowmill": "", "snapshot": null, "modules": {}, '
    '"tzdata": null, "zones": {"UTC": "34"}, "app": null, "source_mark": null, "pipeline": "", "definition": {}}'
)


@pytest.mark.parametrize(
    ("planned", "stored"),
    [
        (
            plan(
                0,
                seen=10,
                emitted=5,
                interval_end=9,
                windowmill="0.1.0",
                snapshot=0,
                modules={"m": "12"},
                app="windowmill/g",
                source_mark="5f",
                pipeline="p",
                definition={"keys": ["k"]},
            ),
            RUN,
        ),
        (
            plan(
                0, action="backfill", range_from=-5, range_to=5, found_closed=[[1, None], [2, 7]], builds_state=False, zones={"UTC": "34"}
            ),
            BACKFILL,
        ),
    ],
    ids=["run", "backfill"],
)
def test_the_stored_form_of_a_plan_stays_as_it_is(path, planned, stored):
    ledger = Ledger(path)
    ledger.record_plan(planned, NOW)
    [record] = DeltaRecords(path).load()
    assert record.body == stored
    assert Ledger(path).open_batch.plan == planned


def test_a_held_batch_stays_open_and_counts_its_holds(path):
    ledger = Ledger(path)
    ledger.record_plan(plan(0), NOW)
    for _ in range(2):
        ledger.record_held(plan(0), commit(verdict="held"), NOW)
    assert (ledger.open_batch.status, ledger.open_batch.holds, ledger.open_batch.committed_at) == ("held", 2, None)
    ledger.record_commit(plan(0), commit(verdict="released"), NOW)
    assert (ledger.open_batch, ledger.last_commit.verdict) == (None, "released")


def test_a_backfill_of_a_running_pipeline_does_not_move_it(path):
    ledger = Ledger(path)
    for number, changes in enumerate([{}, {"action": "backfill", "builds_state": False, "range_from": 0, "range_to": 9}]):
        ledger.record_plan(plan(number, **changes), NOW)
        ledger.record_commit(plan(number, **changes), commit(emitted=number), NOW)
    assert ledger.last_commit.number == 0
    assert len(ledger.batches()) == 2


@pytest.mark.parametrize("kind", ["plan", "commit"])
def test_of_two_attempts_that_read_the_same_ledger_one_is_fenced(path, kind):
    first = Ledger(path)
    if kind == "commit":
        first.record_plan(plan(0), NOW)
    else:
        first.record_plan(plan(0), NOW)
        first.record_commit(plan(0), commit(), NOW)
    first, second = Ledger(path), Ledger(path)
    record = (
        (lambda ledger, a: ledger.record_plan(plan(1, a), NOW))
        if kind == "plan"
        else (lambda ledger, a: ledger.record_commit(plan(0, a), commit(), NOW))
    )
    record(first, "x")
    with pytest.raises(FencedError, match="stops without effect"):
        record(second, "y")
    batches = Ledger(path).batches()
    assert len(batches) == (2 if kind == "plan" else 1)
    with pytest.raises(FencedError):
        record(second, "y")


def test_many_attempts_at_once_leave_one_plan(path):
    Ledger(path).record_plan(plan(0), NOW)
    Ledger(path).record_commit(plan(0), commit(), NOW)
    barrier, fenced, won = threading.Barrier(6), [], []

    def attempt(name: str) -> None:
        ledger = Ledger(path)
        barrier.wait()
        try:
            ledger.record_plan(plan(1, name), NOW)
            won.append(name)
        except FencedError:
            fenced.append(name)

    threads = [threading.Thread(target=attempt, args=(f"t{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(fenced)) == (1, 5)
    assert Ledger(path).open_batch.plan.attempt == won[0]


def test_a_plan_out_of_turn_is_refused(path):
    ledger = Ledger(path)
    with pytest.raises(FencedError):
        ledger.record_plan(plan(3), NOW)
    ledger.record_plan(plan(0), NOW)
    with pytest.raises(FencedError):
        ledger.record_plan(plan(1), NOW)
    with pytest.raises(FencedError):
        ledger.record_commit(plan(1), commit(), NOW)


def test_a_changed_meaning_is_refused_and_changed_expectations_are_not(path):
    spec = {
        "pipeline": "p", "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}},
    }  # fmt: skip
    ledger = Ledger(path)
    ledger.record_plan(plan(0, meaning=parse_pipeline(spec).meaning_hash()), NOW)
    ledger.check_meaning(parse_pipeline(spec | {"expectations": [{"type": "expect_column_to_exist", "column": "n"}], "schedule": "@daily"}))
    with pytest.raises(SpecChangedError, match="give the new definition its own sink"):
        ledger.check_meaning(parse_pipeline(spec | {"keys": ["k"]}))


_WINDOWS = [{"name": "w", "type": "tumbling", "size": "1 hour"}, {"name": "v", "type": "tumbling", "size": "2 hours"}]


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"disorder": "30 minutes"}, {"disorder": "1 hour"}, r'time\.disorder was "30 minutes" and is "1 hour"; put the old ones back'),
        ({}, {"disorder": "1 hour"}, r'time\.disorder was not given and is "1 hour"; put'),
        ({"keys": ["k"]}, {"keys": ["k", "l"]}, r'keys was \["k"\] and is \["k", "l"\]; put'),
        ({}, {"windows": [_WINDOWS[0] | {"size": "3 hours"}, _WINDOWS[1]]}, r'windows\.w\.size was "1 hour" and is "3 hours"; put'),
        ({}, {"windows": _WINDOWS[:1]}, r'windows\.v was \{"name": "v", .*\} and is not given; put'),
        ({}, {"windows": _WINDOWS[::-1]}, r'the order of windows was \["w", "v"\] and is \["v", "w"\]; put'),
        (
            {},
            {"aggregates": {"n": {"sum": "v"}}},
            r'aggregates\.n\.count was "\*" and is not given; aggregates\.n\.sum was not given and is "v"',
        ),
        (
            {},
            {"emit": "revise", "source": {"path": "/s", "filter": "v > 1"}},
            r'emit was not given .*; filter was not given and is "v > 1"',
        ),
    ],
)
def test_a_changed_spec_names_the_field_with_its_old_and_new_value(path, before, now, told):
    def spec(changes: dict[str, Any]) -> Pipeline:
        time = {"column": "t"} | ({"disorder": changes.pop("disorder")} if "disorder" in changes else {})
        return parse_pipeline({"pipeline": "p", "time": time, "windows": _WINDOWS, "aggregates": {"n": {"count": "*"}}} | changes)

    old, new = spec(dict(before)), spec(dict(now))
    ledger = Ledger(path)
    ledger.record_plan(plan(0, meaning=old.meaning_hash(), definition=old.shown_meaning()), NOW)
    Ledger(path).check_meaning(old)
    with pytest.raises(SpecChangedError, match=rf"differ from those that built {path} \(last batch 0\): {told}") as refused:
        Ledger(path).check_meaning(new)
    assert refused.value.exit_code == 2


def test_neither_the_ledger_nor_a_changed_spec_tells_the_value_of_a_variable(path):
    def spec(token: str, column: str) -> Pipeline:
        fields = {
            "pipeline": "p", "source": {"path": "/s", "filter": "tenant = '${TENANT}' and v > 1"}, "time": {"column": column},
            "windows": _WINDOWS, "aggregates": {"n": {"count": "*"}},
        }  # fmt: skip
        return parse_pipeline(fields, environment={"TENANT": token})

    old = spec("hunter2", "t")
    Ledger(path).record_plan(plan(0, meaning=old.meaning_hash(), definition=old.shown_meaning()), NOW)
    assert Ledger(path).open_batch.plan.definition["filter"] == "tenant = '${TENANT}' and v > 1"
    with pytest.raises(SpecChangedError, match=r"\(last batch 0\): filter: the value of \$\{TENANT\} is another one; put") as refused:
        Ledger(path).check_meaning(spec("hunter3", "t"))
    assert "hunter" not in str(refused.value)
    with pytest.raises(SpecChangedError, match=r'\(last batch 0\): time\.column was "t" and is "u"; put'):
        Ledger(path).check_meaning(spec("hunter2", "u"))


SCHEMA = Schema.from_arrow(pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])).to_json()


def test_the_ledger_of_an_earlier_release_goes_on_unless_its_columns_followed_the_order_of_lines(path):
    spec = {
        "pipeline": "p", "keys": ["k"], "time": {"column": "t"}, "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
        "aggregates": {"n": {"count": "*"}, "s": {"sum": "v"}, "l": {"max": "k"}},
    }  # fmt: skip
    meaning = json.dumps(
        {
            "keys": ["k"],
            "time": {"column": "t"},
            "windows": [{"name": "w", "type": "tumbling", "size": "1 hour"}],
            "aggregates": spec["aggregates"],
        },
        sort_keys=True,
    )
    ledger = Ledger(path)
    ledger.record_plan(plan(0, meaning=hashlib.sha256(meaning.encode()).hexdigest(), source_schema=SCHEMA), NOW)
    ledger.check_meaning(parse_pipeline(spec))
    with pytest.raises(SpecChangedError, match="differ from those"):
        ledger.check_meaning(parse_pipeline(spec | {"time": {"column": "t", "max_future_skew": "2 days"}}))
    two = spec | {"aggregates": {"x": {"count": "*", "where": "v > 1"}, "y": {"count": "*", "where": "v > 2"}}}
    ledger = Ledger(f"{path}2")
    old = next(iter(parse_pipeline(two).older_meaning_hashes()))
    ledger.record_plan(plan(0, meaning=old, source_schema=SCHEMA), NOW)
    with pytest.raises(SpecChangedError, match=r"by the order of the aggregates.*give the pipeline a new sink"):
        ledger.check_meaning(parse_pipeline(two))


@pytest.mark.parametrize(
    ("changed", "was_utc"),
    [
        ({}, True),
        ({"origin": "2024-01-01T00:30:00Z"}, False),
        ({"timezone": None}, False),
        ({"size": "1 day"}, False),  # by the calendar: always wall time
    ],
)
def test_an_origin_that_was_read_as_utc_is_refused(path, changed, was_utc):
    window = {"name": "w", "type": "tumbling", "size": "6 hours", "origin": "2024-01-01T00:30:00", "timezone": "Europe/Berlin"} | changed
    window = {name: value for name, value in window.items() if value is not None}
    pipeline = parse_pipeline({"pipeline": "p", "time": {"column": "t"}, "windows": [window], "aggregates": {"n": {"count": "*"}}})
    before = hashlib.sha256(json.dumps(pipeline.meaning() | {"labels": 2}, sort_keys=True).encode()).hexdigest()
    ledger = Ledger(path)
    ledger.record_plan(plan(0, meaning=before, source_schema=SCHEMA), NOW)
    if was_utc:
        with pytest.raises(SpecChangedError, match=r"origin without an offset as UTC.*new sink"):
            ledger.check_meaning(pipeline)
    else:
        ledger.check_meaning(pipeline)
    mixed = {"windows": [window, {"name": "visits", "type": "session", "gap": "1 hour"}]}
    rows = parse_pipeline({"pipeline": "p", "time": {"column": "t"}, "aggregates": {"n": {"count": "*"}}} | mixed)
    assert rows.hashes_with_origins_in_utc() == ()


def test_a_lost_record_is_named(path):
    ledger = Ledger(path)
    for number in range(2):
        ledger.record_plan(plan(number), NOW)
        ledger.record_commit(plan(number), commit(), NOW)
    DeltaTable(path).delete("batch = 0 and kind = 'plan'")
    with pytest.raises(LedgerCorruptError, match=r"its log lists 3 records, but the newest \(of batch 1\) is number 3; restore"):
        Ledger(path)


def test_an_outcome_that_does_not_fit_is_not_written(path):
    ledger = Ledger(path)
    ledger.record_plan(plan(0), NOW)
    ledger.record_commit(plan(0), commit(emitted=5), NOW)
    ledger.record_plan(plan(1), NOW)
    with pytest.raises(LedgerError, match=r"nothing was written .*the watermark goes back at batch 1 \(emitted 4, 5 before it\)"):
        ledger.record_commit(plan(1), commit(emitted=4), NOW)
    assert Ledger(path).open_batch.number == 1


def test_a_damaged_log_is_refused_and_never_started_anew(path):
    ledger = Ledger(path)
    ledger.record_plan(plan(0), NOW)
    (Path(path) / "_delta_log" / f"{1:020d}.json").write_text("{")
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger(path)


def test_a_newer_format_is_refused(path):
    DeltaRecords(path).append(Record(99, "plan", 0, "a", NOW, "{}"))
    with pytest.raises(LedgerError, match="holds format 99, this windowmill reads format 3; upgrade"):
        Ledger(path)


def _hold(root: str, held, let_go) -> None:
    with lease(root, wait_seconds=0, on_wait=print):
        held.set()
        let_go.wait(30)


def test_the_lease_keeps_a_second_process_out_until_the_first_is_killed(tmp_path):
    context = multiprocessing.get_context("fork")
    held, let_go = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path), held, let_go))
    process.start()
    assert held.wait(30)
    told: list[str] = []
    with pytest.raises(LeaseTakenError, match=f"process {process.pid}"), lease(str(tmp_path), wait_seconds=0.5, on_wait=told.append):
        pass
    assert told == [f"another run of this pipeline is under way (process {process.pid}); waiting for it to end"]
    process.kill()
    process.join()
    with lease(str(tmp_path), wait_seconds=5, on_wait=told.append):
        pass
