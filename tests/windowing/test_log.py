"""State kept as a log, batch by batch and key by key, against one run over everything."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import shared
from tests.windowing.test_columnar import CUTS, SCHEMA, STREAMS, WINDOWS, Row, assert_same, computed, pipeline
from windowing.columnar.log import BATCH, DUE, GONE, KIND, ROW, StateLog
from windowing.columnar.output import result_schema
from windowing.columnar.share import Share
from windowing.errors import StateError
from windowing.spec import Pipeline
from windowing.watermark import Clock

TYPES = {field.name: field.type for field in SCHEMA}
CONDITION = "v > 2"


class Logged:
    """A pipeline whose state is a log; each batch reads the keys that it touches and those that are due, nothing else."""

    def __init__(self, spec: Pipeline) -> None:
        self.spec, self.clock = spec, Clock.of(spec)
        self.log = StateLog(spec, TYPES, (CONDITION,))
        self.entries = self.log.schema.empty_table()
        self.results: list[pa.Table] = []
        self.refused: list[int] = []
        self.batches = self.fed = 0

    def feed(self, rows: list[Row]) -> None:
        usable = [(self.fed + n, row) for n, row in enumerate(rows) if row.t is not None and (row.e is not None or not self.spec.time.end)]
        self.fed += len(rows)
        usable = [(n, row) for n, row in usable if not self.spec.time.end or row.e >= row.t]
        times = np.array([row.t for _, row in usable], np.int64)
        self.clock, met = self.clock.arrive(times, np.ones(len(times), np.bool_))
        own = [
            {
                "_number": number,
                "_time": row.t,
                "_until": row.e if self.spec.time.end else row.t,
                # Where windows are shown once, only late rows need to say which watermark they met.
                "_watermark": int(watermark) if row.t < watermark or self.spec.emit == "revise" else None,
                "_where_0": row.v is not None and row.v > 2,
                **{label: getattr(row, name) for name, label in self.log.columns_of_fresh()},
            }
            for (number, row), watermark in zip(usable, met.tolist(), strict=True)
        ]
        fresh = pa.Table.from_pylist(own, schema=self.log.fresh_schema)
        self._work(fresh, Share(self.spec, self.log, result_schema(self.spec, TYPES), self.clock, self.batches))
        self.clock = self.clock.passed()
        self.batches += 1

    def _work(self, fresh: pa.Table, share: Share) -> None:
        touched = set(map(repr, fresh.column("k").to_pylist()))
        due: dict[str, int] = {}
        for entry in self.entries.filter(pc.equal(self.entries.column(KIND), "key")).select(["k", BATCH, DUE]).to_pylist():
            due[repr(entry["k"])] = entry[DUE]
        chosen = touched | {key for key, at in due.items() if at <= share.clock.watermark}
        mask = pa.array([repr(key) in chosen for key in self.entries.column("k").to_pylist()], pa.bool_())
        worked = share.work(self.entries.filter(mask), fresh)
        assert worked.changes is not None
        self.entries = pa.concat_tables([self.entries, worked.changes])
        self.results += worked.results()
        self.refused += worked.refused.tolist()

    def rows(self) -> list[dict[str, Any]]:
        return pa.concat_tables(self.results).drop_columns(["batch"]).to_pylist() if self.results else []


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((row[name] is not None, row[name]) for name in ("k", "window_end", "trigger", "revision", "window_start"))


#: Aggregates have tests of their own; here they only show whether a window holds the right rows.
FEW = ("rows", "float_total", "greatest", "closing", "everything", "own")


def few(window: dict[str, Any], **options: Any) -> Pipeline:
    spec = pipeline(window, **options)
    return spec.model_copy(update={"aggregates": {name: spec.aggregates[name] for name in FEW}})


@pytest.mark.parametrize("emit", ["final", "revise"])
@pytest.mark.parametrize("window", WINDOWS)
@shared(2 * len(WINDOWS), 3)
@given(rows=STREAMS, cuts=CUTS, disorder=st.integers(0, 5), lateness=st.integers(0, 4), intervals=st.booleans(), later=st.integers(1, 60))
def test_batches_over_a_log_equal_one_run(
    window: str, emit: str, rows: list[Row], cuts: list[int], disorder: int, lateness: int, intervals: bool, later: int
):
    if emit == "revise" and {"evict", "empty"} & set(WINDOWS[window]):
        return
    spec = few(WINDOWS[window], intervals=intervals, emit=emit, disorder=disorder, lateness=lateness)
    # A last row of another key takes the watermark on: keys that no row has touched must be found due.
    times = [row.t for row in rows if row.t is not None]
    end = max(times, default=0) + later
    rows = [*rows, Row("z", end, end, None, None, None, None)]
    logged = Logged(spec)
    for begin, stop in pairwise([0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows) - 1, len(rows)]):
        logged.feed(rows[begin:stop])
    wanted, quarantined = computed(spec, rows, [], final=False)
    assert_same(sorted(logged.rows(), key=place), sorted(wanted, key=place))
    assert sorted(logged.refused) == [number for number, reason in quarantined if reason == "too_late"]


def test_entries_grow_with_the_new_rows_and_not_with_the_window():
    spec = pipeline({"type": "sliding", "evict": {"count": 100}})
    logged = Logged(spec)
    logged.feed([Row("a", time, time, 1, 1.0, "x", True) for time in range(100)])
    before = logged.entries.num_rows
    logged.feed([Row("a", 100, 100, 1, 1.0, "x", True)])
    added = logged.entries.slice(before)
    # The row that waited is in the window now, the new one waits, the oldest has gone; and the key has changed.
    assert sorted(added.column(KIND).to_pylist()) == ["key", ROW, ROW] or sorted(added.column(KIND).to_pylist()) == [GONE, "key", ROW, ROW]


def test_a_key_that_is_neither_touched_nor_due_is_not_read():
    spec = pipeline({"type": "sliding", "evict": {"count": 3}})
    logged = Logged(spec)
    logged.feed([Row("a", 0, 0, 1, 1.0, "x", True), Row("b", 5, 5, 1, 1.0, "x", True)])
    logged.feed([Row("b", 9, 9, 1, 1.0, "x", True)])
    before = logged.entries.num_rows
    logged.feed([Row("b", 12, 12, 1, 1.0, "x", True)])
    assert set(logged.entries.slice(before).column("k").to_pylist()) == {"b"}


def test_rows_without_their_key_are_refused():
    spec = pipeline({"type": "session", "gap": 2})
    logged = Logged(spec)
    logged.feed([Row("a", 0, 0, 1, 1.0, "x", True)])
    rows = logged.entries.filter(pc.equal(logged.entries.column(KIND), ROW))
    with pytest.raises(StateError, match="1 of 1 keys have rows, but no entry of their own"):
        logged.log.read(rows)
