"""What windows cost: how many leaves each has, how many of them are new, and how often an engine combines.

A leaf is a slice's or, over positions, a tuple's partial where partials are stored, a row where rows are kept. n is the number of leaves in
a window, m how many of them are new since the window before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from windowmill.windowing.axis import Edges, Grid, WindowGrid, to_us
from windowmill.windowing.flatfat import update_combines

#: Edges are counted one by one up to so many a window, and added up train by train beyond.
_COUNTED_EDGES = 20_000
#: Windows of a grid that are looked at for the longest one.
_WINDOWS = 24
#: Where edges are no short cycle, those of some windows are counted from this instant on, and at most so many.
_SAMPLED_FROM, _SAMPLED_EDGES = to_us(datetime(2024, 1, 1, tzinfo=UTC)), 1 << 17


@dataclass(frozen=True, slots=True)
class Cost:
    """Combines per window: a formula in n and m, and its value where both are known."""

    formula: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A window of the spec as its engine meets it.

    Attributes
    ----------
    slicing, why
        Name of the cut into leaves, and its reason.
    leaves, new_leaves
        n and m in words.
    n, m
        Where they are known from the spec.
    in_order
        Whether what leaves is always the oldest.
    alone
        Whether no two windows overlap.
    listed
        Why the kernels take a window leaf by leaf instead of as a range; empty if they do not.
    late
        What late rows cost, if anything.
    state, state_rows
        What a key keeps between batches, in words, and in rows where that is known.
    """

    slicing: str
    why: str
    leaves: str
    new_leaves: str
    n: float | None = None
    m: float | None = None
    in_order: bool = True
    alone: bool = False
    listed: str = ""
    late: str = ""
    state: str = ""
    state_rows: int | None = None


def ranges_cost(n: float | None, m: float | None, *, alone: bool) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.two_stacks.fifo_ranges`; ``alone``: no window overlaps another."""
    if alone:
        return Cost("n − 1", n - 1 if n else None)
    value = 2 * m + 1 - (m * m + 2 * m) / n if n and m else None
    return Cost(
        "2m + 1 − (m² + 2m)/n; in a batch that completes w windows of a key, up to n/w more", None if value is None else round(value, 2)
    )


def tree_cost(n: float | None, m: float | None) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.flatfat.tree_windows`, over rows of which m enter and m leave."""
    return Cost(
        "2m(1 + ⌈log2(n/2m)⌉); in a batch that completes w windows of a key, up to n/w more",
        round(update_combines(n, 2 * m), 2) if n and m else None,
    )


def positions_cost(n: float | None, tuples: float | None, *, flushed: bool) -> Cost:
    """Combines per window of :class:`windowmill.windowing.columnar.position_nodes.Forest`.

    Each applied tuple completes one inner node on average. A batch that may evict leaves reads them without the nodes above, and combines
    these anew; a window that is ``flushed`` never loses a part. A window of n tuples is made of at most 2·log2 n nodes.

    Parameters
    ----------
    tuples
        Number of tuples applied since the window before, t.
    """
    times = 1 if flushed else 2
    return Cost(
        f"{'' if flushed else times}t + 2·log2 n for t tuples since the window before; in each batch of a key, up to log2 n more",
        round(times * tuples + 2 * math.log2(n), 2) if n and tuples else None,
    )


def live_positions_cost(n: float | None, tuples: float | None) -> Cost:
    """Combines per window of :func:`windowmill.windowing.columnar.position_deltas.combine_totals`.

    Of n live tuples, ``tuples`` enter between two windows and about as many leave. Each changes the nodes above it, log2 n at most. A batch
    combines once what it restores: up to 16 parts of each node above a tuple that leaves.
    """
    value = round(2 * tuples * math.log2(n), 2) if n and tuples else None
    return Cost("2t·log2 n for t tuples since the window before; in each batch of a key, the parts of the nodes that lose tuples", value)


def listed_cost(n: float | None) -> Cost:
    """Combines per window of :func:`windowmill.windowing.kernels.two_stacks.add_members` and of clipped means, leaf by leaf."""
    return Cost("n", n)


def count_slices(edges: Edges, grid: WindowGrid) -> tuple[int, float]:
    """Most slices in a window of ``grid`` when time is cut at ``edges``, and how many the next window brings on average.

    Examples
    --------
    >>> grids = [Grid(size=10, hop=7), Grid(size=5, hop=5)]
    >>> count_slices(Edges.of(grids[:1]), grids[0])
    (3, 2.0)
    >>> count_slices(Edges.of(grids), grids[0])
    (5, 3.0)
    """
    if edges.listed or not isinstance(grid, Grid):
        return _count_sampled(edges, grid)
    cycle = math.lcm(grid.hop, *(period for period, _ in edges.sequences))
    if max(grid.size, cycle) // min(period for period, _ in edges.sequences) > _COUNTED_EDGES:
        densities = sum(1 / period for period, _ in edges.sequences)
        return math.ceil(grid.size * densities), grid.hop * densities

    def between(start: int, stop: int) -> int:
        return len({t for period, phase in edges.sequences for t in range(start + (phase - start) % period, stop, period)})

    windows = range(min(cycle // grid.hop, _WINDOWS))
    return max(between(grid.start(k), grid.end(k)) for k in windows), between(0, cycle) * grid.hop / cycle


def _count_sampled(edges: Edges, grid: WindowGrid) -> tuple[int, float]:
    """:func:`count_slices` by some neighbouring windows."""
    import numpy as np

    span = max(3 * grid.longest, *(2 * period for period, _ in edges.sequences), 1)
    counted = span
    while counted and edges.most_in(counted) > _SAMPLED_EDGES:
        counted //= 2
    if counted == span:
        starts, ends = grid.ending_in(_SAMPLED_FROM, _SAMPLED_FROM + span)
        if len(ends) > 1:
            cuts = edges.between(int(starts.min()), int(ends[-1]) + 1)
            held, between = np.searchsorted(cuts, ends) - np.searchsorted(cuts, starts), np.searchsorted(cuts, ends[[0, -1]])
            return int(held.max()), float(between[1] - between[0]) / (len(ends) - 1)
    # Of a calendar with very many windows a day no span is short enough to list, and its bound is taken.
    if counted:
        density = len(edges.between(_SAMPLED_FROM, _SAMPLED_FROM + counted)) / counted
    else:
        density = edges.most_in(1_000 * span) / (1_000 * span)
    windows = grid.most_ends(1_000 * grid.longest) / 1_000
    return math.ceil(grid.longest * density), grid.longest * density / windows
