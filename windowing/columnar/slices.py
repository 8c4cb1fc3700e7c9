"""Lifts rows into slices and combines slices into windows, over whole columns: an executor's work between Spark's scan, shuffle and sink.

::

    rows ─ lift ─▶ slices ─ pack ─▶ │ shuffle by key │ ─ unpack, merge ─▶ slices of whole keys ─▶ windows
                                                                             └─▶ the batch's own slices, for the state

A *packed* row holds many slices of a key (:mod:`windowmill.windowing.columnar.packing`), so that a shuffle moves and sorts thousands of
rows instead of millions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.axis import Edges, Grid
from windowmill.windowing.bounds import check_share, count_ends
from windowmill.windowing.columnar.checksums import SUM, RowCheck, with_checksums
from windowmill.windowing.columnar.packing import LATE_ROWS, ROWS, Packing, count_slices
from windowmill.windowing.columnar.rows import as_key, key_codes
from windowmill.windowing.kernels.columns import arenas, int64_of, key_offsets, order_key, stored, valid_of
from windowmill.windowing.kernels.combine import Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column, lift_runs
from windowmill.windowing.kernels.lower import lower
from windowmill.windowing.kernels.sliced import NEVER_CLOSED, hopping_windows
from windowmill.windowing.kernels.slices import along_axis, by_key, combine_runs, runs, slice_starts
from windowmill.windowing.nodes import Nodes
from windowmill.windowing.slicing.leaves import runs as equal_runs

#: Columns of a row to lift, beside those of the source: its event time; the instant through which windows were closed at its arrival, or
#: null; whether it is late.
TIME, CLOSED, LATE = "_time", "_closed", "_late"
#: Columns of a slice beside the keys, ``CLOSED`` and the partials: its start, and its batch.
SLICE, BATCH = "_slice", "_batch"
#: Level of a node, 0 for a slice; only where nodes are stored.
LEVEL = "_level"

#: Column of a bare result row: the index of its grid in the stage. The other columns are keys, window end and aggregates.
GRID = "_ grid"

#: Number of rows lifted together; many, so that the rows of a slice meet. They take about 150 bytes each in memory.
CHUNK_ROWS = 1_000_000
#: Number of slices gathered before windows are computed; large enough to amortise a call's fixed cost.
CHUNK_SLICES = 200_000
#: Greatest number of rows, or slices, in an output Arrow batch.
BATCH_ROWS = 200_000


@dataclass(frozen=True)
class SliceStage:
    """Settings for lifting a pipeline's rows into slices; small and picklable.

    Attributes
    ----------
    schema
        Columns of a slice: the keys, ``SLICE``, ``LEVEL`` if nodes are stored, ``CLOSED``, ``BATCH``, the partials.
    check
        Verifies slices read from the state; none if there is no state.
    """

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    layout: Layout
    edges: Edges
    batch: int
    schema: pa.Schema
    check: RowCheck | None = None

    @cached_property
    def packing(self) -> Packing:
        """Packs slices for the shuffle."""
        return Packing(self.keys, self.schema)

    @cached_property
    def storing(self) -> Packing:
        """Lists slices for the state, each with its checksum."""
        return Packing(self.keys, self.schema.append(pa.field(SUM, pa.int64())))


@dataclass(frozen=True)
class NodeStage:
    """Settings for the nodes that a batch stores; small and picklable.

    Attributes
    ----------
    before, through
        Instants through which windows had been emitted before this batch, and are with it.
    """

    nodes: Nodes
    before: int
    through: int


@dataclass(frozen=True)
class WindowStage:
    """Settings for combining slices into result rows; small and picklable.

    Attributes
    ----------
    after, through
        The batch emits the windows that end in (after, through].
    keep_from
        The state keeps the batch's slices that start at or after this instant; null for none.
    schema
        Columns of a result row.
    nodes
        Nodes that the state keeps beside slices; null for none.
    """

    slices: SliceStage
    grids: tuple[tuple[str, Grid], ...]
    after: int
    through: int
    keep_from: int | None
    schema: pa.Schema
    nodes: NodeStage | None = None

    @cached_property
    def bare_schema(self) -> pa.Schema:
        """Columns of a result row without those that its grid implies or that are constant."""
        implied = ("window", "window_start", "trigger", "revision", "batch")
        return pa.schema([(GRID, pa.int32()), *(field for field in self.schema if field.name not in implied)])


@dataclass(frozen=True)
class Combined:
    """The result of combining all packed slices of some keys.

    Attributes
    ----------
    windows
        Bare result rows, one table per window of the spec.
    slices, offsets
        The batch's slices and nodes for the state, with checksums, grouped by key; key k's are ``offsets[k]:offsets[k + 1]``. None if the
        state keeps none.
    rows, late_rows, n_slices
        Numbers of lifted rows, of late rows among them, and of the batch's slices and new nodes.
    """

    windows: list[pa.Table]
    slices: pa.Table | None
    offsets: Ints
    rows: int
    late_rows: int
    n_slices: int


def lifted(stage: SliceStage, batches: Iterable[pa.RecordBatch], first_place: int) -> Iterator[pa.Table]:
    """Lift rows into packed slices; ``first_place`` ranks them among those of other callers. O(n log n) in rows."""
    for place, table in enumerate(_chunks(batches), first_place):
        late = pc.sum(table.column(LATE)).as_py() if LATE in table.column_names else 0
        slices, offsets = _lift(stage, table)
        counts = int64_of(slices.column(stage.layout.fields[0].name).combine_chunks())
        yield stage.packing.pack(slices, offsets, place, counts, late)


def packed(stage: SliceStage, batches: Iterable[pa.RecordBatch], first_place: int) -> Iterator[pa.Table]:
    """Verify and pack slices read from the state; raises ``StateCorruptError`` if one differs from what was stored."""
    for place, table in enumerate(_chunks(batches), first_place):
        if stage.check is not None and SUM in table.column_names:
            stage.check.verify(table)
        codes, n_keys = key_codes([table.column(key) for key in stage.keys], table.num_rows)
        order, offsets = by_key(codes, n_keys)
        yield stage.packing.pack(table.select(stage.schema.names).take(pa.array(order)), offsets, place, None, 0)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)


def _lift(stage: SliceStage, rows: pa.Table) -> tuple[pa.Table, Ints]:
    """Lift ``rows`` into slices in (key, start, closed) order; key k's are ``offsets[k]:offsets[k + 1]``."""
    if any(atom.ordered for atom in stage.layout.atoms):
        rows = rows.take(pa.array(_by_time(rows, stage.ties)))
    codes, n_keys = key_codes([rows.column(key) for key in stage.keys], rows.num_rows)
    sequences = np.array(stage.edges.sequences, np.int64).reshape(-1, 2)
    starts = slice_starts(int64_of(rows.column(TIME).combine_chunks()), sequences[:, 0].copy(), sequences[:, 1].copy())
    closed = _closed_of(rows)
    order, offsets = by_key(codes, n_keys)
    starts, closed = starts[order], closed[order]
    if len(moved := along_axis(offsets, starts, closed, closed)):
        order, starts, closed = order[moved], starts[moved], closed[moved]
    ordered = rows.select(_lifted_columns(stage)).take(pa.array(order)).combine_chunks()
    bounds = runs(offsets, starts, closed, closed)
    ints, floats = lift_runs(stage.layout.lifting, ordered, bounds)
    first = pa.array(order[bounds[:-1]])
    columns: dict[str, pa.Array] = {key: as_key(rows.column(key).combine_chunks().take(first)) for key in stage.keys}
    columns |= {SLICE: pa.array(starts[bounds[:-1]]), CLOSED: _nulled(closed[bounds[:-1]]), BATCH: pa.repeat(stage.batch, len(bounds) - 1)}
    columns[LEVEL] = pa.repeat(0, len(bounds) - 1)
    columns |= stored(stage.layout, ints, floats, ordered, time=TIME, ties=stage.ties)
    table = pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)
    return table, np.searchsorted(bounds[:-1], offsets).astype(np.int64)


def _lifted_columns(stage: SliceStage) -> list[str]:
    """Columns that the partials read; at least one, because a table without columns has no number of rows."""
    atoms = stage.layout.atoms
    names = [name for atom in atoms for name in atom.columns] + [condition_column(atom.where) for atom in atoms if atom.where]
    return list(dict.fromkeys([*names, *((TIME, *stage.ties) if any(atom.ordered for atom in atoms) else ())])) or [TIME]


def _by_time(rows: pa.Table, ties: Sequence[str]) -> Ints:
    """Indices of ``rows`` in (time, tie_break, arrival) order, nulls first."""
    order = np.arange(rows.num_rows)
    for tie in reversed(ties):
        column = rows.column(tie).combine_chunks()
        for ranks in (order_key(column), valid_of(column)):
            order = order[np.argsort(ranks[order], kind="stable")]
    return order[np.argsort(int64_of(rows.column(TIME).combine_chunks())[order], kind="stable")]


def combined(stage: WindowStage, batches: Iterable[pa.RecordBatch]) -> Iterator[Combined]:
    """Combine packed slices, sorted by key and ``PLACE``, into windows and slices for the state; no key is split between results."""
    for table in _whole_keys(batches, stage.slices):
        yield _combine(stage, table)


def _combine(stage: WindowStage, table: pa.Table) -> Combined:
    keys, layout = stage.slices.keys, stage.slices.layout
    slices, lengths = stage.slices.packing.unpack(table)
    rows_before = np.append(0, np.cumsum(lengths)).astype(np.int64)
    first_of_key = key_offsets(table, keys)
    offsets = rows_before[first_of_key]
    starts, closed, batches = (int64_of(slices.column(SLICE).chunk(0)), _closed_of(slices), int64_of(slices.column(BATCH).chunk(0)))
    if len(moved := along_axis(offsets, starts, closed, batches)):
        slices, starts, closed, batches = slices.take(pa.array(moved)).combine_chunks(), starts[moved], closed[moved], batches[moved]
    ints, floats = arenas(layout, slices)
    bounds = runs(offsets, starts, closed, batches)
    if len(bounds) <= len(starts):
        ints, floats = combine_runs(layout.program(), bounds, ints, floats)
        firsts = bounds[:-1]
        starts, closed, batches = starts[firsts], closed[firsts], batches[firsts]
        offsets = np.searchsorted(firsts, offsets).astype(np.int64)
    of_key = {column: table.column(column).combine_chunks().take(pa.array(first_of_key[:-1])) for column in keys}
    windows = []
    filled = np.flatnonzero(np.diff(offsets))
    first, last = starts[offsets[filled]], starts[offsets[filled + 1] - 1]
    for number, (name, grid) in enumerate(stage.grids):
        span = {"size": grid.size, "hop": grid.hop, "after": stage.after, "through": stage.through}
        check_share(name, count_ends(first, last, np.diff(offsets)[filled], **span))
        key, ends, out_ints, out_floats = hopping_windows(
            layout.program(), offsets, starts, closed, ints, floats, grid.size, grid.hop, grid.origin, stage.after, stage.through
        )
        if len(key):
            columns = {column: values.take(pa.array(key)) for column, values in of_key.items()}
            columns |= lower(layout, out_ints, out_floats, slices)
            columns |= {GRID: pa.repeat(number, len(ends)), "window_end": pa.array(ends)}
            windows.append(pa.table([columns[field.name].cast(field.type) for field in stage.bare_schema], schema=stage.bare_schema))
    own = batches == stage.slices.batch
    kept, kept_offsets, n_nodes = None, np.zeros(1, np.int64), 0
    if stage.keep_from is not None:
        chosen = own & (starts >= stage.keep_from)
        leaves = _Partials(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), starts, closed, ints, floats)
        stored_rows = [(0, leaves.at(chosen))]
        if stage.nodes is not None:
            stored_rows += _whole_nodes(stage, stage.nodes, leaves, own)
        kept, kept_offsets = _kept(stage.slices, of_key, slices, stored_rows)
        n_nodes = sum(len(nodes.starts) for _, nodes in stored_rows[1:])
    rows, late_rows = (pc.sum(table.column(name)).as_py() for name in (ROWS, LATE_ROWS))
    return Combined(windows, kept, kept_offsets, rows, late_rows, int(own.sum()) + n_nodes)


@dataclass(frozen=True)
class _Partials:
    """Partials sorted by key index and start; one element or row per partial."""

    keys: Ints
    starts: Ints
    closed: Ints
    ints: Ints
    floats: Floats

    def at(self, chosen: npt.NDArray[np.bool_]) -> _Partials:
        return _Partials(self.keys[chosen], self.starts[chosen], self.closed[chosen], self.ints[chosen], self.floats[chosen])


def _whole_nodes(stage: WindowStage, wanted: NodeStage, leaves: _Partials, own: npt.NDArray[np.bool_]) -> list[tuple[int, _Partials]]:
    """By level, the nodes that this batch completes, and increments for nodes completed before.

    ``leaves`` are the restored slices and nodes and the batch's own slices.
    """
    assert stage.keep_from is not None
    counted = leaves.closed <= wanted.through
    # Late slices join a node once the windows that do not count them have ended.
    fresh = counted & (own | (leaves.closed > wanted.before))
    first, before, now = (wanted.nodes.number(t) for t in (stage.keep_from, wanted.before, wanted.through))
    nodes = []
    for rows, whole, until in ((counted, before, now), (fresh, None, before)):
        level_below = leaves.at(rows)
        number = wanted.nodes.numbers(level_below.starts)
        for level in range(1, wanted.nodes.top + 1):
            number = number >> level << level
            # Skip a node that begins before the needed range or ends after the complete one: the nodes above it do so too.
            inside = (number >= first) & (number + (1 << level) <= until)
            number, level_below = number[inside], level_below.at(inside)
            if not len(number):
                break
            keys = level_below.keys
            bounds = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (number[1:] != number[:-1]), True])
            number = number[bounds[:-1]]
            ints, floats = combine_runs(stage.slices.layout.program(), bounds, level_below.ints, level_below.floats)
            never = np.full(len(number), NEVER_CLOSED, np.int64)
            level_below = _Partials(keys[bounds[:-1]], wanted.nodes.starts(number), never, ints, floats)
            now_whole = np.ones(len(number), np.bool_) if whole is None else number + (1 << level) > whole
            nodes.append((level, level_below.at(now_whole)))
    return nodes


def _kept(
    stage: SliceStage, of_key: Mapping[str, pa.Array], slices: pa.Table, stored_rows: Sequence[tuple[int, _Partials]]
) -> tuple[pa.Table, Ints]:
    """Slices and nodes with the state's columns, grouped by key, and each key's offset; ``of_key`` holds key columns by key index."""
    parts = [partials for _, partials in stored_rows]
    keys, starts, closed = (np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "starts", "closed"))
    ints, floats = np.concatenate([part.ints for part in parts]), np.concatenate([part.floats for part in parts])
    levels = np.repeat([level for level, _ in stored_rows], [len(part.starts) for part in parts])
    if len(parts) > 1:
        order = np.argsort(keys, kind="stable")
        keys, starts, closed, ints, floats, levels = (column[order] for column in (keys, starts, closed, ints, floats, levels))
    fields = stored(stage.layout, ints, floats, slices)
    fields |= {SLICE: pa.array(starts), LEVEL: pa.array(levels), CLOSED: _nulled(closed), BATCH: pa.repeat(stage.batch, len(starts))}
    fields |= {column: values.take(pa.array(keys)) for column, values in of_key.items()}
    rows = pa.table([fields[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)
    return with_checksums(rows), equal_runs(keys)


def result_rows(stage: WindowStage, bare: pa.Table) -> pa.Table:
    """Complete the ``bare`` rows of one window to all columns of ``stage.schema``."""
    name, grid = stage.grids[bare.column(GRID)[0].as_py()]
    n, ends = bare.num_rows, int64_of(bare.column("window_end").combine_chunks())
    columns = {field.name: bare.column(field.name) for field in bare.schema}
    columns |= {"window": pa.repeat(name, n), "window_start": pa.array(ends - grid.size)}
    columns |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.repeat(0, n), "batch": pa.repeat(stage.slices.batch, n)}
    return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)


def _whole_keys(batches: Iterable[pa.RecordBatch], stage: SliceStage) -> Iterator[pa.Table]:
    """Gather packed slices into tables that never split a key."""
    waiting: list[pa.RecordBatch] = []
    gathered = 0
    for batch in batches:
        waiting.append(batch)
        gathered += count_slices(batch)
        if gathered >= CHUNK_SLICES and stage.keys:
            table = pa.Table.from_batches(waiting)
            cut = int(key_offsets(table, stage.keys)[-2])
            if cut:
                yield table.slice(0, cut)
                waiting = table.slice(cut).to_batches()
            gathered = sum(map(count_slices, waiting))
    if waiting and (table := pa.Table.from_batches(waiting)).num_rows:
        yield table


def _closed_of(table: pa.Table) -> Ints:
    if CLOSED not in table.column_names:
        return np.full(table.num_rows, NEVER_CLOSED, np.int64)
    return np.array(pc.fill_null(table.column(CLOSED).combine_chunks(), int(NEVER_CLOSED)).to_numpy(zero_copy_only=False), np.int64)


def _nulled(closed: Ints) -> pa.Array:
    return pa.array(closed, mask=closed == NEVER_CLOSED)
