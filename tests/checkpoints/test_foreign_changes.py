"""What others did to a pipeline's tables or its ledger is noticed before any work, and refused unless it changed no rows."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.checkpoints.publishing import NOW, ROLES, ROWS, Pipeline, log_entry
from windowmill.checkpoints.batches import Outcome
from windowmill.checkpoints.delta_tables import own_commit
from windowmill.checkpoints.own_tables import OwnTable, refuse_committed, verify
from windowmill.checkpoints.protocol import publish_pending
from windowmill.windowing.errors import FencedError, ForeignWriteError, LedgerBehindError, SinkError, StateCorruptError, StateMissingError


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
    with pytest.raises(StateMissingError, match=f"{role} .*there is no table, but batch 0 left version 1"):
        pipeline.verify()


@pytest.mark.covers("D2", "D7")
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_log_was_cut_off(pipeline, role):
    log_entry(pipeline, role, 2).unlink()
    pipeline.verify()
    assert pipeline.rows(role) == 2, "the commit of the last batch is made again"
    for version in (1, 2):
        log_entry(pipeline, role, version).unlink()
    with pytest.raises(StateMissingError, match="is at version 0, but batch 0 left version 1"):
        pipeline.verify()


@pytest.mark.covers("D7")
@pytest.mark.parametrize("content", ["{", "no json at all", '{"add": 3}'])
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_last_log_entry_is_damaged(pipeline, role, content):
    log_entry(pipeline, role, 2).write_text(content)
    with pytest.raises((StateCorruptError, StateMissingError, SinkError), match=role):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_append(pipeline, role):
    write_deltalake(pipeline.tables[role].place, ROWS, mode="append")
    with pytest.raises(ForeignWriteError, match=r"version 3 \(WRITE\) was not written by this pipeline"):
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
    with pytest.raises(ForeignWriteError, match=r"DELETE.*RESTORE TABLE … TO VERSION AS OF 2"):
        pipeline.verify()
    DeltaTable(pipeline.tables["sink"].place).restore(2)
    pipeline.verify()


def test_a_table_restored_to_an_older_version(pipeline):
    DeltaTable(pipeline.tables["state"].place).restore(1)
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
    last = log_entry(pipeline, "sink", 2)
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    for action in lines:
        if "add" in action:
            action["add"]["path"] = "another.parquet"
    last.write_text("\n".join(map(json.dumps, lines)))
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
    with pytest.raises(LedgerBehindError, match="batch 2 is committed already"):
        refuse_committed(pipeline.plan(ledger), ledger, pipeline.tables)


@pytest.mark.covers("P7")
@pytest.mark.parametrize(("check", "first"), [("verify", True), ("verify", False), ("landed", False)])
def test_a_run_that_another_has_overtaken_since_it_read_the_ledger_says_so(tmp_path, check, first):
    pipeline = Pipeline(tmp_path)
    if not first:
        pipeline.run()
    ledger = pipeline.ledger()
    publish_pending(ledger, pipeline.tables)
    planned = pipeline.plan(ledger)
    pipeline.run()
    checks = {"verify": lambda: verify(ledger, pipeline.tables), "landed": lambda: refuse_committed(planned, ledger, pipeline.tables)}
    with pytest.raises(FencedError, match=f"another run has recorded batch {0 if first else 1} meanwhile"):
        checks[check]()


@pytest.mark.covers("D4")
def test_a_ledger_that_is_gone(pipeline):
    shutil.rmtree(pipeline.folder / "ledger")
    with pytest.raises((SinkError, LedgerBehindError), match="is empty"):
        pipeline.verify()


def test_the_metadata_of_others_is_not_taken_for_ours(pipeline):
    marks = CommitProperties(custom_metadata={"userMetadata": json.dumps({"batch": 1, "job": "theirs"})})
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append", commit_properties=marks)
    with pytest.raises(ForeignWriteError):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("to_version", [2, 3])
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_delete_after_a_compaction_and_restore(pipeline, role, to_version):
    path = pipeline.tables[role].place
    if role == "sink":
        DeltaTable(path).optimize.compact()
    else:
        write_deltalake(DeltaTable(path), ROWS, mode="overwrite", commit_properties=own_commit("maintenance"))
    DeltaTable(path).delete()
    with pytest.raises(ForeignWriteError, match=r"DELETE.*RESTORE TABLE … TO VERSION AS OF 3"):
        pipeline.verify()
    DeltaTable(path).restore(to_version)
    pipeline.verify()


@pytest.mark.covers("D7")
@pytest.mark.parametrize("role", ROLES)
def test_a_table_whose_first_log_entries_are_gone(pipeline, role):
    """delta-rs opens it if a later entry, or a checksum file of Spark's, tells the columns: without the first rows."""
    path = pipeline.tables[role].place
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})
    first, second, last = (log_entry(pipeline, role, version) for version in (0, 1, 3))
    protocol = [line for line in first.read_text().splitlines() if '"protocol"' in line]
    last.write_text("\n".join([last.read_text(), *protocol]))
    first.unlink()
    second.unlink()
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


@pytest.mark.covers("S8")
@pytest.mark.parametrize("unpublished", [False, True])
def test_changes_are_accepted_once_and_for_all(pipeline, unpublished):
    if unpublished:
        pipeline.record()
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append")
    ledger = pipeline.verify(accept_changes=True)
    planned = pipeline.plan(ledger)
    pipeline.recorded(ledger, planned, pipeline.changes(planned, ("state",)))
    pipeline.verify()
    write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append")
    with pytest.raises(ForeignWriteError):
        pipeline.verify()


@pytest.mark.covers("S8")
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_remove_while_a_batch_is_computed(pipeline, role):
    ledger = pipeline.verify()
    planned = pipeline.plan(ledger)
    changes = pipeline.changes(planned)
    DeltaTable(pipeline.tables[role].place).delete()
    with pytest.raises(ForeignWriteError, match=r"DELETE.*TO VERSION AS OF 2"):
        pipeline.recorded(ledger, planned, changes)
    assert (ledger.count, pipeline.files("sink") & {file.path for file in changes["sink"].adds}) == (2, set())


@pytest.mark.covers("S8")
@pytest.mark.parametrize("role", ROLES)
def test_rows_that_others_remove_before_the_commits_of_a_batch_are_restored_first(pipeline, role):
    """A RESTORE would else undo the batch that has landed on top of the DELETE."""
    ledger, path = pipeline.record(), pipeline.tables[role].place
    DeltaTable(path).delete()
    with pytest.raises(ForeignWriteError, match=r"DELETE.*RESTORE TABLE … TO VERSION AS OF 2"):
        publish_pending(ledger, pipeline.tables)
    with pytest.raises(ForeignWriteError, match="DELETE") if role == "state" else nullcontext():
        publish_pending(ledger, pipeline.tables, accept_changes=True)
    if role == "state":
        DeltaTable(path).restore(2)
        pipeline.verify()
        assert [pipeline.rows(role) for role in ROLES] == [3, 3]


@pytest.mark.covers("S8")
@pytest.mark.parametrize(("role", "remedy"), [("sink", "accept it by .*, or restore the folder"), ("state", "restore the folder")])
def test_rows_that_others_remove_at_the_very_moment_of_a_commit_are_noticed_by_the_next(pipeline, monkeypatch, role, remedy):
    ledger, commit = pipeline.record(), OwnTable.commit

    def overtaken(self, publication):
        if self.role == role:
            DeltaTable(self.place).delete()
        commit(self, publication)

    monkeypatch.setattr(OwnTable, "commit", overtaken)
    assert publish_pending(ledger, pipeline.tables) == 2
    with pytest.raises(ForeignWriteError, match=rf"version 3 \(DELETE\) .* batch 2 left version 4: {remedy}"):
        pipeline.verify()


@pytest.mark.covers("D2")
def test_a_table_that_a_batch_leaves_alone_is_compared_with_what_an_earlier_one_wrote(pipeline):
    pipeline.run(roles=("state",))
    assert {role: written.batch for role, written in pipeline.verify().written().items()} == {"sink": 1, "state": 2}
    shutil.rmtree(pipeline.tables["sink"].place)
    with pytest.raises(StateMissingError, match=r"sink .*batch 1 left version 2"):
        pipeline.verify()


@pytest.mark.covers("D2")
@pytest.mark.parametrize("batches", [1, 2])
def test_a_pipeline_goes_on_without_its_old_validations_where_they_are_given_up(pipeline, batches):
    for _ in range(batches):
        pipeline.run(roles=(*ROLES, "quality"))
    shutil.rmtree(pipeline.tables["quality"].place)
    with pytest.raises((StateMissingError, StateCorruptError)):
        pipeline.verify()
    ledger = pipeline.verify(accept_changes=True)
    planned = pipeline.plan(ledger)
    pipeline.recorded(ledger, planned, pipeline.changes(planned))
    assert set(pipeline.verify().written()) == set(ROLES)


@pytest.mark.covers("S7")
def test_a_sink_that_another_pipeline_made_meanwhile_is_refused(tmp_path):
    """Both were planned when there was none."""
    one, other = Pipeline(tmp_path), Pipeline(tmp_path, "other")
    other.tables["state"] = OwnTable("state", str(tmp_path / "other-state"))
    ledgers = [made.ledger() for made in (one, other)]
    plans = [made.plan(ledger) for made, ledger in zip((one, other), ledgers, strict=True)]
    one.recorded(ledgers[0], plans[0], one.changes(plans[0]))
    changes = other.changes(plans[1])
    publish_pending(ledgers[0], one.tables)
    with pytest.raises(SinkError, match="another pipeline or writer has made a table there since batch 0 was planned"):
        other.recorded(ledgers[1], plans[1], changes)
    ledgers[1].record(plans[1], Outcome(10, 5, "passed"), other.changes(plans[1]), NOW)
    with pytest.raises(SinkError, match="another pipeline or writer has made a table there since batch 0 was planned"):
        publish_pending(ledgers[1], other.tables)
    assert one.rows("sink") == 1
