"""The fragments of sessions: those that the state holds, those of new rows, and settings for a batch of them.

A *fragment* is the first and last event time of some rows of one session, and their partial. The state holds fragments. Of each open
session with new rows a batch stores one fragment, which holds the whole session. It supersedes the fragments of earlier batches within its
bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, FIRST, GAP, LAST, LATE, NUMBER_OF, TIME
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.rows import ascending, codes_of, reordered
from windowmill.windowing.columnar.slices import by_time, lifted_groups
from windowmill.windowing.columnar.stored_objects import StoredObjects
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.fragments import uncovered
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.kernels.sessions import SessionLimits
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE

#: Column of a fragment where sessions are revised: the number of the version that the session is, or will be when it is shown.
REVISION = "_revision"
#: Columns of a fragment where sessions have a greatest size: this size, null for those that have none; and whether the fragment is closed,
#: and is there to supersede others.
LONGEST, GONE = "_longest", "_gone"


def row_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout) -> pa.Schema:
    """Schema of new rows: keys, the columns that partials read, event time, number in order of arrival, ``CLOSED`` and ``LATE``.

    ``CLOSED`` is the instant through which windows were closed when the row arrived; null if it makes no difference. ``LATE`` is whether
    the row arrived behind the watermark; null means no.
    """
    columns = dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *layout.source_columns])
    own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (CLOSED, pa.int64()), (LATE, pa.bool_())]
    conditions = [(condition_column(text), pa.bool_()) for text in layout.conditions]
    return pa.schema([*((name, types[name]) for name in columns), *conditions, *own])


def own_columns(*, revises: bool, cuts: bool) -> tuple[str, ...]:
    """Columns of a fragment in addition to keys, batch and partials; of sessions that are revised, or that a greatest size cuts."""
    return (GAP, FIRST, LAST, *([REVISION] if revises else []), *([LONGEST, GONE] if cuts else []))


def fragment_schema(keys: dict[str, pa.DataType], layout: Layout, *, revises: bool = False, cuts: bool = False) -> pa.Schema:
    """Schema of a table of fragments: keys, their own columns, batch, partials; parameters as of :func:`own_columns`."""
    own = [(name, pa.bool_() if name == GONE else pa.int64()) for name in (*own_columns(revises=revises, cuts=cuts), BATCH)]
    return pa.schema([*keys.items(), *own, *layout.stored_columns])


@dataclass(frozen=True)
class SessionStage:
    """Settings for a batch of sessions; small and picklable.

    Attributes
    ----------
    limits
        Name, and gap and greatest size of each session window of the spec.
    closed_before, closed
        Instants through which windows are closed before and after the batch: no later row joins a session that ends before.
    ahead
        How far the instants through which windows are shown are ahead of these: the lateness if late rows bring revisions, else 0.
    ends
        Restricts the results to windows that end in this range (begin, end]; null for all.
    keep
        Whether later batches continue from this one's state.
    rows
        Columns of a new row.
    schema
        Columns of a fragment.
    results
        Columns of a result row.
    check
        Verifies fragments read from the state; null if there is no state.
    """

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    layout: Layout
    limits: tuple[tuple[str, SessionLimits], ...]
    batch: int
    closed_before: int
    closed: int
    ahead: int
    ends: tuple[int, int] | None
    keep: bool
    rows: pa.Schema
    schema: pa.Schema
    results: pa.Schema
    check: RowCheck | None = None

    @property
    def source_columns(self) -> Sequence[str]:
        """Columns that the partials read."""
        return self.layout.source_columns

    @property
    def conditions(self) -> Sequence[str]:
        """Conditions under which rows count."""
        return self.layout.conditions

    def own_columns(self, limits: SessionLimits, n: int) -> dict[str, pa.Array]:
        """The columns that ``n`` fragments of the batch have in common, of sessions with these ``limits``."""
        longest = None if limits.longest == AFTER else limits.longest
        own = {GAP: pa.repeat(limits.gap, n), BATCH: pa.repeat(self.batch, n)}
        return own | {LONGEST: pa.repeat(pa.scalar(longest, pa.int64()), n), GONE: pa.repeat(False, n)}

    @cached_property
    def objects(self) -> StoredObjects:
        """The partials that are Python objects."""
        return StoredObjects(self.layout.objects)


def latest_fragments(fragments: pa.Table, codes: Ints, *, cut: bool = False) -> Ints:
    """Indices of the fragments that no later batch has superseded; fragments of one key and window share one of the ``codes``.

    If one fragment lies within another, the outer one is the later. Not so where a greatest size cuts sessions, if one of them is ``GONE``:
    there a fragment of a later batch supersedes those within it.
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
    stored, codes
        Stored fragments, and the code of each one's key.
    n_keys
        Number of keys.
    """

    rows: pa.Table
    order: Ints
    keys: Ints
    closed: Ints
    suspect: Bools
    stored: pa.Table
    codes: Ints
    n_keys: int

    @classmethod
    def of(cls, stage: SessionStage, rows: pa.Table, stored: pa.Table) -> Self:
        rows = ascending(rows, NUMBER_OF)
        rows = reordered(rows, by_time(rows, stage.ties if stage.layout.ordered else ())).combine_chunks()
        codes, n_keys = codes_of([stored, rows], stage.keys)
        order, offsets = by_key(codes[len(stored) :], n_keys)
        keys = np.repeat(np.arange(n_keys), np.diff(offsets))
        closed = int64_of(rows.column(CLOSED).combine_chunks().fill_null(BEFORE))
        suspect = int64_of(rows.column(TIME).combine_chunks()) < closed + stage.ahead
        if suspect.any():
            order = order[np.lexsort((suspect[order], keys))]
        return cls(rows, order, keys, closed, suspect[order], stored.select(stage.schema.names), codes[: len(stored)], n_keys)

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

    def groups(self, apart: int) -> Ints:
        """Offsets in ``order`` of the suspects, and of the runs of other rows at most ``apart``; shape (n_fragments + 1,)."""
        begins = self.suspect.copy()
        begins[:1] = True
        begins[1:] |= (np.diff(self.times[self.order]) > apart) | (np.diff(self.keys) > 0)
        return np.append(np.flatnonzero(begins), len(self.order)).astype(np.int64)


@dataclass(frozen=True)
class Fragments:
    """The fragments of sessions with the same ``limits``: those of the state, then those of new rows; shapes (n_fragments,).

    Attributes
    ----------
    table
        Their columns in the state.
    key, first, last
        Index of each one's key, its first and its last event time.
    new, suspect
        Masks of those of new rows, and of those of suspects.
    number
        Place of its first row in the order of arrival; the earliest of all for those of the state.
    mark
        The instant through which windows were closed when a suspect arrived.
    n_keys
        Number of keys.
    """

    limits: SessionLimits
    table: pa.Table
    key: Ints
    first: Ints
    last: Ints
    new: Bools
    suspect: Bools
    number: Ints
    mark: Ints
    n_keys: int

    @classmethod
    def of(cls, stage: SessionStage, arrived: SessionInput, limits: SessionLimits, apart: int) -> Self:
        """The fragments of a batch; rows at most ``apart`` form one, unless they are suspects."""
        table, key = _stored(arrived, limits)
        n_stored, bounds = len(table), arrived.groups(apart)
        if len(bounds) > 1:
            table = pa.concat_tables([table, _lifted(stage, arrived, limits, bounds)]).combine_chunks()
        key = np.append(key, arrived.keys[bounds[:-1]])
        new, suspect = np.arange(len(table)) >= n_stored, np.zeros(len(table), np.bool_)
        number, mark = (np.full(len(table), BEFORE, np.int64) for _ in range(2))
        if len(bounds) > 1:
            firsts = arrived.order[bounds[:-1]]
            number[new], suspect[new] = np.minimum.reduceat(arrived.numbers[arrived.order], bounds[:-1]), arrived.suspect[bounds[:-1]]
            mark[new] = arrived.closed[firsts]
        first, last = (int64_of(table.column(name).combine_chunks()) for name in (FIRST, LAST))
        return cls(limits, table, key, first, last, new, suspect, number, mark, arrived.n_keys)

    def __len__(self) -> int:
        return len(self.key)

    @property
    def revision(self) -> Ints:
        """The number of the version that each stored fragment is; 0 for others."""
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
    """The fragments of the new rows."""
    firsts, lasts, n = arrived.order[bounds[:-1]], arrived.order[bounds[1:] - 1], len(bounds) - 1
    columns = lifted_groups(stage, arrived.rows, arrived.order, bounds)
    columns |= {FIRST: pa.array(arrived.times[firsts]), LAST: pa.array(arrived.times[lasts])}
    columns |= stage.own_columns(limits, n) | {REVISION: pa.repeat(0, n)}
    return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)
