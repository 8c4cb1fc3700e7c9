"""Sessions, key by key: rows at most a gap apart share a session if they arrived before it was closed.

A row exactly at the end of a session, a gap after its last row, still joins it; the session closes after that instant. A session that is
split at its greatest size takes no row at its end.

A row whose time lies in closed windows at its arrival (a *suspect*) is judged by the rows that the key held then, and by those that
arrived with it. Other rows join no closed session, so their arrivals need no replay.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import inner, njit
from windowmill.windowing.kernels.rows import Rows, suspects_of
from windowmill.windowing.watermark import AFTER


class SessionLimits(NamedTuple):
    """Limits of a session, in ticks of the axis.

    Attributes
    ----------
    gap
        Longest pause between two rows of a session.
    longest
        A session is split at a row that begins this long after its first row; ``AFTER`` for never.
    """

    gap: int
    longest: int


class ClosedSessions(NamedTuple):
    """Closed sessions; functions pass their number separately.

    Attributes
    ----------
    owner
        Session of each row, or −1; shape (n_rows,).
    key, start, end
        Columns of sessions; shapes (n_rows,), the greatest possible number of sessions.
    """

    owner: Ints
    key: Ints
    start: Ints
    end: Ints


@njit
def sessions(gap: int, longest: int, rows: Rows, marks: Ints, suspect: Bools, live: Bools, accepted: Bools, through: int) -> Any:
    """Judge the suspects, and find the sessions that are closed at ``through``, the watermark minus the lateness.

    O(n(1 + s)) for a key with n rows, s of them suspects.

    Parameters
    ----------
    gap, longest
        As in :class:`SessionLimits`.
    rows
        The rows, by key and start; a point has equal time and stop.
    marks
        Instant through which windows were closed at each row's arrival; shape (n_rows,).
    suspect
        Mask of the rows that begin before that instant.
    live
        Mask of rows in open sessions, including new rows that are not suspects. Updated in place.
    accepted
        Mask of accepted suspects; the kernel sets it.

    Returns
    -------
    tuple
        Session of each row, or −1, shape (n_rows,); key, start and end of each session, shapes (n_sessions,).
    """
    limits, n, count = SessionLimits(gap, longest), len(rows.time), 0
    closed = ClosedSessions(np.full(n, -1, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64))
    for key in range(len(rows.offsets) - 1):
        first, last = rows.offsets[key], rows.offsets[key + 1]
        # A row that joins others to an open session is there before them.
        for row in suspects_of(first, last, suspect, rows.moment, True):
            count = _close(limits, rows, key, rows.moment[row], live, marks[row], closed, count)
            live[row] = True
            live[row] = accepted[row] = _closes_with(limits, rows, first, last, live, row) > marks[row]
        count = _close(limits, rows, key, AFTER, live, through, closed, count)
    return closed.owner, closed.key[:count], closed.start[:count], closed.end[:count]


@inner
def _closes_at(start: int, reach: int, limits: SessionLimits) -> Any:
    """The first instant at which no row can join the session from ``start`` whose rows end at ``reach``."""
    gap, longest = limits
    return min(reach + gap + 1, start + longest if longest < AFTER else AFTER)


@inner
def _closes_with(limits: SessionLimits, rows: Rows, first: int, last: int, live: Bools, row: int) -> Any:
    """The closing instant of the session of ``row``, over the live rows that had arrived by then."""
    start, reach, begun = 0, 0, False
    for other in range(first, last):
        if live[other] and rows.moment[other] <= rows.moment[row]:
            if begun and rows.time[other] - reach <= limits.gap and rows.time[other] - start < limits.longest:
                reach = max(reach, rows.stop[other])
            elif other > row:
                break
            else:
                start, reach, begun = rows.time[other], rows.stop[other], True
    return _closes_at(start, reach, limits)


@inner
def _close(limits: SessionLimits, rows: Rows, key: int, before: int, live: Bools, through: int, closed: ClosedSessions, count: int) -> Any:
    """Remove the sessions closed at ``through`` from the live rows that arrived before ``before``; returns the new number of sessions."""
    time, moment = rows.time, rows.moment
    row, last = rows.offsets[key], rows.offsets[key + 1]
    while row < last:
        if not live[row] or moment[row] >= before:
            row += 1
            continue
        start, reach, stop = time[row], rows.stop[row], row
        while stop < last:
            if live[stop] and moment[stop] < before:
                if time[stop] - reach > limits.gap or time[stop] - start >= limits.longest:
                    break
                reach = max(reach, rows.stop[stop])
            stop += 1
        if _closes_at(start, reach, limits) > through:
            break
        closed.key[count], closed.start[count] = key, start
        closed.end[count] = min(reach + limits.gap, start + limits.longest if limits.longest < AFTER else AFTER)
        for member in range(row, stop):
            if live[member] and moment[member] < before:
                closed.owner[member], live[member] = count, False
        count += 1
        row = stop
    return count
