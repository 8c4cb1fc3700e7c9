"""A batch of one sequence of windows over positions: judges new tuples, runs the policies, and makes results and new rows of the state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND, NUMBER_OF, TIME
from windowmill.windowing.columnar.position_reads import WAITS, StoredSequence
from windowmill.windowing.columnar.positions import (
    BASE,
    FIRST,
    FRONT,
    HEAD,
    KEY_ROW,
    NEXT,
    NODE,
    NODE_LEVEL,
    POSITION,
    QUEUED,
    SEQUENCE,
    THROUGH,
    WAITING,
    PositionStage,
    scalar_of,
)
from windowmill.windowing.columnar.results import Chunk, Column, result_rows
from windowmill.windowing.columnar.rows import ROW_NUMBER, ROW_TIME, as_table
from windowmill.windowing.columnar.slices import lifted_groups
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.policies import judge_tuples
from windowmill.windowing.slicing.leaves import Leaves, Windows
from windowmill.windowing.slicing.policy_settings import STATE, holds_integers, no_values, punctuation_of, values_of
from windowmill.windowing.watermark import AFTER, BEFORE, commits_of

#: Greatest number of windows aggregated together.
_CHUNK_WINDOWS = 200_000
_NONE = np.empty(0, np.int64)
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class _NewTuples:
    """The tuples that a batch applies, by key in order of application."""

    rows: Ints  #: Their places among the leaves; shape (n_fed,).
    offsets: Ints  #: Key k's tuples are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    fresh: Bools  #: Mask of the tuples that reset their key first.


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
    values: kernel.Values  #: What the eviction's delta compares, for single tuples.


@dataclass(frozen=True)
class PolicyInput:
    """The policies' input."""

    #: As :meth:`windowmill.windowing.slicing.policy_settings.PolicySettings.run` takes them.
    tuples: kernel.Tuples
    keys: kernel.KeyStates
    integers: tuple[bool, bool]
    #: For each tuple or run its first position, and whether it is a new tuple.
    begin: Ints
    is_fed: Bools


class PositionSequence(ABC):
    """The batch of one sequence.

    ``keys``: the key columns of each key.
    ``tuples``: the tuples that the batch knows.
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
        self._fed = _NewTuples(rows, offsets, fresh[rows])

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
        """Numbers of the new rows that came too late."""
        return np.asarray(self._tuples.number[self._tuples.new & ~self._accepted], np.int64)

    @cached_property
    def _positions(self) -> Ints:
        """The positions of the tuples to apply."""
        keys = self._tuples.key[self._fed.rows]
        return np.asarray(self._next[keys] + np.arange(len(keys)) - self._fed.offsets[keys], np.int64)

    def _entered(self, window: int, held: WindowContent) -> PolicyInput:
        """The policies' input: of each key what the window holds, and then the tuples to apply."""
        tuples, fed, settings = self._tuples, self._fed, self._stage.settings[window]
        n_held, before = np.diff(held.offsets), self._before[window]
        of_fed = tuples.key[fed.rows]
        is_fed = np.ones(len(of_fed), np.bool_)
        if len(held.begin):
            is_fed = np.argsort(np.append(np.repeat(np.arange(len(n_held)), n_held), of_fed), kind="stable") >= len(held.begin)
        begin = _spread(is_fed, held.begin, self._positions)
        weight = _spread(is_fed, held.weight, np.ones(len(of_fed), np.int64))
        time = _spread(is_fed, held.first, tuples.time[fed.rows])
        fresh, closes = (
            _spread(is_fed, np.zeros(len(held.begin), np.bool_), mask)
            for mask in (fed.fresh, punctuation_of(settings.evict, tuples.table, fed.rows))
        )
        deltas = settings.evict.delta, settings.trigger.delta if settings.trigger is not None else None
        evict, trigger = (
            _spread_values(is_fed, of_held, values_of(delta, tuples.table, fed.rows))
            for delta, of_held in zip(deltas, (held.values, no_values(len(held.begin))), strict=True)
        )
        run = kernel.Tuples(held.offsets + fed.offsets, n_held, weight, time, fresh, closes, evict, trigger)
        integers = holds_integers(deltas[0], tuples.table), holds_integers(deltas[1], tuples.table)
        return PolicyInput(
            run, kernel.KeyStates(before.states.copy(), before.bases.copy(), np.zeros(len(begin), np.bool_)), integers, begin, is_fed
        )

    @abstractmethod
    def results(self) -> Iterator[pa.Table]:
        """Result rows of the complete windows."""


class KeptSequence(PositionSequence):
    """The batch of a sequence whose tuples the state holds as ``nodes``, given with their key indices."""

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
        leaves = lifted_groups(stage.lifting, rows, fed.rows, np.arange(len(fed.rows) + 1))
        keys = tuples.key[fed.rows]
        leaves |= {NODE_LEVEL: pa.repeat(0, len(keys)), POSITION: pa.array(self._positions), FIRST: pa.array(tuples.time[fed.rows])}
        return as_table(leaves, self._node_schema), keys

    @property
    def _node_schema(self) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in (NODE_LEVEL, POSITION, FIRST)] + self._stage.layout.stored_columns)

    @property
    @abstractmethod
    def _ran(self) -> Mapping[int, WindowOutcome]:
        """Each window of the sequence after the batch."""

    @abstractmethod
    def _aggregate(self, window: int, part: slice) -> dict[str, Column]:
        """All aggregates of this part of the complete windows of ``window``."""

    @abstractmethod
    def _new_nodes(self) -> tuple[Ints, dict[str, pa.Array]]:
        """Key index and columns of the rows of nodes that the batch adds to the state, none of which end at or before :attr:`_head`."""

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
        return np.asarray(self._next + np.diff(self._fed.offsets), np.int64)

    @property
    def _head(self) -> Ints:
        """The first position that a window of each key holds."""
        return np.asarray(np.min([ran.after.front for ran in self._ran.values()], axis=0), np.int64)

    def results(self) -> Iterator[pa.Table]:
        stage = self._stage
        for window, ran in self._ran.items():
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
        tuples, fed = self._tuples, self._fed
        n_fed = np.diff(fed.offsets)
        waiting = (self._waits | self._accepted) & ~self._ready
        due = np.full(tuples.n_keys, AFTER, np.int64)
        np.minimum.at(due, tuples.key[waiting], tuples.time[waiting])
        changed = n_fed > 0
        changed[tuples.key[self._accepted]] = True
        columns: dict[str, pa.Array] = {}
        for window, ran in self._ran.items():
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
        tuples, fed = self._tuples, self._fed
        last = np.full(tuples.n_keys, -1, np.int64)
        old = np.flatnonzero(~tuples.new & ~self._waits)
        last[tuples.key[old]] = old
        moved = np.flatnonzero(np.diff(fed.offsets))
        last[moved] = fed.rows[fed.offsets[moved + 1] - 1]
        # All windows of a sequence forget a key together.
        last[self._ran[self._windows[0]].after.states[:, kernel.LAST] == BEFORE] = -1
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


def _spread(is_fed: Bools, held: npt.NDArray[_T], fed: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Values of the nodes that windows hold and of the tuples to apply, in the order of ``is_fed``."""
    if not len(held):
        return fed
    both = np.empty(len(is_fed), fed.dtype)
    both[~is_fed], both[is_fed] = held, fed
    return both


def _spread_values(is_fed: Bools, held: kernel.Values, fed: kernel.Values) -> kernel.Values:
    value, whole = _spread(is_fed, held.value, fed.value), _spread(is_fed, held.whole, fed.whole)
    return kernel.Values(value, whole, _spread(is_fed, held.known, fed.known))


def part_of(windows: Windows, part: slice) -> Windows:
    """The windows in ``part``, which are stretches of positions."""
    ranges = _NONE, windows.lo[part], windows.hi[part]
    return Windows.of(windows.key[part], windows.start[part], windows.end[part], trigger=windows.trigger[part], ranges=ranges)
