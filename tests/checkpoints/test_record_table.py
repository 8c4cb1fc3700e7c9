"""Where records are kept: merges, what is read at a start, fences, full disks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.checkpoints.records import NOW, append_all, commit, history, plan
from windowmill.checkpoints import records as record_table
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.records import FAN, TAIL_BATCHES, DeltaRecords
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, StorageFullError


def filled(path: str, batches: int) -> Ledger:
    """A ledger of ``batches`` batches, record by record as runs append them."""
    append_all(path, history(batches))
    return Ledger(path)


def files_read(monkeypatch) -> list[str]:
    """Grows by the name of each data file that is read."""
    names: list[str] = []
    real = record_table.read_bytes
    monkeypatch.setattr(record_table, "read_bytes", lambda place, file, ledger: names.append(file.path) or real(place, file, ledger))
    return names


def test_small_files_are_merged_twice_and_nothing_is_lost(path, monkeypatch):
    monkeypatch.setattr("windowmill.checkpoints.records.FAN", 4)
    ledger = filled(path, 80)
    assert [batch.number for batch in ledger.batches()] == list(range(80))
    assert ledger.totals.counts.rows_read == 240
    levels = [name.split("-")[2] for name in sorted(Path(uri).name for uri in DeltaTable(path).file_uris())]
    assert levels == sorted(levels, reverse=True), "older records are in files that have been merged more often"
    assert (levels.count("2") >= 4, levels.count("1") < 4, levels.count("0") < 4) == (True, True, True)


def test_a_start_reads_few_files_however_long_the_ledger_is(path, monkeypatch):
    filled(path, 50)
    names = files_read(monkeypatch)
    ledger = Ledger(path)
    assert (ledger.count, ledger.last_commit.number, ledger.held_batch, ledger.generation) == (50, 49, None, "g")
    assert ledger.totals.counts.rows_read == 150
    assert len(ledger._batches) == TAIL_BATCHES
    few = len(names)
    assert few <= 2 * TAIL_BATCHES + 1
    assert [batch.number for batch in ledger.recent(20)] == list(range(30, 50))
    assert len(names) < few + 20
    assert len(ledger.batches()) == 50


def test_what_moved_the_pipeline_is_found_behind_many_backfills(path):
    ledger = Ledger(path)
    for number in range(30):
        moves = number == 1
        changes = {} if number <= 1 else {"action": "backfill", "builds_state": False, "range_from": 0, "range_to": 9}
        ledger.record(plan(number, **changes), commit(emitted=9 if moves else 5, rows_read=7), {}, NOW)
    again = Ledger(path)
    assert again.last_commit.number == 1
    assert (again.totals.batches, again.totals.backfills, again.totals.counts.rows_read) == (30, 28, 14)


def test_opening_reads_a_log_that_stays_short(path):
    filled(path, 80)
    entries = [int(p.stem) for p in Path(path, "_delta_log").glob("*.json")]
    checkpoints = [int(p.name.split(".")[0]) for p in Path(path, "_delta_log").glob("*.checkpoint.parquet")]
    assert max(entries) - max(checkpoints) < 50


def test_a_merge_fences_nobody_and_a_record_does(path):
    ledger = filled(path, FAN - 1)
    waiting, stale = Ledger(path), Ledger(path)
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    next_ = plan(ledger.count)
    waiting.record(next_, commit(seen=99, emitted=99), {}, NOW)
    assert any("-1-" in uri for uri in DeltaTable(path).file_uris()), "the append has merged what came before"
    with pytest.raises(FencedError, match="stops without effect"):
        stale.record(plan(ledger.count, "second"), commit(seen=99, emitted=99), {}, NOW)
    assert Ledger(path).count == FAN


def test_an_optimize_by_others_loses_no_record_and_the_next_append_puts_checksums_back(path):
    ledger = filled(path, 5)
    DeltaTable(path).optimize.compact()
    [name] = [Path(uri).name for uri in DeltaTable(path).file_uris()]
    assert not name.startswith("records-")
    assert [batch.number for batch in Ledger(path).batches()] == list(range(5))
    ledger.refresh()
    ledger.record(plan(5), commit(), {}, NOW)
    assert all(Path(uri).name.startswith("records-") for uri in DeltaTable(path).file_uris())
    assert [batch.number for batch in Ledger(path).batches()] == list(range(6))


def test_a_record_that_lands_during_a_merge_is_kept_and_the_merge_is_not(path, monkeypatch):
    filled(path, FAN - 1)
    store, other = DeltaRecords(path), Ledger(path)
    store.load()
    monkeypatch.setattr(record_table, "to_merge", list)
    real = record_table.merged_files

    def interrupted(records, *, last):
        monkeypatch.setattr(record_table, "to_merge", lambda files: [])
        other.record(plan(other.count), commit(seen=99, emitted=99), {}, NOW)
        return real(records, last=last)

    monkeypatch.setattr(record_table, "merged_files", interrupted)
    with pytest.raises(Exception, match="commit"):
        store.merge()
    monkeypatch.undo()
    assert len(Ledger(path).batches()) == FAN


@pytest.mark.covers("P10")
def test_a_record_whose_answer_was_lost_has_landed(path, monkeypatch):
    ledger = filled(path, 1)
    real = DeltaTable.create_write_transaction

    def lost(*args, **kwargs):
        real(*args, **kwargs)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    ledger.record(plan(1), commit(), {}, NOW)
    monkeypatch.undo()
    assert (ledger.count, Ledger(path).count) == (2, 2)


@pytest.mark.covers("D1")
@pytest.mark.parametrize(
    ("failure", "error", "told"),
    [
        (OSError(28, "No space left on device"), StorageFullError, "disk is full"),
        (OSError("Generic LocalFileSystem error: ... (os error 122)"), StorageFullError, "quota"),
        (OSError(5, "Input/output error"), LedgerError, "could not be written"),
    ],
)
def test_a_failed_write_is_no_other_run(path, monkeypatch, failure, error, told):
    ledger = filled(path, 1)

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(DeltaTable, "create_write_transaction", fail)
    with pytest.raises(error, match=told) as caught:
        ledger.record(plan(1), commit(), {}, NOW)
    assert not isinstance(caught.value, FencedError)
    monkeypatch.undo()
    ledger.record(plan(1), commit(), {}, NOW)
    assert Ledger(path).count == 2


_FULL = """
import resource, sys
from windowmill.checkpoints.ledger import Ledger
from tests.checkpoints.records import NOW, commit, plan
from windowmill.windowing.errors import StorageFullError
path, count, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ledger = Ledger(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
try:
    ledger.record(plan(count), commit(), {}, NOW)
except StorageFullError as err:
    sys.exit(f"full: {err}")
"""


@pytest.mark.covers("D1")
@pytest.mark.parametrize(("batches", "limit"), [(0, 0), (0, 600), (2, 100)])
def test_a_full_disk_is_told_and_leaves_no_half_record(path, batches, limit):
    filled(path, batches)
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{Path.cwd() / 'src'}"}
    command = [sys.executable, "-c", _FULL, path, str(batches), str(limit)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert "full: ledger" in done.stderr, done.stderr
    ledger = Ledger(path)
    assert ledger.count == batches
    ledger.record(plan(batches), commit(), {}, NOW)


def test_older_batches_are_read_in_parts_that_have_to_fit(path, monkeypatch):
    filled(path, 30)
    monkeypatch.setattr("windowmill.checkpoints.ledger.READ_AT_ONCE", 5)
    ledger = Ledger(path)
    assert [batch.number for batch in ledger.batches()] == list(range(30))
    assert ledger.batches() == ledger.recent(30) == ledger.since(0)
    real = DeltaRecords.read

    def without(self, first: int, before: int):
        return [record for record in real(self, first, before) if record.batch != 16]

    monkeypatch.setattr(DeltaRecords, "read", without)
    with pytest.raises(LedgerCorruptError, match="batch 16"):
        Ledger(path).batches()


@pytest.mark.covers("P1")
def test_a_writer_killed_before_its_first_log_entry_was_whole(tmp_path):
    """delta-rs writes an entry under another name, then links it to its own."""
    log = tmp_path / "ledger" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json#1").write_text('{"protocol":')
    records = DeltaRecords(str(tmp_path / "ledger"))
    assert records.load() == []


def test_a_ledger_is_read_without_pandas(path):
    """Its import would double what a run costs that finds nothing new."""
    filled(path, 1)
    code = (
        f"import sys; from windowmill.checkpoints.ledger import Ledger; assert Ledger({path!r}).count; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
