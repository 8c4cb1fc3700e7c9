"""Revisions of windows on grids, over slices: the versions that late rows bring, and how those rows are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windowmill.windowing.columnar.grid_partials import Partials, reached_windows
from windowmill.windowing.columnar.known_spans import least_spans
from windowmill.windowing.columnar.slice_columns import places_of
from windowmill.windowing.columnar.slices import Revising, SliceStage
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.slice_revisions import Arrived, late_windows, versions
from windowmill.windowing.kernels.slice_windows import NEVER_CLOSED
from windowmill.windowing.kernels.slices import combine_runs, runs
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.leaves import runs as equal_runs
from windowmill.windowing.slicing.numbering import Numbering


def revisions_of(
    numbering: Numbering,
    partials: Partials,
    offsets: Ints,
    turns: Ints,
    rows: Ints,
    before: tuple[Ints, Ints],
    batch: int,
    revising: Revising,
    through: int,
) -> tuple[Windows, Ints]:
    """A window for each late row of ``batch`` and each window of a grid that it revises, with what has arrived until then; their numbers.

    O(n log n) in such pairs, besides the slices of the windows and the late rows among them, once for each window.

    Parameters
    ----------
    offsets
        Key k's partials are ``offsets[k]:offsets[k + 1]``.
    turns
        Those greater than ``batch`` are late rows of the batch, and ascend in order of arrival.
    rows
        Number of rows in each partial.
    before
        ``first`` and ``last`` of :class:`Arrived`.
    through
        The instant through which windows are shown.
    """
    arrived = Arrived(offsets, partials.starts, rows, partials.reaching, partials.closed, turns, *before)
    key, number, late = late_windows(numbering.grid, arrived, batch, revising.lateness, revising.after, through)
    if len(reaching := np.flatnonzero((turns > batch) & (partials.reaching == 1))):
        marks = partials.closed[reaching]
        revised = np.maximum(marks - revising.lateness, revising.after), np.minimum(marks, through)
        reached = reached_windows(numbering, partials, reaching, *revised)
        key, number, late = (np.concatenate(pair) for pair in zip((key, number, late), reached, strict=True))
    order = np.lexsort((turns[late], number, key))
    key, number, late = key[order], number[order], late[order]
    continues = np.append(False, (key[1:] == key[:-1]) & (number[1:] == number[:-1]))[: len(key)]
    revision, sequence, lo, hi, member_offsets, members = versions(numbering.grid, arrived, batch, key, number, late, continues)
    ranges, held = (sequence, lo, hi), (member_offsets, members)
    return Windows.of(key, *numbering.bounds(number), revision=revision, ranges=ranges, members=held, continues=continues), number


def marked_by_edge(stage: SliceStage, partials: Partials) -> Partials:
    """``partials`` with marks as the state has them: the last edge before each, which no window end lies between."""
    closed = partials.closed.copy()
    late = closed != NEVER_CLOSED
    closed[late] = stage.edges.slice_starts(closed[late])
    return replace(partials, closed=closed)


def merged_late(stage: SliceStage, partials: Partials) -> Partials:
    """The ``partials`` of one batch, those of one slice that came late for the same windows combined."""
    places = places_of(partials.starts, partials.reaching)
    bounds = runs(equal_runs(partials.keys), places, partials.closed, partials.closed)
    firsts = bounds[:-1]
    ints, floats = combine_runs(stage.layout.program(), bounds, partials.ints, partials.floats)
    objects = stage.objects.fold(partials.objects, bounds)
    before = least_spans(partials.before, firsts)
    keys, starts, closed, reaching = (column[firsts] for column in (partials.keys, partials.starts, partials.closed, partials.reaching))
    return Partials(keys, starts, closed, ints, floats, objects, before, reaching)
