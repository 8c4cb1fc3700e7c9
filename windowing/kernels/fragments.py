"""Sessions made of fragments, key by key: fragments at most a gap apart share a session if they arrived before it was closed.

A session has a list of *parts*: fragments and *nodes*, each of which combines earlier parts. When it is shown, its parts become one node.
So each part is combined once, however many versions a session has::

    fragments    a   b   c   │ late: d │ e          a b c in time, d and e late
    nodes        n = a b c   │ m = n d │ o = m e    one for each version that was shown
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Bools, Floats, Ints, combine, copy_atom
from windowmill.windowing.kernels.compilation import inner, njit
from windowmill.windowing.watermark import BEFORE


class FragmentColumns(NamedTuple):
    """Fragments of all keys, sorted by key and arrival, of those that arrived together the latest first. Times in ticks of the axis.

    Those of the state come first.
    """

    offsets: Ints  #: Key k's fragments are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: First and last event time of each; shape (n_fragments,).
    first: Ints
    last: Ints
    fresh: Bools  #: Mask of the fragments of new rows.
    suspect: Bools  #: Mask of the rows that windows were shown past when they arrived, each a fragment of its own.
    moments: Ints  #: Moment of arrival of each, of a run of rows that of the first; shape (n_fragments,).
    #: Of a suspect, the instant through which windows were closed when it arrived: it counts if the session that it joins was open.
    marks: Ints
    revision: Ints  #: Of a fragment of the state, the number of the version that it is; of others 0.
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
def sessions_of(gap: int, ahead: int, closed: int, fragments: FragmentColumns) -> Any:
    """Join fragments into sessions; show those that the watermark passes, and again when suspects arrive; O(n(1 + s)) for s open sessions.

    No fragment but a suspect joins a session that has been shown, so only suspects need a look at what was shown and closed before them.

    Parameters
    ----------
    ahead
        How far the instant through which windows are shown is ahead of that through which they are closed.
    closed
        Instant through which windows are closed after the batch.

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
                low = _settle(gap, key, low, high, mark + ahead, mark, sessions, found)
                settled = fragments.moments[part]
            joined, stop = _neighbours(gap, low, high, fragments.first[part], fragments.last[part], sessions)
            if joined == stop and fragments.suspect[part] and fragments.last[part] + gap < mark:
                accepted[part] = False
                continue
            low, high = _join(gap, key, joined, stop, low, high, part, fragments, sessions, found)
        low = _settle(gap, key, low, high, closed + ahead, closed, sessions, found)
        for slot in range(low, high):
            if sessions.fresh[slot]:
                kept[n_kept, 0], kept[n_kept, 1], kept[n_kept, 2] = key, sessions.first[slot], sessions.last[slot] + gap
                kept[n_kept, 3], kept[n_kept, 4] = sessions.revision[slot], _one_part(slot, sessions, found)
                n_kept += 1
    n_versions, n_nodes, n_members, n_retracted = found.counts
    shown, gone = found.versions[:n_versions], found.retracted[:n_retracted]
    return shown, gone, kept[:n_kept], found.node_ends[: n_nodes + 1], found.members[:n_members], accepted


@njit
def uncovered(codes: Ints, first: Ints, last: Ints, batch: Ints, gone: Bools) -> Bools:
    """Mask of the fragments that are not gone, and that none of a later batch covers; shapes (n_fragments,).

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

    Its version is the one after the greatest that was shown of these. Those of them that have been shown with other bounds are retracted.
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
