"""Combines slices of whole keys into windows, and into the rows that the state keeps.

Where all windows are hopping ones of fixed length, all partials are numbers and events are points,
:mod:`windowmill.windowing.kernels.slices` combines them; else :mod:`windowmill.windowing.columnar.slice_partials`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from windowmill.windowing.bounds import check_duration, check_key, check_share, count_ends
from windowmill.windowing.columnar.added_columns import (
    ARRIVAL,
    BATCH,
    CLOSED,
    LEVEL,
    ORDER,
    REACHED,
    REACHING,
    ROW_KEY,
    ROW_NUMBER,
    ROW_TIME,
    ROW_UNTIL,
    ROW_WATERMARK,
    SLICE,
)
from windowmill.windowing.columnar.hashes import with_checksums
from windowmill.windowing.columnar.keyed import Aggregation
from windowmill.windowing.columnar.known_spans import NO_SPAN, EmptyStretches, Spans, bounds_before, spans_before, spans_stored, split_off
from windowmill.windowing.columnar.objects import Objects, StoredObjects
from windowmill.windowing.columnar.results import Advanced, Chunk, gives_json, typed
from windowmill.windowing.columnar.results import result_rows as rows_of
from windowmill.windowing.columnar.rows import as_table, in_order, key_codes, keys_of, plain
from windowmill.windowing.columnar.slice_partials import (
    IN_TIME,
    SlicePartials,
    combine_numbers,
    concatenate,
    marks_of,
    places_of,
    reached_of,
    reached_windows,
    windows_of,
)
from windowmill.windowing.columnar.slices import CHUNK_SLICES, GRID, NodeStage, Revising, Sliced, SliceStage, WindowStage, spans_of
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels import slices as kernel
from windowmill.windowing.kernels.arrays import Rows
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.grid_ranges import empty_windows, grid_windows
from windowmill.windowing.kernels.lift import arenas, condition_column, int64_of, stored
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.slicing.edges import Grid, Numbering, pairs_among
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE


def whole_nodes(stage: WindowStage, wanted: NodeStage, leaves: SlicePartials, own: Bools) -> list[tuple[int, SlicePartials]]:
    """By level, the nodes that this batch completes, and increments for nodes completed before.

    ``leaves`` are the restored slices and nodes and the batch's own slices.
    """
    assert stage.keep_from is not None
    counted = leaves.closed <= wanted.closed_through
    # Late slices join a node once the windows that do not count them, or number their revisions by them, are closed.
    fresh = counted & (own | (leaves.closed > wanted.closed_before))
    first, before, now = (wanted.nodes.number(t) for t in (stage.keep_from, wanted.before, wanted.through))
    nodes = []
    # Nodes that end after ``before`` become complete in this batch; to nodes that end earlier it adds only fresh partials.
    for rows, after, until in ((counted, before, now), (fresh, first, before)):
        level_below = leaves.at(rows)
        number = wanted.nodes.numbers(level_below.starts)
        for level in range(1, wanted.nodes.top + 1):
            number = number >> level << level
            # Skip a node that begins before the needed range or ends after the complete one: the nodes above it do so too.
            inside = (number >= first) & (number + (1 << level) <= until)
            if not inside.any():
                break
            number, level_below = _joined(stage.slices, wanted, number[inside], level_below.at(inside))
            nodes.append((level, level_below.at(number + (1 << level) > after)))
    return nodes


def _joined(stage: SliceStage, wanted: NodeStage, number: Ints, below: SlicePartials) -> tuple[Ints, SlicePartials]:
    """Combine the partials ``below``, sorted by key and ``number`` of their node, into nodes: the number and partial of each."""
    keys = below.keys
    bounds = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]) | (number[1:] != number[:-1]), True])
    firsts = bounds[:-1]
    number = number[firsts]
    ints, floats = kernel.combine_runs(stage.layout.program(), bounds[:-1], bounds[1:], below.ints, below.floats)
    objects = stage.objects.fold(below.objects, bounds)
    never, begun = np.full(len(number), BEFORE, np.int64), np.zeros(len(number), np.int64)
    in_time = np.full(len(number), IN_TIME, np.int64)
    return number, SlicePartials(
        keys[firsts], wanted.nodes.starts(number), never, ints, floats, objects, below.before[firsts], begun, in_time
    )


def revisions_of(
    numbering: Numbering, partials: SlicePartials, offsets: Ints, late: Bools, before: tuple[Ints, Ints], revising: Revising, through: int
) -> tuple[Windows, Ints]:
    """The versions of the windows of a grid that the ``late`` partials of a batch revise, and their numbers.

    A window has a version for each moment at which late rows of it arrived, with what had arrived until then. O(n log n) in pairs of a
    window and such a partial, besides the slices of the windows and the late rows among them, once for each window.

    ``offsets``: key k's partials are ``offsets[k]:offsets[k + 1]``.
    ``late``: mask of the batch's partials that have a moment of arrival; there are some.
    ``before``: ``first`` and ``last`` of :class:`SortedSlices`.
    ``through``: the instant through which windows are shown.
    """
    since = int(partials.arrivals[late].min())
    arrived = kernel.SortedSlices(offsets, partials.starts, partials.reaching, partials.closed, partials.arrivals, *before)
    key, number, slices = kernel.late_windows(
        numbering.grid, arrived, since, revising.lateness, revising.closings[1], revising.after, through
    )
    if len(reaching := np.flatnonzero(late & (partials.reaching == 1))):
        marks = partials.closed[reaching]
        revised = np.maximum(revising.closed_at(marks), revising.after), np.minimum(marks, through)
        reached = reached_windows(numbering, partials, reaching, *revised)
        key, number, slices = (np.concatenate(pair) for pair in zip((key, number, slices), reached, strict=True))
    # Among slices that arrived together, the one into which events reach comes first.
    order = np.lexsort((-partials.reaching[slices], partials.arrivals[slices], number, key))
    key, number, slices = key[order], number[order], slices[order]
    moment = partials.arrivals[slices]
    same = np.append(False, (key[1:] == key[:-1]) & (number[1:] == number[:-1]))[: len(key)]
    first = ~(same & np.append(False, moment[1:] == moment[:-1])[: len(key)])
    key, number, slices, continues = key[first], number[first], slices[first], same[first]
    revision, sequence, lo, hi, member_offsets, members = kernel.versions(numbering.grid, arrived, since, key, number, slices, continues)
    ranges, held = (sequence, lo, hi), (member_offsets, members)
    return Windows.of(key, *numbering.bounds(number), revision=revision, ranges=ranges, members=held, continues=continues), number


@dataclass(frozen=True)
class Combined:
    """The result of combining all slices of some keys."""

    windows: list[pa.Table]  #: Bare result rows; each table has rows of one window of the spec.
    slices: pa.Table | None  #: The batch's slices and nodes for the state, with checksums, grouped by key. Null if the state keeps none.


def combined(stage: WindowStage, parts: Sequence[Sliced]) -> Iterator[Combined]:
    """Combine ``parts``, in their order, into windows and slices for the state; no key is split between results. O(n log n) in slices."""
    if not parts:
        return
    keys, table = stage.slices.keys, pa.concat_tables([part.slices for part in parts]).combine_chunks()
    codes, n_keys = key_codes([table.column(key) for key in keys], table.num_rows)
    # Slices of a key are in the order of the parts that hold them.
    order, offsets = kernel.by_key(codes, n_keys)
    slices = table.drop_columns(list(keys))
    cuts = np.searchsorted(offsets, np.arange(0, len(order), CHUNK_SLICES))
    for first, stop in pairwise(np.unique(np.append(cuts, n_keys)).tolist()):
        chosen, firsts = order[offsets[first] : offsets[stop]], pa.array(order[offsets[first:stop]])
        of_key = {key: table.column(key).combine_chunks().take(firsts) for key in keys}
        yield _combine(stage, of_key, slices.take(pa.array(chosen)), offsets[first : stop + 1] - offsets[first])


def _combine(stage: WindowStage, of_key: Mapping[str, pa.Array], slices: pa.Table, offsets: Ints) -> Combined:
    merged = _merged(stage.slices, of_key, slices, offsets)
    spans = merged.spans
    if stage.slices.known:
        spans, merged = _with_new(stage, merged)
    windows = [bare for number in range(len(stage.grids)) for bare in _windows(stage, number, merged, spans)]
    own, kept = merged.own, None
    if stage.keep_from is not None:
        partials = merged.partials
        if stage.slices.revises:
            # The state has the last edge before a mark, which no window end lies between.
            closed, late = partials.closed.copy(), partials.closed != BEFORE
            closed[late] = stage.slices.edges.slice_starts(closed[late])
            partials = replace(partials, closed=closed)
        stored_rows = [(0, partials.at(own & (partials.starts >= stage.keep_from)))]
        if stage.nodes is not None:
            # No node holds events that reach into its slices.
            begun = partials.reaching == 0
            leaves = (partials, own) if begun.all() else (partials.at(begun), own[begun])
            stored_rows += whole_nodes(stage, stage.nodes, *leaves)
        kept = _kept(stage.slices, merged, stored_rows, spans)
    return Combined(windows, kept)


def advanced(stage: WindowStage, parts: Sequence[Sliced]) -> Iterator[Advanced]:
    """As :func:`combined`, with whole result rows; the last has the counts."""
    none = np.empty(0, np.int64)
    for each in combined(stage, parts):
        yield Advanced((result_rows(stage, bare) for bare in each.windows), each.slices, none, Counts())
    missed = [sum(counts) for counts in zip(*(part.missed for part in parts if part.missed), strict=True)]
    by_window = {name: n for (name, _), n in zip(stage.grids, missed, strict=False) if n}
    counts = Counts(rows_applied=sum(part.rows for part in parts), rows_late=sum(part.late for part in parts), late_missed=by_window)
    yield Advanced((), None, none, counts)


def event_windows(stage: WindowStage, pipeline: Pipeline, rows: pa.Table) -> Iterator[pa.Table]:
    """Result rows of the ``rows`` of a bounded input of interval events, none of which is late.

    No other batch needs slices of them. So an event is lifted once, not for each start of a window that it crosses.
    """
    own, (time, stop) = stage.slices, spans_of(rows)
    keys, codes, n_keys = keys_of([rows], own.keys)
    names = dict.fromkeys([*own.source_columns, *own.ties, *map(condition_column, own.conditions)])
    columns = {name: plain(rows.column(name)) for name in names}
    order, since = np.arange(len(time)), np.full(len(time), BEFORE, np.int64)
    columns |= {ROW_KEY: codes, ROW_NUMBER: order, ROW_TIME: time, ROW_UNTIL: stop, ROW_WATERMARK: since}
    leaves = in_order(pa.table(columns), n_keys, own.ties, 0)
    first, last = np.full(n_keys, AFTER, np.int64), np.full(n_keys, BEFORE, np.int64)
    np.minimum.at(first, leaves.key, leaves.time)
    np.maximum.at(last, leaves.key, leaves.stop)
    lifted = Aggregation(pipeline, {field.name: field.type for field in leaves.table.schema}).over(leaves)
    every = np.ones(len(time), np.bool_)
    for index, (window, (_, grid)) in enumerate(zip(pipeline.windows, stage.grids, strict=True)):
        check_duration(window, int((stop - time).max()))
        if window.fills_gaps:
            check_key(window.name, window.windows_of_event(int((last - first).max())))
        numbering = grid.numbered(first, last) if window.fills_gaps else grid.numbered(leaves.time, leaves.stop)
        found = Rows(leaves.offsets, leaves.time, leaves.stop, order)
        key, number, lo, hi, *members = grid_windows(numbering.grid, found, True, every, since, stage.after, stage.through)
        windows = Windows.of(key, *numbering.bounds(number), ranges=(order, lo, hi), members=tuple(members))
        parts = [windows]
        if window.fills_gaps:
            known, numbers = empty_windows(numbering.grid, first, last, last, first, stage.after, stage.through)
            empty = ~pairs_among(known, numbers, key, number)
            parts.append(Windows.of(known[empty], *numbering.bounds(numbers[empty])))
        for part in parts:
            yield rows_of(Chunk(index, part, lifted.combine(part)[0]), pipeline, keys, stage.schema, own.batch)


@dataclass(frozen=True)
class _WholeSlices:
    """Slices of whole keys; those with equal key, start, reaching, closed, arrival and batch are combined into one."""

    of_key: Mapping[str, pa.Array]  #: Key columns by key index.
    offsets: Ints  #: Key k's slices are ``offsets[k]:offsets[k + 1]``; shape (n_keys + 1,).
    partials: SlicePartials
    own: Bools  #: Mask of the batch's slices; shape (n_slices,).
    table: pa.Table  #: The rows that partials point into.
    columns: StoredObjects  #: Combines the partials that are Python objects.
    spans: Spans  #: The keys' spans before this batch, in the windows that show empty ones.
    #: Ascends in order of arrival of the first row of each of the batch's own slices, if there are late rows; shape (n_slices,).
    orders: Ints
    reached: Ints  #: The start of the last slice that events of each slice are known to reach; shape (n_slices,).

    @cached_property
    def objects(self) -> Objects:
        """The partials that are Python objects, decoded; once for all windows of the spec."""
        return self.columns.decode(self.partials.objects)


def _merged(stage: SliceStage, of_key: Mapping[str, pa.Array], slices: pa.Table, offsets: Ints) -> _WholeSlices:
    layout = stage.layout
    slices, offsets, spans = split_off(stage.known, slices, offsets)
    starts, reaching, closed = int64_of(slices.column(SLICE).combine_chunks()), marks_of(slices, REACHING), marks_of(slices, CLOSED)
    batches, arrivals = int64_of(slices.column(BATCH).combine_chunks()), marks_of(slices, ARRIVAL)
    # Rows in time by batch, late ones by their moment, which is of one batch.
    turns = np.where(arrivals == IN_TIME, batches - AFTER, arrivals)
    if len(moved := kernel.along_axis(offsets, places_of(starts, reaching), closed, turns)):
        slices, starts, closed, turns = slices.take(pa.array(moved)).combine_chunks(), starts[moved], closed[moved], turns[moved]
        reaching, batches, arrivals = reaching[moved], batches[moved], arrivals[moved]
    ints, floats = arenas(layout, slices)
    objects, before = stage.objects.read(slices), spans_before(stage.known, slices)
    orders, reached = marks_of(slices, ORDER), reached_of(slices, starts) if REACHED in slices.column_names else starts
    bounds = kernel.runs(offsets, places_of(starts, reaching), closed, turns)
    if len(bounds) <= len(starts):
        ints, floats = kernel.combine_runs(layout.program(), bounds[:-1], bounds[1:], ints, floats)
        objects = stage.objects.fold(objects, bounds)
        firsts = bounds[:-1]
        # Rows of one moment arrived behind the same span.
        starts, reaching, closed, batches, arrivals, before = (
            each[firsts] for each in (starts, reaching, closed, batches, arrivals, before)
        )
        orders, reached = (fold.reduceat(given, firsts) for fold, given in ((np.minimum, orders), (np.maximum, reached)))
        offsets = np.searchsorted(firsts, offsets).astype(np.int64)
    index = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    partials = SlicePartials(index, starts, closed, ints, floats, objects, before, reaching, arrivals)
    return _WholeSlices(of_key, offsets, partials, batches == stage.batch, slices, stage.objects, spans, orders, reached)


def _with_new(stage: WindowStage, merged: _WholeSlices) -> tuple[Spans, _WholeSlices]:
    """The keys' spans with this batch, and ``merged`` with the spans before each late row."""
    grids, own = stage.known_grids, merged.own
    if LEVEL not in stage.slices.schema.names:  # a node may start where no window is
        # For which windows stored late rows came late, but not too late, their marks do not say.
        stored = ~own & (merged.partials.closed == BEFORE) if stage.slices.revises else ~own
        merged.spans.check(grids, merged.partials, stored)
    if stage.revising is None:
        return merged.spans.counting(grids, merged.partials, own, merged.reached), merged
    closed = stage.revising.closed_at(merged.partials.closed)
    spans, before = merged.spans.arriving(grids, merged.partials, merged.offsets, own, closed, merged.reached, merged.orders)
    return spans, replace(merged, partials=replace(merged.partials, before=before))


def _windows(stage: WindowStage, number: int, merged: _WholeSlices, spans: Spans) -> Iterator[pa.Table]:
    """Bare result rows of one window of the spec, of the rows that came in time; nothing if no window of it is complete."""
    window, grid = stage.grids[number]
    partials, offsets, layout = merged.partials, merged.offsets, stage.slices.layout
    filled = np.flatnonzero(np.diff(offsets))
    bounds = partials.starts[offsets[filled]], partials.starts[offsets[filled + 1] - 1]
    check_share(window, count_ends(grid, *bounds, np.diff(offsets)[filled], after=stage.after, through=stage.through))
    if window in stage.slices.known:
        yield from _with_empty(stage, number, merged, spans)
    elif layout.objects or stage.hopping is None or stage.slices.intervals is not None:
        windows, _ = windows_of(grid.numbered(partials.starts, partials.starts + 1), partials, offsets, stage.after, stage.through)
        if len(windows):
            yield _lowered(stage, number, merged, windows)
    else:
        yield from _hopping(stage, stage.hopping[number], number, merged)
    if stage.revising is not None and window not in stage.slices.known:
        versions, _ = _revised(stage, stage.revising, number, merged, grid.numbered(partials.starts, partials.starts + 1))
        if len(versions):
            yield _lowered(stage, number, merged, versions)


def _with_empty(stage: WindowStage, number: int, merged: _WholeSlices, spans: Spans) -> Iterator[pa.Table]:
    """As :func:`_windows`, with the windows that hold nothing and lie between events of their key."""
    (window, grid), partials = stage.grids[number], merged.partials
    before = merged.spans if stage.continues else None
    filled = EmptyStretches.of(spans, before, stage.slices.known.index(window), stage.after, stage.through)
    filled.check(window, grid, stage.through)
    numbering = grid.numbered(np.append(partials.starts, filled.begin), np.append(partials.starts + 1, filled.stop))
    windows, numbers = windows_of(numbering, partials, merged.offsets, stage.after, stage.through)
    if len(windows):
        yield _lowered(stage, number, merged, windows)
    key, every = filled.windows(numbering, stage.after, stage.through)
    empty = ~pairs_among(key, every, windows.key, numbers)
    if stage.revising is not None:
        versions, of = _revised(stage, stage.revising, number, merged, numbering)
        if len(versions):
            yield _lowered(stage, number, merged, versions)
        begun = versions.revision == 0
        empty &= ~pairs_among(key, every, versions.key[begun], of[begun])
    if empty.any():
        yield _lowered(stage, number, merged, Windows.of(key[empty], *numbering.bounds(every[empty])))


def _hopping(stage: WindowStage, fixed: Grid, number: int, merged: _WholeSlices) -> Iterator[pa.Table]:
    """As :func:`_windows`, of windows of fixed length over numbers alone."""
    layout, partials = stage.slices.layout, merged.partials
    key, ends, ints, floats = kernel.hopping_windows(
        layout.program(),
        merged.offsets,
        partials.starts,
        partials.closed,
        partials.ints,
        partials.floats,
        fixed.size,
        fixed.hop,
        fixed.origin,
        stage.after,
        stage.through,
    )
    if len(key):
        columns = lower(layout, ints, floats, merged.table) | {"revision": pa.repeat(0, len(key))}
        yield _bare(stage, number, merged, key, columns | {"window_end": pa.array(ends)})


def _revised(stage: WindowStage, revising: Revising, number: int, merged: _WholeSlices, numbering: Numbering) -> tuple[Windows, Ints]:
    """The versions of one window of the spec that late rows bring, and their numbers."""
    (window, grid), known = stage.grids[number], stage.slices.known
    partials = merged.partials
    late = merged.own & (partials.arrivals != IN_TIME)
    if not late.any():
        return Windows.none(), np.empty(0, np.int64)
    rows = np.ascontiguousarray(partials.ints[:, stage.slices.layout.program()[0][1]])
    begun, reaching = int((late & (partials.reaching == 0) & (rows > 0)).sum()), partials.starts[late & (partials.reaching == 1)]
    check_share(window, begun * grid.most_ends(min(grid.longest, revising.lateness)) + len(numbering.starting_at(reaching)[0]))
    before = bounds_before(partials.before, known.index(window) if window in known else None)
    return revisions_of(numbering, partials, merged.offsets, late, before, revising, stage.through)


def _lowered(stage: WindowStage, number: int, merged: _WholeSlices, windows: Windows) -> pa.Table:
    """Bare result rows of ``windows`` of one window of the spec."""
    layout = stage.slices.layout
    columns = lower(layout, *combine_numbers(layout, merged.partials.ints, merged.partials.floats, windows), merged.table)
    found = merged.columns.compute(merged.objects, windows) if layout.objects else {}
    specs = {result: spec for held in layout.objects for result, spec in held.results}
    columns |= {name: typed(name, found[name], stage.schema.field(name).type, as_json=gives_json(spec)) for name, spec in specs.items()}
    bounds = {"window_start": windows.start, "window_end": windows.end, "revision": windows.revision}
    return _bare(stage, number, merged, windows.key, columns | {name: pa.array(values) for name, values in bounds.items()})


def _bare(stage: WindowStage, number: int, merged: _WholeSlices, key: Ints, columns: Mapping[str, pa.Array]) -> pa.Table:
    """Bare result rows of these ``columns`` and of the keys with index ``key``."""
    of_keys = {column: values.take(pa.array(key)) for column, values in merged.of_key.items()}
    whole = {**columns, **of_keys, GRID: pa.repeat(number, len(key))}
    return as_table(whole, stage.bare_schema)


def _kept(stage: SliceStage, merged: _WholeSlices, stored_rows: Sequence[tuple[int, SlicePartials]], spans: Spans) -> pa.Table:
    """Slices, nodes and spans with the state's columns, grouped by key; ``stored_rows`` are partials by level."""
    levels = np.repeat([level for level, _ in stored_rows], [len(part.starts) for _, part in stored_rows])
    partials = stored_rows[0][1]
    if len(stored_rows) > 1:
        partials = concatenate([part for _, part in stored_rows])
        order = np.argsort(partials.keys, kind="stable")
        partials, levels = partials.at(order), levels[order]
    n = len(partials.starts)
    fields = stored(stage.layout, partials.ints, partials.floats, merged.table) | stage.objects.write(partials.objects)
    fields |= {SLICE: pa.array(partials.starts), LEVEL: pa.array(levels), REACHING: pa.array(partials.reaching)}
    in_time, closed, arrivals = partials.closed == BEFORE, partials.closed, partials.arrivals
    fields |= {CLOSED: pa.array(closed, mask=in_time), ARRIVAL: pa.array(arrivals, mask=arrivals == IN_TIME)}
    fields[BATCH] = pa.repeat(stage.batch, n)
    fields |= {column: values.take(pa.array(partials.keys)) for column, values in merged.of_key.items()}
    if not stage.known:
        return with_checksums(as_table(fields, stage.schema))
    fields |= spans_stored(stage.known, np.where(in_time[:, None], NO_SPAN * len(stage.known), partials.before))
    rows = as_table(fields, stage.schema)
    span_keys, columns = spans.rows_of(stage.known, merged.spans)
    if not len(span_keys):
        return with_checksums(rows)
    of_keys = {column: values.take(pa.array(span_keys)) for column, values in merged.of_key.items()}
    of_spans = as_table({**columns, **of_keys, BATCH: pa.repeat(stage.batch, len(span_keys))}, stage.schema, fill=True)
    keys = np.append(partials.keys, span_keys)
    order = np.argsort(keys, kind="stable")
    whole = pa.concat_tables([rows, of_spans]).take(pa.array(order)).combine_chunks()
    return with_checksums(whole)


def result_rows(stage: WindowStage, bare: pa.Table) -> pa.Table:
    """Complete the ``bare`` rows of one window to all columns of ``stage.schema``."""
    number, n = bare.column(GRID)[0].as_py(), bare.num_rows
    columns = {field.name: bare.column(field.name) for field in bare.schema} | {"window": pa.repeat(stage.grids[number][0], n)}
    if stage.hopping is not None:
        columns["window_start"] = pa.array(int64_of(bare.column("window_end").combine_chunks()) - stage.hopping[number].size)
    columns = {"revision": pa.repeat(0, n)} | columns
    columns |= {"trigger": pa.nulls(n, pa.int64()), "batch": pa.repeat(stage.slices.batch, n)}
    return as_table(columns, stage.schema)
