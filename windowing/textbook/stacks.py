"""Two stacks: a queue made of two stacks, each with its aggregate."""

from __future__ import annotations

from windowmill.windowing.algebra import Aggregate, P, close, outcome
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting, filled

_POINTERS = ("f", "l", "r", "a", "b", "e")


class TwoStacks(Engine[P]):
    """A first-in, first-out window for any associative aggregate.

    ::

             front (a stack, top = oldest)          back (a stack, top = youngest)
          ┌──────────┬───────┬──────┐            ┌────┬────┬────┐
        ◀─│ p0⊕p1⊕p2 │ p1⊕p2 │  p2  │            │ p3 │ p4 │ p5 │ ◀─ insert      total_back = p3⊕p4⊕p5
          └──────────┴───────┴──────┘            └────┴────┴────┘
        evict pops; when front is empty, back is flipped over into it       query = front top ⊕ total_back

    Cost in combines: insert 1; evict 0, or k - 1 when it flips k partials, each of which flips once: amortised 1, worst case n; query 1.
    Space 2n.

    Source: the folklore queue of two stacks, as adapted to aggregation by "adamax" (Stack Overflow 4802038, 2011); named and
    measured in Tangwongsan, Hirzel and Schneider, "Low-Latency Sliding-Window Aggregation in Worst-Case Constant Time" (DEBS 2017).
    """

    name = "two_stacks"
    cost = Combines("2m + 1", lambda _n, m: 2 * m + 1)
    not_taken = "would combine weights that differ from window to window"

    @classmethod
    def why_not(cls, setting: Setting) -> str:
        return "would read all leaves of a window from the state, not 2·log2 n nodes" if setting.positions else cls.not_taken

    def __init__(self, aggregate: Aggregate[P]) -> None:
        super().__init__(aggregate)
        self._front: list[tuple[P, P]] = []
        self._back: list[P] = []
        self._total_back = aggregate.identity

    def insert(self, partial: P) -> None:
        self._total_back = self.aggregate.combine(self._total_back, partial) if self._back else partial
        self._back.append(partial)

    def evict(self) -> None:
        if not self._front:
            self._flip()
        if self._front:
            self._front.pop()

    def _flip(self) -> None:
        self._front = self._suffixes(self._back)
        self._back = []
        self._total_back = self.aggregate.identity

    def _suffixes(self, partials: list[P]) -> list[tuple[P, P]]:
        """Each partial with the aggregate from it to the last one, in reverse order; len(partials) - 1 combines."""
        stack: list[tuple[P, P]] = []
        for partial in reversed(partials):
            stack.append((partial, self.aggregate.combine(partial, stack[-1][1]) if stack else partial))
        return stack

    def query(self) -> P:
        if not self._front:
            return self._total_back
        return self.aggregate.combine(self._front[-1][1], self._total_back) if self._back else self._front[-1][1]

    def __len__(self) -> int:
        return len(self._front) + len(self._back)

    def snapshot(self) -> EngineState[P]:
        front = (partial for partial, _ in reversed(self._front))
        return EngineState(self.name, (*front, *self._back), {"front": len(self._front)})

    def _load(self, snapshot: EngineState[P]) -> None:
        # The aggregates of both stacks depend only on the partials and the cut between the stacks, so they are not stored.
        window, cut = filled(snapshot), snapshot.scalars["front"]
        self._front = self._suffixes(window[:cut])
        self._back = window[cut:]
        self._total_back = self.aggregate.fold(self._back)

    def check(self) -> None:
        rebuilt = self._suffixes([partial for partial, _ in reversed(self._front)])
        for depth, ((_, got), (_, wanted)) in enumerate(zip(self._front, rebuilt, strict=True)):
            self._expect_same(got, wanted, f"front entry {depth} is the aggregate from its partial to the front's last")
        self._expect_same(self._total_back, self.aggregate.fold(self._back), "total_back is the aggregate of the back stack")


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
