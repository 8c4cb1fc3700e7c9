"""Combines slices into the windows of any grid, whatever the form of their partials.

Slices are points at their start, because no window cuts one. A slice of late rows counts only in windows that end after its mark; it is
combined after the range of the others. So are the partials of events that reach into a window from before its start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from windowmill.windowing.columnar.slice_columns import IN_TIME
from windowmill.windowing.columnar.stored_objects import Objects
from windowmill.windowing.kernels.combine import Floats, Ints
from windowmill.windowing.kernels.grid_ranges import grid_windows
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.kernels.two_stacks import add_members, fifo_ranges
from windowmill.windowing.slicing.edges import Numbering
from windowmill.windowing.slicing.leaves import Windows


@dataclass(frozen=True)
class SlicePartials:
    """Partials sorted by key index and start; one element or row per partial.

    Attributes
    ----------
    keys, starts, closed
        Key index; start of the slice or node; the instant after which windows must end to count it. int64, shapes (n,).
    ints, floats, objects
        Shapes (n, number of columns).
    before
        Of late rows that revise windows, the spans of their key before the first of them arrived: for each window that shows empty ones the
        starts of the first and last slice. The first is after the last where nothing was counted before. int64, shape (n, 2 · n_windows).
    reaching
        1 for partials of events that began before their slice and last into it, else 0; int64, shape (n,).
    arrivals
        Moment at which late rows that revise windows arrived, ``IN_TIME`` for others; int64, shape (n,).
    """

    keys: Ints
    starts: Ints
    closed: Ints
    ints: Ints
    floats: Floats
    objects: Objects
    before: Ints
    reaching: Ints
    arrivals: Ints

    @classmethod
    def of_one_key(cls, starts: Ints, closed: Ints, reaching: Ints) -> Self:
        """Partials of no aggregates, of rows in time."""
        n = len(starts)
        nothing: Any = np.empty((n, 0), np.int64)
        return cls(np.zeros(n, np.int64), starts, closed, nothing, nothing, nothing, nothing, reaching, np.full(n, IN_TIME, np.int64))

    def at(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> SlicePartials:
        """The partials that ``chosen`` masks or lists."""
        return SlicePartials(**{name: getattr(self, name)[chosen] for name in _COLUMNS})


_COLUMNS = tuple(column.name for column in fields(SlicePartials))


def windows_of(numbering: Numbering, partials: SlicePartials, offsets: Ints, after: int, through: int) -> tuple[Windows, Ints]:
    """Every window of a grid with end in (``after``, ``through``] that holds a slice, and its number; O(number of slices and windows).

    Key k's partials are ``offsets[k]:offsets[k + 1]``.
    """
    own = np.flatnonzero(partials.reaching == 0)
    starts, closed = partials.starts[own], partials.closed[own]
    regular = closed <= after
    rows = Rows(np.searchsorted(own, offsets).astype(np.int64), starts, starts + 1, np.arange(len(own)))
    key, number, lo, hi, member_offsets, members = grid_windows(numbering.grid, rows, False, regular, closed, after, through)
    held = member_offsets, own[members]
    if len(own) < len(partials.starts):
        reaching = np.flatnonzero(partials.reaching)
        added = reached_windows(numbering, partials, reaching, np.maximum(partials.closed[reaching], after), through)
        key, number, lo, hi, held = _with_members((key, number, lo, hi), held, added)
    return Windows.of(key, *numbering.bounds(number), ranges=(own[regular], lo, hi), members=held), number


def reached_windows(
    numbering: Numbering, partials: SlicePartials, reaching: Ints, after: Ints, through: Ints | int
) -> tuple[Ints, Ints, Ints]:
    """Key, number and partial of each window that events reach into from before its start: those of the partials that ``reaching`` lists.

    Leaves out windows that do not end in (``after``, ``through``]; the former has the shape of ``reaching``, as the latter may.
    """
    index, number = numbering.starting_at(partials.starts[reaching])
    partial, ends = reaching[index], numbering.bounds(number)[1]
    chosen = (ends > after[index]) & (ends <= np.broadcast_to(through, len(reaching))[index])
    return partials.keys[partial[chosen]], number[chosen], partial[chosen]


def _with_members(
    windows: tuple[Ints, Ints, Ints, Ints], members: tuple[Ints, Ints], added: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints, Ints, Ints, tuple[Ints, Ints]]:
    """``windows`` (key, number, lo, hi) with their ``members`` and, after these, partials that are ``added`` (key, number, partial).

    Windows of which nothing but added partials is known are among the result.
    """
    (key, number, lo, hi), (offsets, held), (added_key, added_number, added_partial) = windows, members, added
    given, keys, numbers = len(key), np.append(key, added_key), np.append(number, added_number)
    order = np.lexsort((numbers, keys))
    sorted_keys, sorted_numbers = keys[order], numbers[order]
    new = np.append(True, (sorted_keys[1:] != sorted_keys[:-1]) | (sorted_numbers[1:] != sorted_numbers[:-1]))[: len(order)]
    # The window that each given window is, and each added partial is of.
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    key, number = sorted_keys[new], sorted_numbers[new]
    first, stop = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    first[place[:given]], stop[place[:given]] = lo, hi
    of = np.concatenate((np.repeat(place[:given], np.diff(offsets)), place[given:]))
    by_window = np.argsort(of, kind="stable")
    whole = np.concatenate((held, added_partial))[by_window]
    return key, number, first, stop, (np.searchsorted(of[by_window], np.arange(len(key) + 1)).astype(np.int64), whole)


def combine_numbers(layout: Layout, ints: Ints, floats: Floats, windows: Windows) -> tuple[Ints, Floats]:
    """The numbers of each window's partial, as rows of two arenas; leaf i of ``windows`` is row i of the arenas ``ints`` and ``floats``."""
    out_ints = np.empty((len(windows), ints.shape[1]), np.int64)
    out_floats = np.empty((len(windows), floats.shape[1]), np.float64)
    given: Any = (layout.program(), ints, floats)
    fifo_ranges(*given, windows.sequence, windows.group_offsets, windows.lo, windows.hi, windows.middles, out_ints, out_floats)
    if len(windows.members):
        add_members(*given, windows.member_offsets, windows.members, windows.continues, out_ints, out_floats)
    return out_ints, out_floats


def concatenate(parts: list[SlicePartials]) -> SlicePartials:
    """All partials of ``parts``, one after the other."""
    return SlicePartials(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS})
