"""Which rows of a batch are duplicates: an applied row with equal values, and so with an equal id, came before them.

An *id* is a hash of 128 bits of these values, in two halves that do not depend on each other. An applied row is remembered until the
watermark has passed its time by ``within``: then its *entry*, id and time, makes no later row a duplicate. Of the rows of one commit the
first in order counts, whatever their times.

Rows are compared all at once: they are sorted by id, and only where the first row of an id does not decide about the others are they
visited one by one. So they are where the newest remembered entry of an id does not decide about all of its rows.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import ID_HIGH, ID_LOW, TIME
from windowmill.windowing.columnar.hashes import row_checksums

if TYPE_CHECKING:
    from windowmill.windowing.kernels.combine import Bools, Ints

#: Columns of an entry.
ENTRIES = pa.schema([(ID_HIGH, pa.int64()), (ID_LOW, pa.int64()), (TIME, pa.int64())])
#: Kinds of types whose equal values have equal hashes, by a test of the type: a column that becomes wider keeps its ids.
_KINDS = {
    "integer": pa.types.is_integer,
    "float": pa.types.is_floating,
    "text": lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    "bytes": lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
    "instant": pa.types.is_timestamp,
}


def ids_of(values: pa.Table) -> tuple[Ints, Ints]:
    """The high and the low half of the id of each row of ``values``, by the places of columns and the kinds of their types; int64.

    Equal rows have equal ids in every process. Different ones have the same with a probability of 2^-128 a pair, unless their values were
    made to: the hash is not cryptographic.
    """
    return half_of_ids(values, "high").to_numpy(), half_of_ids(values, "low").to_numpy()


def half_of_ids(values: pa.Table, half: Literal["high", "low"]) -> pa.Array:
    """One half of the id of each row of ``values``, as of :func:`ids_of`."""
    # The names of columns give each its own hash in each half.
    return row_checksums(values.rename_columns([f"{half} {place} {kind_of(field.type)}" for place, field in enumerate(values.schema)]))


def has_each(rows: pa.Table, by: Sequence[str]) -> pa.ChunkedArray:
    """Mask of the ``rows`` that have an id: those without a null in the columns ``by``."""
    return reduce(pc.and_, (pc.is_valid(rows.column(name)) for name in by))


def kind_of(kind: pa.DataType) -> str:
    """A name for the types of which equal values have equal ids; that of the type itself if there are no others.

    >>> kind_of(pa.int16()), kind_of(pa.int64()), kind_of(pa.date32())
    ('integer', 'integer', 'date32[day]')
    """
    own = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_decimal(own):  # hashes are those of the digits
        return f"decimal of {own.scale} digits behind the point"
    return next((name for name, holds in _KINDS.items() if holds(own)), str(own))


@dataclass(frozen=True)
class Arrivals:
    """Rows in order of arrival, and within a commit in the order in which they count; arrays of shape (n_rows,)."""

    high: Ints
    low: Ints
    time: Ints  #: Of interval events, their end.
    commit: Ints
    watermark: Ints  #: The watermark that each row finds.
    counts: Bools  #: Whether a row is remembered unless it is a duplicate; false for one that came too late for every window.

    def at(self, places: Ints | slice) -> Arrivals:
        """The rows at these ``places``."""
        high, low, time, commit, watermark = (column[places] for column in (self.high, self.low, self.time, self.commit, self.watermark))
        return Arrivals(high, low, time, commit, watermark, self.counts[places])

    @property
    def entries(self) -> pa.Table:
        """An entry for each row."""
        return pa.table([self.high, self.low, self.time], schema=ENTRIES)


def duplicates(rows: Arrivals, remembered: pa.Table, within: int, *, repeats: bool) -> Bools:
    """Mask of the ``rows`` that are duplicates of others, or of the ``remembered`` entries; O(n log n).

    ``repeats``: whether ids may be used again after ``within``, so that a row is no duplicate of one whose time is further from its own.
    """
    n, found = len(rows.high), np.zeros(len(rows.high), np.bool_)
    if not n:
        return found
    order = _by_id(rows.high, rows.low)
    own = rows.at(order)
    begins = np.append(True, (own.high[1:] != own.high[:-1]) | (own.low[1:] != own.low[:-1]))
    firsts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    known, times = _known(own.high[firsts], own.low[firsts], remembered)
    first = firsts[group]
    # Where the first row of an id is remembered through all later ones, these are duplicates of it.
    decided = (own.commit == own.commit[first]) | (own.watermark <= own.time[first] + within)
    if repeats:
        decided &= np.abs(own.time - own.time[first]) <= within
    decided &= own.counts[first]
    decided[firsts] = True
    # Where the newest entry of an id is remembered through all rows, these are duplicates of it; no entry matters where it is forgotten.
    is_known, latest = np.zeros(len(firsts), np.bool_), np.full(len(firsts), AXIS_BEGIN)
    is_known[known], latest[known] = True, times
    matters = is_known[group] & (latest[group] >= own.watermark - within)
    near = matters & (np.abs(own.time - latest[group]) <= within) if repeats else matters
    has_some, has_others, walked = (np.zeros(len(firsts), np.bool_) for _ in range(3))
    has_some[group[matters]] = True
    has_others[group[~near]] = True
    walked[group[~decided]] = True
    walked = np.where(has_some, has_others, walked)
    copies = np.where(has_some[group], ~has_others[group], ~begins)
    ends = np.append(firsts[1:], n)
    for number in np.flatnonzero(walked).tolist():
        begin, end = int(firsts[number]), int(ends[number])
        entries = times[np.searchsorted(known, number) : np.searchsorted(known, number, "right")].tolist()
        copies[begin:end] = _walked(own.at(slice(begin, end)), entries, within, repeats=repeats)
    found[order] = copies
    return found


def _by_id(high: Ints, low: Ints) -> Ints:
    """Indices of rows by their ids; rows of an id stay in their order."""
    order = np.argsort(high, kind="stable")
    same = high[order][1:] == high[order][:-1]
    # Two ids with the same high half are rare.
    return np.lexsort((low, high)) if (same & (low[order][1:] != low[order][:-1])).any() else order


def _known(high: Ints, low: Ints, remembered: pa.Table) -> tuple[Ints, Ints]:
    """For each of the ``remembered`` entries of one of the ids, which are in ascending order, the number of the id, and the time.

    They are in the order of both.
    """
    entry = [remembered.column(name).to_numpy() for name in ENTRIES.names]
    place, found = np.searchsorted(high, entry[0]), [(np.empty(0, np.int64), np.empty(0, np.int64))]
    while len(place):
        inside = place < len(high)
        inside[inside] = high[place[inside]] == entry[0][inside]
        place, entry = place[inside], [column[inside] for column in entry]
        same = low[place] == entry[1]
        found.append((place[same], entry[2][same]))
        place, entry = place[~same] + 1, [column[~same] for column in entry]
    number, times = map(np.concatenate, zip(*found, strict=True))
    order = np.lexsort((times, number))
    return number[order], times[order]


def _walked(rows: Arrivals, known: Sequence[int], within: int, *, repeats: bool) -> list[bool]:
    """Which of the ``rows`` of one id are duplicates, given the ``known`` times of its remembered entries, ascending."""
    times, found = list(known), list[bool]()
    commit, together = None, list[int]()
    columns = (rows.time, rows.commit, rows.watermark, rows.counts)
    for time, own, watermark, counts in zip(*(column.tolist() for column in columns), strict=True):
        if own != commit:
            commit, together = own, []
        is_copy = _is_near(together, time, AXIS_BEGIN * 2, within, repeats=repeats)
        is_copy = is_copy or _is_near(times, time, watermark - within, within, repeats=repeats)
        found.append(is_copy)
        if counts and not is_copy:
            insort(times, time)
            insort(together, time)
    return found


def _is_near(times: Sequence[int], time: int, least: int, within: int, *, repeats: bool) -> bool:
    """Whether one of ``times``, which are ascending, is at least ``least``; and, where ids repeat, at most ``within`` from ``time``."""
    place = bisect_right(times, time + within) if repeats else len(times)
    return bool(place) and times[place - 1] >= max(least, time - within if repeats else least)
