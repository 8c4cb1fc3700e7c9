"""Events in the order of their arrival, each with the watermark it met."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windowmill.windowing.bounds import accepted_times

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Before anything has been seen, and after the end of the input.
BEFORE, AFTER = -math.inf, math.inf


@dataclass(frozen=True, slots=True)
class Record:
    """A row as a source gives it.

    Attributes
    ----------
    values
        Cells by column; the time columns as integers along the axis (UTC microseconds, or the axis' own units).
    holds
        The conditions of the spec (``where``, ``punctuation``) that hold for the row, by their text.
    """

    values: Mapping[str, Any]
    holds: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A record that has a place in time.

    Attributes
    ----------
    number
        Position among the records, from 0.
    time, until
        Start and end of the event along the axis; equal for a point.
    order
        (time, tie_break…, number): the total order of events.
    watermark, closed
        What they were when the event arrived, its own time left out: windows that end at or before ``watermark`` were complete, those
        that end at or before ``closed`` (``lateness`` behind the watermark) took no more events.
    """

    number: int
    key: tuple[Any, ...]
    time: int
    until: int
    order: tuple[Any, ...]
    watermark: float
    closed: float
    record: Record = field(repr=False)

    @property
    def stop(self) -> int:
        """Where the event ends as a half-open interval: a point lasts one tick."""
        return max(self.until, self.time + 1)


@dataclass(frozen=True, slots=True)
class Span:
    """A window of one key and the events it holds."""

    start: int | None
    end: int
    events: Sequence[Event]

    def in_order(self) -> Span:
        """The same with its events in the order of time, tie-break and arrival."""
        return Span(self.start, self.end, sorted(self.events, key=lambda event: event.order))


@dataclass(frozen=True, slots=True)
class Fired:
    """A result row before its aggregates are computed."""

    key: tuple[Any, ...]
    span: Span
    trigger: int | None = None
    revision: int = 0


@dataclass(slots=True)
class Tally:
    """Which events a window has counted and which it has refused as late, by number."""

    counted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Course:
    """What windows of any type have to know of the pipeline and of the whole input.

    Attributes
    ----------
    integer_axis, revise
        Whether the axis is no time, and whether windows are shown again for late events.
    watermark, closed
        What they are at the end of the input.
    greatest
        The greatest event time of the whole input.
    """

    integer_axis: bool
    revise: bool
    watermark: float
    closed: float
    greatest: float


def rank(value: Any) -> tuple[Any, ...]:
    """A sort key within one column: nulls first, NaN the greatest, −0.0 equal to 0.0, as in Spark."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


def ranks(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(rank, values))


class Clock:
    """The watermark as events arrive one by one."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._moves = pipeline.time.watermark == "max_event_time"
        self._disorder = pipeline.time.disorder.elapsed()
        self._lateness = pipeline.time.lateness.elapsed()
        self.seen: float = BEFORE

    @property
    def watermark(self) -> float:
        # Where the orchestrator vouches for an interval, events alone complete no window.
        return self.seen - self._disorder if self._moves else BEFORE

    @property
    def closed(self) -> float:
        return self.watermark - self._lateness


def arrivals(pipeline: Pipeline, records: Sequence[Record], latest: float, refused: dict[int, str]) -> Iterator[Event | Clock]:
    """The events among ``records`` in the order of arrival, then the clock as they left it.

    Parameters
    ----------
    latest
        The greatest event time that is not too far in the future.
    refused
        Receives the reason of each record that is no event, by its number.
    """
    clock = Clock(pipeline)
    least, greatest = accepted_times(pipeline)
    time, until = pipeline.time.column, pipeline.time.end
    for number, record in enumerate(records):
        at = record.values.get(time)
        to = record.values.get(until) if until else at
        if at is None or to is None:
            refused[number] = "null_time"
        elif not (least <= at <= greatest and least <= to <= greatest):
            refused[number] = "time_out_of_range"
        elif to < at:
            refused[number] = "end_before_time"
        elif at > latest:
            refused[number] = "future_time"
        else:
            # Equal keys are one group: NaN with NaN, −0.0 with 0.0.
            key = tuple(value + 0.0 if isinstance(value, float) else value for value in (record.values.get(name) for name in pipeline.keys))
            ties = [record.values.get(name) for name in pipeline.time.tie_break]
            yield Event(number, key, at, to, (at, *ranks(ties), number), clock.watermark, clock.closed, record)
            clock.seen = max(clock.seen, at)
    yield clock
