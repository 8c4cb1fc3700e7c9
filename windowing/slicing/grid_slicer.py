"""Windows whose bounds depend on the axis alone: tumbling, hopping and cumulative, on elapsed or calendar time.

::

     0    5    10   15
     [0--------)                  rows between two edges share their windows: a window is a range of a key's rows
          [1--------)             a late row counts in those of its windows that were open: it is listed beside the range
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.windowing.bounds import check_key, check_lasting
from windowmill.windowing.kernels import grid_arithmetic as kernel
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.grid_ranges import empty_windows, grid_windows, known_span, places_of
from windowmill.windowing.kernels.grid_revisions import first_late, late_revisions
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.slicing.leaves import BatchEffect, Engine, Leaves, Windows, earliest
from windowmill.windowing.slicing.numbering import Numbering, pairs_among
from windowmill.windowing.watermark import AFTER, BEFORE, Clock

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Window
    from windowmill.windowing.windows.rules import GridRules

_NONE = np.empty(0, np.int64)


class GridSlicer:
    """One window on a grid over all keys."""

    engine: Engine = "two_stacks"

    def __init__(self, window: Window, rules: GridRules, pipeline: Pipeline) -> None:
        self._window = window
        self._grid = rules.grid()
        self._intervals = pipeline.time.end is not None
        self._revise = pipeline.emit == "revise"
        self._empty = window.empty == "emit"
        self._middle_end, self._first, self._last = _NONE, _NONE, _NONE
        # Numbers of late rows, and the span of their key's rows before each arrived.
        self._late, self._late_first, self._late_last = _NONE, _NONE, _NONE

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        self._grow(leaves.n_keys)
        time, stop, closed = leaves.time, leaves.stop, clock.closed_at(leaves.watermark)
        if self._intervals and len(leaves):
            check_lasting(self._window, int((stop - time).max()))
        since = clock.since if self._revise else int(clock.closed_at(np.array([clock.since]))[0])
        numbering = self._numbered(leaves, since)
        starts, ends = kernel.firsts_after(numbering.grid, time)
        held = starts < stop
        last_end = np.where(held, numbering.last_end(stop), BEFORE)
        marks = leaves.watermark if self._revise else closed
        regular = ~(held & (ends <= marks))
        through = clock.watermark if self._revise else clock.closed
        counted = held & (last_end > closed) & leaves.new
        kept = held & (last_end > clock.closed)
        old_first, old_last = self._first.copy(), self._last.copy()
        rows = leaves.rows(clock)
        before = self._known_before(leaves, rows, counted, kept & ~regular)
        if self._empty:
            self._check_empty(old_first, old_last, since, through)
        parts = [self._windows(numbering, leaves, rows, regular, marks, since, through)]
        if self._revise:
            key, number, revision, *members = late_revisions(numbering.grid, rows, leaves.watermark, closed, leaves.new, *before)
            parts.append(Windows.of(key, *numbering.bounds(number), revision=revision, members=tuple(members)))
        if self._empty:
            key, number = empty_windows(numbering.grid, self._first, self._last, old_first, old_last, since, through)
            taken = pairs_among(key, number, parts[0].key, self._numbers)
            if self._revise:
                taken |= self._late_before_known(numbering, leaves, rows, closed, before, key, number)
            parts.append(Windows.of(key[~taken], *numbering.bounds(number[~taken])))
        return BatchEffect(counted, held & ~counted & leaves.new, kept, parts, counted & (ends <= closed))

    def _check_empty(self, old_first: Ints, old_last: Ints, since: int, through: int) -> None:
        """Refuse keys with too many windows, empty ones included, between those emitted so far and ``through``."""
        known = self._last > self._first
        if known.any():
            emitted = np.where(self._first == old_first, np.minimum(old_last, since), self._first)
            begin = np.maximum(self._first, emitted)[known]
            longest = int((np.maximum(np.minimum(self._last[known], through), begin) - begin).max())
            check_key(self._window, self._window.windows_of_event(max(1, longest)))

    def _known_before(self, leaves: Leaves, rows: Rows, counted: Bools, late: Bools) -> tuple[Ints, Ints]:
        """The span of a key's rows before each counted or late row arrived; zeros if empty windows are skipped."""
        if not self._empty:
            nothing = np.zeros(len(leaves), np.int64)
            return nothing, nothing
        first, last = known_span(rows, counted, self._first, self._last)
        if self._revise:
            old = leaves.find(self._late)
            first[old], last[old] = self._late_first, self._late_last
            self._late, self._late_first, self._late_last = leaves.number[late], first[late], last[late]
        return first, last

    def _numbered(self, leaves: Leaves, since: int) -> Numbering:
        if not self._empty or self._grid.listed is None or not len(leaves):
            return self._grid.numbered(leaves.time, leaves.stop)
        # Empty windows yet to be emitted end after those emitted so far, or lie between a key's last event and its new ones.
        last = self._last[leaves.key[leaves.new]]
        instants = np.concatenate((leaves.time, last[last > BEFORE], [since] if since > BEFORE else _NONE))
        first, stop = int(instants.min()), int(leaves.stop.max())
        check_key(self._window, self._window.windows_of_event(stop - first))
        return self._grid.numbered(np.array([first]), np.array([stop]))

    def _windows(self, numbering: Numbering, leaves: Leaves, rows: Rows, regular: Bools, marks: Ints, since: int, through: int) -> Windows:
        key, number, lo, hi, member_offsets, members = grid_windows(numbering.grid, rows, self._intervals, regular, marks, since, through)
        seen = np.concatenate(([0], np.cumsum(regular))).astype(np.int64)
        keys = np.unique(key)
        middles = places_of(leaves.offsets, leaves.time, seen, keys, self._middle_end)
        middles[self._middle_end[keys] == BEFORE] = -1
        self._numbers = number
        return Windows.of(
            key,
            *numbering.bounds(number),
            ranges=(np.flatnonzero(regular).astype(np.int64), lo, hi),
            middles=middles,
            members=(member_offsets, members),
        )

    def _late_before_known(
        self, numbering: Numbering, leaves: Leaves, rows: Rows, closed: Ints, before: tuple[Ints, Ints], key: Ints, number: Ints
    ) -> Bools:
        """Mask of the windows that got a late row before they lay between the key's first and last event: they were never emitted empty."""
        row = first_late(numbering.grid, rows, leaves.watermark, closed, key, number)
        start, end = numbering.bounds(number)
        first, last = (column[row] for column in before)
        return np.asarray((row >= 0) & ~((first < end) & (last > start) & (first < last)))

    def flipped(self, windows: Windows, flips: Ints) -> None:
        made = flips >= 0
        if made.any():
            self._middle_end[windows.key[windows.group_offsets[:-1]][made]] = windows.end[flips[made]]

    def _grow(self, n_keys: int) -> None:
        missing = n_keys - len(self._first)
        if missing:
            self._middle_end = np.append(self._middle_end, np.full(missing, BEFORE, np.int64))
            self._first, self._last = np.append(self._first, np.full(missing, AFTER)), np.append(self._last, np.full(missing, BEFORE))

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        # Empty windows end before those of the next row.
        at = np.full(len(leaves), clock.closed, np.int64) if self._empty else leaves.time
        return earliest(leaves, applied.kept, at, 0 if self._revise else clock.lateness)

    def snapshot(self) -> dict[str, pa.Table]:
        keys = pa.table({"middle_end": self._middle_end, "first": self._first, "last": self._last})
        late = pa.table({"number": self._late, "first": self._late_first, "last": self._late_last})
        return {"keys": keys, "late": late}

    def restore(self, tables: dict[str, pa.Table]) -> None:
        columns = (tables["keys"].column(name).to_numpy().copy() for name in ("middle_end", "first", "last"))
        self._middle_end, self._first, self._last = columns
        self._late, self._late_first, self._late_last = (tables["late"].column(name).to_numpy() for name in ("number", "first", "last"))
