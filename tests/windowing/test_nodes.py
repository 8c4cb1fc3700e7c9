"""Dyadic nodes over slices: what windows are made of, how many rows that is, and that the results are those of the slices alone."""

from __future__ import annotations

import math
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windowmill.checkpoints.state.reading import rows_of
from windowmill.checkpoints.state.tables import slice_schema
from windowmill.windowing import grids as nodes_module
from windowmill.windowing.columnar import grid_windows, slices
from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, LEVEL, SLICE, SUM, TIME
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.columnar.slices import NodeStage, SliceStage, WindowStage
from windowmill.windowing.grids import Grids, Nodes, Selection
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.slicing.edges import Edges, Grid
from windowmill.windowing.specfile import parse_pipeline

MINUTE = 60_000_000
WEEK = Grid(10_080 * MINUTE, MINUTE)
GRIDS = st.builds(Grid, st.integers(1, 40), st.integers(1, 6), st.integers(-5, 5))
BEFORE_ALL = -(1 << 62)


def slices_in(edges: Edges, low: int, high: int) -> list[int]:
    return sorted({edges.slice_start(t) for t in range(low, high)})


@given(st.lists(GRIDS, min_size=1, max_size=3), st.integers(-100, 100))
def test_slices_are_numbered_one_by_one(grids, t):
    numbered, edges = Nodes.of(grids, many=1), Edges.of(grids)
    assert numbered is not None
    assert numbered.start(numbered.number(t)) == edges.slice_start(t)
    assert numbered.number(t) - numbered.number(edges.slice_start(t) - 1) == 1
    longest = max(len(slices_in(edges, grid.start(k), grid.end(k))) for grid in grids for k in range(120))
    assert numbered.top == int(math.log2(longest))


def test_only_windows_of_many_slices_have_nodes():
    assert Nodes.of([WEEK]) is not None
    assert Nodes.of([Grid(60 * MINUTE, MINUTE)]) is None
    assert Nodes.of([WEEK, Grid(60 * MINUTE, MINUTE - 1)]) is None, "grids that hardly ever meet"


def number_of_rows(wanted: Selection, numbered: Nodes) -> int:
    """Rows of a key of which every slice and node is full."""
    spans = sum(numbered.number(high - 1) + 1 - numbered.number(low) for low, high in wanted.slices)
    return spans + sum(len(starts) for _, starts in wanted.nodes)


@pytest.mark.parametrize("grid", [WEEK, Grid(4_096 * MINUTE, MINUTE, 17), Grid(1_501 * MINUTE, 2 * MINUTE)], ids=str)
def test_one_window_end_takes_two_rows_a_level(grid):
    numbered = Nodes.of([grid])
    assert numbered is not None
    n = numbered.number(grid.end(0)) - numbered.number(grid.start(0))
    for k in [*range(300), *(2**power + shift for power in range(9, 20) for shift in (-1, 0, 1))]:
        wanted = numbered.selection(grid.end(k) - grid.hop, grid.end(k))
        assert wanted is not None
        assert number_of_rows(wanted, numbered) <= 2 * math.log2(n)


def test_sizes_share_nodes_and_a_long_backlog_takes_slices(monkeypatch):
    day = Grid(1_440 * MINUTE, MINUTE)
    numbered = Nodes.of([WEEK, day])
    assert numbered is not None
    after = 20_000 * MINUTE
    both = numbered.selection(after, after + MINUTE)
    assert both is not None
    assert number_of_rows(both, numbered) <= 2 * math.log2(10_080) + 2 * math.log2(1_440)
    assert numbered.selection(after, after) is None
    monkeypatch.setattr(nodes_module, "MAX_NODES", 10)
    backlog = numbered.selection(after, after + 500 * MINUTE)
    assert backlog == Selection(((after - 10_079 * MINUTE, after + 500 * MINUTE),), (), after - 10_079 * MINUTE, after)


TYPES = {"k": pa.string(), "t": pa.int64(), "x": pa.int64(), "i": pa.int64(), "f": pa.float64(), "s": pa.string()}
AGGREGATES = {
    "n": {"count": "*"},
    "whole": {"sum": "i"},
    "total": {"sum": "f"},
    "low": {"min": "s"},
    "worst": {"arg_max": ["f", "s"]},
    "opening": {"first": "s"},
    "closing": {"last": "i"},
    "spread": {"stddev_samp": "f"},
}
WINDOWS = st.lists(
    st.fixed_dictionaries({"size": st.integers(1, 40), "hop": st.integers(1, 6), "origin": st.integers(-5, 5)}), min_size=1, max_size=2
)

#: Built once: making strategies costs more than drawing from them.
STARTS, N_BATCHES, STEPS = st.integers(-30, 30), st.integers(2, 12), st.sampled_from([0, 1, 1, 2, 5, 17, 60])
#: Rows of a batch; ``t`` counts from the instant through which windows have been emitted.
N_ROWS = st.integers(0, 12)
ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "t": st.one_of(st.integers(-30, 20), st.integers(-2, 5)),
        "x": st.integers(0, 1),
        "i": st.one_of(st.none(), st.integers(-9, 9)),
        "f": st.one_of(st.none(), st.integers(-99, 99).map(lambda n: n / 8)),
        "s": st.sampled_from("xyz"),
    }
)


class Run:
    """Batches of a pipeline through a state in memory, with nodes or without."""

    def __init__(self, windows: list[dict[str, int]], *, nodes: bool) -> None:
        named = [{"name": f"w{n}", "type": "hopping", **window} for n, window in enumerate(windows)]
        axis = {"column": "t", "tie_break": ["x"], "unit": "none", "disorder": 0}
        self.pipeline = parse_pipeline({"pipeline": "p", "keys": ["k"], "time": axis, "windows": named, "aggregates": AGGREGATES})
        self.grids, self.layout = Grids.of(self.pipeline), Layout.of(self.pipeline, TYPES)
        self.nodes = Nodes.of(self.grids.grids, many=1) if nodes else None
        self.schema = slice_schema({"k": TYPES["k"]}, self.layout, nodes=nodes)
        self.state = self.schema.append(pa.field(SUM, pa.int64())).empty_table()
        self.batch, self.emitted, self.restored = 0, BEFORE_ALL, 0

    def step(self, rows: list[dict[str, Any]], through: int, *, from_source: int | None = None) -> list[dict[str, Any]]:
        """One batch that emits windows through ``through``; as a backfill, those that end after ``from_source``."""
        stage = SliceStage(("k",), ("x",), self.layout, self.grids.edges, self.batch, self.schema, RowCheck("state"))
        parts = list[slices.Sliced]()
        state = self.state
        if self.nodes is not None and self.emitted > BEFORE_ALL:
            wanted = self.nodes.selection(self.emitted, through)
            state = duckdb.sql(f"FROM state WHERE {'false' if wanted is None else rows_of(wanted).sql}").to_arrow_table().cast(state.schema)
        self.restored = state.num_rows
        if state.num_rows:
            parts += slices.restored(stage, state.to_batches())
        if rows:
            table = pa.Table.from_pylist(rows, schema=pa.schema([*TYPES.items(), (CLOSED, pa.int64())]))
            parts += slices.sliced(stage, table.append_column(TIME, table["t"]).to_batches())
        found: list[dict[str, Any]] = []
        if parts:
            names = [("k", TYPES["k"]), ("window", pa.string())]
            names += [(name, pa.int64()) for name in ("window_start", "window_end", "trigger", "revision")]
            names += [*((result.name, result.type) for result in self.layout.results), ("batch", pa.int64())]
            after = self.emitted if from_source is None else from_source
            whole = None if self.nodes is None else NodeStage(self.nodes, self.emitted, through, self.emitted, through)
            keep_from = self.grids.first_slice_after(through)
            asked = WindowStage(stage, self.grids.named, after, through, keep_from, pa.schema(names), whole)
            for part in grid_windows.combined(asked, parts):
                found += [row for bare in part.windows for row in grid_windows.result_rows(asked, bare).to_pylist()]
                if part.slices is not None:
                    self.state = pa.concat_tables([self.state, part.slices])
        # What maintenance would drop.
        self.state = self.state.filter(pc.greater_equal(self.state[SLICE], self.grids.first_slice_after(through)))
        self.batch, self.emitted = self.batch + 1, through
        return sorted(found, key=lambda row: (row["k"], row["window"], row["window_end"]))

    def judged(self, row: dict[str, Any], closed: int | None) -> dict[str, Any] | None:
        """The row as it counts when windows are closed through ``closed``; none if it comes too late for all."""
        if closed is None:
            return row | {CLOSED: None}
        if max(grid.last_end_holding(row["t"]) for grid in self.grids.grids) <= closed:
            return None
        shut = min(grid.first_end_after(row["t"]) for grid in self.grids.grids) <= closed
        return row | {CLOSED: self.grids.edges.slice_start(closed) if shut else None}


@pytest.mark.thorough
@settings(max_examples=60)
@given(WINDOWS, st.data())
def test_results_are_those_of_slices_alone(windows, data):
    plain, dyadic = Run(windows, nodes=False), Run(windows, nodes=True)
    at = data.draw(STARTS)
    backfilled = data.draw(st.booleans())
    for batch in range(data.draw(N_BATCHES)):
        through = at + data.draw(STEPS)
        # A first backfill may stop before what its rows have closed; later batches close windows as far as they emit.
        latest = through + 9 if batch == 0 and backfilled else through
        rows = []
        for _ in range(data.draw(N_ROWS)):
            drawn = data.draw(ROW)
            row = drawn | {"t": at + drawn["t"]}
            first = None if batch == 0 else at
            closed = data.draw(st.one_of(st.just(first), st.integers(at, latest)))
            judged = plain.judged(row, closed)
            if judged is not None:
                rows.append(judged)
        from_source = at if batch == 0 and backfilled else None
        want, got = (run.step(rows, through, from_source=from_source) for run in (plain, dyadic))
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            floats = {"spread"}
            assert {n: v for n, v in a.items() if n not in floats} == {n: v for n, v in b.items() if n not in floats}
            assert a["spread"] == b["spread"] or math.isclose(a["spread"], b["spread"], rel_tol=1e-9, abs_tol=1e-9)
        at = through


def test_a_batch_a_minute_reads_and_writes_few_rows():
    """Each batch brings a minute; late rows now and then. Nodes cost a row a slice, and a row a level for a late one."""
    run = Run([{"size": 32, "hop": 1, "origin": 0}], nodes=True)
    row = {"k": "a", "x": 0, "i": 1, "f": 0.5, "s": "x"}
    for minute in range(100):
        [window] = [w for w in run.step([row | {"t": minute, CLOSED: None}], minute + 1) if w["window_end"] == minute + 1]
        assert window["n"] == min(32, minute + 1)
        assert run.restored <= 2 * 5
    levels = np.bincount(run.state[LEVEL].to_numpy())
    # Slices 69 to 99 are left, and the nodes among them.
    assert levels.tolist() == [31, 15, 7, 3, 1]
    run.step([row | {"t": 85, CLOSED: 100}], 100)
    assert (np.bincount(run.state[LEVEL].to_numpy()) - levels).tolist() == [1, 1, 1, 1, 1]
    [window] = run.step([row | {"t": 100, CLOSED: None}], 101)
    assert window["n"] == 33
    assert run.state[BATCH].to_pylist().count(100) == 5
