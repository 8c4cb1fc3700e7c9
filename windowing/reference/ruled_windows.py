"""Windows by rules: on a grid along the axis, in elapsed or calendar time; and by eviction and trigger policies, tuple by tuple of a key.

References
----------
The rules of policies are those of the open SPL runtime (IBMStreams/OSStreams, src/cpp/SPL/Runtime/Window), with event time for its clock.
"""

from __future__ import annotations

import calendar
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from windowmill.windowing.axis import DAY_US, Duration
from windowmill.windowing.bounds import check_duration, check_key
from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference.events import AFTER, Course, Event, EventWindow, Tally, WindowResult, arriving_together

if TYPE_CHECKING:
    from windowmill.windowing.windows.base import Delta, GridRules, PolicyRules, Window

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
    """The result rows of one key's ``events``; see :func:`windowmill.windowing.reference.rows_of`."""
    grid, passed = GridWindows(rules, course.integer_axis), course.watermark if course.revise else course.closed
    held: dict[tuple[int, int], list[Event]] = {}
    counted = []
    for event in events:
        check_duration(window, event.stop - event.time)
        # Where a zone skips a day, two windows may have the same bounds: they are one.
        spans = list(dict.fromkeys(grid.holding(event.time, event.stop)))
        taking = [span for span in spans if span[1] > event.closed]
        for span in taking:
            held.setdefault(span, []).append(event)
        if taking:
            tally.counted.add(event.number)
            if len(taking) < len(spans):
                tally.partly.add(event.number)
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
    before = [event for event in counted if not late or event.commit < late[0][0].commit]
    around = any(event.time < end for event in before) and any(event.stop > start for event in before)
    shown = [on_time] if on_time or (window.empty == "emit" and around) else []
    return shown + [on_time + list(chain(*late[: count + 1])) for count in range(len(late))]


def policy_rows(window: Window, rules: PolicyRules, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    """The result rows of one key's ``events``; see :func:`windowmill.windowing.reference.rows_of`."""
    policies = Policies(window, rules, course.integer_axis, course.greatest)
    for together in arriving_together(events):
        yield from policies.advance(together[0].watermark)
        for event in together:
            if policies.late(event):
                tally.refused.add(event.number)
            else:
                tally.counted.add(event.number)
                policies.wait(event)
    yield from policies.advance(course.watermark)


class Policies:
    """The state of one key in one policy window.

    Parameters
    ----------
    greatest
        Greatest event time of the whole input, where the ticks of windows that never become empty stop.
    """

    def __init__(self, window: Window, rules: PolicyRules, integer_axis: bool, greatest: float) -> None:
        self._spec, self._due = window, 0
        self._evict, self._trigger, self._partial = rules.evict, rules.trigger, rules.partial
        self._emit_empty = window.empty == "emit"
        self._idle = rules.idle_after.elapsed() if rules.idle_after else math.inf
        self._greatest = greatest
        period = self._trigger.time if self._trigger else self._evict.time
        self._tick_edges = StepEdges(period, rules.origin, rules.timezone, integer_axis) if period else None
        self._age = self._evict.time.elapsed() if self._evict.time and self._trigger else math.inf
        self._waiting: list[Event] = []
        self._forget()

    def _forget(self) -> None:
        self._window: list[Event] = []
        self._last: Event | None = None
        self._ticked: float = -math.inf
        self._tick: int | None = None
        self._fired = self._inserted = 0
        self._full = self._evict.time is not None  # a time window counts as full from the start, as in the SPL runtime
        self._base: Any = None

    def late(self, event: Event) -> bool:
        """Whether the key has already applied a tuple or tick that comes after ``event``."""
        return event.time < self._ticked or (self._last is not None and event.order < self._last.order)

    def wait(self, event: Event) -> None:
        self._waiting.append(event)

    def advance(self, watermark: float) -> Iterator[WindowResult]:
        """Apply the waiting tuples before ``watermark`` and the ticks up to it."""
        ready = sorted((event for event in self._waiting if event.time < watermark), key=lambda event: event.order)
        self._waiting = [event for event in self._waiting if event.time >= watermark]
        for event in ready:
            yield from self._advance_to(event.time)
            yield from self._apply(event)
        if watermark < AFTER:
            yield from self._advance_to(watermark)
        elif self._tick_edges and self._last:
            yield from self._advance_to(self._tick_edges.next_after(int(self._greatest)))
            if self._window and self._age < math.inf:
                yield from self._advance_to(self._window[-1].time + self._age)

    def _advance_to(self, time: float) -> Iterator[WindowResult]:
        """Fire the ticks up to ``time``, and forget the key if it has been idle for too long by then."""
        if self._last and time - self._last.time > self._idle:
            yield from self._fire_ticks(self._last.time + self._idle)
            self._forget()
        else:
            yield from self._fire_ticks(time)

    def _check_ticks(self, through: float) -> None:
        """Count the due ticks before the first fires; O(1) for any number of ticks."""
        if self._tick_edges is None or self._tick is None or self._tick > through or self._tick_edges.step.is_calendar:
            return
        last = through
        if not self._emit_empty:
            if self._trigger is None or not self._window:
                last = self._tick
            elif self._age < math.inf:
                last = min(last, self._window[-1].time + self._age)
        self._due += max(0, int(last - self._tick) // self._tick_edges.step.ticks + 1)
        check_key(self._spec, self._due)

    def _fire_ticks(self, through: float) -> Iterator[WindowResult]:
        self._check_ticks(through)
        while self._tick_edges and self._tick is not None and self._tick <= through:
            self._expire(self._tick)
            if self._window or self._emit_empty:
                self._ticked = self._tick
                yield from self._fire(self._tick)
            if self._trigger is None:
                self._window = []
            # An empty window has no tick until the next tuple arrives.
            self._tick = self._tick_edges.next_after(self._tick) if self._window or self._emit_empty else None

    def _expire(self, time: float) -> None:
        self._window = [event for event in self._window if time - event.time <= self._age]

    def _fire(self, at: int) -> Iterator[WindowResult]:
        if self._partial or self._full:
            start = self._window[0].time if self._window else None
            yield WindowResult((), EventWindow(start, at, list(self._window)), self._fired)
        self._fired += 1

    def _apply(self, event: Event) -> Iterator[WindowResult]:
        if self._tick_edges and self._tick is None:
            self._tick = self._tick_edges.next_after(event.time)
        yield from self._slide(event) if self._trigger else self._tumble(event)
        self._last = event

    def _slide(self, event: Event) -> Iterator[WindowResult]:
        assert self._trigger
        self._expire(event.time)
        if self._trigger.delta:
            value = _cell(event, self._trigger.delta)
            if _exceeds(value, self._base, self._trigger.delta):
                yield from self._fire(event.time)
                self._base = value
            elif self._base is None:
                self._base = value
        if self._evict.delta:
            delta, value = self._evict.delta, _cell(event, self._evict.delta)
            kept = [earlier for earlier in self._window if not _exceeds(value, _cell(earlier, delta), delta)]
            self._full = self._full or len(kept) < len(self._window)
            self._window = kept
        elif len(self._window) == self._evict.count:
            del self._window[0]
        self._window.append(event)
        self._inserted += 1
        self._full = self._full or len(self._window) == self._evict.count
        if self._trigger.count and self._inserted % self._trigger.count == 0:
            yield from self._fire(event.time)

    def _tumble(self, event: Event) -> Iterator[WindowResult]:
        evict = self._evict
        if evict.delta and self._window and _exceeds(_cell(event, evict.delta), _cell(self._window[0], evict.delta), evict.delta):
            yield from self._flush(event.time)
        self._window.append(event)
        if len(self._window) == evict.count or (evict.punctuation and evict.punctuation in event.record.holds):
            yield from self._flush(event.time)

    def _flush(self, at: int) -> Iterator[WindowResult]:
        yield from self._fire(at)
        self._window = []


def _cell(event: Event, delta: Delta) -> Any:
    """The value of a delta policy's column; NaN counts as null."""
    value = event.record.values.get(delta.column)
    return None if isinstance(value, float) and math.isnan(value) else value


def _exceeds(value: Any, base: Any, delta: Delta) -> bool:
    """Whether ``value`` exceeds ``base`` by more than the delta; false if either is null."""
    by = delta.by.elapsed() if isinstance(delta.by, Duration) else delta.by
    return value is not None and base is not None and value - base > by
