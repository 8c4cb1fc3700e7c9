"""The nodes over slices that a batch completes, and its increments to those that earlier batches have completed."""

from __future__ import annotations

import numpy as np

from windowmill.windowing.columnar.grid_partials import SlicePartials
from windowmill.windowing.columnar.slice_columns import IN_TIME
from windowmill.windowing.columnar.slices import NodeStage, SliceStage, WindowStage
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slices import combine_runs
from windowmill.windowing.watermark import BEFORE


def whole_nodes(stage: WindowStage, wanted: NodeStage, leaves: SlicePartials, own: Bools) -> list[tuple[int, SlicePartials]]:
    """By level, the nodes that this batch completes, and increments for nodes completed before.

    ``leaves`` are the restored slices and nodes and the batch's own slices.
    """
    assert stage.keep_from is not None
    counted = leaves.closed <= wanted.closed_through
    # Late slices join a node once the windows that do not count them, or number their revisions by them, are closed.
    fresh = counted & (own | (leaves.closed > wanted.closed_before))
    first, before, now = (wanted.nodes.number(t) for t in (stage.keep_from, wanted.before, wanted.through))
    nodes = []
    # Nodes that end after ``before`` become complete in this batch; to those that end earlier it adds what is fresh.
    for rows, after, until in ((counted, before, now), (fresh, first, before)):
        level_below = leaves.at(rows)
        number = wanted.nodes.numbers(level_below.starts)
        for level in range(1, wanted.nodes.top + 1):
            number = number >> level << level
            # Skip a node that begins before the needed range or ends after the complete one: the nodes above it do so too.
            inside = (number >= first) & (number + (1 << level) <= until)
            if not inside.any():
                break
            number, level_below = _joined(stage.slices, wanted, number[inside], level_below.at(inside))
            nodes.append((level, level_below.at(number + (1 << level) > after)))
    return nodes


def _joined(stage: SliceStage, wanted: NodeStage, number: Ints, below: SlicePartials) -> tuple[Ints, SlicePartials]:
    """Combine the partials ``below``, sorted by key and ``number`` of their node, into nodes: the number and partial of each."""
    keys = below.keys
    bounds = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (number[1:] != number[:-1]), True])
    firsts = bounds[:-1]
    number = number[firsts]
    ints, floats = combine_runs(stage.layout.program(), bounds[:-1], bounds[1:], below.ints, below.floats)
    objects = stage.objects.fold(below.objects, bounds)
    never, begun = np.full(len(number), BEFORE, np.int64), np.zeros(len(number), np.int64)
    in_time = np.full(len(number), IN_TIME, np.int64)
    return number, SlicePartials(
        keys[firsts], wanted.nodes.starts(number), never, ints, floats, objects, below.before[firsts], begun, in_time
    )
