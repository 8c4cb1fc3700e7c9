"""Sessions, key by key: rows at most a gap apart share one, as far as they had arrived before it was closed.

A row at the end of a session, a gap after its last row, still joins it: the session is closed only past that. One that its greatest
size has cut takes nothing at its end.

A row that comes after windows had been closed past its time (a *suspect*) is judged by what the key held when it arrived. Any other
row joins no closed session, so it needs no replay of the arrivals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, inner, njit
from windowmill.windowing.kernels.rows import Rows, suspects_of

AFTER = np.iinfo(np.int64).max


class Limits(NamedTuple):
    """What ends a session, in ticks of the axis.

    Attributes
    ----------
    gap
        The longest pause between two rows of a session.
    longest
        A session is cut where a row is that much after its first; ``AFTER`` for never.
    """

    gap: int
    longest: int


class Closed(NamedTuple):
    """Closed sessions; their number is told apart.

    Attributes
    ----------
    owner
        Session of each row, or −1; shape (n_rows,).
    key, start, end
        Of each session; shape (n_rows,), the most sessions that there can be.
    """

    owner: Ints
    key: Ints
    start: Ints
    end: Ints


@njit
def sessions(gap: int, longest: int, rows: Rows, marks: Ints, suspect: Bools, live: Bools, accepted: Bools, through: int) -> Any:
    """Judge the suspects, and give the sessions that are closed when the watermark, less the lateness, is ``through``.

    Parameters
    ----------
    gap, longest
        As of :class:`Limits`.
    rows
        A point stops where it starts.
    marks
        Through where windows had been closed when each row arrived.
    live
        Rows in sessions not yet closed; the new ones among them that are no suspects. Changed to what is live afterwards.
    accepted
        Set for suspects that are taken in.

    Returns
    -------
    tuple
        Session of each row, or −1; key, start and end of each session.
    """
    limits, n, count = Limits(gap, longest), len(rows.time), 0
    closed = Closed(np.full(n, -1, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))
    for key in range(len(rows.offsets) - 1):
        first, last = rows.offsets[key], rows.offsets[key + 1]
        for row in suspects_of(first, last, suspect, rows.number):
            count = _close(limits, rows, key, rows.number[row], live, marks[row], closed, count)
            live[row] = True
            live[row] = accepted[row] = _closes_with(limits, rows, first, last, live, row) > marks[row]
        count = _close(limits, rows, key, AFTER, live, through, closed, count)
    return closed.owner, closed.key[:count], closed.start[:count], closed.end[:count]


@inner
def _closes_at(start: int, reach: int, limits: Limits) -> Any:
    """The instant from which on no row joins the session from ``start`` whose rows reach to ``reach``."""
    gap, longest = limits
    return min(reach + gap + 1, start + longest if longest < AFTER else AFTER)


@inner
def _closes_with(limits: Limits, rows: Rows, first: int, last: int, live: Bools, row: int) -> Any:
    """When the session closes that holds ``row``, among the live rows that had arrived with it."""
    start, reach, begun = 0, 0, False
    for other in range(first, last):
        if live[other] and rows.number[other] <= rows.number[row]:
            if begun and rows.time[other] - reach <= limits.gap and rows.time[other] - start < limits.longest:
                reach = max(reach, rows.stop[other])
            elif other > row:
                break
            else:
                start, reach, begun = rows.time[other], rows.stop[other], True
    return _closes_at(start, reach, limits)


@inner
def _close(limits: Limits, rows: Rows, key: int, before: int, live: Bools, through: int, closed: Closed, count: int) -> Any:
    """Take the sessions that are closed at ``through`` out of the live rows that arrived before ``before``; how many there are then."""
    time, number = rows.time, rows.number
    row, last = rows.offsets[key], rows.offsets[key + 1]
    while row < last:
        if not live[row] or number[row] >= before:
            row += 1
            continue
        start, reach, stop = time[row], rows.stop[row], row
        while stop < last:
            if live[stop] and number[stop] < before:
                if time[stop] - reach > limits.gap or time[stop] - start >= limits.longest:
                    break
                reach = max(reach, rows.stop[stop])
            stop += 1
        if _closes_at(start, reach, limits) > through:
            break
        closed.key[count], closed.start[count] = key, start
        closed.end[count] = min(reach + limits.gap, start + limits.longest if limits.longest < AFTER else AFTER)
        for member in range(row, stop):
            if live[member] and number[member] < before:
                closed.owner[member], live[member] = count, False
        count += 1
        row = stop
    return count
