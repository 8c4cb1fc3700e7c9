"""FlatFAT over positions: the dyadic nodes that make up a stretch of tuples, and tries whose tuples leave from anywhere.

A key's applied tuples are numbered 0, 1, 2, …. Node (level, begin) is the partial of the 2^level tuples from position ``begin``, a multiple
of 2^level; nodes of level 0 are leaves. A stretch [lo, hi) is made of the greatest nodes that lie within it, at most 2·log2(hi − lo) of
them. They depend on lo and hi alone, so the result does not depend on how the input is divided into batches.

Where tuples leave from anywhere, a key has a *trie*: one binary tree over its *items*, the partials that its window begins with or takes
in.

::

    position   0   1   2   3   4   5   6   7        the partial of [0, 4) is one item, tuples 5 and 7 are others
    item      [      a      ]      b       c
    trie               (a ⊕ (b ⊕ c))                the node of [0, 8) holds that of [0, 4) ⊕ that of [4, 8); an empty side costs no combine

A node of the trie covers an aligned stretch [i · 2^l, (i + 1) · 2^l) of positions, and holds the partial of the window's tuples there.
Stretches that hold the same items are one node. So the order of combining depends only on the positions of the window's tuples, not on
which stretches are items.

References
----------
Tangwongsan, Hirzel, Schneider and Wu (2015), General incremental sliding-window aggregation, PVLDB 8(7), sections 3 to 5 (FlatFAT).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.combine import Bools, Floats, Ints, clear_atom, combine_atom, copy_atom
from windowmill.windowing.kernels.compilation import inlined, inner, njit

#: Place of a missing node; and the number from which the place of a node that leaves a window is subtracted.
MISSING, LEFT = -1, -2


class NodeColumns(NamedTuple):
    """Nodes of all keys, sorted by level, key and begin."""

    #: Number of levels and of keys.
    levels: int
    n_keys: int
    #: The nodes of level l and key k are ``offsets[l * n_keys + k]:offsets[l * n_keys + k + 1]``; shape (levels * n_keys + 1,).
    offsets: Ints
    #: First position of each node, and the event time of the tuple there; shapes (n_nodes,).
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
def _list_nodes(nodes: NodeColumns, key: int, lo: int, hi: int, places: Ints, at: int) -> int:
    """Write the places of the greatest nodes within [``lo``, ``hi``) to ``places``, from ``at`` on; returns the next free index."""
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
        _list_nodes(nodes, key[number], lo[number], hi[number], places, offsets[number])
    return offsets, places


@njit
def moves(nodes: NodeColumns, key: Ints, lo: Ints, hi: Ints) -> Any:
    """As :func:`stretches`, but a stretch gives what left and entered since the one before, where that is fewer nodes than its own.

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
            entering = _list_nodes(nodes, key[number], low, first, places, begin)
            end = _list_nodes(nodes, key[number], reached, stop, places, entering)
            continues[number] = True
            for place in range(begin, end):
                if places[place] == MISSING:
                    continues[number] = False
                elif place < entering:
                    places[place] = LEFT - places[place]
        if not continues[number]:
            end = _list_nodes(nodes, key[number], first, stop, places, begin)
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


#: The level of a stretch that holds all positions.
WHOLE = 63
#: Markers in place of a right operand: copy the left operand, a leaf or a node.
COPIED_LEAF, COPIED_NODE = -1, -2


class Items(NamedTuple):
    """Partials of disjoint stretches of positions, of all keys; sorted by key and position."""

    offsets: Ints  #: Key k's items are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    begin: Ints  #: First position of each item; shape (n_items,).


class Stretches(NamedTuple):
    """Stretches to combine, in the order of keys; each first enters its changes into its key's trie."""

    #: The stretch of 2^level positions from ``begin`` of the key, or all its positions for level ``WHOLE``; shapes (n_totals,).
    key: Ints
    begin: Ints
    level: Ints
    #: Total t changes ``items[change_offsets[t]:change_offsets[t + 1]]``: whether each is ``present`` from then on. Before the first total
    #: of a key, none is.
    change_offsets: Ints
    items: Ints
    present: Bools


class Trie(NamedTuple):
    """The trie of the key at work; nodes are numbered from 1, children before parents, and 0 stands for none."""

    #: Children and parent of each node, and the level of its stretch; an item's node has no children.
    left: Ints
    right: Ints
    parent: Ints
    level: Ints
    node_of: Ints  #: Node of each of the key's items.
    #: Whether a node holds anything; the last total that touched it; scratch.
    full: Bools
    stamps: Ints
    touched: Ints

    @classmethod
    def roomy(cls, most_items: int) -> Trie:
        n = 2 * most_items + 1
        left, right, parent, level, stamps, touched = (np.zeros(n, np.int64) for _ in range(6))
        return cls(left, right, parent, level, np.zeros(most_items + 1, np.int64), np.zeros(n, np.bool_), stamps, touched)


@njit
def list_work(begun: int, items: Items, totals: Stretches, trie: Trie, work: Ints, work_ends: Ints, roots: Ints) -> Any:
    """List the work of the totals from ``begun`` on while there is room in ``work``; O(log n) combines for each change.

    Parameters
    ----------
    trie
        As the totals before ``begun`` left it.

    Returns
    -------
    int
        The first total left out. For each total before it, ``work_ends`` has the end of its work, lines (node, left, right), and ``roots``
        the node of its stretch; 0 if it is empty.
    """
    listed = 0
    for total in range(begun, len(totals.key)):
        key = totals.key[total]
        first, stop = items.offsets[key], items.offsets[key + 1]
        if total == 0 or totals.key[total - 1] != key:
            _build(items.begin, first, stop, trie)
        changes = totals.change_offsets[total + 1] - totals.change_offsets[total]
        if listed + min(changes * (WHOLE + 1), changes + stop - first) > len(work) and listed > 0:
            return total
        n_touched = 0
        for change in range(totals.change_offsets[total], totals.change_offsets[total + 1]):
            item = totals.items[change]
            node = trie.node_of[item - first]
            trie.full[node] = totals.present[change]
            if totals.present[change]:
                listed = _list(work, listed, node, item, COPIED_LEAF)
            n_touched = _touch(trie.parent[node], total + 1, trie, n_touched)
        trie.touched[:n_touched].sort()
        for index in range(n_touched):
            node = trie.touched[index]
            left, right = trie.left[node], trie.right[node]
            if trie.full[left] and trie.full[right]:
                listed = _list(work, listed, node, left, right)
            elif trie.full[left] or trie.full[right]:
                listed = _list(work, listed, node, left if trie.full[left] else right, COPIED_NODE)
            trie.full[node] = trie.full[left] or trie.full[right]
        root = _root(items.begin, first, stop, trie, totals.begin[total], totals.level[total])
        roots[total] = root if trie.full[root] else 0
        work_ends[total] = listed
    return len(totals.key)


@njit
def most_work(items: Items, totals: Stretches) -> Any:
    most = 1
    for total in range(len(totals.key)):
        key, changes = totals.key[total], totals.change_offsets[total + 1] - totals.change_offsets[total]
        most = max(most, min(changes * (WHOLE + 1), changes + items.offsets[key + 1] - items.offsets[key]))
    return most


@njit
def combine_work(
    program: Ints,
    begun: int,
    ended: int,
    work: Ints,
    work_ends: Ints,
    roots: Ints,
    ints: Ints,
    floats: Floats,
    node_ints: Ints,
    node_floats: Floats,
    out_ints: Ints,
    out_floats: Floats,
) -> None:
    """Do the ``work`` of :func:`list_work` for the totals begun:ended; their partials go to ``out_ints`` and ``out_floats``.

    Parameters
    ----------
    ints, floats
        Partials of the items.
    node_ints, node_floats
        Partials of the trie's nodes, kept from call to call.
    """
    listed, given, nodes, out = (work, work_ends, roots), (ints, floats), (node_ints, node_floats), (out_ints, out_floats)
    for line in range(len(program)):
        _combine_listed(program[line], begun, ended, listed, given, nodes, out)


@inner
def _combine_listed(line: Ints, begun: int, ended: int, listed: Any, given: Any, nodes: Any, out: Any) -> None:
    """Execute the work listed for the windows begun:ended, for one atom; each window's total is its root node, 0 if it is empty.

    As in :mod:`windowmill.windowing.kernels.two_stacks`, calls with constants are specialized.
    """
    i, f = line[1], line[2]
    if line[0] == op.ADD and line[3] == 1:
        _do(op.ADD, i, f, 1, 0, begun, ended, listed, given, nodes, out)
    elif line[0] == op.MOMENTS:
        _do(op.MOMENTS, i, f, 1, 3, begun, ended, listed, given, nodes, out)
    elif line[0] == op.PICK_GREATEST:
        _do(op.PICK_GREATEST, i, f, 2, 0, begun, ended, listed, given, nodes, out)
    elif line[0] == op.PICK_LEAST:
        _do(op.PICK_LEAST, i, f, 2, 0, begun, ended, listed, given, nodes, out)
    else:
        _do(line[0], i, f, line[3], line[4], begun, ended, listed, given, nodes, out)


@inlined
def _do(
    operation: int, i: int, f: int, n_ints: int, n_floats: int, begun: int, ended: int, listed: Any, given: Any, nodes: Any, out: Any
) -> None:
    work, work_ends, roots = listed
    ints, floats = given
    node_ints, node_floats = nodes
    out_ints, out_floats = out
    done = 0
    for window in range(begun, ended):
        for index in range(done, work_ends[window]):
            node, left, right = work[index, 0], work[index, 1], work[index, 2]
            if right >= 0:
                combine_atom(
                    operation, i, f, n_ints, node_ints, node_floats, left, node_ints, node_floats, right, node_ints, node_floats, node
                )
            elif right == COPIED_LEAF:
                copy_atom(i, f, n_ints, n_floats, ints, floats, left, node_ints, node_floats, node)
            else:
                copy_atom(i, f, n_ints, n_floats, node_ints, node_floats, left, node_ints, node_floats, node)
        done = work_ends[window]
        if roots[window] > 0:
            copy_atom(i, f, n_ints, n_floats, node_ints, node_floats, roots[window], out_ints, out_floats, window)
        else:
            clear_atom(operation, i, f, n_ints, n_floats, out_ints, out_floats, window)


@inlined
def _list(work: Ints, listed: int, node: int, left: int, right: int) -> Any:
    work[listed, 0], work[listed, 1], work[listed, 2] = node, left, right
    return listed + 1


@inlined
def _touch(node: int, stamp: int, trie: Trie, n_touched: int) -> Any:
    """List ``node`` and the nodes above it, unless they are listed."""
    while node > 0 and trie.stamps[node] != stamp:
        trie.stamps[node] = stamp
        trie.touched[n_touched] = node
        n_touched += 1
        node = trie.parent[node]
    return n_touched


@inlined
def _fork(left: int, right: int) -> Any:
    """The level of the least aligned stretch that holds both positions; −1 if they are the same."""
    differing, level = left ^ right, -1
    while differing > 0:
        differing >>= 1
        level += 1
    return level + 1 if level >= 0 else -1


@inner
def _build(begin: Ints, first: int, stop: int, trie: Trie) -> None:
    """Build the empty trie of the items first:stop; O(n).

    Between neighbours stands the node of the least stretch that holds both. Nodes whose right part is still growing form a stack with
    descending levels, which is threaded through their parents.
    """
    n_nodes, top = 0, 0
    for item in range(first, stop):
        n_nodes += 1
        # Numbers of nodes ascend as nodes become whole; those that grow get theirs when they do.
        node = n_nodes
        trie.left[node] = trie.right[node] = 0
        trie.level[node] = 0
        trie.node_of[item - first] = node
        level = WHOLE + 1 if item + 1 == stop else _fork(begin[item], begin[item + 1])
        # `touched` and `stamps` hold the stack while the trie is built: the left part of each growing node, and its level.
        while top > 0 and trie.stamps[top] < level:
            n_nodes += 1
            left = trie.touched[top]
            trie.left[n_nodes], trie.right[n_nodes], trie.level[n_nodes] = left, node, trie.stamps[top]
            trie.parent[left] = trie.parent[node] = n_nodes
            node = n_nodes
            top -= 1
        if item + 1 < stop:
            top += 1
            trie.touched[top], trie.stamps[top] = node, level
        else:
            trie.parent[node] = 0
    trie.full[: n_nodes + 1] = False
    trie.stamps[: n_nodes + 1] = 0


@inner
def _root(begin: Ints, first: int, stop: int, trie: Trie, low: int, level: int) -> Any:
    """The node of the stretch of 2^level positions from ``low``; 0 if it holds no item. O(log n)."""
    if level >= WHOLE:
        return 2 * (stop - first) - 1 if stop > first else 0
    left, right = first, stop
    while left < right:
        middle = (left + right) >> 1
        if begin[middle] < low:
            left = middle + 1
        else:
            right = middle
    if left == stop or begin[left] >> level != low >> level:
        return 0
    node = trie.node_of[left - first]
    while trie.parent[node] > 0 and trie.level[trie.parent[node]] <= level:
        node = trie.parent[node]
    return node


@njit
def window_changes(offsets: Ints, keys: Ints, hi: Ints, gone_to: Ints, removed: Ints, alive: Bools) -> Any:
    """The changes of each window's items, key by key, and at last those that leave just the items ``alive`` after the batch.

    Parameters
    ----------
    offsets
        Key k's items are ``offsets[k]:offsets[k + 1]``.
    keys, hi, gone_to
        For each window, in the order of keys: its key; it has taken in its key's items before ``hi``, and lost ``removed[:gone_to]``.

    Returns
    -------
    tuple
        Offsets of the changes of each total: of each key its windows and one more; items; and whether each is present.
    """
    n_keys = len(offsets) - 1
    change_offsets = np.zeros(len(keys) + n_keys + 1, np.int64)
    items, present = np.empty(len(alive) + len(removed), np.int64), np.empty(len(alive) + len(removed), np.bool_)
    count = total = window = left = 0
    for key in range(n_keys):
        met, stop = offsets[key], offsets[key + 1]
        while left < len(removed) and removed[left] < met:
            left += 1
        while window < len(keys) and keys[window] == key:
            for item in range(met, hi[window]):
                items[count], present[count] = item, True
                count += 1
            met = max(met, hi[window])
            while left < gone_to[window]:
                items[count], present[count] = removed[left], False
                count, left = count + 1, left + 1
            window, total = window + 1, total + 1
            change_offsets[total] = count
        while left < len(removed) and removed[left] < stop:
            if removed[left] < met:
                items[count], present[count] = removed[left], False
                count += 1
            left += 1
        for item in range(met, stop):
            if alive[item]:
                items[count], present[count] = item, True
                count += 1
        total += 1
        change_offsets[total] = count
    return change_offsets, items[:count].copy(), present[:count].copy()
