"""Subtract-on-evict: keep a running total, and deduct evicted partials."""

from __future__ import annotations

from collections import deque

from windowmill.windowing.algebra import Aggregate, P, close, outcome
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, filled


class SubtractOnEvict(Engine[P]):
    """One running total, for aggregates with an exact ``deduct``.

    ::

        evict ◀── [ p0 | p1 | … | pn-1 ] ◀── insert
                    └────── total ─────┘           evict: total ⊖ p0        insert: total ⊕ p

    Cost in combines and deducts: insert 1, evict 1, query 0. Space n + 1. The constructor refuses an aggregate without an exact ``deduct``:
    a difference of floating-point sums keeps the rounding errors, and any infinity or NaN, of evicted values.
    """

    name = "subtract"
    cost = Combines("2m", lambda _n, m: 2 * m)
    not_taken = "no kernel deducts: one pass combines the atoms of all aggregates"
    needs = ("invertible",)

    def __init__(self, aggregate: Aggregate[P]) -> None:
        super().__init__(aggregate)
        self._partials: deque[P] = deque()
        self._total = aggregate.identity

    def insert(self, partial: P) -> None:
        self._partials.append(partial)
        self._total = self.aggregate.combine(self._total, partial)

    def evict(self) -> None:
        if self._partials:
            assert self.aggregate.deduct is not None
            self._total = self.aggregate.deduct(self._total, self._partials.popleft())

    def query(self) -> P:
        return self._total

    def __len__(self) -> int:
        return len(self._partials)

    def snapshot(self) -> EngineState[P]:
        return EngineState(self.name, (*self._partials, self._total))

    def _load(self, snapshot: EngineState[P]) -> None:
        *window, self._total = filled(snapshot)
        self._partials = deque(window)

    def check(self) -> None:
        wanted = outcome(self.aggregate, self.aggregate.fold(self._partials))
        got = outcome(self.aggregate, self._total)
        self._expect(close(got, wanted), f"the total lowers to {got!r}, the window's partials to {wanted!r}")
