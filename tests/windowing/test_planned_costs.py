"""What ``explain`` says of costs is what kernels and edges of slices are counted to do."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.jobs.batches import Run
from tests.jobs.drawn import at
from tests.matrices import crossed
from tests.specs import a_spec
from tests.windowing.test_planner import ROOT, RUNNABLE, SPEC, planned
from windowmill.windowing.grids import Grids, count_slices
from windowmill.windowing.planner import plan
from windowmill.windowing.slicing.edges import Edges
from windowmill.windowing.specfile import parse_pipeline

SHAPES = [(8, 1), (48, 1), (48, 2), (60, 7), (64, 16), (100, 50), (10, 10)]


COUNTING = """
import json, sys
import numpy as np
from windowmill.windowing.kernels import slices as kernel, two_stacks
from windowmill.windowing.watermark import BEFORE

calls = 0
def counting(module, name):
    inner = getattr(module, name)
    def combine(*operands):
        global calls
        calls += 1
        inner(*operands)
    setattr(module, name, combine)
counting(kernel, "combine"), counting(two_stacks, "combine_atom")

program = np.array([[1, 0, 0, 1, 2]])  # a sum of floats, which is never deducted
def ones(rows):
    return np.ones((rows, 1), np.int64), np.ones((rows, 2))
found = []
for n, m in json.loads(sys.argv[1]):
    windows = 6 * -(-n // m)
    leaves, calls = n + (windows - 1) * m, 0
    slices = np.array([0, leaves]), np.arange(leaves), np.full(leaves, BEFORE)
    _, ends, *_ = kernel.hopping_windows(program, *slices, *ones(leaves), n, m, 0, n - 1, leaves)
    stored, calls = calls, 0
    lo, offsets = np.arange(windows) * m, np.array([0, windows])
    two_stacks.fifo_ranges(program, *ones(leaves), np.arange(leaves), offsets, lo, lo + n, np.array([-1]), *ones(windows))
    found.append((windows, len(ends), stored, calls))
print(json.dumps(found))
"""


def test_kernels_combine_as_often_as_is_said():
    """Counted with the compiled loops run as plain Python."""
    command = [sys.executable, "-c", COUNTING, json.dumps(SHAPES)]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment, timeout=300)
    for (n, m), (windows, ends, stored, rows) in zip(SHAPES, json.loads(done.stdout), strict=True):
        hop = {"type": "hopping", "size": n, "hop": m} | ({"origin": 0} if n % m == 0 else {})
        grid = planned(hop, {"type": "tumbling", "size": 1}, time={"column": "t", "unit": "none"}).windows[0]
        assert (grid.shape.n, grid.shape.m) == (n, m)
        said = grid.choices[0].combines.value
        assert said is not None
        assert ends >= windows - 1
        assert stored / ends == pytest.approx(said, rel=0.05)
        assert rows / windows == pytest.approx(said, rel=0.05)


class Sum:
    """A sum that counts its combines."""

    commutative = True
    combines = 0

    def lift(self, value: int) -> int:
        return value

    def combine(self, older: int, newer: int) -> int:
        Sum.combines += 1
        return older + newer

    def lower(self, partial: int) -> int:
        return partial


POLICIES = [({"count": 8}, 1), ({"count": 64}, 1), ({"count": 100}, 10), ({"count": 50}, 50), ({"count": 3}, 20), ({"count": 40}, None)]


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "rows"), crossed(POLICIES, [7, 40, 400]), ids=str)
def test_windows_over_positions_combine_as_often_as_is_said(monkeypatch, policy, rows):
    evict, trigger = policy
    window: dict[str, Any] = {"name": "w", "type": "tumbling" if trigger is None else "sliding", "evict": evict}
    window |= {} if trigger is None else {"trigger": {"count": trigger}}
    aggregates = {"s": {"use": "tests.windowing.test_planned_costs:Sum", "args": ["i"]}}
    time = {"column": "t", "unit": "none"}
    pipeline = parse_pipeline(SPEC | RUNNABLE | {"time": time, "windows": [window], "aggregates": aggregates})
    monkeypatch.setattr(Sum, "combines", 0)
    run, stream = Run(pipeline), [at(minute, i=minute % 7) for minute in range(400)]
    for first in range(0, 400, rows):
        run.step(stream[first : first + rows], first)
    windows = len(run.rows)
    assert windows >= 399 // (trigger or evict["count"]) - 1
    [choice] = plan(pipeline).windows[0].choices
    assert choice.engine == "flatfat"
    said, n = choice.combines.value, evict["count"]
    assert said is not None
    assert windows * said / 4 <= Sum.combines <= windows * said + run.batch * math.log2(n)


@pytest.mark.parametrize(
    ("windows", "n", "m"),
    [
        ([{"type": "tumbling", "size": 10}], 1, 1),
        ([{"type": "hopping", "size": 10, "hop": 5}], 2, 1),
        ([{"type": "hopping", "size": 10, "hop": 4}], 5, 2),
        ([{"type": "hopping", "size": 4, "hop": 10}], 1, 1),
        ([{"type": "hopping", "size": 10, "hop": 10, "origin": 3}, {"type": "tumbling", "size": 10}], 2, 2),
        ([{"type": "hopping", "size": 60, "hop": 5}, {"type": "tumbling", "size": 20, "origin": 1}], 15, 1.25),
        ([{"type": "hopping", "size": 10**9, "hop": 7}], 285_714_287, 2),
    ],
    ids=str,
)
def test_slices_of_a_window(windows, n, m):
    found = planned(*windows, time={"column": "t", "unit": "none"})
    assert (found.windows[0].shape.n, found.windows[0].shape.m) == (pytest.approx(n, rel=1e-6), pytest.approx(m))


def test_slices_are_those_that_the_edges_cut():
    windows = [{"name": "a", "type": "hopping", "size": 12, "hop": 5}, {"name": "b", "type": "hopping", "size": 9, "hop": 6, "origin": 2}]
    pipeline = parse_pipeline(a_spec(time={"column": "t", "unit": "none"}, windows=windows))
    edges = Grids.of(pipeline).edges
    for grid in Grids.of(pipeline).grids:
        held = [len({edges.slice_start(t) for t in range(grid.start(k), grid.end(k))}) for k in range(60)]
        assert count_slices(edges, grid)[0] == max(held)
    assert edges == Edges.of(Grids.of(pipeline).grids)


NEW_YORK = {"timezone": "America/New_York"}
HOURS, DAYS, MONTHS = (
    {"type": "tumbling", "size": "1 hour"},
    {"type": "tumbling", "size": "1 day"} | NEW_YORK,
    {"type": "tumbling", "size": "1 month"} | NEW_YORK,
)


@pytest.mark.parametrize(
    ("windows", "slicing", "n", "m", "new"),
    [
        ([DAYS], "calendar edges", 1, 1, "1 a hop"),
        ([{"type": "hopping", "size": "1 month", "hop": "1 day"} | NEW_YORK], "calendar edges", 31, 1, "1 a hop"),
        ([{"type": "hopping", "size": "36 hours", "hop": "1 day"} | NEW_YORK], "calendar edges", 3, 2, "2 a hop"),
        ([{"type": "cumulative", "size": "1 day", "step": "6 hours"} | NEW_YORK], "calendar edges", 4, 1, "1 a step"),
        ([{"type": "cumulative", "size": "1 day", "step": "1 hour"}], "panes", 24, 1, "1 a step"),
        ([DAYS, HOURS], "shared edges", 24, 24, "24 a hop"),
        ([MONTHS, DAYS], "shared edges", 31, 30.333, "30.3 a hop"),
        ([{"type": "cumulative", "size": "1 day", "step": "12 hours"}, HOURS], "shared edges", 24, 12, "12 a step"),
        ([{"type": "tumbling", "size": "100 years"} | NEW_YORK, HOURS], "shared edges", 893_000, 806_500, None),
    ],
    ids=str,
)
def test_slices_of_calendars_and_of_windows_that_grow(windows, slicing, n, m, new):
    found = planned(*windows, time={"column": "t", "disorder": "1 hour"})
    assert (found.layouts, found.why) == (("slices",), ())
    shape = found.windows[0].shape
    assert shape.slicing == slicing
    assert (shape.n, shape.m) == (pytest.approx(n, rel=2e-3), pytest.approx(m, rel=2e-3))
    assert new is None or (shape.leaves, shape.new_leaves) == (f"{n} slices", new)
    assert shape.state.endswith(" (longest window), and disorder of 1 hour before, a row for each batch that touched one")
    assert len({(window.shape.state, window.shape.state_rows) for window in found.windows}) == 1
    assert (shape.state_rows or 0) > (shape.n or 0)
    assert "node" not in found.reads + found.adds
