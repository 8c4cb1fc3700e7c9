"""Instants at regular distances on the wall clock of a time zone, and windows that follow its calendar.

Days and months follow the zone's wall clock; hours and shorter units are elapsed time. A wall time that a clock change skips means the
instant by the old offset; a repeated one means the first of the two. Steps are multiplied before they are added to the origin. So a day
that a month lacks becomes the last day of that month, and later months are not shortened.

Days and months differ in length, so no arithmetic numbers such windows. They are listed in blocks of neighbouring steps::

    steps    │ 0 … 255 │ 256 … 511 │           …            │ 6,656 … 6,911 │
    instants              ·  ·· ·                                ·               blocks between are never listed

A block depends on the grid and the zone's data alone, so each process lists it once (:func:`_block`). A grid itself is small, and can be
pickled.
"""

from __future__ import annotations

import calendar
import itertools
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END, DAY_US, Duration, T, from_us, to_us
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.errors import SpecError
from windowmill.windowing.slicing.edges import Numbering

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Ints

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
