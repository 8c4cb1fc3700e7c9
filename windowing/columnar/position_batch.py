"""Applies a batch's new tuples to the state of windows over positions; returns results of complete windows, and new rows of the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import (
    ABOVE,
    BATCH,
    DUE,
    FIRST,
    FLOAT_LEAST,
    HEAD,
    KIND,
    LATE,
    LEAST,
    LIVE,
    NEXT,
    NODE_LEVEL,
    NUMBER_OF,
    POSITION,
    QUEUED,
    ROW_NUMBER,
    ROW_TIME,
    SEQUENCE,
    THROUGH,
    TIME,
)
from windowmill.windowing.columnar.hashes import verify_once
from windowmill.windowing.columnar.objects import Objects, StoredObjects
from windowmill.windowing.columnar.position_reads import (
    STRIDE,
    WAITS,
    Cover,
    NodePlaces,
    StoredSequence,
    evictable_in,
    greatest_values,
    least_values,
    live_nodes,
    may_leave,
    nodes_of,
    places_of,
    tuples_of,
)
from windowmill.windowing.columnar.positions import (
    BASE,
    FRONT,
    KEY_ROW,
    NODE,
    STATE,
    WAITING,
    Forest,
    PolicySettings,
    PositionStage,
    Triggers,
    delta_of,
    holds_integers,
    joined_values,
    no_values,
    punctuation_of,
    scalar_of,
    values_at,
    values_of,
)
from windowmill.windowing.columnar.results import Advanced, Chunk, Column, result_rows
from windowmill.windowing.columnar.rows import as_table, ascending, keys_of
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.columnar.slices import lifted_groups
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.flatfat import WHOLE, Items, Stretches, Trie, combine_work, list_work, most_work, window_changes
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import arenas, int64_of, lift, stored
from windowmill.windowing.kernels.policies import judge_tuples
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.slicing.leaves import Leaves, Windows
from windowmill.windowing.watermark import AFTER, BEFORE, commits_of

#: Greatest number of windows aggregated together.
_CHUNK_WINDOWS = 200_000
_NONE = np.empty(0, np.int64)
#: Number of steps that are listed before they are carried out; more if one total needs more.
_LISTED = 1 << 14
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Scalars:
    """The scalars that the state keeps of each key, for one window of the spec."""

    #: As in :class:`windowmill.windowing.kernels.policies.KeyStates`.
    states: Ints
    bases: Floats
    front: Ints  #: First position that the window holds; shape (n_keys,).


@dataclass(frozen=True)
class WindowOutcome:
    """A window of the spec after the batch."""

    windows: Windows  #: Complete windows; ``lo`` and ``hi`` are positions.
    after: Scalars  #: The scalars of each key after the batch.


@dataclass(frozen=True)
class WindowContent:
    """What a window holds before the batch, as runs of tuples that can leave only together; sorted by key and position."""

    offsets: Ints  #: Key k's runs are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    #: First position, number of tuples and event time of the first one; shapes (n_runs,).
    begin: Ints
    weight: Ints
    first: Ints
    values: kernel.Values  #: The values that the eviction's delta compares; known for single tuples only.


@dataclass(frozen=True)
class PolicyInput:
    """The policies' input."""

    #: As :meth:`windowmill.windowing.columnar.positions.PolicySettings.run` takes them.
    tuples: kernel.Tuples
    keys: kernel.KeyStates
    integers: tuple[bool, bool]
    #: For each tuple or run its first position, and whether it is a new tuple.
    begin: Ints
    is_fed: Bools


class PositionSequence(ABC):
    """Computes a batch of one sequence.

    ``keys``: the key columns of each key.
    ``tuples``: stored and new tuples of the batch.
    """

    def __init__(self, stage: PositionStage, name: str, keys: pa.Table, known: StoredSequence, tuples: Leaves) -> None:
        self._stage, self._name, self._keys, self._known, self._tuples = stage, name, keys, known, tuples
        self._windows = stage.state.sequences[name]
        self._waits = tuples.table.column(WAITS).combine_chunks().to_numpy(zero_copy_only=False)
        self._next = known.scalar(NEXT)
        self._before = {window: self._restored(window) for window in self._windows}
        settings, clock = stage.settings[self._windows[0]], stage.clock
        ticks = np.concatenate([scalars.states[:, kernel.TICK] for scalars in self._before.values()])
        self._listed = settings.listed(tuples.time, ticks, clock)
        moments = commits_of(tuples.number)
        self._accepted, fresh, life = judge_tuples(
            settings.array, self._listed, tuples.offsets, tuples.time, moments, tuples.watermark, tuples.new, ~tuples.new
        )
        self._ready = self._waits | self._accepted
        if not clock.ended:
            self._ready = self._ready & (tuples.time < clock.watermark)
        rows = np.flatnonzero(self._ready).astype(np.int64)
        if fresh.any():
            rows = rows[np.lexsort((life[rows], tuples.key[rows]))]
        offsets = np.searchsorted(tuples.key[rows], np.arange(tuples.n_keys + 1)).astype(np.int64)
        # The tuples to apply, by key in order of application: places among the leaves, offsets by key, and which reset their key first.
        self._fed, self._fed_offsets, self._fed_fresh = rows, offsets, fresh[rows]

    def _restored(self, window: int) -> Scalars:
        """The scalars of each key before the batch, for one window of the spec."""
        name, known = self._stage.pipeline.windows[window].name, self._known
        states = self._stage.settings[window].fresh(len(known.entry))
        there = known.entry >= 0
        for place, scalar in enumerate(STATE):
            states[there, place] = known.scalar(scalar_of(name, scalar))[there]
        return Scalars(states, known.fraction(scalar_of(name, BASE)), known.scalar(scalar_of(name, FRONT)))

    @property
    def refused(self) -> Ints:
        return np.asarray(self._tuples.number[self._tuples.new & ~self._accepted], np.int64)

    @cached_property
    def _positions(self) -> Ints:
        keys = self._tuples.key[self._fed]
        return np.asarray(self._next[keys] + np.arange(len(keys)) - self._fed_offsets[keys], np.int64)

    def _policy_input(self, window: int, held: WindowContent) -> PolicyInput:
        """The policies' input: for each key the content of the window, followed by the tuples to apply."""
        tuples, fed, settings = self._tuples, self._fed, self._stage.settings[window]
        n_held, before = np.diff(held.offsets), self._before[window]
        of_fed = tuples.key[fed]
        is_fed = np.ones(len(of_fed), np.bool_)
        if len(held.begin):
            is_fed = np.argsort(np.append(np.repeat(np.arange(len(n_held)), n_held), of_fed), kind="stable") >= len(held.begin)
        begin = _interleaved(is_fed, held.begin, self._positions)
        weight = _interleaved(is_fed, held.weight, np.ones(len(of_fed), np.int64))
        time = _interleaved(is_fed, held.first, tuples.time[fed])
        fresh, closes = (
            _interleaved(is_fed, np.zeros(len(held.begin), np.bool_), mask)
            for mask in (self._fed_fresh, punctuation_of(settings.evict, tuples.table, fed))
        )
        deltas = settings.evict.delta, settings.trigger.delta if settings.trigger is not None else None
        evict, trigger = (
            kernel.Values._make(_interleaved(is_fed, *pair) for pair in zip(of_held, values_of(delta, tuples.table, fed), strict=True))
            for delta, of_held in zip(deltas, (held.values, no_values(len(held.begin))), strict=True)
        )
        run = kernel.Tuples(held.offsets + self._fed_offsets, n_held, weight, time, fresh, closes, evict, trigger)
        integers = holds_integers(deltas[0], tuples.table), holds_integers(deltas[1], tuples.table)
        return PolicyInput(
            run, kernel.KeyStates(before.states.copy(), before.bases.copy(), np.zeros(len(begin), np.bool_)), integers, begin, is_fed
        )

    @abstractmethod
    def results(self) -> Iterator[pa.Table]:
        """Result rows of the complete windows."""


class KeptSequence(PositionSequence):
    """Computes a batch of a sequence whose tuples the state holds as ``nodes``; these come with their key indices."""

    def __init__(
        self, stage: PositionStage, name: str, keys: pa.Table, known: StoredSequence, nodes: tuple[pa.Table, Ints], tuples: Leaves
    ) -> None:
        super().__init__(stage, name, keys, known, tuples)
        self._nodes, self._node_keys = nodes

    @cached_property
    def _leaves(self) -> tuple[pa.Table, Ints]:
        """The leaves of the tuples to apply, with the columns of :meth:`_node_schema`, and their key indices."""
        stage, tuples, fed = self._stage, self._tuples, self._fed
        rows = tuples.table.append_column(TIME, tuples.table.column(ROW_TIME))
        leaves = lifted_groups(stage.lifting, rows, fed, np.arange(len(fed) + 1))
        keys = tuples.key[fed]
        leaves |= {NODE_LEVEL: pa.repeat(0, len(keys)), POSITION: pa.array(self._positions), FIRST: pa.array(tuples.time[fed])}
        return as_table(leaves, self._node_schema), keys

    @property
    def _node_schema(self) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in (NODE_LEVEL, POSITION, FIRST)] + self._stage.layout.stored_columns)

    @property
    @abstractmethod
    def _outcomes(self) -> Mapping[int, WindowOutcome]:
        """Each window of the sequence after the batch."""

    @abstractmethod
    def _aggregate(self, window: int, part: slice) -> dict[str, Column]:
        """All aggregates of this part of the complete windows of ``window``."""

    @abstractmethod
    def _new_nodes(self) -> tuple[Ints, dict[str, pa.Array]]:
        """Key indices and columns of the nodes that the batch adds to the state; all of them end after :attr:`_head`."""

    def _shows(self, end: Ints) -> Bools:
        """Mask of the windows that the batch shows, by where they ``end``."""
        if self._stage.ends is None:
            return np.ones(len(end), np.bool_)
        first, last = self._stage.ends
        return np.asarray((end > first) & (end <= last), np.bool_)

    def _own_scalars(self) -> dict[str, Ints]:
        """Further scalars of each key."""
        return {}

    @cached_property
    def _after(self) -> Ints:
        """Position of each key's next tuple after the batch."""
        return np.asarray(self._next + np.diff(self._fed_offsets), np.int64)

    @property
    def _head(self) -> Ints:
        """For each key, the first position that any of its windows holds."""
        return np.asarray(np.min([ran.after.front for ran in self._outcomes.values()], axis=0), np.int64)

    def results(self) -> Iterator[pa.Table]:
        stage = self._stage
        for window, ran in self._outcomes.items():
            for first in range(0, len(ran.windows), _CHUNK_WINDOWS):
                part = slice(first, first + _CHUNK_WINDOWS)
                chunk = Chunk(window, part_of(ran.windows, part), self._aggregate(window, part))
                yield result_rows(chunk, stage.pipeline, self._keys, stage.results, stage.batch)

    def changes(self) -> list[pa.Table]:
        """New rows of the state: changed keys, tuples that wait, and nodes."""
        keys, nodes = self._new_nodes()
        waits = np.flatnonzero(self._accepted & ~self._ready)
        return [self._key_rows(), self._rows(WAITING, self._tuples.key[waits], self._cells(waits)), self._rows(NODE, keys, nodes)]

    def _key_rows(self) -> pa.Table:
        tuples, n_fed = self._tuples, np.diff(self._fed_offsets)
        waiting = (self._waits | self._accepted) & ~self._ready
        due = np.full(tuples.n_keys, AFTER, np.int64)
        np.minimum.at(due, tuples.key[waiting], tuples.time[waiting])
        changed = n_fed > 0
        changed[tuples.key[self._accepted]] = True
        columns: dict[str, pa.Array] = {}
        for window, ran in self._outcomes.items():
            before, after = self._before[window], ran.after
            changed |= (after.states != before.states).any(axis=1) | (after.front != before.front)
            changed |= after.bases.view(np.int64) != before.bases.view(np.int64)
            due = np.minimum(due, after.states[:, kernel.TICK])
            name = self._stage.pipeline.windows[window].name
            scalars = {scalar: after.states[:, place] for place, scalar in enumerate(STATE)} | {BASE: after.bases, FRONT: after.front}
            columns |= {scalar_of(name, scalar): pa.array(np.ascontiguousarray(values)) for scalar, values in scalars.items()}
        through = np.full(tuples.n_keys, self._stage.clock.watermark, np.int64)
        queued = np.bincount(tuples.key[waiting], minlength=tuples.n_keys)
        own = {DUE: due, THROUGH: through, NEXT: self._after, HEAD: self._head, QUEUED: queued} | self._own_scalars()
        columns |= {name: pa.array(values) for name, values in own.items()} | self._cells(self._last())
        chosen = np.flatnonzero(changed)
        return self._rows(KEY_ROW, chosen, {name: column.take(pa.array(chosen)) for name, column in columns.items()})

    def _last(self) -> Ints:
        """For each key, the place of the last tuple that it has applied and not forgotten; −1 for none. Shape (n_keys,)."""
        tuples = self._tuples
        last = np.full(tuples.n_keys, -1, np.int64)
        old = np.flatnonzero(~tuples.new & ~self._waits)
        last[tuples.key[old]] = old
        moved = np.flatnonzero(np.diff(self._fed_offsets))
        last[moved] = self._fed[self._fed_offsets[moved + 1] - 1]
        # All windows of a sequence forget a key together.
        last[self._outcomes[self._windows[0]].after.states[:, kernel.LAST] == BEFORE] = -1
        return last

    def _cells(self, places: Ints) -> dict[str, pa.Array]:
        """The state's columns of the tuples at ``places``; null for −1."""
        table, at = self._tuples.table, pa.array(places, mask=places < 0)
        labels = {ROW_NUMBER: NUMBER_OF, ROW_TIME: TIME, **self._stage.state.live, **self._stage.state.conditions}
        return {label: table.column(name).combine_chunks().take(at) for name, label in labels.items()}

    def _rows(self, kind: str, key: Ints, cells: Mapping[str, pa.Array]) -> pa.Table:
        """Rows of the state of one ``kind``; columns that ``cells`` lacks are null."""
        n = len(key)
        own = {KIND: pa.repeat(kind, n), SEQUENCE: pa.repeat(self._name, n), BATCH: pa.repeat(self._stage.batch, n)}
        own |= {name: self._keys.column(name).combine_chunks().take(pa.array(key)) for name in self._stage.keys}
        return as_table({**cells, **own}, self._stage.state.schema, fill=True)


def _interleaved(is_fed: Bools, held: npt.NDArray[_T], fed: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Values of the nodes that windows hold and of the tuples to apply, in the order of ``is_fed``."""
    if not len(held):
        return fed
    both = np.empty(len(is_fed), fed.dtype)
    both[~is_fed], both[is_fed] = held, fed
    return both


def part_of(windows: Windows, part: slice) -> Windows:
    """The windows in ``part``, which are stretches of positions."""
    ranges = _NONE, windows.lo[part], windows.hi[part]
    return Windows.of(windows.key[part], windows.start[part], windows.end[part], trigger=windows.trigger[part], ranges=ranges)


class FrontSequence(KeptSequence):
    """Computes a batch of windows that evict from the front."""

    @cached_property
    def _forest(self) -> Forest:
        stage = self._stage
        new, keys = self._leaves
        restored = [self._nodes.select(new.column_names).cast(new.schema)] if len(self._nodes) else []
        nodes = pa.concat_tables([*restored, new]).combine_chunks()
        n_restored = len(self._node_keys)
        return Forest.grown(stage.layout, stage.objects, self._tuples.n_keys, nodes, np.append(self._node_keys, keys), n_restored)

    @cached_property
    def _outcomes(self) -> Mapping[int, WindowOutcome]:
        return {window: self._run(window) for window in self._windows}

    def _run(self, window: int) -> WindowOutcome:
        evictable = evictable_in(self._stage, window)
        by_count = np.diff(self._fed_offsets) * evictable.by_count
        offsets, level, begin, first = self._forest.covers(self._before[window].front, self._next, by_count, evictable.before)
        before = WindowContent(offsets, begin, np.int64(1) << level, first, no_values(len(level)))
        entered = self._policy_input(window, before)
        settings, applied, keys, begin = self._stage.settings[window], entered.tuples, entered.keys, entered.begin
        evict = applied.evict
        flushes_by_delta = settings.trigger is None and settings.evict.delta is not None
        if flushes_by_delta:
            # A window that flushes by a delta compares with its first tuple.
            firsts = applied.offsets[:-1][applied.held > 0]
            known = keys.states[applied.held > 0]
            evict.known[firsts], evict.whole[firsts] = known[:, kernel.HAS_BASE] != 0, known[:, kernel.BASE]
            evict.value[firsts] = keys.bases[applied.held > 0]
        fired = settings.run(self._listed, applied, keys, self._stage.clock, entered.integers)
        shown = slice(None) if self._stage.ends is None else self._shows(fired.end)
        key, start, end, number, lo, hi = (column[shown] for column in fired[:6])
        filled, last = hi > lo, np.maximum(hi - 1, 0)
        ends = np.append(begin + applied.weight, 0)
        positions = np.where(filled, np.append(begin, 0)[lo], 0), np.where(filled, ends[last], 0)
        windows = Windows.of(key, start, end, trigger=number, ranges=(_NONE, *positions))
        alive = np.append(0, np.cumsum(keys.alive * applied.weight))
        left = alive[applied.offsets[1:]] - alive[applied.offsets[:-1]]
        if flushes_by_delta:
            count = np.append(0, np.cumsum(keys.alive))
            heads = applied.offsets[1:] - (count[applied.offsets[1:]] - count[applied.offsets[:-1]])
            there, heads = left > 0, np.minimum(heads, max(0, len(begin) - 1))
            for column, values in ((kernel.HAS_BASE, evict.known), (kernel.BASE, evict.whole)):
                keys.states[:, column] = np.where(there, values[heads], 0) if len(begin) else 0
            keys.bases[:] = np.where(there, evict.value[heads], 0.0) if len(begin) else 0.0
        return WindowOutcome(windows, Scalars(keys.states, keys.bases, self._after - left))

    def _aggregate(self, window: int, part: slice) -> dict[str, Column]:
        return self._forest.aggregate(part_of(self._outcomes[window].windows, part))

    def _new_nodes(self) -> tuple[Ints, dict[str, pa.Array]]:
        return self._forest.new_nodes(self._head)


@dataclass(frozen=True)
class PartialColumns:
    """Partials of any form; one row per partial."""

    #: Rows of two arenas, and objects; shapes (n, number of columns).
    ints: Ints
    floats: Floats
    objects: Objects

    def at(self, chosen: Bools | Ints | slice) -> PartialColumns:
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
        if partials.objects.shape[1]:
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
        return Items(self.offsets, self.places.begin)


@dataclass(frozen=True)
class _Shown:
    """Complete windows, as changes of a trie; after the last window of a key, one change leads to what is live after the batch."""

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
    #: Number of live tuples, 0 for a node to drop; event time of the first one; least value.
    live: Ints
    first: Ints
    values: kernel.Values


class DeltaSequence(KeptSequence):
    """Computes a batch of windows that evict by one delta, and so hold the same tuples."""

    @cached_property
    def _fed_values(self) -> kernel.Values:
        return values_of(delta_of(self._settings), self._tuples.table, self._fed)

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
        integers, fed_keys = self._integers, self._tuples.key[self._fed]
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
    def _outcomes(self) -> Mapping[int, WindowOutcome]:
        return {window: ran for window, (ran, _, _) in self._runs.items()}

    def _run(self, window: int) -> tuple[WindowOutcome, _Shown, PolicyInput]:
        entered = self._policy_input(window, self._held)
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
        return np.repeat(np.arange(self._tuples.n_keys), np.diff(applied.offsets))

    @cached_property
    def _items(self) -> _Items:
        """All items; windows of the sequence hold the same ones after the batch."""
        _, _, entered = self._runs[self._windows[0]]
        applied, is_new = entered.tuples, entered.is_fed
        new, _ = self._leaves
        held = self._held_nodes.select(new.column_names).cast(new.schema)
        # If partials tie, the one in the earlier row counts as the older.
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
        """Nodes to store: leaves of new tuples, nodes that are now complete, and nodes that have lost tuples."""
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
        """The live content of the items ``at``, as one node for each ``group``, which ascends; ``places`` are those of the nodes."""
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


class BoundedSequence(PositionSequence):
    """Computes a sequence whose tuples are all in one batch.

    So its windows need no nodes. Those that evict from the front are combined by two stacks, in O(1) combines a tuple; those that evict by
    a delta, by a trie over all tuples of their key.
    """

    @cached_property
    def _layout(self) -> Layout:
        types = {field.name: field.type for field in self._tuples.table.schema}
        return Layout.over_rows(self._stage.pipeline.aggregates, types, "aggregates")

    @cached_property
    def _lifted(self) -> PartialColumns:
        stage, table = self._stage, self._tuples.table
        objects = stage.objects.lift(table, np.arange(len(table) + 1), ROW_TIME, stage.ties)
        return PartialColumns(*lift(self._layout, table), objects)

    def results(self) -> Iterator[pa.Table]:
        stage = self._stage
        nothing = WindowContent(np.zeros(self._tuples.n_keys + 1, np.int64), _NONE, _NONE, _NONE, no_values(0))
        for window in self._windows:
            settings, entered = stage.settings[window], self._policy_input(window, nothing)
            fired = settings.run(self._listed, entered.tuples, entered.keys, stage.clock, entered.integers)
            if len(fired.key):
                ranges = self._fed, fired.lo, fired.hi
                windows = Windows.of(fired.key, fired.start, fired.end, trigger=fired.number, ranges=ranges)
                values = self._by_trie(fired, entered) if settings.from_anywhere else self._by_stacks(windows)
                yield result_rows(Chunk(window, windows, values), stage.pipeline, self._keys, stage.results, stage.batch)

    def _by_stacks(self, windows: Windows) -> dict[str, Column]:
        lifted, objects = self._lifted, self._stage.objects
        numbers = combine_numbers(self._layout, lifted.ints, lifted.floats, windows)
        found: dict[str, Column] = dict(lower(self._layout, *numbers, self._tuples.table))
        return found | objects.compute(lifted.objects, windows)

    def _by_trie(self, fired: Triggers, entered: PolicyInput) -> dict[str, Column]:
        applied, rows, objects = entered.tuples, self._fed, self._stage.objects
        in_order = len(rows) == len(self._tuples) and bool((rows[1:] > rows[:-1]).all())
        lifted = self._lifted if in_order else self._lifted.at(rows)
        # The windows of each key are followed by its content at the end.
        n_totals = np.bincount(fired.key, minlength=self._tuples.n_keys) + 1
        changes = window_changes(applied.offsets, fired.key, fired.hi, fired.gone_to, fired.removed, np.zeros(len(rows), np.bool_))
        key = np.repeat(np.arange(len(n_totals)), n_totals)
        stretches = Stretches(key, np.zeros(len(key), np.int64), np.full(len(key), WHOLE), *changes)
        totals = combine_totals(self._layout, objects, lifted, Items(applied.offsets, entered.begin), stretches)
        totals = totals.at(np.arange(len(fired.key)) + fired.key)
        found: dict[str, Column] = dict(lower(self._layout, totals.ints, totals.floats, self._tuples.table))
        return found | objects.lowered(totals.objects)


def advance(stage: PositionStage, rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new ``rows`` to the ``stored`` state of some keys; O(n log n) in both.

    ``rows``: all new rows of these keys, with the columns of ``stage.state.rows``.
    ``stored``: all ``key`` rows of these keys, all waiting tuples, and at least the nodes that
        :mod:`windowmill.windowing.columnar.position_reads` selects; columns as ``stage.state.schema``.
    """
    verify_once(stage.check, stored)
    rows = ascending(rows, NUMBER_OF)
    keys, codes, n_keys = keys_of([stored, rows], stage.keys)
    of_stored, of_rows = codes[: len(stored)], codes[len(stored) :]
    results, parts, refused = [], [], dict[tuple[str, ...], Ints]()
    for name in stage.state.sequences:
        known = StoredSequence.of(name, stored, of_stored, n_keys)
        tuples = tuples_of(stage, known, rows, of_rows)
        windows = tuple(stage.pipeline.windows[window].name for window in stage.state.sequences[name])
        if stage.bounded:
            bounded = BoundedSequence(stage, name, keys, known, tuples)
            results += list(bounded.results())
            refused[windows] = bounded.refused
            continue
        kind: type[KeptSequence] = FrontSequence
        if name in stage.state.deltas:
            kind, nodes = DeltaSequence, live_nodes(name, stored, of_stored, known.scalar(HEAD))
        else:
            nodes = nodes_of(name, stored, of_stored)
        sequence = kind(stage, name, keys, known, (stored.take(pa.array(nodes)), of_stored[nodes]), tuples)
        results += list(sequence.results())
        parts += sequence.changes() if stage.keep else []
        refused[windows] = sequence.refused
    numbers = int64_of(rows.column(NUMBER_OF).combine_chunks())
    return Advanced.of(results, parts if stage.keep else None, refused, numbers, rows.column(LATE).combine_chunks())
