"""The fragments of a batch: those that the state holds, and those of new rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.columnar.session_partials import FIRST, GAP, LAST, LONGEST, REVISION, SessionStage, latest_fragments
from windowmill.windowing.columnar.slices import by_time, lifted_groups
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.sessions import SessionLimits
from windowmill.windowing.kernels.slices import by_key
from windowmill.windowing.watermark import AFTER, BEFORE


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
        rows = rows.sort_by(NUMBER_OF)
        rows = rows.take(pa.array(by_time(rows, stage.ties if stage.layout.ordered else ()))).combine_chunks()
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
