"""Instants of grids that spans cross: where windows begin, and where slices do, while an event lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.slicing.edges import Edges, ListedGrid, WindowGrid, each_of


@dataclass(frozen=True)
class Crossings:
    """The edges of some grids, or the starts of their windows alone.

    Attributes
    ----------
    sequences
        Sequences of instants phase + k·period, as (period, phase).
    listed
        Grids whose instants are no such sequences.
    of_starts
        Whether of these grids only the starts of windows count.
    """

    sequences: tuple[tuple[int, int], ...]
    listed: tuple[ListedGrid, ...]
    of_starts: bool

    @classmethod
    def of_edges(cls, edges: Edges) -> Self:
        return cls(edges.sequences, edges.listed, of_starts=False)

    @classmethod
    def of_windows(cls, grids: Sequence[WindowGrid]) -> Self:
        """The instants at which windows of ``grids`` begin."""
        sequences = {sequence for grid in grids if (sequence := grid.start_sequence) is not None}
        return cls(tuple(sorted(sequences)), tuple(dict.fromkeys(grid.listed for grid in grids if grid.listed is not None)), of_starts=True)

    def most_within(self, time: Ints, stop: Ints) -> Ints:
        """Upper bound on the number of instants within each span (time, stop); shape (n_spans,)."""
        return np.asarray(np.sum([count for _, count in self._runs(time, stop)], axis=0, dtype=np.int64))

    def within(self, time: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The instants within each span (time, stop), without its ends: index of the span, instant; ascending. Each pair once."""
        spans, instants = [], []
        for at, count in self._runs(time, stop):
            span, nth = each_of(count)
            spans.append(span)
            instants.append(at(span, nth))
        span, instant = np.concatenate(spans), np.concatenate(instants)
        if len(spans) == 1:
            return span, instant
        order = np.lexsort((instant, span))
        span, instant = span[order], instant[order]
        new = np.append(True, (span[1:] != span[:-1]) | (instant[1:] != instant[:-1]))[: len(span)]
        return span[new], instant[new]

    def _runs(self, time: Ints, stop: Ints) -> Iterator[tuple[_At, Ints]]:
        """For each sequence and list: the instants by span and place within it, and how many there are in each span."""
        for period, phase in self.sequences:
            first = (time - phase) // period + 1
            yield _InSequence(period, phase, first), np.maximum((stop - 1 - phase) // period - first + 1, 0)
        for grid in self.listed:
            known = grid.starts_over(time, stop) if self.of_starts else grid.edges_over(time, stop)
            first = np.searchsorted(known, time, side="right")
            yield _InList(known, first), np.maximum(np.searchsorted(known, stop, side="left") - first, 0)


@dataclass(frozen=True)
class _InSequence:
    period: int
    phase: int
    first: Ints

    def __call__(self, span: Ints, nth: Ints) -> Ints:
        return self.phase + (self.first[span] + nth) * self.period


@dataclass(frozen=True)
class _InList:
    known: Ints
    first: Ints

    def __call__(self, span: Ints, nth: Ints) -> Ints:
        return np.asarray(self.known[self.first[span] + nth])


_At = _InSequence | _InList
