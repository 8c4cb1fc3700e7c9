"""Reading a share of the keys of a state table: the files that hold it, and nothing beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from windowmill.checkpoints.state import reading
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.windowing.columnar.hashes import KeysOfShare, RowCheck, Share, buckets_of, with_buckets, with_checksums
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.grids import Span

N_TASKS, N_KEYS, ALL, NO_LIMIT = 3, 500, Span(0, 10), ReadLimit(1 << 60, 1 << 60, 1 << 60)


def share(number: int, n: int = N_TASKS) -> KeysOfShare:
    return KeysOfShare(Share(number, number + 1, n), ["k"])


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A state to which each of three tasks has written the slices of its keys."""
    rows = with_checksums(
        pa.table({"k": [f"key {n}" for n in range(N_KEYS)], "_slice": [n % 9 for n in range(N_KEYS)], "_batch": [0] * N_KEYS})
    )
    for number in range(N_TASKS):
        write_deltalake(tmp_path, with_buckets(share(number).rows(rows), ["k"]), mode="append")
    return str(tmp_path)


def keys_in(path: str, only: KeysOfShare | None) -> list[str]:
    schema = pa.schema([("k", pa.string()), ("_slice", pa.int64()), ("_batch", pa.int64()), ("_sum", pa.int64())])
    found = DeltaState(path, RowCheck(path), only=only).partials(schema, ALL, before_batch=1, limit=NO_LIMIT)
    assert found is not None
    return sorted(found.column("k").to_pylist())


@pytest.mark.parametrize("n_tasks", [N_TASKS, 4])
@pytest.mark.parametrize("whole", [True, False])
def test_shares_are_read_from_the_files_that_hold_them(path, monkeypatch, whole, n_tasks):
    opened, open_file = [], reading.open_file
    monkeypatch.setattr(reading, "open_file", lambda uri, file: opened.append(file) or open_file(uri, file))
    monkeypatch.setattr("windowmill.checkpoints.state.readers.WHOLE_BYTES", 1 << 24 if whole else 0)
    found = []
    for number in range(n_tasks):
        opened.clear()
        found += (own := keys_in(path, share(number, n_tasks)))
        assert own
        if whole:
            assert len(opened) == (1 if n_tasks == N_TASKS or number in (0, n_tasks - 1) else 2)
    assert sorted(found) == keys_in(path, None) == sorted(f"key {n}" for n in range(N_KEYS))


@pytest.mark.parametrize("bound", ["minValues", "maxValues"])
@pytest.mark.parametrize("wrong", [-5, 0, 7_000, 20_000, 32_767, 1 << 30])
def test_statistics_that_hide_rows_from_their_task_are_noticed_by_some_task(path, bound, wrong):
    entry = Path(path, "_delta_log", f"{1:020d}.json")
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            stats = json.loads(action["add"]["stats"])
            stats[bound]["_bucket"] = wrong
            action["add"]["stats"] = json.dumps(stats)
    entry.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    Path(path, "_delta_log", f"{1:020d}.crc").unlink(missing_ok=True)
    with pytest.raises(StateCorruptError, match="of _bucket, by the table's log"):
        _ = [keys_in(path, share(number)) for number in range(N_TASKS)]


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 66, 1_000, 32_768, 100_000])
def test_the_buckets_of_a_share_are_those_that_its_range_says(n):
    keys = pa.table({"k": range(5_000)})
    buckets = buckets_of(keys)
    assert 0 <= buckets.min() < 100
    assert 32_668 < buckets.max() < 32_768
    seen = 0
    for first in range(0, n, max(1, n // 50)):
        own = Share(first, min(n, first + max(1, n // 50)), n)
        held = own.rows(keys.append_column("b", pa.array(buckets)), ["k"]).column("b").to_pylist()
        low, high = own.stored
        assert all(low <= bucket <= high for bucket in held)
        seen += len(held)
    assert seen == 5_000
