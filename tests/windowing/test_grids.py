"""Grids of windows against those that the oracle lists one by one."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import shared
from tests.windowing.calendar_cases import CALENDARS, DAY, ODD, WINDOWS, instants, pipeline_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, to_us
from windowmill.windowing.bounds import accepted_times, count_ends
from windowmill.windowing.grids import Grids, closing_of
from windowmill.windowing.reference.windows import GridWindows as Oracle
from windowmill.windowing.slicing import edges
from windowmill.windowing.slicing.edges import CumulativeGrid, Edges, Grid, WindowGrid
from windowmill.windowing.windows.base import GridRules, RuledWindow

AROUND = 120 * DAY


def grid_of(name: str) -> WindowGrid:
    [grid] = Grids.of(pipeline_of([name])).grids
    return grid


def listed(name: str, low: int, high: int) -> list[tuple[int, int]]:
    """The windows of the oracle that overlap [low, high), in order of ends, then of starts."""
    [window] = pipeline_of([name]).windows
    assert isinstance(window, RuledWindow)
    rules = window.rules()
    assert isinstance(rules, GridRules)
    return sorted(set(Oracle(rules, integer_axis=False).holding(low, high)), key=lambda bounds: bounds[::-1])


@pytest.mark.parametrize("name", WINDOWS)
@shared(len(WINDOWS), 8)
@given(times=st.lists(instants(), min_size=1, max_size=4))
def test_instants_find_their_windows(name: str, times: list[int]):
    grid, t = grid_of(name), np.array(times)
    reach = min(AROUND, 3 * grid.longest)
    found = (grid.first_end_after(t), grid.last_end_holding(t), Edges.of([grid]).slice_starts(t))
    for at, first, last, edge in zip(times, *(column.tolist() for column in found), strict=True):
        near = listed(name, at - reach, at + reach)
        assert first == grid.first_end_after(at) == min(end for _, end in near if end > at)
        assert last == grid.last_end_holding(at) == max(end for start, end in near if start <= at)
        assert edge == Edges.of([grid]).slice_start(at) == max(edge for bounds in near for edge in bounds if edge <= at)
        assert grid.first_start_after(at) == min(start for start, end in near if end > at)


@pytest.mark.parametrize("name", WINDOWS)
@shared(len(WINDOWS), 8)
@given(after=instants(), length=st.integers(0, 20 * DAY))
def test_windows_of_a_span(name: str, after: int, length: int):
    grid, through = grid_of(name), after + length
    wanted = [(start, end) for start, end in listed(name, after, through + 1) if after < end <= through]
    starts, ends = grid.ending_in(after, through)
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == wanted
    assert grid.count_ends(after, through) == len(wanted)
    assert grid.most_ends(length) >= len(wanted)
    assert all(end - start <= grid.longest for start, end in wanted)
    edges = {edge for bounds in listed(name, after - AROUND, through + AROUND) for edge in bounds if after <= edge < through}
    assert Edges.of([grid]).between(after, through).tolist() == sorted(edges)
    assert Edges.of([grid]).most_in(length) >= len(edges)


@pytest.mark.parametrize("name", WINDOWS)
@shared(len(WINDOWS), 8)
@given(times=st.lists(instants(), min_size=1, max_size=5))
def test_numbered_windows_are_all_that_hold_an_instant(name: str, times: list[int]):
    t = np.array(times)
    numbering = grid_of(name).numbered(t, t + 1)
    every = set()
    for at in times:
        every |= set(listed(name, at, at + 1))
    if name in CALENDARS:
        numbers = np.arange(len(numbering.grid.ends))
        bounds = list(zip(*(bound.tolist() for bound in numbering.bounds(numbers)), strict=True))
        assert every <= set(bounds)
        assert bounds == sorted(set(bounds), key=lambda pair: pair[::-1])


@given(st.integers(1, 12), st.integers(1, 6), st.integers(-50, 50), st.integers(-300, 300), st.integers(0, 100))
def test_windows_that_grow_by_arithmetic(step: int, steps: int, origin: int, t: int, length: int):
    grid = CumulativeGrid(step * steps, step, origin)
    begins = [origin + k * grid.size for k in range(-500 // step, 500 // step)]
    every = [(begin, begin + n * step) for begin in begins for n in range(1, steps + 1)]
    assert grid.first_end_after(t) == min(end for _, end in every if end > t)
    assert grid.last_end_holding(t) == max(end for start, end in every if start <= t)
    assert grid.first_start_after(t) == min(start for start, end in every if end > t)
    assert Edges.of([grid]).slice_start(t) == max(edge for bounds in every for edge in bounds if edge <= t)
    ending = [bounds for bounds in every if t < bounds[1] <= t + length]
    assert grid.count_ends(t, t + length) == len(ending)
    assert list(zip(*(bound.tolist() for bound in grid.ending_in(t, t + length)), strict=True)) == ending


@given(st.lists(st.sampled_from(list(WINDOWS)), min_size=2, max_size=4, unique=True), st.lists(instants(), min_size=1, max_size=4))
def test_slices_of_several_grids_begin_at_the_last_edge_of_any(names: list[str], times: list[int]):
    grids, t = Grids.of(pipeline_of(names)), np.array(times)
    alone = [Edges.of([grid]).slice_starts(t) for grid in grids.grids]
    assert grids.edges.slice_starts(t).tolist() == np.max(alone, axis=0).tolist() == [grids.edges.slice_start(at) for at in times]
    low, high = times[0], times[0] + 3 * DAY
    every = {edge for grid in grids.grids for edge in Edges.of([grid]).between(low, high).tolist()}
    assert grids.edges.between(low, high).tolist() == sorted(every)


@given(st.sampled_from(list(WINDOWS)), st.lists(st.tuples(instants(), st.integers(0, 9 * DAY)), min_size=1, max_size=5))
def test_windows_still_open_are_told_by_the_edge_through_which_they_were_closed(name: str, drawn: list[tuple[int, int]]):
    time = np.array([at for at, _ in drawn])
    closed = time + np.array([delay for _, delay in drawn])
    found = closing_of([grid_of(name)], time, closed)
    for row, (at, shut) in enumerate(zip(time.tolist(), closed.tolist(), strict=True)):
        ends = [end for _, end in listed(name, at, at + 1)]
        still = [end for end in ends if end > shut]
        assert [end for end in ends if end > found.edge[row]] == still
        if ends:
            assert (found.first_end[row] > shut) == (still == ends)
            assert (found.last_end[row] <= shut) == (not still)
        else:
            assert found.last_end[row] <= at


@pytest.mark.parametrize("name", CALENDARS)
def test_a_calendar_ends_with_the_years_that_can_be_printed(name: str):
    pipeline = pipeline_of([name])
    [grid], (least, greatest) = Grids.of(pipeline).grids, accepted_times(pipeline)
    for at in (least, greatest):
        assert at - AROUND < grid.first_start_after(at) < grid.first_end_after(at) < at + AROUND
        assert at - AROUND < grid.last_end_holding(at) < at + AROUND
        assert at - AROUND < Edges.of([grid]).slice_start(at) <= at
    assert (grid.first_end_after(AXIS_END), grid.first_start_after(AXIS_END)) == (AXIS_END, AXIS_END)
    assert grid.first_start_after(AXIS_BEGIN) < least
    assert AXIS_BEGIN == grid.last_end_holding(AXIS_BEGIN) == Edges.of([grid]).slice_start(AXIS_BEGIN)
    assert grid.count_ends(AXIS_BEGIN, AXIS_BEGIN + DAY) == grid.count_ends(AXIS_END - DAY, AXIS_END) == grid.count_ends(DAY, DAY) == 0
    assert grid.count_ends(AXIS_BEGIN, AXIS_END) > 1_000


def test_instants_far_apart_list_what_lies_around_them_only(monkeypatch):
    calls = []
    block = edges._block.__wrapped__
    monkeypatch.setattr(edges, "_block", lambda *given: calls.append(given) or block(*given))
    edges._union.cache_clear()
    grid = grid_of("quarters")
    grid.first_end_after(np.array(ODD))
    assert len(calls) <= 4 * len(ODD), "a block has 8 days"


def test_grids_travel_light_and_find_the_same_again():
    grids = Grids.of(pipeline_of(list(WINDOWS)))
    t = np.array(ODD)
    before = grids.edges.slice_starts(t)
    stored = pickle.dumps((grids.edges, grids.named))
    assert len(stored) < 200 * len(WINDOWS)
    edges, named = pickle.loads(stored)
    assert (edges, named) == (grids.edges, grids.named)
    assert edges.slice_starts(t).tolist() == before.tolist()


def test_a_day_that_is_skipped_has_no_window():
    grid, skipped = grid_of("apia_days"), to_us(datetime(2011, 12, 30, tzinfo=UTC))
    starts, ends = grid.ending_in(skipped - DAY, skipped + 2 * DAY)
    assert set((ends - starts).tolist()) == {DAY}
    assert ends[:-1].tolist() == starts[1:].tolist()


def test_windows_of_keys_are_bounded():
    zero, later = np.array([0]), np.array([30 * DAY])
    one = np.array([100])
    assert count_ends(Grid(DAY, DAY), zero, later, one, after=-DAY, through=60 * DAY) == 32
    assert count_ends(grid_of("growing"), zero, later, one, after=-DAY, through=60 * DAY) == 31 * 6 + 1
    assert 31 <= count_ends(grid_of("day"), zero, later, one, after=-DAY, through=60 * DAY) <= 40
    assert count_ends(grid_of("day"), zero, later, np.array([1]), after=-DAY, through=60 * DAY) <= 6
    assert count_ends(grid_of("day"), zero, later, one, after=60 * DAY, through=61 * DAY) == 0


def test_an_origin_without_an_offset_is_wall_time_of_the_zone():
    grid = grid_of("here")
    assert isinstance(grid, Grid)
    assert grid.origin == to_us(datetime(2024, 1, 1, 14, 30, tzinfo=UTC))
