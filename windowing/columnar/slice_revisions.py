"""Revisions of windows on grids, over slices: the versions that late rows bring, and how those rows are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windowmill.windowing.columnar.grid_partials import SlicePartials, reached_windows
from windowmill.windowing.columnar.slices import Revising, SliceStage
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.slice_revisions import SortedSlices, late_windows, versions
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.numbering import Numbering
from windowmill.windowing.watermark import BEFORE


def revisions_of(
    numbering: Numbering,
    partials: SlicePartials,
    offsets: Ints,
    late: Bools,
    before: tuple[Ints, Ints],
    revising: Revising,
    through: int,
) -> tuple[Windows, Ints]:
    """The versions of the windows of a grid that the ``late`` partials of a batch revise, and their numbers.

    A window has a version for each moment at which late rows of it arrived, with what had arrived until then. O(n log n) in pairs of a
    window and such a partial, besides the slices of the windows and the late rows among them, once for each window.

    Parameters
    ----------
    offsets
        Key k's partials are ``offsets[k]:offsets[k + 1]``.
    late
        Mask of the batch's partials that have a moment of arrival; there are some.
    before
        ``first`` and ``last`` of :class:`SortedSlices`.
    through
        The instant through which windows are shown.
    """
    since = int(partials.arrivals[late].min())
    arrived = SortedSlices(offsets, partials.starts, partials.reaching, partials.closed, partials.arrivals, *before)
    key, number, slices = late_windows(numbering.grid, arrived, since, revising.lateness, revising.after, through)
    if len(reaching := np.flatnonzero(late & (partials.reaching == 1))):
        marks = partials.closed[reaching]
        revised = np.maximum(marks - revising.lateness, revising.after), np.minimum(marks, through)
        reached = reached_windows(numbering, partials, reaching, *revised)
        key, number, slices = (np.concatenate(pair) for pair in zip((key, number, slices), reached, strict=True))
    # Of the slices that came together, the one into which events reach comes first.
    order = np.lexsort((-partials.reaching[slices], partials.arrivals[slices], number, key))
    key, number, slices = key[order], number[order], slices[order]
    moment = partials.arrivals[slices]
    same = np.append(False, (key[1:] == key[:-1]) & (number[1:] == number[:-1]))[: len(key)]
    first = ~(same & np.append(False, moment[1:] == moment[:-1])[: len(key)])
    key, number, slices, continues = key[first], number[first], slices[first], same[first]
    revision, sequence, lo, hi, member_offsets, members = versions(numbering.grid, arrived, since, key, number, slices, continues)
    ranges, held = (sequence, lo, hi), (member_offsets, members)
    return Windows.of(key, *numbering.bounds(number), revision=revision, ranges=ranges, members=held, continues=continues), number


def marked_by_edge(stage: SliceStage, partials: SlicePartials) -> SlicePartials:
    """``partials`` with marks as the state has them: the last edge before each, which no window end lies between."""
    closed = partials.closed.copy()
    late = closed != BEFORE
    closed[late] = stage.edges.slice_starts(closed[late])
    return replace(partials, closed=closed)
