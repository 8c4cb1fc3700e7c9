"""Dyadic nodes: aggregates over aligned power-of-two ranges of an axis (B-Int)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.nodes import cover
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, Setting, filled


class Dyadic(Engine[P]):
    """Base intervals: node (level, index) covers the positions [index · 2^level, (index + 1) · 2^level).

    ::

        level 2   │       0       │       1       │
        level 1   │   0   │   1   │   2   │   3   │          window [1, 7) = (0, 1) ⊕ (1, 1) ⊕ (1, 2) ⊕ (0, 6)
        level 0   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │ 6 │ 7 │
                      └───── window ──────┘

    [start, stop) is the range that the window has reached and not yet evicted. A node exists if all its positions lie inside that range
    and at least one of them is full. Any range of n positions consists of at most 2·log2 n nodes, so one set of nodes serves windows of
    all sizes. A late partial, put at an earlier position, repairs one node per level. Positions are any integers, with gaps.

    Cost in combines: put at the end 1 amortised, log2 n worst case; elsewhere log2 n; evict 0; query at most 2·log2 n. Space 2n. Nodes
    depend on the axis alone, so results are bit-identical wherever a run started.

    Source: Arasu and Widom, "Resource Sharing in Continuous Sliding-Window Aggregates" (VLDB 2004), algorithm B-Int.
    """

    name = "dyadic"
    cost = Combines("3m + 2·log2 n", lambda n, m: 3 * m + 2 * math.log2(n))
    oldest_only = False

    @classmethod
    def why_not(cls, setting: Setting) -> str:
        if setting.positions:
            return "the same nodes: of FlatFAT the state holds those that lie at fixed positions"
        if setting.nodes:
            return "the state holds its nodes; a batch takes those that it reads as slices, which two stacks combine"
        if not setting.stored:
            return cls.not_taken
        many = setting.nodes_from
        where = "only where all windows are tumbling or hopping of fixed length" if many is None else f"where a window has {many:,} slices"
        return f"would read 2·log2 n nodes a key from the state, not n slices; runs store them {where}"

    def __init__(self, aggregate: Aggregate[P]) -> None:
        super().__init__(aggregate)
        self._nodes: dict[tuple[int, int], P] = {}
        self._live: list[int] = []
        self._start = self._stop = 0

    def insert(self, partial: P) -> None:
        self.put(self._stop, partial)

    def add(self, position: int, partial: P) -> None:
        """Combine ``partial`` into ``position``, as the newer operand if the position is full."""
        present = self._nodes.get((0, position))
        self.put(position, partial if present is None else self.aggregate.combine(present, partial))

    def put(self, position: int, partial: P) -> None:
        """Set ``position``, any integer, to ``partial``."""
        if not self._live:
            self._start = self._stop = position
        if (0, position) not in self._nodes:
            insort(self._live, position)
        self._nodes[0, position] = partial
        # The gap alone may complete nodes at the old end of the range, so repair these before the nodes of the new position.
        if position >= self._stop:
            edge, self._stop = self._stop - 1, position + 1
            self._repair(edge)
        elif position < self._start:
            edge, self._start = self._start, position
            self._repair(edge)
        self._repair(position)

    def drop(self, position: int) -> None:
        """Empty ``position``, any integer; does nothing if it is empty."""
        if (0, position) in self._nodes:
            del self._nodes[0, position]
            del self._live[bisect_left(self._live, position)]
            self._repair(position)

    def evict(self) -> None:
        if self._live:
            self.evict_before(self._live[0] + 1)

    def evict_before(self, position: int) -> None:
        """Remove the partials of all positions below ``position``; no combines."""
        if position <= self._start:
            return
        count = bisect_left(self._live, position)
        for dropped in self._live[:count]:
            level = 0
            while self._nodes.pop((level, dropped >> level), None) is not None:
                level += 1
        del self._live[:count]
        # Nodes that begin in a gap before the new start lie above no evicted leaf.
        level, index = 1, (position - 1) >> 1
        while self._start <= index << level and (index + 1) << level <= self._stop:
            self._nodes.pop((level, index), None)
            level, index = level + 1, index >> 1
        self._start, self._stop = position, max(position, self._stop)

    def _repair(self, position: int) -> None:
        level, index = 1, position >> 1
        while self._start <= index << level and (index + 1) << level <= self._stop:
            older, newer = self._nodes.get((level - 1, 2 * index)), self._nodes.get((level - 1, 2 * index + 1))
            if older is not None:
                self._nodes[level, index] = older if newer is None else self.aggregate.combine(older, newer)
            elif newer is not None:
                self._nodes[level, index] = newer
            else:
                self._nodes.pop((level, index), None)
            level, index = level + 1, index >> 1

    def query(self) -> P:
        return self.query_range(self._start, self._stop)

    def query_range(self, low: int, high: int) -> P:
        """The positions [low, high) combined in order; at most 2·log2(high - low) combines."""
        total: P | None = None
        for node in cover(max(low, self._start), min(high, self._stop)):
            partial = self._nodes.get(node)
            if partial is not None:
                total = partial if total is None else self.aggregate.combine(total, partial)
        return self.aggregate.identity if total is None else total

    def __len__(self) -> int:
        return len(self._live)

    def snapshot(self) -> EngineState[P]:
        scalars = {"start": self._start, "stop": self._stop} | {f"position_{rank}": position for rank, position in enumerate(self._live)}
        return EngineState(self.name, tuple(self._nodes[0, position] for position in self._live), scalars)

    def _load(self, snapshot: EngineState[P]) -> None:
        for rank, partial in enumerate(filled(snapshot)):
            self.put(snapshot.scalars[f"position_{rank}"], partial)
        # Stored ends may lie beyond the full positions and complete more nodes, each a copy of its one full child.
        edges = (self._start, self._stop - 1)
        self._start, self._stop = snapshot.scalars["start"], snapshot.scalars["stop"]
        for edge in edges if self._live else ():
            self._repair(edge)

    def check(self) -> None:
        self._expect(self._live == sorted(position for level, position in self._nodes if level == 0), "live positions are the full leaves")
        self._expect(not self._live or self._start <= self._live[0] <= self._live[-1] < self._stop, "live positions lie in [start, stop)")
        above: set[tuple[int, int]] = set()
        for position in self._live:
            level = 0
            while self._start <= position >> level << level and ((position >> level) + 1) << level <= self._stop:
                above.add((level, position >> level))
                level += 1
        self._expect(above == set(self._nodes), f"nodes are those inside [start, stop) above a full leaf: {above ^ set(self._nodes)}")
        for level, index in sorted(above):
            if level:
                children = [self._nodes[child] for child in ((level - 1, 2 * index), (level - 1, 2 * index + 1)) if child in self._nodes]
                self._expect_same(self._nodes[level, index], self.aggregate.fold(children), f"node {(level, index)}")
