"""Files of remembered rows: a search finds the entries of all its ids, and reads little of a file that holds few of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windowmill.checkpoints import seen
from windowmill.checkpoints.data_files import index_of, write_files
from windowmill.checkpoints.seen import filter_of, may_hold
from windowmill.checkpoints.state.reading import reporting_damage
from windowmill.windowing.columnar.added_columns import ID_HIGH
from windowmill.windowing.columnar.duplicates import ENTRIES
from windowmill.windowing.errors import StateCorruptError

FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def hashes(n: int, seed: int) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).integers(FIRST, LAST, n, endpoint=True))


@pytest.fixture(scope="module")
def entries() -> pa.Table:
    """Of 50,004 ids, two of which have the same high half."""
    high = np.concatenate([[FIRST, -1, -1, 0, LAST], hashes(50_000, 0)])
    return pa.table([high, hashes(len(high), 1), np.arange(len(high))], schema=ENTRIES)


def written(folder: Path, entries: pa.Table) -> dict[str, Any]:
    """A file of ``entries``, as a log has it."""
    [file] = write_files(str(folder), ENTRIES, [entries], batch=0, attempt="a", order=seen.ORDER, packing=seen.PACKING)
    return {"path": file.path, "size_bytes": file.size, "num_records": file.rows}


def rewritten(folder: Path, file: dict[str, Any], entries: pa.Table) -> dict[str, Any]:
    """The ``file`` with ``entries`` as somebody else writes them."""
    pq.write_table(entries, folder / file["path"], row_group_size=5_000)
    return file | {"size_bytes": (folder / file["path"]).stat().st_size}


def found(folder: Path, file: dict[str, Any], high: np.ndarray) -> list[tuple[Any, ...]]:
    rows = seen._matching(str(folder), file, np.unique(high))
    return sorted(tuple(row.values()) for row in rows.to_pylist())


@pytest.mark.parametrize("by_others", [False, True])
@pytest.mark.parametrize("n", [0, 3, 800, 50_000])
def test_a_search_finds_the_entries_of_its_ids(tmp_path, entries, n, by_others):
    file = written(tmp_path, entries)
    if by_others:
        shuffled = entries.take(np.random.default_rng(2).permutation(len(entries)))
        file = rewritten(tmp_path, file, shuffled)
    wanted = np.random.default_rng(n).choice(entries.column(ID_HIGH).to_numpy(), n, replace=False)
    wanted = np.concatenate([wanted, [FIRST, -1, LAST], hashes(500, 3)])
    own = entries.filter(pa.array(np.isin(entries.column(ID_HIGH).to_numpy(), wanted)))
    assert found(tmp_path, file, wanted) == sorted(tuple(row.values()) for row in own.to_pylist())


def test_a_filter_holds_all_its_hashes_and_few_others():
    for n in (1, 7, 1_000, 300_000):
        own = hashes(n, n)
        assert may_hold(filter_of(own), own).all()
    assert may_hold(filter_of(own), hashes(300_000, 9)).mean() < 0.01
    assert not may_hold(filter_of(own[:0]), own).any()


def index_in(path: Path) -> bytes | None:
    with pa.OSFile(str(path)) as file:
        return index_of(file, pq.read_metadata(path))


def test_a_filter_costs_few_bytes_and_is_where_the_footer_says(tmp_path, entries):
    file = written(tmp_path, entries)
    index = index_in(tmp_path / file["path"])
    assert index == filter_of(np.sort(entries.column(ID_HIGH).to_numpy()))
    assert len(index) < 2.1 * len(entries)
    assert pq.read_table(tmp_path / file["path"]).num_rows == len(entries), "other readers read the file as any"


#: What a filter becomes, by its bytes and a place among them.
DAMAGE = {
    "a bit": lambda index, place: index[:place] + bytes([index[place] ^ 1]) + index[place + 1 :],
    "a sector of zeros": lambda index, place: index[:place] + bytes(len(index[place : place + 512])) + index[place + 512 :],
    "only zeros": lambda index, _: bytes(len(index)),
    "words in another order": lambda index, _: np.frombuffer(index, "<u8")[::-1].tobytes(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_filter_is_refused(tmp_path, entries, damage):
    file = written(tmp_path, entries)
    path = tmp_path / file["path"]
    index, content = index_in(path), path.read_bytes()
    for place in np.random.default_rng(4).integers(0, len(index) - 512, 10).tolist():
        path.write_bytes(content.replace(index, DAMAGE[damage](index, place)))
        with pytest.raises(StateCorruptError, match="index of the file is damaged"), reporting_damage(str(tmp_path)):
            found(tmp_path, file, hashes(2, 5))


def test_a_damaged_place_of_a_filter_is_refused(tmp_path, entries):
    file = written(tmp_path, entries)
    path = tmp_path / file["path"]
    content, place = path.read_bytes(), pq.read_metadata(path).metadata[b"windowmill.index"]
    for at in range(len(place)):
        for other in b"0123456789":
            changed = place[:at] + bytes([other]) + place[at + 1 :]
            path.write_bytes(content.replace(place, changed))
            with nullcontext() if changed == place else pytest.raises(StateCorruptError), reporting_damage(str(tmp_path)):
                found(tmp_path, file, hashes(2, 5))
