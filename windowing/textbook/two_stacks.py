"""Two stacks: a queue made of two stacks, each with its aggregate."""

from __future__ import annotations

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting, filled


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
