"""Windows that the axis alone decides, on elapsed time or by a calendar, the edges where they begin and end, and their numbers for kernels.

*Calendars.* Days and months follow a zone's wall clock; hours and shorter units are elapsed time. A wall time that a clock change skips
means the instant by the old offset; a repeated one means the first of the two. Steps are multiplied before they are added to the origin.
So a day that a month lacks becomes the last day of that month, and later months are not shortened.

Days and months differ in length, so no arithmetic numbers such windows. They are listed in blocks of neighbouring steps::

    steps    │ 0 … 255 │ 256 … 511 │           …            │ 6,656 … 6,911 │
    instants              ·  ·· ·                                ·               blocks between are never listed

A block depends on the grid and the zone's data alone, so each process lists it once (:func:`_block`). A grid itself is small, and can be
pickled.
"""

from __future__ import annotations

import calendar
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, DAY_US, Duration, T, from_us, to_us
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.errors import SpecError
from windowmill.windowing.kernels import grid_ranges as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slices import slice_starts

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints


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
    >>> grid.first_end_after(10), grid.last_end_holding(7)
    (15, 15)
    """

    #: Null, as its sequences give its edges. A grid of a calendar, whose edges no arithmetic gives, has itself here.
    listed: ClassVar[None] = None

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
    def longest(self) -> int:
        """Upper bound on the length of a window."""
        return self.size

    def start(self, k: T) -> T:
        return self.origin + k * self.hop

    def end(self, k: T) -> T:
        """End of window ``k``, itself outside the window."""
        return self.origin + k * self.hop + self.size

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

    listed: ClassVar[None] = None

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


#: Mean month in microseconds, over the 400 years after which the calendar repeats.
_MONTH_US = 146_097 * DAY_US // 4_800
#: Bound on how far a calendar step is from the mean of its length times its number: months are up to 4 days ahead or behind, and a zone's
#: offset from UTC changes by up to 2 days.
_SLACK_US = 6 * DAY_US
#: Windows of a block, where a step has no more of its own.
_BLOCK = 256
#: Blocks, and unions of blocks, that a process remembers of all grids.
_BLOCKS, _UNIONS = 2_048, 32
#: Windows up to which those that end in a span are counted one by one.
_COUNTED = 1 << 16
#: Bound on how much earlier or later than by its mean length a window ends: changes of clocks, a day that is skipped.
_CLOCKS_US = 2 * DAY_US


def zone_named(name: str | None) -> ZoneInfo:
    """The zone, UTC by default; raises ``SpecError`` for a name that the IANA database lacks."""
    try:
        return ZoneInfo(name or "UTC")
    except (ZoneInfoNotFoundError, ValueError) as err:
        raise SpecError(f"timezone: got {name!r}; expected a zone of the IANA database, such as Europe/Berlin") from err


def shifted(instant: int, months: int, days: int, zone: ZoneInfo) -> int:
    """The instant ``months`` and then ``days`` after ``instant`` on the zone's wall clock; microseconds, UTC."""
    wall = from_us(instant).astimezone(zone).replace(tzinfo=None)
    year, month = divmod(wall.year * 12 + wall.month - 1 + months, 12)
    wall = wall.replace(year=year, month=month + 1, day=min(wall.day, calendar.monthrange(year, month + 1)[1]))
    return to_us((wall + timedelta(days=days)).replace(tzinfo=zone))


def origin_of(origin: datetime | int | None, step: Duration, zone: ZoneInfo, integer_axis: bool) -> int:
    """The instant from which steps are counted; by default 1970 on the zone's wall clock for calendar steps, else 1970 in UTC.

    Raises ``SpecError`` for an instant on an integer axis, or an integer on an axis of instants.
    """
    if origin is None:
        return to_us(datetime(1970, 1, 1, tzinfo=zone)) if step.is_calendar else 0
    if isinstance(origin, int) != integer_axis:
        wanted = "an integer, as the axis is one (time.unit)" if integer_axis else "an instant such as 2013-01-01T00:00:00Z"
        raise SpecError(f"origin: got {origin!r}; expected {wanted}")
    if isinstance(origin, datetime):
        return to_us(origin if origin.tzinfo else origin.replace(tzinfo=zone))
    return origin


@dataclass(frozen=True)
class Steps:
    """The instants origin + k·step for every whole k.

    Examples
    --------
    >>> monthly = Steps(to_us(datetime(2024, 1, 31)), Duration(months=1), zone_named(None))
    >>> [from_us(monthly.at(k)).strftime("%m-%d") for k in range(4)]
    ['01-31', '02-29', '03-31', '04-30']
    """

    origin: int
    step: Duration
    zone: ZoneInfo

    @property
    def period(self) -> int | None:
        """The distance between neighbours if it is constant, else ``None``."""
        fixed = not self.step.months and (not self.step.days or self.zone.key == "UTC")
        return self.step.elapsed() if fixed else None

    def at(self, k: int, plus: Duration | None = None) -> int:
        """Instant ``k``; with ``plus``, the instant that calendar length later, in one step from the origin."""
        months, days, ticks = k * self.step.months, k * self.step.days, k * self.step.ticks
        if plus is not None:
            months, days, ticks = months + plus.months, days + plus.days, ticks + plus.ticks
        return (shifted(self.origin, months, days, self.zone) if months or days or self.step.is_calendar else self.origin) + ticks

    def after(self, k: int, length: Duration) -> int:
        """The instant ``length`` after instant ``k``."""
        if not length.is_calendar:
            return self.at(k) + length.ticks
        if self.step.ticks or (length.months and not self.step.months):
            return shifted(self.at(k), length.months, length.days, self.zone) + length.ticks
        return self.at(k, length)

    def indexes_around(self, instant: T) -> tuple[T, T]:
        """An index whose instant is at or before ``instant``, and one whose instant is after it; both near it, by arithmetic alone."""
        mean = self.step.ticks + self.step.days * DAY_US + self.step.months * _MONTH_US
        slack = _SLACK_US if self.step.is_calendar else 0
        return (instant - self.origin - slack) // mean, (instant - self.origin + slack) // mean + 1

    def before(self, instant: int) -> int:
        """The last index whose instant is at or before ``instant``."""
        low, high = self.indexes_around(instant)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_at_most(middle, instant) else (low, middle)
        return low

    def _is_at_most(self, k: int, instant: int) -> bool:
        try:
            return self.at(k) <= instant
        except (OverflowError, ValueError):  # outside the years 1 to 9999
            return k < 0

    def between(self, after: int, through: int) -> list[int]:
        """The instants in (``after``, ``through``], ascending, each once: where a zone skips a day, two steps are one instant."""
        k, instants = self.before(after) - 1, set[int]()
        while (instant := self.at(k)) <= through:
            if instant > after:
                instants.add(instant)
            k += 1
        return sorted(instants)


@dataclass(frozen=True)
class Listing:
    """Windows in order of ends, then of starts."""

    #: Bounds of each window; int64, shapes (n_windows,).
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
    """Windows of ``size`` that begin every ``hop``, counted from ``origin`` on the wall clock of ``zone``; methods as of :class:`.Grid`.

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
        """The greatest edge not after ``t``; ``AXIS_BEGIN`` if there is none."""
        edges = self._near(t).edges
        return _like(t, np.append(AXIS_BEGIN, edges)[np.searchsorted(edges, t, side="right")])

    def first_start_after(self, t: int) -> int:
        near = self._near(t)
        return int(min(near.starts[near.ends > t], default=AXIS_END))

    def edges_in(self, low: int, high: int) -> Ints:
        """The edges in [low, high), ascending."""
        edges = self._overlapping(np.array([low]), np.array([high])).edges
        return edges[(edges >= low) & (edges < high)]

    def edges_over(self, time: Ints, stop: Ints) -> Ints:
        """Edges, ascending; all that lie in one of the spans [time, stop) are among them."""
        return self._overlapping(time, stop - 1).edges

    def starts_over(self, time: Ints, stop: Ints) -> Ints:
        """Starts of windows, ascending, each once; all that lie in one of the spans [time, stop) are among them."""
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
    for count in itertools.count(1):
        whole = shifted(start, count * step.months, count * step.days, zone) if step.is_calendar else start
        if whole + count * step.ticks >= last:
            break
        found.append(whole + count * step.ticks)
    return found
