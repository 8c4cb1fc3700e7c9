"""Windows over positions that evict by a delta: tuples leave from anywhere, and a FlatFAT's nodes follow them.

A leaf has its tuple's value in the delta's column. A node of level 4, 8, 12, … has the least value of the live tuples below it, and their
number. A node that loses tuples gets a new row, which supersedes the older ones; a row without live tuples removes the node. A batch evicts
tuples whose values are below some bound. So a node's least value shows whether anything below it may leave, and a batch reads the parts of
such nodes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import BATCH, TIME
from windowmill.windowing.columnar.objects import Objects, StoredObjects
from windowmill.windowing.columnar.position_reads import Bounds, Demand, NodesToRead, StoredSequence, rows_of
from windowmill.windowing.columnar.position_sequence import KeptSequence, PolicyInput, Scalars, WindowContent, WindowOutcome
from windowmill.windowing.columnar.positions import (
    ABOVE,
    FIRST,
    FLOAT_LEAST,
    HEAD,
    LEAST,
    LIVE,
    NEXT,
    NODE,
    NODE_LEVEL,
    POSITION,
    SEQUENCE,
    PositionStage,
)
from windowmill.windowing.columnar.results import Column
from windowmill.windowing.columnar.rows import plain
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.flatfat import WHOLE, Items, Stretches, Trie, combine_work, list_work, most_work, window_changes
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import arenas, float64_of, int64_of, stored, valid_of
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.policy_settings import PolicySettings, delta_of, holds_integers, joined_values, values_at, values_of

#: Levels from a stored node to its parts. A tuple that leaves changes one node on each level, whose 16 parts are read. More parts would be
#: more rows to read, more levels more rows to write.
STRIDE = 4
#: Number of blocks of a key that :func:`_codes` distinguishes.
_BLOCKS = np.int64(1) << 40
#: Lines of work that are listed before they are carried out; more if one total needs more.
_LISTED = 1 << 14


@dataclass(frozen=True)
class NodePlaces:
    """Nodes of any keys; int64, shapes (n,)."""

    #: Key index, level, and first position.
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
    return NodePlaces(key, *(int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION)))


def live_nodes(name: str, stored: pa.Table, codes: Ints, head: Ints) -> Ints:
    """Indices of the latest rows of the nodes of the sequence ``name`` that have live tuples, in order of (key, position, level).

    ``codes``: key index of each row.
    ``head``: first position that each key's windows hold.
    """
    rows = rows_of(stored, name, NODE)
    nodes = stored.select([NODE_LEVEL, POSITION, LIVE, BATCH]).take(pa.array(rows))
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

    ``splits``: mask of the nodes that may lose a tuple; shape (n_nodes,).
    ``stop``: position after the last one that the node's key has applied before the batch.
    """
    parents = nodes.parents
    split = np.flatnonzero(splits & (nodes.level > 0))
    return np.asarray((parents.stop > stop) | (parents.among(nodes.at(split)) >= 0), np.bool_)


@dataclass(frozen=True)
class Cover:
    """The nodes that make up the windows before a batch, each of which is evicted whole or not at all."""

    used: Ints  #: Indices of the restored nodes that they are.
    split: Ints  #: Indices of the nodes whose parts are used instead.

    @classmethod
    def of(cls, nodes: NodePlaces, live: Ints, leaves: Bools, stop: Ints, total: Ints) -> Cover:
        """Of restored ``nodes``.

        Raises ``StateCorruptError`` if nodes are missing.

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


@dataclass(frozen=True)
class PartialColumns:
    """Partials of any form; one row per partial."""

    #: Rows of two arenas, and objects; shapes (n, number of columns).
    ints: Ints
    floats: Floats
    objects: Objects

    def at(self, chosen: Bools | Ints | slice) -> PartialColumns:
        """The partials that ``chosen`` masks or lists."""
        return PartialColumns(self.ints[chosen], self.floats[chosen], self.objects[chosen])


def combine_totals(layout: Layout, stored: StoredObjects, partials: PartialColumns, items: Items, totals: Stretches) -> PartialColumns:
    """The partial of each total; an empty one has identities, and null for objects.

    ``partials``: the partials of the items, one row per item; objects are decoded.
    """
    ints, floats = partials.ints, partials.floats
    n, largest = len(totals.key), int(np.diff(items.offsets).max(initial=0))
    trie, n_nodes = Trie.roomy(largest), 2 * largest + 1
    node_ints, node_floats = np.empty((n_nodes, ints.shape[1]), np.int64), np.empty((n_nodes, floats.shape[1]), np.float64)
    work, ends, roots = np.empty((max(_LISTED, most_work(items, totals)), 3), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    out_ints, out_floats = np.empty((n, ints.shape[1]), np.int64), np.empty((n, floats.shape[1]), np.float64)
    nodes, out = stored.none(n_nodes), stored.none(n)
    program: Any = layout.program()
    begun = 0
    while begun < n:
        ended = list_work(begun, items, totals, trie, work, ends, roots)
        given = begun, ended, work, ends, roots
        combine_work(program, *given, ints, floats, node_ints, node_floats, out_ints, out_floats)
        if len(stored):
            stored.combine_work(*given, partials.objects, nodes, out)
        begun = ended
    return PartialColumns(out_ints, out_floats, out)


@dataclass(frozen=True)
class _Items:
    """What the windows of a sequence hold or take in: nodes of the cover and new tuples, sorted by key and position."""

    table: pa.Table  #: Their rows, into which partials point.
    offsets: Ints  #: Key k's items are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: Key, level and position; event time of the first live tuple; number of live tuples; least value. Shapes (n_items,).
    places: NodePlaces
    first: Ints
    weight: Ints
    values: kernel.Values
    #: Masks of the new tuples, and of the items that are live after the batch.
    is_new: Bools
    alive: Bools
    partials: PartialColumns  #: Their partials.

    @property
    def begins(self) -> Items:
        """The items in the kernels' form."""
        return Items(self.offsets, self.places.begin)


@dataclass(frozen=True)
class _Shown:
    """Complete windows, as changes of a trie: those of each key are followed by one change to what is live after the batch."""

    key: Ints  #: Key of each window, in order.
    chosen: Bools  #: Mask of the windows that the batch shows.
    #: As :func:`windowmill.windowing.kernels.flatfat.window_changes` returns them.
    change_offsets: Ints
    items: Ints
    present: Bools


@dataclass(frozen=True)
class _Nodes:
    """Nodes that the state is to hold from now on; one element per node."""

    places: NodePlaces  #: Sorted by key.
    #: Number of live tuples, 0 for a node that is to go; event time of the first one; least value.
    live: Ints
    first: Ints
    values: kernel.Values


class DeltaSequence(KeptSequence):
    """The batch of one sequence of windows that evict by one delta, and so hold the same tuples."""

    @cached_property
    def _fed_values(self) -> kernel.Values:
        return values_of(delta_of(self._settings), self._tuples.table, self._fed.rows)

    @property
    def _settings(self) -> PolicySettings:
        return self._stage.settings_of(self._name)

    @property
    def _integers(self) -> bool:
        return holds_integers(delta_of(self._settings), self._tuples.table)

    @cached_property
    def _restored_places(self) -> NodePlaces:
        return places_of(self._nodes, self._node_keys)

    @cached_property
    def _live(self) -> Ints:
        """Number of live tuples below each restored node."""
        return int64_of(self._nodes.column(LIVE).combine_chunks())

    @cached_property
    def _cover(self) -> Cover:
        integers, fed_keys = self._integers, self._tuples.key[self._fed.rows]
        least = least_values(self._nodes, integers=integers)
        greatest = greatest_values(self._fed_values, fed_keys, self._tuples.n_keys)
        leaves = may_leave(self._settings, values_at(greatest, self._node_keys), least, integers=integers)
        return Cover.of(self._restored_places, self._live, leaves, self._next, self._known.scalar(LIVE))

    @cached_property
    def _held(self) -> WindowContent:
        """The nodes of the cover, in the order of positions; only single tuples have values."""
        used, table, least = self._in_order, self._held_nodes, self._held_values
        places = self._restored_places.at(used)
        values = kernel.Values(least.value, least.whole, least.known & (places.level == 0))
        offsets = np.searchsorted(places.key, np.arange(self._tuples.n_keys + 1)).astype(np.int64)
        return WindowContent(offsets, places.begin, self._live[used], int64_of(table.column(FIRST).combine_chunks()), values)

    @cached_property
    def _held_nodes(self) -> pa.Table:
        return self._nodes.take(pa.array(self._in_order))

    @cached_property
    def _held_values(self) -> kernel.Values:
        """The least value below each of the nodes that are held."""
        return least_values(self._held_nodes, integers=self._integers)

    @cached_property
    def _in_order(self) -> Ints:
        used = self._cover.used
        places = self._restored_places.at(used)
        return used[np.lexsort((places.begin, places.key))]

    @cached_property
    def _runs(self) -> Mapping[int, tuple[WindowOutcome, _Shown, PolicyInput]]:
        return {window: self._run(window) for window in self._windows}

    @cached_property
    def _ran(self) -> Mapping[int, WindowOutcome]:
        return {window: ran for window, (ran, _, _) in self._runs.items()}

    def _run(self, window: int) -> tuple[WindowOutcome, _Shown, PolicyInput]:
        entered = self._entered(window, self._held)
        applied, keys = entered.tuples, entered.keys
        fired = self._stage.settings[window].run(self._listed, applied, keys, self._stage.clock, entered.integers)
        chosen = self._shows(fired.end)
        changes = window_changes(applied.offsets, fired.key, fired.hi, fired.gone_to, fired.removed, keys.alive)
        windows = Windows.of(fired.key[chosen], fired.start[chosen], fired.end[chosen], trigger=fired.number[chosen])
        front = self._after.copy()
        live = np.flatnonzero(keys.alive)
        np.minimum.at(front, self._key_of(applied)[live], entered.begin[live])
        # A node may begin before its first live tuple.
        front = np.maximum(front, self._before[window].front)
        return WindowOutcome(windows, Scalars(keys.states, keys.bases, front)), _Shown(fired.key, chosen, *changes), entered

    def _key_of(self, applied: kernel.Tuples) -> Ints:
        """The key index of each tuple or run."""
        return np.repeat(np.arange(self._tuples.n_keys), np.diff(applied.offsets))

    @cached_property
    def _items(self) -> _Items:
        """All items; windows of the sequence hold the same ones after the batch."""
        _, _, entered = self._runs[self._windows[0]]
        applied, is_new = entered.tuples, entered.is_fed
        new, _ = self._leaves
        held = self._held_nodes.select(new.column_names).cast(new.schema)
        # Of partials that tie, the one in the earlier row counts as the older.
        table = pa.concat_tables([held, new]).combine_chunks()
        at = np.empty(len(is_new), np.int64)
        at[~is_new], at[is_new] = np.arange(len(held)), len(held) + np.arange(len(new))
        partials = PartialColumns(*arenas(self._stage.layout, table), self._stage.objects.decode(self._stage.objects.read(table))).at(at)
        level = int64_of(table.column(NODE_LEVEL).combine_chunks())[at]
        places = NodePlaces(self._key_of(applied), level, entered.begin)
        values = values_at(joined_values((self._held_values, self._fed_values)), at)
        return _Items(table, applied.offsets, places, applied.time, applied.weight, values, is_new, entered.keys.alive, partials)

    def _combined(self, shown: _Shown, nodes: NodePlaces) -> tuple[PartialColumns, Ints]:
        """Partials of the windows of ``shown`` (kind 0), of what each key holds after the batch (1) and of ``nodes`` (2); and the kinds."""
        items, n_keys, stage = self._items, self._tuples.n_keys, self._stage
        kind = np.repeat([0, 1, 2], [len(shown.key), n_keys, len(nodes.key)])
        key = np.concatenate((shown.key, np.arange(n_keys), nodes.key))
        order = np.lexsort((kind, key))
        whole = np.zeros(len(shown.key) + n_keys, np.int64)
        level, begin = np.append(whole + WHOLE, nodes.level)[order], np.append(whole, nodes.begin)[order]
        # Nodes change nothing.
        n_changes = np.zeros(len(order), np.int64)
        n_changes[kind[order] < 2] = np.diff(shown.change_offsets)
        totals = Stretches(key[order], begin, level, np.append(0, np.cumsum(n_changes)), shown.items, shown.present)
        return combine_totals(stage.layout, stage.objects, items.partials, items.begins, totals), kind[order]

    @cached_property
    def _totals(self) -> tuple[Mapping[int, PartialColumns], PartialColumns]:
        """For each window the partials of its complete windows; and those of the nodes to store."""
        nothing = self._restored_places.at(np.empty(0, np.int64))
        found, of_nodes = dict[int, PartialColumns](), None
        for window in self._windows:
            shown = self._runs[window][1]
            partials, kind = self._combined(shown, self._stored.places if of_nodes is None and self._stage.keep else nothing)
            found[window] = partials.at(np.flatnonzero(kind == 0)[shown.chosen])
            of_nodes = of_nodes or partials.at(kind == 2)
        assert of_nodes is not None
        return found, of_nodes

    def _aggregate(self, window: int, part: slice) -> dict[str, Column]:
        totals = self._totals[0][window].at(part)
        found: dict[str, Column] = dict(lower(self._stage.layout, totals.ints, totals.floats, self._items.table))
        return found | self._stage.objects.lowered(totals.objects)

    def _own_scalars(self) -> dict[str, Ints]:
        items = self._items
        live = np.bincount(items.places.key, items.weight * items.alive, minlength=self._tuples.n_keys)
        return {LIVE: live.astype(np.int64)}

    @cached_property
    def _stored(self) -> _Nodes:
        """Nodes to store: of new tuples, of what has become whole, and of what has lost tuples."""
        items, head = self._items, self._head
        leaves = (items.is_new & items.alive) | (~items.is_new & ~items.alive & (items.places.level == 0))
        found = [self._of_groups(items.places.at(leaves), np.flatnonzero(leaves), np.arange(int(leaves.sum())))]
        level = STRIDE
        while len(items.places.key) and (1 << level) <= self._after.max():
            below = np.flatnonzero(items.places.level < level)
            parts = items.places.at(below)
            groups = NodePlaces(parts.key, np.full(len(below), level), parts.begin >> level << level)
            first = np.append(True, (np.diff(groups.key) != 0) | (np.diff(groups.begin) != 0))[: len(below)]
            found.append(self._of_groups(groups.at(first), below, np.cumsum(first) - 1))
            level += STRIDE
        joined = _Nodes(
            NodePlaces(*(np.concatenate([getattr(each.places, name) for each in found]) for name in ("key", "level", "begin"))),
            np.concatenate([each.live for each in found]),
            np.concatenate([each.first for each in found]),
            joined_values([each.values for each in found]),
        )
        before = np.append(self._cover.split, self._cover.used)
        at = joined.places.among(self._restored_places.at(before))
        known = np.where(at >= 0, np.append(self._live[before], 0)[at], 0)
        whole = (joined.places.stop <= self._after[joined.places.key]) & (joined.places.stop > head[joined.places.key])
        chosen = np.flatnonzero(whole & (known != joined.live))
        chosen = chosen[np.argsort(joined.places.key[chosen], kind="stable")]
        return _Nodes(joined.places.at(chosen), joined.live[chosen], joined.first[chosen], values_at(joined.values, chosen))

    def _of_groups(self, places: NodePlaces, at: Ints, group: Ints) -> _Nodes:
        """What is live of the items ``at``, by their ``group``, which ascends; the groups have these ``places``."""
        items, n = self._items, len(places.key)
        at, group = at[items.alive[at]], group[items.alive[at]]
        live = np.bincount(group, items.weight[at], minlength=n).astype(np.int64)
        first = np.zeros(n, np.int64)
        first[group[::-1]] = items.first[at[::-1]]
        floats, ints, known = np.full(n, np.inf), np.full(n, np.iinfo(np.int64).max), np.zeros(n, np.bool_)
        has = items.values.known[at]
        np.minimum.at(floats, group[has], items.values.value[at[has]])
        np.minimum.at(ints, group[has], items.values.whole[at[has]])
        known[group[has]] = True
        return _Nodes(places, live, first, kernel.Values(floats, ints, known))

    def _new_nodes(self) -> tuple[Ints, dict[str, pa.Array]]:
        nodes, partials = self._stored, self._totals[1]
        stage, gone = self._stage, nodes.live == 0
        objects = partials.objects.copy()
        objects[gone] = b""
        columns = stored(stage.layout, partials.ints, partials.floats, self._items.table) | stage.objects.write(objects)
        columns = {name: _without(column, gone) for name, column in columns.items()}
        none = ~nodes.values.known
        whole = np.where(none, 0, nodes.values.whole)
        columns |= {
            NODE_LEVEL: pa.array(nodes.places.level),
            POSITION: pa.array(nodes.places.begin),
            FIRST: pa.array(nodes.first, mask=gone),
            ABOVE: pa.nulls(len(gone), pa.int64()),
            LIVE: pa.array(nodes.live),
            LEAST: pa.array(whole, mask=none | (not self._integers)),
            FLOAT_LEAST: pa.array(nodes.values.value, mask=none | self._integers),
        }
        return nodes.places.key, columns


def _without(column: pa.Array, gone: npt.NDArray[np.bool_]) -> pa.Array:
    """The ``column`` with nulls where the mask ``gone`` holds."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=gone))
