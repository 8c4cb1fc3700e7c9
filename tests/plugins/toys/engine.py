"""An engine: suffix totals that are all computed anew after each insert."""

from __future__ import annotations

from windowmill.plugins import Combines, Engine, register_engine
from windowmill.windowing.textbook import EngineState


@register_engine
class Suffixes(Engine):
    name = "suffixes"
    cost = Combines("n·m", lambda n, m: n * m)
    not_taken = "combines every suffix anew for each partial that comes"

    def __init__(self, aggregate):
        super().__init__(aggregate)
        self._totals = []
        self._partials = []

    def insert(self, partial):
        self._partials.append(partial)
        self._totals = [self.aggregate.combine(total, partial) for total in self._totals] + [partial]

    def evict(self):
        del self._partials[:1], self._totals[:1]

    def query(self):
        return self._totals[0] if self._totals else self.aggregate.identity

    def __len__(self):
        return len(self._partials)

    def snapshot(self):
        return EngineState(self.name, tuple(self._partials))

    def _load(self, snapshot):
        for partial in snapshot.partials:
            self.insert(partial)

    def check(self):
        for place, total in enumerate(self._totals):
            self._expect_same(total, self.aggregate.fold(self._partials[place:]), f"total {place} is that of its suffix")
