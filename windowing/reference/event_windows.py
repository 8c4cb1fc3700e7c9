"""Windows whose bounds depend on the events: sessions, snapshots, count windows and custom windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from windowmill.windowing.errors import SpecError
from windowmill.windowing.reference.events import BEFORE, Course, Event, EventWindow, Tally, WindowResult, arriving_together
from windowmill.windowing.registry import imported_for

if TYPE_CHECKING:
    from windowmill.windowing.windows.types import Count, Custom, Session


class EventWindows(Protocol):
    """The windows of one key over the events accepted so far."""

    def in_turn(self, together: list[Event]) -> list[Event]:
        """Events that arrive together, in the order in which they are accepted."""

    def accept(self, event: Event) -> bool:
        """Accept ``event`` if a window that would hold it is still open; returns whether it did."""

    def clips(self, event: Event) -> bool:
        """Whether an accepted ``event`` began in windows that are closed, and counts only from there on."""

    def spans(self) -> list[EventWindow]:
        """The present windows, without closed ones."""

    def complete(self, span: EventWindow, watermark: float) -> bool:
        """Whether no event at or after ``watermark`` can change ``span``."""

    def close(self, closed: float) -> list[EventWindow]:
        """Remove and return the windows that are complete at ``closed``: no later event changes them."""

    def takes(self, shown: EventWindow) -> bool:
        """Whether a later event may bring another version of ``shown``, which has been emitted."""

    def replaces(self, new: EventWindow, old: EventWindow) -> bool:
        """Whether ``new`` is another version of ``old``, which still takes events."""


def _never(_event: Event) -> bool:
    return False


def _overlap(new: EventWindow, old: EventWindow) -> bool:
    assert new.start is not None
    assert old.start is not None
    return new.start < old.end and old.start < new.end


def _in_order(together: list[Event]) -> list[Event]:
    return sorted(together, key=lambda event: event.order)


def _passed(span: EventWindow, watermark: float) -> bool:
    return span.end <= watermark


class SessionWindows:
    """Sessions: events at most ``gap`` apart, cut where a session would exceed ``max_size``.

    An event exactly ``gap`` after the last one still joins, so a session is complete only once the watermark is greater than its end. A
    session that ends by ``max_size`` takes no event at its end.
    """

    def __init__(self, window: Session) -> None:
        self._gap = window.gap.elapsed()
        self._max: float = window.max_size.elapsed() if window.max_size else math.inf
        self._live: list[Event] = []

    clips = staticmethod(_never)

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

    replaces = staticmethod(_overlap)


class Snapshots:
    """The spans between neighbouring start and end points of events; spans before the last closed point are fixed."""

    def __init__(self) -> None:
        self._live: list[Event] = []
        self._fixed: float = BEFORE

    complete = staticmethod(_passed)
    in_turn = staticmethod(_in_order)

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

    replaces = staticmethod(_overlap)


class CountWindows:
    """One window from each distinct start time through the ``count``-th, ending one tick after it; windows with fewer are open."""

    def __init__(self, window: Count) -> None:
        self._count = window.count
        self._events: list[Event] = []
        self._begun: float = BEFORE

    complete = staticmethod(_passed)

    clips = staticmethod(_never)

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

    @staticmethod
    def replaces(new: EventWindow, old: EventWindow) -> bool:
        return new.start == old.start


#: A user's window function: (state, the event's columns) -> (state, number of windows that begin before the event, numbers of the
#: windows that end after it).
WindowFunction = Callable[[Any, Mapping[str, Any]], tuple[Any, int, Iterable[int]]]


class Customs:
    """Windows of a user's function, which is called once per event, in order, when the watermark has passed the event."""

    def __init__(self, window: Custom) -> None:
        self._function: WindowFunction = imported_for("function", window.function)
        self._events: list[Event] = []
        self._closed: set[int] = set()
        self._passed: float = BEFORE
        self._taken: tuple[Any, ...] | None = None  # order of the last event that the function has taken for good

    complete = staticmethod(_passed)
    in_turn = staticmethod(_in_order)
    clips = staticmethod(_never)

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

    @staticmethod
    def replaces(new: EventWindow, old: EventWindow) -> bool:
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
    return (one.start, one.end, {event.number for event in one.events}) == (
        other.start,
        other.end,
        {event.number for event in other.events},
    )
