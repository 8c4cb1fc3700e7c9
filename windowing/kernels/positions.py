"""FlatFAT over positions: finds the dyadic nodes that make up a stretch of a key's tuples.

A key's applied tuples are numbered 0, 1, 2, …. Node (level, begin) is the partial of the 2^level tuples from position ``begin``, a multiple
of 2^level; nodes of level 0 are leaves. A stretch [lo, hi) is made of the greatest nodes that lie within it, at most 2·log2(hi − lo) of
them. Which these are depends on lo and hi alone, so the result does not depend on how the input is cut into batches.

References
----------
Tangwongsan, Hirzel, Schneider and Wu (2015), General incremental sliding-window aggregation, section 3 (FlatFAT).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.compilation import inner, njit

#: Place of a node that is not there; and what the place of a node that leaves a window is subtracted from.
MISSING, LEFT = -1, -2


class NodeColumns(NamedTuple):
    """Nodes of all keys, sorted by level, key and begin.

    Attributes
    ----------
    levels, n_keys
        Number of levels and of keys.
    offsets
        The nodes of level l and key k are ``offsets[l * n_keys + k]:offsets[l * n_keys + k + 1]``; shape (levels * n_keys + 1,).
    begin, first
        First position of each node, and the event time of the tuple there; shapes (n_nodes,).
    """

    levels: int
    n_keys: int
    offsets: Ints
    begin: Ints
    first: Ints


@inner
def find(nodes: NodeColumns, key: int, level: int, begin: int) -> Any:
    """Place of the node of ``key`` at (``level``, ``begin``); ``MISSING`` if it is not there. O(log n)."""
    if level >= nodes.levels:
        return MISSING
    low, high = nodes.offsets[level * nodes.n_keys + key], nodes.offsets[level * nodes.n_keys + key + 1]
    stop = high
    while low < high:
        middle = (low + high) >> 1
        if nodes.begin[middle] < begin:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and nodes.begin[low] == begin else MISSING


@inner
def level_at(position: int, stop: int) -> Any:
    """The level of the greatest node that begins at ``position`` and ends at or before ``stop``, which is greater."""
    level = 0
    while position & ((1 << (level + 1)) - 1) == 0 and position + (1 << (level + 1)) <= stop:
        level += 1
    return level


@njit
def places_of(nodes: NodeColumns, key: Ints, level: Ints, begin: Ints) -> Ints:
    """:func:`find` for many nodes; shape (n,)."""
    places = np.empty(len(key), np.int64)
    for number in range(len(key)):
        places[number] = find(nodes, key[number], level[number], begin[number])
    return places


@inner
def _count(lo: int, hi: int) -> int:
    """The number of the greatest nodes within [``lo``, ``hi``)."""
    count, position = 0, lo
    while position < hi:
        position += 1 << level_at(position, hi)
        count += 1
    return count


@inner
def _list(nodes: NodeColumns, key: int, lo: int, hi: int, places: Ints, at: int) -> int:
    """Write to ``places``, from ``at`` on, those of the greatest nodes within [``lo``, ``hi``); returns where the next one goes."""
    position = lo
    while position < hi:
        level = level_at(position, hi)
        places[at] = find(nodes, key, level, position)
        position += 1 << level
        at += 1
    return at


@njit
def stretches(nodes: NodeColumns, key: Ints, lo: Ints, hi: Ints) -> Any:
    """The nodes of each stretch [``lo``, ``hi``) of a ``key``, oldest first; O(log(hi − lo)²) for each.

    Returns
    -------
    tuple
        Offsets, shape (n_stretches + 1,), and places of nodes; ``MISSING`` for one that is not there.
    """
    offsets = np.zeros(len(key) + 1, np.int64)
    for number in range(len(key)):
        offsets[number + 1] = offsets[number] + _count(lo[number], hi[number])
    places = np.empty(offsets[-1], np.int64)
    for number in range(len(key)):
        _list(nodes, key[number], lo[number], hi[number], places, offsets[number])
    return offsets, places


@njit
def moves(nodes: NodeColumns, key: Ints, lo: Ints, hi: Ints) -> Any:
    """As :func:`stretches`, but of a stretch what has left and entered since the one before it, where these are fewer nodes than its own.

    Returns
    -------
    tuple
        Mask of the stretches that continue the one before them; offsets and places as of :func:`stretches`, with ``LEFT`` − p in place of
        p for a node that leaves.
    """
    n, own = len(key), np.empty(len(key), np.int64)
    for number in range(n):
        own[number] = _count(lo[number], hi[number])
    continues, offsets, places = np.zeros(n, np.bool_), np.zeros(n + 1, np.int64), np.empty(own.sum(), np.int64)
    for number in range(n):
        first, stop, begin = lo[number], hi[number], offsets[number]
        low, reached = (lo[number - 1], hi[number - 1]) if number > 0 and key[number - 1] == key[number] else (stop, stop)
        end = begin
        if low <= first < reached <= stop and _count(low, first) + _count(reached, stop) < own[number]:
            entering = _list(nodes, key[number], low, first, places, begin)
            end = _list(nodes, key[number], reached, stop, places, entering)
            continues[number] = True
            for place in range(begin, end):
                if places[place] == MISSING:
                    continues[number] = False
                elif place < entering:
                    places[place] = LEFT - places[place]
        if not continues[number]:
            end = _list(nodes, key[number], first, stop, places, begin)
        offsets[number + 1] = end
    return continues, offsets, places[: offsets[-1]]


@njit
def covers(nodes: NodeColumns, head: Ints, stop: Ints, evicted: Ints, limit: int) -> Any:
    """Nodes that make up each key's window [``head``, ``stop``): leaves for tuples that may leave alone, the greatest nodes for the rest.

    Parameters
    ----------
    evicted
        Number of the oldest tuples that may leave alone; shape (n_keys,).
    limit
        Tuples before this instant may leave alone.

    Returns
    -------
    tuple
        Offsets, shape (n_keys + 1,), and places of nodes; ``MISSING`` for one that is not there.
    """
    places, offsets = [np.int64(MISSING) for _ in range(0)], np.zeros(len(head) + 1, np.int64)
    for key in range(len(head)):
        position = head[key]
        while position < stop[key]:
            leaf = find(nodes, key, 0, position)
            if position >= head[key] + evicted[key] and (leaf == MISSING or nodes.first[leaf] >= limit):
                break
            places.append(leaf)
            position += 1
        while position < stop[key]:
            level = level_at(position, stop[key])
            place = find(nodes, key, level, position)
            if place != MISSING and nodes.first[place] < limit:
                place = MISSING
            places.append(place)
            position += 1 << level
        offsets[key + 1] = len(places)
    return offsets, np.array(places, np.int64)
