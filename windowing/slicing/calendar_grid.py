"""Windows that follow the calendar of a time zone, found by listing those around the instants that matter.

Days and months differ in length, so no arithmetic numbers such windows. They are listed in blocks of neighbouring steps::

    steps    │ 0 … 255 │ 256 … 511 │           …            │ 6,656 … 6,911 │
    instants              ·  ·· ·                                ·               blocks between are never listed

A block depends on the grid and the zone's data alone, so each process lists it once (:func:`_block`). A grid itself is small, and can be
pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np

from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, T
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.durations import DAY_US, Duration
from windowmill.windowing.slicing.calendars import Steps, shifted, zone_named
from windowmill.windowing.slicing.edges import Numbering

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.slicing.edges import Numbering

#: Windows of a block, where a step has no more of its own.
_BLOCK = 256
#: Blocks, and unions of blocks, that a process remembers of all grids.
_BLOCKS, _UNIONS = 2_048, 32
#: Windows up to which those that end in a span are counted one by one.
_COUNTED = 1 << 16
#: Bound on how much earlier or later than by its mean length a window ends: changes of clocks, a day that is skipped.
_CLOCKS_US = 2 * DAY_US


@dataclass(frozen=True)
class Listing:
    """Windows in order of ends, then of starts.

    Attributes
    ----------
    starts, ends
        Bounds of each window; int64, shapes (n_windows,).
    """

    starts: Ints
    ends: Ints

    @cached_property
    def edges(self) -> Ints:
        """Every instant at which one begins or ends, ascending."""
        return np.unique(np.concatenate((self.starts, self.ends)))

    @cached_property
    def by_start(self) -> tuple[Ints, Ints]:
        """The starts, ascending, and the greatest end of the windows up to each."""
        order = np.argsort(self.starts, kind="stable")
        return self.starts[order], np.maximum.accumulate(self.ends[order])


@dataclass(frozen=True)
class CalendarGrid:
    """Windows of ``size`` that begin every ``hop``, counted from ``origin`` on the wall clock of ``zone``.

    With ``step``, windows of ``step``, 2·``step`` … ``size`` share their start. What lies beyond the years 1 to 9999 has no windows, and
    neither has a day that the zone skips: both its midnights are one instant.

    Examples
    --------
    >>> from windowmill.windowing.axis import from_us, to_us
    >>> from datetime import UTC, datetime
    >>> months = CalendarGrid(Duration(months=1), Duration(months=1), None, 0, "UTC")
    >>> from_us(months.first_end_after(to_us(datetime(2024, 2, 10, tzinfo=UTC)))).isoformat()
    '2024-03-01T00:00:00+00:00'
    """

    size: Duration
    hop: Duration
    step: Duration | None
    origin: int
    zone: str

    @property
    def edge_sequences(self) -> tuple[tuple[int, int], ...]:
        return ()

    @property
    def start_sequence(self) -> None:
        return None

    @property
    def listed(self) -> CalendarGrid:
        return self

    @property
    def longest(self) -> int:
        return self.size.longest + _CLOCKS_US

    def first_end_after(self, t: T) -> T:
        ends = self._near(t).ends
        return _like(t, np.append(ends, AXIS_END)[np.searchsorted(ends, t, side="right")])

    def last_end_holding(self, t: T) -> T:
        starts, greatest = self._near(t).by_start
        return _like(t, np.append(AXIS_BEGIN, greatest)[np.searchsorted(starts, t, side="right")])

    def slice_start(self, t: T) -> T:
        edges = self._near(t).edges
        return _like(t, np.append(AXIS_BEGIN, edges)[np.searchsorted(edges, t, side="right")])

    def first_start_after(self, t: int) -> int:
        near = self._near(t)
        return int(min(near.starts[near.ends > t], default=AXIS_END))

    def edges_in(self, low: int, high: int) -> Ints:
        edges = self._overlapping(np.array([low]), np.array([high])).edges
        return edges[(edges >= low) & (edges < high)]

    def edges_over(self, time: Ints, stop: Ints) -> Ints:
        return self._overlapping(time, stop - 1).edges

    def starts_over(self, time: Ints, stop: Ints) -> Ints:
        return np.unique(self._overlapping(time, stop - 1).starts)

    def ending_in(self, after: int, through: int) -> tuple[Ints, Ints]:
        near = self._overlapping(np.array([after]), np.array([max(after, through)]))
        chosen = (near.ends > after) & (near.ends <= through)
        return near.starts[chosen], near.ends[chosen]

    def count_ends(self, after: int, through: int) -> int:
        after, through = (min(max(t, PRINTABLE[0]), PRINTABLE[1]) for t in (after, through))
        if after >= through:
            return 0
        most = self.most_ends(through - after)
        return most if most > _COUNTED else len(self.ending_in(after, through)[1])

    def most_ends(self, length: T) -> T:
        return ((length + _CLOCKS_US) // self.hop.shortest + 1) * self._of_step

    def numbered(self, time: Ints, stop: Ints) -> Numbering:
        found = self._overlapping(time, stop - 1)
        return Numbering.listed(found.starts, found.ends)

    @property
    def _of_step(self) -> int:
        """Most windows that share their start."""
        return 1 if self.step is None else -(-(self.size.longest + _CLOCKS_US) // self.step.shortest)

    @property
    def _steps(self) -> Steps:
        return Steps(self.origin, self.hop, zone_named(self.zone))

    def _near(self, t: int | Ints) -> Listing:
        """The windows that hold one of the instants, those before and those after them."""
        instants = np.atleast_1d(np.asarray(t, np.int64))
        return self._overlapping(instants, instants)

    def _overlapping(self, first: Ints, last: Ints) -> Listing:
        """The windows that overlap one of the spans [first, last], those before and those after them.

        O(n log n) in the number of spans where neighbouring ones lie apart, else O(n); besides blocks that are new to the process.
        """
        steps, length = self._steps, max(1, _BLOCK // self._of_step)
        low, _ = steps.indexes_around(np.clip(first, *PRINTABLE) - self.longest - self.hop.longest)
        _, high = steps.indexes_around(np.clip(last, *PRINTABLE))
        return _union(self, steps.zone, length, tuple(_joined(low // length, (high + 1) // length)))


def _like(t: T, found: Ints) -> T:
    """``found`` in the form of ``t``: of one instant, a number."""
    return found if isinstance(t, np.ndarray) else int(found)


def _joined(first: Ints, last: Ints) -> list[tuple[int, int]]:
    """The whole numbers in any of the ranges [first, last], as ascending ranges that do not touch."""
    if not len(first):
        return []
    new = np.concatenate(([True], (first[1:] != first[:-1]) | (last[1:] != last[:-1])))
    order = np.argsort(first[new], kind="stable")
    first, last = first[new][order], np.maximum.accumulate(last[new][order])
    begins = np.concatenate(([True], first[1:] > last[:-1] + 1))
    return list(zip(first[begins].tolist(), last[np.append(begins[1:], True)].tolist(), strict=True))


@lru_cache(maxsize=_UNIONS)
def _union(grid: CalendarGrid, zone: ZoneInfo, length: int, ranges: tuple[tuple[int, int], ...]) -> Listing:
    """The windows of all blocks in the ``ranges`` [first, last], each window once."""
    blocks = [_block(grid, zone, length, number) for first, last in ranges for number in range(first, last + 1)]
    starts, ends = (np.concatenate([np.empty(0, np.int64), *(block[bound] for block in blocks)]) for bound in (0, 1))
    order = np.lexsort((starts, ends))
    starts, ends = starts[order], ends[order]
    new = np.ones(len(starts), np.bool_)
    new[1:] = (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    return Listing(starts[new], ends[new])


@lru_cache(maxsize=_BLOCKS)
def _block(grid: CalendarGrid, zone: ZoneInfo, length: int, number: int) -> tuple[Ints, Ints]:
    """Starts and ends of the windows that begin at the steps of a block.

    Without those that reach beyond the years 1 to 9999, and those that would have no length.
    """
    steps, windows = Steps(grid.origin, grid.hop, zone), list[tuple[int, int]]()
    for k in range(number * length, (number + 1) * length):
        try:
            start, last = steps.at(k), steps.after(k, grid.size)
            ends = [] if grid.step is None else _stepped(start, last, grid.step, zone)
        except (OverflowError, ValueError):
            continue
        windows += [(start, end) for end in (*ends, last) if end > start]
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    return bounds[:, 0].copy(), bounds[:, 1].copy()


def _stepped(start: int, last: int, step: Duration, zone: ZoneInfo) -> list[int]:
    """The instants ``step``, 2·``step`` … after ``start`` that come before ``last``."""
    found: list[int] = []
    while (end := _after_steps(start, len(found) + 1, step, zone)) < last:
        found.append(end)
    return found


def _after_steps(start: int, count: int, step: Duration, zone: ZoneInfo) -> int:
    if not step.is_calendar:
        return start + count * step.ticks
    return shifted(start, count * step.months, count * step.days, zone) + count * step.ticks
