"""Nodes over positions whose tuples leave from anywhere: which of them a batch restores, and which it adds to the state.

A leaf has its tuple's value in the delta's column. A node of level 4, 8, 12, … has the least value of the live tuples below it, and their
number. A node that loses tuples gets a new row, which supersedes the older ones; a row without live tuples removes the node. A batch evicts
tuples whose values are below some bound. So a node's least value tells whether anything below it may leave, and a batch reads the parts of
such nodes only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import BATCH, KIND, LEVEL
from windowmill.windowing.columnar.position_nodes import POSITION
from windowmill.windowing.columnar.positions import FLOAT_LEAST, LEAST, LIVE, NODE, SEQUENCE
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policy_arrays as kernel
from windowmill.windowing.kernels.columns import float64_of, int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Ints

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
        """Index of the same node in ``others``, each of which stands there once; −1 if it is not there. O((n + m) log(n + m))."""
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
