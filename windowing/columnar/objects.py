"""Aggregates whose partials are Python objects: the kernels' algorithms over the same ranges, one Python combine at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windowmill.windowing.aggregates import aggregate_for, value_types
from windowmill.windowing.algebra import Aggregate
from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.slicing.leaves import Leaves, Windows


class ObjectColumn:
    """One aggregate of the spec whose partials are objects."""

    def __init__(self, spec: AggregateSpec, types: Sequence[pa.DataType]) -> None:
        self._spec = spec
        self._aggregate: Aggregate[Any] = aggregate_for(spec, value_types(spec, types))

    def lift(self, leaves: Leaves) -> list[Any]:
        """Lift each leaf to a partial; a leaf's index is its position."""
        lift, identity = self._aggregate.lift, self._aggregate.identity
        columns = [plain(leaves.table.column(name)).to_pylist() for name in self._spec.columns]
        rows: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * len(leaves)
        if self._spec.where is None:
            return [lift(row, (index, ())) for index, row in enumerate(rows)]
        holds = leaves.table.column(condition_column(self._spec.where)).to_pylist()
        return [lift(row, (index, ())) if true else identity for index, (row, true) in enumerate(zip(rows, holds, strict=True))]

    def compute(self, partials: Sequence[Any], windows: Windows) -> list[Any]:
        """The result of each window; ``partials[i]`` belongs to leaf i."""
        return [self._aggregate.lower(total) for total in combine_windows(self._aggregate, partials, windows)]


def combine_windows(aggregate: Aggregate[Any], partials: Sequence[Any], windows: Windows) -> list[Any]:
    """The partial of each window; ``partials[i]`` belongs to leaf i, and a member ~i is deducted."""
    totals = _ranges(aggregate, partials, windows)
    offsets, members = windows.member_offsets.tolist(), windows.members.tolist()
    if members:
        any_order = aggregate.positioned or aggregate.commutative
        lo, hi, sequence = windows.lo.tolist(), windows.hi.tolist(), windows.sequence
        continuing = set(np.flatnonzero(windows.continues).tolist())
        for window in range(len(windows)):
            if window in continuing:
                totals[window] = totals[window - 1]
            held = members[offsets[window] : offsets[window + 1]]
            if aggregate.deduct is not None and (gone := [partials[~leaf] for leaf in held if leaf < 0]):
                totals[window], held = aggregate.deduct(totals[window], aggregate.fold(gone)), [leaf for leaf in held if leaf >= 0]
            if held and any_order:
                totals[window] = aggregate.fold([totals[window], *(partials[leaf] for leaf in held)])
            elif held:
                whole = sorted(held + sequence[lo[window] : hi[window]].tolist())
                totals[window] = aggregate.fold(partials[leaf] for leaf in whole)
    return totals


def _ranges(aggregate: Aggregate[Any], partials: Sequence[Any], windows: Windows) -> list[Any]:
    """The partial of each window's range: by subtract-on-evict where the aggregate has a ``deduct``, else by two stacks."""
    leaves = [partials[leaf] for leaf in windows.sequence.tolist()]
    bounds = list(zip(windows.lo.tolist(), windows.hi.tolist(), strict=True))
    if aggregate.deduct is not None:
        return _deducting(aggregate, aggregate.deduct, leaves, bounds, windows.group_offsets.tolist())
    return _two_stacks(aggregate, leaves, bounds, windows)


def _deducting(
    aggregate: Aggregate[Any], deduct: Callable[[Any, Any], Any], leaves: list[Any], bounds: list[tuple[int, int]], offsets: list[int]
) -> list[Any]:
    """A running total: deducts what leaves, which is its oldest part, and combines what enters; two calls a window that moves by a leaf."""
    fold, combine = aggregate.fold, aggregate.combine
    totals: list[Any] = [aggregate.identity] * len(bounds)
    for begun, ended in pairwise(offsets):
        total, low, reached = aggregate.identity, 0, 0
        for window in range(begun, ended):
            first, stop = bounds[window]
            if first >= stop:
                continue
            if low <= first and reached <= stop and first - low < reached - first:
                if low < first:
                    total = deduct(total, fold(leaves[low:first]))
                if reached < stop:
                    total = combine(total, fold(leaves[reached:stop]))
            else:
                total = fold(leaves[first:stop])
            low, reached, totals[window] = first, stop, total
    return totals


def _two_stacks(aggregate: Aggregate[Any], leaves: list[Any], bounds: list[tuple[int, int]], windows: Windows) -> list[Any]:
    """Two stacks, combining in exactly the order of :func:`windowmill.windowing.kernels.two_stacks.fifo_ranges`."""
    combine, identity = aggregate.combine, aggregate.identity
    offsets, middles = windows.group_offsets.tolist(), windows.middles.tolist()
    totals: list[Any] = [identity] * len(bounds)
    for key, known_middle in enumerate(middles):
        middle = known_middle
        base = low = reached = -1
        front: list[Any] = []
        back = identity
        for window in range(offsets[key], offsets[key + 1]):
            first, stop = bounds[window]
            if first >= stop:
                continue
            if first < low or stop < reached or (base < 0 <= middle and stop < middle):
                totals[window] = aggregate.fold(leaves[first:stop])
                continue
            low = first
            if first >= middle or base < 0:
                middle = max(middle, stop) if first >= middle else middle
                base, reached, back = first, middle, identity
                front = _suffixes(combine, leaves[first:middle])
            for leaf in leaves[reached:stop]:
                back = combine(back, leaf)
            totals[window] = front[first - base] if stop == middle else combine(front[first - base], back)
            reached = stop
    return totals


def _suffixes(combine: Any, leaves: list[Any]) -> list[Any]:
    suffixes = leaves[:]
    for index in range(len(leaves) - 2, -1, -1):
        suffixes[index] = combine(leaves[index], suffixes[index + 1])
    return suffixes
