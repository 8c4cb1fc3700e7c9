"""The protocol over Delta tables: what has landed and by whom, what others did to the tables, what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.checkpoints.records import plan
from windowmill.checkpoints.appending import append_once
from windowmill.checkpoints.batches import Commit
from windowmill.checkpoints.formats import ours
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import DeltaOwnTable
from windowmill.checkpoints.protocol import Attempt, refuse_landed, verify
from windowmill.windowing.errors import (
    ForeignWriteError,
    LedgerBehindError,
    MixedAttemptError,
    SinkError,
    StateCorruptError,
    StateError,
    StateMissingError,
    StorageFullError,
)

ROWS = pa.table({"window": ["w"], "n": [1]})
NOW = datetime(2024, 1, 1, tzinfo=UTC)
ROLES = ("sink", "state")


class Pipeline:
    """A ledger and two tables below a folder, and batches that append a row to each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger_path = folder, str(folder / "ledger")
        self.tables = {role: DeltaOwnTable(role, str(folder / role)) for role in ROLES}

    def ledger(self) -> Ledger:
        return Ledger(self.ledger_path, integer_axis=True)

    def attempt(self, ledger: Ledger) -> Attempt:
        return Attempt(ledger.open_batch.plan, "p", ledger, self.tables)

    def append(self, attempt: Attempt, role: str) -> None:
        path = self.tables[role].place
        append_once(path, ROWS, app_id=attempt.app_id(role), version=attempt.plan.batch, metadata=attempt.metadata())

    def write(self, attempt: Attempt, role: str, *, same: bool = True) -> None:
        attempt.write(role, lambda: self.append(attempt, role), lambda: same)

    def run(self) -> None:
        ledger = self.ledger()
        if ledger.open_batch is None:
            self.plan(ledger)
        attempt = self.attempt(ledger)
        for role in ROLES:
            self.write(attempt, role)
        attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)

    def plan(self, ledger: Ledger) -> None:
        ledger.record_plan(plan(ledger.count, app=f"windowmill/{ledger.generation}", generation=ledger.generation), NOW)

    def rows(self, role: str) -> int:
        return sum(n for n in pa.table(DeltaTable(self.tables[role].place).get_add_actions()).column("num_records").to_pylist())

    def verify(self, **options: bool) -> None:
        verify(self.ledger(), self.tables, **options)


@pytest.fixture
def pipeline(tmp_path) -> Pipeline:
    made = Pipeline(tmp_path)
    for _ in range(2):
        made.run()
    return made


def test_a_clean_pipeline_is_verified(pipeline):
    pipeline.verify()
    written = pipeline.ledger().written()
    assert {role: (w.batch, w.version, w.rows) for role, w in written.items()} == {"sink": (1, 1, 1), "state": (1, 1, 1)}


def test_what_rewrites_or_describes_is_no_change(pipeline):
    sink = DeltaTable(pipeline.tables["sink"].place)
    sink.optimize.compact()
    sink.vacuum(0, dry_run=False, enforce_retention_duration=False)
    sink.alter.set_table_properties({"delta.appendOnly": "true"})
    pipeline.verify()
    pipeline.run()
    assert pipeline.rows("sink") == 3


@pytest.mark.covers("D2")
@pytest.mark.parametrize("role", ROLES)
def test_a_table_that_is_gone_is_not_made_anew(pipeline, role):
    shutil.rmtree(pipeline.tables[role].place)
    with pytest.raises(StateMissingError, match=f"{role} .*there is no table, but batch 1 left version 1"):
        pipeline.verify()


@pytest.mark.covers("D2", "D7")
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_log_was_cut_off(pipeline, role):
    Path(pipeline.tables[role].place, "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(StateMissingError, match="is at version 0, but batch 1 left version 1"):
        pipeline.verify()


@pytest.mark.covers("D7")
@pytest.mark.parametrize("content", ["", "{", "no json at all", '{"add": 3}'])
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_last_log_entry_is_damaged(pipeline, role, content):
    Path(pipeline.tables[role].place, "_delta_log", f"{1:020d}.json").write_text(content)
    with pytest.raises((StateCorruptError, StateMissingError, SinkError), match=role):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_append(pipeline, role):
    write_deltalake(pipeline.tables[role].place, ROWS, mode="append")
    with pytest.raises(ForeignWriteError, match=r"version 2 \(WRITE\) was not written by this pipeline"):
        pipeline.verify()
    if role == "sink":
        pipeline.verify(accept_changes=True)
    else:
        with pytest.raises(ForeignWriteError):
            pipeline.verify(accept_changes=True)


@pytest.mark.covers("S8")
def test_rows_that_others_delete_and_restore(pipeline):
    sink = DeltaTable(pipeline.tables["sink"].place)
    sink.delete()
    with pytest.raises(ForeignWriteError, match=r"DELETE.*RESTORE TABLE … TO VERSION AS OF 1"):
        pipeline.verify()
    DeltaTable(pipeline.tables["sink"].place).restore(1)
    pipeline.verify()


def test_a_table_restored_to_an_older_version(pipeline):
    DeltaTable(pipeline.tables["state"].place).restore(0)
    with pytest.raises(ForeignWriteError, match="RESTORE"):
        pipeline.verify()


def test_another_table_in_its_place(pipeline):
    path = pipeline.tables["sink"].place
    shutil.rmtree(path)
    for _ in range(2):
        write_deltalake(path, ROWS, mode="append")
    with pytest.raises(ForeignWriteError, match="this is another table"):
        pipeline.verify()


def test_a_log_entry_exchanged_for_another(pipeline):
    entry = Path(pipeline.tables["sink"].place, "_delta_log", f"{1:020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in lines:
        if "add" in action:
            action["add"]["path"] = "another.parquet"
    entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(StateCorruptError, match="is not the commit that batch 1 recorded"):
        pipeline.verify()


@pytest.mark.covers("D4")
def test_a_ledger_restored_from_an_older_copy(pipeline):
    copy = pipeline.folder / "copy"
    shutil.copytree(pipeline.folder / "ledger", copy)
    pipeline.run()
    shutil.rmtree(pipeline.folder / "ledger")
    shutil.move(copy, pipeline.folder / "ledger")
    with pytest.raises(LedgerBehindError, match="holds batch 2, which the ledger"):
        pipeline.verify()
    ledger = pipeline.ledger()
    new = plan(ledger.count, app=f"windowmill/{ledger.generation}", generation=ledger.generation)
    with pytest.raises(LedgerBehindError, match="batch 2 has landed already"):
        refuse_landed(new, "p", pipeline.tables)


@pytest.mark.covers("D4")
def test_a_ledger_that_is_gone(pipeline):
    shutil.rmtree(pipeline.folder / "ledger")
    with pytest.raises((SinkError, LedgerBehindError), match="is empty"):
        pipeline.verify()


@pytest.mark.covers("P7", "P10")
def test_a_lost_response_is_asked_for(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    attempt = pipeline.attempt(ledger)

    def lost() -> None:
        pipeline.append(attempt, "sink")
        raise OSError("connection reset")

    assert attempt.write("sink", lost, lambda: False).attempt == attempt.id
    assert pipeline.rows("sink") == 3


@pytest.mark.parametrize(("role", "error"), [("sink", SinkError), ("state", StateError)])
def test_a_commit_that_holds_fewer_rows_than_computed_is_refused(pipeline, role, error):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    attempt = pipeline.attempt(ledger)

    with pytest.raises(error, match=r"holds 1 rows instead of the 2 computed"):
        attempt.write(role, lambda: pipeline.append(attempt, role), lambda: True, count=2)
    assert attempt.write(role, lambda: pipeline.append(attempt, role), lambda: True, count=1).rows == 1


def test_the_rows_of_a_commit_without_statistics_are_not_compared(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    attempt = pipeline.attempt(ledger)

    def append_without_statistics() -> None:
        pipeline.append(attempt, "sink")
        entry = Path(pipeline.tables["sink"].place, "_delta_log", f"{2:020d}.json")
        actions = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in actions:
            action.get("add", {}).pop("stats", None)
        entry.write_text("\n".join(map(json.dumps, actions)))

    assert attempt.write("sink", append_without_statistics, lambda: True, count=2).rows is None


@pytest.mark.covers("P7")
def test_what_an_earlier_attempt_wrote_is_adopted_if_it_is_the_same(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    first, second = pipeline.attempt(ledger), pipeline.attempt(ledger)
    pipeline.write(first, "sink")
    with pytest.raises(MixedAttemptError, match="wrote other rows than this one computed"):
        pipeline.write(second, "sink", same=False)
    pipeline.write(second, "sink")
    assert second.written["sink"].attempt == first.id
    assert pipeline.rows("sink") == 3


def test_a_table_that_a_batch_leaves_alone_is_compared_with_what_an_earlier_one_wrote(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    attempt = pipeline.attempt(ledger)
    pipeline.write(attempt, "state")
    attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)
    assert {role: written.batch for role, written in pipeline.ledger().written().items()} == {"sink": 1, "state": 2}
    shutil.rmtree(pipeline.tables["sink"].place)
    with pytest.raises(StateMissingError, match=r"sink .*batch 1 left version 1"):
        pipeline.verify()


def test_what_has_landed_is_not_written_again(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    pipeline.write(pipeline.attempt(ledger), "sink")
    written: list[str] = []
    pipeline.attempt(ledger).write("sink", lambda: written.append("again"), lambda: True)
    assert written == []


def test_what_another_batch_landed_is_not_taken_for_this_one(pipeline):
    app = pipeline.ledger().newest.plan.app_id("p", "sink")
    sink = pipeline.tables["sink"]
    assert (sink.landed(app, 1).version, sink.landed(app, 2)) == (1, None)
    with pytest.raises(LedgerBehindError, match="batch 1 has landed, but the ledger is at batch 0"):
        sink.landed(app, 0)


def test_a_batch_is_validated_again_once_it_was_held_and_once_its_rules_are_others(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    batch = ledger.open_batch.plan

    def names(rules: str) -> list[str]:
        attempt = Attempt(batch, "p", ledger, pipeline.tables, rules=rules)
        return [attempt.app_id(role) for role in ("quality", "sink")]

    before, others = names("a"), names("b")
    assert names("a") == before
    ledger.record_held(batch, Commit(10, 5, "held"), NOW)
    assert len({before[0], others[0], names("a")[0]}) == 3
    assert before[1] == others[1] == names("a")[1]


@pytest.mark.covers("P7")
def test_an_append_between_anothers_check_and_its_write_fails(pipeline, monkeypatch):
    """The table is written as it was asked, so that the second of two equal transactions conflicts."""
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    first, second = pipeline.attempt(ledger), pipeline.attempt(ledger)

    def overtaken(*arguments, **options):
        monkeypatch.undo()
        pipeline.write(first, "sink")
        return write_deltalake(*arguments, **options)

    monkeypatch.setattr("windowmill.checkpoints.appending.write_table", overtaken)
    pipeline.write(second, "sink")
    assert pipeline.rows("sink") == 3
    assert second.written["sink"].attempt == first.id


def test_a_commit_that_did_not_land_stops_the_batch(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    with pytest.raises(SinkError, match="the commit of batch 2 did not land"):
        pipeline.attempt(ledger).write("sink", lambda: None, lambda: True)


def test_a_write_that_failed_and_did_not_land_is_told_as_it_failed(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)

    def fails() -> None:
        raise OSError("connection refused")

    with pytest.raises(OSError, match="connection refused"):
        pipeline.attempt(ledger).write("sink", fails, lambda: True)


@pytest.mark.covers("D1")
def test_a_full_disk_is_told_as_such(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)

    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageFullError, match="free some space and run again"):
        pipeline.attempt(ledger).write("sink", full, lambda: True)


def test_a_place_that_must_not_be_written_is_told_as_such(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)

    def forbidden() -> None:
        raise DeltaError("Unable to open file /sink/part-0.parquet#1: Read-only file system (os error 30)\nstack backtrace")

    with pytest.raises(SinkError, match=r"^sink \S+: must not be written \(.*\(os error 30\)\); give .*, and run again$"):
        pipeline.attempt(ledger).write("sink", forbidden, lambda: True)


def test_a_sink_that_another_pipeline_made_meanwhile_is_refused(tmp_path):
    """Both were planned when there was none."""
    one, other = Pipeline(tmp_path), Pipeline(tmp_path)
    other.ledger_path = str(tmp_path / "other")
    other.tables["state"] = DeltaOwnTable("state", str(tmp_path / "other-state"))
    ledgers = [made.ledger() for made in (one, other)]
    for made, ledger in zip((one, other), ledgers, strict=True):
        made.plan(ledger)
    one.write(one.attempt(ledgers[0]), "sink")
    with pytest.raises(SinkError, match="a table is there since batch 0 was planned, which another pipeline or writer made"):
        other.write(other.attempt(ledgers[1]), "sink")
    assert one.rows("sink") == 1


@pytest.mark.covers("P6")
def test_rows_of_a_dropped_batch_are_noticed(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    asleep = pipeline.attempt(ledger)
    ledger.record_abandoned(ledger.open_batch.plan, NOW)
    pipeline.write(asleep, "sink")
    with pytest.raises(LedgerBehindError, match=r"holds batch 2, which the ledger .* does not contain or has abandoned"):
        pipeline.verify()


def test_the_metadata_of_others_is_not_taken_for_ours(pipeline):
    marks = CommitProperties(custom_metadata={"userMetadata": json.dumps({"batch": 1, "job": "theirs"})})
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append", commit_properties=marks)
    with pytest.raises(ForeignWriteError):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("to_version", [1, 2])
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_delete_after_a_compaction_and_restore(pipeline, role, to_version):
    path = pipeline.tables[role].place
    if role == "sink":
        DeltaTable(path).optimize.compact()
    else:
        write_deltalake(DeltaTable(path), ROWS, mode="overwrite", commit_properties=ours("maintenance"))
    DeltaTable(path).delete()
    with pytest.raises(ForeignWriteError, match=r"DELETE.*RESTORE TABLE … TO VERSION AS OF 2"):
        pipeline.verify()
    DeltaTable(path).restore(to_version)
    pipeline.verify()


@pytest.mark.covers("S8")
def test_rows_of_an_open_batch_stay_when_anothers_change_is_undone_as_told(pipeline):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    pipeline.write(pipeline.attempt(ledger), "sink")
    DeltaTable(pipeline.tables["sink"].place).delete()
    with pytest.raises(ForeignWriteError, match="TO VERSION AS OF 2,"):
        pipeline.verify()
    DeltaTable(pipeline.tables["sink"].place).restore(2)
    pipeline.verify()
    pipeline.run()
    assert pipeline.rows("sink") == 3


@pytest.mark.covers("S8")
@pytest.mark.parametrize("open_batch_landed", [False, True])
def test_changes_are_accepted_once_and_for_all(pipeline, open_batch_landed):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    if open_batch_landed:
        pipeline.write(pipeline.attempt(ledger), "sink")
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append")
    ledger = pipeline.ledger()
    verify(ledger, pipeline.tables, accept_changes=True)
    attempt = pipeline.attempt(ledger)
    if open_batch_landed:
        pipeline.write(attempt, "sink")
    pipeline.write(attempt, "state")  # and perhaps nothing to the sink
    attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)
    pipeline.verify()
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append")
    with pytest.raises(ForeignWriteError):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_remove_while_a_batch_runs(pipeline, role):
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    verify(ledger, pipeline.tables)
    attempt = pipeline.attempt(ledger)
    DeltaTable(pipeline.tables[role].place).delete()
    for each in ROLES:
        pipeline.write(attempt, each)
    with pytest.raises(ForeignWriteError, match=r"DELETE.*TO VERSION AS OF 1"):
        attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)
    with pytest.raises(ForeignWriteError):
        pipeline.verify()


@pytest.mark.covers("V2")
@pytest.mark.parametrize("role", ROLES)
def test_maintenance_by_the_first_release_is_no_foreign_change(pipeline, role):
    """Its commits bear no mark, and its ledger told versions alone."""
    path = pipeline.tables[role].place
    recorded = pipeline.ledger().written()[role]
    write_deltalake(DeltaTable(path), ROWS, mode="overwrite")
    first_release = replace(recorded, table_id=None, digest=None, attempt=None)
    ledger = pipeline.ledger()
    ledger.accept(role, first_release)
    if role == "state":
        verify(ledger, pipeline.tables)
    else:
        with pytest.raises(ForeignWriteError):
            verify(ledger, pipeline.tables)


@pytest.mark.covers("D2")
def test_a_pipeline_goes_on_without_its_old_validations_where_they_are_given_up(pipeline):
    pipeline.tables["quality"] = DeltaOwnTable("quality", str(pipeline.folder / "quality"))
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    attempt = pipeline.attempt(ledger)
    for role in pipeline.tables:
        pipeline.write(attempt, role)
    attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)
    shutil.rmtree(pipeline.tables["quality"].place)
    with pytest.raises(StateMissingError, match="--accept-changes"):
        pipeline.verify()
    ledger = pipeline.ledger()
    pipeline.plan(ledger)
    verify(ledger, pipeline.tables, accept_changes=True)
    attempt = pipeline.attempt(ledger)
    attempt.commit(Commit(10, 5, "passed", written=attempt.written, attempt=attempt.id), NOW)
    pipeline.verify()
    assert set(pipeline.ledger().written()) == set(ROLES)


@pytest.mark.covers("D7")
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_first_log_entries_are_gone(pipeline, role):
    """delta-rs opens it if a later entry, or a checksum file of Spark's, tells the columns: without the first rows."""
    path = pipeline.tables[role].place
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    first, last = (Path(path, "_delta_log", f"{version:020d}.json") for version in (0, 2))
    protocol = [line for line in first.read_text().splitlines() if '"protocol"' in line]
    last.write_text("\n".join([last.read_text(), *protocol]))
    first.unlink()
    assert pipeline.rows(role) == 1
    with pytest.raises((SinkError, StateCorruptError), match=f"{role} .*the first entries of its log are gone"):
        pipeline.verify()


@pytest.mark.parametrize("told", [True, False])
def test_a_table_whose_first_log_entries_a_checkpoint_has_replaced(pipeline, told):
    log = Path(pipeline.tables["sink"].place, "_delta_log")
    DeltaTable(pipeline.tables["sink"].place).create_checkpoint()
    (log / f"{0:020d}.json").unlink()
    if not told:
        (log / "_last_checkpoint").unlink()
    pipeline.verify()
