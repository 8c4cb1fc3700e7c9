"""The grids of a pipeline's event-time windows, and what follows from them for slices and progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.slicing.calendar_grid import CalendarGrid
from windowmill.windowing.slicing.calendars import origin_of, zone_named
from windowmill.windowing.slicing.edges import CumulativeGrid, Edges, Grid, WindowGrid
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.rules import GridRules, RuledWindow

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints
    from windowmill.windowing.windows.base import Window

#: Edges of a window up to which they are counted one by one; beyond, the sequences of edges are added up.
_COUNTED_EDGES = 20_000
#: Neighbouring windows of a grid among which the one with the most slices is searched.
_WINDOWS = 24
#: Where edges have no short period, those of some windows are counted from this instant on, and at most so many.
_SAMPLED_FROM, _SAMPLED_EDGES = to_us(datetime(2024, 1, 1, tzinfo=UTC)), 1 << 17


def grid_of(window: Window) -> WindowGrid:
    """The windows of ``window`` along the axis; raises ``UnsupportedError`` if they are on no grid."""
    rules = window.rules() if isinstance(window, RuledWindow) else None
    if not isinstance(rules, GridRules):
        raise UnsupportedError(f"window {window.name}: {window.type} windows are no fixed grid")
    zone = zone_named(rules.timezone)
    origin = origin_of(rules.origin, rules.hop, zone, isinstance(rules.origin, int))
    lengths = [length for length in (rules.size, rules.hop, rules.step) if length is not None]
    if any(length.months or (length.days and zone.key != "UTC") for length in lengths):
        return CalendarGrid(rules.size, rules.hop, rules.step, origin, zone.key)
    if rules.step is not None:
        return CumulativeGrid(rules.size.elapsed(), rules.step.elapsed(), origin)
    return Grid(rules.size.elapsed(), rules.hop.elapsed(), origin)


@dataclass(frozen=True)
class Grids:
    """The named grids of a pipeline, sharing slices.

    ``known`` are the names of those that show empty windows. ``intervals`` is whether events are intervals.
    """

    named: tuple[tuple[str, WindowGrid], ...]
    known: tuple[str, ...] = ()
    intervals: bool = False

    @classmethod
    def of(cls, pipeline: Pipeline) -> Grids:
        """Grids of all windows except sessions; raises ``UnsupportedError`` if any other window is not on a grid."""
        named = tuple((window.name, grid_of(window)) for window in pipeline.windows if not window.joins_by_gap)
        known = tuple(window.name for window in pipeline.windows if window.fills_gaps)
        return cls(named, known, pipeline.time.end is not None)

    @property
    def grids(self) -> Sequence[WindowGrid]:
        return [grid for _, grid in self.named]

    @property
    def edges(self) -> Edges:
        return Edges.of(self.grids)

    def first_slice_after(self, emitted: int) -> int:
        """Start of the earliest slice that a window ending after ``emitted`` can hold; older slices are never read again."""
        return min(grid.first_start_after(emitted) for grid in self.grids)

    def spans_of_starts(self, after: int, through: int) -> tuple[tuple[int, int], ...] | None:
        """Spans [low, high) that hold the starts of all windows that end in (``after``, ``through``]; null where events are points."""
        if not self.intervals:
            return None
        ending = [grid for grid in self.grids if grid.count_ends(after, through)]
        # Of other grids a window that ends after ``through`` may start no later than one that ends before it: windows that grow share a
        # start, and where the clocks go forward, a later window may start earlier.
        highs = [grid.first_start_after(through) if isinstance(grid, Grid) else through for grid in ending]
        return tuple((grid.first_start_after(after), high) for grid, high in zip(ending, highs, strict=True))

    def any_end(self, after: int, through: int) -> bool:
        """Whether any window ends in (``after``, ``through``]."""
        return any(grid.count_ends(after, through) for grid in self.grids)


def why_no_partials(pipeline: Pipeline, index: int) -> tuple[str, ...]:
    """Why no partials can make up the window at ``index``: the parts of the spec, each with its reason; empty if some can."""
    window, found = pipeline.windows[index], []
    if pipeline.emit == "revise" and window.greatest_size() is not None:
        found.append(
            f"windows.{index}.max_size with emit: revise: a late row moves every place where a session is cut, so pieces that were shown "
            "overlap several new ones"
        )
    if pipeline.time.end is not None and window.joins_by_gap:
        found.append("time.end: of events that last, partials make up only windows on grids")
    if not (window.on_grid or window.joins_by_gap or window.follows_policies):
        found.append(f"windows.{index}: {window.type} windows are no fixed grid")
    return tuple(found)


@dataclass(frozen=True)
class Closing:
    """What decides in which windows rows count that came when some windows were closed.

    Attributes
    ----------
    first_end, last_end
        Least window end after each row's time, and greatest end of the windows that start at or before it; of a row that lasts, before it
        ends.
    edge
        The last edge of a slice through which windows were closed when the row came.
    missed
        For each grid, the mask of the rows that came too late for a window that holds them; shape (n_grids, n_rows).
    """

    first_end: Ints
    last_end: Ints
    edge: Ints
    missed: Bools


def closing_of(grids: Sequence[WindowGrid], time: Ints, closed: Ints, last: Ints | None = None) -> Closing:
    """The closing of rows at ``time`` that came when windows were closed through ``closed``.

    ``last`` is the last instant of each row, ``time`` itself by default.
    """
    first_ends = np.array([grid.first_end_after(time) for grid in grids])
    last_ends = np.array([grid.last_end_holding(time if last is None else last) for grid in grids])
    missed = (first_ends <= closed) & (last_ends > time)
    return Closing(first_ends.min(axis=0), last_ends.max(axis=0), Edges.of(grids).slice_starts(closed), missed)


def count_slices(edges: Edges, grid: WindowGrid) -> tuple[int, float]:
    """Most slices in a window of ``grid`` when time is cut at ``edges``, and how many the next window brings on average.

    Examples
    --------
    >>> grids = [Grid(size=10, hop=7), Grid(size=5, hop=5)]
    >>> count_slices(Edges.of(grids[:1]), grids[0])
    (3, 2.0)
    >>> count_slices(Edges.of(grids), grids[0])
    (5, 3.0)
    """
    if edges.listed or not isinstance(grid, Grid):
        return _count_sampled(edges, grid)
    cycle = math.lcm(grid.hop, *(period for period, _ in edges.sequences))
    if max(grid.size, cycle) // min(period for period, _ in edges.sequences) > _COUNTED_EDGES:
        densities = sum(1 / period for period, _ in edges.sequences)
        return math.ceil(grid.size * densities), grid.hop * densities

    def between(start: int, stop: int) -> int:
        return len({t for period, phase in edges.sequences for t in range(start + (phase - start) % period, stop, period)})

    windows = range(min(cycle // grid.hop, _WINDOWS))
    return max(between(grid.start(k), grid.end(k)) for k in windows), between(0, cycle) * grid.hop / cycle


def _count_sampled(edges: Edges, grid: WindowGrid) -> tuple[int, float]:
    """:func:`count_slices` by some neighbouring windows."""
    span = max(3 * grid.longest, *(2 * period for period, _ in edges.sequences), 1)
    counted = span
    while counted and edges.most_in(counted) > _SAMPLED_EDGES:
        counted //= 2
    if counted == span:
        starts, ends = grid.ending_in(_SAMPLED_FROM, _SAMPLED_FROM + span)
        if len(ends) > 1:
            cuts = edges.between(int(starts.min()), int(ends[-1]) + 1)
            held, between = np.searchsorted(cuts, ends) - np.searchsorted(cuts, starts), np.searchsorted(cuts, ends[[0, -1]])
            return int(held.max()), float(between[1] - between[0]) / (len(ends) - 1)
    # Of a calendar with very many windows a day no span is short enough to list, and its bound is taken.
    if counted:
        density = len(edges.between(_SAMPLED_FROM, _SAMPLED_FROM + counted)) / counted
    else:
        density = edges.most_in(1_000 * span) / (1_000 * span)
    windows = grid.most_ends(1_000 * grid.longest) / 1_000
    return math.ceil(grid.longest * density), grid.longest * density / windows
