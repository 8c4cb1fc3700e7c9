"""Ring buffers of FlatFAT's leaves: the leaves of a window are adjacent in a ring, with gaps where some were removed.

::

    ring     │ 9 │ ⊥ │ 3 │ 2 │       indices into the sequence of leaves, ⊥ for a removed one; the window runs from front to back,
               B       F             in this case across the end of the array: 3, 2, 9

The slot of a leaf depends on the windows alone, not on aggregates: :func:`ring_changes` computes it once for all of them. Slots are kept
between batches, so that partials are combined in the same order however the input is split.

References
----------
Tangwongsan, Hirzel, Schneider and Wu (2015), General incremental sliding-window aggregation, PVLDB 8(7), sections 4 and 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windowmill.windowing.kernels.arrays import grown_table, put
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.compilation import helper, inlined, inner, njit

#: Markers for a leaf that has no slot yet, or no longer has one.
PENDING, GONE = -1, -2
#: Fewest slots of a ring.
LEAST = 4


@njit
def ring_changes(offsets: Ints, keys: Ints, begins: Ints, hi: Ints, gone: Ints, removed: Ints, slots: Ints, capacities: Ints) -> Any:
    """Assign a slot to every leaf that enters, and list the changes of the ring for each window; amortised O(1) per leaf.

    A full ring is compacted if at most 3/4 of its slots hold leaves, otherwise doubled; below a quarter it is halved.

    Parameters
    ----------
    offsets, keys, begins
        Windows ``offsets[g]:offsets[g + 1]`` belong to key ``keys[g]``, whose leaves begin at index ``begins[g]`` of the sequence.
    hi, gone, removed
        Window w has added its key's leaves before index ``hi[w]`` of the sequence. Since the previous window, the leaves
        ``removed[gone[w, 0]:gone[w, 1]]`` were removed.
    slots, capacities
        Slot of each leaf of the sequence, ``PENDING`` if no window has added it yet; capacity of each key's ring, 0 for none. Updated in
        place.

    Returns
    -------
    tuple
        For each window: capacity, front, number of slots from front to back, whether the tree starts empty, and the offset of its
        changes. For each change: the slot, and the index of its new leaf (−1: ⊥). The last change of a slot applies.
    """
    n = len(hi)
    capacity, front, span, fresh = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    change_offsets, count = np.zeros(n + 1, np.int64), 0
    changes = np.empty((2 * n + len(removed) + 16, 2), np.int64)
    ring, packed = np.full(LEAST, -1, np.int64), np.empty(LEAST, np.int64)
    for group in range(len(keys)):
        size, met, first_window = capacities[keys[group]], begins[group], offsets[group]
        ring, packed = _roomy(ring, packed, size)
        head, held, length = _fill(ring, size, slots, met, hi[first_window])
        for window in range(first_window, offsets[group + 1]):
            first_gone, last_gone, stop = gone[window, 0], gone[window, 1], hi[window]
            most = count + last_gone - first_gone + held + stop - met
            if most > len(changes):
                changes = grown_table(changes, most)
            count, held = _leave(ring, slots, removed, first_gone, last_gone, held, changes, count)
            entering = _count_pending(slots, met, stop)
            head, length = _trim(ring, size, head, length, held)
            fresh[window] = window == first_window
            if length + entering > size or (size > LEAST and 4 * (held + entering) < size):
                fresh[window] = True
                _pack(ring, size, head, length, packed)
                size = _fitting(size, held + entering)
                ring, packed = _roomy(ring, packed, size)
                _unpack(packed, held, ring, size, slots)
                head, length = 0, held
            if fresh[window]:
                count = _write_all(ring, size, head, length, changes, change_offsets[window])
            count, held, length = _enter(ring, size, head, length, held, slots, met, stop, changes, count)
            met = max(met, stop)
            capacity[window], front[window], span[window], change_offsets[window + 1] = size, head, length, count
        capacities[keys[group]] = size
    return capacity, front, span, fresh, change_offsets, changes[:count, 0].copy(), changes[:count, 1].copy()


@helper
def _roomy(ring: Ints, packed: Ints, size: int) -> Any:
    """Grow both arrays to at least ``size`` elements; keeps the content of ``packed`` only."""
    if size <= len(ring):
        return ring, packed
    larger = np.empty(size, np.int64)
    put(packed, larger)
    return np.empty(size, np.int64), larger


@inner
def _fill(ring: Ints, size: int, slots: Ints, begin: int, end: int) -> Any:
    """Fill the ring with the leaves of begin:end that have slots; returns first slot, number of leaves, and slots through the last."""
    ring[:size] = -1
    head = held = length = 0
    for place in range(begin, end):
        slot = slots[place]
        if slot >= 0:
            ring[slot] = place
            head = slot if held == 0 else head
            held, length = held + 1, ((slot - head) & (size - 1)) + 1
    return head, held, length


@inlined
def _leave(ring: Ints, slots: Ints, removed: Ints, first: int, last: int, held: int, changes: Ints, count: int) -> Any:
    """Remove the leaves ``removed[first:last]``; returns the numbers of changes and of leaves in the ring."""
    for index in range(first, last):
        place = removed[index]
        slot, slots[place] = slots[place], GONE
        if slot >= 0:
            ring[slot] = -1
            changes[count, 0], changes[count, 1] = slot, -1
            count, held = count + 1, held - 1
    return count, held


@inlined
def _count_pending(slots: Ints, first: int, last: int) -> Any:
    entering = 0
    for place in range(first, last):
        entering += 1 if slots[place] == PENDING else 0
    return entering


@inlined
def _trim(ring: Ints, size: int, head: int, length: int, held: int) -> Any:
    """Slot of the first leaf, and number of slots through the last one, without ⊥ at either end."""
    if held == 0:
        head = length = 0
    else:
        while ring[head] < 0:
            head, length = (head + 1) & (size - 1), length - 1
        while ring[(head + length - 1) & (size - 1)] < 0:
            length -= 1
    return head, length


@inner
def _pack(ring: Ints, size: int, head: int, length: int, packed: Ints) -> None:
    """List the leaves from front to back."""
    rank = 0
    for step in range(length):
        place = ring[(head + step) & (size - 1)]
        if place >= 0:
            packed[rank] = place
            rank += 1


@inner
def _fitting(size: int, held: int) -> Any:
    """New capacity of a ring of ``size`` slots for ``held`` leaves."""
    if 4 * held > 3 * size:
        size = max(2 * size, LEAST)
    while size < held:
        size *= 2
    while size > LEAST and 4 * held < size:
        size //= 2
    return size


@inner
def _unpack(packed: Ints, held: int, ring: Ints, size: int, slots: Ints) -> None:
    """Put the listed leaves into the slots from 0 on."""
    ring[:size] = -1
    for slot in range(held):
        ring[slot], slots[packed[slot]] = packed[slot], slot


@inner
def _write_all(ring: Ints, size: int, head: int, length: int, changes: Ints, count: int) -> Any:
    """Write each leaf of the ring as a change, from index ``count`` on; returns the index after the last."""
    for step in range(length):
        slot = (head + step) & (size - 1)
        if ring[slot] >= 0:
            changes[count, 0], changes[count, 1] = slot, ring[slot]
            count += 1
    return count


@inlined
def _enter(ring: Ints, size: int, head: int, length: int, held: int, slots: Ints, first: int, last: int, changes: Ints, count: int) -> Any:
    """Assign the slots after the last leaf to the pending leaves of first:last; returns numbers of changes, of leaves and of used slots."""
    for place in range(first, last):
        if slots[place] == PENDING:
            slot = (head + length) & (size - 1)
            ring[slot], slots[place] = place, slot
            changes[count, 0], changes[count, 1] = slot, place
            count, held, length = count + 1, held + 1, length + 1
    return count, held, length


@njit
def ring_members(capacity: Ints, front: Ints, span: Ints, fresh: Bools, change_offsets: Ints, slots: Ints, leaves: Ints) -> Any:
    """Offsets of each window's leaves, shape (n_windows + 1,), and the leaves from front to back; linear in slots and changes."""
    n, largest = len(capacity), 1
    for window in range(n):
        largest = max(largest, capacity[window])
    ring = np.full(largest, -1, np.int64)
    offsets, members, count = np.zeros(n + 1, np.int64), np.empty(16, np.int64), 0
    for window in range(n):
        if fresh[window]:
            ring[:] = -1
        for index in range(change_offsets[window], change_offsets[window + 1]):
            ring[slots[index]] = leaves[index]
        if count + span[window] > len(members):
            # With `arrays.grown` the kernel takes about 5 % longer.
            larger = np.empty(2 * (count + span[window]), np.int64)
            put(members[:count], larger)
            members = larger
        for step in range(span[window]):
            leaf = ring[(front[window] + step) & (capacity[window] - 1)]
            if leaf >= 0:
                members[count] = leaf
                count += 1
        offsets[window + 1] = count
    return offsets, members[:count]
