"""The span of a key, and the empty windows that it gives: those of a window with ``empty: emit`` that lie between events of the key.

::

    slices     [a]     [b]                  [c]          the key's span: from slice a to slice c
    windows    [--1--)[--2--)[--3--)[--4--)[--5--)       3 and 4 hold nothing, and are shown all the same

A window overlaps the time from the first to the last event if and only if it overlaps the slices that hold these two, as no edge of a
window lies between an event and the start of its slice. So a span is two starts of slices. It outlives the slices: of a key that was idle
for a year, the next event brings the empty windows of that year.

An interval event has partials in the slice where it begins and at each start of a window until it ends. Every window that overlaps it
starts at or before the last of these, so their starts give a span as well. A late event may have partials that are too late and others that
are not: its first partial knows the last (``reached``), so that the event makes its key known from where it begins.

A row of the state that holds spans has no ``_slice``. It holds all that is known of its key; rows of earlier batches may stay in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.bounds import check_key, check_share
from windowmill.windowing.columnar.added_columns import SLICE, TIME, UNTIL_OF
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.columnar.slice_partials import SlicePartials
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels.arrays import Rows
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.grid_ranges import empty_windows, known_span
from windowmill.windowing.kernels.lift import int64_of, valid_of
from windowmill.windowing.slicing.edges import Numbering, WindowGrid

#: ``first`` and ``last`` of a key for which a window has counted nothing.
NO_SPAN = _NO_FIRST, _NO_LAST = AXIS_END, AXIS_BEGIN


def first_of(window: str) -> str:
    """The state's column of the first slice in which ``window`` has counted an event of the key."""
    return f"_{window}__first"


def last_of(window: str) -> str:
    """The state's column of the last slice in which ``window`` has counted an event of the key.

    A row of spans has a value in at least one of these columns, and no slice.
    """
    return f"_{window}__last"


def span_columns(windows: Sequence[str]) -> list[str]:
    """The state's columns of the spans in ``windows``."""
    return [name for window in windows for name in (first_of(window), last_of(window))]


@dataclass(frozen=True)
class Spans:
    """For each window that shows empty ones, and each key, the starts of the first and last slice in which it has counted an event."""

    #: int64, shapes (n_windows, n_keys); ``first`` is after ``last`` where nothing has been counted.
    first: Ints
    last: Ints

    @classmethod
    def of(cls, windows: Sequence[str], rows: pa.Table, keys: Ints, n_keys: int) -> Self:
        """The spans that ``rows`` of the state hold; ``keys`` are the rows' key indices."""
        first, last = np.full((len(windows), n_keys), _NO_FIRST, np.int64), np.full((len(windows), n_keys), _NO_LAST, np.int64)
        for window, name in enumerate(windows):
            firsts, lasts = (rows.column(column).combine_chunks() for column in (first_of(name), last_of(name)))
            known = valid_of(lasts)
            np.minimum.at(first[window], keys[known], int64_of(firsts)[known])
            np.maximum.at(last[window], keys[known], int64_of(lasts)[known])
        return cls(first, last)

    @property
    def known(self) -> Bools:
        """Whether anything has been counted; shape (n_windows, n_keys)."""
        return np.asarray(self.first <= self.last, np.bool_)

    def counting(self, grids: Sequence[WindowGrid], partials: SlicePartials, own: Bools, reached: Ints) -> Spans:
        """These spans, extended by the ``own`` partials; each grid counts those that one of its windows takes.

        ``reached`` is the start of the last slice that events of each partial are known to reach; shape (n_partials,).
        """
        first, last = self.first.copy(), self.last.copy()
        for window, grid in enumerate(grids):
            counted = own & _counted(grid, partials.starts, partials.closed, reached)
            np.minimum.at(first[window], partials.keys[counted], partials.starts[counted])
            np.maximum.at(last[window], partials.keys[counted], reached[counted])
        return Spans(first, last)

    def arriving(
        self, grids: Sequence[WindowGrid], partials: SlicePartials, offsets: Ints, own: Bools, closed: Ints, reached: Ints, orders: Ints
    ) -> tuple[Spans, Ints]:
        """As :meth:`counting` of the ``own`` partials, one after another by ``orders``; and ``before`` of each partial.

        ``closed``: the instants through which windows were closed to each.
        """
        first, last, before = self.first.copy(), self.last.copy(), partials.before.copy()
        rows = Rows(offsets, partials.starts, reached + 1, orders)
        for window, grid in enumerate(grids):
            counted = own & _counted(grid, partials.starts, closed, reached)
            stops = last[window] + 1
            firsts, lasts = known_span(rows, counted, first[window], stops)
            last[window] = stops - 1
            before[counted, 2 * window], before[counted, 2 * window + 1] = firsts[counted], lasts[counted] - 1
        return Spans(first, last), before

    def check(self, grids: Sequence[WindowGrid], partials: SlicePartials, stored: Bools) -> None:
        """Raise ``StateCorruptError`` if a ``stored`` slice lies past its key's span: the batch that added it also stored the span."""
        for window, grid in enumerate(grids):
            past = (
                stored
                & _counted(grid, partials.starts, partials.closed, partials.starts)
                & (partials.starts > self.last[window][partials.keys])
            )
            if past.any():
                raise StateCorruptError("state: span rows are missing for some keys; rebuild it from the source")

    def rows_of(self, windows: Sequence[str], before: Spans) -> tuple[Ints, dict[str, pa.Array]]:
        """The keys whose spans differ from those ``before``, and the columns of their rows."""
        keys = np.flatnonzero(((self.first != before.first) | (self.last != before.last)).any(axis=0))
        spans = np.stack((self.first[:, keys], self.last[:, keys]), axis=1).reshape(2 * len(windows), len(keys))
        return keys.astype(np.int64), spans_stored(windows, spans.T)


def _counted(grid: WindowGrid, starts: Ints, closed: Ints, reached: Ints) -> Bools:
    """Whether a window of ``grid`` that is not ``closed`` takes slices that begin at ``starts``, or events where they ``reached``."""
    return np.asarray(grid.last_end_holding(reached) > np.maximum(starts, closed), np.bool_)


def spans_before(windows: Sequence[str], slices: pa.Table) -> Ints:
    """``before`` of each of the ``slices`` of the state."""
    before = np.empty((len(slices), 2 * len(windows)), np.int64)
    for place, name in enumerate(span_columns(windows)):
        before[:, place] = pc.fill_null(slices.column(name).combine_chunks(), NO_SPAN[place % 2]).to_numpy()
    return before


def spans_stored(windows: Sequence[str], before: Ints) -> dict[str, pa.Array]:
    """The inverse of :func:`spans_before`, as columns by name."""
    firsts, lasts = before[:, ::2], before[:, 1::2]
    columns = {}
    for window, name in enumerate(windows):
        missing = firsts[:, window] > lasts[:, window]
        columns[first_of(name)] = pa.array(firsts[:, window], mask=missing)
        columns[last_of(name)] = pa.array(lasts[:, window], mask=missing)
    return columns


def bounds_before(before: Ints, window: int | None) -> tuple[Ints, Ints]:
    """The first and last slices of ``before`` of the ``window`` of this index; null for a window that does not show empty ones."""
    if window is None:
        return np.full(len(before), _NO_FIRST, np.int64), np.full(len(before), _NO_LAST, np.int64)
    return before[:, 2 * window].copy(), before[:, 2 * window + 1].copy()


def split_off(windows: Sequence[str], slices: pa.Table, offsets: Ints) -> tuple[pa.Table, Ints, Spans]:
    """``slices`` without the rows of spans, the offsets of their keys, and the spans; key k's are ``offsets[k]:offsets[k + 1]``."""
    if not windows:
        return slices, offsets, Spans.of((), slices, np.empty(0, np.int64), len(offsets) - 1)
    of_span = slices.column(SLICE).is_null().combine_chunks().to_numpy(zero_copy_only=False)
    keys = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    spans = Spans.of(windows, slices.filter(pa.array(of_span)), keys[of_span], len(offsets) - 1)
    before = np.append(0, np.cumsum(~of_span)).astype(np.int64)
    return slices.filter(pa.array(~of_span)).combine_chunks(), before[offsets], spans


@dataclass(frozen=True)
class EmptyStretches:
    """The stretches of the axis where a batch may show empty windows of one window of the spec."""

    keys: Ints  #: Indices of the keys with such a stretch, ascending.
    #: The spans of these keys with this batch and before it, as half-open intervals.
    first: Ints
    last: Ints
    old_first: Ints
    old_last: Ints
    #: The windows overlap [begin, stop).
    begin: Ints
    stop: Ints

    @classmethod
    def of(cls, now: Spans, before: Spans | None, window: int, after: int, through: int) -> Self:
        """The stretches of the ``window`` of this index.

        Earlier batches have shown the windows that end at or before ``after`` as far as the spans ``before`` went; null if they need
        not be shown at all. The batch shows those that end at or before ``through``.
        """
        first, last = now.first[window], now.last[window] + 1
        if before is None:
            old_first, old_last = np.full_like(first, AXIS_BEGIN), np.full_like(last, AXIS_END)
            # A window that ends after ``after`` may hold the end of a span that lies before it.
            begin = np.minimum(np.maximum(first, after), last - 1)
        else:
            old_first, old_last = before.first[window], before.last[window] + 1
            begin = np.where(first < old_first, first, np.maximum(first, np.minimum(after, old_last)))
        stop = np.minimum(last, through)
        keys = np.flatnonzero(now.known[window] & (begin < stop)).astype(np.int64)
        return cls(keys, *(column[keys] for column in (first, last, old_first, old_last, begin, stop)))

    def check(self, name: str, grid: WindowGrid, through: int) -> None:
        """Raise ``LimitExceededError`` if the windows of one key, or of all, are too many."""
        if not len(self.keys):
            return
        counts = grid.most_ends(np.minimum(self.stop + grid.longest, through) - self.begin)
        check_key(name, int(counts.max()))
        check_share(name, int(counts.sum(dtype=np.float64)))

    def windows(self, numbering: Numbering, after: int, through: int) -> tuple[Ints, Ints]:
        """Key index and number of each window to show, including those that hold something."""
        key, number = empty_windows(numbering.grid, self.first, self.last, self.old_first, self.old_last, after, through)
        return self.keys[key], number


@dataclass(frozen=True)
class StoredSpans:
    """Rows of spans that were read from the state."""

    #: Those that show empty windows.
    windows: Sequence[str]
    grids: Sequence[WindowGrid]
    keys: Sequence[str]  #: Names of the key columns.
    rows: pa.Table

    def needed(self, touched: pa.Table, after: int) -> pa.Table:
        """The rows of keys that occur among those ``touched``, and of those that may have windows that end after ``after``."""
        codes, of_touched, n_keys = self._codes(touched)
        needed = np.zeros(n_keys, np.bool_)
        needed[of_touched] = True
        for name, grid in zip(self.windows, self.grids, strict=True):
            last = pc.fill_null(self.rows.column(last_of(name)), _NO_LAST).to_numpy()
            needed[codes[last >= grid.first_start_after(after)]] = True
        return self.rows.filter(pa.array(needed[codes]))

    def most_shown_later(self, new: pa.Table, after: int) -> int:
        """Upper bound on the empty windows that end at or before ``after``, and that ``new`` rows show as they make keys known there."""
        codes, of_new, n_keys = self._codes(new)
        times, until = (int64_of(new.column(name).combine_chunks()) for name in (TIME, UNTIL_OF if UNTIL_OF in new.column_names else TIME))
        first, last = np.full(n_keys, _NO_FIRST, np.int64), np.full(n_keys, _NO_LAST, np.int64)
        np.minimum.at(first, of_new, times)
        np.maximum.at(last, of_new, until)
        found = Spans.of(self.windows, self.rows, codes, n_keys)
        most, arrived = 0, first <= last
        for window, grid in enumerate(self.grids):
            beyond, ahead = np.minimum(last, after) - found.last[window], after - first
            at_end = arrived & found.known[window] & (beyond > 0)
            at_begin = arrived & (first < found.first[window]) & (ahead > 0)
            for length in (beyond[at_end], ahead[at_begin]):
                most += int(grid.most_ends(length + grid.longest).sum(dtype=np.float64))
        return most

    def _codes(self, others: pa.Table) -> tuple[Ints, Ints, int]:
        """Key indices of these rows and of ``others``, and the number of keys."""
        codes, n_keys = codes_of([self.rows, others], self.keys)
        return codes[: len(self.rows)], codes[len(self.rows) :], n_keys
