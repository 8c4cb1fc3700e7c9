"""What a batch of windows that evict by a delta reads: nodes that lose nothing, and the parts of those that may lose something.

Inner nodes are read first. Those whose least value tells that something below them may leave are made of their parts, of which leaves are
read then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import LEVEL, TIME
from windowmill.windowing.columnar.position_delta_nodes import (
    STRIDE,
    greatest_values,
    least_values,
    live_nodes,
    make_up,
    may_leave,
    places_of,
)
from windowmill.windowing.columnar.position_nodes import POSITION
from windowmill.windowing.columnar.position_reads import Bounds, Demand, StoredSequence
from windowmill.windowing.columnar.positions import HEAD, NEXT, SEQUENCE, PositionStage
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.kernels import policy_arrays as kernel
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.slicing.policy_settings import delta_of, holds_integers, joined_values, values_at, values_of

#: Number of blocks of a key that :func:`_codes` tells apart.
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
    """Mask of the ``nodes`` that the batch needs, and the demand for the leaves that it needs besides.

    Parameters
    ----------
    entries, codes
        As for :meth:`.Demand.of`.
    nodes, node_keys
        Nodes that the demand told, and their key indices.
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
