"""Dyadic nodes over slices: which exist, when they are whole, and which of them the windows of a batch are made of.

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
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from windowmill.windowing.slicing.edges import Edges, Grid, WindowGrid, all_hopping

#: Slices of the longest window from which on nodes are stored. They are one row more for each slice written: what a batch of 14 slices
#: saves at reading makes up for it from about here on, for a batch of one slice before that (docs/decisions/0006).
MANY_SLICES = 128
#: Edges in the common period of all grids up to which slices are numbered; grids of nearly no common period have more.
MAX_EDGES = 1 << 16
#: Nodes that a batch looks up; where it completes so many windows that it needs more, slices are read instead.
MAX_NODES = 4_096


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
    """Stored rows that a batch needs.

    Attributes
    ----------
    slices
        Spans [low, high) of the axis whose slices are read.
    nodes
        Per level the starts of the nodes that are read.
    late_from, late_after
        Of the slices from ``late_from`` on also the rows with a mark after ``late_after``: no node has them yet.
    reaching
        As of :class:`Span`.
    """

    slices: tuple[tuple[int, int], ...]
    nodes: tuple[tuple[int, tuple[int, ...]], ...]
    late_from: int
    late_after: int
    reaching: tuple[tuple[int, int], ...] | None = None


@dataclass(frozen=True)
class Nodes:
    """The nodes over the slices of some grids.

    Attributes
    ----------
    period, edges
        The grids repeat after ``period``; where slices start in [0, period), ascending.
    top
        The highest level of a node that fits into a window.
    """

    grids: tuple[Grid, ...]
    period: int
    edges: tuple[int, ...]
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
        """Number of the slice that holds ``t``."""
        return int(self.numbers(np.array([t], np.int64))[0])

    def numbers(self, t: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the slice that holds each instant."""
        return t // self.period * len(self.edges) + np.searchsorted(self.edges, t % self.period, side="right") - 1

    def start(self, number: int) -> int:
        """Where slice ``number`` starts."""
        return int(self.starts(np.array([number], np.int64))[0])

    def starts(self, number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where each slice starts."""
        return number // len(self.edges) * self.period + np.array(self.edges, np.int64)[number % len(self.edges)]

    def selection(
        self, after: int, through: int, closed: tuple[int, int] | None = None, revised_after: int | None = None
    ) -> Selection | None:
        """What is needed to give the windows that end in (``after``, ``through``], and the nodes that become whole with them.

        Nothing if there are no such windows and nodes. ``after`` is the instant through which windows were emitted when the stored rows
        were written.

        Parameters
        ----------
        closed
            The instants through which windows were closed when the stored rows were written, and are now; by default as they are emitted.
        revised_after
            Also gives the windows that end after this instant; null for none.
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
        """Numbers of slices before ``after`` where something that is needed begins or ends, ascending, or the number of ``after`` alone.

        Needed are the windows that end in (``first_end``, ``through``]. None if there is nothing; null if there are too many.
        """
        found, any_end, whole = set(), False, self.number(after)
        for grid in self.grids:
            # Windows that begin after what is whole need young slices only.
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

    Examples
    --------
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
