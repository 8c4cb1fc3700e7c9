"""Nodes over positions whose tuples leave from anywhere: which of them a batch restores, and which it adds to the state.

A leaf has its tuple's value in the delta's column. A node of level 4, 8, 12, … has the least value of the live tuples below it, and their
number. A node that loses tuples gets a new row, which supersedes the older ones; a row without live tuples removes the node. A batch evicts
tuples whose values are below some bound. So a node's least value shows whether anything below it may leave, and a batch reads the parts of
such nodes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL, TIME
from windowmill.windowing.columnar.position_nodes import POSITION
from windowmill.windowing.columnar.position_reads import Bounds, Demand, StoredSequence
from windowmill.windowing.columnar.positions import FLOAT_LEAST, HEAD, LEAST, LIVE, NEXT, NODE, SEQUENCE, PositionStage
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policy_arrays as kernel
from windowmill.windowing.kernels.columns import float64_of, int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.slicing.policy_settings import delta_of, holds_integers, joined_values, values_at, values_of

if TYPE_CHECKING:
    from windowmill.windowing.slicing.policy_settings import PolicySettings


#: Levels from a stored node to its parts. A tuple that leaves changes one node on each level, whose 16 parts are read. More parts would be
#: more rows to read, more levels more rows to write.
STRIDE = 4


@dataclass(frozen=True)
class NodePlaces:
    """Nodes of any keys; int64, shapes (n,).

    Attributes
    ----------
    key, level, begin
        Key index, level, and first position.
    """

    key: Ints
    level: Ints
    begin: Ints

    def at(self, chosen: Bools | Ints) -> NodePlaces:
        """The nodes that ``chosen`` masks or lists."""
        return NodePlaces(self.key[chosen], self.level[chosen], self.begin[chosen])

    @property
    def stop(self) -> Ints:
        """The position after the last of each node."""
        return np.asarray(self.begin + (np.int64(1) << self.level), np.int64)

    @property
    def parents(self) -> NodePlaces:
        """The node that each is a part of."""
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
    return NodePlaces(key, *(int64_of(nodes.column(name).combine_chunks()) for name in (LEVEL, POSITION)))


def live_nodes(name: str, stored: pa.Table, codes: Ints, head: Ints) -> Ints:
    """Indices of the latest rows of the nodes of the sequence ``name`` that have live tuples, in order of (key, position, level).

    Parameters
    ----------
    codes
        Key index of each row.
    head
        First position that each key's windows hold.
    """
    of_sequence = pc.and_(pc.equal(stored.column(SEQUENCE), name), pc.equal(stored.column(KIND), NODE))
    rows = np.flatnonzero(of_sequence.to_numpy())
    nodes = stored.select([LEVEL, POSITION, LIVE, BATCH]).take(pa.array(rows))
    places = places_of(nodes, codes[rows])
    batch, live = (int64_of(nodes.column(column).combine_chunks()) for column in (BATCH, LIVE))
    order = np.lexsort((batch, places.level, places.begin, places.key))
    ordered = places.at(order)
    last = np.append((np.diff(ordered.key) != 0) | (np.diff(ordered.begin) != 0) | (np.diff(ordered.level) != 0), True)[: len(order)]
    latest = order[last]
    return np.asarray(rows[latest[(live[latest] > 0) & (places.stop[latest] > head[codes[rows[latest]]])]], np.int64)


def least_values(nodes: pa.Table, *, integers: bool) -> kernel.Values:
    """The least value below each of ``nodes``; of ``integers`` if the delta's column holds such."""
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
    """Whether tuples of the values ``least`` leave when one of the value ``greatest`` arrives; shapes (n,).

    Rounding never makes a greater value evict less, so a node whose least value stays loses nothing to any smaller value either.
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

    Parameters
    ----------
    splits
        Mask of the nodes that may lose a tuple; shape (n_nodes,).
    stop
        Position after the last one that the node's key has applied before the batch.
    """
    parents = nodes.parents
    split = np.flatnonzero(splits & (nodes.level > 0))
    return np.asarray((parents.stop > stop) | (parents.among(nodes.at(split)) >= 0), np.bool_)


@dataclass(frozen=True)
class Cover:
    """The nodes that make up the windows before a batch, each of which is evicted whole or not at all.

    Attributes
    ----------
    used
        Indices of the restored nodes that they are.
    split
        Indices of the nodes whose parts are used instead.
    """

    used: Ints
    split: Ints

    @classmethod
    def of(cls, nodes: NodePlaces, live: Ints, leaves: Bools, stop: Ints, total: Ints) -> Cover:
        """Of restored ``nodes``.

        Parameters
        ----------
        live
            Number of live tuples below each node.
        leaves
            Mask of the nodes that may lose a tuple in the batch.
        stop, total
            For each key, the position after the last applied one, and the number of its live tuples.

        Raises
        ------
        StateCorruptError
            If nodes are missing.
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


#: Number of blocks of a key that :func:`_codes` distinguishes.
_BLOCKS = np.int64(1) << 40


@dataclass(frozen=True)
class _Leaves:
    """The leaves below nodes of level ``STRIDE`` that a batch splits, and those below no stored node.

    Attributes
    ----------
    key, block
        Key index and number of each node that is split; sorted by number.
    head, stop
        First position that the windows of each key hold, and the one after the last; shapes (n_keys,).
    """

    sequence: str
    key: Ints
    block: Ints
    head: Ints
    stop: Ints

    def only(self, keys: Ints) -> _Leaves:
        place = np.full(len(self.head), -1, np.int64)
        place[keys] = np.arange(len(keys))
        kept = place[self.key] >= 0
        return _Leaves(self.sequence, place[self.key][kept], self.block[kept], self.head[keys], self.stop[keys])

    def holds(self, nodes: pa.Table, key: Ints) -> Bools:
        level, begin = (int64_of(nodes.column(name).combine_chunks()) for name in (LEVEL, POSITION))
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

    Parameters
    ----------
    entries, codes
        As for :meth:`.Demand.of`.
    nodes, node_keys
        Nodes that the demand named, and their key indices.
    arriving
        As :func:`arriving_values` returns it.
    active
        Mask of the keys that the batch works on.
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


def sequence_nodes(name: str, stored: pa.Table, codes: Ints, known: StoredSequence) -> tuple[pa.Table, Ints]:
    """The restored nodes of the sequence ``name`` that have live tuples, and their key indices."""
    rows = live_nodes(name, stored, codes, known.scalar(HEAD))
    return stored.take(pa.array(rows)), codes[rows]
