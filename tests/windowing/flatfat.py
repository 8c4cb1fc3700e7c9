"""FlatFAT: the flat fixed-sized aggregator, a complete binary tree of partials in one array."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

from windowmill.windowing.algebra import P, identical


class FlatFat(Generic[P]):
    """Array tree of partials: root at 1, children of v at 2v and 2v + 1, slot s at ``capacity + s``.

    ::

                         1
                 2               3                 v holds T(2v) ⊕ T(2v + 1)
             4       5       6       7
           8   9  10  11  12  13  14  15           capacity 8
           0   1   2   3   4   5   6   7           slots; the paper's leaf i, counted from 1, is slot i - 1; both are node n + i - 1
    ``None`` is the paper's ⊥, an empty slot: x ⊕ ⊥ = x and ⊥ ⊕ y = y without a combine. ``capacity`` is a power of two: only then
    do leaves stay in stream order, as a non-commutative ``combine`` needs.

    Cost in combines: new n - 1; update of m slots at most m(1 + ceil(log2(n / m))); prefix and suffix at most log2 n; aggregate 0.

    Source: Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation" (PVLDB 8(7), 2015), section 4.
    """

    def __init__(self, combine: Callable[[P, P], P], slots: Sequence[P | None]) -> None:
        """``new``: build a tree over ``slots``, whose number is the capacity; at most capacity - 1 combines."""
        if not slots or len(slots) & (len(slots) - 1):
            raise ValueError(f"slots: got {len(slots)}; expected a power of two")
        self.capacity = len(slots)
        self._combine = combine
        self._nodes: list[P | None] = [*([None] * self.capacity), *slots]
        for node in range(self.capacity - 1, 0, -1):
            self._nodes[node] = self._join(self._nodes[2 * node], self._nodes[2 * node + 1])

    def _join(self, older: P | None, newer: P | None) -> P | None:
        if older is None or newer is None:
            return newer if older is None else older
        return self._combine(older, newer)

    def slots(self) -> list[P | None]:
        """All slots in array order."""
        return self._nodes[self.capacity :]

    def update(self, changes: Mapping[int, P | None]) -> None:
        """Write the slots of ``changes``, then recompute each inner node above them once, level by level."""
        for slot, partial in changes.items():
            self._nodes[self.capacity + slot] = partial
        self._repair({(self.capacity + slot) // 2 for slot in changes})

    def _repair(self, level: set[int]) -> None:
        nodes, join = self._nodes, self._join
        level.discard(0)  # the root's parent, when the root is the only node
        while level:
            for node in level:
                nodes[node] = join(nodes[2 * node], nodes[2 * node + 1])
            level = {node // 2 for node in level if node > 1}

    def aggregate(self) -> P | None:
        """All slots combined in array order; 0 combines."""
        return self._nodes[1]

    def prefix(self, slot: int) -> P | None:
        """Slots 0 to ``slot``, both included, combined; at most log2(capacity) combines."""
        node = self.capacity + slot
        total = self._nodes[node]
        while node > 1:
            if node % 2 == 1:
                total = self._join(self._nodes[node - 1], total)
            node //= 2
        return total

    def suffix(self, slot: int) -> P | None:
        """Slots from ``slot`` to the last, both included, combined; at most log2(capacity) combines."""
        node = self.capacity + slot
        total = self._nodes[node]
        while node > 1:
            if node % 2 == 0:
                total = self._join(total, self._nodes[node + 1])
            node //= 2
        return total

    def compact(self, front: int) -> list[int]:
        """Move the full slots together, in ring order from ``front``, and repair the nodes above them once; at most capacity - 1 combines.

        Returns
        -------
        list of int
            New slot of each old slot, -1 for an empty one; length ``capacity``.
        """
        slots, moves = self.slots(), [-1] * self.capacity
        packed: list[P | None] = [None] * self.capacity
        for rank, slot in enumerate(_ring(slots, front)):
            moves[slot] = (front + rank) % self.capacity
            packed[moves[slot]] = slots[slot]
        self.update({slot: new for slot, (old, new) in enumerate(zip(slots, packed, strict=True)) if old is not new})
        return moves

    def resized(self, capacity: int, front: int) -> tuple[FlatFat[P], list[int]]:
        """A tree of ``capacity`` slots that begins with the full slots in ring order from ``front``, and the moves as in ``compact``."""
        slots, moves = self.slots(), [-1] * self.capacity
        order = list(_ring(slots, front))
        if len(order) > capacity:
            raise ValueError(f"capacity: got {capacity} for {len(order)} full slots; expected at least as many")
        for rank, slot in enumerate(order):
            moves[slot] = rank
        packed = [slots[slot] for slot in order]
        return FlatFat(self._combine, packed + [None] * (capacity - len(packed))), moves

    def check(self) -> None:
        """Check that every inner node combines its children; capacity - 1 combines.

        Raises
        ------
        AssertionError
            Names the first node that does not.
        """
        for node in range(self.capacity - 1, 0, -1):
            wanted = self._join(self._nodes[2 * node], self._nodes[2 * node + 1])
            if not identical(self._nodes[node], wanted):
                raise AssertionError(f"flatfat: node {node} holds {self._nodes[node]!r}; its children combine to {wanted!r}")


def _ring(slots: Sequence[object], front: int) -> Iterable[int]:
    """Indexes of the full slots in ring order from ``front``."""
    return (slot for slot in (*range(front, len(slots)), *range(front)) if slots[slot] is not None)
