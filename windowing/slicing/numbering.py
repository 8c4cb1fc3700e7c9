"""The windows of a grid in the kernels' form: numbered by arithmetic, or listed by end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windowmill.windowing.kernels import grid_arithmetic as kernel
from windowmill.windowing.kernels.combine import Bools, Ints

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Numbering:
    """Windows with numbers that ascend with their ends."""

    grid: kernel.NumberedWindows

    @classmethod
    def hopping(cls, origin: int, hop: int, size: int) -> Numbering:
        """Windows of ``size`` that begin every ``hop``."""
        return cls(kernel.NumberedWindows(np.array([kernel.HOPPING, origin, hop, size, size, 1], np.int64), _NONE, _NONE))

    @classmethod
    def cumulative(cls, origin: int, size: int, step: int) -> Numbering:
        """Windows of ``step``, 2·``step`` … ``size`` that share their start."""
        return cls(kernel.NumberedWindows(np.array([kernel.CUMULATIVE, origin, size, size, step, size // step], np.int64), _NONE, _NONE))

    @classmethod
    def listed(cls, starts: Ints, ends: Ints) -> Numbering:
        """Windows of any bounds; ``ends`` ascend."""
        return cls(kernel.NumberedWindows(np.array([kernel.LISTED, 0, 1, 1, 1, 1], np.int64), starts, ends))

    def bounds(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Starts and ends of the windows with these ``numbers``, each of their shape."""
        mode, origin, hop, size, step, steps = self.grid.rule
        if mode == kernel.LISTED:
            return self.grid.starts[numbers], self.grid.ends[numbers]
        if mode == kernel.CUMULATIVE:
            start = origin + numbers // steps * size
            return start, start + (numbers % steps + 1) * step
        return origin + numbers * hop, origin + numbers * hop + size

    def starting_at(self, instants: Ints) -> tuple[Ints, Ints]:
        """The windows that start at one of the ``instants``: its index, ascending, and their numbers, ascending; shapes (n_windows,)."""
        mode, origin, hop, size, _, steps = self.grid.rule
        if mode == kernel.LISTED:
            order = np.argsort(self.grid.starts, kind="stable")
            starts = self.grid.starts[order]
            first = np.searchsorted(starts, instants, side="left")
            index, nth = each_of(np.searchsorted(starts, instants, side="right") - first)
            return index, order[first[index] + nth]
        period, n = (size, steps) if mode == kernel.CUMULATIVE else (hop, 1)
        index, nth = each_of(np.where((instants - origin) % period == 0, n, 0))
        return index, (instants[index] - origin) // period * n + nth


def each_of(counts: Ints) -> tuple[Ints, Ints]:
    """For ``counts[i]`` things of each i: i, and the place of the thing among those of i; shapes (sum of counts,).

    >>> each_of(np.array([2, 0, 1]))
    (array([0, 0, 2]), array([0, 1, 0]))
    """
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)


def pairs_among(key: Ints, number: Ints, other_key: Ints, other_number: Ints) -> Bools:
    """Mask of the pairs (key, number) that occur among the other pairs."""
    if not len(key) or not len(other_key):
        return np.zeros(len(key), np.bool_)
    base = min(int(number.min()), int(other_number.min()))
    span = max(int(number.max()), int(other_number.max())) - base + 1
    return np.isin(key * span + (number - base), other_key * span + (other_number - base))
