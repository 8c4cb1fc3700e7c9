"""Leaves, and the result of slicing: windows as columns, each with its leaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels.arrays import Rows
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.watermark import AFTER, Clock, commits_of

#: What combines the leaves of a window: FlatFAT, two stacks, or one after the other.
Engine = Literal["two_stacks", "recompute"]
#: ``trigger`` of a window without policies.
NO_TRIGGER = -1
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Leaves:
    """Live rows of all keys, sorted by key, time, tie-break and arrival."""

    table: pa.Table  #: Argument columns and conditions.
    offsets: Ints  #: Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: Key index; a number that ascends in order of arrival over all batches; start and end along the axis, equal for a point; watermark at
    #: arrival. int64, shapes (n_rows,).
    key: Ints
    number: Ints
    time: Ints
    until: Ints
    watermark: Ints
    new: Bools  #: Mask of this batch's rows; shape (n_rows,).
    arrival: Ints  #: Rank of each row in order of arrival among the live rows; shape (n_rows,).

    def __len__(self) -> int:
        return len(self.number)

    @property
    def n_keys(self) -> int:
        return len(self.offsets) - 1

    @property
    def stop(self) -> Ints:
        """Ends of the events as half-open intervals: a point lasts one tick."""
        return np.maximum(self.until, self.time + 1)

    def rows(self) -> Rows:
        """The leaves in the kernels' form; a point lasts one tick."""
        return Rows(self.offsets, self.time, self.stop, commits_of(self.number))

    def find(self, numbers: Ints) -> Ints:
        """Indices of the rows with these ``numbers``, all of which must exist; O(m log n)."""
        if not len(numbers):
            return np.empty(0, np.int64)
        arrived, indices = self._by_arrival
        return indices[np.searchsorted(arrived, numbers)]

    def among(self, numbers: Ints) -> Bools:
        """Mask of the rows with these ``numbers``, all of which must exist; shape (n_rows,)."""
        mask = np.zeros(len(self), np.bool_)
        mask[self.find(numbers)] = True
        return mask

    @cached_property
    def _by_arrival(self) -> tuple[Ints, Ints]:
        """Row numbers in order of arrival, and the indices of their rows."""
        indices = np.empty(len(self), np.int64)
        indices[self.arrival] = np.arange(len(self))
        return self.number[indices], indices


@dataclass(frozen=True)
class Windows:
    """Windows to aggregate, grouped by key."""

    #: Columns of the result; ``BEFORE`` and ``NO_TRIGGER`` are null.
    key: Ints
    start: Ints
    end: Ints
    trigger: Ints
    revision: Ints
    #: Group of each window. Windows of a group are adjacent and share two stacks: those of a key, unless its sequence changes between them.
    group: Ints
    #: Window w holds the leaves ``sequence[lo[w]:hi[w]]``.
    sequence: Ints
    lo: Ints
    hi: Ints
    middles: Ints  #: For each group, in order, the end of the front of its two stacks so far, as an index into ``sequence``; −1 for none.
    #: Further leaves of window w: ``members[member_offsets[w]:member_offsets[w + 1]]``.
    member_offsets: Ints
    members: Ints
    #: Mask of the windows that also hold everything in the window before them, and whose ranges are empty; empty for none. Their members
    #: are partials that combine in any order.
    continues: Bools
    retracted: bool = False  #: Whether all of them have been shown, and are retracted.

    def __len__(self) -> int:
        return len(self.key)

    @classmethod
    def of(
        cls,
        key: Ints,
        start: Ints,
        end: Ints,
        *,
        trigger: Ints | None = None,
        revision: Ints | None = None,
        group: Ints | None = None,
        ranges: tuple[Ints, Ints, Ints] | None = None,
        middles: Ints | None = None,
        members: tuple[Ints, Ints] | None = None,
        continues: Bools | None = None,
    ) -> Self:
        """Windows of ``ranges`` (sequence, lo, hi), of ``members`` (offsets, leaves), of both, or of nothing."""
        n, zero = len(key), np.zeros(len(key), np.int64)
        sequence, lo, hi = ranges if ranges is not None else (_NONE, zero, zero)
        offsets, listed = members if members is not None else (np.zeros(n + 1, np.int64), _NONE)
        return cls(
            key,
            start,
            end,
            np.full(n, NO_TRIGGER, np.int64) if trigger is None else trigger,
            zero if revision is None else revision,
            key if group is None else group,
            sequence,
            lo,
            hi,
            np.full(len(runs(key if group is None else group)) - 1, -1, np.int64) if middles is None else middles,
            offsets,
            listed,
            np.empty(0, np.bool_) if continues is None else continues,
        )

    @classmethod
    def none(cls) -> Self:
        return cls.of(_NONE, _NONE, _NONE)

    @property
    def group_offsets(self) -> Ints:
        """Offsets of the groups; shape (n_groups + 1,)."""
        return runs(self.group)


def runs(values: Ints) -> Ints:
    """Offsets of the runs of equal neighbours; int64, shape (n_runs + 1,). O(n).

    >>> runs(np.array([7, 7, 8])).tolist()
    [0, 2, 3]
    """
    if not len(values):
        return np.zeros(1, np.int64)
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1, [len(values)])).astype(np.int64)


def earliest(leaves: Leaves, mask: Bools, at: Ints, delay: int = 0) -> Ints:
    """For each key, the least of ``at`` over the leaves in ``mask``, plus ``delay``; ``AFTER`` if there are none. Shape (n_keys,)."""
    least = np.full(leaves.n_keys, AFTER, np.int64)
    np.minimum.at(least, leaves.key[mask], at[mask])
    return np.where(least > AFTER - delay, AFTER, least + delay)


@dataclass(frozen=True)
class BatchEffect:
    """The effect of a batch on one window of the spec; masks over the leaves, shapes (n_rows,)."""

    #: New rows that some window counts, and those that all windows refuse as late.
    counted: Bools
    refused: Bools
    kept: Bools  #: Leaves that later windows may hold.
    windows: list[Windows] = field(default_factory=list)  #: The windows that are now complete.
    partly: Bools | None = None  #: Counted rows that came too late for another window that holds them; null if there are none.

    @property
    def n_missed(self) -> int:
        """Number of new rows that came too late for a window that holds them."""
        return int(self.refused.sum()) + (0 if self.partly is None else int(self.partly.sum()))


class Slicer(Protocol):
    """One window of the spec over all keys.

    Its state is a table ``keys`` with one row per key, in key order, and further tables of live rows, identified by ``number``.
    """

    @property
    def engine(self) -> Engine:
        """What combines its windows: two stacks where they are ranges of rows; else rows are listed, and combined one by one."""

    def apply(self, leaves: Leaves, clock: Clock) -> BatchEffect:
        """Accept or refuse the new rows, and return the windows that are now complete."""

    def flipped(self, windows: Windows, flips: Ints) -> None:
        """Record the window at which each group's front was last rebuilt; −1 if it was not."""

    def due(self, leaves: Leaves, applied: BatchEffect, clock: Clock) -> Ints:
        """For each key, the watermark before which it has no work unless one of its rows arrives; ``AFTER`` if it has none."""

    def snapshot(self) -> dict[str, pa.Table]:
        """The state, as tables by name."""

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Continue from the tables of ``snapshot``."""
