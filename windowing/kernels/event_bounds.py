"""Windows that the rows of a key begin and end: sessions, snapshots, and count windows.

*Sessions.* Rows at most a gap apart share a session if they arrived before it was closed. A row exactly at the end of a session, a gap
after its last row, still joins it; the session closes after that instant. A session that is split at its greatest size takes no row at its
end. A row whose time lies in closed windows at its arrival (a *suspect*) is judged by the rows that the key held then, and by those that
arrived with it. Other rows join no closed session, so their arrivals need no replay.

*Snapshots.* They are the spans between neighbouring start and end points of rows, found by a sweep over the points. Those before the last
closed point are final: a row that begins before that point counts from it.

*Count windows.* Each holds a number of distinct start times of rows, beginning at one of them. Start times of closed windows are final: a
later row begins, and belongs to, only windows after them.

*Sessions of fragments.* Fragments at most a gap apart share a session if they arrived before it was closed. A session has a list of
*parts*: fragments and *nodes*, each of which combines earlier parts. When it is shown, its parts become one node. So each part is combined
once, however many versions a session has::

    fragments    a   b   c   │ late: d │ e          a b c in time, d and e late
    nodes        n = a b c   │ m = n d │ o = m e    one for each version that was shown
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.arrays import Rows, distinct, grown, put, suspects_of
from windowmill.windowing.kernels.combine import Bools, Floats, Ints, combine, copy_atom
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit
from windowmill.windowing.watermark import AFTER, BEFORE


class SessionLimits(NamedTuple):
    """Limits of a session, in ticks of the axis."""

    gap: int  #: Longest pause between two rows of a session.
    longest: int  #: A session is split at a row that begins this long after its first row; ``AFTER`` if sessions have no greatest size.


class ClosedSessions(NamedTuple):
    """Closed sessions; functions pass their number separately."""

    owner: Ints  #: Session of each row, or −1; shape (n_rows,).
    #: Columns of sessions; shapes (n_rows,), the greatest possible number of sessions.
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
        # A row that joins others to an open session comes before them.
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


@njit
def snapshots(rows: Rows, marks: Ints, late: Bools, held: Bools, fixed: Ints, through: int) -> Any:
    """Find the spans that end at or before ``through`` and hold a row.

    Parameters
    ----------
    marks
        Instant through which windows were closed at each row's arrival; shape (n_rows,).
    late
        Mask of accepted rows that begin before that instant.
    held
        Mask of accepted rows.
    fixed
        Last point of each key through which spans are closed, shape (n_keys,); updated in place.

    Returns
    -------
    tuple
        Key, start and end of each span, shapes (n_spans,); offsets of its rows, shape (n_spans + 1,), and the rows; the instant from which
        each row counts, shape (n_rows,).
    """
    offsets, stop, n = rows.offsets, rows.stop, len(rows.time)
    begins = np.empty(n, np.int64)
    out_key, out_start, out_end = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    member_offsets, members = np.zeros(2 * n + 1, np.int64), np.empty(2 * n + 16, np.int64)
    count = listed = 0
    for key in range(len(offsets) - 1):
        first, last = offsets[key], offsets[key + 1]
        if first == last:
            continue
        _begin(rows, first, last, marks, late, held, fixed[key], begins)
        points, entering = _points(rows, first, last, held, begins)
        active = np.empty(len(entering), np.int64)
        n_active = entered = 0
        for place in range(len(points) - 1):
            start, end = points[place], points[place + 1]
            if end > through:
                break
            n_active, entered = _step(start, stop, begins, entering, entered, active, n_active)
            if n_active:
                if listed + n_active > len(members):
                    members = grown(members, listed + n_active)
                put(np.sort(active[:n_active]), members[listed:])
                listed += n_active
                out_key[count], out_start[count], out_end[count] = key, start, end
                member_offsets[count + 1] = listed
                count += 1
        for point in points:
            if point <= through:
                fixed[key] = max(fixed[key], point)
    return out_key[:count], out_start[:count], out_end[:count], member_offsets[: count + 1], members[:listed], begins


@helper
def _begin(rows: Rows, first: int, last: int, marks: Ints, late: Bools, held: Bools, fixed: int, begins: Ints) -> None:
    """Effective start of each of a key's rows: the greatest of its own start, ``fixed``, and the last point closed at its arrival."""
    time = rows.time
    for row in range(first, last):
        begins[row] = max(time[row], fixed)
    for row in suspects_of(first, last, late, rows.moment, False):
        begins[row] = max(time[row], _closed_point(rows, first, last, marks[row], held, fixed, begins, row))


@inner
def _closed_point(rows: Rows, first: int, last: int, mark: int, held: Bools, fixed: int, begins: Ints, row: int) -> Any:
    """The last point up to ``mark`` of the rows that had arrived before ``row``."""
    point = fixed
    for other in range(first, last):
        if held[other] and rows.moment[other] < rows.moment[row]:
            if begins[other] <= mark:
                point = max(point, begins[other])
            if rows.stop[other] <= mark:
                point = max(point, rows.stop[other])
    return point


@helper
def _points(rows: Rows, first: int, last: int, held: Bools, begins: Ints) -> Any:
    """Distinct start and end points of a key's held rows, ascending, and these rows in order of their effective start."""
    stop, points, entering = rows.stop, np.empty(2 * (last - first), np.int64), np.empty(last - first, np.int64)
    n = 0
    for row in range(first, last):
        if held[row]:
            points[2 * n], points[2 * n + 1] = begins[row], stop[row]
            entering[n] = row
            n += 1
    return distinct(points[: 2 * n]), entering[:n][np.argsort(begins[entering[:n]], kind="mergesort")]


@inlined
def _step(start: int, stop: Ints, begins: Ints, entering: Ints, entered: int, active: Ints, n_active: int) -> Any:
    """Drop ``active`` rows that end at or before ``start``, add rows that begin by then; returns numbers of active and added rows."""
    kept = 0
    for index in range(n_active):
        if stop[active[index]] > start:
            active[kept] = active[index]
            kept += 1
    while entered < len(entering) and begins[entering[entered]] <= start:
        active[kept] = entering[entered]
        kept, entered = kept + 1, entered + 1
    return kept, entered


#: Elements of the lengths: number of windows, of groups, of rows in the sequence, of listed rows.
WINDOWS, GROUPS, LENGTH, LISTED = range(4)


class RowFlags(NamedTuple):
    """Input and output columns of the rows; shapes (n_rows,). Those without a comment are as in :func:`sessions`."""

    marks: Ints
    suspect: Bools
    held: Bools  #: Mask of accepted rows; the kernel adds accepted suspects.
    accepted: Bools


class Fronts(NamedTuple):
    """Progress of each key; shapes (n_keys,), updated in place."""

    begun: Ints  #: Start of the last closed window.
    middle_end: Ints  #: End of the window at which the front of the key's two stacks was built; ``BEFORE`` for none.


class ClosedWindows(NamedTuple):
    """Closed windows and their groups."""

    windows: Ints  #: Key, group, start, end, lo and hi of each window; shape (n_rows, 6), because each window begins at a row of its own.
    member_offsets: Ints  #: Offsets of each window's listed rows; shape (n_rows + 1,).
    #: For each group, the previous end of its front, and whether the group is its key's last one; shapes (n_rows,).
    middles: Ints
    lasting: Ints
    lengths: Ints  #: ``WINDOWS``, ``GROUPS``, ``LENGTH`` and ``LISTED``.


@njit
def counts(size: int, rows: Rows, judged: RowFlags, fronts: Fronts, through: int, intervals: bool) -> Any:
    """Judge the suspects, and find the windows that end at or before ``through``.

    An accepted suspect changes the sequence of rows, so later windows form another group with a front of its own.

    Parameters
    ----------
    size
        Number of start times per window.
    intervals
        Whether rows are intervals, so that windows are lists of rows rather than ranges.

    Returns
    -------
    tuple
        Key, group, start, end, lo and hi of each window, shape (n_windows, 6); the sequence of rows, of which lo and hi are ranges; offsets
        of each window's listed rows, and these rows; for each group, the previous end of its front, and whether it is its key's last group.
    """
    n = len(rows.time)
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
        # Among rows that arrive later, only suspects can lie in windows that close now, and these are not held yet.
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


class FragmentColumns(NamedTuple):
    """Fragments of all keys, by key and arrival; if several arrived together, the latest comes first. Times in ticks of the axis.

    Those of the state come first.
    """

    offsets: Ints  #: Key k's fragments are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: First and last event time of each; shape (n_fragments,).
    first: Ints
    last: Ints
    fresh: Bools  #: Mask of the fragments of new rows.
    suspect: Bools  #: Mask of the suspects, each a fragment of its own.
    moments: Ints  #: Moment of arrival of each, or of the first row of a run; shape (n_fragments,).
    #: For a suspect, the instant through which windows were closed when it arrived: it counts if the session that it joins was open.
    marks: Ints
    shown_through: Ints  #: For a suspect, the instant through which windows were shown when it arrived.
    revision: Ints  #: Revision number of a fragment of the state; 0 for others.
    shown: Bools  #: Mask of the fragments of the state that have been shown as they are.


class _Open(NamedTuple):
    """Open sessions of one key, by time: columns of slots, and each session's parts as a list from ``head`` to ``tail``.

    ``fresh`` is whether a session has new rows, ``stands`` whether a version with its bounds has been shown and not retracted. ``after``
    tells the part that follows each part in its list.
    """

    first: Ints
    last: Ints
    revision: Ints
    shown: Bools
    fresh: Bools
    stands: Bools
    head: Ints
    tail: Ints
    after: Ints


class _Found(NamedTuple):
    """What the kernel finds; ``counts`` holds the numbers of versions, of nodes, of their members and of retractions so far."""

    versions: Ints
    retracted: Ints
    node_ends: Ints
    members: Ints
    counts: Ints


@njit
def sessions_of(gap: int, shown: int, closed: int, fragments: FragmentColumns) -> Any:
    """Join fragments into sessions; show sessions that the watermark passes or suspects change; O(n(1 + s)) for s open sessions.

    No fragment but a suspect joins a session that has been shown, so only suspects need a look at what was shown and closed before them.

    Parameters
    ----------
    shown, closed
        Instants through which windows are shown and closed after the batch.

    Returns
    -------
    tuple
        Versions shown, as rows (key, first event time, end, revision, part), shape (n_versions, 5); retractions of versions whose session
        has other bounds since, as rows (key, first event time, end, revision), shape (n_retracted, 4); open sessions with new rows, as rows
        like versions; offsets of the nodes' members, shape (n_nodes + 1,), and the members; mask of accepted fragments. Parts below
        n_fragments are fragments, those from there on nodes, which combine their members in order.
    """
    n = len(fragments.first)
    most = 0
    for key in range(len(fragments.offsets) - 1):
        most = max(most, fragments.offsets[key + 1] - fragments.offsets[key])
    # Sessions begin in the middle, so that the fewer of them move where a fragment comes between.
    slots = np.empty((5, 2 * most), np.int64)
    flags = np.empty((3, 2 * most), np.bool_)
    sessions = _Open(slots[0], slots[1], slots[2], flags[0], flags[1], flags[2], slots[3], slots[4], np.empty(2 * n, np.int64))
    # Each session that is shown has got a fragment since it was last shown. Each node takes at least two parts for one.
    versions, retracted = np.empty((n, 5), np.int64), np.empty((2 * n, 4), np.int64)
    found = _Found(versions, retracted, np.zeros(n + 1, np.int64), np.empty(2 * n, np.int64), np.zeros(4, np.int64))
    kept, n_kept, accepted = np.empty((n, 5), np.int64), 0, np.ones(n, np.bool_)
    for key in range(len(fragments.offsets) - 1):
        low = high = most
        settled = BEFORE
        for part in range(fragments.offsets[key], fragments.offsets[key + 1]):
            mark = fragments.marks[part]
            if fragments.suspect[part] and fragments.moments[part] != settled:
                low = _settle(gap, key, low, high, fragments.shown_through[part], mark, sessions, found)
                settled = fragments.moments[part]
            joined, stop = _neighbours(gap, low, high, fragments.first[part], fragments.last[part], sessions)
            if joined == stop and fragments.suspect[part] and fragments.last[part] + gap < mark:
                accepted[part] = False
                continue
            low, high = _join(gap, key, joined, stop, low, high, part, fragments, sessions, found)
        low = _settle(gap, key, low, high, shown, closed, sessions, found)
        for slot in range(low, high):
            if sessions.fresh[slot]:
                kept[n_kept, 0], kept[n_kept, 1], kept[n_kept, 2] = key, sessions.first[slot], sessions.last[slot] + gap
                kept[n_kept, 3], kept[n_kept, 4] = sessions.revision[slot], _one_part(slot, sessions, found)
                n_kept += 1
    n_versions, n_nodes, n_members, n_retracted = found.counts
    versions, gone = found.versions[:n_versions], found.retracted[:n_retracted]
    return versions, gone, kept[:n_kept], found.node_ends[: n_nodes + 1], found.members[:n_members], accepted


@njit
def uncovered(codes: Ints, first: Ints, last: Ints, batch: Ints, gone: Bools) -> Bools:
    """Mask of the fragments that are not gone, and that no fragment of a later batch covers; shapes (n_fragments,).

    Fragments are sorted by code, first event time, and from the latest batch on. O(n m) if m of a code are longer than an instant.
    """
    n = len(codes)
    found, spans, n_spans, code = ~gone, np.empty(n, np.int64), 0, -1
    for row in range(n):
        if codes[row] != code:
            code, n_spans = codes[row], 0
        elif first[row] == first[row - 1] and last[row] == first[row] and last[row - 1] == first[row]:
            found[row] &= batch[row] == batch[row - 1]
        if first[row] < last[row] or gone[row]:
            spans[n_spans] = row
            n_spans += 1
        for place in range(n_spans):
            span = spans[place]
            if batch[span] > batch[row] and last[span] >= last[row]:
                found[row] = False
                break
    return found


@njit
def combine_nodes(program: Ints, node_offsets: Ints, members: Ints, ints: Ints, floats: Floats) -> Any:
    """The numbers of all parts, as rows of two arenas: those of the fragments (``ints``, ``floats``), then those of the nodes. O(n)."""
    n, n_nodes = len(ints), len(node_offsets) - 1
    all_ints, all_floats = np.empty((n + n_nodes, ints.shape[1]), np.int64), np.empty((n + n_nodes, floats.shape[1]), np.float64)
    for row in range(n):
        copy_atom(0, 0, ints.shape[1], floats.shape[1], ints, floats, row, all_ints, all_floats, row)
    for node in range(n_nodes):
        row, first = n + node, members[node_offsets[node]]
        copy_atom(0, 0, ints.shape[1], floats.shape[1], all_ints, all_floats, first, all_ints, all_floats, row)
        for place in range(node_offsets[node] + 1, node_offsets[node + 1]):
            combine(program, all_ints, all_floats, row, all_ints, all_floats, members[place], all_ints, all_floats, row)
    return all_ints, all_floats


@inner
def _settle(gap: int, key: int, low: int, high: int, shown: int, closed: int, sessions: _Open, found: _Found) -> Any:
    """Show the sessions of slots ``low:high`` that end before ``shown``, and leave out those that end before ``closed``; the new ``low``.

    A row at the very end of a session still joins it.
    """
    for slot in range(low, high):
        if sessions.last[slot] + gap >= shown:
            break
        if not sessions.shown[slot]:
            version, versions = found.counts[0], found.versions
            versions[version, 0], versions[version, 1], versions[version, 2] = key, sessions.first[slot], sessions.last[slot] + gap
            versions[version, 3], versions[version, 4] = sessions.revision[slot], _one_part(slot, sessions, found)
            found.counts[0] += 1
            sessions.shown[slot] = sessions.stands[slot] = True
    while low < high and sessions.last[low] + gap < closed:
        low += 1
    return low


@inner
def _neighbours(gap: int, low: int, high: int, first: int, last: int, sessions: _Open) -> Any:
    """The slots of the sessions that a fragment from ``first`` to ``last`` joins, as a range; an empty one stands where it belongs."""
    begin, past = low, high
    while begin < past:
        middle = (begin + past) // 2
        if sessions.last[middle] < first - gap:
            begin = middle + 1
        else:
            past = middle
    end = begin
    while end < high and sessions.first[end] <= last + gap:
        end += 1
    return begin, end


@inner
def _join(
    gap: int, key: int, begin: int, end: int, low: int, high: int, part: int, fragments: FragmentColumns, sessions: _Open, found: _Found
) -> Any:
    """Make one session of a fragment and the sessions of slots ``begin:end``; returns the new ``low`` and ``high``.

    Its revision follows the greatest one of these that was shown. Those shown with other bounds are retracted.
    """
    first, last, revision = fragments.first[part], fragments.last[part], fragments.revision[part]
    head, tail = part, part
    for slot in range(end - 1, begin - 1, -1):
        first, last = min(first, sessions.first[slot]), max(last, sessions.last[slot])
        revision = max(revision, sessions.revision[slot] + (1 if sessions.shown[slot] else 0))
        sessions.after[sessions.tail[slot]] = head
        head = sessions.head[slot]
    stands = fragments.shown[part]
    for slot in range(begin, end):
        if not sessions.stands[slot]:
            continue
        if sessions.first[slot] == first and sessions.last[slot] == last:
            stands = True
            continue
        place, retracted = found.counts[3], found.retracted
        retracted[place, 0], retracted[place, 1], retracted[place, 2] = key, sessions.first[slot], sessions.last[slot] + gap
        retracted[place, 3] = sessions.revision[slot] + (1 if sessions.shown[slot] else 0)
        found.counts[3] += 1
    shift, own = 1 - (end - begin), begin
    if begin - low < high - end:
        own = end - 1
        if shift > 0:
            for slot in range(low, begin):
                _move(slot, slot - shift, sessions)
        elif shift < 0:
            for slot in range(begin - 1, low - 1, -1):
                _move(slot, slot - shift, sessions)
        low -= shift
    else:
        if shift > 0:
            for slot in range(high - 1, begin - 1, -1):
                _move(slot, slot + shift, sessions)
        elif shift < 0:
            for slot in range(end, high):
                _move(slot, slot + shift, sessions)
        high += shift
    sessions.first[own], sessions.last[own], sessions.revision[own] = first, last, revision
    sessions.head[own], sessions.tail[own] = head, tail
    sessions.shown[own], sessions.fresh[own], sessions.stands[own] = fragments.shown[part], fragments.fresh[part], stands
    return low, high


@inner
def _one_part(slot: int, sessions: _Open, found: _Found) -> Any:
    """The part that holds all of a session: its only one, or a new node of its parts."""
    part, last = sessions.head[slot], sessions.tail[slot]
    if part == last:
        return part
    node, place = found.counts[1], found.counts[2]
    found.members[place] = part
    while part != last:
        part, place = sessions.after[part], place + 1
        found.members[place] = part
    found.counts[1], found.counts[2] = node + 1, place + 1
    found.node_ends[node + 1] = place + 1
    part = len(found.node_ends) - 1 + node
    sessions.head[slot], sessions.tail[slot] = part, part
    return part


@inner
def _move(slot: int, to: int, sessions: _Open) -> None:
    sessions.first[to], sessions.last[to], sessions.revision[to] = sessions.first[slot], sessions.last[slot], sessions.revision[slot]
    sessions.head[to], sessions.tail[to] = sessions.head[slot], sessions.tail[slot]
    sessions.shown[to], sessions.fresh[to], sessions.stands[to] = sessions.shown[slot], sessions.fresh[slot], sessions.stands[slot]
