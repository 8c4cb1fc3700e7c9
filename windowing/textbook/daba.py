"""DABA: two stacks whose flip is spread over all operations, so that no operation is slow."""

from __future__ import annotations

from windowmill.windowing.algebra import Aggregate, P, close, outcome
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, filled

_POINTERS = ("f", "l", "r", "a", "b", "e")


class Daba(Engine[P]):
    """De-Amortized Banker's Aggregator: a first-in, first-out window in worst-case constant cost, for any associative aggregate.

    ::

        f            l         r         a         b            e
        │  to b      │  to r   │ from r  │  to b   │   from b   │        each cell x holds its partial and an aggregate:
        │ x⊕…⊕(b-1)  │ x⊕…⊕r-1 │ r⊕…⊕x   │ x⊕…⊕b-1 │   b⊕…⊕x    │        the span named above it
        └─────────── front ────────────────────────┴─── back ───┘        query = cell f ⊕ cell e-1

    The first cell of the front list [f, b) spans that list, the last cell of the back list [b, e) the back list. Cells from l to b are
    still to be reversed, one step per operation: *shift* advances l, r and a by one cell, *shrink* finishes one cell at l and one at a.
    Invariants of sizes: r - l = a - r, and (r - l) + (a - r) + (b - a) + 1 = (b - f) - (e - b), so that the reversal ends exactly when
    the back list is as long as the front list.

    Cost in combines, worst case: insert 1 + 3, evict 3, query 1. Space 2n.

    Source: Tangwongsan, Hirzel and Schneider, "Low-Latency Sliding-Window Aggregation in Worst-Case Constant Time" (DEBS 2017),
    doi:10.1145/3093742.3093925; "In-order sliding-window aggregation in worst-case constant time" (VLDB Journal 30, 2021).
    """

    name = "daba"
    cost = Combines("4m + 1", lambda _n, m: 4 * m + 1)
    not_taken = "evens out the flips; a batch computes its windows together, so none waits for a flip"

    def __init__(self, aggregate: Aggregate[P]) -> None:
        super().__init__(aggregate)
        # Keyed by position in the stream: a list would have to be copied as a whole from time to time, a deque is slow in its middle.
        self._values: dict[int, P] = {}
        self._spans: dict[int, P] = {}
        self._f = self._l = self._r = self._a = self._b = self._e = 0

    def insert(self, partial: P) -> None:
        self._spans[self._e] = self.aggregate.combine(self._spans[self._e - 1], partial) if self._b < self._e else partial
        self._values[self._e] = partial
        self._e += 1
        self._fix_up()

    def evict(self) -> None:
        if self._f == self._e:
            return
        del self._values[self._f], self._spans[self._f]
        self._f += 1
        self._fix_up()

    def _fix_up(self) -> None:
        if self._f == self._b:
            self._l = self._r = self._a = self._b = self._e
            return
        if self._l == self._b:
            self._l, self._a, self._b = self._f, self._e, self._e
        if self._l == self._r:
            self._l, self._r, self._a = self._l + 1, self._r + 1, self._a + 1
        else:
            self._shrink()

    def _shrink(self) -> None:
        combine, spans = self.aggregate.combine, self._spans
        to_b = spans[self._a] if self._a < self._b else None
        middle = spans[self._a - 1] if self._r < self._a else None
        rest = to_b if middle is None else middle if to_b is None else combine(middle, to_b)
        spans[self._l] = spans[self._l] if rest is None else combine(spans[self._l], rest)
        self._l += 1
        self._a -= 1
        spans[self._a] = self._values[self._a] if to_b is None else combine(self._values[self._a], to_b)

    def query(self) -> P:
        if self._f == self._e:
            return self.aggregate.identity
        if self._f == self._b:
            return self._spans[self._e - 1]
        return self.aggregate.combine(self._spans[self._f], self._spans[self._e - 1]) if self._b < self._e else self._spans[self._f]

    def __len__(self) -> int:
        return self._e - self._f

    def snapshot(self) -> EngineState[P]:
        positions = range(self._f, self._e)
        cells = (*(self._values[position] for position in positions), *(self._spans[position] for position in positions))
        return EngineState(self.name, cells, {name: getattr(self, f"_{name}") - self._f for name in _POINTERS})

    def _load(self, snapshot: EngineState[P]) -> None:
        cells = filled(snapshot)
        self._values = dict(enumerate(cells[: len(cells) // 2]))
        self._spans = dict(enumerate(cells[len(cells) // 2 :]))
        self._f, self._l, self._r, self._a, self._b, self._e = (snapshot.scalars[name] for name in _POINTERS)

    def check(self) -> None:
        f, l, r, a, b, e = (getattr(self, f"_{name}") for name in _POINTERS)  # noqa: E741 - the paper's names
        self._expect(f <= l <= r <= a <= b <= e, f"pointers in order: {(f, l, r, a, b, e)}")
        if f < b:
            self._expect(r - l == a - r, f"the two parts being turned are equally long: {r - l}, {a - r}")
            self._expect((b - l) + 1 == (b - f) - (e - b), f"turning the {b - l} left ends when back, {e - b}, has met front, {b - f}")
        else:
            self._expect(f == e, f"an empty front list means an empty window: {e - b} in back")
        spans = [(f, l, b, True), (l, r, r, True), (r, a, r, False), (a, b, b, True), (b, e, b, False)]
        for start, stop, edge, onward in spans:
            for position in range(start, stop):
                whole = range(position, edge) if onward else range(edge, position + 1)
                wanted = self.aggregate.fold(self._values[x] for x in whole)
                got = self._spans[position]
                same = close(outcome(self.aggregate, got), outcome(self.aggregate, wanted))
                self._expect(same, f"cell {position - f} spans cells {whole.start - f} to {whole.stop - f}")
