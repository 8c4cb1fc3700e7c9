"""The slices of a key: the columns that distinguish them, and their partials combined into the windows of any grid.

Slices are points at their start, because no window cuts one. A slice of late rows counts only in windows that end after its mark; it is
combined after the range of the others. So are the partials of events that reach into a window from before its start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import ARRIVAL, CLOSED, ORDER, REACHED, REACHING
from windowmill.windowing.columnar.objects import Objects
from windowmill.windowing.kernels.arrays import Rows
from windowmill.windowing.kernels.combine import Floats, Ints
from windowmill.windowing.kernels.grid_ranges import grid_windows
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import int64_of, valid_of
from windowmill.windowing.kernels.two_stacks import add_members, fifo_ranges
from windowmill.windowing.slicing.edges import Numbering
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.watermark import BEFORE

#: ``ARRIVAL`` of a row that brings no revisions.
IN_TIME = -1
#: What a null means: late for no window, no revision, a point or an event that begins there, an order that makes no difference.
_NULLS = {CLOSED: int(BEFORE), ARRIVAL: IN_TIME, REACHING: 0, ORDER: 0}


def places_of(starts: Ints, reaching: Ints) -> Ints:
    """Numbers in the order of ``starts``, and of ``reaching`` among equal ones; no start lies beyond the axis."""
    return starts * 2 + reaching


def marks_of(table: pa.Table, name: str) -> Ints:
    """The column ``name`` of ``_NULLS``, with the value there for null, or in all rows if there is no such column; shape (n_rows,)."""
    if name not in table.column_names:
        return np.full(table.num_rows, _NULLS[name], np.int64)
    return int64_of(pc.fill_null(table.column(name).combine_chunks(), _NULLS[name]))


def reached_of(table: pa.Table, starts: Ints) -> Ints:
    """``REACHED`` of each row, where that is null its start, of ``starts``; int64, shape (n_rows,)."""
    reached = table.column(REACHED).combine_chunks()
    return np.where(valid_of(reached), int64_of(pc.fill_null(reached, 0)), starts)


@dataclass(frozen=True)
class SlicePartials:
    """Partials sorted by key index and start; one element or row per partial."""

    #: Key index; start of the slice or node; the instant after which windows must end to count it. int64, shapes (n,).
    keys: Ints
    starts: Ints
    closed: Ints
    #: Shapes (n, number of columns).
    ints: Ints
    floats: Floats
    objects: Objects
    #: For late rows that revise windows, the spans of their key before the first of them arrived: starts of the first and last slice, for
    #: each window that shows empty ones. The first is after the last if nothing was counted before. int64, shape (n, 2 · n_windows).
    before: Ints
    reaching: Ints  #: 1 for partials of events that began before their slice and last into it, else 0; int64, shape (n,).
    arrivals: Ints  #: Moment at which late rows that revise windows arrived, ``IN_TIME`` for others; int64, shape (n,).

    def at(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> SlicePartials:
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
    """Key, number and partial of each window that events reach into from before its start; ``reaching`` lists these events' partials.

    Leaves out windows that do not end in (``after``, ``through``]; ``after``, and maybe ``through``, has the shape of ``reaching``.
    """
    index, number = numbering.starting_at(partials.starts[reaching])
    partial, ends = reaching[index], numbering.bounds(number)[1]
    chosen = (ends > after[index]) & (ends <= np.broadcast_to(through, len(reaching))[index])
    return partials.keys[partial[chosen]], number[chosen], partial[chosen]


def _with_members(
    windows: tuple[Ints, Ints, Ints, Ints], members: tuple[Ints, Ints], added: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints, Ints, Ints, tuple[Ints, Ints]]:
    """``windows`` (key, number, lo, hi) with their ``members`` and, after these, partials that are ``added`` (key, number, partial).

    The result includes windows that have added partials only.
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
    return SlicePartials(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS})
