"""The protocol over Delta tables: what is recorded is published once; ranges that are replaced; batches that are held."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.checkpoints import publishing
from tests.checkpoints.publishing import NOW, ROLES, ROWS, Pipeline, log_entry, written
from windowmill.checkpoints.batches import Changes, Outcome
from windowmill.checkpoints.committer import DeltaRsCommitter, Publication, beyond_delta_rs
from windowmill.checkpoints.ledger import MAX_FILES, Ledger
from windowmill.checkpoints.own_tables import OwnTable, verify
from windowmill.checkpoints.protocol import outstanding, publish_pending, rule
from windowmill.windowing.errors import (
    FencedError,
    LedgerBehindError,
    LedgerCorruptError,
    OutOfTurnError,
    SinkError,
    SinkRefusedError,
    StateCorruptError,
    StorageFullError,
)


def test_a_clean_pipeline_is_verified(pipeline):
    written = pipeline.verify().written()
    assert {role: (w.batch, w.version) for role, w in written.items()} == {"sink": (1, 2), "state": (1, 2)}
    assert DeltaTable(pipeline.tables["sink"].place).to_pyarrow_table().to_pydict() == {"window": ["w"] * 2, "n": [1] * 2}


# What is recorded is published once


@pytest.mark.covers("P1", "P10")
def test_commits_that_are_missing_are_made_by_whoever_comes_next(pipeline):
    pipeline.record()
    ledger = pipeline.ledger()
    assert outstanding(ledger, pipeline.tables) == ["sink", "state"]
    assert publish_pending(ledger, pipeline.tables) == 2
    assert (outstanding(ledger, pipeline.tables), publish_pending(pipeline.ledger(), pipeline.tables)) == ([], 0)
    assert [pipeline.rows(role) for role in ROLES] == [3, 3]
    pipeline.verify()


@pytest.mark.covers("P7", "P10")
def test_a_lost_response_is_asked_for(pipeline, monkeypatch):
    ledger, commit = pipeline.record(), OwnTable.commit

    def lost(self, publication):
        commit(self, publication)
        raise OSError("connection reset")

    monkeypatch.setattr(OwnTable, "commit", lost)
    assert publish_pending(ledger, pipeline.tables) == 2
    assert pipeline.rows("sink") == 3


@pytest.mark.covers("P7")
@pytest.mark.parametrize("other", ["the same commit", "a commit of others"])
def test_a_commit_that_another_overtakes_begins_anew(pipeline, monkeypatch, other):
    ledger, commit = pipeline.record(roles=("sink",)), DeltaTable.create_write_transaction

    def overtaken(self, *arguments, **options):
        monkeypatch.undo()
        if other == "the same commit":
            publish_pending(pipeline.ledger(), pipeline.tables)
        else:
            write_deltalake(pipeline.tables["sink"].place, ROWS, mode="append")
        return commit(self, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", overtaken)
    publish_pending(ledger, pipeline.tables)
    assert pipeline.rows("sink") == (3 if other == "the same commit" else 4)
    assert DeltaTable(pipeline.tables["sink"].place).version() == (3 if other == "the same commit" else 4)


@pytest.mark.covers("P7")
def test_a_version_made_again_below_the_last_checkpoint_is_not_taken_for_a_commit(pipeline, monkeypatch):
    """A writer that was stalled while others went on and cleaned up the log."""
    ledger = pipeline.record(roles=("sink",))

    def stalled(self, *arguments, **options):
        monkeypatch.undo()
        place = pipeline.tables["sink"].place
        for _ in range(3):
            write_deltalake(place, ROWS, mode="append")
        DeltaTable(place).create_checkpoint()
        for version in range(5):
            log_entry(pipeline, "sink", version).unlink()
        log_entry(pipeline, "sink", 3).write_text('{"commitInfo":{}}')  # its own, for the version is absent

    monkeypatch.setattr(DeltaTable, "create_write_transaction", stalled)
    publish_pending(ledger, pipeline.tables)
    assert pipeline.rows("sink") == 6
    assert DeltaTable(pipeline.tables["sink"].place).transaction_version(ledger.newest.plan.app_id("sink")) == 2


@pytest.mark.parametrize("expires", [False, True])
def test_a_transaction_is_looked_for_where_the_log_was_cleaned_up(pipeline, expires):
    """The commit is there, but its log entry is not; transactions expire where a property says so."""
    pipeline.run()
    sink = DeltaTable(pipeline.tables["sink"].place)
    name = "delta.setTransactionRetentionDuration" if expires else "delta.logRetentionDuration"
    sink.alter.set_table_properties({name: "interval 1 days"}, raise_if_not_exists=False)
    DeltaTable(sink.table_uri).create_checkpoint()
    for version in range(4):
        log_entry(pipeline, "sink", version).unlink()
    assert publish_pending(pipeline.ledger(), pipeline.tables) == 0
    pipeline.run()
    assert pipeline.rows("sink") == 4


def test_files_that_go_before_the_record_are_not_recorded(pipeline):
    ledger = pipeline.ledger()
    planned = pipeline.plan(ledger)
    changes = pipeline.changes(planned)
    DeltaTable(pipeline.tables["sink"].place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(SinkError, match=r"sink .* which batch 2 has just written, is gone, .*; nothing was recorded, run again"):
        pipeline.recorded(ledger, planned, changes)
    assert ledger.count == 2
    pipeline.run()
    assert pipeline.rows("sink") == 3


@pytest.mark.covers("S8")
def test_a_recorded_file_that_is_gone_is_named(pipeline):
    ledger = pipeline.record()
    file = ledger.newest.changes["sink"].adds[0].path
    Path(pipeline.tables["sink"].place, file).unlink()
    with pytest.raises(StateCorruptError, match=rf"sink .*{file}.* is gone; restore the folder from a copy"):
        publish_pending(ledger, pipeline.tables)
    assert pipeline.rows("sink") == 2


def test_many_files_are_in_a_manifest(pipeline):
    pipeline.run(files=MAX_FILES)
    assert [pipeline.rows(role) for role in ROLES] == [2 + MAX_FILES] * 2
    newest = pipeline.ledger().newest
    assert newest.changes == {}
    assert len(pipeline.ledger().changes_of(newest)["sink"].adds) == MAX_FILES
    manifest = Path(f"{pipeline.ledger_path}.manifests", newest.manifest[0])
    manifest.write_bytes(manifest.read_bytes()[:-9])
    with pytest.raises(LedgerCorruptError, match=r"manifest .* cannot be read .*restore the folder"):
        publish_pending(pipeline.ledger(), pipeline.tables)
    manifest.write_bytes(zlib.compress(b"{}"))
    with pytest.raises(LedgerCorruptError, match=r"manifest .* is damaged; restore the folder"):
        publish_pending(pipeline.ledger(), pipeline.tables)


@pytest.mark.covers("P7")
def test_of_two_attempts_one_wins_and_the_files_of_the_other_go(pipeline):
    first, second = pipeline.ledger(), pipeline.ledger()
    plans = [pipeline.plan(ledger, attempt) for ledger, attempt in ((first, "a"), (second, "b"))]
    changes = [pipeline.changes(planned) for planned in plans]
    pipeline.recorded(first, plans[0], changes[0])
    with pytest.raises(FencedError):
        pipeline.recorded(second, plans[1], changes[1])
    assert not {file.path for file in changes[1]["sink"].adds} & pipeline.files("sink")
    publish_pending(second, pipeline.tables)
    assert pipeline.rows("sink") == 3


def test_the_files_of_a_record_of_unknown_fate_stay(pipeline, monkeypatch):
    ledger = pipeline.ledger()
    planned = pipeline.plan(ledger)
    changes = pipeline.changes(planned)
    monkeypatch.setattr(Ledger, "record", lambda *_: (_ for _ in ()).throw(OSError("connection reset")))
    with pytest.raises(OSError, match="connection reset"):
        pipeline.recorded(ledger, planned, changes)
    assert {file.path for file in changes["sink"].adds} <= pipeline.files("sink")


def test_columns_that_a_sink_lost_are_missed(pipeline):
    wider = ROWS.append_column("m", pa.array([2]))
    ledger = pipeline.ledger()
    publish_pending(ledger, pipeline.tables)
    planned = pipeline.plan(ledger)
    changes = {role: Changes.of(wider.schema, written(pipeline.tables[role].place, wider, 2)) for role in ROLES}
    with pytest.raises(SinkError, match="has no column m, which the results have; put it back"):
        pipeline.recorded(ledger, planned, changes)
    assert ledger.count == 2


@pytest.mark.covers("D1")
@pytest.mark.parametrize(
    ("failure", "error", "told"),
    [
        (OSError(28, "No space left on device"), StorageFullError, "free some space and run again"),
        (
            DeltaError("Unable to open file /sink/part-0.parquet#1: Read-only file system (os error 30)\nstack backtrace"),
            SinkError,
            r"^sink \S+: must not be written \(.*\(os error 30\)\); give .*, and run again$",
        ),
        (OSError("connection refused"), OSError, "connection refused"),
    ],
)
def test_a_commit_that_fails_is_told_as_it_failed_and_made_by_the_next_run(pipeline, monkeypatch, failure, error, told):
    ledger = pipeline.record()

    def fails(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(OwnTable, "commit", fails)
    with pytest.raises(error, match=told):
        publish_pending(ledger, pipeline.tables)
    monkeypatch.setattr(OwnTable, "commit", lambda *_: None)
    with pytest.raises(SinkError, match="the commit of batch 2 is not in the table; run again"):
        publish_pending(ledger, pipeline.tables)
    monkeypatch.undo()
    assert publish_pending(pipeline.ledger(), pipeline.tables) == 2


def test_what_another_batch_landed_is_not_taken_for_this_one(pipeline):
    app, sink = pipeline.ledger().newest.plan.app_id("sink"), pipeline.tables["sink"]
    assert (sink.commit_of(app, 1, after=-1).version, sink.commit_of(app, 2, after=-1)) == (2, None)
    with pytest.raises(LedgerBehindError, match="batch 1 is committed, but the ledger is at batch 0"):
        sink.commit_of(app, 0, after=1)


@pytest.mark.parametrize(
    ("feature", "told"),
    [({"delta.constraints.few": "n < 9"}, "has constraints"), ({"delta.columnMapping.mode": "name"}, "uses"), ({}, "has other types")],
)
def test_a_sink_that_delta_rs_cannot_write_is_left_to_spark(tmp_path, feature, told):
    """On object storage it is refused: Spark's commits would overwrite those of others."""
    found: list[Publication] = []

    class Beyond:
        def check(self, place: str, role: str, changes: Changes) -> None:
            """Spark takes all rows."""

        def commit(self, place: str, publication: Publication) -> None:
            found.append(publication)

    path = str(tmp_path / "sink")
    DeltaTable.create(path, pa.schema([("window", pa.string()), ("n", pa.int64() if feature else pa.int32())]))
    changes = Changes.of(ROWS.schema)
    entry_ = Path(path, "_delta_log", f"{0:020d}.json")
    entry_.write_text(entry_.read_text().replace('"configuration":{}', f'"configuration":{json.dumps(feature)}'))
    table = DeltaTable(path)
    assert told in str(beyond_delta_rs("sink", table, changes))
    publication = Publication("sink", "app", 0, changes, {"batch": 0})
    DeltaRsCommitter(Beyond()).commit(path, publication)
    assert [dict(each.note) for each in found] == [{"batch": 0, "rewritten": True}]
    with pytest.raises(SinkError, match="only `windowmill run` can write it, by Spark"):
        DeltaRsCommitter().commit(path, publication)
    with pytest.raises(SinkRefusedError, match="on object storage Spark overwrites commits of other writers"):
        DeltaRsCommitter(Beyond())._other("s3://bucket/sink", "sink", told)


# Tables gain a column


@pytest.mark.parametrize("role", ["state", "quarantine", "quality"])
def test_rows_with_a_column_more_widen_their_table(pipeline, monkeypatch, role):
    pipeline.run(roles=("sink", role))
    count = pipeline.rows(role)
    monkeypatch.setattr(publishing, "ROWS", ROWS.append_column("cause", pa.array(["late"])))
    for _ in range(2):
        pipeline.run(roles=(role,))
    pipeline.verify()
    causes = DeltaTable(pipeline.tables[role].place).to_pyarrow_table()["cause"].to_pylist()
    assert sorted(causes, key=str) == [None] * count + ["late"] * 2


def test_held_results_with_a_column_more_widen_their_table(tmp_path):
    path = str(tmp_path / "held")
    for batch, rows in enumerate([ROWS, ROWS.append_column("cause", pa.array(["late"]))]):
        publishing.publish(path, rows, batch, "held")
    assert DeltaTable(path).to_pyarrow_table().sort_by("cause")["cause"].to_pylist() == ["late", None]


# Ranges that are replaced


def windows(*ends: int) -> pa.Table:
    return pa.table({"window_end": pa.array(ends, pa.int64())})


@pytest.mark.covers("S8")
@pytest.mark.parametrize("moved", [False, True], ids=["", "after an OPTIMIZE by others"])
def test_a_range_is_replaced_in_one_commit(tmp_path, moved):
    pipeline = Pipeline(tmp_path)

    def files(batch: int, *ends: int) -> Any:
        return written(pipeline.tables["sink"].place, windows(*ends), batch)

    def publish(changes: Changes, then: Any = None) -> None:
        ledger = pipeline.ledger()
        pipeline.recorded(ledger, pipeline.plan(ledger), {"sink": changes})
        if then:
            then()
        publish_pending(ledger, pipeline.tables)
        verify(ledger, pipeline.tables)

    schema = windows().schema
    publish(Changes.of(schema, files(0, 1, 2, 3)))
    publish(Changes.of(schema, files(1, 4, 5)))
    ledger = pipeline.verify()
    first = ledger.since(0)[0].changes["sink"].adds[0].path
    replaced = Changes.of(schema, files(2, 20, 30), kept=files(2, 1), removes=[first], replaces=(1, 3))
    publish(replaced, DeltaTable(pipeline.tables["sink"].place).optimize.compact if moved else None)
    assert sorted(DeltaTable(pipeline.tables["sink"].place).to_pyarrow_table()["window_end"].to_pylist()) == [1, 4, 5, 20, 30]
    pipeline.verify()


# Batches that are held


@pytest.mark.covers("Q1")
@pytest.mark.parametrize(
    ("verdict", "rows"), [("released", (3, 3, 3)), ("discarded", (2, 3, 3)), ("abandoned", (2, 2, 3)), ("warned", (3, 3, 3))]
)
def test_a_held_batch_waits_for_a_ruling(pipeline, verdict, rows):
    pipeline.run("held", roles=(*ROLES, "quality"))
    ledger = pipeline.verify()
    assert ([pipeline.rows(role) for role in ROLES], pipeline.rows("held")) == ([2, 2], 1)
    for role in ROLES:  # as a VACUUM by others does
        DeltaTable(pipeline.tables[role].place).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    validation = pipeline.changes(ledger.held_batch.plan, ("quality",))["quality"]
    outcome = rule(ledger, verdict, pipeline.tables, NOW, validation=validation)
    assert (outcome.verdict, outcome.published_counts.rows_published) == (verdict, 0 if verdict in ("discarded", "abandoned") else 1)
    assert (pipeline.rows("sink"), pipeline.rows("state"), pipeline.rows("quality") + 1) == rows
    with pytest.raises(OutOfTurnError):
        rule(pipeline.verify(), "released", pipeline.tables, NOW)
    pipeline.run()
    assert pipeline.rows("sink") == rows[0] + 1
    assert not list(Path(pipeline.tables["held"].place).glob("_s*/*"))


def test_a_batch_that_is_held_again_stays_held(pipeline):
    pipeline.run("held")
    for holds in (2, 3):
        rule(pipeline.verify(), "held", pipeline.tables, NOW)
        assert pipeline.ledger().held_batch.holds == holds
    assert rule(pipeline.verify(), "passed", pipeline.tables, NOW).verdict == "passed"
    assert pipeline.rows("sink") == 3


def test_the_table_of_held_rows_takes_other_columns(pipeline):
    pipeline.run("held")
    rule(pipeline.verify(), "abandoned", pipeline.tables, NOW)
    other = pa.table({"end": pa.array([NOW], pa.timestamp("us", "UTC"))})
    ledger = pipeline.verify()
    planned = pipeline.plan(ledger)
    files = written(pipeline.tables["sink"].place, other, planned.batch)
    ledger.record(planned, Outcome(10, 5, "held"), {"sink": Changes.of(other.schema, files)}, NOW)
    publish_pending(ledger, pipeline.tables)
    assert DeltaTable(pipeline.tables["held"].place).to_pyarrow_table().equals(other)
