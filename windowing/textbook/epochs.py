"""Prefix–suffix epochs: two stacks that flip at fixed positions of the axis."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic

from windowmill.windowing.algebra import Aggregate, P
from windowmill.windowing.textbook.base import Combines, Engine, EngineState, filled


@dataclass(slots=True)
class _Epoch(Generic[P]):
    """Adjacent partials: prefix[i] = p0 ⊕ … ⊕ pi is computed at insertion, suffix[i] = pi ⊕ … ⊕ p(end) at the first query."""

    partials: list[P] = field(default_factory=list)
    prefix: list[P] = field(default_factory=list)
    suffix: list[P] = field(default_factory=list)


class Epochs(Engine[P]):
    """Windows of slices, cut at every ``length``-th slice of the axis, independently of the window's history.

    ::

        axis      0    1    2    3  ┃ 4    5    6    7  ┃ 8    9 …            length 4
        prefix    0   0-1  0-2  0-3 ┃ 4   4-5  4-6  4-7 ┃ 8   8-9
        suffix   0-3  1-3  2-3   3  ┃4-7  5-7  6-7   7  ┃
                            └ window ──────┘                query = suffix(2) ⊕ prefix(5)

    Cost in combines, with windows of ``length`` partials: insert 1, evict 0, query 1, and length - 1 once per epoch for its suffixes, so 3
    per window. A longer window adds one combine for each whole epoch inside. A window that starts and ends inside one epoch (time eviction
    after a gap) is folded from its partials. Space 3n.

    The cuts depend on the axis alone, so two runs over the same slices combine in the same order and give bit-identical results, wherever
    they started. ``first`` is the axis index of the first partial.

    Source: van Herk (1992), doi:10.1016/0167-8655(92)90069-C, and Gil and Werman (1993), doi:10.1109/34.211471, for running minima.
    """

    name = "epochs"
    cost = Combines("2m + 1", lambda _n, m: 2 * m + 1)
    not_taken = "as cheap, with flips at fixed places of the axis; no kernel has it"

    def __init__(self, aggregate: Aggregate[P], length: int = 64, first: int = 0) -> None:
        super().__init__(aggregate)
        if length < 1:
            raise ValueError(f"length: got {length}; expected the number of partials in a window, at least 1")
        self.length = length
        self._start = self._stop = first
        self._base = first
        self._epochs: deque[_Epoch[P]] = deque()

    def insert(self, partial: P) -> None:
        if not self._epochs or self._stop % self.length == 0:
            self._epochs.append(_Epoch())
            if len(self._epochs) == 1:
                self._base = self._stop
        epoch = self._epochs[-1]
        epoch.prefix.append(self.aggregate.combine(epoch.prefix[-1], partial) if epoch.prefix else partial)
        epoch.partials.append(partial)
        self._stop += 1

    def evict(self) -> None:
        if self._start == self._stop:
            return
        self._start += 1
        if self._start - self._base == len(self._epochs[0].partials) and (len(self._epochs) > 1 or self._start == self._stop):
            self._epochs.popleft()
            self._base = self._start

    def query(self) -> P:
        if self._start == self._stop:
            return self.aggregate.identity
        oldest, skipped = self._epochs[0], self._start - self._base
        if len(self._epochs) == 1:
            return oldest.prefix[-1] if skipped == 0 else self.aggregate.fold(oldest.partials[skipped:])
        total = self._suffix(oldest, skipped)
        for index in range(1, len(self._epochs)):
            total = self.aggregate.combine(total, self._epochs[index].prefix[-1])
        return total

    def _suffix(self, epoch: _Epoch[P], index: int) -> P:
        if self._start % self.length == 0:
            # At other starts even a whole epoch uses suffixes: a window that started there must equal one that was evicted up to there.
            return epoch.prefix[-1]
        if not epoch.suffix:
            suffix: P | None = None
            for partial in reversed(epoch.partials):
                suffix = partial if suffix is None else self.aggregate.combine(partial, suffix)
                epoch.suffix.append(suffix)
            epoch.suffix.reverse()
        return epoch.suffix[index]

    def __len__(self) -> int:
        return self._stop - self._start

    def snapshot(self) -> EngineState[P]:
        # Includes the evicted partials of the oldest epoch: later queries use prefix aggregates that contain them.
        partials = tuple(partial for epoch in self._epochs for partial in epoch.partials)
        return EngineState(self.name, partials, {"base": self._base, "start": self._start})

    def _load(self, snapshot: EngineState[P]) -> None:
        self._start = self._stop = self._base = snapshot.scalars["base"]
        for partial in filled(snapshot):
            self.insert(partial)
        self._start = snapshot.scalars["start"]

    def check(self) -> None:
        self._expect(self._base <= self._start <= self._stop, f"base {self._base}, start {self._start}, stop {self._stop} in order")
        count = sum(len(epoch.partials) for epoch in self._epochs)
        self._expect(self._base + count == self._stop, f"epochs hold {count} partials from {self._base} to {self._stop}")
        begin = self._base
        for epoch in self._epochs:
            self._expect(begin // self.length == (begin + len(epoch.partials) - 1) // self.length, f"the epoch from {begin} crosses no cut")
            self._expect_same(epoch.prefix[-1], self.aggregate.fold(epoch.partials), f"the epoch from {begin} ends with its aggregate")
            self._expect(len(epoch.suffix) in (0, len(epoch.partials)), f"the epoch from {begin} has all suffixes or none")
            begin += len(epoch.partials)
