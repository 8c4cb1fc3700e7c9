"""FlatFAT over arenas: trees over ring buffers, for windows whose leaves enter in order and are removed in any order.

::

    tree             1
                 2       3           node v holds node 2v ⊕ node 2v + 1; an empty side costs no combine
               4   5   6   7         slot s is node capacity + s

:func:`windowmill.windowing.kernels.rings.ring_changes` assigns leaves to slots. :func:`tree_windows` applies the changes of each window as
one update: it first lists the work, each inner node once, and then combines atom by atom.

References
----------
Tangwongsan, Hirzel, Schneider and Wu (2015), General incremental sliding-window aggregation, PVLDB 8(7), sections 4 and 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels import combine as op
from windowmill.windowing.kernels.combine import Bools, Floats, Ints, clear_atom, combine_atom, copy_atom
from windowmill.windowing.kernels.compilation import inlined, inner, njit

#: Markers in place of a right operand: copy the left operand, a leaf or a node.
COPIED_LEAF, COPIED_NODE = -1, -2
#: Capacity of the work list; greater if one window needs more.
_LISTED = 2048


@njit
def tree_windows(
    program: Ints,
    ints: Ints,
    floats: Floats,
    capacity: Ints,
    fresh: Bools,
    change_offsets: Ints,
    slots: Ints,
    leaves: Ints,
    out_ints: Ints,
    out_floats: Floats,
) -> None:
    """Combine each window's leaves into ``out_ints`` and ``out_floats``.

    Rings are as returned by :func:`~windowmill.windowing.kernels.rings.ring_changes`; ``leaves`` are rows of ``ints`` and ``floats``, −1
    empties the slot. The result is the root, wherever the window begins in the ring: except for rounding, atoms do not depend on the
    order, and rounding does not depend on how the input is split into batches. A window with m changes costs O(m log capacity) combines.
    """
    n, largest, most = len(capacity), 1, _LISTED
    for window in range(n):
        largest = max(largest, capacity[window])
        most = max(most, _most_work(capacity[window], change_offsets[window + 1] - change_offsets[window]))
    full, stamps, level = np.zeros(2 * largest, np.bool_), np.full(2 * largest, -1, np.int64), np.empty(largest, np.int64)
    node_ints, node_floats = np.empty((2 * largest, ints.shape[1]), np.int64), np.empty((2 * largest, floats.shape[1]), np.float64)
    work, work_ends, roots = np.empty((most, 3), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    ring, tree, listed = (capacity, fresh, change_offsets, slots, leaves), (full, stamps, level), (work, work_ends, roots)
    given, nodes, out = (ints, floats), (node_ints, node_floats), (out_ints, out_floats)
    begun = 0
    while begun < n:
        ended = _list_work(begun, ring, tree, listed)
        for line in range(len(program)):
            combine_listed(program[line], begun, ended, listed, given, nodes, out)
        begun = ended


@inlined
def _most_work(size: int, changes: int) -> Any:
    """Greatest number of work list entries for a window of ``size`` slots."""
    depth = 1
    while 1 << depth < size:
        depth += 1
    return min(changes * (depth + 1), changes + size)


@inner
def _list_work(begun: int, ring: Any, tree: Any, out: Any) -> Any:
    """List the work of windows from ``begun`` on as (node, left, right) while there is room; returns the first window left out."""
    capacity, fresh, change_offsets, slots, leaves = ring
    full, stamps, level = tree
    work, work_ends, roots = out
    listed = 0
    for window in range(begun, len(capacity)):
        size, first, last = capacity[window], change_offsets[window], change_offsets[window + 1]
        if listed + _most_work(size, last - first) > len(work):
            return window
        if fresh[window]:
            full[: max(2, 2 * size)] = False
        n_level = 0
        for index in range(first, last):
            node = size + slots[index]
            full[node] = leaves[index] >= 0
            if full[node]:
                listed = _list(work, listed, node, leaves[index], COPIED_LEAF)
            n_level = _touch(node >> 1, window, stamps, level, n_level)
        while n_level > 0:
            n_above = 0
            for index in range(n_level):
                node = level[index]
                left, right = 2 * node, 2 * node + 1
                if full[left] and full[right]:
                    listed = _list(work, listed, node, left, right)
                elif full[left] or full[right]:
                    listed = _list(work, listed, node, left if full[left] else right, COPIED_NODE)
                full[node] = full[left] or full[right]
                n_above = _touch(node >> 1, window, stamps, level, n_above)
            n_level = n_above
        roots[window] = 1 if full[1] else 0
        work_ends[window] = listed
    return len(capacity)


@inlined
def _list(work: Ints, listed: int, node: int, left: int, right: int) -> Any:
    work[listed, 0], work[listed, 1], work[listed, 2] = node, left, right
    return listed + 1


@inlined
def _touch(node: int, window: int, stamps: Ints, level: Ints, n_level: int) -> Any:
    """Add ``node`` to the nodes of ``level`` to update, unless it is listed already or above the root."""
    if node > 0 and stamps[node] != window:
        stamps[node] = window
        level[n_level] = node
        return n_level + 1
    return n_level


@inner
def combine_listed(line: Ints, begun: int, ended: int, listed: Any, given: Any, nodes: Any, out: Any) -> None:
    """Execute the work listed for the windows begun:ended, for one atom; each window's total is the node that is its root, 0 for none.

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
    operation: int,
    i: int,
    f: int,
    n_ints: int,
    n_floats: int,
    begun: int,
    ended: int,
    listed: Any,
    given: Any,
    nodes: Any,
    out: Any,
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
