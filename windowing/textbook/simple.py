"""The two simplest engines: one recomputes each window from its partials, one deducts what leaves."""

from __future__ import annotations

import math
from collections import deque

from windowmill.windowing.algebra import Aggregate, P, close, outcome
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting, filled


class Recompute(Engine[P]):
    """The naive engine, to which the others are compared.

    ::

        evict ◀── [ p0 | p1 | p2 | … | pn-1 ] ◀── insert          query = p0 ⊕ p1 ⊕ … ⊕ pn-1

    Cost in combines: insert 0, evict 0, query n - 1. Space n. Best for windows of a few partials.
    """

    name = "recompute"
    cost = Combines("n − 1", lambda n, _m: n - 1)
    oldest_only = False

    @classmethod
    def why_not(cls, setting: Setting) -> str:
        n, m, stored = setting.shape.n, setting.shape.m, setting.stored
        if setting.positions:
            return "would read all leaves of a window from the state, not 2·log2 n nodes"
        if not setting.shape.in_order:
            return "cheaper only in windows of a few tuples"
        if setting.shape.alone:
            return "half the combines; one kernel serves all windows of a run" if stored else "the same, as windows do not overlap"
        if n is None or m is None:
            return "cheaper only while n is below 2m + 2"
        if n <= 2 * m + 2:
            return "no dearer; one kernel serves all windows"
        windows = math.floor((2 * (n - m) if stored else n) / (n - 2 * m - 2))
        return f"cheaper only in batches that complete at most {windows:,} window{'s' * (windows != 1)} of a key"

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

    def snapshot(self) -> EngineState[P]:
        return EngineState(self.name, tuple(self._partials))

    def _load(self, snapshot: EngineState[P]) -> None:
        self._partials = deque(filled(snapshot))

    def check(self) -> None:
        width = len(self.aggregate.fields)
        self._expect(all(len(partial) == width for partial in self._partials), f"every partial has {width} fields")


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
