"""Windows whose bounds depend on the axis alone: tumbling, hopping and cumulative, in elapsed or calendar time."""

from __future__ import annotations

import calendar
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from windowmill.windowing.bounds import check_key, check_lasting
from windowmill.windowing.durations import DAY_US, Duration
from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference.events import Course, Event, EventWindow, Tally, WindowResult, arriving_together

if TYPE_CHECKING:
    from windowmill.windowing.windows.base import Window
    from windowmill.windowing.windows.grid_rules import GridRules

_NOTHING = Duration()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH_US = 146_097 * DAY_US / 4_800  # mean over the 400 years after which the calendar repeats


class Calendar:
    """Converts between instants (microseconds, UTC) and the wall clock of one time zone.

    A wall time that a clock change skips is converted with the old offset. Of a wall time that occurs twice, the first is meant.
    """

    def __init__(self, zone: str | None) -> None:
        try:
            self._zone = ZoneInfo(zone or "UTC")
        except (ZoneInfoNotFoundError, ValueError) as err:
            raise SpecError(f"timezone: got {zone!r}; expected a zone of the IANA database, such as Europe/Berlin") from err

    def wall(self, instant: int) -> datetime:
        return (_EPOCH + timedelta(microseconds=instant)).astimezone(self._zone).replace(tzinfo=None)

    def instant(self, wall: datetime) -> int:
        return (wall.replace(tzinfo=self._zone) - _EPOCH) // timedelta(microseconds=1)

    def shift(self, wall: datetime, months: int, days: int) -> int:
        """The instant ``months``, then ``days`` after ``wall``; a day that a month lacks becomes the month's last."""
        year, month = divmod(wall.year * 12 + wall.month - 1 + months, 12)
        day = min(wall.day, calendar.monthrange(year, month + 1)[1])
        return self.instant(wall.replace(year=year, month=month + 1, day=day) + timedelta(days=days))


class StepEdges:
    """The window edges origin + k·step for every integer k."""

    def __init__(self, step: Duration, origin: datetime | int | None, zone: str | None, integer_axis: bool) -> None:
        self.step, self.calendar = step, Calendar(zone)
        if origin is not None and isinstance(origin, int) != integer_axis:
            wanted = "an integer, as the axis is one (time.unit)" if integer_axis else "an instant such as 2013-01-01T00:00:00Z"
            raise SpecError(f"origin: got {origin!r}; expected {wanted}")
        if isinstance(origin, datetime) and origin.tzinfo:
            origin = (origin - _EPOCH) // timedelta(microseconds=1)
        elif isinstance(origin, datetime):
            origin = self.calendar.instant(origin)
        elif origin is None:
            origin = self.calendar.instant(_EPOCH.replace(tzinfo=None)) if step.is_calendar else 0
        self.origin = origin

    def at(self, k: int, plus: Duration = _NOTHING) -> int:
        """Edge ``k`` plus ``plus``, in one step from the origin so that a day clipped to a short month does not carry over."""
        step = self.step
        if not step.is_calendar and not plus.is_calendar:
            return self.origin + k * step.ticks + plus.ticks
        day = self.calendar.shift(self.calendar.wall(self.origin), k * step.months + plus.months, k * step.days + plus.days)
        return day + k * step.ticks + plus.ticks

    def after(self, k: int, length: Duration) -> int:
        """The instant ``length`` after edge ``k``."""
        if not length.is_calendar:
            return self.at(k) + length.ticks
        if self.step.ticks or (length.months and not self.step.months):
            return self.calendar.shift(self.calendar.wall(self.at(k)), length.months, length.days) + length.ticks
        return self.at(k, length)

    def near(self, instant: int) -> int:
        """Index of an edge at or shortly before ``instant``."""
        step = self.step
        if not step.is_calendar:
            return (instant - self.origin) // step.ticks
        mean_us = step.ticks + step.days * DAY_US + step.months * _MONTH_US
        return math.floor((instant - self.origin - DAY_US) / mean_us) - 2

    def next_after(self, instant: int) -> int:
        """The first edge greater than ``instant``."""
        k = self.near(instant)
        while self.at(k) <= instant:
            k += 1
        return self.at(k)


class GridWindows:
    """The windows of a grid; each edge opens one, or several with a common start in a cumulative grid."""

    def __init__(self, rules: GridRules, integer_axis: bool) -> None:
        self._size, self._step = rules.size, rules.step
        self._edges = StepEdges(rules.hop, rules.origin, rules.timezone, integer_axis)

    def holding(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Start and end of each window that overlaps [start, stop)."""
        longest = self._size.ticks + (self._size.months * 31 + self._size.days + self._size.is_calendar) * DAY_US
        k = self._edges.near(start - longest)
        while (opens := self._edges.at(k)) < stop:
            for closes in self._ends(k, opens):
                # A day that the zone skips has no length, so it is no window.
                if closes > max(start, opens):
                    yield opens, closes
            k += 1

    def _ends(self, k: int, opens: int) -> Iterator[int]:
        last = self._edges.after(k, self._size)
        if self._step:
            step, count = self._step, 1
            while (end := self._stepped(opens, step, count)) < last:
                yield end
                count += 1
        yield last

    def _stepped(self, opens: int, step: Duration, count: int) -> int:
        if not step.is_calendar:
            return opens + count * step.ticks
        return self._edges.calendar.shift(self._edges.calendar.wall(opens), count * step.months, count * step.days) + count * step.ticks


def grid_rows(window: Window, rules: GridRules, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    """The result rows of one key's ``events``; see :meth:`windowmill.windowing.windows.base.Window.reference_rows`."""
    grid, passed = GridWindows(rules, course.integer_axis), course.watermark if course.revise else course.closed
    held: dict[tuple[int, int], list[Event]] = {}
    counted = []
    for event in events:
        check_lasting(window, event.stop - event.time)
        # Where a zone skips a day, two windows may have the same bounds: they are one.
        spans = list(dict.fromkeys(grid.holding(event.time, event.stop)))
        taking = [span for span in spans if span[1] > event.closed]
        for span in taking:
            held.setdefault(span, []).append(event)
        if taking:
            tally.counted.add(event.number)
        elif spans:  # an event in a gap between windows is neither counted nor late
            tally.refused.add(event.number)
        counted += [event] * bool(taking)
    if window.empty == "emit" and counted:
        first, last = min(event.time for event in counted), max(event.stop for event in counted)
        through = int(max(first, min(last, passed)))
        check_key(window, window.windows_of_event(max(1, through - first)))
        for span in grid.holding(first, through):
            held.setdefault(span, [])
    for (start, end), inside in held.items():
        if end <= passed:
            for revision, version in enumerate(_versions(window, start, end, inside, counted) if course.revise else [inside]):
                yield WindowResult((), EventWindow(start, end, version).in_order(), None, revision)


def _versions(window: Window, start: int, end: int, inside: list[Event], counted: list[Event]) -> list[list[Event]]:
    """The window's events when the watermark passed its end, and after each later commit with such events."""
    on_time = [event for event in inside if event.watermark < end]
    late = list(arriving_together([event for event in inside if event.watermark >= end]))
    before = [event for event in counted if not late or event.moment < late[0][0].moment]
    around = any(event.time < end for event in before) and any(event.stop > start for event in before)
    shown = [on_time] if on_time or (window.empty == "emit" and around) else []
    return shown + [on_time + list(chain(*late[: count + 1])) for count in range(len(late))]
