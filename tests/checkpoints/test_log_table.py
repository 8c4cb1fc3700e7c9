"""Compacting the log of live rows: what goes, what stays, and when it pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError

from windowmill.checkpoints.state import compaction, readers
from windowmill.checkpoints.state.compaction import compact, is_overgrown
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.checkpoints.state.tables import number_of_rows
from windowmill.windowing.columnar.hashes import RowCheck, with_checksums
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY, ROW
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.watermark import AFTER

SCHEMA = pa.schema([("k", pa.float64()), ("_kind", pa.string()), ("_batch", pa.int64()), ("_due", pa.int64()), ("_number", pa.int64())])
#: Of these tables many versions are opened, each time by replaying what has come since the last checkpoint.
CHECKPOINTED = {"delta.checkpointInterval": "10"}
MUCH = ReadLimit(1 << 30, 0, 1 << 30)


def append(path: Path, batch: int, *entries: tuple[float | None, str, int | None]) -> None:
    rows = [(key, kind, batch, 0 if kind == KEY_ENTRY else None, number) for key, kind, number in entries]
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
    once = CommitProperties(app_transactions=[Transaction("app", batch)])
    write_deltalake(path, table, mode="append", schema_mode="merge", commit_properties=once, configuration=CHECKPOINTED)


def entries(path: Path) -> list[str]:
    """Key, kind, batch and number of each entry; as text, where NaN equals NaN."""
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(repr(tuple(row[name] for name in ("k", "_kind", "_batch", "_number"))) for row in table.to_pylist())


def test_what_later_entries_have_superseded_goes_and_an_open_batch_stays(tmp_path):
    append(tmp_path, 0, (1.0, KEY_ENTRY, None), (None, KEY_ENTRY, None), (1.0, ROW, 1), (None, ROW, 2), (float("nan"), KEY_ENTRY, None))
    append(tmp_path, 1, (1.0, KEY_ENTRY, None), (1.0, GONE, 1), (None, ROW, 2), (1.0, ROW, 3))
    append(tmp_path, 2, (float("nan"), KEY_ENTRY, None), (1.0, GONE, 3))
    assert compact(str(tmp_path), 2, ["live rows"]) == 4
    kept: list[tuple[Any, ...]] = [(1.0, KEY_ENTRY, 1, None), (None, KEY_ENTRY, 0, None), (float("nan"), KEY_ENTRY, 0, None)]
    kept += [(None, ROW, 1, 2), (1.0, ROW, 1, 3), (float("nan"), KEY_ENTRY, 2, None), (1.0, GONE, 2, 3)]
    assert entries(tmp_path) == sorted(map(repr, kept))
    assert DeltaTable(tmp_path).transaction_version("app") == 2, "a retry of batch 2 must still find that it has landed"


def test_a_log_whose_columns_a_changed_spec_has_added_behind_those_of_slices_is_compacted_by_its_keys(tmp_path):
    of_slices = pa.schema([("k", pa.float64()), ("_slice", pa.int64()), ("_batch", pa.int64()), ("rows", pa.int64())])
    write_deltalake(tmp_path, of_slices.empty_table())
    added = pa.schema([SCHEMA.field(name) for name in ("_kind", "_due", "_number")])
    DeltaTable(tmp_path).alter.add_columns(DeltaSchema.from_arrow(added).fields)
    append(tmp_path, 0, (1.0, KEY_ENTRY, None), (1.0, ROW, 1), (1.0, ROW, 2))
    append(tmp_path, 1, (1.0, KEY_ENTRY, None), (1.0, GONE, 1))
    assert compact(str(tmp_path), 2, ["slices", "live rows"]) == 3
    assert entries(tmp_path) == sorted(map(repr, [(1.0, KEY_ENTRY, 1, None), (1.0, ROW, 0, 2)]))


def test_entries_that_another_attempt_appends_meanwhile_are_not_lost(tmp_path, monkeypatch):
    append(tmp_path, 0, (1.0, KEY_ENTRY, None), (1.0, ROW, 1))
    write = compaction.write_deltalake

    def overtaken(*arguments: Any, **options: Any) -> None:
        append(tmp_path, 1, (2.0, KEY_ENTRY, None))
        write(*arguments, **options)

    monkeypatch.setattr(compaction, "write_deltalake", overtaken)
    with pytest.raises(CommitFailedError):
        compact(str(tmp_path), 1, ["live rows"])
    assert len(entries(tmp_path)) == 3


@pytest.mark.thorough
def test_a_log_is_compacted_when_as_much_has_come_as_was_left(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_ENTRIES", 10)
    written, longest, compactions, live = 0, 0, 0, 40
    for batch in range(200):
        touched = range(live) if batch == 0 else [(batch * 7 + step) % live for step in range(3)]
        append(tmp_path, batch, *((float(key), KEY_ENTRY, None) for key in touched))
        written += len(touched)
        overgrown = is_overgrown(str(tmp_path))
        assert batch or not overgrown, "a first batch, however large, supersedes nothing"
        if overgrown:
            before = len(entries(tmp_path))
            assert compact(str(tmp_path), batch + 1, ["live rows"]) == before - live
            assert not is_overgrown(str(tmp_path))
            written, compactions = written + live, compactions + 1
        longest = max(longest, number_of_rows(DeltaTable(tmp_path)))
    assert longest <= 2 * live + 10 + 3
    assert compactions > 5
    assert written <= 3 * (live + 3 * 200), "compactions write no more than a constant share for each entry"


def test_many_small_files_are_merged(tmp_path):
    for batch in range(compaction.FEW_FILES + 1):
        append(tmp_path, batch, (1.0, KEY_ENTRY, None))
    assert is_overgrown(str(tmp_path))
    compact(str(tmp_path), compaction.FEW_FILES + 1, ["live rows"])
    assert (len(DeltaTable(tmp_path).file_uris()), entries(tmp_path)) == (1, [repr((1.0, KEY_ENTRY, compaction.FEW_FILES, None))])


def test_a_log_too_large_for_memory_is_left_to_maintenance(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "FEW_ENTRIES", 0)
    append(tmp_path, 0, (1.0, KEY_ENTRY, None))
    append(tmp_path, 1, (1.0, KEY_ENTRY, None), (2.0, KEY_ENTRY, None))
    assert is_overgrown(str(tmp_path))
    monkeypatch.setattr(compaction, "COMPACTED_BYTES", 10)
    assert not is_overgrown(str(tmp_path))


@pytest.fixture(params=["whole", "queried"])
def log(request, tmp_path, monkeypatch) -> DeltaState:
    """A log of four keys, which is read whole or by a query: 1.0 is due at 100, null at 5, NaN never, 2.0 at 5 and then at 90."""
    if request.param == "queried":
        monkeypatch.setattr(readers, "WHOLE_BYTES", 0)
    later = [(1.0, KEY_ENTRY, 0, 100, None), (None, KEY_ENTRY, 0, 5, None), (float("nan"), KEY_ENTRY, 0, AFTER, None)]
    later += [(2.0, KEY_ENTRY, 0, 5, None), (2.0, ROW, 0, None, 4), (None, ROW, 0, None, 5), (2.0, KEY_ENTRY, 1, 90, None)]
    for batch in (0, 1):
        rows = [row for row in later if row[2] == batch]
        table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
        write_deltalake(tmp_path, with_checksums(table), mode="append")
    return DeltaState(str(tmp_path), RowCheck("state"))


def read(log: DeltaState, *touched: float | None, watermark: int, before_batch: int = 2, limit: ReadLimit = MUCH) -> list[str] | None:
    """Key, kind and number of each entry read; as text, where NaN equals NaN."""
    rows = pa.table({"k": pa.array(touched, pa.float64())})
    # A pipeline may come to read a column that the table does not have.
    schema = pa.schema([*SCHEMA, ("note", pa.string()), ("_sum", pa.int64())])
    entries = log.log(schema, ["note"], rows, {"key": "k"}, before_batch=before_batch, watermark=watermark, limit=limit)
    return None if entries is None else sorted(repr(tuple(row[name] for name in ("k", "_kind", "_number"))) for row in entries.to_pylist())


def test_a_batch_reads_the_entries_of_keys_that_it_touches_or_that_are_due(log):
    of_null = ["(None, 'key', None)", "(None, 'row', 5)"]
    assert read(log, watermark=4) == []
    assert read(log, watermark=5) == of_null, "the latest entry of a key says when it is due"
    assert read(log, watermark=5, before_batch=1) == sorted([*of_null, "(2.0, 'key', None)", "(2.0, 'row', 4)"])
    assert read(log, 2.0, watermark=4) == ["(2.0, 'key', None)", "(2.0, 'key', None)", "(2.0, 'row', 4)"]
    assert read(log, float("nan"), 7.0, watermark=4) == ["(nan, 'key', None)"]


def test_a_log_beyond_the_limits_is_left_to_spark(log):
    assert read(log, watermark=4, limit=ReadLimit(1 << 20, 0, 6)) is None
    assert read(log, watermark=4, limit=ReadLimit(100, 0, 100)) is None


def test_an_altered_entry_is_told(log, tmp_path):
    rows = pa.table(DeltaTable(tmp_path).to_pyarrow_table())
    altered = rows.set_column(rows.schema.get_field_index("_number"), "_number", pa.array([None] * 6 + [6], pa.int64()))
    write_deltalake(tmp_path, altered, mode="overwrite")
    with pytest.raises(StateCorruptError, match="rows read differ"):
        read(log, None, 1.0, 2.0, watermark=4)


@pytest.mark.covers("D3")
@pytest.mark.parametrize(("column", "value"), [("_due", AFTER), ("k", 9.0), ("_kind", ROW)])
def test_an_entry_that_says_no_more_that_its_key_is_due_is_told(log, tmp_path, column, value):
    rows = pa.table(DeltaTable(tmp_path).to_pyarrow_table())
    # The entry of null, by which the watermark 5 makes it due.
    told = [key is None and kind == KEY_ENTRY for key, kind in zip(rows["k"].to_pylist(), rows["_kind"].to_pylist(), strict=True)]
    at = rows.schema.get_field_index(column)
    altered = pc.if_else(pa.array(told), pa.scalar(value, rows.schema.field(at).type), rows.column(at))
    write_deltalake(tmp_path, rows.set_column(at, rows.schema.field(at), altered), mode="overwrite")
    with pytest.raises(StateCorruptError, match="1 of 7 rows read differ"):
        read(log, 1.0, watermark=5)
