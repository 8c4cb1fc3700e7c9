"""The ledger: records and rulings, and what happens when two attempts meet or a record is damaged."""

from __future__ import annotations

import json
import multiprocessing
import threading
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.checkpoints.records import NOW, commit, history, plan
from tests.specs import a_spec
from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.ledger import OUTCOME, Ledger
from windowmill.checkpoints.protocol import lease
from windowmill.checkpoints.records import DeltaRecords, LedgerRecord
from windowmill.windowing.errors import FencedError, LeaseTakenError, LedgerCorruptError, LedgerError, OutdatedLedgerError, SpecChangedError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.specfile import parse_pipeline


def run(ledger: Ledger, number: int, **changes: Any) -> None:
    """Record a batch."""
    ledger.record(plan(number), commit(**changes), {}, NOW)


def test_a_new_ledger_is_empty_and_leaves_no_trace(path):
    ledger = Ledger(path)
    assert (ledger.batches(), ledger.last_commit, ledger.held_batch) == ([], None, None)
    assert not Path(path).exists()


def test_one_record_holds_plan_outcome_and_files(path):
    changes = {
        "sink": Changes((DataFile("a.parquet", 9, 3, 7, "{}"),), (DataFile("b.parquet", 8, 1, 7, "{}"),), ("c.parquet",), (1, 2), "{}"),
        "state": Changes(),
    }
    outcome = commit(rows_published=3, timings={"apply": 1.5}, compute={"engine": "local"}, used={"processor_seconds": 1.2})
    Ledger(path).record(plan(0), outcome, changes, NOW)
    again = Ledger(path)
    assert (again.last_commit.plan, again.last_commit.outcome, again.changes_of(again.last_commit)) == (plan(0), outcome, changes)
    assert [(b.number, b.status, b.committed_at) for b in again.batches()] == [(0, "committed", NOW)]
    assert [(record.kind, record.attempt) for record in DeltaRecords(path).load()] == [("batch", "a")]


@pytest.mark.parametrize(("within", "lost"), [((), "used"), (("counts",), "late_missed"), (("counts", "windows", "w"), "last_end")])
def test_a_record_that_lacks_a_field_at_any_depth_is_damaged(path, within, lost):
    [record] = history(1)
    body = json.loads(record.body)
    del reduce(getitem, within, body[OUTCOME])[lost]
    DeltaRecords(path).append(replace(record, body=json.dumps(body)))
    with pytest.raises(LedgerCorruptError, match=r"the batch of batch 0 (has no|cannot be read|has a)"):
        assert Ledger(path).last_commit


#: Bodies of the records of the plans in the next test, byte for byte.
RUN = (
    '{"batch": 0, "attempt": "a", "generation": "g", "source_id": "s", "from_version": -1, "to_version": 0, "now_us": 0, '
    '"meaning": "m", "source_schema": "{}", "seen": 10, "emitted": 5, "windowmill": "0.1.0", "snapshot": 0, "modules": {"m": "12"}, '
    '"tzdata": null, "zones": {}, "source_mark": "5f", "pipeline": "p", "definition": {"keys": ["k"]}, "interval_end": 9, "action": "run"}'
)
BACKFILL = (
    '{"batch": 0, "attempt": "a", "generation": "g", "source_id": "s", "from_version": -1, "to_version": 0, "now_us": 0, '
    '"meaning": "m", "source_schema": "{}", "seen": null, "emitted": null, "windowmill": "", "snapshot": null, "modules": {}, '
    '"tzdata": null, "zones": {"UTC": "34"}, "source_mark": null, "pipeline": "", "definition": {}, "range_from": -5, "range_to": 5, '
    '"builds_state": false, "found_closed": [[1, null], [2, 7]], "read_from": null, "action": "backfill"}'
)


_RUN = {
    "seen": 10,
    "emitted": 5,
    "interval_end": 9,
    "windowmill": "0.1.0",
    "snapshot": 0,
    "modules": {"m": "12"},
    "source_mark": "5f",
    "pipeline": "p",
    "definition": {"keys": ["k"]},
}
_BACKFILL = {
    "action": "backfill",
    "range_from": -5,
    "range_to": 5,
    "found_closed": [(1, None), (2, 7)],
    "builds_state": False,
    "zones": {"UTC": "34"},
}


@pytest.mark.parametrize(("fields", "stored"), [(_RUN, RUN), (_BACKFILL, BACKFILL)], ids=["run", "backfill"])
def test_the_stored_form_of_a_plan_stays_as_it_is(path, fields, stored):
    ledger, planned = Ledger(path), plan(0, **fields)
    ledger.record(planned, commit(), {}, NOW)
    [record] = DeltaRecords(path).load()
    assert json.dumps(json.loads(record.body)["plan"]) == stored
    assert Ledger(path).newest.plan == planned


def test_a_held_batch_waits_for_a_ruling_and_counts_its_holds(path):
    ledger = Ledger(path)
    validation = Changes((DataFile("a.parquet", 9, 3, 7, "{}"),))
    run(ledger, 0, verdict="held", rows_published=3)
    ledger.rule(commit(verdict="held", rows_published=3), validation, NOW)
    held = Ledger(path).held_batch
    assert (held.status, held.holds, held.committed_at, held.counts.rows_published, held.validations) == ("held", 2, None, 0, [validation])
    assert ledger.totals.batches == 0
    with pytest.raises(FencedError):
        run(ledger, 1)
    ledger.rule(commit(verdict="released", rows_published=3), None, NOW)
    assert (ledger.held_batch, ledger.last_commit.verdict, ledger.totals.counts.rows_published) == (None, "released", 3)
    with pytest.raises(FencedError, match="no batch is held any more"):
        ledger.rule(commit(verdict="discarded"), None, NOW)


def test_an_abandoned_batch_leaves_its_number_and_nothing_else(path):
    ledger = Ledger(path)
    run(ledger, 0, emitted=4)
    run(ledger, 1, verdict="held")
    ledger.rule(commit(verdict="abandoned"), None, NOW)
    assert (ledger.count, ledger.last_commit.number, ledger.newest_kept.number, ledger.since(1)[0].status) == (2, 0, 0, "abandoned")
    ledger.record(plan(2, from_version=0), commit(), {}, NOW)
    assert [batch.status for batch in Ledger(path).batches()] == ["committed", "abandoned", "committed"]


def test_a_backfill_of_a_running_pipeline_does_not_move_it(path):
    ledger = Ledger(path)
    for number, changes in enumerate([{}, {"action": "backfill", "builds_state": False, "range_from": 0, "range_to": 9}]):
        ledger.record(plan(number, **changes), commit(emitted=number), {}, NOW)
    assert ledger.last_commit.number == 0
    assert len(ledger.batches()) == 2


@pytest.mark.parametrize("kind", ["batch", "ruling"])
def test_of_two_attempts_that_read_the_same_ledger_one_is_fenced(path, kind):
    if kind == "ruling":
        run(Ledger(path), 0, verdict="held")
    first, second = Ledger(path), Ledger(path)

    def write(ledger: Ledger, attempt: str) -> None:
        if kind == "batch":
            ledger.record(plan(0, attempt), commit(), {}, NOW)
        else:
            ledger.rule(commit(verdict={"x": "released", "y": "discarded"}[attempt]), None, NOW)

    write(first, "x")
    for _ in range(2):
        with pytest.raises(FencedError):
            write(second, "y")
        second.refresh()
    [batch] = Ledger(path).batches()
    assert (batch.attempt, batch.verdict) == (("x", "passed") if kind == "batch" else ("a", "released"))


def test_many_attempts_at_once_leave_one_record(path):
    run(Ledger(path), 0)
    barrier, fenced, won = threading.Barrier(6), [], []

    def attempt(name: str) -> None:
        ledger = Ledger(path)
        barrier.wait()
        try:
            ledger.record(plan(1, name), commit(), {}, NOW)
            won.append(name)
        except FencedError:
            fenced.append(name)

    threads = [threading.Thread(target=attempt, args=(f"t{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(fenced)) == (1, 5)
    assert Ledger(path).newest.attempt == won[0]


@pytest.mark.parametrize("lost", [False, True])
def test_a_record_made_again_below_the_last_checkpoint_counts_for_nothing(path, monkeypatch, lost):
    """A writer that was stalled while others recorded, and cleaned up the log."""
    for number in range(2):
        run(Ledger(path), number)
    stalled = Ledger(path)

    def overtaken(self, *arguments, **options):
        monkeypatch.undo()
        for number in (2, 3):
            run(Ledger(path), number)
        DeltaTable(path).create_checkpoint()
        for version in range(4):
            Path(path, "_delta_log", f"{version:020d}.json").unlink()
        Path(path, "_delta_log", f"{2:020d}.json").write_text('{"commitInfo":{}}')  # its own, for the version is absent
        if lost:
            raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    with pytest.raises(FencedError):
        stalled.record(plan(2, "z"), commit(), {}, NOW)
    assert [batch.attempt for batch in Ledger(path).batches()] == ["a"] * 4


def test_a_batch_out_of_turn_is_refused(path):
    run(ledger := Ledger(path), 0)
    for number in (0, 3):
        with pytest.raises(FencedError):
            run(ledger, number)


def test_a_changed_meaning_is_refused_and_changed_expectations_are_not(path):
    spec = a_spec()
    ledger = Ledger(path)
    ledger.record(plan(0, meaning=parse_pipeline(spec).meaning_hash()), commit(), {}, NOW)
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
    ledger.record(plan(0, meaning=old.meaning_hash(), definition=old.shown_meaning()), commit(), {}, NOW)
    Ledger(path).check_meaning(old)
    with pytest.raises(SpecChangedError, match=rf"differ from those that built {path} \(last batch 0\): {told}") as refused:
        Ledger(path).check_meaning(new)
    assert refused.value.exit_code == 2


def test_the_order_of_windows_is_no_part_of_the_meaning(path):
    old, new = (parse_pipeline(a_spec(windows=windows)) for windows in (_WINDOWS, _WINDOWS[::-1]))
    Ledger(path).record(plan(0, meaning=old.meaning_hash(), definition=old.shown_meaning()), commit(), {}, NOW)
    Ledger(path).check_meaning(new)


def test_neither_the_ledger_nor_a_changed_spec_tells_the_value_of_a_variable(path):
    def spec(token: str, column: str) -> Pipeline:
        source = {"path": "/s", "filter": "tenant = '${TENANT}' and v > 1"}
        fields = a_spec(source=source, time={"column": column}, windows=_WINDOWS)
        return parse_pipeline(fields, environment={"TENANT": token})

    old = spec("hunter2", "t")
    Ledger(path).record(plan(0, meaning=old.meaning_hash(), definition=old.shown_meaning()), commit(), {}, NOW)
    assert Ledger(path).newest.plan.definition["filter"] == "tenant = '${TENANT}' and v > 1"
    with pytest.raises(SpecChangedError, match=r"\(last batch 0\): filter: the value of \$\{TENANT\} is another one; put") as refused:
        Ledger(path).check_meaning(spec("hunter3", "t"))
    assert "hunter" not in str(refused.value)
    with pytest.raises(SpecChangedError, match=r'\(last batch 0\): time\.column was "t" and is "u"; put'):
        Ledger(path).check_meaning(spec("hunter2", "u"))


def test_a_lost_record_is_named(path):
    ledger = Ledger(path)
    for number in range(3):
        run(ledger, number)
    DeltaTable(path).delete("batch = 0")
    with pytest.raises(LedgerCorruptError, match=r"its log lists 2 records, but the newest \(of batch 2\) is number 2; restore"):
        Ledger(path)


def test_an_outcome_that_does_not_fit_is_not_written(path):
    ledger = Ledger(path)
    run(ledger, 0, emitted=5)
    with pytest.raises(LedgerError, match=r"nothing was written .*the watermark goes back at batch 1 \(emitted 4, 5 before it\)"):
        run(ledger, 1, emitted=4)
    assert Ledger(path).count == 1


def test_a_damaged_log_is_refused_and_never_started_anew(path):
    run(Ledger(path), 0)
    (Path(path) / "_delta_log" / f"{1:020d}.json").write_text("{")
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger(path)


@pytest.mark.covers("V2")
@pytest.mark.parametrize(
    ("format_", "error", "told"),
    [
        (3, OutdatedLedgerError, r"format 3 of a version before the first release, .*; give the"),
        (99, LedgerError, "format 99, this windowmill reads format 5; upgrade"),
    ],
)
def test_another_format_is_refused_in_one_line(path, format_, error, told):
    DeltaRecords(path).append(LedgerRecord(format_, "plan", 0, "a", NOW, "{}"))
    with pytest.raises(error, match=told):
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
