"""Count windows, key by key: from each distinct start time to the N-th from it, one tick past that.

Start times of windows already closed are past: a row that comes later begins windows, and belongs to windows, only beyond them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Ints, njit
from windowmill.windowing.kernels.sessions import AFTER, suspects_of

BEFORE = np.iinfo(np.int64).min


@njit
def _starts(first: int, last: int, time: Ints, number: Ints, held: Bools, before: int, begun: int) -> Any:
    """Distinct start times after ``begun`` of the rows that arrived before ``before``, ascending."""
    found = np.empty(last - first, np.int64)
    n = 0
    for row in range(first, last):
        if held[row] and number[row] < before and time[row] > begun and (n == 0 or found[n - 1] != time[row]):
            found[n] = time[row]
            n += 1
    return found[:n]


@njit
def _grown(array: Ints, needed: int) -> Any:
    if needed <= len(array):
        return array
    larger = np.empty(2 * needed, np.int64)
    larger[: len(array)] = array
    return larger


@njit
def counts(  # noqa: PLR0915 - judging and cutting take turns in the order of arrival
    size: int,
    offsets: Ints,
    time: Ints,
    stop: Ints,
    number: Ints,
    marks: Ints,
    suspect: Bools,
    held: Bools,
    accepted: Bools,
    begun: Ints,
    middle_end: Ints,
    through: int,
    intervals: bool,
) -> Any:
    """Judge the suspects, and give the windows that have ended by ``through``.

    A suspect that is taken in changes the sequence of rows, so windows from then on form another group with a front of its own.

    Parameters
    ----------
    size
        Start times a window.
    marks, suspect, accepted
        As of :func:`windowmill.windowing.kernels.sessions.sessions`.
    held
        Accepted rows; the suspects taken in are added.
    begun, middle_end
        Start of the last closed window of each key, moved on; end of the window at which its front was made, ``BEFORE`` if none is.
    intervals
        Whether rows last, so that windows are lists of rows and not ranges.

    Returns
    -------
    tuple
        Key, group, start, end, lo and hi of each window, as ranges of the sequence that follows; where its listed rows begin, and
        those; of each group where its front ended before, and whether it is the last state of its key.
    """
    out, sequence = np.empty((16, 6), np.int64), np.empty(16, np.int64)
    member_offsets, members = np.zeros(17, np.int64), np.empty(16, np.int64)
    middles, lasting = np.empty(16, np.int64), np.empty(16, np.int64)
    count = listed = length = groups = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        behind = suspects_of(first, last, suspect, number)
        group = -1
        begin = lo = hi = length
        for turn in range(len(behind) + 1):
            closed = marks[behind[turn]] if turn < len(behind) else through
            # Of rows yet to arrive only suspects could lie in what is closed now, and those are not held yet.
            starts = _starts(first, last, time, number, held, AFTER, begun[key])
            for place in range(len(starts) - size + 1):
                start, end = starts[place], starts[place + size - 1] + 1
                if end > closed:
                    break
                if group < 0:
                    begin = lo = hi = length
                    sequence = _grown(sequence, length + last - first)
                    for row in range(first, last):
                        if held[row]:
                            sequence[length] = row
                            length += 1
                    middles, lasting = _grown(middles, groups + 1), _grown(lasting, groups + 1)
                    middles[groups], lasting[groups] = -1, 1
                    group = groups
                    groups += 1
                    if middle_end[key] > BEFORE:
                        middles[group] = begin
                        while middles[group] < length and time[sequence[middles[group]]] < middle_end[key]:
                            middles[group] += 1
                while hi < length and time[sequence[hi]] < end:
                    hi += 1
                while lo < hi and time[sequence[lo]] < start:
                    lo += 1
                if count == len(out):
                    larger = np.empty((2 * count, 6), np.int64)
                    larger[:count] = out
                    out = larger
                member_offsets = _grown(member_offsets, count + 2)
                out[count, 0], out[count, 1], out[count, 2], out[count, 3] = key, group, start, end
                out[count, 4], out[count, 5] = (0, 0) if intervals else (lo, hi)
                if intervals:
                    members = _grown(members, listed + hi - begin)
                    for at in range(begin, hi):
                        if stop[sequence[at]] > start:
                            members[listed] = sequence[at]
                            listed += 1
                count += 1
                member_offsets[count] = listed
                begun[key] = start
            if turn < len(behind):
                row = behind[turn]
                held[row] = True
                held[row] = accepted[row] = _open(size, first, last, time, stop, number, held, row, begun[key], closed)
                if held[row]:
                    middle_end[key] = BEFORE
                    if group >= 0:
                        lasting[group] = 0
                    group = -1
    found = out[:count]
    return found, sequence[:length], member_offsets[: count + 1], members[:listed], middles[:groups], lasting[:groups]


@njit
def _open(size: int, first: int, last: int, time: Ints, stop: Ints, number: Ints, held: Bools, row: int, begun: int, closed: int) -> bool:
    """Whether a window that would hold ``row`` is unfinished, or ends after ``closed``."""
    starts = _starts(first, last, time, number, held, number[row] + 1, begun)
    for place in range(len(starts)):
        if stop[row] > starts[place]:
            if place > len(starts) - size:
                return True
            if time[row] <= starts[place + size - 1] and starts[place + size - 1] >= closed:
                return True
    return False
