"""Three ways to keep live rows in a Delta table, batch by batch: what each writes, what the next batch reads, and how long it takes.

1,000 keys have 1,000 live rows each. A batch brings one row to 5 % of the keys, and the oldest row of each of these goes. All are written
by delta-rs, without a JVM; the log is compacted by the rule of runs, and once more at the end.
``python -m benchmarks.state_layouts`` prints a table of medians and totals over 64 batches.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from windowmill.checkpoints.state.compaction import compact, is_overgrown
from windowmill.windowing.columnar.keyed import GONE, KEY_ENTRY, ROW

KEYS, ROWS, TOUCHED, BATCHES = 1_000, 1_000, 50, 64
Ints = np.ndarray


class Layout(Protocol):
    """State at ``path``; batches number from 1."""

    def begin(self, path: Path) -> None: ...

    def remember(self, path: Path, batch: int, keys: Ints) -> None: ...

    def restore(self, path: Path, keys: Ints) -> int:
        """Live rows of ``keys``."""


def _number(batch: Ints | int, key: Ints) -> Ints:
    """Of the row that a key gets in a batch; the first ``ROWS`` came before batch 1."""
    return np.asarray((np.asarray(batch) + ROWS) * KEYS + key)


def _log_entries(kind: str, batch: int, key: Ints, number: Ints | None) -> pa.Table:
    numbers = pa.nulls(len(key), pa.int64()) if number is None else pa.array(number)
    value = pa.array(np.random.default_rng(batch).normal(size=len(key)), mask=np.full(len(key), kind != ROW))
    own = {"k": key, "_kind": [kind] * len(key), "_batch": np.full(len(key), batch), "_due": np.full(len(key), batch)}
    return pa.table(own | {"_number": numbers, "_time": numbers, "v": value})


class Log:
    """Entries are appended, and compacted as runs do."""

    def begin(self, path: Path) -> None:
        key, row = np.divmod(np.arange(KEYS * ROWS), ROWS)
        rows = _log_entries(ROW, 0, key, row * KEYS + key)
        write_deltalake(path, pa.concat_tables([_log_entries(KEY_ENTRY, 0, np.arange(KEYS), None), rows]))
        self._held = np.zeros(KEYS, np.int64)

    def remember(self, path: Path, batch: int, keys: Ints) -> None:
        gone = self._held[keys] * KEYS + keys
        self._held[keys] += 1
        told = ((KEY_ENTRY, None), (GONE, gone), (ROW, _number(batch, keys)))
        write_deltalake(path, pa.concat_tables([_log_entries(kind, batch, keys, number) for kind, number in told]), mode="append")
        if is_overgrown(str(path)) or batch == BATCHES:
            compact(str(path), batch + 1, ["live rows"])

    def restore(self, path: Path, keys: Ints) -> int:
        found = _of(path, keys)
        kind = np.asarray(found.column("_kind").to_pylist())
        return int((kind == ROW).sum() - (kind == GONE).sum())


class Merge:
    """One row a live row, merged in place."""

    def begin(self, path: Path) -> None:
        key, row = np.divmod(np.arange(KEYS * ROWS), ROWS)
        value = np.random.default_rng(0).normal(size=len(key))
        write_deltalake(path, pa.table({"k": key, "number": row * KEYS + key, "time": row, "v": value}))
        self._held = np.zeros(KEYS, np.int64)

    def remember(self, path: Path, batch: int, keys: Ints) -> None:
        gone, n = self._held[keys] * KEYS + keys, len(keys)
        self._held[keys] += 1
        number = np.concatenate((gone, _number(batch, keys)))
        rows = pa.table(
            {"k": np.tile(keys, 2), "number": number, "time": number, "v": np.zeros(2 * n), "goes": np.repeat([True, False], n)}
        )
        merge = DeltaTable(path).merge(rows, "t.k = s.k AND t.number = s.number", source_alias="s", target_alias="t")
        columns = {name: f"s.{name}" for name in ("k", "number", "time", "v")}
        merge.when_matched_delete("s.goes").when_not_matched_insert(columns, predicate="NOT s.goes").execute()

    def restore(self, path: Path, keys: Ints) -> int:
        return int(_of(path, keys).num_rows)


class Lists:
    """One row a key with its live rows in lists; those of touched keys are written anew."""

    def begin(self, path: Path) -> None:
        write_deltalake(path, self._rows(np.arange(KEYS), 0))

    def _rows(self, keys: Ints, batch: int) -> pa.Table:
        n = len(keys)
        offsets, value = np.arange(n + 1, dtype=np.int32) * ROWS, np.random.default_rng(batch).normal(size=n * ROWS)
        number = (np.arange(n * ROWS) % ROWS + batch) * KEYS + np.repeat(keys, ROWS)
        lists = {name: pa.ListArray.from_arrays(offsets, column) for name, column in (("number", number), ("time", number), ("v", value))}
        return pa.table({"k": keys, **lists})

    def remember(self, path: Path, batch: int, keys: Ints) -> None:
        merge = DeltaTable(path).merge(self._rows(keys, batch), "t.k = s.k", source_alias="s", target_alias="t")
        merge.when_matched_update_all().execute()

    def restore(self, path: Path, keys: Ints) -> int:
        return sum(map(len, _of(path, keys).column("number").to_pylist()))


def _of(path: Path, keys: Ints) -> pa.Table:
    wanted = ", ".join(map(str, keys))
    return pa.table(QueryBuilder().register("state", DeltaTable(path)).execute(f"SELECT * FROM state WHERE k IN ({wanted})").read_all())


def _files(path: Path) -> dict[str, tuple[int, int]]:
    """Bytes and rows of each file of the table's version."""
    actions = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    return {action["path"]: (action["size_bytes"], action["num_records"]) for action in actions}


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(layout: Layout, path: Path) -> tuple[float, float, int, int, int, float]:
    """Seconds of a batch (median) and of all; bytes and rows that all have written; bytes that the next reads, and seconds (median)."""
    rng = np.random.default_rng(1)
    layout.begin(path)
    seconds, reading, written, rows = [], [], 0, 0
    before = _files(path)
    for batch in range(1, BATCHES + 1):
        keys = np.sort(rng.choice(KEYS, TOUCHED, replace=False))
        reading.append(_timed(partial(_check, layout, path, keys)))
        seconds.append(_timed(partial(layout.remember, path, batch, keys)))
        after = _files(path)
        new = [after[name] for name in after.keys() - before.keys()]
        written, rows, before = written + sum(size for size, _ in new), rows + sum(n for _, n in new), after
    return median(seconds), sum(seconds), written, rows, sum(size for size, _ in before.values()), median(reading)


def _check(layout: Layout, path: Path, keys: Ints) -> None:
    live = layout.restore(path, keys)
    if live != TOUCHED * ROWS:
        raise AssertionError(f"{live} live rows instead of {TOUCHED * ROWS}")


def main() -> None:
    print(f"{'layout':8} {'s a batch':>10} {'s in all':>9} {'MB written':>11} {'rows written':>13} {'MB to read':>11} {'s to read':>10}")
    for layout in (Log(), Merge(), Lists()):
        folder = Path(tempfile.mkdtemp())
        try:
            batch, every, written, rows, size, reading = measure(layout, folder / "state")
        finally:
            shutil.rmtree(folder)
        name = type(layout).__name__.lower()
        print(f"{name:8} {batch:10.3f} {every:9.1f} {written / 1e6:11.1f} {rows:13,} {size / 1e6:11.1f} {reading:10.3f}")


if __name__ == "__main__":
    main()
