"""Files of a sink that others have rewritten, with texts as views: what stays of them when a range is replaced, or batches are undone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windowmill.checkpoints.committer import ReplacedRange
from windowmill.checkpoints.data_files import DataFile, rows_of
from windowmill.checkpoints.rewriting import UndoneFiles
from windowmill.windowing.axis import to_us

HOURS = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(4)]


@pytest.fixture
def sink(tmp_path: Path) -> str:
    """Four rows of one batch each in one file, of which a DELETE has taken another."""
    rows = {
        "key": ["a", "b", "a", "b", "gone"],
        "window": ["w"] * 5,
        "window_end": pa.array([*HOURS, HOURS[0]], pa.timestamp("us", "UTC")),
        "batch": [0, 1, 2, 3, 0],
    }
    write_deltalake(str(tmp_path / "sink"), pa.table(rows))
    DeltaTable(tmp_path / "sink").delete("key = 'gone'")
    return str(tmp_path / "sink")


def left(sink: str, files: tuple[DataFile, ...]) -> list[tuple[str, int]]:
    schema = pa.schema([("key", pa.string()), ("batch", pa.int64())])
    found = pa.concat_tables([schema.empty_table(), *rows_of(sink, [file.path for file in files], schema)])
    return list(zip(*found.to_pydict().values(), strict=True))


@pytest.mark.parametrize(
    ("kept_batch", "spared", "through", "stay"),
    [(1, [], None, [("a", 0), ("b", 1)]), (0, [2, 3], to_us(HOURS[2]), [("a", 0), ("a", 2)])],
    ids=["earlier", "spared"],
)
def test_rows_of_earlier_batches_stay_and_of_spared_ones_through_an_instant(sink, kept_batch, spared, through, stay):
    plan = SimpleNamespace(kept_batch=kept_batch, spared=spared, through=through)
    undone = UndoneFiles.of(sink, DeltaTable(sink), plan, role="sink")
    assert left(sink, undone.keep(batch=4, attempt="a" * 12)) == stay


def test_rows_outside_a_range_stay(sink):
    replaced = ReplacedRange.of(sink, DeltaTable(sink), (to_us(HOURS[0]), to_us(HOURS[2])))
    assert left(sink, replaced.keep(replaced.partly, batch=4, attempt="a" * 12, task=0)) == [("a", 0), ("b", 3)]


def test_a_column_that_a_file_lacks_is_null(sink):
    [rows] = rows_of(
        sink, [file["path"] for file in pa.table(DeltaTable(sink).get_add_actions()).to_pylist()], pa.schema([("new", pa.int64())])
    )
    assert rows.column("new").to_pylist() == [None] * 4
