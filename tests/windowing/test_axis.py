"""Integers along the axis against windows counted one by one."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from windowmill.windowing.axis import from_us, to_us
from windowmill.windowing.slicing.edges import Edges, Grid

grids = st.builds(Grid, st.integers(1, 40), st.integers(1, 40), st.integers(-100, 100))
instants = st.integers(-500, 500)


def every(grid: Grid, low: int = -1_000, high: int = 1_000) -> list[tuple[int, int]]:
    return [(grid.start(k), grid.end(k)) for k in range(low, high) if low < grid.start(k) < high]


@given(grids, instants)
def test_ends_around_an_instant(grid, t):
    assert grid.first_end_after(t) == min(b for _, b in every(grid) if b > t)
    assert grid.last_end_holding(t) == max(b for a, b in every(grid) if a <= t)


@given(grids, instants, st.integers(0, 300))
def test_how_many_windows_end_in_a_span(grid, after, length):
    assert grid.count_ends(after, after + length) == sum(after < b <= after + length for _, b in every(grid))


@given(st.lists(grids, min_size=1, max_size=3), instants)
def test_a_slice_begins_at_the_last_edge_of_any_window(several, t):
    edges = {edge for grid in several for window in every(grid) for edge in window}
    assert Edges.of(several).slice_start(t) == max(edge for edge in edges if edge <= t)


def test_edge_sequences_that_repeat_another_are_left_out():
    hour, half, quarter = Grid(60, 60), Grid(1440, 30), Grid(10080, 360)
    assert Edges.of([hour, half, quarter]).sequences == ((30, 0),)
    assert Edges.of([Grid(10, 3)]).sequences == ((3, 0), (3, 1))


def test_instants_round_trip_before_and_after_1970():
    for t_us in (-1, 0, 1, -62_135_596_800_000_000, 253_402_300_799_999_999):
        assert to_us(from_us(t_us)) == t_us
    assert to_us(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)) == -1
