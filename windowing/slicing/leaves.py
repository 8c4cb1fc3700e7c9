"""What slicing gives: windows as columns, each with the leaves it holds; and the leaves themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.rings import ring_members
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.watermark import AFTER, Clock

#: ``start`` of a window that holds nothing; ``trigger`` of a window that is no policy's.
NO_START, NO_TRIGGER = np.iinfo(np.int64).min, -1
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Leaves:
    """Live rows of all keys in the order of key, time, tie-break and arrival.

    Attributes
    ----------
    table
        Argument columns and conditions.
    offsets
        Key k's rows are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    key, number, time, until, watermark
        Key index; position in all that was fed; start and end along the axis, equal for a point; watermark that the row met.
    new
        The rows that this batch has brought.
    arrival
        Place of each row in the order of arrival, in which numbers ascend.
    """

    table: pa.Table
    offsets: Ints
    key: Ints
    number: Ints
    time: Ints
    until: Ints
    watermark: Ints
    new: Bools
    arrival: Ints

    def __len__(self) -> int:
        return len(self.number)

    @property
    def n_keys(self) -> int:
        return len(self.offsets) - 1

    @property
    def stop(self) -> Ints:
        """Where events end as half-open intervals: a point lasts one tick."""
        return np.maximum(self.until, self.time + 1)

    @property
    def rows(self) -> Rows:
        """The leaves as kernels take them; a point lasts one tick."""
        return Rows(self.offsets, self.time, self.stop, self.number)

    def find(self, numbers: Ints) -> Ints:
        """Where the rows with these numbers stand; each must be among them."""
        if not len(numbers):
            return np.empty(0, np.int64)
        arrived, places = self._by_arrival
        return places[np.searchsorted(arrived, numbers)]

    def among(self, numbers: Ints) -> Bools:
        """Which rows have these numbers; each must be one's."""
        found = np.zeros(len(self), np.bool_)
        found[self.find(numbers)] = True
        return found

    @cached_property
    def _by_arrival(self) -> tuple[Ints, Ints]:
        """Numbers in the order of arrival, and where their rows stand."""
        places = np.empty(len(self), np.int64)
        places[self.arrival] = np.arange(len(self))
        return self.number[places], places


@dataclass(frozen=True)
class Ring:
    """Windows whose leaves leave in any order, as changes of circular leaves: :func:`windowmill.windowing.kernels.rings.ring_changes`.

    Attributes
    ----------
    capacity, front, span, fresh
        Of each window: slots of its ring, the oldest leaf's slot, slots from there to the youngest's, and whether it holds only what its
        changes bring.
    change_offsets, slots, leaves
        Window w is as the one before, but for ``slots[change_offsets[w]:change_offsets[w + 1]]``; −1 empties a slot.
    """

    capacity: Ints
    front: Ints
    span: Ints
    fresh: Bools
    change_offsets: Ints
    slots: Ints
    leaves: Ints

    def members(self) -> tuple[Ints, Ints]:
        """All leaves of each window, listed: where they begin, and the leaves from the oldest to the youngest."""
        offsets, leaves = ring_members(self.capacity, self.front, self.span, self.fresh, self.change_offsets, self.slots, self.leaves)
        return offsets, leaves


@dataclass(frozen=True)
class Windows:
    """Windows to be aggregated, those of a key side by side.

    Attributes
    ----------
    key, start, end, trigger, revision
        Columns of the result; ``NO_START`` and ``NO_TRIGGER`` are null.
    sequence, lo, hi
        Window w holds the leaves ``sequence[lo[w]:hi[w]]``.
    group
        Windows of a group stand side by side and share two stacks: those of a key, unless its sequence changed between them.
    middles
        For each group, in order, where the front of its two stacks ended before, as an index into ``sequence``; −1 for none.
    member_offsets, members
        Further leaves of window w: ``members[member_offsets[w]:member_offsets[w + 1]]``.
    ring
        What says which leaves the windows hold instead of all these, where they leave in any order.
    """

    key: Ints
    start: Ints
    end: Ints
    trigger: Ints
    revision: Ints
    group: Ints
    sequence: Ints
    lo: Ints
    hi: Ints
    middles: Ints
    member_offsets: Ints
    members: Ints
    ring: Ring | None

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
        ring: Ring | None = None,
    ) -> Self:
        """Windows of ``ranges`` (sequence, lo, hi), of ``members`` (offsets, leaves), of both, of a ``ring``, or of nothing."""
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
            ring,
        )

    @classmethod
    def none(cls) -> Self:
        return cls.of(_NONE, _NONE, _NONE)

    @property
    def group_offsets(self) -> Ints:
        """Where each group's windows begin; shape (n_groups + 1,)."""
        return runs(self.group)


def runs(values: Ints) -> Ints:
    """Where each run of equal neighbours begins, and the length; shape (n_runs + 1,)."""
    if not len(values):
        return np.zeros(1, np.int64)
    return np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1, [len(values)])).astype(np.int64)


def earliest(leaves: Leaves, mask: Bools, at: Ints, delay: int = 0) -> Ints:
    """For each key the least of ``at`` among the leaves that ``mask`` marks, ``delay`` later; ``AFTER`` where there is none."""
    found = np.full(leaves.n_keys, AFTER, np.int64)
    np.minimum.at(found, leaves.key[mask], at[mask])
    return np.where(found > AFTER - delay, AFTER, found + delay)


@dataclass(frozen=True)
class Applied:
    """What a batch does to one window of the spec.

    Attributes
    ----------
    counted, refused
        Among the leaves, the new rows that some window of its has counted, or that all have refused as late.
    kept
        Leaves that windows still to come may hold.
    windows
        Those complete now.
    """

    counted: Bools
    refused: Bools
    kept: Bools
    windows: list[Windows] = field(default_factory=list)


class Slicer(Protocol):
    """One window of the spec over all keys.

    Its state is a table ``keys`` with a row for each key, in order, and others that tell of live rows by their ``number``.
    """

    def apply(self, leaves: Leaves, clock: Clock) -> Applied:
        """Judge the new rows and give the windows that are complete now."""

    def flipped(self, windows: Windows, flips: Ints) -> None:
        """Learn at which window each key's front was last made anew (−1: it was not)."""

    def due(self, leaves: Leaves, applied: Applied, clock: Clock) -> Ints:
        """For each key a watermark before which nothing happens to it unless a row of its arrives; ``AFTER`` if nothing ever does."""

    def snapshot(self) -> dict[str, pa.Table]:
        """The state, as tables by name."""

    def restore(self, tables: dict[str, pa.Table]) -> None:
        """Take over what ``snapshot`` gave."""
