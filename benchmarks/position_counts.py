"""What batches over positions restore, write and combine, counted without Spark, beside the Reactive Aggregator's bound."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from windowmill.checkpoints.batches import Changes
from windowmill.checkpoints.committer import create
from windowmill.checkpoints.state.compaction import compact
from windowmill.checkpoints.state.readers import DeltaState
from windowmill.checkpoints.state.reading import ReadLimit
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage, PositionState
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.specfile import parse_pipeline
from windowmill.windowing.watermark import BEFORE, Clock

_NO_LIMIT = ReadLimit(1 << 60, 1 << 60, 1 << 60)


class Counted:
    """A sum that counts how often it is combined: an aggregate of a user's own."""

    commutative = True
    combines = 0

    def lift(self, value: float) -> float:
        return value

    def combine(self, older: float, newer: float) -> float:
        Counted.combines += 1
        return older + newer

    def lower(self, partial: float) -> float:
        return partial


def table(folder: Path, length: int) -> list[str]:
    """What batches of m new tuples restore, write and combine for the last ``length``, shown once a batch; a line for each m."""
    lines, m = [], 1
    while m <= length:
        found = [statistics.mean(each) for each in zip(*Counting(folder / str(m), length, m).batches(3), strict=True)]
        restored, written, combined = found
        bound = m * (1 + math.log2(length / m))
        lines.append(f"m = {m:,}: {restored:,.0f} rows restored, {written:,.0f} written, {combined:,.0f} combines; bound {bound:,.0f}")
        m *= 4
    return lines


_TYPES = {"k": pa.int64(), "t": pa.int64(), "v": pa.float64()}


class Counting:
    """Batches of ``m`` tuples of one key over its last ``length``, through a state table at ``folder``; no Spark."""

    def __init__(self, folder: Path, length: int, m: int) -> None:
        window = {"name": "last", "type": "sliding", "evict": {"count": length}, "trigger": {"count": m}}
        spec = {"pipeline": "counting", "keys": ["k"], "time": {"column": "t", "unit": "none"}, "windows": [window]}
        spec["aggregates"] = {"own": {"use": "benchmarks.position_counts:Counted", "args": ["v"]}}
        self._pipeline, self._path, self._m = parse_pipeline(spec), str(folder), m
        self._layout = Layout.of(self._pipeline, _TYPES)
        self._state = PositionState(self._pipeline, _TYPES, self._layout)
        self._batch = self._rows = 0
        create(self._path, str(Changes.of(self._state.stored_schema).schema), "state", {})
        # So many tuples that the window is full, and that its front is at no round number.
        self._take(length + length // 3 // m * m + m)
        compact(self._path, self._batch, ["positions"])
        self._take(m)

    def batches(self, n: int) -> Iterator[tuple[int, int, int]]:
        """Rows restored and written, and combines, of ``n`` batches."""
        for _ in range(n):
            yield self._take(self._m)

    def _take(self, n: int) -> tuple[int, int, int]:
        times = np.arange(self._rows, self._rows + n)
        clock = Clock(0, self._rows + n - 1, self._rows + n - 1, self._rows - 1 if self._rows else BEFORE)
        columns = {"k": np.zeros(n, np.int64), "v": times / 8, TIME: times, NUMBER_OF: times}
        cells = [pa.array(columns[f.name]) if f.name in columns else pa.nulls(n, f.type) for f in self._state.rows]
        rows = pa.table(cells, schema=self._state.rows)
        results, check = result_schema(self._pipeline, _TYPES), RowCheck(self._path)
        stage = PositionStage(self._pipeline, self._layout, self._state, self._batch, clock, None, True, results, check)
        restored = DeltaState(self._path, check).positions(self._state.stored_schema, stage, rows, _NO_LIMIT)
        assert restored is not None
        before = Counted.combines
        done = advance(stage, rows, restored)
        assert done.state is not None
        write_deltalake(self._path, done.state, mode="append")
        self._batch, self._rows = self._batch + 1, self._rows + n
        return len(restored), len(done.state), Counted.combines - before
