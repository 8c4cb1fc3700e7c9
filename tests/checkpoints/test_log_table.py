"""Compacting the log of live rows: what goes, what stays, and when it pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from windowmill.checkpoints.state import base, joint
from windowmill.checkpoints.state.base import is_overgrown, number_of_rows
from windowmill.checkpoints.state.joint import compact_entries
from windowmill.windowing.columnar.log import GONE, KEY_ENTRY, ROW

SCHEMA = pa.schema([("k", pa.float64()), ("_kind", pa.string()), ("_batch", pa.int64()), ("_due", pa.int64()), ("_number", pa.int64())])
#: Of these tables many versions are opened, each time by replaying what has come since the last checkpoint.
CHECKPOINTED = {"delta.checkpointInterval": "10"}


def append(path: Path, batch: int, *entries: tuple[float | None, str, int | None]) -> None:
    rows = [(key, kind, batch, 0 if kind == KEY_ENTRY else None, number) for key, kind, number in entries]
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
    once = CommitProperties(app_transactions=[Transaction("app", batch)])
    write_deltalake(path, table, mode="append", commit_properties=once, configuration=CHECKPOINTED)


def entries(path: Path) -> list[str]:
    """Key, kind, batch and number of each entry; as text, where NaN equals NaN."""
    table = DeltaTable(path).to_pyarrow_table()
    return sorted(repr(tuple(row[name] for name in ("k", "_kind", "_batch", "_number"))) for row in table.to_pylist())


def test_what_later_entries_have_superseded_goes_and_an_open_batch_stays(tmp_path):
    append(tmp_path, 0, (1.0, KEY_ENTRY, None), (None, KEY_ENTRY, None), (1.0, ROW, 1), (None, ROW, 2), (float("nan"), KEY_ENTRY, None))
    append(tmp_path, 1, (1.0, KEY_ENTRY, None), (1.0, GONE, 1), (None, ROW, 2), (1.0, ROW, 3))
    append(tmp_path, 2, (float("nan"), KEY_ENTRY, None), (1.0, GONE, 3))
    assert compact_entries(str(tmp_path), 2, ["live rows"]) == 4
    kept: list[tuple[Any, ...]] = [(1.0, KEY_ENTRY, 1, None), (None, KEY_ENTRY, 0, None), (float("nan"), KEY_ENTRY, 0, None)]
    kept += [(None, ROW, 1, 2), (1.0, ROW, 1, 3), (float("nan"), KEY_ENTRY, 2, None), (1.0, GONE, 2, 3)]
    assert entries(tmp_path) == sorted(map(repr, kept))
    assert DeltaTable(tmp_path).transaction_version("app") == 2, "a retry of batch 2 must still find that it has landed"


def test_entries_that_another_attempt_appends_meanwhile_are_not_lost(tmp_path, monkeypatch):
    append(tmp_path, 0, (1.0, KEY_ENTRY, None), (1.0, ROW, 1))
    write = joint.write_deltalake

    def overtaken(*arguments: Any, **options: Any) -> None:
        append(tmp_path, 1, (2.0, KEY_ENTRY, None))
        write(*arguments, **options)

    monkeypatch.setattr(joint, "write_deltalake", overtaken)
    with pytest.raises(CommitFailedError):
        compact_entries(str(tmp_path), 1, ["live rows"])
    assert len(entries(tmp_path)) == 3


def test_a_log_is_compacted_when_as_much_has_come_as_was_left(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "FEW_ENTRIES", 10)
    written, longest, compactions, live = 0, 0, 0, 40
    for batch in range(200):
        touched = range(live) if batch == 0 else [(batch * 7 + step) % live for step in range(3)]
        append(tmp_path, batch, *((float(key), KEY_ENTRY, None) for key in touched))
        written += len(touched)
        overgrown = is_overgrown(str(tmp_path))
        assert batch or not overgrown, "a first batch, however large, supersedes nothing"
        if overgrown:
            before = len(entries(tmp_path))
            assert compact_entries(str(tmp_path), batch + 1, ["live rows"]) == before - live
            assert not is_overgrown(str(tmp_path))
            written, compactions = written + live, compactions + 1
        longest = max(longest, number_of_rows(DeltaTable(tmp_path)))
    assert longest <= 2 * live + 10 + 3
    assert compactions > 5
    assert written <= 3 * (live + 3 * 200), "compactions write no more than a constant share for each entry"


def test_many_small_files_are_merged(tmp_path):
    for batch in range(base.FEW_FILES + 1):
        append(tmp_path, batch, (1.0, KEY_ENTRY, None))
    assert is_overgrown(str(tmp_path))
    compact_entries(str(tmp_path), base.FEW_FILES + 1, ["live rows"])
    assert (len(DeltaTable(tmp_path).file_uris()), entries(tmp_path)) == (1, [repr((1.0, KEY_ENTRY, base.FEW_FILES, None))])


def test_a_log_too_large_for_memory_is_left_to_maintenance(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "FEW_ENTRIES", 0)
    append(tmp_path, 0, (1.0, KEY_ENTRY, None))
    append(tmp_path, 1, (1.0, KEY_ENTRY, None), (2.0, KEY_ENTRY, None))
    assert is_overgrown(str(tmp_path))
    monkeypatch.setattr(base, "COMPACTED_BYTES", 10)
    assert not is_overgrown(str(tmp_path))
