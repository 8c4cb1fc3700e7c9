"""Applies a batch's new tuples to the state of windows over positions: complete windows become results, changes new rows of the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import LATE, NUMBER_OF
from windowmill.windowing.columnar.hashes import verify_once
from windowmill.windowing.columnar.position_deltas import DeltaSequence, PartialColumns, combine_totals, live_nodes
from windowmill.windowing.columnar.position_reads import StoredSequence, evictable_in, nodes_of, tuples_of
from windowmill.windowing.columnar.position_sequence import (
    KeptSequence,
    PolicyInput,
    PositionSequence,
    Scalars,
    WindowContent,
    WindowOutcome,
    part_of,
)
from windowmill.windowing.columnar.positions import HEAD, Forest, PositionStage
from windowmill.windowing.columnar.results import Advanced, Chunk, Column, result_rows
from windowmill.windowing.columnar.rows import ROW_TIME, ascending, keys_of
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.kernels import policies as kernel
from windowmill.windowing.kernels.combine import Ints
from windowmill.windowing.kernels.flatfat import WHOLE, Items, Stretches, window_changes
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import int64_of, lift
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.slicing.policy_settings import Triggers, no_values

_NONE = np.empty(0, np.int64)


class FrontSequence(KeptSequence):
    """The batch of one sequence of windows that evict from the front."""

    @cached_property
    def _forest(self) -> Forest:
        stage = self._stage
        new, keys = self._leaves
        restored = [self._nodes.select(new.column_names).cast(new.schema)] if len(self._nodes) else []
        nodes = pa.concat_tables([*restored, new]).combine_chunks()
        n_restored = len(self._node_keys)
        return Forest.grown(stage.layout, stage.objects, self._tuples.n_keys, nodes, np.append(self._node_keys, keys), n_restored)

    @cached_property
    def _ran(self) -> Mapping[int, WindowOutcome]:
        return {window: self._run(window) for window in self._windows}

    def _run(self, window: int) -> WindowOutcome:
        evictable = evictable_in(self._stage, window)
        by_count = np.diff(self._fed.offsets) * evictable.by_count
        offsets, level, begin, first = self._forest.covers(self._before[window].front, self._next, by_count, evictable.before)
        before = WindowContent(offsets, begin, np.int64(1) << level, first, no_values(len(level)))
        entered = self._entered(window, before)
        settings, applied, keys, begin = self._stage.settings[window], entered.tuples, entered.keys, entered.begin
        evict = applied.evict
        flushes_by_delta = settings.trigger is None and settings.evict.delta is not None
        if flushes_by_delta:
            # Such a window compares with its first tuple.
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
        return self._forest.aggregate(part_of(self._ran[window].windows, part))

    def _new_nodes(self) -> tuple[Ints, dict[str, pa.Array]]:
        return self._forest.new_nodes(self._head)


class BoundedSequence(PositionSequence):
    """All tuples of a sequence: no batch has applied others before them, and none follows.

    So its windows need no nodes. Those that evict from the front are combined by two stacks, in O(1) combines a tuple; those that evict by
    a delta, by a trie over all tuples of their key.
    """

    @cached_property
    def _layout(self) -> Layout:
        types = {field.name: field.type for field in self._tuples.table.schema}
        return Layout.over_rows(self._stage.pipeline.aggregates, types, "aggregates")

    @cached_property
    def _lifted(self) -> PartialColumns:
        """The partial of each tuple."""
        stage, table = self._stage, self._tuples.table
        objects = stage.objects.lift(table, np.arange(len(table) + 1), ROW_TIME, stage.ties)
        return PartialColumns(*lift(self._layout, table), objects)

    def results(self) -> Iterator[pa.Table]:
        stage = self._stage
        nothing = WindowContent(np.zeros(self._tuples.n_keys + 1, np.int64), _NONE, _NONE, _NONE, no_values(0))
        for window in self._windows:
            settings, entered = stage.settings[window], self._entered(window, nothing)
            fired = settings.run(self._listed, entered.tuples, entered.keys, stage.clock, entered.integers)
            if len(fired.key):
                ranges = self._fed.rows, fired.lo, fired.hi
                windows = Windows.of(fired.key, fired.start, fired.end, trigger=fired.number, ranges=ranges)
                values = self._by_trie(fired, entered) if settings.from_anywhere else self._by_stacks(windows)
                yield result_rows(Chunk(window, windows, values), stage.pipeline, self._keys, stage.results, stage.batch)

    def _by_stacks(self, windows: Windows) -> dict[str, Column]:
        lifted, objects = self._lifted, self._stage.objects
        numbers = combine_numbers(self._layout, lifted.ints, lifted.floats, windows)
        found: dict[str, Column] = dict(lower(self._layout, *numbers, self._tuples.table))
        return found | objects.compute(lifted.objects, windows)

    def _by_trie(self, fired: Triggers, entered: PolicyInput) -> dict[str, Column]:
        applied, rows, objects = entered.tuples, self._fed.rows, self._stage.objects
        in_order = len(rows) == len(self._tuples) and bool((rows[1:] > rows[:-1]).all())
        lifted = self._lifted if in_order else self._lifted.at(rows)
        # Behind the windows of each key comes what it holds at the end.
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
    ``stored``: of these keys all ``key`` rows, all waiting tuples, and at least the nodes that
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
