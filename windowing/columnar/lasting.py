"""Events that last, lifted into slices: each of its slices is told of an event in a partial of one of two families.

::

    slices       │   a   │   b   │   c   │   d   │
    an event         [---------------)
    begins in        a
    reaches into         b       c              where a window begins

A window [s, e) is made of the partials of the events that begin in its slices, and of those that reach into the slice at s. An event is
in exactly one of the two, so partials of windows are combined as those of points are.

An aggregate that weighs events by time counts an event in each slice that it overlaps, clipped to the slice: slices that it crosses have
partials of the first family in which it weighs something, and counts in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.axis import Edges, WindowGrid
from windowmill.windowing.bounds import check_lasting
from windowmill.windowing.columnar.log import UNTIL_OF
from windowmill.windowing.columnar.slices import CLOSED, TIME, closed_of, nulled
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.lift import WEIGHT, WHOLE
from windowmill.windowing.kernels.sliced import NEVER_CLOSED
from windowmill.windowing.slicing.crossings import Crossings

if TYPE_CHECKING:
    from windowmill.windowing.windows.base import Window

#: Number of partials of events that are lifted together; as many as rows of points.
_CHUNK_PARTIALS = 1_000_000


@dataclass(frozen=True)
class Lifted:
    """Rows to lift, one for each partial in which an event counts.

    Attributes
    ----------
    starts
        Start of the slice.
    reaching
        1 if the event reaches into the slice, 0 if it begins in it or crosses it.
    """

    rows: pa.Table
    starts: Ints
    reaching: Ints


@dataclass(frozen=True)
class Lasting:
    """Settings for lifting events that last; small and picklable.

    Attributes
    ----------
    starts
        Where windows begin.
    crossed
        Where slices begin, if an aggregate weighs events by time; null if none does.
    """

    windows: tuple[Window, ...]
    edges: Edges
    starts: Crossings
    crossed: Crossings | None

    @classmethod
    def of(cls, windows: Sequence[Window], grids: Sequence[WindowGrid], *, clips: bool) -> Lasting:
        """``clips`` is whether an aggregate weighs events by time."""
        edges = Edges.of(grids)
        return cls(tuple(windows), edges, Crossings.of_windows(grids), Crossings.of_edges(edges) if clips else None)

    def most_partials(self, rows: pa.Table) -> Ints:
        """Upper bound on the number of partials in which each event of ``rows`` counts.

        Raises
        ------
        LimitExceededError
            If an event is in too many windows.
        """
        time, stop = spans_of(rows)
        for window in self.windows if len(time) else ():
            check_lasting(window, int((stop - time).max()))
        partials = np.ones(len(time), np.int64)
        for each in self._crossings:
            partials += each.most_within(time, stop)
        return partials

    @property
    def _crossings(self) -> tuple[Crossings, ...]:
        return (self.starts,) if self.crossed is None else (self.starts, self.crossed)

    def chunks(self, rows: pa.Table) -> Iterator[pa.Table]:
        """``rows`` in pieces whose events have few partials, but for single events with many; raises as :meth:`most_partials`."""
        piece = np.cumsum(self.most_partials(rows)) // _CHUNK_PARTIALS
        bounds = [0, *(np.flatnonzero(piece[1:] != piece[:-1]) + 1).tolist(), len(piece)]
        for first, last in pairwise(bounds):
            yield rows.slice(first, last - first)

    def lift(self, rows: pa.Table) -> Lifted:
        """The partials of the events of ``rows``; those of one slice in the order of ``rows``. O(n log n) in partials."""
        time, stop = spans_of(rows)
        own = np.arange(len(time))
        reaches, into = self.starts.within(time, stop)
        crosses, at = (np.empty(0, np.int64),) * 2 if self.crossed is None else self.crossed.within(time, stop)
        of, starts = np.concatenate((own, crosses, reaches)), np.concatenate((self.edges.slice_starts(time), at, into))
        found = rows.take(pa.array(of))
        if CLOSED in found.column_names:
            closed = closed_of(found)
            # Windows that hold an instant at or after the mark end after it.
            closed[len(own) :][starts[len(own) :] >= closed[len(own) :]] = NEVER_CLOSED
            found = found.set_column(found.column_names.index(CLOSED), CLOSED, nulled(closed))
        if self.crossed is not None:
            weight = _clipped(time, stop, crosses, at)
            missing = np.arange(len(of)) >= len(weight)
            weight = np.append(weight, np.zeros(len(reaches), np.int64))
            whole = (np.arange(len(of)) < len(own)) | missing
            found = found.append_column(WHOLE, pa.array(whole)).append_column(WEIGHT, pa.array(weight, mask=missing))
        return Lifted(found, starts, np.repeat([0, 1], [len(of) - len(reaches), len(reaches)]))


def spans_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Start and end of each event as a half-open interval: a point lasts one tick."""
    time, until = (int64_of(rows.column(name).combine_chunks()) for name in (TIME, UNTIL_OF))
    return time, np.maximum(until, time + 1)


def _clipped(time: Ints, stop: Ints, crosses: Ints, at: Ints) -> Ints:
    """How long each event lasts in its first slice, then in each slice that it crosses, ``at`` of event ``crosses``."""
    n = len(time)
    last = np.append(crosses[1:] != crosses[:-1], True)[: len(crosses)]
    until = np.append(at[1:], 0)[: len(at)]
    until[last] = stop[crosses[last]]
    first = stop.copy()
    begins = np.append(True, crosses[1:] != crosses[:-1])[: len(crosses)]
    first[crosses[begins]] = at[begins]
    lengths = np.empty(n + len(at), np.int64)
    lengths[:n], lengths[n:] = first - time, until - at
    return lengths
