"""Applies a batch's new tuples to the state of windows over positions: complete windows become results, changes new rows of the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import SUM
from windowmill.windowing.columnar.log import BATCH, DUE, KIND, NUMBER_OF
from windowmill.windowing.columnar.output import result_rows
from windowmill.windowing.columnar.position_nodes import FIRST, LEVEL, POSITION, Forest
from windowmill.windowing.columnar.position_reads import WAITS, Known, alone_in, nodes_of, tuples_of
from windowmill.windowing.columnar.positions import (
    BASE,
    FRONT,
    HEAD,
    KEY_ROW,
    NEXT,
    NODE,
    QUEUED,
    SEQUENCE,
    THROUGH,
    WAITING,
    PositionStage,
    scalar_of,
)
from windowmill.windowing.columnar.results import Chunk
from windowmill.windowing.columnar.rows import NUMBER, as_key, key_codes
from windowmill.windowing.columnar.rows import TIME as ROW_TIME
from windowmill.windowing.columnar.slices import LATE, TIME, lifted_groups
from windowmill.windowing.columnar.stored_objects import StoredObjects
from windowmill.windowing.kernels import policy_rules as kernel
from windowmill.windowing.kernels.columns import int64_of
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.late_tuples import judge_tuples
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.slicing.leaves import Leaves, Windows
from windowmill.windowing.slicing.policy_settings import STATE, holds_integers, punctuation_of, values_of
from windowmill.windowing.watermark import AFTER, BEFORE

#: Greatest number of windows aggregated together.
_CHUNK_WINDOWS = 200_000
_NONE = np.empty(0, np.int64)
_T = TypeVar("_T", bound=np.generic)


def advance(stage: PositionStage, rows: pa.Table, stored: pa.Table) -> Advanced:
    """Apply new ``rows`` to the ``stored`` state of some keys; O(n log n) in both.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.state.rows``.
    stored
        Of these keys all ``key`` rows, all waiting tuples, and at least the nodes that :mod:`windowmill.windowing.columnar.position_reads`
        selects; columns as ``stage.state.schema``.
    """
    if stage.check is not None and SUM in stored.column_names:
        stage.check.verify(stored)
    rows = rows.sort_by(NUMBER_OF)
    columns = [pa.chunked_array([*stored.column(key).chunks, *rows.column(key).chunks]) for key in stage.keys]
    codes, n_keys = key_codes(columns, len(stored) + len(rows))
    firsts = pa.array(np.unique(codes, return_index=True)[1])
    keys = pa.table({key: as_key(column.combine_chunks().take(firsts)) for key, column in zip(stage.keys, columns, strict=True)})
    results, parts, refused = [], [], []
    for name in stage.state.sequences:
        known = Known.of(name, stored, codes[: len(stored)], n_keys)
        nodes, tuples = nodes_of(name, stored, codes[: len(stored)]), tuples_of(stage, known, rows, codes[len(stored) :])
        sequence = _Sequence(stage, name, keys, known, nodes, tuples)
        results += list(sequence.results())
        parts += sequence.changes() if stage.keep else []
        refused.append(sequence.refused)
    numbers = int64_of(rows.column(NUMBER_OF).combine_chunks())
    return Advanced.of(results, parts if stage.keep else None, refused, numbers, rows.column(LATE).combine_chunks())


@dataclass(frozen=True)
class _Lifted:
    """What lifting tuples to leaves needs; the keys are not copied into leaves."""

    ties: tuple[str, ...]
    layout: Layout
    objects: StoredObjects
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Fed:
    """The tuples that a batch applies, by key in order of application.

    Attributes
    ----------
    rows
        Their places among the leaves; shape (n_fed,).
    offsets
        Key k's tuples are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    fresh
        Mask of the tuples that reset their key first.
    """

    rows: Ints
    offsets: Ints
    fresh: Bools


@dataclass(frozen=True)
class _Ran:
    """A window of the spec after the batch.

    Attributes
    ----------
    windows
        Complete windows; ``lo`` and ``hi`` are positions.
    states, bases, front
        Scalars of each key, and the first position that its window holds.
    """

    windows: Windows
    states: Ints
    bases: Floats
    front: Ints


class _Sequence:
    """The batch of one sequence."""

    def __init__(self, stage: PositionStage, name: str, keys: pa.Table, known: Known, nodes: tuple[pa.Table, Ints], tuples: Leaves) -> None:
        self._stage, self._name, self._keys, self._known, self._tuples = stage, name, keys, known, tuples
        self._nodes, self._node_keys = nodes
        self._windows = stage.state.sequences[name]
        self._waits = tuples.table.column(WAITS).combine_chunks().to_numpy(zero_copy_only=False)
        self._next = known.scalar(NEXT)
        self._before = {window: self._restored(window) for window in self._windows}
        settings, clock = stage.settings[self._windows[0]], stage.clock
        ticks = np.concatenate([states[:, kernel.TICK] for states, _, _ in self._before.values()])
        self._listed = settings.listed(tuples.time, ticks, clock)
        self._accepted, fresh, life = judge_tuples(
            settings.array, self._listed, tuples.offsets, tuples.time, tuples.number, tuples.watermark, tuples.new, ~tuples.new
        )
        self._ready = self._waits | self._accepted
        if not clock.ended:
            self._ready = self._ready & (tuples.time < clock.watermark)
        rows = np.flatnonzero(self._ready).astype(np.int64)
        if fresh.any():
            rows = rows[np.lexsort((life[rows], tuples.key[rows]))]
        offsets = np.searchsorted(tuples.key[rows], np.arange(tuples.n_keys + 1)).astype(np.int64)
        self._fed = _Fed(rows, offsets, fresh[rows])

    def _restored(self, window: int) -> tuple[Ints, Floats, Ints]:
        """Scalars, bases and first positions of all keys in a window before the batch."""
        name, known = self._stage.pipeline.windows[window].name, self._known
        states = self._stage.settings[window].fresh(len(known.entry))
        there = known.entry >= 0
        for place, scalar in enumerate(STATE):
            states[there, place] = known.scalar(scalar_of(name, scalar))[there]
        return states, known.fraction(scalar_of(name, BASE)), known.scalar(scalar_of(name, FRONT))

    @property
    def refused(self) -> Ints:
        """Numbers of the new rows that came too late."""
        return np.asarray(self._tuples.number[self._tuples.new & ~self._accepted], np.int64)

    @cached_property
    def _forest(self) -> Forest:
        stage, tuples, fed = self._stage, self._tuples, self._fed
        rows = tuples.table.append_column(TIME, tuples.table.column(ROW_TIME))
        lifting = _Lifted(stage.ties, stage.layout, stage.objects)
        leaves = lifted_groups(lifting, rows, fed.rows, np.arange(len(fed.rows) + 1))
        keys = tuples.key[fed.rows]
        positions = self._next[keys] + np.arange(len(keys)) - fed.offsets[keys]
        leaves |= {LEVEL: pa.repeat(0, len(keys)), POSITION: pa.array(positions), FIRST: pa.array(tuples.time[fed.rows])}
        schema = pa.schema([(name, pa.int64()) for name in (LEVEL, POSITION, FIRST)] + stage.layout.stored_columns)
        new = pa.table([leaves[field.name].cast(field.type) for field in schema], schema=schema)
        nodes = pa.concat_tables([self._nodes.select(schema.names).cast(schema), new]).combine_chunks()
        n_restored = len(self._node_keys)
        return Forest.grown(stage.layout, stage.objects, tuples.n_keys, nodes, np.append(self._node_keys, keys), n_restored)

    @cached_property
    def _ran(self) -> Mapping[int, _Ran]:
        return {window: self._run(window) for window in self._windows}

    def _run(self, window: int) -> _Ran:
        stage, tuples, fed, settings = self._stage, self._tuples, self._fed, self._stage.settings[window]
        before, alone = self._before[window], alone_in(stage, window)
        applied = np.diff(fed.offsets) * alone.by_count
        held_offsets, held = self._forest.covers(before[2], self._next, applied, alone.before)
        n_held, nodes = np.diff(held_offsets), self._forest.rows
        # Of each key the nodes that the window holds, and then the tuples to apply.
        of_fed = tuples.key[fed.rows]
        is_fed = np.argsort(np.append(np.repeat(np.arange(len(n_held)), n_held), of_fed), kind="stable") >= len(held)
        begin = _spread(is_fed, nodes.begin[held], self._next[of_fed] + np.arange(len(of_fed)) - fed.offsets[of_fed])
        weight = _spread(is_fed, np.int64(1) << nodes.level[held], np.ones(len(of_fed), np.int64))
        time = _spread(is_fed, nodes.first[held], tuples.time[fed.rows])
        fresh, closes = (
            _spread(is_fed, np.zeros(len(held), np.bool_), mask)
            for mask in (fed.fresh, punctuation_of(settings.evict, tuples.table, fed.rows))
        )
        deltas = settings.evict.delta, settings.trigger.delta if settings.trigger is not None else None
        evict, trigger = (_spread_values(is_fed, values_of(delta, tuples.table, fed.rows)) for delta in deltas)
        run = kernel.Tuples(held_offsets + fed.offsets, n_held, weight, time, fresh, closes, evict, trigger)
        integers = holds_integers(deltas[0], tuples.table), holds_integers(deltas[1], tuples.table)
        keys = kernel.Keys(before[0].copy(), before[1].copy(), np.zeros(len(begin), np.bool_))
        return self._applied(window, run, begin, keys, integers)

    def _applied(self, window: int, applied: kernel.Tuples, begin: Ints, keys: kernel.Keys, integers: tuple[bool, bool]) -> _Ran:
        """Run the policies; ``begin`` holds the first position of each tuple or run of ``applied``."""
        settings, evict = self._stage.settings[window], applied.evict
        flushes_by_delta = settings.trigger is None and settings.evict.delta is not None
        if flushes_by_delta:
            # Such a window compares with its first tuple.
            firsts = applied.offsets[:-1][applied.held > 0]
            known = keys.states[applied.held > 0]
            evict.known[firsts], evict.whole[firsts] = known[:, kernel.HAS_BASE] != 0, known[:, kernel.BASE]
            evict.value[firsts] = keys.bases[applied.held > 0]
        out, _ = settings.run(self._listed, applied, keys, self._stage.clock, integers)
        key, start, end, number, lo, hi, _, _ = out
        if self._stage.ends is not None:
            first_end, last_end = self._stage.ends
            chosen = (end > first_end) & (end <= last_end)
            key, start, end, number, lo, hi = (column[chosen] for column in (key, start, end, number, lo, hi))
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
        return _Ran(windows, keys.states, keys.bases, self._after - left)

    @cached_property
    def _after(self) -> Ints:
        """Position of each key's next tuple after the batch."""
        return np.asarray(self._next + np.diff(self._fed.offsets), np.int64)

    def results(self) -> Iterator[pa.Table]:
        """Result rows of the complete windows."""
        stage = self._stage
        for window, ran in self._ran.items():
            for first in range(0, len(ran.windows), _CHUNK_WINDOWS):
                part = _part(ran.windows, slice(first, first + _CHUNK_WINDOWS))
                chunk = Chunk(window, part, self._forest.aggregate(part))
                yield result_rows(chunk, stage.pipeline, self._keys, stage.results, stage.batch)

    def changes(self) -> list[pa.Table]:
        """New rows of the state: changed keys, tuples that wait, and nodes."""
        head = np.min([ran.front for ran in self._ran.values()], axis=0)
        keys, nodes = self._forest.new_nodes(head)
        waits = np.flatnonzero(self._accepted & ~self._ready)
        return [self._key_rows(head), self._rows(WAITING, self._tuples.key[waits], self._cells(waits)), self._rows(NODE, keys, nodes)]

    def _key_rows(self, head: Ints) -> pa.Table:
        tuples, fed = self._tuples, self._fed
        n_fed = np.diff(fed.offsets)
        waiting = (self._waits | self._accepted) & ~self._ready
        due = np.full(tuples.n_keys, AFTER, np.int64)
        np.minimum.at(due, tuples.key[waiting], tuples.time[waiting])
        changed = n_fed > 0
        changed[tuples.key[self._accepted]] = True
        columns: dict[str, pa.Array] = {}
        for window, ran in self._ran.items():
            states, bases, front = self._before[window]
            changed |= (ran.states != states).any(axis=1) | (ran.bases.view(np.int64) != bases.view(np.int64)) | (ran.front != front)
            due = np.minimum(due, ran.states[:, kernel.TICK])
            name = self._stage.pipeline.windows[window].name
            scalars = {scalar: ran.states[:, place] for place, scalar in enumerate(STATE)} | {BASE: ran.bases, FRONT: ran.front}
            columns |= {scalar_of(name, scalar): pa.array(np.ascontiguousarray(values)) for scalar, values in scalars.items()}
        through = np.full(tuples.n_keys, self._stage.clock.watermark, np.int64)
        queued = np.bincount(tuples.key[waiting], minlength=tuples.n_keys)
        own = {DUE: due, THROUGH: through, NEXT: self._after, HEAD: head, QUEUED: queued}
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
        last[self._ran[self._windows[0]].states[:, kernel.LAST] == BEFORE] = -1
        return last

    def _cells(self, places: Ints) -> dict[str, pa.Array]:
        """The state's columns of the tuples at ``places``; null for −1."""
        table, at = self._tuples.table, pa.array(places, mask=places < 0)
        labels = {NUMBER: NUMBER_OF, ROW_TIME: TIME, **self._stage.state.live, **self._stage.state.conditions}
        return {label: table.column(name).combine_chunks().take(at) for name, label in labels.items()}

    def _rows(self, kind: str, key: Ints, cells: Mapping[str, pa.Array]) -> pa.Table:
        """Rows of the state of one ``kind``; columns that ``cells`` lacks are null."""
        n, schema = len(key), self._stage.state.schema
        own = {KIND: pa.repeat(kind, n), SEQUENCE: pa.repeat(self._name, n), BATCH: pa.repeat(self._stage.batch, n)}
        own |= {name: self._keys.column(name).combine_chunks().take(pa.array(key)) for name in self._stage.keys}
        cells = {**cells, **own}
        return pa.table([cells[f.name].cast(f.type) if f.name in cells else pa.nulls(n, f.type) for f in schema], schema=schema)


def _spread(is_fed: Bools, held: npt.NDArray[_T], fed: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """Values of the nodes that windows hold and of the tuples to apply, in the order that ``is_fed`` tells."""
    both = np.empty(len(is_fed), fed.dtype)
    both[~is_fed], both[is_fed] = held, fed
    return both


def _spread_values(is_fed: Bools, values: kernel.Values) -> kernel.Values:
    n = len(is_fed) - len(values.known)
    floats, ints, none = np.zeros(n), np.zeros(n, np.int64), np.zeros(n, np.bool_)
    return kernel.Values(_spread(is_fed, floats, values.value), _spread(is_fed, ints, values.whole), _spread(is_fed, none, values.known))


def _part(windows: Windows, part: slice) -> Windows:
    ranges = _NONE, windows.lo[part], windows.hi[part]
    return Windows.of(windows.key[part], windows.start[part], windows.end[part], trigger=windows.trigger[part], ranges=ranges)
