"""The Reactive Aggregator: a window of any size, with any eviction order, kept in the slots of a FlatFAT."""

from __future__ import annotations

import math

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.errors import StateError
from windowmill.windowing.flatfat import FlatFat, update_combines
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting


class ReactiveAggregator(Engine[P]):
    """A circular buffer on FlatFAT's slots; an evicted partial leaves ⊥ in its slot.

    ::

        slots   │ 9 │ 7 │ 3 │ 2 │       window 7, 3, 2, 9: the buffer is inverted, back B is before front F,
                  B   F                 so query = suffix(F) ⊕ prefix(B) = (7 ⊕ 3 ⊕ 2) ⊕ 9; else it is the tree's root

        full, at most 3/4 of the slots in use:  compact          full otherwise:  double the capacity
        less than 1/4 in use after an eviction: halve the capacity, not below the first one

    Insertions and evictions only record their slots. The next query writes the changes together, so m changes of a window of n cost at
    most m(1 + ceil(log2(n / m))) combines, and at most log2 n more if the buffer is inverted: O(log n) for one change, O(m) for
    many. Compacting and resizing are amortised O(1). Space 2 · capacity, at most 8n.

    ``add`` returns a handle that identifies the partial; ``handles`` lists the handles in window order. Handles increase in order of
    insertion, and start from 0 again after a restore.

    Source: Tangwongsan, Hirzel, Schneider and Wu, "General Incremental Sliding-Window Aggregation" (PVLDB 8(7), 2015), section 5.
    """

    name = "flatfat"
    cost = Combines("2m(1 + ⌈log2(n/2m)⌉) + log2 n", lambda n, m: update_combines(n, 2 * m) + math.ceil(math.log2(n)))
    oldest_only = False

    @classmethod
    def why_not(cls, setting: Setting) -> str:
        here = "here the oldest leaves" if setting.shape.in_order else "its kernel takes what a delta evicts only"
        return f"lets tuples leave from anywhere; {here}"

    def __init__(self, aggregate: Aggregate[P], capacity: int = 16) -> None:
        super().__init__(aggregate)
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

    def replace(self, handle: int, partial: P) -> None:
        """Replace the partial of ``handle`` by ``partial``."""
        self._pending[self._slot_of[handle]] = partial

    def handles(self) -> list[int]:
        """Handles of the partials in the window, oldest first."""
        return list(self._slot_of)

    def query(self) -> P:
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

    def snapshot(self) -> EngineState[P]:
        return EngineState(self.name, tuple(self.slots()), {"front": self._front, "span": self._span, "least": self._least})

    def _load(self, snapshot: EngineState[P]) -> None:
        partials = snapshot.partials
        capacity, self._front, self._span = len(partials), snapshot.scalars["front"], snapshot.scalars["span"]
        if capacity < 1 or capacity & (capacity - 1) or not (0 <= self._front < capacity and 0 <= self._span <= capacity):
            raise StateError(f"stored FlatFAT of {capacity} slots, front {self._front}, span {self._span} cannot be. Rebuild the state")
        self._least = snapshot.scalars["least"]
        self._tree = FlatFat(self.aggregate.combine, partials)
        self._handle_at = [None] * capacity
        for step in range(self._span):
            slot = (self._front + step) % capacity
            if partials[slot] is not None:
                self._slot_of[self._next] = slot
                self._handle_at[slot] = self._next
                self._next += 1

    def check(self) -> None:
        self._flush()
        self._tree.check()
        live = [slot for slot, partial in enumerate(self._tree.slots()) if partial is not None]
        self._expect(live == sorted(self._slot_of.values()), f"full slots {live} are those of the handles")
        ring = [(slot - self._front) % self.capacity for slot in self._slot_of.values()]
        self._expect(ring == sorted(ring), "handles stand in ring order from front")
        self._expect(not ring or (ring[0] == 0 and ring[-1] == self._span - 1), f"front and back are full; span {self._span}, ring {ring}")
        self._expect(bool(ring) or self._span == 0, f"an empty window has span 0; it is {self._span}")
        # Halving to two slots may leave both empty, with nothing more to evict.
        self._expect(
            4 * len(ring) >= self.capacity or self.capacity <= max(self._least, 2), f"{len(ring)} of {self.capacity} slots are too few"
        )
