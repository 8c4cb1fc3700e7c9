"""Events in order of arrival, each with the watermark at its arrival."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from windowmill.windowing.bounds import accepted_times

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Watermark before the first event, and after the end of the input.
BEFORE, AFTER = -math.inf, math.inf


@dataclass(frozen=True, slots=True)
class Record:
    """A row of a source."""

    #: Values by column; time columns as integers on the axis (UTC microseconds, or units of an integer axis).
    values: Mapping[str, Any]
    #: Texts of the spec's conditions (``where``, ``punctuation``) that hold for the row.
    holds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A record with a usable event time."""

    #: Position among the records, from 0, and number of the commit.
    number: int
    commit: int
    key: tuple[Any, ...]
    #: Start and end of the event on the axis; equal for a point event.
    time: int
    until: int
    #: (time, tie_break…, number): the total order of events.
    order: tuple[Any, ...]
    #: The watermark at the event's arrival, without its own time, and the instant through which windows were closed then. Windows that end
    #: at or before ``watermark`` were complete; windows that end at or before ``closed`` (``lateness`` behind it) took no more events.
    watermark: float
    closed: float
    record: Record = field(repr=False)

    @property
    def stop(self) -> int:
        """End of the event as a half-open interval; a point event lasts one tick."""
        return max(self.until, self.time + 1)


@dataclass(frozen=True, slots=True)
class EventWindow:
    """A window of one key with its events."""

    start: int | None
    end: int
    events: Sequence[Event]

    def in_order(self) -> EventWindow:
        """The same window with its events in order of time, tie-break and arrival."""
        return EventWindow(self.start, self.end, sorted(self.events, key=lambda event: event.order))


@dataclass(frozen=True, slots=True)
class WindowResult:
    """A result row before its aggregates are computed."""

    key: tuple[Any, ...]
    span: EventWindow
    trigger: int | None = None
    revision: int = 0
    retracted: bool = False


@dataclass(slots=True)
class Tally:
    """Numbers of the events that the windows of one name have counted, of those that they refused as late, and of those that did both.

    An event of ``partly`` is counted, but not by a window that holds it and was closed when it arrived.
    """

    counted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    partly: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Course:
    """Facts about the pipeline and the whole input that windows of every type use."""

    #: Whether the axis holds integers rather than instants, and whether windows are emitted again after late events.
    integer_axis: bool
    revise: bool
    #: The watermark at the end of the input, and the instant through which windows are closed then.
    watermark: float
    closed: float
    #: Greatest event time of the whole input.
    greatest: float


def arriving_together(events: Sequence[Event]) -> Iterator[list[Event]]:
    """The ``events``, which are in order of arrival, in lists of those that arrived together."""
    return (list(together) for _, together in groupby(events, key=lambda event: event.commit))


def rank(value: Any) -> tuple[Any, ...]:
    """A sort key for values of one column, as in Spark: nulls first, NaN greatest, −0.0 equal to 0.0.

    >>> sorted([float("nan"), 1.0, None], key=rank)
    [None, 1.0, nan]
    """
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


def ranks(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(rank, values))


class EventClock:
    """The watermark while events arrive."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._moves = pipeline.time.watermark == "max_event_time"
        self._disorder = pipeline.time.disorder.elapsed()
        self._lateness = pipeline.time.lateness.elapsed()
        self.seen: float = BEFORE

    @property
    def watermark(self) -> float:
        # If the orchestrator asserts intervals, events alone complete no window.
        return self.seen - self._disorder if self._moves else BEFORE

    @property
    def closed(self) -> float:
        return self.watermark - self._lateness


def arrivals(
    pipeline: Pipeline, records: Sequence[Record], commits: Sequence[int], latest: float, refused: dict[int, str]
) -> Iterator[Event | EventClock]:
    """Yield the events among ``records`` in order of arrival, then the clock after the last one.

    Parameters
    ----------
    commits
        Number of each record's commit, ascending. The records of a commit arrive together.
    latest
        Greatest accepted event time; infinity for no bound.
    refused
        Receives the reason of each record that is not an event, by its number.
    """
    clock, seen, last_commit = EventClock(pipeline), BEFORE, -1
    least, greatest = accepted_times(pipeline)
    time, until = pipeline.time.column, pipeline.time.end
    for number, (record, commit) in enumerate(zip(records, commits, strict=True)):
        if commit != last_commit:
            last_commit, clock.seen = commit, seen
        at = record.values.get(time)
        to = record.values.get(until) if until else at
        if at is None or to is None:
            refused[number] = "null_time"
            continue
        at, to = at * pipeline.time.tick_us, to * pipeline.time.tick_us
        if not (least <= at <= greatest and least <= to <= greatest):
            refused[number] = "time_out_of_range"
        elif to < at:
            refused[number] = "end_before_time"
        elif at > latest:
            refused[number] = "future_time"
        else:
            # Adding 0.0 turns −0.0 into 0.0: equal keys are one group.
            key = tuple(value + 0.0 if isinstance(value, float) else value for value in (record.values.get(name) for name in pipeline.keys))
            ties = [record.values.get(name) for name in pipeline.time.tie_break]
            yield Event(number, commit, key, at, to, (at, *ranks(ties), number), clock.watermark, clock.closed, record)
            seen = max(seen, at)
    clock.seen = seen
    yield clock
