"""From records to result rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windowmill.windowing.bounds import check_key, check_lasting, windows_of_event
from windowmill.windowing.reference.events import (
    AFTER,
    Clock,
    Event,
    Fired,
    Record,
    Span,
    Tally,
    arrivals,
    ranks,
)
from windowmill.windowing.reference.grids import Grid
from windowmill.windowing.reference.policies import Policies
from windowmill.windowing.reference.shapes import SHAPES
from windowmill.windowing.reference.values import compute
from windowmill.windowing.spec import Cumulative, Hopping, Pipeline, Sliding, Tumbling, Window


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a whole input.

    Attributes
    ----------
    rows
        Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first.
    quarantined
        (number of the record, reason), by number.
    """

    rows: list[dict[str, Any]]
    quarantined: list[tuple[int, str]]


def evaluate(pipeline: Pipeline, records: Sequence[Record], *, final: bool = True, latest: float = math.inf) -> Outcome:
    """Everything that ``pipeline`` says about ``records``, which stand in the order of their arrival.

    Parameters
    ----------
    final
        Whether the input has ended: the watermark then goes to infinity.
    latest
        The greatest event time that is accepted, where the pipeline bounds it.
    """
    quarantined: dict[int, str] = {}
    events: list[Event] = []
    clock = Clock(pipeline)
    for arrival in arrivals(pipeline, records, latest, quarantined):
        if isinstance(arrival, Clock):
            clock = arrival
        else:
            events.append(arrival)
    watermark, closed = (AFTER, AFTER) if final else (clock.watermark, clock.closed)
    rows: list[dict[str, Any]] = []
    tally = Tally()
    for window in pipeline.windows:
        found = _windows(pipeline, window, events, tally, watermark, closed, clock.seen)
        rows.extend(_row(pipeline, window, fired) for fired in found)
    quarantined |= dict.fromkeys(tally.refused - tally.counted, "too_late")
    return Outcome(sorted(rows, key=lambda row: _position(pipeline, row)), sorted(quarantined.items()))


def _row(pipeline: Pipeline, window: Window, fired: Fired) -> dict[str, Any]:
    span = Span(fired.span.start, fired.span.end, sorted(fired.span.events, key=lambda event: event.order))
    if isinstance(window, Sliding) or getattr(window, "evict", None):
        span = fired.span
    place = {
        "window": window.name,
        "window_start": span.start,
        "window_end": span.end,
        "trigger": fired.trigger,
        "revision": fired.revision,
    }
    values = {name: compute(name, spec, span) for name, spec in pipeline.aggregates.items()}
    return dict(zip(pipeline.keys, fired.key, strict=True)) | place | values


def _position(pipeline: Pipeline, row: dict[str, Any]) -> tuple[Any, ...]:
    return ranks([row[name] for name in (*pipeline.keys, "window", "window_end", "trigger", "revision", "window_start")])


def _by_key(events: Sequence[Event]) -> Iterator[tuple[tuple[Any, ...], list[Event]]]:
    groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        groups.setdefault(ranks(event.key), []).append(event)
    for group in groups.values():
        yield group[0].key, group


def _windows(
    pipeline: Pipeline, window: Window, events: Sequence[Event], tally: Tally, watermark: float, closed: float, greatest: float
) -> Iterator[Fired]:
    integer_axis, revise = pipeline.time.unit is not None, pipeline.emit == "revise"
    for key, group in _by_key(events):
        if isinstance(window, Sliding) or (isinstance(window, Tumbling) and window.evict):
            found = _policy(Policies(window, integer_axis, greatest), group, tally, watermark)
        elif isinstance(window, Tumbling | Hopping | Cumulative):
            found = _fixed(window, Grid(window, integer_axis), group, tally, watermark if revise else closed, revise)
        else:
            found = _shaped(window, group, tally, watermark, closed, revise)
        for fired in found:
            yield Fired(key, fired.span, fired.trigger, fired.revision)


def _policy(policies: Policies, events: Sequence[Event], tally: Tally, watermark: float) -> Iterator[Fired]:
    for event in events:
        yield from policies.advance(event.watermark)
        if policies.late(event):
            tally.refused.add(event.number)
        else:
            tally.counted.add(event.number)
            policies.wait(event)
    yield from policies.advance(watermark)


def _fixed(
    window: Tumbling | Hopping | Cumulative, grid: Grid, events: Sequence[Event], tally: Tally, passed: float, revise: bool
) -> Iterator[Fired]:
    held: dict[tuple[int, int], list[Event]] = {}
    counted = []
    for event in events:
        check_lasting(window, event.stop - event.time)
        spans = list(grid.holding(event.time, event.stop))
        taking = [span for span in spans if span[1] > event.closed]
        for span in taking:
            held.setdefault(span, []).append(event)
        if taking:
            tally.counted.add(event.number)
        elif spans:  # an event in a gap belongs to no window here, which is neither being counted nor being late
            tally.refused.add(event.number)
        counted += [event] * bool(taking)
    if window.empty == "emit" and counted:
        first, last = min(event.time for event in counted), max(event.stop for event in counted)
        through = int(max(first, min(last, passed)))
        check_key(window, windows_of_event(window, max(1, through - first)))
        for span in grid.holding(first, through):
            held.setdefault(span, [])
    for (start, end), inside in held.items():
        if end <= passed:
            for revision, version in enumerate(_versions(window, start, end, inside, counted) if revise else [inside]):
                yield Fired((), Span(start, end, version), None, revision)


def _versions(window: Window, start: int, end: int, inside: list[Event], counted: list[Event]) -> list[list[Event]]:
    """The window when the watermark passed its end, and again after each event that came later."""
    on_time = [event for event in inside if event.watermark < end]
    late = [event for event in inside if event.watermark >= end]
    before = [event for event in counted if not late or event.number < late[0].number]
    around = any(event.time < end for event in before) and any(event.stop > start for event in before)
    shown = [on_time] if on_time or (window.empty == "emit" and around) else []
    return shown + [on_time + late[: count + 1] for count in range(len(late))]


def _shaped(window: Window, events: Sequence[Event], tally: Tally, watermark: float, closed: float, revise: bool) -> Iterator[Fired]:
    shape = SHAPES[type(window)](window)
    shown: list[Fired] = []  # result rows whose windows still take events

    def show(passed: float) -> Iterator[Fired]:
        complete = [span for span in shape.spans() if shape.complete(span, passed)]
        for span in complete:
            earlier = [fired for fired in shown if shape.replaces(span, fired.span)]
            if not any(_same(span, fired.span) for fired in earlier):
                fired = Fired((), span, None, 1 + max((fired.revision for fired in earlier), default=-1))
                shown.append(fired)
                yield fired

    def settle(passed: float, through: float) -> Iterator[Fired]:
        if revise:
            yield from show(passed)
        for span in shape.close(through):
            if revise:
                shown[:] = [fired for fired in shown if not _same(span, fired.span)]
            else:
                yield Fired((), span)

    for event in events:
        yield from settle(event.watermark, event.closed)
        (tally.counted if shape.accept(event) else tally.refused).add(event.number)
    yield from settle(watermark, closed)


def _same(one: Span, other: Span) -> bool:
    return (one.start, one.end, {event.number for event in one.events}) == (
        other.start,
        other.end,
        {event.number for event in other.events},
    )
