"""Recompute: keep the partials, combine all of them each time."""

from __future__ import annotations

from collections import deque

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.engines.base import Engine, Snapshot, filled


class Recompute(Engine[P]):
    """The plain way, and the yardstick of all others.

    ::

        evict ◀── [ p0 | p1 | p2 | … | pn-1 ] ◀── insert          query = p0 ⊕ p1 ⊕ … ⊕ pn-1

    Cost: insert 0, evict 0, query n - 1. Space n. Best for windows of a handful of partials.
    """

    name = "recompute"

    def __init__(self, aggregate: Aggregate[P]) -> None:
        super().__init__(aggregate)
        self._partials: deque[P] = deque()

    def insert(self, partial: P) -> None:
        self._partials.append(partial)

    def evict(self) -> None:
        if self._partials:
            self._partials.popleft()

    def query(self) -> P:
        return self.aggregate.fold(self._partials)

    def __len__(self) -> int:
        return len(self._partials)

    def snapshot(self) -> Snapshot[P]:
        return Snapshot(self.name, tuple(self._partials))

    def _load(self, snapshot: Snapshot[P]) -> None:
        self._partials = deque(filled(snapshot))

    def check(self) -> None:
        width = len(self.aggregate.fields)
        self._expect(all(len(partial) == width for partial in self._partials), f"every partial has {width} fields")
