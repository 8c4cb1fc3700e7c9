"""Combines slices into the windows of any grid, whatever the form of their partials.

Slices are points at their start, because no window cuts one. A slice of late rows counts only in windows that end after its mark; it is
combined after the range of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from windowmill.windowing.columnar.stored_objects import Objects
from windowmill.windowing.kernels.combine import Floats, Ints
from windowmill.windowing.kernels.grid_ranges import grid_windows
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.kernels.two_stacks import add_members, fifo_ranges
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.numbering import Numbering


@dataclass(frozen=True)
class Partials:
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
    """

    keys: Ints
    starts: Ints
    closed: Ints
    ints: Ints
    floats: Floats
    objects: Objects
    before: Ints

    def at(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Partials:
        """The partials that ``chosen`` masks or lists."""
        ints, floats, objects = self.ints[chosen], self.floats[chosen], self.objects[chosen]
        return Partials(self.keys[chosen], self.starts[chosen], self.closed[chosen], ints, floats, objects, self.before[chosen])


def windows_of(numbering: Numbering, partials: Partials, offsets: Ints, after: int, through: int) -> tuple[Windows, Ints]:
    """Every window of a grid with end in (``after``, ``through``] that holds a slice, and its number; O(number of slices and windows).

    Key k's partials are ``offsets[k]:offsets[k + 1]``.
    """
    regular = partials.closed <= after
    rows = Rows(offsets, partials.starts, partials.starts + 1, np.arange(len(partials.starts)))
    key, number, lo, hi, member_offsets, members = grid_windows(numbering.grid, rows, False, regular, partials.closed, after, through)
    sequence = np.flatnonzero(regular).astype(np.int64)
    return Windows.of(key, *numbering.bounds(number), ranges=(sequence, lo, hi), members=(member_offsets, members)), number


def combine_numbers(layout: Layout, ints: Ints, floats: Floats, windows: Windows) -> tuple[Ints, Floats]:
    """The numbers of each window's partial, as rows of two arenas; leaf i of ``windows`` is row i of the arenas ``ints`` and ``floats``."""
    out_ints = np.empty((len(windows), ints.shape[1]), np.int64)
    out_floats = np.empty((len(windows), floats.shape[1]), np.float64)
    given: Any = (layout.program(), ints, floats)
    fifo_ranges(*given, windows.sequence, windows.group_offsets, windows.lo, windows.hi, windows.middles, out_ints, out_floats)
    if len(windows.members):
        add_members(*given, windows.member_offsets, windows.members, windows.continues, out_ints, out_floats)
    return out_ints, out_floats


def concatenate(parts: list[Partials]) -> Partials:
    """All partials of ``parts``, one after the other."""
    names = ("keys", "starts", "closed", "ints", "floats", "objects", "before")
    whole: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return Partials(**whole)
