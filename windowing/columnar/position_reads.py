"""What a batch of windows over positions reads: the rows of the state that it needs, and the tuples that it may apply.

From windows that evict by a delta, tuples leave anywhere, and a FlatFAT's nodes follow them. A leaf has its tuple's value in the delta's
column. A node of level 4, 8, 12, … has the least value of the live tuples below it, and their number. A node that loses tuples gets a new
row, which supersedes the older ones; a row without live tuples removes the node. A batch evicts tuples whose values are below some bound.
So a node's least value shows whether anything below it may leave, and a batch reads the parts of such nodes only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import (
    ABOVE,
    BATCH,
    DUE,
    FIRST,
    FLOAT_LEAST,
    HEAD,
    KIND,
    LEAST,
    LIVE,
    NEXT,
    NODE_LEVEL,
    NUMBER_OF,
    POSITION,
    QUEUED,
    ROW_KEY,
    ROW_NUMBER,
    ROW_TIME,
    ROW_UNTIL,
    ROW_WATERMARK,
    SEQUENCE,
    THROUGH,
    TIME,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.positions import (
    FRONT,
    KEY_ROW,
    LOWEST,
    NODE,
    WAITING,
    PolicySettings,
    PositionStage,
    delta_of,
    holds_integers,
    joined_values,
    level_above,
    scalar_of,
    values_at,
    values_of,
)
from windowmill.windowing.columnar.rows import ascending, in_order, plain
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.lift import float64_of, int64_of, valid_of
from windowmill.windowing.slicing.leaves import Leaves
from windowmill.windowing.watermark import AFTER, BEFORE

#: Additional column of tuples: whether a tuple was stored to wait for the watermark.
WAITS = "_ waits"
#: Levels from a stored node to its parts. A tuple that leaves changes one node on each level, whose 16 parts are read. More parts would be
#: more rows to read, more levels more rows to write.
STRIDE = 4
#: Number of blocks of a key that :func:`_codes` distinguishes.
_BLOCKS = np.int64(1) << 40
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class StoredSequence:
    """The restored state of one sequence."""

    entries: pa.Table  #: The latest ``key`` row of each key that has one.
    entry: Ints  #: For each key, the index of its row in ``entries``; −1 if it has none. Shape (n_keys,).
    #: Tuples that wait, and their key indices.
    waiting: pa.Table
    waiting_keys: Ints
    rows: Ints  #: Indices of the rows of ``entries`` and ``waiting`` among those that were given.

    @classmethod
    def of(cls, name: str, stored: pa.Table, codes: Ints, n_keys: int) -> StoredSequence:
        """Those of ``stored`` rows that belong to the sequence ``name``; ``codes`` are the rows' key indices.

        Raises ``StateCorruptError`` if rows are missing: a batch that adds rows of a key also adds a ``key`` row, which counts the tuples
        that wait.
        """
        batch, found = int64_of(stored.column(BATCH).combine_chunks()), _rows_of(stored, name, KEY_ROW)
        found = found[np.lexsort((batch[found], codes[found]))]
        last = found[np.append(codes[found][1:] != codes[found][:-1], True)] if len(found) else found
        entry = np.full(n_keys, -1, np.int64)
        entry[codes[last]] = np.arange(len(last))
        entries = stored.take(pa.array(last)).combine_chunks()
        waiting = _rows_of(stored, name, WAITING)
        through = np.full(n_keys, BEFORE, np.int64)
        through[codes[last]] = int64_of(entries.column(THROUGH).combine_chunks())
        waiting = waiting[int64_of(stored.column(TIME).combine_chunks())[waiting] >= through[codes[waiting]]]
        written, queued = np.full(n_keys, BEFORE, np.int64), np.zeros(n_keys, np.int64)
        written[codes[last]], queued[codes[last]] = batch[last], int64_of(entries.column(QUEUED).combine_chunks())
        others = np.append(waiting, _rows_of(stored, name, NODE))
        wrong = np.bincount(codes[waiting], minlength=n_keys) != queued
        wrong[codes[others[batch[others] > written[codes[others]]]]] = True
        if wrong.any():
            raise StateCorruptError(f"state: rows of {int(wrong.sum()):,} keys are missing or duplicated; rebuild it from the source")
        return cls(entries, entry, stored.take(pa.array(waiting)), codes[waiting], np.append(last, waiting))

    def scalar(self, column: str) -> Ints:
        """An integer column of the ``key`` rows for each key; 0 for a key without one. Shape (n_keys,)."""
        return self._of_keys(int64_of(self.entries.column(column).combine_chunks()))

    def fraction(self, column: str) -> Floats:
        """As :meth:`scalar`, for a column of floats."""
        return self._of_keys(float64_of(self.entries.column(column).combine_chunks()))

    def _of_keys(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        there = self.entry >= 0
        found = np.zeros(len(self.entry), values.dtype)
        found[there] = values[self.entry[there]]
        return found


def _rows_of(stored: pa.Table, sequence: str, kind: str) -> Ints:
    """Indices of the rows of a ``sequence`` and a ``kind``."""
    return np.flatnonzero(pc.and_(pc.equal(stored.column(SEQUENCE), sequence), pc.equal(stored.column(KIND), kind)).to_numpy())


def nodes_of(name: str, stored: pa.Table, codes: Ints) -> Ints:
    """Indices of the rows of the nodes of the sequence ``name``, in order of (key, position, level)."""
    nodes = _rows_of(stored, name, NODE)
    position, level = (int64_of(stored.column(column).combine_chunks().take(pa.array(nodes))) for column in (POSITION, NODE_LEVEL))
    return nodes[np.lexsort((level, position, codes[nodes]))]


def tuples_of(stage: PositionStage, known: StoredSequence, rows: pa.Table, codes: Ints) -> Leaves:
    """The last applied tuple of each key, waiting tuples and new ``rows``, in the order in which they are applied."""
    entries = known.entries
    last_keys = np.flatnonzero(known.entry >= 0)
    applied = entries.take(pa.array(known.entry[last_keys]))
    kept = applied.column(NUMBER_OF).combine_chunks().is_valid()
    applied, last_keys = applied.filter(kept), last_keys[kept.to_numpy(zero_copy_only=False)]
    # Null where the watermark has not moved since the row before.
    found = int64_of(rows.column(WATERMARK_OF).combine_chunks().fill_null(BEFORE))
    watermark = np.maximum.accumulate(np.append(stage.clock.since, found))[1:]
    labels = {**stage.state.live, **stage.state.conditions}
    parts = []
    for table, keys, waits in ((applied, last_keys, False), (known.waiting, known.waiting_keys, True), (rows, codes, False)):
        of_state = table is not rows
        columns = {name: plain(table.column(label if of_state else name)) for name, label in labels.items()}
        time, n = int64_of(table.column(TIME).combine_chunks()), len(table)
        at_arrival = np.full(n, BEFORE, np.int64) if of_state else watermark
        own = {
            ROW_KEY: keys,
            ROW_NUMBER: int64_of(table.column(NUMBER_OF).combine_chunks()),
            ROW_TIME: time,
            ROW_UNTIL: time,
            ROW_WATERMARK: at_arrival,
        }
        parts.append(pa.table({**columns, **{name: pa.array(values) for name, values in own.items()}, WAITS: pa.repeat(waits, n)}))
    first_new = int(rows.column(NUMBER_OF)[0].as_py()) if len(rows) else AFTER
    table = pa.concat_tables(parts)
    return in_order(ascending(table, ROW_NUMBER), len(known.entry), stage.ties, first_new)


@dataclass(frozen=True)
class Evictable:
    """Tuples that a batch may evict one by one: as many of the oldest as it applies new ones, or those before an instant."""

    by_count: bool
    before: int

    def holds(self, place: Ints, time: Ints, applied: Ints) -> Bools:
        """Whether tuples at these places in the window, with these times, are evictable; ``applied`` tuples may be new."""
        return np.asarray(place < applied if self.by_count else time < self.before, np.bool_)


def evictable_in(stage: PositionStage, window: int) -> Evictable:
    """Tuples that the batch may evict one by one from the window of index ``window``."""
    settings, watermark = stage.settings[window], stage.clock.watermark
    slides_by = None if settings.trigger is None else settings.evict.kind
    age = int(settings.array[kernel.AGE])
    return Evictable(slides_by == "count", max(BEFORE + age, watermark) - age if slides_by == "time" else BEFORE)


@dataclass(frozen=True)
class Bounds:
    """Bounds of some stored nodes, from statistics."""

    level: int  #: Greatest level.
    #: First and last position at which a node begins.
    low: int
    high: int
    #: Least event time of a node's first tuple, and of that of the node above it.
    first: int
    above: int


@dataclass(frozen=True)
class NodesToRead(ABC):
    """Nodes of a sequence that a batch needs."""

    sequence: str

    @abstractmethod
    def only(self, keys: Ints) -> Self:
        """The nodes wanted of the keys with these indices, which are renumbered from 0."""

    @abstractmethod
    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        """Mask of the ``nodes`` of the sequence that the batch needs; ``key`` are their key indices."""

    @abstractmethod
    def may_hold(self, bounds: Bounds) -> Bools:
        """Whether the batch may need nodes within ``bounds`` of each key; shape (n_keys,)."""


@dataclass(frozen=True)
class InnerNodes(NodesToRead):
    """All inner nodes of a sequence from which tuples leave anywhere; :func:`split_nodes` then selects the leaves."""

    head: Ints  #: First position that the windows of each key hold; shape (n_keys,).

    def only(self, keys: Ints) -> Self:
        return replace(self, head=self.head[keys])

    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        level, begin = (int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION))
        return np.asarray((level > 0) & (begin + (np.int64(1) << level) > self.head[key]), np.bool_)

    def may_hold(self, bounds: Bounds) -> Bools:
        return np.asarray((bounds.level > 0) & (bounds.high + (1 << min(bounds.level, 61)) > self.head), np.bool_)


@dataclass(frozen=True)
class Stretch(NodesToRead):
    """The stretch of positions that a window holds of each key, and its evictable tuples."""

    evictable: Evictable
    #: The stretch [``front``, ``stop``) before the batch; shapes (n_keys,).
    front: Ints
    stop: Ints
    applied: Ints  #: Upper bound of the number of tuples that the batch applies; shape (n_keys,).

    def only(self, keys: Ints) -> Self:
        return replace(self, front=self.front[keys], stop=self.stop[keys], applied=self.applied[keys])

    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        """The leaves of evictable tuples, and the greatest nodes of the stretch that hold none of these.

        Leaves after the stretch are damage, which is noticed only when they are read.
        """
        level, begin, first, above = (int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION, FIRST, ABOVE))
        front, stop, applied = self.front[key], self.stop[key], self.applied[key]
        to_parent = level_above(level)
        parent = begin >> to_parent << to_parent
        is_evictable = self.evictable.holds(begin - front, first, applied)
        in_parent = valid_of(nodes.column(ABOVE).combine_chunks()) & (parent >= front) & (parent + (np.int64(1) << to_parent) <= stop)
        in_parent &= ~self.evictable.holds(parent - front, above, applied)
        made_of = (begin >= front) & np.where(is_evictable, level == 0, ~in_parent)
        return np.asarray(made_of | ((begin >= stop) & (level == 0)), np.bool_)

    def may_hold(self, bounds: Bounds) -> Bools:
        level = min(bounds.level, 61)
        parent = 1 << max(level + 1, LOWEST)
        left = self.front + (self.applied if self.evictable.by_count else 0) + parent - (1 << level)
        at_an_end = (bounds.low < left) | (bounds.high > self.stop - parent)
        leaves = not self.evictable.by_count and (bounds.first < self.evictable.before or bounds.above < self.evictable.before)
        return np.asarray((bounds.high >= self.front) & (at_an_end | leaves), np.bool_)


@dataclass(frozen=True)
class Demand:
    """What a batch needs of the state: ``entries`` of the ``active`` keys, and those of their nodes that are ``wanted``.

    For a window with n tuples that evicts from the front, these are the leaves that may leave it in the batch, and at most 2·log2(n) nodes
    for the rest. For windows that evict by a delta, they are the inner nodes, or the leaves that these call for.
    """

    active: Bools  #: Mask of the keys that have new rows, or work by the watermark; shape (n_keys,).
    entries: Bools  #: Mask of the newest ``key`` rows and the waiting tuples of these keys among the rows that were given.
    #: One for each window of the spec that evicts from the front, and for each sequence that evicts by a delta.
    wanted: Sequence[NodesToRead]

    @classmethod
    def of(cls, stage: PositionStage, entries: pa.Table, rows: pa.Table, codes: Ints, n_keys: int) -> Demand:
        """The demand of a batch with new ``rows``.

        ``entries``: all ``key`` rows and waiting tuples of the keys, and any nodes.
        ``rows``: at least the times of the new rows.
        ``codes``: key index of each of ``entries``, and then of ``rows``.
        """
        codes, of_rows = codes[: len(entries)], codes[len(entries) :]
        active, chosen = np.bincount(of_rows, minlength=n_keys) > 0, np.zeros(len(codes), np.bool_)
        wanted: list[NodesToRead] = []
        of_ready = of_rows[int64_of(rows.column(TIME).combine_chunks()) < stage.clock.watermark]
        for name, windows in stage.state.sequences.items():
            known = StoredSequence.of(name, entries, codes, n_keys)
            active = active | ((known.entry >= 0) & (known.scalar(DUE) <= stage.clock.watermark))
            chosen[known.rows] = True
            ready = int64_of(known.waiting.column(TIME).combine_chunks()) < stage.clock.watermark
            if name in stage.state.deltas:
                wanted.append(InnerNodes(name, known.scalar(HEAD)))
                continue
            applied = np.bincount(np.append(of_ready, known.waiting_keys[ready]), minlength=n_keys)
            for window in windows:
                front = known.scalar(scalar_of(stage.pipeline.windows[window].name, FRONT))
                wanted.append(Stretch(name, evictable_in(stage, window), front, known.scalar(NEXT), applied))
        return cls(np.asarray(active, np.bool_), np.asarray(chosen & active[codes], np.bool_), wanted)

    def only(self, keys: Ints) -> Demand:
        """The demand of the keys with these indices, which are renumbered from 0."""
        return replace(self, active=self.active[keys], wanted=[each.only(keys) for each in self.wanted])

    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        """Mask of the ``nodes`` that the batch needs; ``key`` are their key indices."""
        found = np.zeros(len(key), np.bool_)
        for name in dict.fromkeys(each.sequence for each in self.wanted):
            at = np.flatnonzero(pc.equal(nodes.column(SEQUENCE), name).to_numpy())
            of_sequence = nodes.select([NODE_LEVEL, POSITION, FIRST, ABOVE]).take(pa.array(at))
            for each in self.wanted:
                if each.sequence == name:
                    found[at] |= each.holds(of_sequence, key[at])
        return np.asarray(found & self.active[key], np.bool_)

    def may_hold(self, bounds: Bounds) -> Bools:
        """Whether the batch may need nodes within ``bounds`` of each key; shape (n_keys,)."""
        found = np.zeros(len(self.active), np.bool_)
        for each in self.wanted:
            found |= each.may_hold(bounds)
        return np.asarray(found & self.active, np.bool_)


@dataclass(frozen=True)
class NodePlaces:
    """Nodes of any keys; int64, shapes (n,)."""

    #: Key index, level, and first position.
    key: Ints
    level: Ints
    begin: Ints

    def at(self, chosen: Bools | Ints) -> NodePlaces:
        return NodePlaces(self.key[chosen], self.level[chosen], self.begin[chosen])

    @property
    def stop(self) -> Ints:
        return np.asarray(self.begin + (np.int64(1) << self.level), np.int64)

    @property
    def parents(self) -> NodePlaces:
        """The parent of each node."""
        level = self.level + STRIDE
        return NodePlaces(self.key, level, self.begin >> level << level)

    def among(self, others: NodePlaces) -> Ints:
        """Index of the same node in ``others``, where each occurs once; −1 if it does not occur. O((n + m) log(n + m))."""
        if not len(others.key) or not len(self.key):
            return np.full(len(self.key), -1, np.int64)
        n = len(others.key)
        key, level, begin = (
            np.concatenate(pair) for pair in ((others.key, self.key), (others.level, self.level), (others.begin, self.begin))
        )
        order = np.lexsort((np.arange(len(key)) >= n, begin, level, key))
        same = (key[order][1:] == key[order][:-1]) & (level[order][1:] == level[order][:-1]) & (begin[order][1:] == begin[order][:-1])
        # The first of equal nodes is the other's, if there is one.
        first = np.maximum.accumulate(np.where(np.append(True, ~same), np.arange(len(order)), 0))
        found = np.empty(len(key), np.int64)
        found[order] = order[first]
        found[found >= n] = -1
        return np.asarray(found[n:], np.int64)


def places_of(nodes: pa.Table, key: Ints) -> NodePlaces:
    """The places of stored ``nodes``, whose key indices are ``key``."""
    return NodePlaces(key, *(int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION)))


def live_nodes(name: str, stored: pa.Table, codes: Ints, head: Ints) -> Ints:
    """Indices of the latest rows of the nodes of the sequence ``name`` that have live tuples, in order of (key, position, level).

    ``codes``: key index of each row.
    ``head``: first position that each key's windows hold.
    """
    rows = _rows_of(stored, name, NODE)
    nodes = stored.select([NODE_LEVEL, POSITION, LIVE, BATCH]).take(pa.array(rows))
    places = places_of(nodes, codes[rows])
    batch, live = (int64_of(nodes.column(column).combine_chunks()) for column in (BATCH, LIVE))
    order = np.lexsort((batch, places.level, places.begin, places.key))
    ordered = places.at(order)
    last = np.append((np.diff(ordered.key) != 0) | (np.diff(ordered.begin) != 0) | (np.diff(ordered.level) != 0), True)[: len(order)]
    latest = order[last]
    return np.asarray(rows[latest[(live[latest] > 0) & (places.stop[latest] > head[codes[rows[latest]]])]], np.int64)


def least_values(nodes: pa.Table, *, integers: bool) -> kernel.Values:
    """The least value below each of ``nodes``; ``integers`` is whether the delta's column holds integers."""
    whole, fraction = (nodes.column(column).combine_chunks() for column in (LEAST, FLOAT_LEAST))
    used = whole if integers else fraction
    return kernel.Values(float64_of(used), int64_of(whole), valid_of(used))


def greatest_values(values: kernel.Values, key: Ints, n_keys: int) -> kernel.Values:
    """The greatest of the ``values`` of each key; not known if it has none. Shapes (n_keys,)."""
    floats, ints, known = np.full(n_keys, -np.inf), np.full(n_keys, np.iinfo(np.int64).min), np.zeros(n_keys, np.bool_)
    has = key[values.known]
    np.maximum.at(floats, has, values.value[values.known])
    np.maximum.at(ints, has, values.whole[values.known])
    known[has] = True
    return kernel.Values(floats, ints, known)


def may_leave(settings: PolicySettings, greatest: kernel.Values, least: kernel.Values, *, integers: bool) -> Bools:
    """Whether tuples with the values ``least`` leave when one with the value ``greatest`` arrives; shapes (n,).

    Rounding never makes a greater value evict less: a node whose least value stays loses nothing to smaller arriving values either.
    """
    both = greatest.known & least.known
    if not integers:
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(both & (greatest.value - least.value > settings.difference), np.bool_)
    gap = greatest.whole.view(np.uint64) - least.whole.view(np.uint64)
    by = np.uint64(min(int(settings.difference), kernel.MAX_GAP))
    return np.asarray(both & (greatest.whole > least.whole) & (gap > by), np.bool_)


def make_up(nodes: NodePlaces, splits: Bools, stop: Ints) -> Bools:
    """Whether each node is among those that a batch needs: the parts of nodes that it ``splits``, and those below no stored node.

    ``splits``: mask of the nodes that may lose a tuple; shape (n_nodes,).
    ``stop``: position after the last one that the node's key has applied before the batch.
    """
    parents = nodes.parents
    split = np.flatnonzero(splits & (nodes.level > 0))
    return np.asarray((parents.stop > stop) | (parents.among(nodes.at(split)) >= 0), np.bool_)


@dataclass(frozen=True)
class Cover:
    """The nodes that make up the windows before a batch, each of which is evicted whole or not at all."""

    used: Ints  #: Indices of these nodes among the restored ones.
    split: Ints  #: Indices of the nodes whose parts are used instead.

    @classmethod
    def of(cls, nodes: NodePlaces, live: Ints, leaves: Bools, stop: Ints, total: Ints) -> Cover:
        """The cover by restored ``nodes``.

        ``live``: number of live tuples below each node.
        ``leaves``: mask of the nodes that may lose a tuple in the batch.
        ``stop``, ``total``: for each key, the position after the last applied one, and the number of its live tuples.
        """
        split = np.flatnonzero(leaves & (nodes.level > 0))
        parent, parts = nodes.parents, nodes.at(split)
        above = parent.among(parts)
        top = parent.stop > stop[nodes.key]
        counted = np.bincount(above[above >= 0], live[above >= 0], minlength=len(split)).astype(np.int64)
        of_keys = np.bincount(nodes.key[top], live[top], minlength=len(total)).astype(np.int64)
        wrong = int((of_keys != total).sum()) + int((counted != live[split]).sum())
        if wrong:
            raise StateCorruptError(f"state: nodes below {wrong:,} others are missing or duplicated; rebuild it from the source")
        return cls(np.setdiff1d(np.flatnonzero(top | (above >= 0)), split), split)


@dataclass(frozen=True)
class _Leaves(NodesToRead):
    """The leaves below nodes of level ``STRIDE`` that a batch splits, and those below no stored node."""

    #: Key index and number of each node that is split; sorted by number.
    key: Ints
    block: Ints
    #: First position that the windows of each key hold, and the one after the last; shapes (n_keys,).
    head: Ints
    stop: Ints

    def only(self, keys: Ints) -> Self:
        place = np.full(len(self.head), -1, np.int64)
        place[keys] = np.arange(len(keys))
        kept = place[self.key] >= 0
        return replace(self, key=place[self.key][kept], block=self.block[kept], head=self.head[keys], stop=self.stop[keys])

    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        level, begin = (int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION))
        block = begin >> STRIDE
        split = np.isin(_codes(key, block), _codes(self.key, self.block))
        return np.asarray((level == 0) & (begin >= self.head[key]) & (split | ((block + 1) << STRIDE > self.stop[key])), np.bool_)

    def may_hold(self, bounds: Bounds) -> Bools:
        found = (((bounds.high >> STRIDE) + 1) << STRIDE > self.stop) & (bounds.high >= self.head)
        first, last = np.searchsorted(self.block, [bounds.low >> STRIDE, (bounds.high >> STRIDE) + 1])
        found[self.key[first:last]] = True
        return np.asarray(found, np.bool_)


def _codes(key: Ints, block: Ints) -> Ints:
    """A number for each key index and block; blocks that are far apart may share one, which makes a batch read more."""
    return np.asarray(key * _BLOCKS + block % _BLOCKS, np.int64)


def arriving_values(stage: PositionStage, rows: pa.Table, codes: Ints, n_keys: int) -> Mapping[str, kernel.Values]:
    """By sequence, the greatest value of each key's new ``rows`` in the column of the sequence's delta; shapes (n_keys,)."""
    found = {}
    for name in stage.state.deltas:
        delta = delta_of(stage.settings_of(name))
        column = pa.table({delta.column: plain(rows.column(delta.column))})
        found[name] = greatest_values(values_of(delta, column, np.arange(len(rows))), codes, n_keys)
    return found


def split_nodes(
    stage: PositionStage,
    entries: pa.Table,
    codes: Ints,
    nodes: pa.Table,
    node_keys: Ints,
    arriving: Mapping[str, kernel.Values],
    active: Bools,
) -> tuple[Bools, Demand]:
    """Mask of the ``nodes`` that the batch needs, and the demand for the leaves that it also needs.

    ``entries``, ``codes``: as for :meth:`.Demand.of`.
    ``nodes``, ``node_keys``: nodes that the demand named, and their key indices.
    ``arriving``: as :func:`arriving_values` returns it.
    ``active``: mask of the keys that the batch works on.
    """
    needed, leaves = np.ones(len(nodes), np.bool_), []
    for name in stage.state.deltas:
        known = StoredSequence.of(name, entries, codes, len(active))
        rows = live_nodes(name, nodes, node_keys, known.scalar(HEAD))
        key, live = node_keys[rows], nodes.take(pa.array(rows))
        places, settings, stop = places_of(live, key), stage.settings_of(name), known.scalar(NEXT)
        greatest, integers = _greatest(stage, name, known, arriving[name])
        lose = may_leave(settings, values_at(greatest, key), least_values(live, integers=integers), integers=integers)
        needed &= ~pc.equal(nodes.column(SEQUENCE), name).to_numpy()
        needed[rows[make_up(places, lose, stop[key])]] = True
        split = np.flatnonzero(lose & (places.level == STRIDE))
        split = split[np.argsort(places.begin[split], kind="stable")]
        leaves.append(_Leaves(name, key[split], places.begin[split] >> STRIDE, known.scalar(HEAD), stop))
    return needed, Demand(active, np.zeros(len(codes), np.bool_), leaves)


def _greatest(stage: PositionStage, name: str, known: StoredSequence, arriving: kernel.Values) -> tuple[kernel.Values, bool]:
    """The greatest value of each key's tuples that the batch may apply, and whether values are integers."""
    delta = delta_of(stage.settings_of(name))
    waits = np.flatnonzero(int64_of(known.waiting.column(TIME).combine_chunks()) < stage.clock.watermark)
    waiting = pa.table({delta.column: plain(known.waiting.column(stage.state.live[delta.column]))})
    key = np.append(np.arange(len(known.entry)), known.waiting_keys[waits])
    both = joined_values((arriving, values_of(delta, waiting, waits)))
    return greatest_values(both, key, len(known.entry)), holds_integers(delta, waiting)
