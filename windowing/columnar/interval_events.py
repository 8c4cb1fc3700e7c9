"""Lifts interval events into slices: an event has partials of one family in the slice where it begins, of another where windows begin.

::

    slices       │   a   │   b   │   c   │   d   │
    an event         [---------------)
    begins in        a
    reaches into         b       c              where a window begins

A window [s, e) is made of the partials of the events that begin in its slices, and of those of the events that reach into the slice at s.
An event is in exactly one of the two, so partials are combined into windows as those of points are.

An aggregate that weighs events by time counts an event in each slice that it overlaps, clipped to the slice. So each slice that an event
crosses has a partial of the first family, which has the event's weight there and counts it in no other aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.bounds import check_duration
from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, TIME, UNTIL_OF
from windowmill.windowing.columnar.slice_partials import marks_of, nulled
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import WEIGHT, WHOLE, int64_of
from windowmill.windowing.slicing.edges import Edges, WindowGrid, each_of
from windowmill.windowing.watermark import BEFORE

if TYPE_CHECKING:
    from windowmill.windowing.slicing.calendars import CalendarGrid
    from windowmill.windowing.windows.base import Window


@dataclass(frozen=True)
class Crossings:
    """The edges of some grids, or the starts of their windows alone."""

    sequences: tuple[tuple[int, int], ...]  #: Sequences of instants phase + k·period, as (period, phase).
    listed: tuple[CalendarGrid, ...]  #: Grids whose instants are no such sequences.
    of_starts: bool  #: Whether of these grids only the starts of windows count.

    @classmethod
    def of_edges(cls, edges: Edges) -> Self:
        return cls(edges.sequences, edges.listed, of_starts=False)

    @classmethod
    def of_windows(cls, grids: Sequence[WindowGrid]) -> Self:
        """The instants at which windows of ``grids`` begin."""
        sequences = {sequence for grid in grids if (sequence := grid.start_sequence) is not None}
        return cls(tuple(sorted(sequences)), tuple(dict.fromkeys(grid.listed for grid in grids if grid.listed is not None)), of_starts=True)

    def most_within(self, time: Ints, stop: Ints) -> Ints:
        """Upper bound on the number of instants within each span (time, stop); shape (n_spans,)."""
        return np.asarray(np.sum([count for _, _, count in self._runs(time, stop)], axis=0, dtype=np.int64))

    def within(self, time: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The instants within each span (time, stop), without its ends: index of the span, instant; ascending. Each pair once."""
        spans, instants = [], []
        for instant_at, first, count in self._runs(time, stop):
            span, nth = each_of(count)
            spans.append(span)
            instants.append(instant_at(first[span] + nth))
        span, instant = np.concatenate(spans), np.concatenate(instants)
        if len(spans) == 1:
            return span, instant
        order = np.lexsort((instant, span))
        span, instant = span[order], instant[order]
        new = np.append(True, (span[1:] != span[:-1]) | (instant[1:] != instant[:-1]))[: len(span)]
        return span[new], instant[new]

    def _runs(self, time: Ints, stop: Ints) -> Iterator[tuple[Callable[[Ints], Ints], Ints, Ints]]:
        """For each sequence and list: its instants by place, the place of the first one within each span, and how many there are in it."""
        for period, phase in self.sequences:
            first = (time - phase) // period + 1
            count = np.maximum((stop - 1 - phase) // period - first + 1, 0)
            yield partial(_instant_of, period, phase), first, count
        for grid in self.listed:
            known = grid.starts_over(time, stop) if self.of_starts else grid.edges_over(time, stop)
            first = np.searchsorted(known, time, side="right")
            yield known.__getitem__, first, np.maximum(np.searchsorted(known, stop, side="left") - first, 0)


def _instant_of(period: int, phase: int, place: Ints) -> Ints:
    return phase + place * period


#: Number of partials of events that are lifted together; as many as rows of points.
_CHUNK_PARTIALS = 1_000_000


@dataclass(frozen=True)
class IntervalLifting:
    """Settings for lifting interval events; small and picklable."""

    windows: tuple[Window, ...]
    edges: Edges
    starts: Crossings  #: Where windows begin.
    crossed: Crossings | None  #: Where slices begin, if an aggregate weighs events by time; null if none does.

    @classmethod
    def of(cls, windows: Sequence[Window], grids: Sequence[WindowGrid], *, clips: bool) -> IntervalLifting:
        """``clips`` is whether an aggregate weighs events by time."""
        edges = Edges.of(grids)
        return cls(tuple(windows), edges, Crossings.of_windows(grids), Crossings.of_edges(edges) if clips else None)

    def most_partials(self, rows: pa.Table) -> Ints:
        """Upper bound on the number of partials in which each event of ``rows`` counts.

        Raises ``LimitExceededError`` if an event is in too many windows.
        """
        time, stop = spans_of(rows)
        for window in self.windows if len(time) else ():
            check_duration(window, int((stop - time).max()))
        partials = np.ones(len(time), np.int64)
        for each in (self.starts,) if self.crossed is None else (self.starts, self.crossed):
            partials += each.most_within(time, stop)
        return partials

    def chunks(self, rows: pa.Table) -> Iterator[pa.Table]:
        """``rows`` in pieces whose events have few partials, but for single events with many; raises as :meth:`most_partials`."""
        piece = np.cumsum(self.most_partials(rows)) // _CHUNK_PARTIALS
        bounds = [0, *(np.flatnonzero(piece[1:] != piece[:-1]) + 1).tolist(), len(piece)]
        for first, last in pairwise(bounds):
            yield rows.slice(first, last - first)

    def lift(self, rows: pa.Table) -> tuple[pa.Table, Ints, Ints, Ints]:
        """A row for each partial in which an event of ``rows`` counts; those of one slice in the order of ``rows``. O(n log n) in partials.

        First come the slices in which events begin, then those that they cross, then those into which they reach.

        Returns
        -------
        tuple
            The columns of the event, where an aggregate weighs by time also ``WEIGHT`` and ``WHOLE``; start of the slice; 1 if the event
            reaches into the slice, 0 if it begins in it or crosses it; of the partial of a late event where it begins, the start of the
            event's last partial, of others their own start.
        """
        time, stop = spans_of(rows)
        reaches, into = self.starts.within(time, stop)
        crosses, at = (np.empty(0, np.int64),) * 2 if self.crossed is None else self.crossed.within(time, stop)
        event = np.concatenate((np.arange(len(time)), crosses, reaches))
        starts = np.concatenate((self.edges.slice_starts(time), at, into))
        begins, reaching = np.arange(len(event)) < len(time), np.arange(len(event)) >= len(time) + len(crosses)
        found, reached = rows.take(pa.array(event)), starts.copy()
        if CLOSED in found.column_names:
            closed = marks_of(found, CLOSED)
            for instants, of in ((at, crosses), (into, reaches)):
                late = closed[of] != BEFORE
                np.maximum.at(reached, of[late], instants[late])
            # Windows that hold an instant at or after the mark end after it.
            in_time = (closed == BEFORE) | (~begins & (starts >= closed))
            found = _without_marks(found, closed, in_time)
        if self.crossed is not None:
            weight = np.append(_clipped(time, stop, crosses, at), np.zeros(len(reaches), np.int64))
            found = found.append_column(WHOLE, pa.array(begins | reaching)).append_column(WEIGHT, pa.array(weight, mask=reaching))
        return found, starts, reaching.astype(np.int64), reached


def _without_marks(rows: pa.Table, closed: Ints, in_time: Bools) -> pa.Table:
    """``rows`` with the marks ``closed``, but null for those ``in_time``: they bring no revisions either."""
    marks = {CLOSED: nulled(np.where(in_time, BEFORE, closed), BEFORE)}
    if ARRIVAL in rows.column_names:
        marks[ARRIVAL] = pc.if_else(pa.array(in_time), pa.scalar(None, pa.int64()), rows.column(ARRIVAL).combine_chunks())
    for name, column in marks.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def spans_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Start and end of each event as a half-open interval: a point lasts one tick."""
    time, until = (int64_of(rows.column(name).combine_chunks()) for name in (TIME, UNTIL_OF))
    return time, np.maximum(until, time + 1)


def _clipped(time: Ints, stop: Ints, crosses: Ints, at: Ints) -> Ints:
    """How long each event lasts in its first slice, then in each slice that it crosses: event ``crosses``, slice that starts ``at``."""
    other = crosses[1:] != crosses[:-1]
    first, last = (np.append(*ends)[: len(crosses)] for ends in ((True, other), (other, True)))
    # An event leaves its first slice where it first crosses into another, and each later slice where the next one starts.
    left_first, left = stop.copy(), np.append(at[1:], 0)[: len(at)]
    left_first[crosses[first]] = at[first]
    left[last] = stop[crosses[last]]
    return np.append(left_first - time, left - at)
