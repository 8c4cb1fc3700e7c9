"""What a batch of windows over positions reads: the rows of the state that it needs, and the tuples that it may apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.delta_reads import needed_nodes
from windowmill.windowing.columnar.log import BATCH, DUE, KIND, NUMBER_OF
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, LEVEL, POSITION
from windowmill.windowing.columnar.positions import (
    FRONT,
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
from windowmill.windowing.columnar.rows import KEY, NUMBER, UNTIL, WATERMARK, in_order, plain
from windowmill.windowing.columnar.rows import TIME as ROW_TIME
from windowmill.windowing.columnar.slices import CLOSED, TIME
from windowmill.windowing.errors import StateCorruptError
from windowmill.windowing.kernels import policy_rules as kernel
from windowmill.windowing.kernels.columns import float64_of, int64_of, valid_of
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.slicing.leaves import Leaves
from windowmill.windowing.watermark import AFTER, BEFORE

#: Column of tuples beside those of live rows: whether a tuple was stored to wait for the watermark.
WAITS = "_ waits"
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Known:
    """The restored state of one sequence.

    Attributes
    ----------
    entries
        The latest ``key`` row of each key that has one.
    entry
        For each key, the index of its row in ``entries``; −1 if it has none. Shape (n_keys,).
    waiting, waiting_keys
        Tuples that wait, and their key indices.
    """

    entries: pa.Table
    entry: Ints
    waiting: pa.Table
    waiting_keys: Ints

    @classmethod
    def of(cls, name: str, stored: pa.Table, codes: Ints, n_keys: int) -> Known:
        """Of ``stored``, the rows of the sequence ``name``; ``codes`` are the rows' key indices.

        Raises
        ------
        StateCorruptError
            If rows are missing: a batch that adds rows of a key also adds a ``key`` row, which counts the tuples that wait.
        """
        batch, found = int64_of(stored.column(BATCH).combine_chunks()), _rows_of(stored, name, KEY_ROW)
        found = found[np.lexsort((batch[found], codes[found]))]
        last = found[np.append(codes[found][1:] != codes[found][:-1], True)] if len(found) else found
        entry = np.full(n_keys, -1, np.int64)
        entry[codes[last]] = np.arange(len(last))
        entries = stored.take(pa.array(last)).combine_chunks()
        waiting = _rows_of(stored, name, WAITING)
        through = np.full(n_keys, BEFORE, np.int64)
        through[codes[last]] = int64_of(entries.column(THROUGH).combine_chunks())
        waiting = waiting[int64_of(stored.column(TIME).combine_chunks())[waiting] >= through[codes[waiting]]]
        written, queued = np.full(n_keys, BEFORE, np.int64), np.zeros(n_keys, np.int64)
        written[codes[last]], queued[codes[last]] = batch[last], int64_of(entries.column(QUEUED).combine_chunks())
        others = np.append(waiting, _rows_of(stored, name, NODE))
        wrong = np.bincount(codes[waiting], minlength=n_keys) != queued
        wrong[codes[others[batch[others] > written[codes[others]]]]] = True
        if wrong.any():
            raise StateCorruptError(f"state: rows of {int(wrong.sum()):,} keys are missing, or stand twice; rebuild it from the source")
        return cls(entries, entry, stored.take(pa.array(waiting)), codes[waiting])

    def scalar(self, column: str) -> Ints:
        """An integer column of the ``key`` rows for each key; 0 for a key without one. Shape (n_keys,)."""
        return self._of_keys(int64_of(self.entries.column(column).combine_chunks()))

    def fraction(self, column: str) -> Floats:
        """As :meth:`scalar`, a column of floats."""
        return self._of_keys(float64_of(self.entries.column(column).combine_chunks()))

    def _of_keys(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        there = self.entry >= 0
        found = np.zeros(len(self.entry), values.dtype)
        found[there] = values[self.entry[there]]
        return found


def _rows_of(stored: pa.Table, sequence: str, kind: str) -> Ints:
    """Indices of the rows of a ``sequence`` and a ``kind``."""
    return np.flatnonzero(pc.and_(pc.equal(stored.column(SEQUENCE), sequence), pc.equal(stored.column(KIND), kind)).to_numpy())


def nodes_of(name: str, stored: pa.Table, codes: Ints) -> tuple[pa.Table, Ints]:
    """The nodes of the sequence ``name`` in order of (key, position, level), and their key indices."""
    nodes = _rows_of(stored, name, NODE)
    position, level = (int64_of(stored.column(column).combine_chunks().take(pa.array(nodes))) for column in (POSITION, LEVEL))
    nodes = nodes[np.lexsort((level, position, codes[nodes]))]
    return stored.take(pa.array(nodes)), codes[nodes]


def tuples_of(stage: PositionStage, known: Known, rows: pa.Table, codes: Ints) -> Leaves:
    """The last applied tuple of each key, waiting tuples and new ``rows``, in the order in which they are applied."""
    entries = known.entries
    last_keys = np.flatnonzero(known.entry >= 0)
    applied = entries.take(pa.array(known.entry[last_keys]))
    kept = applied.column(NUMBER_OF).combine_chunks().is_valid()
    applied, last_keys = applied.filter(kept), last_keys[kept.to_numpy(zero_copy_only=False)]
    closed = pc.add(rows.column(CLOSED).combine_chunks(), stage.clock.lateness)
    # Null where the watermark has not moved since the row before.
    watermark = np.maximum.accumulate(np.append(stage.clock.since, int64_of(closed.fill_null(BEFORE))))[1:]
    labels = {**stage.state.live, **stage.state.conditions}
    parts = []
    for table, keys, waits in ((applied, last_keys, False), (known.waiting, known.waiting_keys, True), (rows, codes, False)):
        of_state = table is not rows
        columns = {name: plain(table.column(label if of_state else name)) for name, label in labels.items()}
        time, n = int64_of(table.column(TIME).combine_chunks()), len(table)
        at_arrival = np.full(n, BEFORE, np.int64) if of_state else watermark
        own = {KEY: keys, NUMBER: int64_of(table.column(NUMBER_OF).combine_chunks()), ROW_TIME: time, UNTIL: time, WATERMARK: at_arrival}
        parts.append(pa.table({**columns, **{name: pa.array(values) for name, values in own.items()}, WAITS: pa.repeat(waits, n)}))
    first_new = int(rows.column(NUMBER_OF)[0].as_py()) if len(rows) else AFTER
    table = pa.concat_tables(parts)
    table = table.take(pa.array(np.argsort(table.column(NUMBER).to_numpy(), kind="stable")))
    return in_order(table, len(known.entry), stage.ties, first_new)


@dataclass(frozen=True)
class Alone:
    """Which tuples of a window may leave it alone in a batch: as many of the oldest as it applies new ones, or those before an instant."""

    by_count: bool
    before: int

    def holds(self, place: Ints, time: Ints, applied: Ints) -> Bools:
        """Whether tuples at these places in the window and of these times may leave alone; ``applied`` tuples may be new."""
        return np.asarray(place < applied if self.by_count else time < self.before, np.bool_)


def alone_in(stage: PositionStage, window: int) -> Alone:
    """Which tuples may leave the window of index ``window`` alone."""
    settings, watermark = stage.settings[window], stage.clock.watermark
    slides_by = None if settings.trigger is None else settings.evict.kind
    age = int(settings.array[kernel.AGE])
    return Alone(slides_by == "count", max(BEFORE + age, watermark) - age if slides_by == "time" else BEFORE)


def needed(stage: PositionStage, stored: pa.Table, codes: Ints, n_new: Ints, arriving: Mapping[str, kernel.Values] | None = None) -> Bools:
    """Mask of the ``stored`` rows that a batch needs: of keys that have new rows, or work by the watermark; shape (n_stored,).

    Of a window with n tuples, the batch needs the leaves that it may evict, and at most 2·log2(n) nodes for the rest.

    Parameters
    ----------
    stored
        All rows of some keys; at least the columns that are no partials.
    codes
        Key index of each row.
    n_new
        Number of the batch's rows of each key; shape (n_keys,).
    arriving
        The greatest values of these rows for each sequence that evicts by a delta, as :func:`.delta_reads.arriving_values` tells.
    """
    mask = pc.not_equal(stored.column(KIND), NODE).to_numpy().copy()
    active = n_new > 0
    for name, windows in stage.state.sequences.items():
        known = Known.of(name, stored, codes, len(n_new))
        active |= (known.entry >= 0) & (known.scalar(DUE) <= stage.clock.watermark)
        ready = int64_of(known.waiting.column(TIME).combine_chunks()) < stage.clock.watermark
        applied = n_new + np.bincount(known.waiting_keys[ready], minlength=len(n_new))
        if name in stage.state.deltas:
            mask[needed_nodes(stage, name, stored, codes, known, (arriving or {})[name])] = True
            continue
        at = _rows_of(stored, name, NODE)
        nodes, key = stored.select([LEVEL, POSITION, FIRST, ABOVE]).take(pa.array(at)), codes[at]
        for window in windows:
            front = known.scalar(scalar_of(stage.pipeline.windows[window].name, FRONT))
            mask[at] |= _makes_up(nodes, alone_in(stage, window), front[key], known.scalar(NEXT)[key], applied[key])
    return np.asarray(mask & active[codes], np.bool_)


def _makes_up(nodes: pa.Table, alone: Alone, front: Ints, stop: Ints, applied: Ints) -> Bools:
    """Whether each of ``nodes`` is one of those that make up its key's window [``front``, ``stop``).

    They are the leaves of tuples that may leave alone, and the greatest nodes that hold none of these.
    """
    level, begin, first, above = (int64_of(nodes.column(name).combine_chunks()) for name in (LEVEL, POSITION, FIRST, ABOVE))
    parent = begin >> (level + 1) << (level + 1)
    leaves_alone = alone.holds(begin - front, first, applied)
    in_parent = valid_of(nodes.column(ABOVE).combine_chunks()) & (parent >= front) & (parent + (np.int64(2) << level) <= stop)
    in_parent &= ~alone.holds(parent - front, above, applied)
    return (begin >= front) & np.where(leaves_alone, level == 0, ~in_parent)
