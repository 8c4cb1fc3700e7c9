"""Merging, checkpointing and vacuuming small tables: rows stay, files and log entries go."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from tests.checkpoints.publishing import publish
from windowmill.checkpoints import delta_tables

DAYS = 86_400


def rows(batch: int) -> pa.Table:
    return pa.table({"batch": pa.array([batch, batch], pa.int64()), "text": ["a", "b"]})


def aged(file: Path, days: int = 40) -> Path:
    os.utime(file, (time.time() - days * DAYS,) * 2)
    return file


def left(file: Path, days: int = 30) -> Path:
    """A file that somebody has left so many days ago."""
    file.write_bytes(b"left by an attempt")
    return aged(file, days)


def batches_in(path: str) -> list[int]:
    found = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT batch FROM t ORDER BY batch").read_all()
    return pa.table(found)["batch"].to_pylist()


def test_many_small_files_are_merged_and_few_are_not(tmp_path):
    path = str(tmp_path / "t")
    assert not delta_tables.merge_if_many(path)
    for batch in range(delta_tables.FEW_FILES):
        write_deltalake(path, rows(batch), mode="append")
    assert not delta_tables.merge_if_many(path)
    write_deltalake(path, rows(delta_tables.FEW_FILES), mode="append")
    assert delta_tables.merge_if_many(path)
    assert len(DeltaTable(path).file_uris()) == 1
    assert batches_in(path) == sorted(2 * list(range(delta_tables.FEW_FILES + 1)))


@pytest.mark.parametrize("fails", [False, True])
def test_commits_checkpoint_the_log_by_themselves(tmp_path, monkeypatch, fails):
    """One that fails leaves the log as it is, and the commit is made."""
    path = str(tmp_path / "t")
    if fails:
        monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for batch in range(21):
        publish(path, rows(batch), batch)
    assert batches_in(path) == sorted(2 * list(range(21)))
    made = sorted(p.name for p in Path(path, "_delta_log").glob("*.checkpoint.parquet"))
    assert made == ([] if fails else [f"{version:020d}.checkpoint.parquet" for version in (10, 20)])


def test_old_log_entries_go_and_the_table_stays(tmp_path):
    path = str(tmp_path / "t")
    for batch in range(5):
        publish(path, rows(batch), batch)
    for entry in Path(path, "_delta_log").glob("*.json"):
        aged(entry)
    delta_tables.shorten_log(path)
    assert len(list(Path(path, "_delta_log").glob("*.json"))) <= 1
    assert batches_in(path) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert DeltaTable(path).transaction_version("app") == 4


def test_a_table_that_keeps_its_log_keeps_it(tmp_path):
    path = str(tmp_path / "t")
    write_deltalake(path, rows(0), configuration={"delta.enableExpiredLogCleanup": "false"})
    for entry in Path(path, "_delta_log").glob("*.json"):
        aged(entry)
    delta_tables.shorten_log(path)
    assert Path(path, "_delta_log", f"{0:020d}.json").exists()


@pytest.mark.covers("D6")
def test_files_that_no_commit_names_go_by_age(tmp_path):
    path = tmp_path / "t"
    write_deltalake(path, rows(0))
    write_deltalake(path, rows(1), mode="append")
    DeltaTable(path).create_checkpoint()
    old, new = left(path / "part-00000-killed.snappy.parquet", 8), left(path / "part-00000-running.snappy.parquet", 1)
    assert delta_tables.vacuum(str(path)) == 1
    assert (old.exists(), new.exists()) == (False, True)
    assert batches_in(str(path)) == [0, 0, 1, 1]


@pytest.mark.covers("D6", "S4", "D9")
@pytest.mark.parametrize("years", [0, 20])
def test_without_a_retention_files_go_that_a_clock_ahead_has_removed(tmp_path, years):
    path = str(tmp_path / "t")
    for batch in range(3):
        write_deltalake(path, rows(batch), mode="append" if batch else "overwrite")
    old, new = sorted(DeltaTable(path).file_uris()), time.time_ns() // 1_000_000 + years * 366 * 86_400_000
    DeltaTable(path).optimize.compact()
    entry = tmp_path / "t" / "_delta_log" / f"{3:020d}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in (each["remove"] for each in actions if "remove" in each):
        action["deletionTimestamp"] = new - 1
    entry.write_text("\n".join(map(json.dumps, actions)))
    time.sleep(0.002)
    assert sorted(f"{path}/{name}" for name in delta_tables.old_files(path)) == [uri.removeprefix("file://") for uri in old]
    assert delta_tables.vacuum(path, retention_hours=0) == len(old)
    assert delta_tables.old_files(path) == []
    assert batches_in(path) == [0, 0, 1, 1, 2, 2]


def test_deletion_vectors_are_not_taken_for_leftovers(tmp_path):
    path = tmp_path / "t"
    write_deltalake(path, rows(0), configuration={"delta.enableDeletionVectors": "true"})
    vector = left(path / "deletion_vector_00000000-0000-0000-0000-000000000000.bin")
    delta_tables.vacuum(str(path))
    assert vector.exists()


@pytest.mark.parametrize("other", ["below/part-0.parquet", "below/_delta_log/0.json", "notes.md"])
def test_what_others_keep_in_the_folder_of_a_table_stays(tmp_path, other):
    path = tmp_path / "t"
    write_deltalake(str(path), rows(0))
    write_deltalake(str(path / "below"), rows(0))
    there = [aged(file) for file in path.rglob("*") if file.is_file()]
    there += [left(path / name) for name in (other, "leftover.parquet")]
    delta_tables.vacuum(str(path))
    assert all(file.exists() for file in there)
    assert batches_in(str(path / "below")) == [0, 0]


@pytest.mark.covers("D6")
def test_leftovers_of_partitions_go(tmp_path):
    path = tmp_path / "t"
    write_deltalake(str(path), rows(0), partition_by=["batch"])
    leftover = left(path / "batch=0" / "leftover.parquet")
    assert delta_tables.vacuum(str(path)) == 1
    assert not leftover.exists()
