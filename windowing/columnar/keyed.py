"""The windows of a pipeline over the live rows of some keys: restored from a log of the state, advanced by new rows.

::

    kind  holds                                          identified by; the last entry counts
    key   the state of each window, and the due watermark    key
    row   a live row, and how each window holds it           number
    gone  nothing: the row is no longer live                 number

A batch appends only its changes: rows added, rows removed, keys changed. A reader obtains the state after any batch by ignoring the
entries of later ones.

Keys are independent, so any subset of them can be processed alone, on any machine. :class:`Aggregation` computes the aggregates, also of
the events of :mod:`.grid_windows`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.catalogue import AggregateSpec
from windowmill.windowing.columnar.added_columns import (
    BATCH,
    DUE,
    KIND,
    NUMBER_OF,
    ROW_KEY,
    ROW_NUMBER,
    ROW_TIME,
    ROW_UNTIL,
    ROW_WATERMARK,
    TIME,
    UNTIL_OF,
    WATERMARK_OF,
)
from windowmill.windowing.columnar.hashes import CHECKSUM, with_checksums
from windowmill.windowing.columnar.objects import ObjectColumn
from windowmill.windowing.columnar.results import Advanced, Chunk, Column, result_rows
from windowmill.windowing.columnar.rows import Keys, as_table, in_order, kept, plain, with_keys
from windowmill.windowing.columnar.slice_partials import combine_numbers
from windowmill.windowing.counts import Counts
from windowmill.windowing.errors import SpecError, StateError
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column, float64_of, int64_of, lift, valid_of
from windowmill.windowing.kernels.recipes import lower
from windowmill.windowing.kernels.two_stacks import clipped_means, flips_of
from windowmill.windowing.layouts import live_columns
from windowmill.windowing.slicing.leaves import BatchEffect, Leaves, Windows
from windowmill.windowing.slicing.slicers import slicer_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import AFTER, BEFORE, Clock

#: For each column of live rows that is not the source's, the log's column.
_OWN = {ROW_NUMBER: NUMBER_OF, ROW_TIME: TIME, ROW_UNTIL: UNTIL_OF, ROW_WATERMARK: WATERMARK_OF}
ROW, GONE, KEY_ENTRY = "row", "gone", "key"
#: Prefix of the label of a source's column, if the table holds other rows, too.
LIVE_PREFIX = "_row__"
#: Number of leaves from which each window gets a thread; kernels release the interpreter's lock.
_THREAD_LEAVES = 50_000
_T = TypeVar("_T")


@dataclass(frozen=True)
class StoredKeys:
    """State of some keys as read from the log: the tables of :meth:`KeyedWindows.snapshot`, and the keys' due watermarks."""

    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    due: Ints = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class LogTableOfWindow:
    """One table of a window's state: of its keys, or of the rows that it holds in one role."""

    #: Name of the window, and of the table among the window's.
    window: str
    name: str
    place: str  #: Name of the table in a snapshot.
    held: str  #: Boolean column of the log that marks the table's rows; empty for a table of keys.
    columns: Mapping[str, str]  #: The log's column for each column of the table but ``number``.


class StateLog:
    """The log of one pipeline, whose source has columns of the Arrow ``types``, and whose spec has these ``conditions``.

    ``shared``: whether other windows keep their state in the same table. Keys then have their names in the source, as there, and the
    columns of rows a prefix, so that none has the name of a partial.

    Its attributes:

    - ``keys``, ``live``, ``conditions``: the log's column for each key column, for each column of the source that live rows keep, and for
      each condition column of live rows.
    - ``schema``: schema of an entry.
    - ``tables``: tables of the windows' state, in order of the windows.
    """

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType], conditions: Sequence[str], *, shared: bool = False) -> None:
        self.keys = {name: name if shared else label_of(name) for name in pipeline.keys}
        prefix = LIVE_PREFIX if shared else ""
        self.live = {name: self.keys.get(name, f"{prefix}{label_of(name)}") for name in live_columns(pipeline, types)}
        # Labels do not depend on the order of conditions in the spec; a single condition needs no digest.
        labels = (
            ["_where_0"] if len(conditions) == 1 else [f"_where_{hashlib.sha256(each.encode()).hexdigest()[:12]}" for each in conditions]
        )
        self.conditions = {condition_column(text): label for text, label in zip(conditions, labels, strict=True)}
        fields = [
            *((label, types[name]) for name, label in self.keys.items()),
            (KIND, pa.string()),
            *((name, pa.int64()) for name in (BATCH, DUE, *_OWN.values())),
        ]
        fields += [(label, types[name]) for name, label in self.live.items() if name not in self.keys]
        fields += [(label, pa.bool_()) for label in self.conditions.values()]
        self.tables: list[LogTableOfWindow] = []
        for index, window in enumerate(pipeline.windows):
            for name, table in slicer_of(window, pipeline).snapshot().items():
                held = "" if name == "keys" else f"_{window.name}__{name}"
                columns = {
                    column: f"{held or f'_{window.name}'}__{column}" for column in table.column_names if not held or column != "number"
                }
                self.tables.append(LogTableOfWindow(window.name, name, f"window {index} {name}", held, columns))
                fields += [(held, pa.bool_())] if held else []
                fields += [(label, table.schema.field(column).type) for column, label in columns.items()]
        self.schema = pa.schema([*fields, CHECKSUM])
        check_names(pipeline, self.schema)

    def columns_of_fresh(self) -> list[tuple[str, str]]:
        """(source column, log column) pairs that a fresh row fills from the source; keys come first."""
        return list((self.keys | self.live).items())

    def key_columns(self, entries: pa.Table) -> dict[str, pa.Array]:
        return {name: plain(entries.column(label)) for name, label in self.keys.items()}

    def rows(self, entries: pa.Table, key: Ints) -> pa.Table:
        """Convert ``entries`` of rows, in order of arrival, to live rows; ``key`` holds the indices of their keys."""
        live = {name: plain(entries.column(label)) for name, label in self.live.items()}
        live |= {name: plain(entries.column(label)) for name, label in self.conditions.items()}
        return pa.table({**live, ROW_KEY: key, **{name: plain(entries.column(label)) for name, label in _OWN.items()}})

    @property
    def fresh_schema(self) -> pa.Schema:
        """Columns of the schema that fresh rows fill, without ``KIND``."""
        filled = {*self.keys.values(), *self.live.values(), *self.conditions.values(), *_OWN.values()}
        return pa.schema([field for field in self.schema if field.name in filled])

    def read(self, entries: pa.Table) -> StoredKeys:
        """The state that ``entries`` describe: all entries of some keys, in any order. O(n log n) in entries."""
        if not entries.num_rows:
            return StoredKeys()
        keys = Keys(pa.table({name: column[:0] for name, column in self.key_columns(entries).items()}))
        key = keys.learn(self.key_columns(entries), entries.num_rows)
        kind, batch = entries.column(KIND), entries.column(BATCH).to_numpy()
        rows = _latest(np.flatnonzero(_equal(kind, ROW) | _equal(kind, GONE)), entries.column(NUMBER_OF).to_numpy(), batch)
        rows = rows[_equal(kind, ROW)[rows]]
        marks = _latest(np.flatnonzero(_equal(kind, KEY_ENTRY)), key, batch)
        if len(marks) < len(keys):
            raise StateError(
                f"state: {len(keys) - len(marks)} of {len(keys)} keys have rows, but no entry of their own; rebuild it from the source"
            )
        of_rows, of_keys = entries.take(pa.array(rows)), entries.take(pa.array(marks))
        tables = {"rows": self.rows(of_rows, key[rows]), "keys": keys.table}
        for table in self.tables:
            entries = of_rows.filter(of_rows.column(table.held)) if table.held else of_keys
            columns = {column: entries.column(label).combine_chunks() for column, label in table.columns.items()}
            tables[table.place] = pa.table(columns | ({"number": plain(entries.column(NUMBER_OF))} if table.held else {}))
        return StoredKeys(tables, of_keys.column(DUE).to_numpy())

    def changes(self, before: StoredKeys, after: Mapping[str, pa.Table], due: Ints, batch: int) -> pa.Table:
        """The entries that turn the state ``before`` into ``after``, with the columns of ``schema``; O(n log n) in live rows.

        ``after``: tables of :meth:`KeyedWindows.snapshot`; its keys begin with those of ``before``.
        ``due``: for each key of ``after``, the watermark from which it has work.
        """
        rows, old = after["rows"], before.tables.get("rows")
        parts = [self._key_entries(before, after, due, batch)]
        held = self._held(after, rows.column(ROW_NUMBER).to_numpy())
        changed = np.ones(rows.num_rows, np.bool_)
        if old is not None:
            was = self._held(before.tables, old.column(ROW_NUMBER).to_numpy())
            index, known = _find(old.column(ROW_NUMBER).to_numpy(), rows.column(ROW_NUMBER).to_numpy())
            changed = ~known
            for label, column in held.items():
                changed[known] |= _differ(column.filter(pa.array(known)), was[label].take(pa.array(index[known])))
            gone = np.flatnonzero(~_find(rows.column(ROW_NUMBER).to_numpy(), old.column(ROW_NUMBER).to_numpy())[1])
            going = old.take(pa.array(gone))
            parts.append(self._entries(GONE, batch, self._cells(after, going.column(ROW_KEY)) | {NUMBER_OF: going.column(ROW_NUMBER)}))
        chosen = pa.array(np.flatnonzero(changed))
        kept = rows.take(chosen)
        cells = {label: kept.column(name) for name, label in (*self.live.items(), *self.conditions.items(), *_OWN.items())}
        cells |= {label: column.take(chosen) for label, column in held.items()}
        parts.append(self._entries(ROW, batch, cells | self._cells(after, kept.column(ROW_KEY))))
        return with_checksums(pa.concat_tables(parts))

    def _key_entries(self, before: StoredKeys, after: Mapping[str, pa.Table], due: Ints, batch: int) -> pa.Table:
        cells: dict[str, pa.Array] = {DUE: pa.array(due)}
        changed = np.ones(len(due), np.bool_)
        n_before = len(before.due)
        changed[:n_before] = due[:n_before] != before.due
        for table in self.tables:
            for column, label in () if table.held else table.columns.items():
                cells[label] = after[table.place].column(column).combine_chunks()
                if n_before:
                    changed[:n_before] |= _differ(cells[label][:n_before], before.tables[table.place].column(column).combine_chunks())
        chosen = pa.array(np.flatnonzero(changed))
        return self._entries(KEY_ENTRY, batch, {label: column.take(chosen) for label, column in cells.items()} | self._cells(after, chosen))

    def _held(self, tables: Mapping[str, pa.Table], numbers: Ints) -> dict[str, pa.Array]:
        """The log's columns on how windows hold the rows with these ``numbers``."""
        columns: dict[str, pa.Array] = {}
        for table in self.tables:
            if table.held:
                holding = tables[table.place]
                at, known = _find(holding.column("number").to_numpy(), numbers)
                columns[table.held] = pa.array(known)
                index = pa.array(at, mask=~known)
                columns |= {label: holding.column(column).combine_chunks().take(index) for column, label in table.columns.items()}
        return columns

    def _cells(self, after: Mapping[str, pa.Table], key: pa.ChunkedArray | pa.Array) -> dict[str, pa.Array]:
        return {label: after["keys"].column(name).combine_chunks().take(plain(key)) for name, label in self.keys.items()}

    def _entries(self, kind: str, batch: int, cells: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
        n = len(next(iter(cells.values()))) if cells else 0
        return as_table({**cells, KIND: pa.repeat(kind, n), BATCH: pa.repeat(batch, n)}, self.schema, fill=True)


def check_names(pipeline: Pipeline, schema: pa.Schema) -> None:
    """Raise ``SpecError`` if two columns of the state have one name but for its case, as Spark has it."""
    twice = next((name for name, times in Counter(name.lower() for name in schema.names).items() if times > 1), None)
    if twice is not None:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: two columns of the state would be named {twice!r}; rename a window, or a column in the source"
        )


def label_of(name: str) -> str:
    """The log's name for a source column: valid for any Parquet reader, and without the leading underscore of our own columns.

    It depends only on ``name``: a column that is added later must not rename stored ones.

    >>> label_of("price"), label_of("_id")
    ('price', 'id_6641c530')
    """
    label = re.sub(r"\W", "_", name).lstrip("_")
    return name if label == name else f"{label or 'column'}_{crc32(name.encode()):08x}"


def _equal(column: pa.ChunkedArray, value: str) -> Bools:
    return np.asarray(pc.equal(column, value).to_numpy(), np.bool_)


def _latest(entries: Ints, by: Ints, batch: Ints) -> Ints:
    """For each value of ``by``, ascending, the index of its entry of the latest batch, among the indices ``entries``."""
    if not len(entries):
        return entries
    order = entries[np.argsort(by[entries])]  # numpy sorts by one column several times faster than by two
    same = by[order][1:] == by[order][:-1]
    several = np.append(same, False) | np.append(False, same)
    order[several] = order[several][np.lexsort((batch[order[several]], by[order[several]]))]
    return np.asarray(order[~np.append(same, False)], np.int64)


def _find(among: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Index of each of ``wanted`` in ``among``, whose numbers are distinct, and whether it is there; O((n + m) log n)."""
    if not len(among):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    order = np.argsort(among)
    rank = np.minimum(np.searchsorted(among[order], wanted), len(among) - 1)
    return order[rank], among[order][rank] == wanted


def _differ(new: pa.Array, old: pa.Array) -> Bools:
    """Mask of the rows in which two columns of equal length differ; nulls are equal, floats are compared bitwise."""
    if pa.types.is_nested(new.type):
        return np.array([a != b for a, b in zip(new.to_pylist(), old.to_pylist(), strict=True)], np.bool_)
    if pa.types.is_floating(new.type):
        new, old = (pa.array(column.to_numpy(zero_copy_only=False).view(np.int64)) for column in (new, old))
    unequal = pc.fill_null(pc.not_equal(new, old), False)
    return np.asarray(pc.or_(unequal, pc.xor(new.is_valid(), old.is_valid())).to_numpy(zero_copy_only=False), np.bool_)


class Aggregation:
    """The aggregates of a pipeline over leaves that are rows: numeric partials by the kernels, Python objects one by one."""

    def __init__(self, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> None:
        aggregates = pipeline.aggregates
        self.names = list(aggregates)
        self.layout = Layout.over_rows(aggregates, types, f"pipeline {pipeline.pipeline}: aggregates")
        self.clipped = {name: spec for name, spec in aggregates.items() if spec.declaration.clipped}
        objects = {name: spec for name, spec in aggregates.items() if spec.declaration.partial == "objects"}
        self.objects = {name: ObjectColumn(spec, [types[column] for column in spec.columns]) for name, spec in objects.items()}

    def over(self, leaves: Leaves) -> LeafPartials:
        """Lift ``leaves``, once for all windows of a batch; O(n) in leaves."""
        objects = {name: column.lift(leaves) for name, column in self.objects.items()}
        return LeafPartials(self, leaves, *lift(self.layout, leaves.table), objects)


@dataclass(frozen=True)
class LeafPartials:
    """Leaves with their partials."""

    aggregation: Aggregation
    leaves: Leaves
    ints: Ints
    floats: Floats
    objects: Mapping[str, Sequence[Any]]

    def combine(self, windows: Windows) -> tuple[dict[str, Column], Ints]:
        """Compute all aggregates of each window; also returns the flips of :func:`~windowmill.windowing.kernels.two_stacks.flips_of`."""
        aggregation, layout = self.aggregation, self.aggregation.layout
        found: dict[str, Column] = dict(lower(layout, *combine_numbers(layout, self.ints, self.floats, windows), self.leaves.table))
        found |= {name: self._clipped(spec, windows) for name, spec in aggregation.clipped.items()}
        found |= {name: column.compute(self.objects[name], windows) for name, column in aggregation.objects.items()}
        flips = flips_of(windows.group_offsets, windows.lo, windows.hi, windows.middles)
        return {name: found[name] for name in aggregation.names}, flips

    def _clipped(self, spec: AggregateSpec, windows: Windows) -> pa.Array:
        table, leaves = self.leaves.table, self.leaves
        column = table.column(spec.columns[0]).combine_chunks()
        counted: Bools = valid_of(column)
        if spec.where is not None:
            counted = counted & (int64_of(table.column(condition_column(spec.where)).combine_chunks()) != 0)
        means, missing = clipped_means(
            float64_of(column),
            counted,
            leaves.time,
            leaves.stop,
            windows.start,
            windows.end,
            windows.sequence,
            windows.lo,
            windows.hi,
            windows.member_offsets,
            windows.members,
        )
        return pa.array(means, mask=missing)


@dataclass(frozen=True)
class Step:
    """The effect of new rows or of a later watermark."""

    chunks: list[Chunk]  #: Complete windows with their aggregates.
    refused: Ints  #: Numbers of the new rows that no window took.
    due: Ints  #: For each key, the watermark from which it has work even if none of its rows arrive; ``AFTER`` for never.
    missed: Mapping[str, int]  #: By window name, the number of new rows that came too late for a window that holds them.


class KeyedWindows:
    """Live rows, and the state of each window and key.

    :meth:`snapshot` returns all of it as tables; a new object continues from them after :meth:`restore`.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._slicers = [slicer_of(window, pipeline) for window in pipeline.windows]
        self._rows: pa.Table | None = None
        self._aggregation: Aggregation | None = None
        self.keys: Keys | None = None

    def learn(self, columns: Mapping[str, pa.Array], n_rows: int) -> Ints:
        """Index of each row's key, int64, shape (n_rows,); adds new keys. ``columns`` are the key columns of the rows, by name."""
        if self.keys is None:
            self.keys = Keys(pa.table({name: column[:0] for name, column in columns.items()}))
        return self.keys.learn(columns, n_rows)

    def advance(self, fresh: pa.Table | None, first_new: int, clock: Clock) -> Step:
        """Add ``fresh`` rows and return the windows that are complete at ``clock``; O(n log n) in live rows.

        ``fresh``: live columns, conditions and the own columns of :mod:`.rows`, in order of arrival; their keys are known from
            :meth:`learn`.
        ``first_new``: smallest number of a fresh row; all older rows have smaller ones.
        """
        if fresh is not None:
            # The state keeps a key column once, as a key; an aggregate over it must not depend on whether a row came from there.
            fresh = with_keys(fresh, self._pipeline.keys)
            self._rows = fresh if self._rows is None else pa.concat_tables([self._rows, fresh])
        if self._rows is None or self.keys is None:
            return Step([], np.empty(0, np.int64), np.empty(0, np.int64), {})
        if self._aggregation is None:
            self._aggregation = Aggregation(self._pipeline, {field.name: field.type for field in self._rows.schema})
        leaves = in_order(self._rows, len(self.keys), self._pipeline.time.tie_break, first_new)
        lifted = self._aggregation.over(leaves)
        live, counted, refused = (np.zeros(len(leaves), np.bool_) for _ in range(3))
        due = np.full(leaves.n_keys, AFTER, np.int64)
        complete: list[Chunk] = []
        missed: dict[str, int] = {}

        def advance_one(index: int) -> tuple[BatchEffect, Ints, list[Chunk]]:
            slicer, chunks = self._slicers[index], []
            applied = slicer.apply(leaves, clock)
            for windows in applied.windows:
                if len(windows):
                    values, flips = lifted.combine(windows)
                    slicer.flipped(windows, flips)
                    chunks.append(Chunk(index, windows, values))
            return applied, slicer.due(leaves, applied, clock), chunks

        each = self._each_window(advance_one, len(leaves))
        for window, (applied, next_due, chunks) in zip(self._pipeline.windows, each, strict=True):
            live |= applied.kept
            counted |= applied.counted
            refused |= applied.refused
            due = np.minimum(due, next_due)
            complete += chunks
            if applied.n_missed:
                missed[window.name] = applied.n_missed
        self._rows = kept(self._rows, leaves, live)
        return Step(complete, leaves.number[refused & ~counted], due, missed)

    def _each_window(self, call: Callable[[int], _T], n_leaves: int) -> Iterable[_T]:
        """Results of ``call`` for each window's index, in order; in threads if there are many leaves and no user code runs."""
        own_code = any(window.functions() for window in self._pipeline.windows) or any(
            spec.use for spec in self._pipeline.aggregates.values()
        )
        if own_code or n_leaves < _THREAD_LEAVES or len(self._slicers) == 1:
            return map(call, range(len(self._slicers)))
        with ThreadPoolExecutor(min(len(self._slicers), os.cpu_count() or 1)) as threads:
            return list(threads.map(call, range(len(self._slicers))))

    def snapshot(self) -> dict[str, pa.Table]:
        """The tables ``rows``, ``keys``, and each window's as ``window <index> <table>``; empty before the first row.

        A window's table ``keys`` has one row per key, in key order. Its other tables hold facts about live rows, by their ``number``.
        """
        if self._rows is None or self.keys is None:
            return {}
        tables = {"rows": self._rows, "keys": self.keys.table}
        for index, slicer in enumerate(self._slicers):
            tables |= {f"window {index} {name}": table for name, table in slicer.snapshot().items()}
        return tables

    def restore(self, tables: Mapping[str, pa.Table]) -> None:
        """Continue from the tables of :meth:`snapshot`."""
        self._rows, self.keys = tables["rows"], Keys(tables["keys"])
        for index, slicer in enumerate(self._slicers):
            prefix = f"window {index} "
            slicer.restore({name.removeprefix(prefix): table for name, table in tables.items() if name.startswith(prefix)})


@dataclass(frozen=True)
class PartitionTask:
    """Settings of one Spark partition's work; small, and equal for all partitions of a batch."""

    pipeline: Pipeline
    log: StateLog
    schema: pa.Schema  #: Schema of result rows; it may omit some of their columns.
    clock: Clock  #: The clock after the batch; ``since`` is the watermark before it.
    batch: int  #: Number of the batch.
    keep: bool = True  #: Whether later batches continue from this one's state.

    def work(self, entries: pa.Table, fresh: pa.Table, ends: tuple[int, int] | None = None) -> Advanced:
        """Apply ``fresh`` rows to the state in ``entries``; O(n log n) in live rows.

        ``entries``: all log entries of some keys, with the columns of ``log.schema``.
        ``fresh``: new rows in any order, with the columns of ``log.fresh_schema``.
        ``ends``: restricts the results to windows that end in this range (begin, end]; null for all.
        """
        windows = KeyedWindows(self.pipeline)
        stored = self.log.read(entries)
        if stored.tables:
            windows.restore(stored.tables)
        rows = self._arrived(fresh, windows)
        first = int(rows.column(ROW_NUMBER)[0].as_py()) if rows.num_rows else np.iinfo(np.int64).max
        step = windows.advance(rows, first, self.clock)
        keys = windows.keys.table if windows.keys is not None else pa.table({})
        changes = self.log.changes(stored, windows.snapshot(), step.due, self.batch) if self.keep else None
        taken = ~np.isin(rows.column(ROW_NUMBER).to_numpy(), step.refused)
        late = taken & (rows.column(ROW_TIME).to_numpy() < rows.column(ROW_WATERMARK).to_numpy())
        counts = Counts(rows_applied=int(taken.sum()), rows_late=int(late.sum()), late_missed=step.missed)
        return Advanced(self._results(step.chunks, keys, ends), changes, step.refused, counts)

    def _results(self, chunks: Sequence[Chunk], keys: pa.Table, ends: tuple[int, int] | None) -> Iterator[pa.Table]:
        """Result rows, one table per chunk of windows; row k of ``keys`` is the key of index k."""
        for chunk in chunks:
            rows = result_rows(chunk, self.pipeline, keys, self.schema, self.batch)
            if ends is not None:
                at = rows.column("window_end").cast(pa.int64())
                rows = rows.filter(pc.and_(pc.greater(at, ends[0]), pc.less_equal(at, ends[1])))
            yield rows

    def _arrived(self, fresh: pa.Table, windows: KeyedWindows) -> pa.Table:
        """``fresh`` as live rows in order of arrival; a null watermark becomes that of the row before."""
        number = fresh.column(NUMBER_OF).to_numpy()
        if (number[1:] < number[:-1]).any():
            fresh = fresh.sort_by(NUMBER_OF)
        rows = self.log.rows(fresh, windows.learn(self.log.key_columns(fresh), fresh.num_rows))
        known = pc.fill_null(rows.column(ROW_WATERMARK), BEFORE).to_numpy()
        watermark_at_arrival = np.maximum.accumulate(np.concatenate(([self.clock.since], known)))[1:]
        return rows.set_column(rows.schema.get_field_index(ROW_WATERMARK), ROW_WATERMARK, pa.array(watermark_at_arrival))
