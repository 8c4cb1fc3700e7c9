"""`maintain` and what dead attempts leave behind, without Spark."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from tests.checkpoints.records import commit, plan
from tests.spark.harness import quiet
from tests.specs import a_spec
from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.delta_tables import check_appendable
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Places
from windowmill.checkpoints.records import FAN
from windowmill.expectations.gate import SCHEMA
from windowmill.jobs.commands.maintenance_command import maintain
from windowmill.jobs.commands.summaries import history_of, quality_of, status_of
from windowmill.windowing.errors import StateCorruptError, StateError
from windowmill.windowing.specfile import parse_pipeline

DAYS = 86_400


@pytest.fixture
def pipeline(tmp_path):
    return parse_pipeline(a_spec(tmp_path))


def maintained(pipeline) -> dict[str, dict[str, Any]]:
    """What maintenance tells of each table."""
    return {row["table"]: row for row in maintain(pipeline, quiet()).data}


def test_a_table_that_the_pipeline_has_not_made_is_left_alone(tmp_path):
    pipeline = parse_pipeline(a_spec(tmp_path, sink={"path": str(tmp_path / "sink"), "current": str(tmp_path / "current")}))
    for place in (tmp_path / "sink", tmp_path / "current"):
        for n in range(3):
            write_deltalake(place, pa.table({"n": [n]}), mode="append")
    assert maintained(pipeline) == {}
    assert [DeltaTable(tmp_path / name).version() for name in ("sink", "current")] == [2, 2]


def damage(table: str) -> None:
    Path(table, "_delta_log", f"{0:020d}.json").write_text("{")


def with_batches(pipeline, count: int) -> Places:
    ledger = Ledger.open(pipeline)
    for number in range(ledger.count, ledger.count + count):
        at = datetime.now(UTC)
        outcome = commit(seen=number, emitted=number, rows_read=3, rows_published=2)
        ledger.record(plan(number, pipeline="p", meaning=pipeline.meaning_hash()), outcome, {}, at)
    return Places.of(pipeline)


def age(file: Path, days: float) -> None:
    os.utime(file, (time.time() - days * DAYS,) * 2)


def test_the_ledger_keeps_its_own_files_through_maintenance(pipeline):
    places = with_batches(pipeline, FAN // 2 + 4)
    kept = maintained(pipeline)["ledger"]
    names = [Path(uri).name for uri in DeltaTable(places.ledger).file_uris()]
    assert all(name.startswith("records-") for name in names), "delta-rs' own compaction would lose the checksums in their names"
    assert kept["files_after"] == len(names)
    assert len(Ledger.open(pipeline).batches()) == FAN // 2 + 4


@pytest.mark.covers("D6")
def test_superseded_and_uncommitted_files_of_the_ledger_go_by_age(pipeline):
    places = with_batches(pipeline, FAN // 2 + 4)
    folder = Path(places.ledger)
    (folder / "records-000000000099-0-00000000-00000000.parquet").write_bytes(b"left by an attempt")
    before = len(list(folder.glob("*.parquet")))
    maintained(pipeline)
    assert len(list(folder.glob("*.parquet"))) == before, "none is old yet"
    for file in folder.glob("*.parquet"):
        age(file, days=2)
    maintained(pipeline)
    # Superseded files count their age from the merge on, which was just now.
    assert not (folder / "records-000000000099-0-00000000-00000000.parquet").exists()
    assert len(Ledger.open(pipeline).batches()) == FAN // 2 + 4


@pytest.mark.covers("D6")
def test_what_dead_attempts_wrote_goes_by_age(pipeline):
    with_batches(pipeline, 1)
    write_deltalake(pipeline.sink.path, pa.table({"n": [1]}))
    schema = pa.schema([("n", pa.int64())])
    left: list[Path] = []
    for attempt in ("dead", "running"):
        with FileWriter(pipeline.sink.path, schema, batch=3, attempt=attempt.encode().hex(), task=0) as writer:
            writer.write(pa.table({"n": [2]}))
        left += [Path(pipeline.sink.path) / file.path for file in writer.close()]
    age(left[0], days=8)
    maintained(pipeline)
    assert [file.exists() for file in left] == [False, True]
    assert DeltaTable(pipeline.sink.path).to_pyarrow_table().to_pydict() == {"n": [1]}


def test_status_and_history_of_a_long_life(pipeline):
    with_batches(pipeline, 30)
    status = status_of(pipeline).data
    assert (status["batches"], status["rows_read"], status["source_version"], status["status"]) == (30, 90, 29, "idle")
    assert [row["batch"] for row in history_of(pipeline, 20, timings=False).data] == list(range(10, 30))


def test_quality_reads_the_files_of_the_newest_batches(pipeline):
    places = Places.of(pipeline)
    texts = {"pipeline": "p", "generation": "g", "attempt": "0", "status": "passed", "origin": "spec", "type": "expect", "arguments": "{}"}
    texts |= {"severity": "warning", "outcome": "passed", "message": "", "examples": "[]"}
    for batch in (0, 1, 2, 50):
        row = texts | {"batch": batch, "at": datetime.now(UTC), "rule": 0}
        write_deltalake(places.quality, pa.Table.from_pylist([row], schema=SCHEMA), mode="append")
    assert [row["batch"] for row in quality_of(pipeline, 2).data] == [2, 50]
    assert [row["batch"] for row in quality_of(pipeline, 9).data] == [0, 1, 2, 50]


@pytest.mark.covers("D7")
def test_a_table_that_cannot_be_read_or_tidied_is_named(pipeline):
    places = with_batches(pipeline, 1)
    write_deltalake(places.quality, pa.table({"batch": [0]}))
    damage(places.quality)
    for command in (lambda: quality_of(pipeline, 5), lambda: check_appendable(places.quality)):
        with pytest.raises(StateCorruptError, match=f"{places.quality}: cannot be"):
            command()
    with pytest.raises(StateError, match=f"quality {places.quality}: cannot be tidied"):
        maintained(pipeline)


@pytest.mark.parametrize("change", ["a column more", "a column less", "a file gone", "another type"])
def test_a_quality_table_that_others_have_altered_is_read_or_named(pipeline, change):
    path = Places.of(pipeline).quality
    row = dict.fromkeys(SCHEMA.names) | {"batch": 0, "rule": 0, "unexpected": 0, "at": datetime(2024, 1, 1, tzinfo=UTC)}
    texts = {field.name: "{}" for field in SCHEMA if field.type == pa.string()} | {"examples": "[]", "values": "[]"}
    rows = pa.Table.from_pylist([row | texts], schema=SCHEMA)
    if change == "a column less":
        rows = rows.drop_columns(["message"])
    elif change == "another type":
        rows = rows.set_column(SCHEMA.get_field_index("batch"), "batch", pa.array(["a"]))
    write_deltalake(path, rows)
    if change == "a column more":
        DeltaTable(path).alter.add_columns([Field("note", PrimitiveType("string"))])
        assert [row["batch"] for row in quality_of(pipeline, 5).data] == [0]
        return
    if change == "a file gone":
        next(Path(path).glob("*.parquet")).unlink()
    with pytest.raises(StateCorruptError, match=rf"^quality {path}: cannot be read \(.*\); restore the folder from a copy$"):
        quality_of(pipeline, 5)


def test_a_sink_that_delta_rs_does_not_write_keeps_its_files_and_the_others_are_tidied(pipeline):
    with_batches(pipeline, 1)
    for _ in range(2):
        write_deltalake(pipeline.sink.path, pa.table({"n": [1]}), mode="append")
    entry = Path(pipeline.sink.path, "_delta_log", f"{0:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "protocol" in action:
            action["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["clustering", "domainMetadata"]}
    entry.write_text("\n".join(map(json.dumps, actions)))
    kept = maintained(pipeline)
    assert kept["sink"]["files_after"] == 2
    assert "ledger" in kept
