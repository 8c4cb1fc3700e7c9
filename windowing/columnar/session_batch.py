"""Merges new rows and stored partials of sessions: sessions that the watermark passes become results, open ones the new state.

New rows at most a gap apart form a fragment, and the kernel merges fragments like interval events from their first row to their last.

A row whose time lay in windows that had been shown when it arrived (a *suspect*) is a fragment of its own, which the kernel applies in
order of arrival: it joins only a session that was still open then, and those that arrived together bring that session's next version where
sessions are revised. All other rows join no session that was shown before they arrived, so in which order they arrive makes no difference.

With a greatest size, sessions are cut into pieces:

::

    instants         0    3    6    9   12   15          gap 5, greatest size 10
    closed through                 ^  8
    stored           [0 to 6]      9   12   15           the rows before 8 as one fragment, each instant from there on by itself
    pieces           0 3 6 9         │ 12 15

A row before a session moves every place where it is cut, and a partial cannot be cut. But all rows of a key before the instant through
which windows are closed lie in one piece: a piece that is open ends at or after that instant, so the next one begins there or later. They
are one fragment, which no later row can cut: a piece that would end within it would be closed. From that instant on each instant of a key
is a fragment of its own, until windows are closed through it. So only rows within disorder and lateness are kept in detail.

A piece may be closed by its size while rows still come within a gap of its last event. Its fragments are superseded by a row that
marks them as gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import FIRST, LAST
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import verify_once
from windowmill.windowing.columnar.results import gives_json, retraction, typed
from windowmill.windowing.columnar.session_fragments import GONE, REVISION, Fragments, SessionInput, SessionStage
from windowmill.windowing.columnar.stored_objects import Objects
from windowmill.windowing.kernels import sessions
from windowmill.windowing.kernels.columns import arenas, stored
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.fragments import FragmentColumns, combine_nodes, sessions_of
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.watermark import AFTER, BEFORE, commits_of


@dataclass(frozen=True)
class SessionTable:
    """Some sessions, or pieces of them; shapes (n_sessions,).

    Attributes
    ----------
    key, first, end
        Index of each one's key, first event time, and end.
    revision
        Number of the version that it is.
    part
        What holds it: below the number of fragments a fragment, from there on a node. Empty if nothing does.
    """

    key: Ints
    first: Ints
    end: Ints
    revision: Ints
    part: Ints

    @classmethod
    def of(cls, rows: Ints, part_of: Ints) -> Self:
        """Sessions as the kernel has them, whose part p is ``part_of[p]``."""
        return cls(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3], part_of[rows[:, 4]])

    def __len__(self) -> int:
        return len(self.key)

    def chosen(self, chosen: Bools) -> SessionTable:
        part = self.part[chosen] if len(self.part) else self.part
        return SessionTable(self.key[chosen], self.first[chosen], self.end[chosen], self.revision[chosen], part)


@dataclass(frozen=True)
class MergedSessions:
    """The sessions that fragments make.

    Attributes
    ----------
    shown, kept
        The versions that the batch shows, and what it stores: with new rows, or other bounds than before. A session that is kept ends a
        gap after its last event.
    retracted
        Versions that were shown, and whose session has other bounds since; each is of the revision that retracts it, and has no part.
    gone
        Mask of the kept ones that are closed: they supersede what is stored of them.
    node_offsets, members
        Node k combines the parts ``members[node_offsets[k]:node_offsets[k + 1]]``.
    refused
        Numbers of the rows that came too late.
    """

    stage: SessionStage
    fragments: Fragments
    shown: SessionTable
    retracted: SessionTable
    kept: SessionTable
    gone: Bools
    node_offsets: Ints
    members: Ints
    refused: Ints

    def results(self, name: str) -> pa.Table:
        """The result rows of the window ``name``."""
        stage, layout, shown = self.stage, self.stage.layout, self._published(self.shown)
        ints, floats = self._numbers
        columns = lower(layout, ints[shown.part], floats[shown.part], self.fragments.table)
        found = stage.objects.lowered(stage.objects.decode(self._objects[shown.part]))
        for held in layout.objects:
            for result, spec in held.results:
                columns[result] = typed(result, found[result], stage.results.field(result).type, as_json=gives_json(spec))
        columns |= self._identity(name, shown)
        return pa.table([columns[field.name].cast(field.type) for field in stage.results], schema=stage.results)

    def retractions(self, name: str) -> pa.Table:
        """The rows of the window ``name`` that retract versions."""
        return retraction(self._identity(name, self._published(self.retracted)), self.stage.results)

    def _published(self, sessions: SessionTable) -> SessionTable:
        """Those of ``sessions`` that end in the range whose results are wanted."""
        if self.stage.ends is None:
            return sessions
        begin, end = self.stage.ends
        return sessions.chosen((sessions.end > begin) & (sessions.end <= end))

    def _identity(self, name: str, sessions: SessionTable) -> dict[str, pa.Array]:
        """The columns of result rows of ``sessions`` but for aggregates."""
        n = len(sessions)
        own = {"window": pa.repeat(name, n), "window_start": pa.array(sessions.first), "window_end": pa.array(sessions.end)}
        own |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.array(sessions.revision), "batch": pa.repeat(self.stage.batch, n)}
        return self._keys(sessions) | own

    def state(self) -> pa.Table:
        """The rows that the batch stores."""
        stage, kept, limits = self.stage, self.kept, self.fragments.limits
        ints, floats = self._numbers
        columns = stored(stage.layout, ints[kept.part], floats[kept.part], self.fragments.table)
        columns |= stage.objects.write(self._objects[kept.part]) | self._keys(kept) | stage.own_columns(limits, len(kept))
        columns |= {FIRST: pa.array(kept.first), LAST: pa.array(kept.end - limits.gap), REVISION: pa.array(kept.revision)}
        columns |= {GONE: pa.array(self.gone)}
        return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)

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
        """The objects of each part's partial."""
        return self.stage.objects.with_nodes(self.stage.objects.read(self.fragments.table), self.node_offsets, self.members)


_NONE = np.empty(0, np.int64)


def cut(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The pieces of sessions that ``fragments`` make; those of new rows hold one instant each."""
    (gap, longest), n = fragments.limits, len(fragments)
    order = np.lexsort((fragments.number, fragments.first, fragments.key))
    first, last, key = (column[order] for column in (fragments.first, fragments.last, fragments.key))
    rows = Rows(fragments.offsets(order), first, last, commits_of(fragments.number[order]))
    suspect, accepted = fragments.suspect[order], np.zeros(n, np.bool_)
    live = ~suspect
    owner, keys, starts, ends = sessions.sessions(gap, longest, rows, fragments.mark[order], suspect, live, accepted, stage.closed)
    refused, n_closed = fragments.number[order][suspect & ~accepted], len(keys)
    # After the closed pieces come what is stored of the open ones: of a key all before the closed instant, and each instant from there on.
    instant = np.where(last < stage.closed, BEFORE, first)
    begins, open_ones = np.ones(n, np.bool_), np.flatnonzero(live)
    begins[open_ones[1:]] = (np.diff(key[open_ones]) > 0) | (np.diff(instant[open_ones]) != 0)
    group = np.where(live, n_closed - 1 + np.cumsum(begins & live), owner)
    offsets, members, part, node_offsets, node_members = _grouped(group, order)
    ending = np.maximum.reduceat(last[members], offsets[:-1]) + gap if len(members) else _NONE
    n_new = np.add.reduceat(fragments.new[order[members]].astype(np.int64), offsets[:-1]) if len(members) else _NONE
    size = np.diff(offsets)
    gone = np.arange(len(part)) < n_closed
    # Of a closed piece, fragments that stay within reach of the next batch; of an open one what has changed.
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

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.rows``.
    stored
        All fragments of these keys that are not closed, with the columns of ``stage.schema``.
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
    return Advanced.of(results, kept if stage.keep else None, refused, arrived.numbers, arrived.late)


def _joined(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The sessions of ``fragments``, which no greatest size cuts."""
    gap, n = fragments.limits.gap, len(fragments)
    # Stored fragments are open: those that end before the instant through which windows were shown have been shown.
    shown = ~fragments.new & (fragments.last + gap < stage.closed_before + stage.ahead)
    commits = commits_of(fragments.number)
    # Of suspects that arrived together the latest comes first, so that one that joins others to an open session is there before them.
    order = np.lexsort((-fragments.first, commits, fragments.key))
    by_arrival = FragmentColumns(
        fragments.offsets(order),
        fragments.first[order],
        fragments.last[order],
        fragments.new[order],
        fragments.suspect[order],
        commits[order],
        fragments.mark[order],
        fragments.revision[order],
        shown[order],
    )
    versions, retracted, kept, node_offsets, members, accepted = sessions_of(gap, stage.ahead, stage.closed, by_arrival)
    # Parts as the kernel has them, in terms of the table.
    part = np.append(order, np.arange(n, n + len(node_offsets)))
    gone, refused = np.zeros(len(kept), np.bool_), fragments.number[order][~accepted]
    retractions = SessionTable(retracted[:, 0], retracted[:, 1], retracted[:, 2], retracted[:, 3], _NONE)
    versions, kept = SessionTable.of(versions, part), SessionTable.of(kept, part)
    return MergedSessions(stage, fragments, versions, retractions, kept, gone, node_offsets, part[members], refused)
