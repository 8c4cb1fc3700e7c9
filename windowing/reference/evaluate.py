"""From records to result rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windowmill.windowing.reference.events import AFTER, Clock, Course, Event, Fired, Record, Tally, arrivals, ranks
from windowmill.windowing.reference.values import compute
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import Window


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
    course = Course(pipeline.time.unit is not None, pipeline.emit == "revise", watermark, closed, clock.seen)
    for window in pipeline.windows:
        found = _windows(window, events, tally, course)
        rows.extend(_row(pipeline, window, fired) for fired in found)
    quarantined |= dict.fromkeys(tally.refused - tally.counted, "too_late")
    return Outcome(sorted(rows, key=lambda row: _position(pipeline, row)), sorted(quarantined.items()))


def _row(pipeline: Pipeline, window: Window, fired: Fired) -> dict[str, Any]:
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


def _windows(window: Window, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[Fired]:
    for key, group in _by_key(events):
        for fired in window.reference_rows(group, tally, course):
            yield Fired(key, fired.span, fired.trigger, fired.revision)
