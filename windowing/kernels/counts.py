"""Count windows, key by key: from each distinct start time to the N-th from it, one tick past that.

Start times of windows already closed are past: a row that comes later begins windows, and belongs to windows, only beyond them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowing.kernels.combine import Bools, Ints, njit
from windowing.kernels.sessions import AFTER, suspects_of


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
def counts(
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
    through: int,
    intervals: bool,
) -> Any:
    """Judge the suspects, and give the windows that have ended by ``through``.

    Parameters
    ----------
    size
        Start times a window.
    marks, suspect, accepted
        As of :func:`windowing.kernels.sessions.sessions`.
    held
        Accepted rows; the suspects taken in are added.
    begun
        Start of the last closed window of each key; moved on.

    Returns
    -------
    tuple
        Key, start, end, lo and hi of each window, as ranges of rows; where its listed rows begin, and those. A window without a
        listed row is its range.
    """
    out_key, out_start, out_end = np.empty(16, np.int64), np.empty(16, np.int64), np.empty(16, np.int64)
    out_lo, out_hi, member_offsets, members = np.empty(16, np.int64), np.empty(16, np.int64), np.zeros(17, np.int64), np.empty(16, np.int64)
    count = listed = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        behind = suspects_of(first, last, suspect, number)
        for turn in range(len(behind) + 1):
            before = number[behind[turn]] if turn < len(behind) else AFTER
            closed = marks[behind[turn]] if turn < len(behind) else through
            starts = _starts(first, last, time, number, held, before, begun[key])
            # Rows that arrived later are no part of what a replay of the arrivals closes.
            whole = turn == len(behind) and not intervals
            lo = hi = first
            for place in range(len(starts) - size + 1):
                start, end = starts[place], starts[place + size - 1] + 1
                if end > closed:
                    break
                while hi < last and time[hi] < end:
                    hi += 1
                while lo < hi and time[lo] < start:
                    lo += 1
                out_key, out_start, out_end = _grown(out_key, count + 1), _grown(out_start, count + 1), _grown(out_end, count + 1)
                out_lo, out_hi, member_offsets = _grown(out_lo, count + 1), _grown(out_hi, count + 1), _grown(member_offsets, count + 2)
                out_key[count], out_start[count], out_end[count] = key, start, end
                out_lo[count], out_hi[count] = (lo, hi) if whole else (0, 0)
                if not whole:
                    members = _grown(members, listed + hi - first)
                    for row in range(first, hi):
                        if held[row] and number[row] < before and stop[row] > start:
                            members[listed] = row
                            listed += 1
                count += 1
                member_offsets[count] = listed
                begun[key] = start
            if turn < len(behind):
                row = behind[turn]
                held[row] = True
                held[row] = accepted[row] = _open(size, first, last, time, stop, number, held, row, begun[key], closed)
    return (
        out_key[:count],
        out_start[:count],
        out_end[:count],
        out_lo[:count],
        out_hi[:count],
        member_offsets[: count + 1],
        members[:listed],
    )


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
