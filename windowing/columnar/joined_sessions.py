"""Merges new rows and stored partials of sessions: sessions that the watermark passes become results, open ones the new state.

New rows at most a gap apart form a fragment, and the kernel merges fragments like events that last from their first row to their last.

A row whose time lay in windows that had been shown when it arrived (a *suspect*) is a fragment of its own, which the kernel applies in
order of arrival: it joins only a session that was still open then, and brings that session's next version where sessions are revised. All
other rows join no session that was shown before they arrived, so in which order they arrive makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, LATE, NUMBER_OF, SUM, TIME
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.output import gives_json, typed
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.columnar.session_partials import FIRST, GAP, LAST, REVISION, SessionStage, latest_fragments
from windowmill.windowing.columnar.slices import by_time, lifted_groups
from windowmill.windowing.columnar.stored_objects import Objects
from windowmill.windowing.kernels.columns import arenas, int64_of, stored
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.fragments import Fragments, combine_nodes, sessions_of
from windowmill.windowing.kernels.lower import lower
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.watermark import BEFORE


def advance(stage: SessionStage, rows: pa.Table, fragments: pa.Table) -> Advanced:
    """Apply new ``rows`` to the stored ``fragments`` of some keys; O(n log n) in both, plus suspects × open sessions of their keys.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.rows``.
    fragments
        All fragments of these keys that are not closed, with the columns of ``stage.schema``.
    """
    if stage.check is not None and SUM in fragments.column_names:
        stage.check.verify(fragments)
    arrived = _Arrived.of(stage, rows, fragments)
    results, kept, refused = [], [], []
    for gap in dict.fromkeys(gap for _, gap in stage.gaps):
        merged = _Merged.of(stage, arrived, gap)
        results += [merged.results(name) for name, its_gap in stage.gaps if its_gap == gap]
        kept.append(merged.kept())
        refused.append(merged.refused)
    return Advanced.of(results, kept if stage.keep else None, refused, arrived.numbers, arrived.late)


@dataclass(frozen=True)
class _Arrived:
    """New rows and stored fragments with their keys' codes.

    Attributes
    ----------
    rows
        New rows in (time, tie-break, arrival) order.
    order, keys
        The rows by key, suspects last, as indices; and the code of each one's key, in this order.
    closed
        The instant through which windows were closed when each row arrived; the earliest of all if it makes no difference.
    suspect
        Mask of the suspects in this order.
    fragments, codes
        Stored fragments, and the code of each one's key.
    n_keys
        Number of keys.
    """

    rows: pa.Table
    order: Ints
    keys: Ints
    closed: Ints
    suspect: Bools
    fragments: pa.Table
    codes: Ints
    n_keys: int

    @classmethod
    def of(cls, stage: SessionStage, rows: pa.Table, fragments: pa.Table) -> _Arrived:
        rows = rows.sort_by(NUMBER_OF)
        rows = rows.take(pa.array(by_time(rows, stage.ties if stage.layout.ordered else ()))).combine_chunks()
        codes, n_keys = codes_of([fragments, rows], stage.keys)
        order, offsets = by_key(codes[len(fragments) :], n_keys)
        keys = np.repeat(np.arange(n_keys), np.diff(offsets))
        closed = int64_of(rows.column(CLOSED).combine_chunks().fill_null(BEFORE))
        suspect = int64_of(rows.column(TIME).combine_chunks()) < closed + stage.ahead
        if suspect.any():
            order = order[np.lexsort((suspect[order], keys))]
        return cls(rows, order, keys, closed, suspect[order], fragments.select(stage.schema.names), codes[: len(fragments)], n_keys)

    @cached_property
    def numbers(self) -> Ints:
        return int64_of(self.rows.column(NUMBER_OF).combine_chunks())

    @cached_property
    def times(self) -> Ints:
        return int64_of(self.rows.column(TIME).combine_chunks())

    @cached_property
    def late(self) -> pa.Array:
        """Mask of the rows behind the watermark; null means no."""
        return self.rows.column(LATE).combine_chunks()

    def groups(self, gap: int) -> Ints:
        """Offsets in ``order`` of the runs of rows that form one fragment each; shape (n_fragments + 1,)."""
        n = len(self.order)
        begins = self.suspect.copy()
        begins[:1] = True
        begins[1:] |= (np.diff(self.times[self.order]) > gap) | (np.diff(self.keys) > 0)
        return np.append(np.flatnonzero(begins), n).astype(np.int64)


@dataclass(frozen=True)
class _Sessions:
    """Some sessions; shapes (n_sessions,).

    Attributes
    ----------
    key, first, end
        Index of each one's key, first event time, and end.
    revision
        Number of the version that it is.
    part
        What holds it: below the number of fragments a fragment, from there on a node.
    """

    key: Ints
    first: Ints
    end: Ints
    revision: Ints
    part: Ints

    @classmethod
    def of(cls, rows: Ints, part_of: Ints) -> _Sessions:
        """Sessions as the kernel has them, whose part p is ``part_of[p]``."""
        return cls(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], part_of[rows[:, 4]])

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, chosen: Bools) -> _Sessions:
        return _Sessions(self.key[chosen], self.first[chosen], self.end[chosen], self.revision[chosen], self.part[chosen])


@dataclass(frozen=True)
class _Merged:
    """The sessions of one gap that the kernel made of fragments, stored ones first.

    Attributes
    ----------
    of_key
        A fragment of each key that has one.
    shown, open
        The versions that the batch shows, and the open sessions with new rows.
    node_offsets, members
        Node k combines the parts ``members[node_offsets[k]:node_offsets[k + 1]]``.
    refused
        Numbers of the rows that came too late.
    """

    stage: SessionStage
    gap: int
    fragments: pa.Table
    of_key: Ints
    shown: _Sessions
    open: _Sessions
    node_offsets: Ints
    members: Ints
    refused: Ints

    @classmethod
    def of(cls, stage: SessionStage, arrived: _Arrived, gap: int) -> _Merged:
        stored_ones, codes = _stored(arrived, gap)
        table, n_stored, bounds = stored_ones, len(stored_ones), arrived.groups(gap)
        if len(bounds) > 1:
            table = pa.concat_tables([stored_ones, _lifted(stage, arrived, gap, bounds)]).combine_chunks()
        new = np.arange(len(table)) >= n_stored
        first, last = (int64_of(table.column(name).combine_chunks()) for name in (FIRST, LAST))
        codes = np.append(codes, arrived.keys[bounds[:-1]])
        numbers, marks, revision = (np.full(len(table), value, np.int64) for value in (BEFORE, BEFORE, 0))
        suspect = np.zeros(len(table), np.bool_)
        if len(bounds) > 1:
            numbers[new] = np.minimum.reduceat(arrived.numbers[arrived.order], bounds[:-1])
            marks[new], suspect[new] = arrived.closed[arrived.order[bounds[:-1]]], arrived.suspect[bounds[:-1]]
        if REVISION in stage.schema.names:
            revision = int64_of(table.column(REVISION).combine_chunks())
        # Stored fragments are open: those that end before the instant through which windows were shown have been shown.
        shown = ~new & (last + gap < stage.closed_before + stage.ahead)
        order = np.lexsort((numbers, codes))
        of_key = np.zeros(arrived.n_keys, np.int64)
        of_key[codes] = np.arange(len(table))
        offsets = np.searchsorted(codes[order], np.arange(arrived.n_keys + 1)).astype(np.int64)
        by_arrival = Fragments(offsets, first[order], last[order], new[order], suspect[order], marks[order], revision[order], shown[order])
        versions, kept, node_offsets, members, accepted = sessions_of(gap, stage.ahead, stage.closed, by_arrival)
        # Parts as the kernel has them, in terms of the table.
        part = np.append(order, np.arange(len(table), len(table) + len(node_offsets)))
        shown_ones, open_ones = _Sessions.of(versions, part), _Sessions.of(kept, part)
        return cls(stage, gap, table, of_key, shown_ones, open_ones, node_offsets, part[members], numbers[order][~accepted])

    def results(self, name: str) -> pa.Table:
        """The result rows of the window ``name``."""
        stage, shown = self.stage, self.shown
        if stage.ends is not None:
            begin, end = stage.ends
            shown = shown.chosen((shown.end > begin) & (shown.end <= end))
        n, layout = len(shown), stage.layout
        ints, floats = self._numbers
        columns = lower(layout, ints[shown.part], floats[shown.part], self.fragments)
        found = stage.objects.lowered(stage.objects.decode(self._objects[shown.part]))
        for held in layout.objects:
            for result, spec in held.results:
                columns[result] = typed(result, found[result], stage.results.field(result).type, as_json=gives_json(spec))
        columns |= self._keys(shown)
        columns |= {"window": pa.repeat(name, n), "window_start": pa.array(shown.first), "window_end": pa.array(shown.end)}
        columns |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.array(shown.revision), "batch": pa.repeat(stage.batch, n)}
        return pa.table([columns[field.name].cast(field.type) for field in stage.results], schema=stage.results)

    def kept(self) -> pa.Table:
        """The open sessions that have new rows, as one fragment each."""
        stage, kept = self.stage, self.open
        ints, floats = self._numbers
        columns = stored(stage.layout, ints[kept.part], floats[kept.part], self.fragments)
        columns |= stage.objects.write(self._objects[kept.part]) | self._keys(kept)
        columns |= {FIRST: pa.array(kept.first), LAST: pa.array(kept.end - self.gap), REVISION: pa.array(kept.revision)}
        columns |= {GAP: pa.repeat(self.gap, len(kept)), BATCH: pa.repeat(stage.batch, len(kept))}
        return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)

    def _keys(self, sessions: _Sessions) -> dict[str, pa.Array]:
        rows = pa.array(self.of_key[sessions.key])
        return {key: self.fragments.column(key).combine_chunks().take(rows) for key in self.stage.keys}

    @cached_property
    def _numbers(self) -> tuple[Ints, Floats]:
        """The numbers of each part's partial, as rows of two arenas."""
        layout = self.stage.layout
        found: tuple[Ints, Floats] = combine_nodes(layout.program(), self.node_offsets, self.members, *arenas(layout, self.fragments))
        return found

    @cached_property
    def _objects(self) -> Objects:
        """The objects of each part's partial."""
        return self.stage.objects.with_nodes(self.stage.objects.read(self.fragments), self.node_offsets, self.members)


def _stored(arrived: _Arrived, gap: int) -> tuple[pa.Table, Ints]:
    """The stored fragments of sessions of this ``gap`` that no later batch has superseded, and the codes of their keys."""
    mask = int64_of(arrived.fragments.column(GAP).combine_chunks()) == gap
    of_gap, codes = arrived.fragments.filter(pa.array(mask)), arrived.codes[mask]
    latest = latest_fragments(of_gap, codes)
    return of_gap.take(pa.array(latest)), codes[latest]


def _lifted(stage: SessionStage, arrived: _Arrived, gap: int, bounds: Ints) -> pa.Table:
    """The fragments of the new rows."""
    firsts, lasts, n = arrived.order[bounds[:-1]], arrived.order[bounds[1:] - 1], len(bounds) - 1
    columns = lifted_groups(stage, arrived.rows, arrived.order, bounds)
    columns |= {FIRST: pa.array(arrived.times[firsts]), LAST: pa.array(arrived.times[lasts])}
    columns |= {GAP: pa.repeat(gap, n), BATCH: pa.repeat(stage.batch, n), REVISION: pa.repeat(0, n)}
    return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)
