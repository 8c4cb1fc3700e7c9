"""The grids of a pipeline's event-time windows, what follows from them for progress, and dyadic nodes over their slices.

Slices are numbered along the axis, and node (level, index) covers the 2^level of them from number index · 2^level on::

    level 2   │       0       │       1       │
    level 1   │   0   │   1   │   2   │   3   │          window [1, 7) = (0, 1) ⊕ (1, 1) ⊕ (1, 2) ⊕ (0, 6)
    slices    │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
                  └───── window ──────┘

A node is whole once windows have been emitted through its end. The batch that makes it whole stores it; rows that come late to a node
that was whole already are stored as another row of it, a row a level, so that all rows of a node together hold what its slices hold.
Rows that some windows must still count apart from others of their slice (marked ones) join nodes once those windows are closed.

A batch's windows begin in several places, and no node that is read reaches across one: such a node enters and leaves windows as a slice
does, and what computes windows from slices need not know that it is one.

References
----------
Arasu and Widom (2004), Resource sharing in continuous sliding-window aggregates, VLDB (base intervals, B-Int).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.slicing.edges import CalendarGrid, CumulativeGrid, Edges, Grid, WindowGrid, all_hopping, origin_of, zone_named
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import GridRules, rules_of

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints
    from windowmill.windowing.windows.base import Window

#: Slices of the longest window from which on nodes are stored. They are one row more for each slice written: what a batch of 14 slices
#: saves at reading makes up for it from about here on, for a batch of one slice before that (docs/decisions/0006).
MANY_SLICES = 128
#: Edges in the common period of all grids up to which slices are numbered; grids of nearly no common period have more.
MAX_EDGES = 1 << 16
#: Nodes that a batch looks up; where it completes so many windows that it needs more, slices are read instead.
MAX_NODES = 4_096
#: Edges of a window up to which they are counted one by one; beyond, the sequences of edges are added up.
_COUNTED_EDGES = 20_000
#: Neighbouring windows of a grid among which the one with the most slices is searched.
_WINDOWS = 24
#: If edges have no short period, those of some windows are counted, from this instant on: at most so many edges.
_SAMPLED_FROM, _SAMPLED_EDGES = to_us(datetime(2024, 1, 1, tzinfo=UTC)), 1 << 17


@dataclass(frozen=True, slots=True)
class Span:
    """The stored slices that start in [``low``, ``high``).

    Of interval events, rows of events that reach into a slice are selected if the slice starts in one of the spans [low, high) of
    ``reaching``; null where events are points.
    """

    low: int
    high: int
    reaching: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """Stored rows that a batch needs."""

    #: Spans [low, high) of the axis whose slices are read.
    slices: tuple[tuple[int, int], ...]
    #: Per level the starts of the nodes that are read.
    nodes: tuple[tuple[int, tuple[int, ...]], ...]
    #: From slices at or after ``late_from``, also the rows with a mark after ``late_after``: no node has them yet.
    late_from: int
    late_after: int
    #: As of :class:`Span`.
    reaching: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Nodes:
    """The nodes over the slices of some grids."""

    grids: tuple[Grid, ...]
    #: The grids repeat after ``period``; where slices start in [0, period), ascending.
    period: int
    edges: tuple[int, ...]
    #: The highest level of a node that fits into a window.
    top: int

    @classmethod
    def of(cls, windows: Sequence[WindowGrid], many: int = MANY_SLICES) -> Nodes | None:
        """The nodes over grids of ``windows``; none if no window has ``many`` slices, the grids hardly ever meet, or one is not fixed."""
        grids = all_hopping(windows)
        if grids is None:
            return None
        sequences = Edges.of(grids).sequences
        period = math.lcm(*(length for length, _ in sequences))
        if sum(period // length for length, _ in sequences) > MAX_EDGES:
            return None
        edges = sorted({edge for length, phase in sequences for edge in range(phase % length, period, length)})
        whole = cls(tuple(grids), period, tuple(edges), 0)
        longest = 0
        for grid in grids:
            begins = grid.origin + np.arange(math.lcm(period, grid.hop) // grid.hop, dtype=np.int64) * grid.hop
            longest = max(longest, int((whole.numbers(begins + grid.size) - whole.numbers(begins)).max()))
        return cls(tuple(grids), period, tuple(edges), longest.bit_length() - 1) if longest >= many else None

    def number(self, t: int) -> int:
        return int(self.numbers(np.array([t], np.int64))[0])

    def numbers(self, t: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return t // self.period * len(self.edges) + np.searchsorted(self.edges, t % self.period, side="right") - 1

    def start(self, number: int) -> int:
        return int(self.starts(np.array([number], np.int64))[0])

    def starts(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return number // len(self.edges) * self.period + np.array(self.edges, np.int64)[number % len(self.edges)]

    def selection(
        self, after: int, through: int, closed: tuple[int, int] | None = None, revised_after: int | None = None
    ) -> Selection | None:
        """What is needed to give the windows that end in (``after``, ``through``], and the nodes that become whole with them.

        Nothing if there are no such windows and nodes. ``after`` is the instant through which windows were emitted when the stored rows
        were written.

        ``closed``: the instants through which windows were closed when the stored rows were written, and are closed now; by default
        ``after`` and ``through``. ``revised_after``: also select windows that end after this instant; null if there are none.
        """
        closed = (after, through) if closed is None else closed
        late_from, late_after = self._first_needed(closed[0]), closed[0]
        whole = self.number(after)
        cuts = self._cuts(after, through, closed, after if revised_after is None else min(after, revised_after))
        if cuts is None:
            return Selection(((late_from, through),), (), late_from, late_after)
        if not cuts:
            return None
        nodes: dict[int, list[int]] = {}
        spans: list[tuple[int, int]] = []
        for level, number in self._cover([*cuts, whole]):
            if level:
                nodes.setdefault(level, []).append(self.start(number))
            elif spans and spans[-1][1] == number:
                spans[-1] = (spans[-1][0], number + 1)
            else:
                spans.append((number, number + 1))
        if sum(map(len, nodes.values())) + len(spans) > MAX_NODES:
            return Selection(((late_from, through),), (), late_from, late_after)
        slices = [(self.start(low), self.start(high)) for low, high in spans]
        young = (self.start(whole), through)
        return Selection((*slices, young), tuple((level, tuple(starts)) for level, starts in sorted(nodes.items())), late_from, late_after)

    def _cuts(self, after: int, through: int, closed: tuple[int, int], first_end: int) -> list[int] | None:
        """Ascending numbers of slices before ``after`` at which something needed begins or ends; or only the number of ``after``.

        Needed are the windows that end in (``first_end``, ``through``]. None if there is nothing; null if there are too many.
        """
        found, any_end, whole = set(), False, self.number(after)
        for grid in self.grids:
            # Windows that begin after the complete nodes need only young slices.
            ends = np.arange(grid.first_end_after(first_end), min(through, after + grid.size) + 1, grid.hop, dtype=np.int64)
            any_end = any_end or grid.count_ends(first_end, through) > 0
            if len(ends) > MAX_NODES * 16:
                return None
            found |= set(self.numbers(ends - grid.size).tolist()) | set(self.numbers(ends[ends <= after]).tolist())
        now, first = self.number(through), self.number(self._first_needed(closed[1]))
        for level in range(1, self.top + 1):
            begin = whole >> level << level
            if first <= begin and whole < begin + (1 << level) <= now:
                found.add(begin)
        below = sorted(number for number in found if number < whole)
        joined = self.number(closed[1]) > self.number(closed[0])
        return below or ([whole] if any_end or now > whole or joined else [])

    def _cover(self, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Level and first slice of the nodes between each cut and the next."""
        for low, high in pairwise(cuts):
            for level, index in cover(low, high):
                yield level, index << level

    def _first_needed(self, emitted: int) -> int:
        """Start of the earliest slice that a window ending after ``emitted`` can hold."""
        return min(grid.first_start_after(emitted) for grid in self.grids)


def cover(low: int, high: int) -> list[tuple[int, int]]:
    """The fewest aligned nodes (level, index) that cover [low, high) exactly, from left to right; O(log(high - low)).

    >>> cover(1, 7)
    [(0, 1), (1, 1), (1, 2), (0, 6)]
    """
    nodes = []
    while low < high:
        level = (high - low).bit_length() - 1
        if low:
            level = min(level, (low & -low).bit_length() - 1)
        nodes.append((level, low >> level))
        low += 1 << level
    return nodes


def grid_of(window: Window) -> WindowGrid:
    """The windows of ``window`` along the axis; raises ``UnsupportedError`` if they are on no grid."""
    rules = rules_of(window)
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
        # In other grids a window that ends after ``through`` may start no later than one that ends before it: growing windows share a
        # start, and when the clocks go forward, a later window may start earlier.
        highs = [grid.first_start_after(through) if isinstance(grid, Grid) else through for grid in ending]
        return tuple((grid.first_start_after(after), high) for grid, high in zip(ending, highs, strict=True))


def greatest_reach(pipeline: Pipeline) -> int | None:
    """How long after the time of a row a window that holds it may end; null if that does not follow from its time."""
    if pipeline.time.end is not None or not all(window.on_grid for window in pipeline.windows):
        return None
    return max(grid.longest for grid in Grids.of(pipeline).grids)


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
    """Decides in which windows late rows count, by the windows that were closed when they came."""

    #: Least window end after each row's time, and greatest end of the windows that start at or before it; of a row that lasts, before it
    #: ends.
    first_end: Ints
    last_end: Ints
    #: The last edge of a slice through which windows were closed when the row came.
    edge: Ints
    #: For each grid, the mask of the rows that came too late for a window that holds them; shape (n_grids, n_rows).
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
    # If a calendar has very many windows a day, no span is short enough to list, and its bound is taken.
    if counted:
        density = len(edges.between(_SAMPLED_FROM, _SAMPLED_FROM + counted)) / counted
    else:
        density = edges.most_in(1_000 * span) / (1_000 * span)
    windows = grid.most_ends(1_000 * grid.longest) / 1_000
    return math.ceil(grid.longest * density), grid.longest * density / windows
