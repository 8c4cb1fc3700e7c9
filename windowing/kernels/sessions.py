"""Sessions, key by key: rows at most a gap apart share one, as far as they had arrived before it was closed.

A row at the end of a session, a gap after its last row, still joins it: the session is closed only past that. One that its greatest
size has cut takes nothing at its end.

A row that comes after windows had been closed past its time (a *suspect*) is judged by what the key held when it arrived. Any other
row joins no closed session, so it needs no replay of the arrivals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit

AFTER = np.iinfo(np.int64).max


@njit
def suspects_of(first: int, last: int, suspect: Bools, number: Ints) -> Any:
    """The suspects among rows ``first:last`` in the order of their arrival."""
    count = 0
    for row in range(first, last):
        count += 1 if suspect[row] else 0
    rows, arrival = np.empty(count, np.int64), np.empty(count, np.int64)
    count = 0
    for row in range(first, last):
        if suspect[row]:
            rows[count], arrival[count] = row, number[row]
            count += 1
    return rows[np.argsort(arrival)]


@njit
def sessions(
    gap: int,
    longest: int,
    offsets: Ints,
    time: Ints,
    until: Ints,
    number: Ints,
    marks: Ints,
    suspect: Bools,
    live: Bools,
    accepted: Bools,
    through: int,
) -> Any:
    """Judge the suspects, and give the sessions that are closed when the watermark, less the lateness, is ``through``.

    Parameters
    ----------
    longest
        A session is cut where a row is that much after its first; ``AFTER`` for never.
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
    owner = np.full(len(time), -1, np.int64)
    out_key, out_start, out_end = np.empty(len(time), np.int64), np.empty(len(time), np.int64), np.empty(len(time), np.int64)
    count = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        for row in suspects_of(first, last, suspect, number):
            before = number[row]
            count = _close(
                gap, longest, first, last, time, until, number, before, live, marks[row], key, owner, out_key, out_start, out_end, count
            )
            live[row] = True
            live[row] = accepted[row] = _closes_with(gap, longest, first, last, time, until, number, live, row) > marks[row]
        count = _close(gap, longest, first, last, time, until, number, AFTER, live, through, key, owner, out_key, out_start, out_end, count)
    return owner, out_key[:count], out_start[:count], out_end[:count]


@njit
def _closes_at(start: int, reach: int, gap: int, longest: int) -> Any:
    """The instant from which on no row joins the session from ``start`` whose rows reach to ``reach``."""
    return min(reach + gap + 1, start + longest if longest < AFTER else AFTER)


@njit
def _closes_with(gap: int, longest: int, first: int, last: int, time: Ints, until: Ints, number: Ints, live: Bools, row: int) -> Any:
    """When the session closes that holds ``row``, among the live rows that had arrived with it."""
    start, reach, begun = 0, 0, False
    for other in range(first, last):
        if live[other] and number[other] <= number[row]:
            if begun and time[other] - reach <= gap and time[other] - start < longest:
                reach = max(reach, until[other])
            elif other > row:
                break
            else:
                start, reach, begun = time[other], until[other], True
    return _closes_at(start, reach, gap, longest)


@njit
def _close(
    gap: int,
    longest: int,
    first: int,
    last: int,
    time: Ints,
    until: Ints,
    number: Ints,
    before: int,
    live: Bools,
    through: int,
    key: int,
    owner: Ints,
    out_key: Ints,
    out_start: Ints,
    out_end: Ints,
    count: int,
) -> Any:
    """Take the sessions that are closed at ``through`` out of the live rows that arrived before ``before``."""
    row = first
    while row < last:
        if not live[row] or number[row] >= before:
            row += 1
            continue
        start, reach, stop = time[row], until[row], row
        while stop < last:
            if live[stop] and number[stop] < before:
                if time[stop] - reach > gap or time[stop] - start >= longest:
                    break
                reach = max(reach, until[stop])
            stop += 1
        if _closes_at(start, reach, gap, longest) > through:
            break
        out_key[count], out_start[count] = key, start
        out_end[count] = min(reach + gap, start + longest if longest < AFTER else AFTER)
        for member in range(row, stop):
            if live[member] and number[member] < before:
                owner[member], live[member] = count, False
        count += 1
        row = stop
    return count
