"""Sliding and tumbling windows with eviction and trigger policies; applies one key's tuples one by one in order.

References
----------
The rules are those of the open SPL runtime (IBMStreams/OSStreams, src/cpp/SPL/Runtime/Window), with event time for its clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from windowmill.windowing.bounds import check_key
from windowmill.windowing.durations import Duration
from windowmill.windowing.reference.events import AFTER, Course, Event, EventWindow, Tally, WindowResult, arriving_together
from windowmill.windowing.reference.grid_windows import StepEdges

if TYPE_CHECKING:
    from windowmill.windowing.windows.base import Window
    from windowmill.windowing.windows.policy_rules import Delta, PolicyRules


def policy_rows(window: Window, rules: PolicyRules, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    """The result rows of one key's ``events``; see :meth:`windowmill.windowing.windows.base.Window.reference_rows`."""
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
