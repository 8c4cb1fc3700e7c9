"""Dyadic nodes over slices: what windows are made of, and how many rows that is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.jobs.batches import Run
from tests.jobs.drawn import MINUTE, at
from tests.specs import a_spec
from windowmill.windowing import grids as nodes_module
from windowmill.windowing.columnar.added_columns import LEVEL
from windowmill.windowing.grids import Nodes, Selection
from windowmill.windowing.slicing.edges import Edges, Grid
from windowmill.windowing.specfile import parse_pipeline

WEEK = Grid(10_080 * MINUTE, MINUTE)
GRIDS = st.builds(Grid, st.integers(1, 40), st.integers(1, 6), st.integers(-5, 5))


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


def test_a_batch_a_minute_reads_and_writes_few_rows():
    """Each batch brings a minute; late rows now and then. Nodes cost a row a slice, and a row a level for a late one."""
    window = {"name": "w", "type": "hopping", "size": "32 minutes", "hop": "1 minute"}
    run = Run(parse_pipeline(a_spec(keys=["k"], windows=[window])), nodes=True)
    for minute in range(100):
        run.step([at(minute)], minute)
        assert run.read <= 2 * 5
    assert [row["n"] for row in run.rows if row["window_end"] == 99 * MINUTE] == [32]
    levels = np.bincount(run.state[LEVEL].to_numpy())
    # Slices 68 to 99 are left, and the nodes among them.
    assert levels.tolist() == [32, 15, 7, 3, 1]
    run.step([at(85)], 100)
    assert (np.bincount(run.state[LEVEL].to_numpy()) - levels).tolist() == [1, 1, 1, 1, 1]
    run.step([at(100)], 101)
    assert [row["n"] for row in run.rows if row["window_end"] == 100 * MINUTE] == [33]
