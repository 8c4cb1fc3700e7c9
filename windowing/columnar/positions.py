"""Windows with policies, over the positions of a key's tuples: their settings, their state, and the FlatFAT of the applied tuples.

See :mod:`windowmill.windowing.kernels.flatfat` for nodes and positions.

The state of a key holds, in rows of three kinds:

``key``
    The scalars of each window's policies, its first position, and the last applied tuple; the latest row counts.
``row``
    A tuple that waits for the watermark.
``node``
    A leaf, which is the partial of one applied tuple, or an inner node. A batch appends the leaves of its tuples and the nodes that they
    complete. If windows evict by a delta, a node that loses tuples gets a new row: see :mod:`.position_reads`.

Windows that apply the same tuples in the same order form a *sequence* and share its positions, nodes and waiting tuples. Windows that
evict by a delta do so only if it is the same delta.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa

from windowmill.windowing.axis import Duration
from windowmill.windowing.bounds import check_key, check_share
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
    SEQUENCE,
    THROUGH,
    TIME,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.hashes import CHECKSUM, RowCheck
from windowmill.windowing.columnar.keyed import LIVE_PREFIX, check_names, label_of
from windowmill.windowing.columnar.objects import Objects, StoredObjects
from windowmill.windowing.columnar.results import Column
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.columnar.slices import LiftingStage
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.flatfat import LEFT, MISSING, NodeColumns, covers, moves, places_of, stretches
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import arenas, condition_column, float64_of, int64_of, stored, valid_of
from windowmill.windowing.kernels.policies import apply_policies
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.slices import combine_runs
from windowmill.windowing.layouts import live_columns
from windowmill.windowing.slicing.edges import Steps, origin_of, zone_named
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, Clock

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline
    from windowmill.windowing.windows.base import Delta, Policy, PolicyRules, Window


#: Names of a key's scalars, in the order of the kernel's elements ``LAST`` to ``BASE``.
STATE = ("last", "ticked", "tick", "fired", "inserted", "full", "has_base", "base")
#: The scalars that are points of the axis.
SCALAR_INSTANTS = frozenset({"last", "ticked", "tick"})
_FRESH = {"last": BEFORE, "ticked": BEFORE, "tick": AFTER}
_KINDS = {"count": kernel.COUNT, "time": kernel.TIME, "delta": kernel.DELTA, "punctuation": kernel.PUNCTUATION}
_NONE = np.empty(0, np.int64)


class Triggers(NamedTuple):
    """The triggers that fired in a batch, key by key in order of firing; int64, shapes (n_triggers,) except ``removed``."""

    key: Ints  #: Index of the key.
    #: Bounds of the window that is shown, and the trigger's number.
    start: Ints
    end: Ints
    number: Ints
    #: The window holds tuples lo:hi, without those that deltas have removed.
    lo: Ints
    hi: Ints
    gone_to: Ints  #: ``removed[:gone_to]`` were removed until then.
    removed: Ints  #: The tuples that deltas have removed, in order of removal; shape (n_removed,).


class PolicySettings:
    """The policies of one window of the spec.

    ``evict``, ``trigger``: the window's policies; no trigger for a window that its eviction flushes.
    ``array``: the kernel's settings, elements ``EVICT`` to ``PERIOD``; int64, shape (11,).
    """

    def __init__(self, window: Window, rules: PolicyRules, pipeline: Pipeline) -> None:
        self._name = window.name
        self.evict, self.trigger = rules.evict, rules.trigger
        period = self.trigger.time if self.trigger is not None else self.evict.time
        self._steps: Steps | None = None
        if period is not None:
            zone = zone_named(rules.timezone)
            self._steps = Steps(origin_of(rules.origin, period, zone, pipeline.time.integer_axis), period, zone)
        age = self.evict.time.elapsed() if self.evict.time is not None and self.trigger is not None else AFTER
        idle = rules.idle_after.elapsed() if rules.idle_after is not None else AFTER
        ticks = 0 if self._steps is None else 2 if self._steps.period is None else 1
        self.array = np.array(
            [
                _KINDS[self.evict.kind],
                _KINDS[self.trigger.kind] if self.trigger is not None else kernel.NONE,
                self.evict.count or 0,
                age,
                (self.trigger.count or 0) if self.trigger is not None else 0,
                rules.partial,
                window.empty == "emit",
                idle,
                ticks,
                self._steps.origin if self._steps is not None else 0,
                (self._steps.period or 1) if self._steps is not None else 1,
            ],
            np.int64,
        )

    @property
    def from_anywhere(self) -> bool:
        """Whether tuples leave the window from any position, not only from its front."""
        return self.evict.delta is not None and self.trigger is not None

    @property
    def acceptance(self) -> tuple[object, ...]:
        """The settings that decide which tuples are late: windows for which they are equal apply the same tuples in the same order."""
        settings = self.array
        if self._steps is None:
            return (int(settings[kernel.IDLE]),)
        by_ticks = (kernel.IDLE, kernel.TICKS, kernel.ORIGIN, kernel.PERIOD, kernel.EMPTY, kernel.AGE)
        flushes = bool(settings[kernel.TRIGGER] == kernel.NONE)
        return (*(int(settings[place]) for place in by_ticks), flushes, str(self._steps.step), str(self._steps.zone))

    @property
    def difference(self) -> float:
        """By how much a new tuple's value exceeds those of the tuples that it evicts; 0 if no delta evicts."""
        return _difference(self.evict.delta)

    def fresh(self, n_keys: int) -> Ints:
        """The states of ``n_keys`` keys without tuples; int64, shape (n_keys, 8)."""
        states = np.array([[_FRESH.get(name, 0) for name in STATE]] * n_keys, np.int64).reshape(-1, len(STATE))
        # As in the SPL runtime, a time window counts as full from the start.
        states[:, kernel.FULL] = self.array[kernel.EVICT] == kernel.TIME
        return states

    def listed(self, time: Ints, ticks: Ints, clock: Clock) -> Ints:
        """Calendar ticks that a batch may reach, ascending; empty if ticks have a fixed period.

        ``time``, ``ticks``: times of the tuples to apply, and next ticks of the keys; shapes (n_tuples,) and (n_keys,).
        """
        if self._steps is None or self._steps.period is not None:
            return _NONE
        instants = [*time.tolist(), *ticks[ticks < AFTER].tolist()]
        if not instants:
            return _NONE
        age = int(self.array[kernel.AGE])
        longest = 366 * 86_400_000_000 * (1 + self._steps.step.months // 12)
        through = max(clock.seen, BEFORE if clock.ended else clock.watermark, *instants) + (age if age < AFTER else 0) + 2 * longest
        return np.array(self._steps.between(min(instants) - 1, through), np.int64)

    def run(self, listed: Ints, tuples: kernel.Tuples, keys: kernel.KeyStates, clock: Clock, whole: tuple[bool, bool]) -> Triggers:
        """Apply ``tuples`` to ``keys``, in place; returns the triggers that fire.

        ``whole``: whether the columns of the eviction's and of the trigger's delta hold integers. Raises ``LimitExceededError`` if a key
        has too many due ticks, or the batch too many triggers.
        """
        by = [_difference(policy.delta if policy is not None else None) for policy in (self.evict, self.trigger)]
        rules = kernel.Rules(
            self.array,
            listed,
            np.array(by, np.float64),
            np.array([min(math.floor(each), kernel.MAX_GAP) for each in by], np.uint64),
            np.array(whole),
        )
        progress = kernel.InputProgress(clock.watermark, clock.ended, clock.seen)
        counts = np.zeros(3, np.int64)
        if self._steps is None:
            # Without ticks, each tuple fires at most once.
            counts[:2] = len(tuples.time)
        else:
            tried = kernel.KeyStates(keys.states.copy(), keys.bases.copy(), keys.alive.copy())
            apply_policies(rules, tuples, tried, progress, kernel.TriggerLog(False, counts, np.empty((7, 0), np.int64), _NONE))
            check_key(self._name, int(counts[kernel.DUE]))
            check_share(self._name, int(counts[kernel.NOTED]))
        out, removed = np.empty((7, counts[0]), np.int64), np.empty(counts[1], np.int64)
        counts[:] = 0
        apply_policies(rules, tuples, keys, progress, kernel.TriggerLog(True, counts, out, removed))
        return Triggers._make((*out[:, : counts[kernel.NOTED]], removed[: counts[kernel.REMOVED]]))


def delta_of(settings: PolicySettings) -> Delta:
    """The delta by which a window evicts."""
    if settings.evict.delta is None:
        raise TypeError("the window does not evict by a delta")
    return settings.evict.delta


def values_of(delta: Delta | None, table: pa.Table, rows: Ints) -> kernel.Values:
    """The column of a delta policy at these ``rows`` of ``table``; NaN counts as null. Zeros if there is no such policy."""
    if delta is None:
        return no_values(len(rows))
    column = table.column(delta.column).combine_chunks().take(pa.array(rows))
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("us")).cast(pa.int64())  # as instants: the difference is in their ticks
    floats = float64_of(column)
    ints = int64_of(column) if holds_integers(delta, table) else np.zeros(len(column), np.int64)
    return kernel.Values(floats, ints, valid_of(column) & ~np.isnan(floats))


def no_values(n: int) -> kernel.Values:
    """Values of ``n`` tuples that have none."""
    return kernel.Values(np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.bool_))


def values_at(values: kernel.Values, chosen: Bools | Ints) -> kernel.Values:
    return kernel.Values(values.value[chosen], values.whole[chosen], values.known[chosen])


def joined_values(parts: Sequence[kernel.Values]) -> kernel.Values:
    floats, ints, known = zip(*parts, strict=True)
    return kernel.Values(np.concatenate(floats), np.concatenate(ints), np.concatenate(known))


def holds_integers(delta: Delta | None, table: pa.Table) -> bool:
    """Whether the column of a delta policy in ``table`` holds integers; true if there is no such policy.

    Decimals are compared as floats, too: their differences may be off in the last digit.
    """
    kind = None if delta is None else table.schema.field(delta.column).type
    return kind is None or not (pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def punctuation_of(policy: Policy, table: pa.Table, rows: Ints) -> Bools:
    """Whether the policy's punctuation holds at these ``rows`` of ``table``; false if it has none."""
    if policy.punctuation is None:
        return np.zeros(len(rows), np.bool_)
    column = table.column(condition_column(policy.punctuation)).combine_chunks().take(pa.array(rows))
    return np.asarray(int64_of(column) != 0, np.bool_)


def _difference(delta: Delta | None) -> float:
    if delta is None:
        return 0.0
    return delta.by.elapsed() if isinstance(delta.by, Duration) else delta.by


#: The least level of inner nodes that are stored. Nodes of level 1 would be a third more rows, and spare a window one row at either end.
LOWEST = 2
#: Kinds of rows of the state.
KEY_ROW, WAITING, NODE = "key", "row", "node"
#: Scalars of a key in a window, in addition to ``STATE``: the base of its delta if it is no integer, and its first position.
BASE, FRONT = "float_base", "front"
_SCALARS = {**dict.fromkeys(STATE, pa.int64()), BASE: pa.float64(), FRONT: pa.int64()}


def level_above(level: Ints) -> Ints:
    """The level of the stored node above a stored node of this ``level``, element by element."""
    return np.maximum(level + 1, LOWEST)


@dataclass(frozen=True)
class _Rows:
    """Nodes of any keys; one element or row per node."""

    #: Key index, level, first position, and event time of the tuple there; int64, shapes (n,).
    key: Ints
    level: Ints
    begin: Ints
    first: Ints
    is_new: Bools  #: Mask of the nodes that were not read from the state.
    #: Partials; shapes (n, number of columns).
    ints: Ints
    floats: Floats
    objects: Objects

    def at(self, chosen: Bools | Ints) -> Self:
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def of_level(self, level: int) -> Self:
        chosen = self.level == level
        return self if chosen.all() else self.at(chosen)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        there = [part for part in parts if len(part.key)] or parts[:1]
        if len(there) == 1:
            return there[0]
        return cls(*(np.concatenate([getattr(part, field.name) for part in there]) for field in fields(cls)))

    def in_order(self) -> Self:
        """The nodes, which are all of one level, sorted by key and begin."""
        key, begin = self.key, self.begin
        sorted_ = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & (begin[1:] > begin[:-1]))
        return self if sorted_.all() else self.at(np.lexsort((begin, key)))


@dataclass(frozen=True)
class Forest:
    """The trees of all keys. Leaves and restored nodes are rows of ``table``, into which partials point."""

    layout: Layout
    stored_objects: StoredObjects
    n_keys: int
    table: pa.Table
    #: The nodes of each level, sorted by key and begin. The place of a node is its index among those of all levels.
    levels: Sequence[_Rows]

    @classmethod
    def grown(cls, layout: Layout, objects: StoredObjects, n_keys: int, nodes: pa.Table, key: Ints, n_restored: int) -> Self:
        """The forest of ``nodes``, restored ones and then new leaves, and of all further nodes that these complete. O(n log n).

        ``nodes``: columns ``NODE_LEVEL``, ``POSITION``, ``FIRST`` and the partials; nodes of a key are in order of their positions.
        ``key``: key index of each node; shape (n_nodes,).
        """
        level, begin, first = (int64_of(nodes.column(name).combine_chunks()) for name in (NODE_LEVEL, POSITION, FIRST))
        is_new = np.arange(len(key)) >= n_restored
        given = _Rows(key, level, begin, first, is_new, *arenas(layout, nodes), objects.read(nodes))
        levels, highest = [given.of_level(0).in_order()], int(given.level.max(initial=0))
        none = given.at(_NONE)
        while len(levels[-1].key) or highest >= len(levels):
            read = given.of_level(len(levels)) if highest >= len(levels) else none
            levels.append(_Rows.joined([read, _completed(layout, objects, levels[-1], read)]).in_order())
        return cls(layout, objects, n_keys, nodes, levels)

    @cached_property
    def _starts(self) -> Ints:
        """Place of the first node of each level, and the number of all nodes; shape (n_levels + 1,)."""
        return np.cumsum([0, *(len(rows.key) for rows in self.levels)])

    @cached_property
    def _nodes(self) -> NodeColumns:
        keys = np.arange(self.n_keys)
        offsets = [start + np.searchsorted(rows.key, keys) for start, rows in zip(self._starts[:-1], self.levels, strict=True)]
        begin, first = (np.concatenate([getattr(rows, name) for rows in self.levels]) for name in ("begin", "first"))
        return NodeColumns(len(self.levels), self.n_keys, np.append(np.concatenate(offsets), self._starts[-1]), begin, first)

    def _at(self, places: Ints) -> _Rows:
        """The nodes at ``places``, which ascend."""
        cuts = pairwise(np.searchsorted(places, self._starts).tolist())
        levels = zip(self.levels, self._starts[:-1], cuts, strict=True)
        return _Rows.joined([rows.at(places[first:stop] - start) for rows, start, (first, stop) in levels])

    def covers(self, head: Ints, stop: Ints, evicted: Ints, limit: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The nodes of each key's window [``head``, ``stop``), as :func:`~windowmill.windowing.kernels.flatfat.covers`.

        Returns offsets, and of each node its level, its first position, and the event time of the tuple there.
        """
        offsets, places = covers(self._nodes, head, stop, evicted, limit)
        level = np.searchsorted(self._starts, _all_there(places), side="right") - 1
        return offsets, level, self._nodes.begin[places], self._nodes.first[places]

    def aggregate(self, windows: Windows) -> dict[str, Column]:
        """All aggregates of ``windows``, which hold the tuples at positions [lo, hi).

        O(log n) combines a window; for objects that can be deducted, at most one for each tuple that leaves or enters. Raises
        ``StateCorruptError`` if a node is not there.
        """
        objects, stretch = self.stored_objects, (self._nodes, windows.key, windows.lo, windows.hi)
        offsets, places = stretches(*stretch)
        # For kernels, listing what leaves and enters would cost more than it saves.
        moved = moves(*stretch) if any(objects.deducts) else None
        left = _NONE if moved is None else moved[2]
        every = np.append(places, np.where(left <= LEFT, LEFT - left, left))
        used = np.zeros(self._starts[-1], np.bool_)
        used[_all_there(every)] = True
        rows, members = self._at(np.flatnonzero(used)), (np.cumsum(used) - 1)[every]
        bounds, n = (windows.key, windows.start, windows.end), len(places)
        made = Windows.of(*bounds, members=(offsets, members[:n]))
        numbers = combine_numbers(self.layout, rows.ints, rows.floats, made)
        found: dict[str, Column] = dict(lower(self.layout, *numbers, self.table))
        if moved is None:
            return found | objects.compute(objects.decode(rows.objects), made)
        of_moves = np.where(left <= LEFT, ~members[n:], members[n:])
        sliding = Windows.of(*bounds, members=(moved[1], of_moves), continues=moved[0])
        return found | objects.compute(objects.decode(rows.objects), made, sliding)

    def new_nodes(self, head: Ints) -> tuple[Ints, dict[str, pa.Array]]:
        """Key index and columns of the nodes that the state lacks and that begin at or after ``head``, of shape (n_keys,)."""
        kept = [rows for level, rows in enumerate(self.levels) if level == 0 or level >= LOWEST]
        rows = _Rows.joined([rows.at(rows.is_new & (rows.begin >= head[rows.key])) for rows in kept])
        above = level_above(rows.level)
        firsts = places_of(self._nodes, rows.key, rows.level, rows.begin >> above << above)
        columns = stored(self.layout, rows.ints, rows.floats, self.table) | self.stored_objects.write(rows.objects)
        columns |= {NODE_LEVEL: pa.array(rows.level), POSITION: pa.array(rows.begin), FIRST: pa.array(rows.first)}
        return rows.key, columns | {ABOVE: pa.array(self._nodes.first[firsts], mask=firsts == MISSING)}


def _completed(layout: Layout, objects: StoredObjects, below: _Rows, read: _Rows) -> _Rows:
    """The nodes above neighbours of ``below``, a level sorted by key and begin, except those ``read`` already."""
    width = np.int64(1) << below.level[:-1]
    pairs = (below.key[1:] == below.key[:-1]) & (below.begin[1:] == below.begin[:-1] + width) & (below.begin[:-1] & width == 0)
    left = np.flatnonzero(pairs)
    if len(read.key):
        span = int(max(below.begin.max(initial=0), read.begin.max(initial=0))) + 1
        left = left[~np.isin(below.key[left] * span + below.begin[left], read.key * span + read.begin)]
    both, bounds = np.stack((left, left + 1), axis=1).reshape(-1), np.arange(0, 2 * len(left) + 1, 2)
    numbers = combine_runs(layout.program(), left, left + 2, below.ints, below.floats)
    partials = *numbers, objects.fold(below.objects[both], bounds)
    is_new = below.is_new[left] | below.is_new[left + 1]
    return _Rows(below.key[left], below.level[left] + 1, below.begin[left], below.first[left], is_new, *partials)


def _all_there(places: Ints) -> Ints:
    missing = int((places == MISSING).sum())
    if missing:
        raise StateCorruptError(f"state: {missing} nodes of windows that are still open are missing; rebuild it from the source")
    return places


class PositionState:
    """The columns of the state of one pipeline; a function of the spec and the source's column types.

    ``types``: Arrow type of each of the source's columns.
    ``live``, ``conditions``: the state's column for each column of the source, and for each condition column, that waiting tuples keep.
    ``texts``: the conditions.
    ``sequences``: indexes of the windows of each sequence, by the sequence's name.
    ``deltas``: names of the sequences whose windows evict by a delta, so that tuples leave from anywhere.
    ``schema``: schema of the state, without checksums.
    ``rows``: schema of new rows: keys, the columns and conditions that windows and aggregates read, event time, number in order of arrival,
        ``WATERMARK_OF`` and ``LATE``. ``WATERMARK_OF`` is the watermark that the row found; null means the same as for the row before.
        ``LATE`` is whether the row arrived behind the watermark; null means no.
    """

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout) -> None:
        self.live = {name: f"{LIVE_PREFIX}{label_of(name)}" for name in live_columns(pipeline, types)}
        texts = dict.fromkeys([*layout.conditions, *(text for window in pipeline.windows for text in window.conditions().values())])
        self.conditions = {condition_column(text): f"_where__{_digest(text)}" for text in texts}
        self.texts = tuple(texts)
        self.sequences = _sequences(pipeline)
        self.deltas = frozenset(name for name, held in self.sequences.items() if settings_of(pipeline, held[0]).from_anywhere)
        fields = [*((key, types[key]) for key in pipeline.keys), (KIND, pa.string()), (SEQUENCE, pa.string()), (BATCH, pa.int64())]
        fields += [(name, pa.int64()) for name in (DUE, THROUGH, NEXT, HEAD, QUEUED, NUMBER_OF, TIME)]
        fields += [(label, types[name]) for name, label in self.live.items()]
        fields += [(label, pa.bool_()) for label in self.conditions.values()]
        scalars = [(scalar_of(window.name, name), kind) for window in pipeline.windows for name, kind in _SCALARS.items()]
        self._scalars, self._partials = [name for name, _ in scalars], [name for name, _ in layout.stored_columns]
        fields += scalars
        fields += [(name, pa.int64()) for name in (NODE_LEVEL, POSITION, FIRST, ABOVE)]
        if self.deltas:
            fields += [(LIVE, pa.int64()), (LEAST, pa.int64()), (FLOAT_LEAST, pa.float64())]
        self.schema = pa.schema([*fields, *layout.stored_columns])
        check_names(pipeline, self.stored_schema)
        read = dict.fromkeys([*pipeline.keys, *self.live])
        own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (WATERMARK_OF, pa.int64()), (LATE, pa.bool_())]
        self.rows = pa.schema([*((name, types[name]) for name in read), *((name, pa.bool_()) for name in self.conditions), *own])

    @property
    def stored_schema(self) -> pa.Schema:
        """Schema of the state table: ``schema`` and checksums."""
        return self.schema.append(CHECKSUM)

    @property
    def entry_columns(self) -> list[str]:
        """Columns of the state table that may have values in ``key`` rows and in waiting tuples."""
        own = {NODE_LEVEL, POSITION, FIRST, ABOVE, LEAST, FLOAT_LEAST, *self._partials}
        return [name for name in self.stored_schema.names if name not in own]

    @property
    def node_columns(self) -> list[str]:
        """Columns of the state table that may have values in nodes."""
        own = {DUE, THROUGH, NEXT, HEAD, QUEUED, NUMBER_OF, TIME, *self.live.values(), *self.conditions.values(), *self._scalars}
        return [name for name in self.stored_schema.names if name not in own]


def scalar_of(window: str, name: str) -> str:
    """The state's column for the scalar ``name`` of ``window``."""
    return f"_{window}__{name}"


def _sequences(pipeline: Pipeline) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for index in range(len(pipeline.windows)):
        settings = settings_of(pipeline, index)
        # Windows that evict by a delta have nodes of their own, unless they hold the same tuples.
        held = (settings.acceptance, settings.evict.describe()) if settings.from_anywhere else settings.acceptance
        name = _digest(repr(held))
        found[name] = (*found.get(name, ()), index)
    return found


def settings_of(pipeline: Pipeline, index: int) -> PolicySettings:
    window = pipeline.windows[index]
    return PolicySettings(window, window.policies(), pipeline)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class PositionStage:
    """Settings for a batch of windows over positions; picklable."""

    pipeline: Pipeline
    layout: Layout
    state: PositionState  #: Columns of the state, and the sequences.
    batch: int
    clock: Clock  #: The clock after the batch; ``since`` is the watermark before it.
    ends: tuple[int, int] | None  #: Restricts the results to windows that end in this range (begin, end]; null for all.
    keep: bool  #: Whether later batches continue from this one's state.
    results: pa.Schema  #: Columns of a result row.
    check: RowCheck | None = None  #: Verifies rows read from the state; null if there is no state.
    bounded: bool = False  #: Whether the batch has all rows of a bounded input: it continues from no state, and nothing continues from it.

    @property
    def keys(self) -> tuple[str, ...]:
        return self.pipeline.keys

    @property
    def ties(self) -> tuple[str, ...]:
        return self.pipeline.time.tie_break

    @property
    def source_columns(self) -> Sequence[str]:
        return list(self.state.live)

    @property
    def conditions(self) -> Sequence[str]:
        return self.state.texts

    @cached_property
    def lifting(self) -> LiftingStage:
        """Settings for lifting tuples into leaves, into which the keys are not copied."""
        return LiftingStage((), self.ties, self.layout)

    @property
    def objects(self) -> StoredObjects:
        return self.lifting.objects

    @cached_property
    def settings(self) -> Sequence[PolicySettings]:
        return [settings_of(self.pipeline, index) for index in range(len(self.pipeline.windows))]

    def settings_of(self, sequence: str) -> PolicySettings:
        return self.settings[self.state.sequences[sequence][0]]
