"""Windows that the axis alone decides, the edges at which they begin and end, and their numbers for kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from windowmill.windowing.axis import AXIS_BEGIN, T
from windowmill.windowing.kernels import grid_ranges as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slices import slice_starts

if TYPE_CHECKING:
    from windowmill.windowing.slicing.calendars import CalendarGrid

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Numbering:
    """Windows with numbers that ascend with their ends."""

    grid: kernel.NumberedWindows

    @classmethod
    def hopping(cls, origin: int, hop: int, size: int) -> Numbering:
        """Windows of ``size`` that begin every ``hop``."""
        return cls(kernel.NumberedWindows(np.array([kernel.HOPPING, origin, hop, size, size, 1], np.int64), _NONE, _NONE))

    @classmethod
    def cumulative(cls, origin: int, size: int, step: int) -> Numbering:
        """Windows of ``step``, 2·``step`` … ``size`` that share their start."""
        return cls(kernel.NumberedWindows(np.array([kernel.CUMULATIVE, origin, size, size, step, size // step], np.int64), _NONE, _NONE))

    @classmethod
    def listed(cls, starts: Ints, ends: Ints) -> Numbering:
        """Windows of any bounds; ``ends`` ascend."""
        return cls(kernel.NumberedWindows(np.array([kernel.LISTED, 0, 1, 1, 1, 1], np.int64), starts, ends))

    def bounds(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the windows with these ``numbers``, each of their shape."""
        mode, origin, hop, size, step, steps = self.grid.rule
        if mode == kernel.LISTED:
            return self.grid.starts[numbers], self.grid.ends[numbers]
        if mode == kernel.CUMULATIVE:
            start = origin + numbers // steps * size
            return start, start + (numbers % steps + 1) * step
        return origin + numbers * hop, origin + numbers * hop + size

    def starting_at(self, instants: Ints) -> tuple[Ints, Ints]:
        """The windows that start at one of the ``instants``: its index, ascending, and their numbers, ascending; shapes (n_windows,)."""
        mode, origin, hop, size, _, steps = self.grid.rule
        if mode == kernel.LISTED:
            order = np.argsort(self.grid.starts, kind="stable")
            starts = self.grid.starts[order]
            first = np.searchsorted(starts, instants, side="left")
            index, nth = each_of(np.searchsorted(starts, instants, side="right") - first)
            return index, order[first[index] + nth]
        period, n = (size, steps) if mode == kernel.CUMULATIVE else (hop, 1)
        index, nth = each_of(np.where((instants - origin) % period == 0, n, 0))
        return index, (instants[index] - origin) // period * n + nth


def each_of(counts: Ints) -> tuple[Ints, Ints]:
    """For ``counts[i]`` things of each i: i, and the place of the thing among those of i; shapes (sum of counts,).

    >>> each_of(np.array([2, 0, 1]))
    (array([0, 0, 2]), array([0, 1, 0]))
    """
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def pairs_among(key: Ints, number: Ints, other_key: Ints, other_number: Ints) -> Bools:
    """Mask of the pairs (key, number) that occur among the other pairs."""
    if not len(key) or not len(other_key):
        return np.zeros(len(key), np.bool_)
    base = min(int(number.min()), int(other_number.min()))
    span = max(int(number.max()), int(other_number.max())) - base + 1
    return np.isin(key * span + (number - base), other_key * span + (other_number - base))


#: Windows that the axis alone decides, the same for all keys: on elapsed time or by a calendar. Methods take one instant or an array of
#: instants, and give their result in the same form.
WindowGrid: TypeAlias = "Grid | CumulativeGrid | CalendarGrid"


@dataclass(frozen=True, slots=True)
class Grid:
    """The windows [origin + k·hop, origin + k·hop + size) for every whole k.

    ``hop < size`` overlaps, ``hop > size`` leaves gaps.

    Examples
    --------
    >>> grid = Grid(size=10, hop=5)
    >>> [grid.start(k) for k in grid.holding(7)]
    [0, 5]
    >>> grid.first_end_after(10), grid.last_end_holding(7)
    (15, 15)
    """

    size: int
    hop: int
    origin: int = 0

    @property
    def edge_sequences(self) -> tuple[tuple[int, int], ...]:
        """The sequences of edges phase + k·period of its windows, as (period, phase). A grid that is ``listed`` has none."""
        return (self.hop, self.origin % self.hop), (self.hop, (self.origin + self.size) % self.hop)

    @property
    def start_sequence(self) -> tuple[int, int]:
        """The sequence phase + k·period of instants at which its windows begin, as (period, phase). A grid that is ``listed`` has null."""
        return self.hop, self.origin % self.hop

    @property
    def listed(self) -> None:
        """Null, as its sequences give its edges. A grid of a calendar, whose edges no arithmetic gives, has itself here."""
        return None

    @property
    def longest(self) -> int:
        """Upper bound on the length of a window."""
        return self.size

    def start(self, k: T) -> T:
        return self.origin + k * self.hop

    def end(self, k: T) -> T:
        """End of window ``k``, itself outside the window."""
        return self.start(k) + self.size

    def holding(self, t: int) -> range:
        """Indexes of the windows that hold ``t``; empty for an instant in a gap."""
        return range((t - self.size - self.origin) // self.hop + 1, (t - self.origin) // self.hop + 1)

    def last_end_holding(self, t: T) -> T:
        """The greatest end of the windows that start at or before ``t``; where no window holds ``t``, it is not after ``t``."""
        return self.end((t - self.origin) // self.hop)

    def first_end_after(self, t: T) -> T:
        """The smallest window end greater than ``t``; ``AXIS_END`` if the calendar has none."""
        return self.end((t - self.size - self.origin) // self.hop + 1)

    def first_start_after(self, t: int) -> int:
        """Start of the earliest window that ends after ``t``; ``AXIS_END`` if the calendar has none."""
        return self.first_end_after(t) - self.size

    def count_ends(self, after: int, through: int) -> int:
        """How many windows end in (after, through]; over a span of very many windows of a calendar, an upper bound."""
        return max(0, (through - self.size - self.origin) // self.hop - (after - self.size - self.origin) // self.hop)

    def most_ends(self, length: T) -> T:
        """Upper bound on the number of windows that end in a span of ``length``."""
        return length // self.hop + 1

    def ending_in(self, after: int, through: int) -> tuple[Ints, Ints]:
        """Starts and ends of the windows that end in (after, through], in order of ends, then of starts."""
        ends = np.arange(self.first_end_after(after), through + 1, self.hop, dtype=np.int64)
        return ends - self.size, ends

    def numbered(self, time: Ints, stop: Ints) -> Numbering:  # noqa: ARG002 - the windows are the same wherever one looks
        """Its windows in the kernels' form; all that overlap one of the spans [time, stop) are among them."""
        return Numbering.hopping(self.origin, self.hop, self.size)


@dataclass(frozen=True, slots=True)
class CumulativeGrid:
    """The windows of ``step``, 2·``step`` … ``size`` that begin at origin + k·size, for every whole k; methods as of :class:`Grid`.

    Examples
    --------
    >>> grid = CumulativeGrid(size=24, step=6)
    >>> grid.first_start_after(13), grid.first_end_after(13), grid.last_end_holding(13)
    (0, 18, 24)
    """

    size: int
    step: int
    origin: int = 0

    @property
    def edge_sequences(self) -> tuple[tuple[int, int], ...]:
        return ((self.step, self.origin % self.step),)

    @property
    def start_sequence(self) -> tuple[int, int]:
        return self.size, self.origin % self.size

    @property
    def listed(self) -> None:
        return None

    @property
    def longest(self) -> int:
        return self.size

    def last_end_holding(self, t: T) -> T:
        return t - (t - self.origin) % self.size + self.size

    def first_end_after(self, t: T) -> T:
        return t - (t - self.origin) % self.step + self.step

    def first_start_after(self, t: int) -> int:
        return t - (t - self.origin) % self.size

    def count_ends(self, after: int, through: int) -> int:
        return max(0, (through - self.origin) // self.step - (after - self.origin) // self.step)

    def most_ends(self, length: T) -> T:
        return length // self.step + 1

    def ending_in(self, after: int, through: int) -> tuple[Ints, Ints]:
        ends = np.arange(self.first_end_after(after), through + 1, self.step, dtype=np.int64)
        last = ends - self.step
        return last - (last - self.origin) % self.size, ends

    def numbered(self, time: Ints, stop: Ints) -> Numbering:  # noqa: ARG002 - the windows are the same wherever one looks
        return Numbering.cumulative(self.origin, self.size, self.step)


def all_hopping(grids: Iterable[WindowGrid]) -> Sequence[Grid] | None:
    """``grids`` if each has windows of one length at one distance; otherwise null."""
    every = list(grids)
    found = [grid for grid in every if isinstance(grid, Grid)]
    return found if len(found) == len(every) else None


@dataclass(frozen=True, slots=True)
class Edges:
    """The instants at which a window of any grid begins or ends: the edges of the slices that the grids share.

    A slice is the span between two neighbouring edges, so no window ever cuts one. This is the shared form of pairs: each
    (period, phase) is a sequence of edges phase + k·period. There are fewer slices than panes of width gcd(size, hop) whenever size is
    not a multiple of hop.

    References
    ----------
    Krishnamurthy, Wu and Franklin (2006), On-the-fly sharing for streamed aggregation, section 3 (paired windows).
    """

    sequences: tuple[tuple[int, int], ...]  #: The sequences of edges, each once.
    listed: tuple[CalendarGrid, ...] = ()  #: The grids whose edges are no such sequences.

    @classmethod
    def of(cls, grids: Iterable[WindowGrid]) -> Edges:
        """The edges of all ``grids``; omits sequences whose edges another one contains."""
        every = list(grids)
        sequences = {sequence for grid in every for sequence in grid.edge_sequences}
        needed = [
            (period, phase)
            for period, phase in sequences
            if not any((p, q) != (period, phase) and period % p == 0 and (phase - q) % p == 0 for p, q in sequences)
        ]
        return cls(tuple(sorted(needed)), tuple(dict.fromkeys(grid.listed for grid in every if grid.listed is not None)))

    def slice_start(self, t: int) -> int:
        """Start of the slice that holds ``t``: the greatest edge not after ``t``."""
        starts = [t - (t - phase) % period for period, phase in self.sequences]
        return max(starts + [grid.slice_start(t) for grid in self.listed])

    def slice_starts(self, t: Ints) -> Ints:
        """:meth:`slice_start` of each instant; O(n) besides what grids list."""
        found = np.full(len(t), AXIS_BEGIN, np.int64)
        if self.sequences:
            sequences = np.array(self.sequences, np.int64)
            found = slice_starts(t, sequences[:, 0].copy(), sequences[:, 1].copy())
        for grid in self.listed:
            found = np.maximum(found, grid.slice_start(t))
        return found

    def between(self, low: int, high: int) -> Ints:
        """The edges in [low, high), ascending."""
        parts = [np.arange(low + (phase - low) % period, high, period, dtype=np.int64) for period, phase in self.sequences]
        return np.unique(np.concatenate(parts + [grid.edges_in(low, high) for grid in self.listed]))

    def most_in(self, length: int) -> int:
        """Upper bound on the number of edges in a span of ``length``."""
        return sum(length // period + 1 for period, _ in self.sequences) + sum(2 * grid.most_ends(length) for grid in self.listed)
