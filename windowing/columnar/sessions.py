"""Merges new rows and stored partials of sessions: those that the watermark passes become results, open ones are stored.

A *fragment* is the first and last event time of some rows of one session, and their partial. The state holds fragments. For each open
session with new rows, a batch stores one fragment, which holds the whole session and supersedes the fragments of earlier batches within its
bounds.

New rows at most a gap apart form a fragment, and the kernel merges fragments like interval events from their first row to their last.

A row whose time lay in windows that had been shown when it arrived (a *suspect*) is a fragment of its own, which the kernel applies in
order of arrival: it joins only a session that was still open then, and those that arrived together bring that session's next version where
sessions are revised. All other rows join no session that was shown before they arrived, so their order of arrival makes no difference.

With a greatest size, sessions are cut into pieces:

::

    instants         0    3    6    9   12   15          gap 5, greatest size 10
    closed through                 ^  8
    stored           [0 to 6]      9   12   15           the rows before 8 as one fragment, each instant from there on by itself
    pieces           0 3 6 9         │ 12 15

A new first row of a session moves every place at which the session is cut, and a partial cannot be cut. But all rows of a key before the
instant through which windows are closed lie in one piece: a piece that is open ends at or after that instant, so the next one begins there
or later. They are one fragment, which no later row can cut: a piece that would end within it would be closed. From that instant on each
instant of a key is a fragment of its own, until windows are closed through it. So only rows within disorder and lateness stay separate.

A piece may be closed by its size while rows still come within a gap of its last event. Its fragments are superseded by a row that
marks them as gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import (
    BATCH,
    CLOSED,
    FIRST,
    GAP,
    GONE,
    LAST,
    LATE,
    LONGEST,
    NUMBER_OF,
    REVISION,
    TIME,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.hashes import RowCheck, verify_once
from windowmill.windowing.columnar.objects import Objects
from windowmill.windowing.columnar.results import Advanced, gives_json, retraction, typed
from windowmill.windowing.columnar.rows import as_table, ascending, by_time, codes_of, reordered
from windowmill.windowing.columnar.slices import LiftingStage, lifted_groups
from windowmill.windowing.kernels import event_bounds
from windowmill.windowing.kernels.arrays import Rows
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.event_bounds import FragmentColumns, SessionLimits, combine_nodes, sessions_of, uncovered
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import arenas, condition_column, int64_of, stored
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, commits_of

_NONE = np.empty(0, np.int64)


def row_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout, *, revises: bool = False) -> pa.Schema:
    """Schema of new rows: keys, columns that partials read, event time, number in order of arrival, ``CLOSED``, ``LATE``, ``WATERMARK_OF``.

    ``CLOSED`` is the instant through which windows were closed when the row arrived; null if it makes no difference. ``LATE`` is whether
    the row arrived behind the watermark; null means no. Where sessions are revised the rows also have the watermark that they found.
    """
    columns = dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *layout.source_columns])
    own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (CLOSED, pa.int64()), (LATE, pa.bool_())]
    own += [(WATERMARK_OF, pa.int64())] if revises else []
    conditions = [(condition_column(text), pa.bool_()) for text in layout.conditions]
    return pa.schema([*((name, types[name]) for name in columns), *conditions, *own])


def own_columns(*, revises: bool, cuts: bool) -> tuple[str, ...]:
    """Columns of a fragment in addition to keys, batch and partials, if sessions are revised, or if a greatest size cuts them."""
    return (GAP, FIRST, LAST, *([REVISION] if revises else []), *([LONGEST, GONE] if cuts else []))


def fragment_schema(keys: dict[str, pa.DataType], layout: Layout, *, revises: bool = False, cuts: bool = False) -> pa.Schema:
    """Schema of a table of fragments: keys, their own columns, batch, partials; parameters as of :func:`own_columns`."""
    own = [(name, pa.bool_() if name == GONE else pa.int64()) for name in (*own_columns(revises=revises, cuts=cuts), BATCH)]
    return pa.schema([*keys.items(), *own, *layout.stored_columns])


@dataclass(frozen=True)
class SessionStage(LiftingStage):
    """Settings for a batch of sessions; small and picklable."""

    limits: tuple[tuple[str, SessionLimits], ...]  #: Name, and gap and greatest size of each session window of the spec.
    batch: int
    #: Instants through which windows are closed before and after the batch: no later row joins a session that ends before.
    closed_before: int
    closed: int
    #: Instants through which windows are shown before and after it: the watermark if late rows bring revisions, else those above.
    shown_before: int
    shown: int
    ends: tuple[int, int] | None  #: Restricts the results to windows that end in this range (begin, end]; null for all.
    keep: bool  #: Whether later batches continue from this one's state.
    rows: pa.Schema  #: Columns of a new row.
    schema: pa.Schema  #: Columns of a fragment.
    results: pa.Schema  #: Columns of a result row.
    check: RowCheck | None = None  #: Verifies fragments read from the state; null if there is no state.

    def own_columns(self, limits: SessionLimits, n: int) -> dict[str, pa.Array]:
        """The columns that ``n`` fragments of the batch have in common, of sessions with these ``limits``."""
        longest = None if limits.longest == AFTER else limits.longest
        own = {GAP: pa.repeat(limits.gap, n), BATCH: pa.repeat(self.batch, n)}
        return own | {LONGEST: pa.repeat(pa.scalar(longest, pa.int64()), n), GONE: pa.repeat(False, n)}


def latest_fragments(fragments: pa.Table, codes: Ints, *, cut: bool = False) -> Ints:
    """Indices of the fragments that no later batch has superseded; fragments of one key and window share one of the ``codes``.

    If one fragment lies within another, the outer one is the later. This does not hold if a greatest size cuts sessions, and one of them is
    ``GONE``: then a fragment of a later batch supersedes those within it.
    """
    first, last, batch = (int64_of(fragments.column(name).combine_chunks()) for name in (FIRST, LAST, BATCH))
    if cut:
        gone = fragments.column(GONE).combine_chunks().to_numpy(zero_copy_only=False).astype(np.bool_)
        order = np.lexsort((-batch, first, codes))
        return np.sort(order[uncovered(codes[order], first[order], last[order], batch[order], gone[order])])
    order = np.lexsort((-batch, -last, first, codes))
    _, rank = np.unique(last, return_inverse=True)
    # Greatest last event time of each code so far: a fragment that is not within an outer one ends after all that began before it.
    reach = codes[order] * (len(codes) + 1) + rank[order] + 1
    before = np.maximum.accumulate(np.append(0, reach))[:-1]
    return np.sort(order[reach > before])


@dataclass(frozen=True)
class SessionInput:
    """New rows and stored fragments with their keys' codes."""

    rows: pa.Table  #: New rows in (time, tie-break, arrival) order.
    #: The rows by key, suspects last, as indices; and the code of each one's key, in this order.
    order: Ints
    keys: Ints
    #: The instants through which windows were closed and shown when each row arrived; the earliest of all if it makes no difference.
    closed: Ints
    shown: Ints
    suspect: Bools  #: Mask of the suspects in this order.
    #: Stored fragments, and the code of each one's key.
    stored: pa.Table
    codes: Ints
    n_keys: int  #: Number of keys.

    @classmethod
    def of(cls, stage: SessionStage, rows: pa.Table, stored: pa.Table) -> Self:
        rows = ascending(rows, NUMBER_OF)
        rows = reordered(rows, by_time(rows, TIME, stage.ties if stage.layout.ordered else ())).combine_chunks()
        codes, n_keys = codes_of([stored, rows], stage.keys)
        order, offsets = by_key(codes[len(stored) :], n_keys)
        keys = np.repeat(np.arange(n_keys), np.diff(offsets))
        closed = int64_of(rows.column(CLOSED).combine_chunks().fill_null(BEFORE))
        shown = closed
        if WATERMARK_OF in stage.rows.names:
            shown = np.minimum(int64_of(rows.column(WATERMARK_OF).combine_chunks().fill_null(BEFORE)), stage.shown)
        suspect = int64_of(rows.column(TIME).combine_chunks()) < shown
        if suspect.any():
            order = order[np.lexsort((suspect[order], keys))]
        return cls(rows, order, keys, closed, shown, suspect[order], stored.select(stage.schema.names), codes[: len(stored)], n_keys)

    @cached_property
    def numbers(self) -> Ints:
        return int64_of(self.rows.column(NUMBER_OF).combine_chunks())

    @cached_property
    def times(self) -> Ints:
        return int64_of(self.rows.column(TIME).combine_chunks())

    def groups(self, apart: int) -> Ints:
        """Offsets in ``order`` of the suspects, and of the runs of other rows at most ``apart``; shape (n_fragments + 1,)."""
        begins = self.suspect.copy()
        begins[:1] = True
        begins[1:] |= (np.diff(self.times[self.order]) > apart) | (np.diff(self.keys) > 0)
        return np.append(np.flatnonzero(begins), len(self.order)).astype(np.int64)


@dataclass(frozen=True)
class Fragments:
    """The fragments of sessions with the same ``limits``: those of the state, then those of new rows; shapes (n_fragments,)."""

    limits: SessionLimits
    table: pa.Table  #: Their columns in the state.
    #: Index of each one's key, its first and its last event time.
    key: Ints
    first: Ints
    last: Ints
    #: Masks of those of new rows, and of those of suspects.
    new: Bools
    suspect: Bools
    number: Ints  #: Place of its first row in the order of arrival; the earliest of all for those of the state.
    #: The instants through which windows were closed and shown when a suspect arrived.
    mark: Ints
    shown: Ints
    n_keys: int  #: Number of keys.

    @classmethod
    def of(cls, stage: SessionStage, arrived: SessionInput, limits: SessionLimits, apart: int) -> Self:
        """The fragments of a batch; rows at most ``apart`` form one, unless they are suspects."""
        table, key = _stored(arrived, limits)
        n_stored, bounds = len(table), arrived.groups(apart)
        if len(bounds) > 1:
            table = pa.concat_tables([table, _lifted(stage, arrived, limits, bounds)]).combine_chunks()
        key = np.append(key, arrived.keys[bounds[:-1]])
        new, suspect = np.arange(len(table)) >= n_stored, np.zeros(len(table), np.bool_)
        number, mark, shown = (np.full(len(table), BEFORE, np.int64) for _ in range(3))
        if len(bounds) > 1:
            firsts = arrived.order[bounds[:-1]]
            number[new], suspect[new] = np.minimum.reduceat(arrived.numbers[arrived.order], bounds[:-1]), arrived.suspect[bounds[:-1]]
            mark[new], shown[new] = arrived.closed[firsts], arrived.shown[firsts]
        first, last = (int64_of(table.column(name).combine_chunks()) for name in (FIRST, LAST))
        return cls(limits, table, key, first, last, new, suspect, number, mark, shown, arrived.n_keys)

    def __len__(self) -> int:
        return len(self.key)

    @property
    def revision(self) -> Ints:
        """The revision of each stored fragment; 0 for others."""
        if REVISION not in self.table.column_names:
            return np.zeros(len(self), np.int64)
        return int64_of(self.table.column(REVISION).combine_chunks())

    def offsets(self, order: Ints) -> Ints:
        """Offsets of the keys in ``order``, which sorts by key; shape (n_keys + 1,)."""
        return np.searchsorted(self.key[order], np.arange(self.n_keys + 1)).astype(np.int64)


def _stored(arrived: SessionInput, limits: SessionLimits) -> tuple[pa.Table, Ints]:
    """The stored fragments of sessions with these ``limits`` that count, and the codes of their keys."""
    chosen = int64_of(arrived.stored.column(GAP).combine_chunks()) == limits.gap
    if LONGEST in arrived.stored.column_names:
        chosen &= int64_of(arrived.stored.column(LONGEST).combine_chunks().fill_null(AFTER)) == limits.longest
    found, codes = arrived.stored.filter(pa.array(chosen)), arrived.codes[chosen]
    latest = latest_fragments(found, codes, cut=limits.longest < AFTER)
    return found.take(pa.array(latest)), codes[latest]


def _lifted(stage: SessionStage, arrived: SessionInput, limits: SessionLimits, bounds: Ints) -> pa.Table:
    firsts, lasts, n = arrived.order[bounds[:-1]], arrived.order[bounds[1:] - 1], len(bounds) - 1
    columns = lifted_groups(stage, arrived.rows, arrived.order, bounds)
    columns |= {FIRST: pa.array(arrived.times[firsts]), LAST: pa.array(arrived.times[lasts])}
    columns |= stage.own_columns(limits, n) | {REVISION: pa.repeat(0, n)}
    return as_table(columns, stage.schema)


@dataclass(frozen=True)
class SessionTable:
    """Some sessions, or pieces of them; shapes (n_sessions,)."""

    #: Index of each one's key, first event time, and end.
    key: Ints
    first: Ints
    end: Ints
    revision: Ints  #: Revision of each.
    part: Ints  #: Part that holds each: a fragment if less than the number of fragments, else a node. Empty if there is none.

    @classmethod
    def of(cls, rows: Ints, part_of: Ints) -> Self:
        """Sessions from the kernel's ``rows``; part p of the kernel is ``part_of[p]``."""
        return cls(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], part_of[rows[:, 4]])

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, chosen: Bools) -> SessionTable:
        part = self.part[chosen] if len(self.part) else self.part
        return SessionTable(self.key[chosen], self.first[chosen], self.end[chosen], self.revision[chosen], part)


@dataclass(frozen=True)
class MergedSessions:
    """The sessions that fragments make."""

    stage: SessionStage
    fragments: Fragments
    shown: SessionTable  #: The versions that the batch shows.
    #: Shown versions whose session has other bounds since; each has the revision that retracts it, and no part.
    retracted: SessionTable
    #: What the batch stores: with new rows, or other bounds than before. A session that is kept ends a gap after its last event.
    kept: SessionTable
    gone: Bools  #: Mask of the kept ones that are closed: they supersede their stored fragments.
    #: Node k combines the parts ``members[node_offsets[k]:node_offsets[k + 1]]``.
    node_offsets: Ints
    members: Ints
    refused: Ints  #: Numbers of the rows that came too late.

    def results(self, name: str) -> pa.Table:
        stage, layout, shown = self.stage, self.stage.layout, self._published(self.shown)
        ints, floats = self._numbers
        columns = lower(layout, ints[shown.part], floats[shown.part], self.fragments.table)
        found = stage.objects.lowered(stage.objects.decode(self._objects[shown.part]))
        for held in layout.objects:
            for result, spec in held.results:
                columns[result] = typed(result, found[result], stage.results.field(result).type, as_json=gives_json(spec))
        columns |= self._identity(name, shown)
        return as_table(columns, stage.results)

    def retractions(self, name: str) -> pa.Table:
        return retraction(self._identity(name, self._published(self.retracted)), self.stage.results)

    def _published(self, sessions: SessionTable) -> SessionTable:
        """Those of ``sessions`` that end in the range whose results are wanted."""
        if self.stage.ends is None:
            return sessions
        begin, end = self.stage.ends
        return sessions.chosen((sessions.end > begin) & (sessions.end <= end))

    def _identity(self, name: str, sessions: SessionTable) -> dict[str, pa.Array]:
        """The columns of result rows of ``sessions``, except aggregates."""
        n = len(sessions)
        own = {"window": pa.repeat(name, n), "window_start": pa.array(sessions.first), "window_end": pa.array(sessions.end)}
        own |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.array(sessions.revision), "batch": pa.repeat(self.stage.batch, n)}
        return self._keys(sessions) | own

    def state(self) -> pa.Table:
        stage, kept, limits = self.stage, self.kept, self.fragments.limits
        ints, floats = self._numbers
        columns = stored(stage.layout, ints[kept.part], floats[kept.part], self.fragments.table)
        columns |= stage.objects.write(self._objects[kept.part]) | self._keys(kept) | stage.own_columns(limits, len(kept))
        columns |= {FIRST: pa.array(kept.first), LAST: pa.array(kept.end - limits.gap), REVISION: pa.array(kept.revision)}
        columns |= {GONE: pa.array(self.gone)}
        return as_table(columns, stage.schema)

    def _keys(self, sessions: SessionTable) -> dict[str, pa.Array]:
        fragments = self.fragments
        of_key = np.zeros(fragments.n_keys, np.int64)
        of_key[fragments.key] = np.arange(len(fragments))
        rows = pa.array(of_key[sessions.key])
        return {key: fragments.table.column(key).combine_chunks().take(rows) for key in self.stage.keys}

    @cached_property
    def _numbers(self) -> tuple[Ints, Floats]:
        """The numbers of each part's partial, as rows of two arenas."""
        layout = self.stage.layout
        found: tuple[Ints, Floats] = combine_nodes(layout.program(), self.node_offsets, self.members, *arenas(layout, self.fragments.table))
        return found

    @cached_property
    def _objects(self) -> Objects:
        return self.stage.objects.with_nodes(self.stage.objects.read(self.fragments.table), self.node_offsets, self.members)


def cut(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The pieces of sessions that ``fragments`` make; those of new rows hold one instant each."""
    (gap, longest), n = fragments.limits, len(fragments)
    order = np.lexsort((fragments.number, fragments.first, fragments.key))
    first, last, key = (column[order] for column in (fragments.first, fragments.last, fragments.key))
    rows = Rows(fragments.offsets(order), first, last, commits_of(fragments.number[order]))
    suspect, accepted = fragments.suspect[order], np.zeros(n, np.bool_)
    live = ~suspect
    owner, keys, starts, ends = event_bounds.sessions(gap, longest, rows, fragments.mark[order], suspect, live, accepted, stage.closed)
    refused, n_closed = fragments.number[order][suspect & ~accepted], len(keys)
    # Behind closed pieces come the parts to store of open ones: one for all of a key before the closed instant, then one an instant.
    instant = np.where(last < stage.closed, BEFORE, first)
    begins, open_ones = np.ones(n, np.bool_), np.flatnonzero(live)
    begins[open_ones[1:]] = (np.diff(key[open_ones]) > 0) | (np.diff(instant[open_ones]) != 0)
    group = np.where(live, n_closed - 1 + np.cumsum(begins & live), owner)
    offsets, members, part, node_offsets, node_members = _grouped(group, order)
    ending = np.maximum.reduceat(last[members], offsets[:-1]) + gap if len(members) else _NONE
    n_new = np.add.reduceat(fragments.new[order[members]].astype(np.int64), offsets[:-1]) if len(members) else _NONE
    size = np.diff(offsets)
    gone = np.arange(len(part)) < n_closed
    # A closed piece is kept if its stored fragments stay within reach of the next batch, an open one if it has changed.
    keeps = np.where(gone, (n_new < size) & (ending >= stage.closed), (n_new > 0) | (size > 1))
    begun = members[offsets[:-1]]
    kept = SessionTable(key[begun], first[begun], ending, np.zeros(len(part), np.int64), part).chosen(keeps)
    shown = SessionTable(keys, starts, ends, np.zeros(n_closed, np.int64), part[:n_closed])
    none = shown.chosen(np.zeros(n_closed, np.bool_))  # sessions with a greatest size are shown once
    return MergedSessions(stage, fragments, shown, none, kept, gone[keeps], node_offsets, node_members, refused)


def _grouped(group: Ints, order: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Fragments by ``group``, -1 for none; row i of the groups is the fragment ``order[i]``.

    Returns offsets and members of the groups as rows; the part that holds each, a node unless it has one member; and the offsets and
    members of the nodes as fragments.
    """
    members = np.flatnonzero(group >= 0)
    members = members[np.argsort(group[members], kind="stable")]
    n_groups = int(group.max(initial=-1)) + 1
    offsets = np.searchsorted(group[members], np.arange(n_groups + 1)).astype(np.int64)
    size = np.diff(offsets)
    is_node = size > 1
    part = np.where(is_node, len(group) - 1 + np.cumsum(is_node), order[members[offsets[:-1]]])
    of_nodes = order[members[np.repeat(is_node, size)]]
    return offsets, members, part, np.append(0, np.cumsum(size[is_node])), of_nodes


def advance(stage: SessionStage, rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new ``rows`` to the ``stored`` fragments of some keys; O(n log n) in both, plus suspects × open sessions of their keys.

    ``rows``: all new rows of these keys, with the columns of ``stage.rows``.
    ``stored``: all fragments of these keys that are not closed, with the columns of ``stage.schema``.
    """
    verify_once(stage.check, stored)
    arrived = SessionInput.of(stage, rows, stored)
    results, kept, refused = [], [], {}
    for limits in dict.fromkeys(limits for _, limits in stage.limits):
        if limits.longest < AFTER:
            # No two instants are known to lie in one piece.
            merged = cut(stage, Fragments.of(stage, arrived, limits, apart=0))
        else:
            merged = _joined(stage, Fragments.of(stage, arrived, limits, apart=limits.gap))
        names = tuple(name for name, its_limits in stage.limits if its_limits == limits)
        results += [table for name in names for table in (merged.results(name), merged.retractions(name))]
        kept.append(merged.state())
        refused[names] = merged.refused
    return Advanced.of(results, kept if stage.keep else None, refused, arrived.numbers, arrived.rows.column(LATE).combine_chunks())


def _joined(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The sessions of ``fragments``, which no greatest size cuts."""
    gap, n = fragments.limits.gap, len(fragments)
    # Stored fragments are open: those that end before the instant through which windows were shown have been shown.
    shown = ~fragments.new & (fragments.last + gap < stage.shown_before)
    commits = commits_of(fragments.number)
    # Suspects that arrived together go from the latest to the earliest, so that one that joins others to an open session precedes them.
    order = np.lexsort((-fragments.first, commits, fragments.key))
    by_arrival = FragmentColumns(
        fragments.offsets(order),
        fragments.first[order],
        fragments.last[order],
        fragments.new[order],
        fragments.suspect[order],
        commits[order],
        fragments.mark[order],
        fragments.shown[order],
        fragments.revision[order],
        shown[order],
    )
    versions, retracted, kept, node_offsets, members, accepted = sessions_of(gap, stage.shown, stage.closed, by_arrival)
    # Parts as the kernel has them, in terms of the table.
    part = np.append(order, np.arange(n, n + len(node_offsets)))
    gone, refused = np.zeros(len(kept), np.bool_), fragments.number[order][~accepted]
    retractions = SessionTable(retracted[:, 0], retracted[:, 1], retracted[:, 2], retracted[:, 3], _NONE)
    versions, kept = SessionTable.of(versions, part), SessionTable.of(kept, part)
    return MergedSessions(stage, fragments, versions, retractions, kept, gone, node_offsets, part[members], refused)
