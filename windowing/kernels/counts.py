"""Count windows, key by key: each holds N distinct start times of rows, beginning at one of them.

Start times of closed windows are final: a later row begins, and belongs to, only windows after them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.arrays import grown
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inner, njit
from windowmill.windowing.kernels.rows import Rows, suspects_of
from windowmill.windowing.watermark import AFTER, BEFORE

#: Elements of the lengths: number of windows, of groups, of rows in the sequence, of listed rows.
WINDOWS, GROUPS, LENGTH, LISTED = range(4)


class RowFlags(NamedTuple):
    """Input and output columns of the rows; shapes (n_rows,).

    Attributes
    ----------
    marks, suspect, accepted
        As in :func:`windowmill.windowing.kernels.sessions.sessions`.
    held
        Mask of accepted rows; the kernel adds accepted suspects.
    """

    marks: Ints
    suspect: Bools
    held: Bools
    accepted: Bools


class Fronts(NamedTuple):
    """Progress of each key; shapes (n_keys,), updated in place.

    Attributes
    ----------
    begun
        Start of the last closed window.
    middle_end
        End of the window at which the front of the key's two stacks was built; ``BEFORE`` for none.
    """

    begun: Ints
    middle_end: Ints


class ClosedWindows(NamedTuple):
    """Closed windows and their groups.

    Attributes
    ----------
    windows
        Key, group, start, end, lo and hi of each window; shape (n_rows, 6), because each window begins at a row of its own.
    member_offsets
        Offsets of each window's listed rows; shape (n_rows + 1,).
    middles, lasting
        For each group, the previous end of its front, and whether the group is its key's last one; shapes (n_rows,).
    lengths
        ``WINDOWS``, ``GROUPS``, ``LENGTH`` and ``LISTED``.
    """

    windows: Ints
    member_offsets: Ints
    middles: Ints
    lasting: Ints
    lengths: Ints


@njit
def counts(
    size: int,
    rows: Rows,
    marks: Ints,
    suspect: Bools,
    held: Bools,
    accepted: Bools,
    begun: Ints,
    middle_end: Ints,
    through: int,
    intervals: bool,
) -> Any:
    """Judge the suspects, and find the windows that end at or before ``through``.

    An accepted suspect changes the sequence of rows, so later windows form another group with a front of its own.

    Parameters
    ----------
    size
        Number of start times per window.
    marks, suspect, held, accepted
        As in :class:`RowFlags`.
    begun, middle_end
        As in :class:`Fronts`.
    intervals
        Whether rows are intervals, so that windows are lists of rows rather than ranges.

    Returns
    -------
    tuple
        Key, group, start, end, lo and hi of each window, shape (n_windows, 6); the sequence of rows, of which lo and hi are ranges; offsets
        of each window's listed rows, and these rows; for each group, the previous end of its front, and whether it is its key's last group.
    """
    n = len(rows.time)
    judged, fronts = RowFlags(marks, suspect, held, accepted), Fronts(begun, middle_end)
    table, ends, lengths = np.empty((n, 6), np.int64), np.zeros(n + 1, np.int64), np.zeros(4, np.int64)
    found = ClosedWindows(table, ends, np.empty(n, np.int64), np.empty(n, np.int64), lengths)
    sequence, members = np.empty(16, np.int64), np.empty(16, np.int64)
    for key in range(len(rows.offsets) - 1):
        if rows.offsets[key] < rows.offsets[key + 1]:
            sequence, members = _windows_of_key(size, rows, key, judged, fronts, through, intervals, found, sequence, members)
    windows, groups = table[: lengths[WINDOWS]], lengths[GROUPS]
    listed = members[: lengths[LISTED]]
    return windows, sequence[: lengths[LENGTH]], ends[: len(windows) + 1], listed, found.middles[:groups], found.lasting[:groups]


@helper
def _windows_of_key(
    size: int,
    rows: Rows,
    key: int,
    judged: RowFlags,
    fronts: Fronts,
    through: int,
    intervals: bool,
    found: ClosedWindows,
    sequence: Ints,
    members: Ints,
) -> Any:
    """Find the windows of one key, and judge its suspects in order of arrival; returns the grown sequence and listed rows."""
    first, last = rows.offsets[key], rows.offsets[key + 1]
    # No row completes a window before another that arrived together with it has joined it.
    behind = suspects_of(first, last, judged.suspect, rows.moment, False)
    lengths = found.lengths
    group = -1
    begin = lo = hi = lengths[LENGTH]
    for turn in range(len(behind) + 1):
        closed = judged.marks[behind[turn]] if turn < len(behind) else through
        together = 0 < turn < len(behind) and rows.moment[behind[turn]] == rows.moment[behind[turn - 1]]
        # Of rows that arrive later, only suspects can lie in windows that close now, and these are not held yet.
        starts = _starts(rows, first, last, judged.held, AFTER, fronts.begun[key])[: 0 if together else last - first]
        for place in range(len(starts) - size + 1):
            start, end = starts[place], starts[place + size - 1] + 1
            if end > closed:
                break
            if group < 0:
                begin = lo = hi = lengths[LENGTH]
                sequence = _append_held(sequence, first, last, judged.held, lengths)
                group = _begin_group(rows.time, sequence, begin, fronts.middle_end[key], found)
            hi = _first_from(rows.time, sequence, hi, lengths[LENGTH], end)
            lo = _first_from(rows.time, sequence, lo, hi, start)
            if intervals:
                members = _append_lasting(members, rows.stop, sequence, begin, hi, start, lengths)
            _write(found, key, group, start, end, 0 if intervals else lo, 0 if intervals else hi)
            fronts.begun[key] = start
        if turn < len(behind):
            row = behind[turn]
            judged.held[row] = True
            judged.held[row] = judged.accepted[row] = _open(size, rows, first, last, judged.held, row, fronts.begun[key], closed)
            if judged.held[row]:
                fronts.middle_end[key] = BEFORE
                if group >= 0:
                    found.lasting[group] = 0
                group = -1
    return sequence, members


@helper
def _starts(rows: Rows, first: int, last: int, held: Bools, before: int, begun: int) -> Any:
    """Distinct start times after ``begun`` of the rows that arrived before ``before``, ascending."""
    time, moment = rows.time, rows.moment
    found = np.empty(last - first, np.int64)
    n = 0
    for row in range(first, last):
        if held[row] and moment[row] < before and time[row] > begun and (n == 0 or found[n - 1] != time[row]):
            found[n] = time[row]
            n += 1
    return found[:n]


@helper
def _append_held(sequence: Ints, first: int, last: int, held: Bools, lengths: Ints) -> Any:
    """Append a key's held rows to ``sequence``."""
    sequence = grown(sequence, lengths[LENGTH] + last - first)
    for row in range(first, last):
        if held[row]:
            sequence[lengths[LENGTH]] = row
            lengths[LENGTH] += 1
    return sequence


@inner
def _begin_group(time: Ints, sequence: Ints, begin: int, middle_end: int, found: ClosedWindows) -> Any:
    """Begin a group with the rows ``sequence[begin:]``; returns its number."""
    lengths = found.lengths
    group = lengths[GROUPS]
    found.middles[group] = _first_from(time, sequence, begin, lengths[LENGTH], middle_end) if middle_end > BEFORE else -1
    found.lasting[group] = 1
    lengths[GROUPS] += 1
    return group


@inner
def _first_from(time: Ints, sequence: Ints, place: int, stop: int, instant: int) -> Any:
    """Index of the first row of ``sequence[place:stop]`` that begins at or after ``instant``; ``stop`` if there is none."""
    while place < stop and time[sequence[place]] < instant:
        place += 1
    return place


@helper
def _append_lasting(members: Ints, stop: Ints, sequence: Ints, begin: int, hi: int, start: int, lengths: Ints) -> Any:
    """Append the rows of ``sequence[begin:hi]`` that end after ``start`` to ``members``."""
    members = grown(members, lengths[LISTED] + hi - begin)
    for at in range(begin, hi):
        if stop[sequence[at]] > start:
            members[lengths[LISTED]] = sequence[at]
            lengths[LISTED] += 1
    return members


@inner
def _write(found: ClosedWindows, key: int, group: int, start: int, end: int, lo: int, hi: int) -> None:
    """Add a window, whose listed rows are those appended last."""
    windows, lengths = found.windows, found.lengths
    n = lengths[WINDOWS]
    windows[n, 0], windows[n, 1], windows[n, 2], windows[n, 3], windows[n, 4], windows[n, 5] = key, group, start, end, lo, hi
    lengths[WINDOWS] += 1
    found.member_offsets[n + 1] = lengths[LISTED]


@helper
def _open(size: int, rows: Rows, first: int, last: int, held: Bools, row: int, begun: int, closed: int) -> bool:
    """Whether a window that would hold ``row`` is unfinished, or ends after ``closed``."""
    starts = _starts(rows, first, last, held, rows.moment[row] + 1, begun)
    for place in range(len(starts)):
        if rows.stop[row] > starts[place]:
            if place > len(starts) - size:
                return True
            if rows.time[row] <= starts[place + size - 1] and starts[place + size - 1] >= closed:
                return True
    return False
