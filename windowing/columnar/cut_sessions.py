"""Merges new rows and stored partials of sessions with a greatest size, which cuts them into pieces.

::

    instants         0    3    6    9   12   15          gap 5, greatest size 10
    closed through                 ^  8
    stored           [0 to 6]      9   12   15           the rows before 8 as one fragment, each instant from there on by itself
    pieces           0 3 6 9         │ 12 15

A row before a session moves every place where it is cut, and a partial cannot be cut. But all rows of a key before the instant through
which windows are closed lie in one piece: a piece that is open ends at or after that instant, so the next one begins there or later. They
are one fragment, which no later row can cut: a piece that would end within it would be closed. From that instant on each instant of a key
is a fragment of its own, until windows are closed through it. So only rows within disorder and lateness are kept in detail.

A piece may be closed by its size while rows still come within a gap of its last event. Its fragments are superseded by a row that tells
that they are gone.
"""

from __future__ import annotations

import numpy as np

from windowmill.windowing.columnar.merged_sessions import MergedSessions, SessionTable
from windowmill.windowing.columnar.session_fragments import Fragments
from windowmill.windowing.columnar.session_partials import SessionStage
from windowmill.windowing.kernels import sessions as kernel
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.watermark import BEFORE, moments_of

_NONE = np.empty(0, np.int64)


def cut(stage: SessionStage, fragments: Fragments) -> MergedSessions:
    """The pieces of sessions that ``fragments`` make; those of new rows hold one instant each."""
    (gap, longest), n = fragments.limits, len(fragments)
    order = np.lexsort((fragments.number, fragments.first, fragments.key))
    first, last, key = (column[order] for column in (fragments.first, fragments.last, fragments.key))
    rows = Rows(fragments.offsets(order), first, last, moments_of(fragments.number[order], by_row=stage.by_row))
    suspect, accepted = fragments.suspect[order], np.zeros(n, np.bool_)
    live = ~suspect
    owner, keys, starts, ends = kernel.sessions(gap, longest, rows, fragments.mark[order], suspect, live, accepted, stage.closed)
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
    return MergedSessions(stage, fragments, shown, kept, gone[keeps], node_offsets, node_members, refused)


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
