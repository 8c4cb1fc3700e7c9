"""Compacting the table of partials: what goes, which files are merged, and in what order their rows are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from windowmill.checkpoints.delta_tables import files_of
from windowmill.checkpoints.state import compaction, readers
from windowmill.checkpoints.state.compaction import NeededPartials, compact
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit, rows_of
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.grids import Selection, Span

SCHEMA = pa.schema([("the key", pa.string()), ("_slice", pa.int64()), ("_level", pa.int64()), ("_batch", pa.int64())])


def append(path: Path, batch: int, *, slices: int = 4) -> None:
    """A batch's ``slices`` of a few keys from number 10 · ``batch`` on, and a node over each two of them."""
    rows = [(key, 10 * batch + n, level, batch) for key in "ab" for level in (0, 1) for n in range(0, slices, 1 + level)]
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
    write_deltalake(path, table, mode="append", commit_properties=CommitProperties(app_transactions=[Transaction("app", batch)]))


def rows(path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist())


def files(path: Path) -> list[list[dict[str, Any]]]:
    """The rows of each file as they stand, older batches first."""
    found = [pq.read_table(uri).to_pylist() for uri in DeltaTable(path).file_uris()]
    return sorted(found, key=lambda file: min(row["_batch"] for row in file))


def test_files_of_successive_batches_are_merged_in_order_of_level_and_start(tmp_path, monkeypatch):
    for batch in (2, 0, 1, *range(3, 10)):
        append(tmp_path, batch)
    before = rows(tmp_path)
    monkeypatch.setattr(compaction, "SORTED_ROWS", 40)
    assert compact(str(tmp_path), 99, ["slices"]) == 0
    assert rows(tmp_path) == before
    merged = files(tmp_path)
    assert [sorted({row["_batch"] for row in file}) for file in merged] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    for file in merged[:3]:
        places = [(row["_level"], row["_slice"]) for row in file]
        assert places == sorted(places)
    assert DeltaTable(tmp_path).transaction_version("app") == 9, "a retry must still find what has landed"
    version = DeltaTable(tmp_path).version()
    append(tmp_path, 10)
    assert compact(str(tmp_path), 99, ["slices"]) == 0
    assert DeltaTable(tmp_path).version() == version + 2, "only the last files are merged anew"


def test_what_no_window_needs_goes_and_files_of_distant_batches_stay_apart(tmp_path, monkeypatch):
    for batch in range(5):
        append(tmp_path, batch, slices=40 if batch == 1 else 4)
    before = rows(tmp_path)
    monkeypatch.setattr(compaction, "SORTED_ROWS", 40)
    # Batch 1 wrote more than is sorted at once, of which the first six slices go, and three nodes.
    gone = [row for row in before if row[1] < 16]
    assert compact(str(tmp_path), 99, ["slices"], NeededPartials.slices_from(16)) == len(gone) == 12 + 2 * (6 + 3)
    assert rows(tmp_path) == [row for row in before if row not in gone]
    assert [{row["_batch"] for row in file} for file in files(tmp_path)] == [{1}, {2, 3, 4}]
    version = DeltaTable(tmp_path).version()
    assert compact(str(tmp_path), 99, ["slices"], NeededPartials.slices_from(16)) == 0
    assert DeltaTable(tmp_path).version() == version
    assert compact(str(tmp_path), 99, ["slices"], NeededPartials.slices_from(1_000)) == len(before) - len(gone)
    assert rows(tmp_path) == []


def test_rows_that_another_attempt_appends_meanwhile_are_not_lost(tmp_path, monkeypatch):
    append(tmp_path, 0)
    append(tmp_path, 1)
    write = compaction.write_deltalake

    def overtaken(*arguments: Any, **options: Any) -> None:
        append(tmp_path, 2)
        write(*arguments, **options)

    monkeypatch.setattr(compaction, "write_deltalake", overtaken)
    with pytest.raises(CommitFailedError):
        compact(str(tmp_path), 99, ["slices"])
    assert len(rows(tmp_path)) == 3 * 12


def test_files_without_statistics_are_not_taken_apart(tmp_path):
    """Statistics are kept of a table's first 32 columns; of a file that has none any batch may have rows."""
    table = pa.table({f"key {n}": ["a"] for n in range(32)} | {"_slice": [0], "_batch": [0]})
    for batch in range(3):
        write_deltalake(tmp_path, table.set_column(33, "_batch", [[batch]]), mode="append")
    assert compact(str(tmp_path), 99, ["slices"]) == 0
    assert len(files(tmp_path)) == 1
    assert len(rows(tmp_path)) == 3


WHOLE = pa.schema([("k", pa.string()), ("_slice", pa.int64()), ("_level", pa.int64()), ("_closed", pa.int64()), ("_batch", pa.int64())])
NOTHING = Selection(slices=(), nodes=(), late_from=0, late_after=1_000)


@pytest.mark.parametrize(
    ("wanted", "batches"),
    [
        (NOTHING, set()),
        (replace(NOTHING, slices=((12, 13), (39, 40))), {1}),
        (replace(NOTHING, slices=((3, 10), (33, 34))), {0, 3}),
        (replace(NOTHING, nodes=((1, (12, 32)), (3, (16,)))), {1, 3}),
        (replace(NOTHING, nodes=((1, (14, 19)), (2, (0,)))), set()),
        (replace(NOTHING, late_after=60), set()),
        (replace(NOTHING, late_after=40), {2}),
        (replace(NOTHING, late_from=24, late_after=40), set()),
    ],
    ids=str,
)
def test_only_files_that_may_hold_something_wanted_are_searched(tmp_path, wanted, batches):
    """Batch n has slices 10n to 10n + 3 and nodes over each two; of batch 2 a slice came late, behind instant 50."""
    for batch in range(4):
        rows = [("a", 10 * batch + n, level, None, batch) for level in (0, 1) for n in range(0, 4, 1 + level)]
        rows += [("b", 20, 0, 50, batch)] if batch == 2 else []
        write_deltalake(tmp_path, pa.table([list(column) for column in zip(*rows, strict=True)], schema=WHOLE), mode="append")
    state = DeltaState(str(tmp_path), RowCheck("state"))
    assert {file["min._batch"] for file in files_of(DeltaTable(tmp_path)) if rows_of(wanted).may_hold(file)} == batches
    limit = ReadLimit(span_bytes=0, searched_bytes=1 << 20, rows=5)
    found = state.partials(WHOLE, wanted, before_batch=9, limit=limit)
    assert set(found["_batch"].to_pylist()) == batches
    earlier = state.partials(WHOLE, wanted, before_batch=2, limit=limit)
    assert set(earlier["_batch"].to_pylist()) == batches - {2, 3}
    if batches:
        assert state.partials(WHOLE, wanted, before_batch=9, limit=replace(limit, rows=found.num_rows - 1)) is None
        assert state.partials(WHOLE, wanted, before_batch=9, limit=replace(limit, searched_bytes=100)) is None


@pytest.mark.parametrize(
    ("wanted", "begun", "reaching"),
    [
        (Span(10, 20, ()), {10, 12}, set()),
        (Span(10, 20, ((12, 13), (31, 40))), {10, 12}, {12, 32}),
        (replace(NOTHING, reaching=((0, 11),)), set(), {10}),
        (replace(NOTHING, slices=((12, 13),), nodes=((1, (30,)),), reaching=((12, 13),)), {12, 30}, {12}),
    ],
    ids=str,
)
@pytest.mark.parametrize("whole", [0, 1 << 20], ids=["queried", "read whole"])
def test_of_events_that_reach_into_slices_those_at_the_starts_of_windows_are_read(tmp_path, monkeypatch, wanted, begun, reaching, whole):
    monkeypatch.setattr(readers, "WHOLE_BYTES", whole)
    schema = WHOLE.append(pa.field("_reaching", pa.int64()))
    rows = [("a", start, 0, None, 0, family) for family in (0, 1) for start in (10, 12, 30, 32)] + [("a", 30, 1, None, 0, 0)]
    write_deltalake(tmp_path, pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema))
    state = DeltaState(str(tmp_path), RowCheck("state"))
    found = state.partials(schema, wanted, before_batch=1, limit=ReadLimit(1 << 20, 1 << 20, 9))
    families = {family: {row["_slice"] for row in found.to_pylist() if row["_reaching"] == family} for family in (0, 1)}
    assert families == {0: begun, 1: reaching}


def test_of_a_keys_spans_the_latest_committed_row_stays(tmp_path):
    schema = pa.schema([("the key", pa.string()), *((name, pa.int64()) for name in ("_slice", "_w__first", "_w__last", "_batch"))])
    for batch in range(4):
        rows_ = [("a", None, 0, batch, batch), (None, None, 0, batch, batch), ("a", batch, None, None, batch)]
        rows_ += [("b", None, 3, 3, batch)] if batch == 1 else []
        table = pa.table([list(column) for column in zip(*rows_, strict=True)], schema=schema)
        write_deltalake(tmp_path, table, mode="append")
    assert compact(str(tmp_path), 3, ["slices"], spans=["_w__last"]) == 4
    found = DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    spans = sorted((str(row["the key"]), row["_batch"]) for row in found if row["_slice"] is None)
    assert spans == [("None", 2), ("None", 3), ("a", 2), ("a", 3), ("b", 1)], "batch 3 may have failed"
    assert sorted(row["_slice"] for row in found if row["_slice"] is not None) == [0, 1, 2, 3]
    assert compact(str(tmp_path), 3, ["slices"], NeededPartials.slices_from(9), spans=["_w__last"]) == 3
    assert sorted((str(row["the key"]), row["_batch"]) for row in DeltaTable(tmp_path).to_pyarrow_table().to_pylist()) == sorted(
        [*spans, ("a", 3)]
    )
