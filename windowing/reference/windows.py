"""Windows by rules, and windows whose bounds depend on the events.

Rules are those of a grid along the axis, in elapsed or calendar time, and eviction and trigger policies, tuple by tuple of a key. The
events of a key bound sessions, snapshots, count windows and custom windows.

References
----------
The rules of policies are those of the open SPL runtime (IBMStreams/OSStreams, src/cpp/SPL/Runtime/Window), with event time for its clock.
"""

from __future__ import annotations

import calendar
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from windowmill.windowing.axis import DAY_US, Duration
from windowmill.windowing.bounds import check_duration, check_key
from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference.events import AFTER, BEFORE, Course, Event, EventWindow, Tally, WindowResult, arriving_together
from windowmill.windowing.registry import imported_for
from windowmill.windowing.windows.base import GridRules, rules_of

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Delta, PolicyRules, Window
    from windowmill.windowing.windows.types import Count, Custom, Session

_NOTHING = Duration()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTH_US = 146_097 * DAY_US / 4_800  # mean over the 400 years after which the calendar repeats


class Calendar:
    """Converts between instants (microseconds, UTC) and the wall clock of one time zone.

    A wall time that a clock change skips is converted with the old offset. A wall time that occurs twice means its first occurrence.
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
        check_key(window.name, window.windows_of_event(max(1, through - first)))
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


def without_duplicates(pipeline: Pipeline, events: Sequence[Event]) -> list[Event]:
    """Those of ``events``, which are in order of arrival, that are no duplicates of applied ones (``dedup``)."""
    dedup, within = pipeline.dedup, pipeline.remembers_for
    if dedup is None:
        return list(events)
    found = [rules_of(window) for window in pipeline.windows]
    grids = [GridWindows(rules, pipeline.time.integer_axis) for rules in found if isinstance(rules, GridRules)]
    applied, copies = dict[str, list[Event]](), set[int]()
    for together in arriving_together(events):
        for event in sorted(together, key=lambda event: event.order):
            values = [event.record.values.get(name) for name in dedup.by]
            if None in values:
                continue
            before = applied.setdefault(repr([value + 0.0 if isinstance(value, float) else value for value in values]), [])
            if any(
                (other.commit == event.commit or event.watermark <= other.until + within)
                and (dedup.within is None or abs(event.until - other.until) <= within)
                for other in before
            ):
                copies.add(event.number)
                continue
            ends = [end for grid in grids for _, end in grid.holding(event.time, event.stop)]
            # Only where all windows are on grids does the time of an event show that none counts it.
            if len(grids) < len(pipeline.windows) or not ends or max(ends) > event.closed:
                before.append(event)
    return [event for event in events if event.number not in copies]


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
    """The state of one key in one policy window; ticks of windows that never become empty stop at the ``greatest`` event time of all."""

    def __init__(self, window: Window, rules: PolicyRules, integer_axis: bool, greatest: float) -> None:
        self._name, self._due = window.name, 0
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
        check_key(self._name, self._due)

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


class EventWindows(ABC):
    """The windows of one key over the events accepted so far."""

    def in_turn(self, together: list[Event]) -> list[Event]:
        """Events that arrive together, in the order in which they are accepted."""
        return sorted(together, key=lambda event: event.order)

    @abstractmethod
    def accept(self, event: Event) -> bool:
        """Accept ``event`` if a window that would hold it is still open; returns whether it did."""

    def clips(self, event: Event) -> bool:  # noqa: ARG002 - those of most types do not
        """Whether an accepted ``event`` began in windows that are closed, and counts only from there on."""
        return False

    @abstractmethod
    def spans(self) -> list[EventWindow]:
        """The present windows, without closed ones."""

    def complete(self, span: EventWindow, watermark: float) -> bool:
        """Whether no event at or after ``watermark`` can change ``span``."""
        return span.end <= watermark

    @abstractmethod
    def close(self, closed: float) -> list[EventWindow]:
        """Remove and return the windows that are complete at ``closed``: no later event changes them."""

    @abstractmethod
    def takes(self, shown: EventWindow) -> bool:
        """Whether a later event may bring another version of ``shown``, which has been emitted."""

    def replaces(self, new: EventWindow, old: EventWindow) -> bool:
        """Whether ``new`` is another version of ``old``, which still takes events."""
        assert new.start is not None
        assert old.start is not None
        return new.start < old.end and old.start < new.end


class SessionWindows(EventWindows):
    """Sessions: events at most ``gap`` apart, cut where a session would exceed ``max_size``.

    An event exactly ``gap`` after the last one still joins, so a session is complete only once the watermark is greater than its end. A
    session that ends by ``max_size`` takes no event at its end.
    """

    def __init__(self, window: Session) -> None:
        self._gap = window.gap.elapsed()
        self._max: float = window.max_size.elapsed() if window.max_size else math.inf
        self._live: list[Event] = []

    def in_turn(self, together: list[Event]) -> list[Event]:
        # From the latest to the earliest, an event that joins others to an open session is there before them.
        return sorted(together, key=lambda event: event.order, reverse=True)

    def accept(self, event: Event) -> bool:
        self._live.append(event)
        # A session ends behind its events: it is open where one of them comes in time.
        if event.time >= event.closed or any(not self.complete(span, event.closed) for span in self.spans() if event in span.events):
            return True
        self._live.remove(event)
        return False

    def complete(self, span: EventWindow, watermark: float) -> bool:
        assert span.start is not None
        return span.end < watermark or (span.end == watermark and span.end == span.start + self._max)

    def spans(self) -> list[EventWindow]:
        groups: list[list[Event]] = []
        reach: float = BEFORE
        for event in sorted(self._live, key=lambda event: event.order):
            if event.time - reach > self._gap or event.time - groups[-1][0].time >= self._max:
                groups.append([])
                reach = BEFORE
            groups[-1].append(event)
            reach = max(reach, event.until)
        return [self._span(group) for group in groups]

    def _span(self, group: list[Event]) -> EventWindow:
        start = group[0].time
        return EventWindow(start, int(min(max(event.until for event in group) + self._gap, start + self._max)), group)

    def close(self, closed: float) -> list[EventWindow]:
        ended = [span for span in self.spans() if self.complete(span, closed)]
        gone = {event.number for span in ended for event in span.events}
        self._live = [event for event in self._live if event.number not in gone]
        return ended

    def takes(self, shown: EventWindow) -> bool:
        live = {event.number for event in self._live}
        return any(event.number in live for event in shown.events)


class Snapshots(EventWindows):
    """The spans between neighbouring start and end points of events; spans before the last closed point are fixed."""

    def __init__(self) -> None:
        self._live: list[Event] = []
        self._fixed: float = BEFORE

    def accept(self, event: Event) -> bool:
        if event.stop > event.closed:
            self._live.append(event)
        return event.stop > event.closed

    def clips(self, event: Event) -> bool:
        return event.time < self._fixed

    def _points(self) -> list[int]:
        return sorted({int(max(event.time, self._fixed)) for event in self._live} | {event.stop for event in self._live})

    def spans(self) -> list[EventWindow]:
        points = self._points()
        spans = []
        for start, end in pairwise(points):
            live = [event for event in self._live if event.time < end and event.stop > start]
            if live:
                spans.append(EventWindow(start, end, sorted(live, key=lambda event: event.order)))
        return spans

    def close(self, closed: float) -> list[EventWindow]:
        ended = [span for span in self.spans() if span.end <= closed]
        self._fixed = max([self._fixed, *(point for point in self._points() if point <= closed)])
        self._live = [event for event in self._live if event.stop > self._fixed]
        return ended

    def takes(self, shown: EventWindow) -> bool:
        return shown.end > self._fixed


class CountWindows(EventWindows):
    """One window from each distinct start time through the ``count``-th, ending one tick after it; windows with fewer are open."""

    def __init__(self, window: Count) -> None:
        self._count = window.count
        self._events: list[Event] = []
        self._begun: float = BEFORE

    def in_turn(self, together: list[Event]) -> list[Event]:
        # From the earliest to the latest, no event completes a window before another has joined it, but for one that keeps it open.
        return sorted(together, key=lambda event: (event.time < event.closed, event.order))

    def accept(self, event: Event) -> bool:
        self._events.append(event)
        if event.time >= event.closed:  # the window that begins with it ends behind it
            return True
        unfinished = self._starts()[1 - self._count :] if self._count > 1 else []
        if any(event.stop > start for start in unfinished) or any(span.end > event.closed for span in self.spans() if event in span.events):
            return True
        self._events.remove(event)
        return False

    def _starts(self) -> list[int]:
        return sorted({event.time for event in self._events if event.time > self._begun})

    def spans(self) -> list[EventWindow]:
        events, starts = sorted(self._events, key=lambda event: event.order), self._starts()
        bounds = [(first, last + 1) for first, last in zip(starts, starts[self._count - 1 :], strict=False)]
        return [EventWindow(start, end, [event for event in events if event.time < end and event.stop > start]) for start, end in bounds]

    def close(self, closed: float) -> list[EventWindow]:
        ended = [span for span in self.spans() if span.end <= closed]
        self._begun = max([self._begun, *(span.start for span in ended if span.start is not None)])
        # Windows that are still open begin later.
        self._events = [event for event in self._events if event.stop > self._begun + 1]
        return ended

    def takes(self, shown: EventWindow) -> bool:
        assert shown.start is not None
        return shown.start > self._begun

    def replaces(self, new: EventWindow, old: EventWindow) -> bool:
        return new.start == old.start


#: A user's window function: (state, the event's columns) -> (state, number of windows that begin before the event, numbers of the
#: windows that end after it).
WindowFunction = Callable[[Any, Mapping[str, Any]], tuple[Any, int, Iterable[int]]]


class Customs(EventWindows):
    """Windows of a user's function, which is called once per event, in order, when the watermark has passed the event."""

    def __init__(self, window: Custom) -> None:
        self._function: WindowFunction = imported_for("function", window.function)
        self._events: list[Event] = []
        self._closed: set[int] = set()
        self._passed: float = BEFORE
        self._taken: tuple[Any, ...] | None = None  # order of the last event that the function has taken for good

    def accept(self, event: Event) -> bool:
        in_order = self._taken is None or event.order > self._taken
        if in_order:
            self._events.append(event)
        return in_order

    def _numbered(self) -> dict[int, EventWindow]:
        state: Any = None
        seen: list[Event] = []
        begun: list[int] = []
        ended: dict[int, EventWindow] = {}
        for event in sorted(self._events, key=lambda event: event.order):
            state, begins, ends = self._function(state, event.record.values)
            begun += [len(seen)] * begins
            seen.append(event)
            for number in ends:
                if number in ended or not 0 <= number < len(begun):
                    raise SpecError(
                        f"function: window {number} ends at {event.time}, but is not open; windows are numbered from 0 as they begin"
                    )
                held = seen[begun[number] :]
                ended[number] = EventWindow(held[0].time, event.time + 1, held)
        return ended

    def spans(self) -> list[EventWindow]:
        return [span for number, span in sorted(self._numbered().items()) if number not in self._closed]

    def close(self, closed: float) -> list[EventWindow]:
        self._passed = max(self._passed, closed)
        self._taken = max((event.order for event in self._events if event.time < self._passed), default=None)
        ended = {number: span for number, span in self._numbered().items() if span.end <= closed and number not in self._closed}
        self._closed |= set(ended)
        return list(ended.values())

    def takes(self, shown: EventWindow) -> bool:
        return shown.end > self._passed

    def replaces(self, new: EventWindow, old: EventWindow) -> bool:
        return new.start == old.start and new.end == old.end


def event_rows(windows: EventWindows, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    """The result rows of one key's ``events``; see :func:`windowmill.windowing.reference.rows_of`."""
    shown: list[WindowResult] = []  # emitted rows whose windows still take events, and those that have been retracted

    def retract(spans: Sequence[EventWindow]) -> Iterator[WindowResult]:
        bounds = {_bounds(span) for span in spans}
        gone: dict[tuple[int | None, int], int] = {}
        for fired in shown:
            its = _bounds(fired.span)
            if not fired.retracted and its not in bounds:
                gone[its] = max(gone.get(its, 0), fired.revision + 1)
        for place, fired in enumerate(shown):
            if not fired.retracted and _bounds(fired.span) in gone:
                shown[place] = replace(fired, retracted=True)
        for (start, end), revision in gone.items():
            yield WindowResult((), EventWindow(start, end, []), None, revision, retracted=True)

    def show(passed: float) -> Iterator[WindowResult]:
        spans = windows.spans()
        yield from retract(spans)
        for span in (span for span in spans if windows.complete(span, passed)):
            earlier = [fired for fired in shown if windows.replaces(span, fired.span)]
            if not any(_same(span, fired.span) and not fired.retracted for fired in earlier):
                # A window that comes back follows its retraction.
                numbers = (other.revision + (other.retracted and _bounds(other.span) == _bounds(span)) for other in earlier)
                fired = WindowResult((), span, None, 1 + max(numbers, default=-1))
                # A user's function may give two windows with these bounds: the row of the other one stays.
                shown[:] = [
                    other
                    for other in shown
                    if _bounds(other.span) != _bounds(span) or (not other.retracted and any(_same(other.span, each) for each in spans))
                ]
                shown.append(fired)
                yield fired

    def publish(passed: float, through: float) -> Iterator[WindowResult]:
        if course.revise:
            yield from show(passed)
        closed = windows.close(through)
        if course.revise:
            shown[:] = [fired for fired in shown if windows.takes(fired.span)]
        else:
            yield from (WindowResult((), span) for span in closed)

    for together in arriving_together(events):
        yield from publish(together[0].watermark, together[0].closed)
        for event in windows.in_turn(together):
            if not windows.accept(event):
                tally.refused.add(event.number)
                continue
            tally.counted.add(event.number)
            if windows.clips(event):
                tally.partly.add(event.number)
    yield from publish(course.watermark, course.closed)


def _bounds(span: EventWindow) -> tuple[int | None, int]:
    return span.start, span.end


def _same(one: EventWindow, other: EventWindow) -> bool:
    return _bounds(one) == _bounds(other) and {event.number for event in one.events} == {event.number for event in other.events}
