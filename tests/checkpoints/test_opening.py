"""State that is missing, older, cut, damaged or of a newer format is refused in one line, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import create
from windowmill.checkpoints.delta_tables import FORMAT, FORMATS, check_format
from windowmill.checkpoints.state import reading
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit, open_state
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.hashes import RowCheck, with_checksums
from windowmill.windowing.errors import StateCorruptError, StateError, StateMissingError
from windowmill.windowing.grids import Span

BARE = pa.schema([("k", pa.string()), ("_slice", pa.int64()), ("_closed", pa.int64()), ("_batch", pa.int64()), ("rows", pa.int64())])
SCHEMA = BARE.append(pa.field(SUM, pa.int64()))
EVERYTHING, LIMIT = Span(-100, 100), ReadLimit(1 << 30, 1 << 30, 1 << 20)
REMEDY = "nothing was written; restore the folder from a copy, or backfill into a new sink"


def append(path: Path, batch: int) -> None:
    rows = pa.table([["a", "b", None], [batch, batch + 1, batch + 2], [None, None, 5], [batch] * 3, [1, 2, 3]], schema=BARE)
    once = CommitProperties(
        app_transactions=[Transaction("app", batch)], custom_metadata={"userMetadata": json.dumps({"pipeline": "p", "batch": batch})}
    )
    write_deltalake(path, with_checksums(rows), mode="append", commit_properties=once)


@pytest.fixture
def path(tmp_path) -> Path:
    """A state table of two batches, at version 2."""
    create(str(tmp_path / "state"), str(Changes.of(SCHEMA).schema), "state", {})
    for batch in range(2):
        append(tmp_path / "state", batch)
    return tmp_path / "state"


@pytest.fixture(params=[True, False], ids=["read whole", "queried"])
def either_way(request, monkeypatch) -> None:
    monkeypatch.setattr("windowmill.checkpoints.state.readers.WHOLE_BYTES", reading.WHOLE_BYTES if request.param else 0)


def restore(path: Path, before_batch: int = 9) -> pa.Table:
    state = DeltaState(str(path), RowCheck(str(path)))
    found = state.partials(SCHEMA, EVERYTHING, before_batch=before_batch, limit=LIMIT)
    assert found is not None
    return found


def last_entry(path: Path) -> Path:
    return max((path / "_delta_log").glob("*.json"))


def data_file(path: Path) -> Path:
    return Path(DeltaTable(path).file_uris()[0])


def test_rows_come_back_without_their_checksums(path):
    assert open_state(str(path), left_at=2) == RowCheck(str(path))
    found = restore(path, before_batch=1)
    assert found.schema.names == BARE.names
    assert {tuple(row.values()) for row in found.to_pylist()} == {("a", 0, None, 0, 1), ("b", 1, None, 0, 2), (None, 2, 5, 0, 3)}


def test_a_commit_of_others_whose_metadata_tell_of_a_batch_is_none_of_ours(path):
    table = DeltaTable(path)
    table.optimize.compact(commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps({"job": "batch"})}))
    assert open_state(str(path), left_at=table.version()) == RowCheck(str(path))


def test_no_table_is_a_pipelines_first_or_a_loss(tmp_path):
    path = str(tmp_path / "state")
    assert open_state(path, left_at=None) == RowCheck(path)
    with pytest.raises(StateMissingError, match=f"{path}: there is no table, but committed batches have written to it; {REMEDY}"):
        open_state(path, left_at=0)


@pytest.mark.covers("D2")
def test_an_older_table_is_a_loss(path):
    last_entry(path).unlink()
    with pytest.raises(StateMissingError, match=f"at version 1, but committed batches left it at version 2; {REMEDY}"):
        open_state(str(path), left_at=2)


@pytest.mark.covers("D3")
def test_a_last_entry_cut_anywhere_is_damage(path):
    entry = last_entry(path)
    whole = entry.read_bytes()
    for length in range(len(whole) - 1):
        entry.write_bytes(whole[:length])
        with pytest.raises((StateCorruptError, StateMissingError), match=REMEDY):
            open_state(str(path), left_at=2)
    entry.write_bytes(whole)
    open_state(str(path), left_at=2)


@pytest.mark.covers("D2")
def test_a_data_file_that_is_gone(path, either_way):
    data_file(path).unlink()
    with pytest.raises(StateMissingError, match=rf"part-[-\w]+.*snappy\.parquet.*{REMEDY}"):
        restore(path)


@pytest.mark.covers("D3")
def test_a_data_file_cut_or_garbled(path, either_way):
    file = data_file(path)
    data = file.read_bytes()
    for damaged in (b"", data[:-1], data[: len(data) // 2], b"PAR1" + bytes(len(data) - 8) + b"PAR1", data[:100][::-1] + data[100:]):
        file.write_bytes(damaged)
        with pytest.raises(StateCorruptError, match=REMEDY):
            restore(path)


def test_a_row_that_is_another_is_damage_however_it_is_read(path, either_way):
    rows = DeltaTable(path).to_pyarrow_table()
    write_deltalake(path, rows.set_column(4, "rows", [[1, 2, 3, 1, 2, 4]]), mode="overwrite")
    with pytest.raises(StateCorruptError, match=f"1 of 6 rows read differ from what was written; {REMEDY}"):
        restore(path)


def test_a_row_that_is_moved_out_of_what_is_read_is_damage(path):
    rows = DeltaTable(path).to_pyarrow_table()
    moved = [(row["k"], row["_batch"]) == ("b", 0) for row in rows.to_pylist()]
    starts = pc.if_else(pa.array(moved), 0, rows["_slice"])
    write_deltalake(path, rows.set_column(rows.schema.get_field_index("_slice"), "_slice", starts), mode="overwrite")
    state = DeltaState(str(path), RowCheck(str(path)))
    with pytest.raises(StateCorruptError, match=f"1 of 6 rows read differ from what was written; {REMEDY}"):
        state.partials(SCHEMA, Span(1, 4), before_batch=9, limit=LIMIT)


def test_a_missing_column_is_damage(path, either_way):
    rows = DeltaTable(path).to_pyarrow_table().drop_columns(["_closed"])
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(StateCorruptError, match=f"column '_closed' is missing, perhaps because .*; {REMEDY}"):
        restore(path)


@pytest.mark.covers("V2")
@pytest.mark.parametrize("kind", FORMATS)
def test_a_newer_format_is_refused(tmp_path, kind):
    path = str(tmp_path / kind)
    create(path, str(Changes.of(SCHEMA).schema), kind, {})
    check_format(DeltaTable(path), kind)
    DeltaTable(path).alter.set_table_properties({FORMAT: "7"}, raise_if_not_exists=False)
    with pytest.raises(StateError, match=rf"{kind} .*format 7, this windowmill reads format {FORMATS[kind]}; upgrade windowmill"):
        check_format(DeltaTable(path), kind)
    if kind == "state":
        with pytest.raises(StateError, match="upgrade windowmill"):
            open_state(path, left_at=0)


@pytest.mark.covers("V2")
@pytest.mark.parametrize("has_property", [False, True])
def test_an_older_format_is_refused_in_one_line(tmp_path, has_property):
    path = str(tmp_path / "state")
    write_deltalake(path, BARE.empty_table())
    if has_property:
        DeltaTable(path).alter.set_table_properties({FORMAT: "1"}, raise_if_not_exists=False)
    before = DeltaTable(path).version()
    with pytest.raises(StateError, match=r"format 1 of a version before the first release, .*; give the pipeline a new sink and backfill"):
        open_state(path, left_at=0)
    assert DeltaTable(path).version() == before
