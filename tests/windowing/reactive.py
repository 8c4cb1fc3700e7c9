"""The Reactive Aggregator, the oracle of windows over positions: any size, any eviction order, on the slots of a FlatFAT."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from tests.windowing.flatfat import FlatFat
from windowmill.windowing.algebra import Aggregate, Field, P

#: Text joined in order: a swapped operand, a lost or doubled partial all show.
JOINED: Aggregate[tuple[str]] = Aggregate(
    "joined",
    kind="joined",
    fields=(Field("text", "string"),),
    identity=("",),
    lift=lambda args, at: (args[0],),
    combine=lambda a, b: (a[0] + b[0],),
    lower=lambda partial: partial[0],
    fixed_size=False,
)


def counted(aggregate: Aggregate[P]) -> tuple[Aggregate[P], list[int]]:
    """The same aggregate, with a tally of its combines."""
    tally = [0]

    def combine(a: P, b: P) -> P:
        tally[0] += 1
        return aggregate.combine(a, b)

    return replace(aggregate, combine=combine), tally


def update_combines(n: float, changes: float) -> float:
    """Upper bound on the combines of an update of ``changes`` leaves in a tree over n leaves: m(1 + ⌈log2(n/m)⌉)."""
    capacity = 1 << max(0, math.ceil(math.log2(n)))
    return changes * (1 + max(0, math.ceil(math.log2(capacity / changes))))


class Snapshot(NamedTuple):
    """The state of a :class:`ReactiveAggregator`: its slots, ``None`` where ⊥, and a few integers."""

    slots: tuple[Any, ...]
    front: int
    span: int
    least: int


class ReactiveAggregator(Generic[P]):
    """A circular buffer on FlatFAT's slots; an evicted partial leaves ⊥ in its slot.

    ::

        slots   │ 9 │ 7 │ 3 │ 2 │       window 7, 3, 2, 9: the buffer is inverted, back B is before front F,
                  B   F                 so query = suffix(F) ⊕ prefix(B) = (7 ⊕ 3 ⊕ 2) ⊕ 9; else it is the tree's root

        full, at most 3/4 of the slots in use:  compact          full otherwise:  double the capacity
        less than 1/4 in use after an eviction: halve the capacity, not below the first one

    Insertions and evictions only record their slots. The next query writes the changes together, so m changes of a window of n cost at
    most m(1 + ceil(log2(n / m))) combines, and at most log2 n more if the buffer is inverted: O(log n) for one change, O(m) for
    many. Compacting and resizing are amortised O(1). Space 2 · capacity, at most 8n.

    ``add`` returns a handle that identifies the partial. Handles increase in order of insertion, and start from 0 again after a restore.

    Source: Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation" (PVLDB 8(7), 2015), section 5.
    """

    def __init__(self, aggregate: Aggregate[P], capacity: int = 16) -> None:
        self.aggregate = aggregate
        self._least = capacity
        self._tree: FlatFat[P] = FlatFat(aggregate.combine, [None] * capacity)
        self._front = 0
        self._span = 0
        self._pending: dict[int, P | None] = {}
        self._slot_of: dict[int, int] = {}
        self._handle_at: list[int | None] = [None] * capacity
        self._next = 0

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._tree.capacity

    @property
    def front(self) -> int:
        """Slot of the oldest partial."""
        return self._front

    @property
    def back(self) -> int:
        """Slot of the youngest partial."""
        return (self._front + self._span - 1) % self.capacity

    @property
    def inverted(self) -> bool:
        """Whether the window wraps around the end of the array."""
        return self._front + self._span > self.capacity

    def insert(self, partial: P) -> None:
        """:meth:`add` it."""
        self.add(partial)

    def add(self, partial: P) -> int:
        """Add ``partial`` at the young end and return its handle."""
        if self._span == self.capacity:
            self._make_room()
        slot = (self._front + self._span) % self.capacity
        self._span += 1
        handle, self._next = self._next, self._next + 1
        self._slot_of[handle] = slot
        self._handle_at[slot] = handle
        self._pending[slot] = partial
        return handle

    def evict(self) -> None:
        """Remove the oldest partial; does nothing in an empty window."""
        if self._slot_of:
            handle = self._handle_at[self._front]
            assert handle is not None
            self.remove(handle)

    def remove(self, handle: int) -> None:
        """Remove the partial of ``handle``, at any position in the window."""
        slot = self._slot_of.pop(handle)
        self._handle_at[slot] = None
        self._pending[slot] = None
        while self._span and self._handle_at[self._front] is None:
            self._front = (self._front + 1) % self.capacity
            self._span -= 1
        while self._span and self._handle_at[self.back] is None:
            self._span -= 1
        if 4 * len(self._slot_of) < self.capacity and self.capacity > self._least:
            self._resize(self.capacity // 2)

    def query(self) -> P:
        """The partials of the window combined in order; the identity if it is empty."""
        self._flush()
        tree = self._tree
        total = self._join(tree.suffix(self._front), tree.prefix(self.back)) if self.inverted else tree.aggregate()
        return self.aggregate.identity if total is None else total

    def _join(self, older: P | None, newer: P | None) -> P | None:
        if older is None or newer is None:
            return newer if older is None else older
        return self.aggregate.combine(older, newer)

    def _flush(self) -> None:
        if self._pending:
            self._tree.update(self._pending)
            self._pending = {}

    def _make_room(self) -> None:
        if 4 * len(self._slot_of) > 3 * self.capacity:
            self._resize(2 * self.capacity)
            return
        self._flush()
        self._settle(self._tree.compact(self._front), self._front)

    def _resize(self, capacity: int) -> None:
        # Write the pending slots first: the new tree is built from the slots of the old one.
        self._flush()
        self._tree, moves = self._tree.resized(capacity, self._front)
        self._settle(moves, 0)

    def _settle(self, moves: list[int], front: int) -> None:
        self._slot_of = {handle: moves[slot] for handle, slot in self._slot_of.items()}
        self._handle_at = [None] * self.capacity
        for handle, slot in self._slot_of.items():
            self._handle_at[slot] = handle
        self._front, self._span = front, len(self._slot_of)

    def __len__(self) -> int:
        return len(self._slot_of)

    def slots(self) -> list[P | None]:
        """All slots in array order, ``None`` where ⊥."""
        self._flush()
        return self._tree.slots()

    def snapshot(self) -> Snapshot:
        """The state for storage, independent of later changes."""
        return Snapshot(tuple(self.slots()), self._front, self._span, self._least)

    @classmethod
    def restore(cls, aggregate: Aggregate[P], snapshot: Snapshot) -> ReactiveAggregator[P]:
        """An aggregator with the state of ``snapshot``: of the same structure, so that its later results have the same bits."""
        slots, front, span, least = snapshot
        restored = cls(aggregate, least)
        restored._front, restored._span = front, span
        restored._tree = FlatFat(aggregate.combine, slots)
        restored._handle_at = [None] * len(slots)
        for step in range(span):
            slot = (front + step) % len(slots)
            if slots[slot] is not None:
                restored._slot_of[restored._next] = slot
                restored._handle_at[slot] = restored._next
                restored._next += 1
        return restored

    def check(self) -> None:
        """Check every invariant; O(n) combines."""
        self._flush()
        self._tree.check()
        live = [slot for slot, partial in enumerate(self._tree.slots()) if partial is not None]
        assert live == sorted(self._slot_of.values())
        ring = [(slot - self._front) % self.capacity for slot in self._slot_of.values()]
        assert ring == sorted(ring), "handles are in ring order from front"
        assert not ring or (ring[0] == 0 and ring[-1] == self._span - 1), "front and back are full"
        assert ring or self._span == 0
        # Halving to two slots may leave both empty, with nothing more to evict.
        assert 4 * len(ring) >= self.capacity or self.capacity <= max(self._least, 2)
