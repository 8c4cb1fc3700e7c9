"""The reference engine: the semantics of a pipeline in plain code that keeps every event and recomputes every window.

It is slow on purpose. It shares no code with the other engines, so that agreement with it is evidence. Events are judged
commit by commit in order of arrival, so no result depends on how the input is cut into batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.reference.aggregates import compute
from windowmill.windowing.reference.events import AFTER, BEFORE, Course, Event, EventClock, Record, Tally, WindowResult, arrivals, ranks
from windowmill.windowing.reference.windows import (
    CountWindows,
    Customs,
    EventWindows,
    SessionWindows,
    Snapshots,
    event_rows,
    grid_rows,
    policy_rows,
    without_duplicates,
)
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.windows.base import GridRules, PolicyRules, Window, rules_of
from windowmill.windowing.windows.types import Count, Custom, PluginWindow, Session, Snapshot

__all__ = ["Evaluation", "Record", "WindowResult", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of a whole input."""

    #: Result rows in (key, window, window_end, trigger, revision, window_start) order, nulls first.
    rows: list[dict[str, Any]]
    #: Pairs (number of the record, reason), in order of number.
    quarantined: list[tuple[int, str]]
    #: By window name, the number of events that came too late for a window that holds them; without names that no event missed.
    missed: dict[str, int]


def evaluate(
    pipeline: Pipeline,
    records: Sequence[Record],
    *,
    commits: Sequence[int] | None = None,
    final: bool = True,
    latest: float = math.inf,
    greatest: float = BEFORE,
    wanted: Callable[[Window, WindowResult], bool] = lambda _window, _fired: True,
) -> Evaluation:
    """Evaluate ``pipeline`` over ``records``, given in order of arrival.

    Parameters
    ----------
    commits
        Number of each record's commit, ascending; each record is a commit unless given.
    final
        Whether the input has ended; the watermark is then infinite.
    latest
        Greatest accepted event time; infinity for no bound.
    greatest
        Greatest event time of the whole input, if not all of it is among ``records``.
    wanted
        Whether the aggregates of a window's result are computed; the rows of all others are left out.
    """
    quarantined: dict[int, str] = {}
    events: list[Event] = []
    clock = EventClock(pipeline)
    for arrival in arrivals(pipeline, records, range(len(records)) if commits is None else commits, latest, quarantined):
        if isinstance(arrival, EventClock):
            clock = arrival
        else:
            events.append(arrival)
    events = without_duplicates(pipeline, events)
    watermark, closed = (AFTER, AFTER) if final else (clock.watermark, clock.closed)
    rows: list[dict[str, Any]] = []
    counted, refused, missed = set[int](), set[int](), dict[str, int]()
    course = Course(pipeline.time.integer_axis, pipeline.emit == "revise", watermark, closed, max(clock.seen, greatest))
    for window in pipeline.windows:
        tally = Tally()
        results = _windows(window, events, tally, course)
        rows.extend(_row(pipeline, window, fired) for fired in results if wanted(window, fired))
        counted, refused = counted | tally.counted, refused | tally.refused
        if late := tally.refused | tally.partly:
            missed[window.name] = len(late)
    quarantined |= dict.fromkeys(refused - counted, "too_late")
    order = (*pipeline.keys, "window", "window_end", "trigger", "revision", "window_start")
    return Evaluation(sorted(rows, key=lambda row: ranks([row[name] for name in order])), sorted(quarantined.items()), missed)


def _row(pipeline: Pipeline, window: Window, fired: WindowResult) -> dict[str, Any]:
    span = fired.span
    identity = {
        "window": window.name,
        "window_start": span.start,
        "window_end": span.end,
        "trigger": fired.trigger,
        "revision": fired.revision,
    }
    aggregates = pipeline.over_rows().aggregates
    values = {name: None if fired.retracted else compute(name, spec, span) for name, spec in aggregates.items()}
    revised = {"retracted": fired.retracted} if pipeline.emit == "revise" else {}
    return dict(zip(pipeline.keys, fired.key, strict=True)) | identity | values | revised


def rows_of(window: Window, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    """The result rows of all ``events`` of one key, which are in the order of arrival, before their aggregates are computed.

    ``tally`` receives the numbers of the events that were counted and of those refused as late.
    """
    rules = rules_of(window)
    if isinstance(rules, GridRules):
        return grid_rows(window, rules, events, tally, course)
    if isinstance(rules, PolicyRules):
        return policy_rows(window, rules, events, tally, course)
    match window:
        case PluginWindow():
            return window.reference_rows(events, tally, course)
        case Session():
            windows: EventWindows = SessionWindows(window)
        case Snapshot():
            windows = Snapshots()
        case Count():
            windows = CountWindows(window)
        case Custom():
            windows = Customs(window)
        case _:
            raise UnsupportedError(f"window {window.name}: the reference engine has no {window.type} windows")
    return event_rows(windows, events, tally, course)


def _windows(window: Window, events: Sequence[Event], tally: Tally, course: Course) -> Iterator[WindowResult]:
    groups: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        groups.setdefault(ranks(event.key), []).append(event)
    for group in groups.values():
        for fired in rows_of(window, group, tally, course):
            yield replace(fired, key=group[0].key)
