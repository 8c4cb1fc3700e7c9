"""Where spans cross edges and starts of windows, and which windows start at an instant, against lists of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import shared
from tests.windowing.calendar_cases import DAY, HOUR, WINDOWS, instants, pipeline_of
from windowmill.windowing.columnar.slices import Crossings
from windowmill.windowing.grids import Grids
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.edges import Edges, Grid, WindowGrid

SPANS = st.lists(st.tuples(instants(DAY), st.sampled_from([1, HOUR, 9 * HOUR, 3 * DAY, 40 * DAY])), min_size=1, max_size=4)


def listed(grid: WindowGrid, time: int, stop: int) -> tuple[Ints, Ints]:
    return grid.ending_in(time - 2 * grid.longest, stop + 2 * grid.longest)


def crossed(crossings: Crossings, time: Ints, stop: Ints) -> list[tuple[int, int]]:
    span, instant = crossings.within(time, stop)
    assert (np.bincount(span, minlength=len(time)) <= crossings.most_within(time, stop)).all()
    return list(zip(span.tolist(), instant.tolist(), strict=True))


@pytest.mark.parametrize("names", [[name] for name in WINDOWS] + [["hours", "odd", "day"], ["quarters", "growing", "apia_pairs"]], ids=str)
@shared(len(WINDOWS) + 2, 8)
@given(spans=SPANS)
def test_crossings_are_those_of_the_windows_around(names: list[str], spans: list[tuple[int, int]]):
    grids = Grids.of(pipeline_of(names)).grids
    time = np.array([begin for begin, _ in spans], np.int64)
    stop = time + np.array([length for _, length in spans], np.int64)
    starts, edges = [], []
    for index, (begin, end) in enumerate(zip(time.tolist(), stop.tolist(), strict=True)):
        windows = [listed(grid, begin, end) for grid in grids]
        found = {int(start) for begun, _ in windows for start in begun}
        starts += [(index, start) for start in sorted(found) if begin < start < end]
        every = found | {int(ends) for _, ended in windows for ends in ended}
        edges += [(index, edge) for edge in sorted(every) if begin < edge < end]
    assert crossed(Crossings.of_windows(grids), time, stop) == starts
    assert crossed(Crossings.of_edges(Edges.of(grids)), time, stop) == edges


@pytest.mark.parametrize("name", WINDOWS)
@shared(len(WINDOWS), 8)
@given(begin=instants(DAY))
def test_the_windows_that_start_at_an_instant_are_found(name: str, begin: int):
    [grid] = Grids.of(pipeline_of([name])).grids
    starts, ends = listed(grid, begin, begin + DAY)
    at = np.unique(np.append(starts, starts + 1))
    numbering = grid.numbered(starts, ends)
    index, number = numbering.starting_at(at)
    bounds = numbering.bounds(number)
    assert (bounds[0] == at[index]).all()
    assert np.all(np.diff(index) >= 0)
    found = set(zip(bounds[0].tolist(), bounds[1].tolist(), strict=True))
    assert found >= set(zip(starts.tolist(), ends.tolist(), strict=True))
    assert len(found) == len(number)


def test_spans_without_crossings_have_none():
    crossings = Crossings.of_windows([Grid(10, 5), Grid(10, 3, 1)])
    span, instant = crossings.within(np.array([5, 6], np.int64), np.array([6, 7], np.int64))
    assert (span.tolist(), instant.tolist()) == ([], [])
    assert crossings.within(np.empty(0, np.int64), np.empty(0, np.int64))[0].tolist() == []
