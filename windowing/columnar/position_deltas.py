"""A batch of windows over positions that evict by a delta: tuples leave from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import LEVEL
from windowmill.windowing.columnar.position_delta_nodes import (
    STRIDE,
    Cover,
    NodePlaces,
    greatest_values,
    least_values,
    may_leave,
    places_of,
)
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, POSITION
from windowmill.windowing.columnar.position_sequence import KeptSequence, PolicyInput, Scalars, WindowContent, WindowOutcome
from windowmill.windowing.columnar.positions import FLOAT_LEAST, LEAST, LIVE
from windowmill.windowing.columnar.results import Column
from windowmill.windowing.columnar.stored_objects import Objects, StoredObjects
from windowmill.windowing.kernels import policy_arrays as kernel
from windowmill.windowing.kernels.columns import arenas, int64_of, stored
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.tries import WHOLE, Items, Stretches, Trie, combine_work, list_work, most_work, window_changes
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.policy_settings import PolicySettings, delta_of, holds_integers, joined_values, values_at, values_of

#: Lines of work that are listed before they are carried out; more if one total needs more.
_LISTED = 1 << 14


@dataclass(frozen=True)
class PartialColumns:
    """Partials of any form; one row per partial.

    Attributes
    ----------
    ints, floats, objects
        Rows of two arenas, and objects; shapes (n, number of columns).
    """

    ints: Ints
    floats: Floats
    objects: Objects

    def at(self, chosen: Bools | Ints | slice) -> PartialColumns:
        """The partials that ``chosen`` masks or lists."""
        return PartialColumns(self.ints[chosen], self.floats[chosen], self.objects[chosen])


def combine_totals(layout: Layout, stored: StoredObjects, partials: PartialColumns, items: Items, totals: Stretches) -> PartialColumns:
    """The partial of each total; an empty one has identities, and null for objects.

    Parameters
    ----------
    partials
        The partials of the items, one row per item; objects are decoded.
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
    """What the windows of a sequence hold or take in: nodes of the cover and new tuples, sorted by key and position.

    Attributes
    ----------
    table
        Their rows, into which partials point.
    offsets
        Key k's items are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    places, first, weight, values
        Key, level and position; event time of the first live tuple; number of live tuples; least value. Shapes (n_items,).
    is_new, alive
        Masks of the new tuples, and of the items that are live after the batch.
    partials
        Their partials.
    """

    table: pa.Table
    offsets: Ints
    places: NodePlaces
    first: Ints
    weight: Ints
    values: kernel.Values
    is_new: Bools
    alive: Bools
    partials: PartialColumns

    @property
    def begins(self) -> Items:
        """The items in the kernels' form."""
        return Items(self.offsets, self.places.begin)


@dataclass(frozen=True)
class _Shown:
    """Complete windows, as changes of a trie: those of each key are followed by one change to what is live after the batch.

    Attributes
    ----------
    key
        Key of each window, in order.
    chosen
        Mask of the windows that the batch shows.
    change_offsets, items, present
        As :func:`windowmill.windowing.kernels.tries.window_changes` returns them.
    """

    key: Ints
    chosen: Bools
    change_offsets: Ints
    items: Ints
    present: Bools


@dataclass(frozen=True)
class _Nodes:
    """Nodes that the state is to hold from now on; one element per node.

    Attributes
    ----------
    places
        Sorted by key.
    live, first, values
        Number of live tuples, 0 for a node that is to go; event time of the first one; least value.
    """

    places: NodePlaces
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
        level = int64_of(table.column(LEVEL).combine_chunks())[at]
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
            LEVEL: pa.array(nodes.places.level),
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
