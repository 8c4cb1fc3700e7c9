"""Merges new rows and stored partials of sessions: closed sessions become results, open ones the new state.

The state holds *fragments*: the first and last event time of some rows of one session, and their partial. New rows at most a gap apart form
a fragment, and the kernel merges fragments like events that last from their first row to their last. Of each open session with new rows a
batch stores one fragment, which holds the whole session. It supersedes the fragments of earlier batches within its bounds.

A row whose time lay in closed windows when it arrived (a *suspect*) joins only a session that was still open then. So each new row of its
key is a fragment of its own, and the kernel replays them in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from windowmill.windowing.columnar.added_columns import BATCH, CLOSED, LATE, NUMBER_OF, SUM, TIME
from windowmill.windowing.columnar.advanced import Advanced
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.output import gives_json, typed
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.columnar.slices import by_time, lifted_groups
from windowmill.windowing.columnar.stored_objects import Objects, StoredObjects
from windowmill.windowing.kernels import sessions as kernel
from windowmill.windowing.kernels.columns import arenas, int64_of, stored
from windowmill.windowing.kernels.combine import Bools, Floats, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import condition_column
from windowmill.windowing.kernels.lower import lower
from windowmill.windowing.kernels.rows import Rows
from windowmill.windowing.kernels.slices import by_key, combine_runs
from windowmill.windowing.slicing.leaves import Windows
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE

#: Columns of a fragment beside the keys, ``BATCH`` and the partials: the gap of its session, and its first and last event time.
GAP, FIRST, LAST = "_gap", "_first", "_last"


def row_schema(pipeline: Pipeline, types: Mapping[str, pa.DataType], layout: Layout) -> pa.Schema:
    """Schema of new rows: keys, the columns that partials read, event time, number in order of arrival, ``CLOSED`` and ``LATE``.

    ``CLOSED`` is the instant through which windows were closed when the row arrived; null if it makes no difference. ``LATE`` is whether
    the row arrived behind the watermark; null means no.
    """
    columns = dict.fromkeys([*pipeline.keys, *pipeline.time.tie_break, *layout.source_columns])
    own = [(TIME, pa.int64()), (NUMBER_OF, pa.int64()), (CLOSED, pa.int64()), (LATE, pa.bool_())]
    conditions = [(condition_column(text), pa.bool_()) for text in layout.conditions]
    return pa.schema([*((name, types[name]) for name in columns), *conditions, *own])


def fragment_schema(keys: dict[str, pa.DataType], layout: Layout) -> pa.Schema:
    """Schema of a table of fragments: keys, gap, first and last event time, batch, partials."""
    own = [(name, pa.int64()) for name in (GAP, FIRST, LAST, BATCH)]
    return pa.schema([*keys.items(), *own, *layout.stored_columns])


@dataclass(frozen=True)
class SessionStage:
    """Settings for a batch of sessions; small and picklable.

    Attributes
    ----------
    gaps
        Name and gap of each session window of the spec.
    closed
        Instant through which windows are closed after the batch: it emits the sessions that no later row can join.
    ends
        Restricts the results to windows that end in this range (begin, end]; null for all.
    keep
        Whether later batches continue from this one's state.
    rows
        Columns of a new row.
    schema
        Columns of a fragment.
    results
        Columns of a result row.
    check
        Verifies fragments read from the state; null if there is no state.
    """

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    layout: Layout
    gaps: tuple[tuple[str, int], ...]
    batch: int
    closed: int
    ends: tuple[int, int] | None
    keep: bool
    rows: pa.Schema
    schema: pa.Schema
    results: pa.Schema
    check: RowCheck | None = None

    @property
    def source_columns(self) -> Sequence[str]:
        """Columns that the partials read."""
        return self.layout.source_columns

    @property
    def conditions(self) -> Sequence[str]:
        """Conditions under which rows count."""
        return self.layout.conditions

    @cached_property
    def objects(self) -> StoredObjects:
        """The partials that are Python objects."""
        return StoredObjects(self.layout.objects)


def advance(stage: SessionStage, rows: pa.Table, fragments: pa.Table) -> Advanced:
    """Apply new ``rows`` to the stored ``fragments`` of some keys; O(n log n) in both, plus rows × suspects for each key with suspects.

    Parameters
    ----------
    rows
        All new rows of these keys, with the columns of ``stage.rows``.
    fragments
        All fragments of these keys that are not closed, with the columns of ``stage.schema``.
    """
    if stage.check is not None and SUM in fragments.column_names:
        stage.check.verify(fragments)
    arrived = _Arrived.of(stage, rows, fragments)
    results, kept, refused = [], [], []
    for gap in dict.fromkeys(gap for _, gap in stage.gaps):
        merged = _Merged.of(stage, arrived, gap)
        results += [merged.results(name) for name, its_gap in stage.gaps if its_gap == gap]
        kept.append(merged.kept())
        refused.append(merged.refused)
    return Advanced.of(results, kept if stage.keep else None, refused, arrived.numbers, arrived.late)


@dataclass(frozen=True)
class _Arrived:
    """New rows and stored fragments with their keys' codes.

    Attributes
    ----------
    rows
        New rows in (time, tie-break, arrival) order.
    order, offsets
        The rows of key k are ``order[offsets[k]:offsets[k + 1]]``.
    fragments, codes
        Stored fragments, and the code of each one's key.
    """

    rows: pa.Table
    order: Ints
    offsets: Ints
    fragments: pa.Table
    codes: Ints

    @classmethod
    def of(cls, stage: SessionStage, rows: pa.Table, fragments: pa.Table) -> _Arrived:
        rows = rows.sort_by(NUMBER_OF)
        rows = rows.take(pa.array(by_time(rows, stage.ties if stage.layout.ordered else ()))).combine_chunks()
        codes, n_keys = codes_of([fragments, rows], stage.keys)
        order, offsets = by_key(codes[len(fragments) :], n_keys)
        return cls(rows, order, offsets, fragments.select(stage.schema.names), codes[: len(fragments)])

    @property
    def n_keys(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def numbers(self) -> Ints:
        return int64_of(self.rows.column(NUMBER_OF).combine_chunks())

    @cached_property
    def times(self) -> Ints:
        return int64_of(self.rows.column(TIME).combine_chunks())

    @cached_property
    def late(self) -> pa.Array:
        """Mask of the rows behind the watermark; null means no."""
        return self.rows.column(LATE).combine_chunks()

    @cached_property
    def closed(self) -> Ints:
        """The instant through which windows were closed when each row arrived; the earliest of all if it makes no difference."""
        return int64_of(self.rows.column(CLOSED).combine_chunks().fill_null(BEFORE))

    def groups(self, gap: int) -> Ints:
        """Offsets in ``order`` of the runs of rows that form one fragment each; shape (n_fragments + 1,)."""
        times, n = self.times[self.order], len(self.order)
        if not n:
            return np.zeros(1, np.int64)
        begins = np.ones(n, np.bool_)
        begins[1:] = np.diff(times) > gap
        begins[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        suspect = times < self.closed[self.order]
        if suspect.any():
            # The kernel replays all rows of such a key singly.
            keys = np.repeat(np.arange(self.n_keys), np.diff(self.offsets))
            begins |= np.isin(keys, keys[suspect])
        return np.append(np.flatnonzero(begins), n).astype(np.int64)


@dataclass(frozen=True)
class _Merged:
    """The sessions of one gap: its fragments, stored ones first, and the sessions that the kernel made of them.

    Attributes
    ----------
    new
        Mask of the fragments of new rows.
    closed, open
        Closed and open sessions, as windows over the fragments.
    refused
        Numbers of the rows that came too late.
    """

    stage: SessionStage
    gap: int
    fragments: pa.Table
    new: Bools
    closed: Windows
    open: Windows
    refused: Ints

    @classmethod
    def of(cls, stage: SessionStage, arrived: _Arrived, gap: int) -> _Merged:
        table, codes, numbers, marks = _fragments(stage, arrived, gap)
        new = numbers > BEFORE
        order = np.lexsort((int64_of(table.column(FIRST).combine_chunks()), codes))
        codes, numbers, marks = codes[order], numbers[order], marks[order]
        first, last = (int64_of(table.column(name).combine_chunks())[order] for name in (FIRST, LAST))
        rows = Rows(np.searchsorted(codes, np.arange(arrived.n_keys + 1)).astype(np.int64), first, last, numbers)
        suspect, accepted = first < marks, np.zeros(len(first), np.bool_)
        live = ~suspect
        closed = _windows(kernel.sessions(gap, kernel.AFTER, rows, marks, suspect, live, accepted, stage.closed), order)
        # Closing all sessions that are left gives the open ones: the first call left in ``live`` the fragments of no closed session.
        none = np.zeros(len(first), np.bool_)
        rest = _windows(kernel.sessions(gap, kernel.AFTER, rows, marks, none, live, accepted, kernel.AFTER), order)
        return cls(stage, gap, table, new, closed, rest, numbers[suspect & ~accepted])

    def results(self, name: str) -> pa.Table:
        """The result rows of the window ``name``."""
        stage, windows = self.stage, self.closed
        if stage.ends is not None:
            begin, end = stage.ends
            windows = _chosen(windows, (windows.end > begin) & (windows.end <= end))
        n, layout = len(windows), stage.layout
        ints, floats = self._combined(windows)
        columns = lower(layout, ints, floats, self.fragments)
        members = self._objects[windows.members]
        one_by_one = (windows.member_offsets, np.arange(len(members)))
        found = stage.objects.compute(
            stage.objects.decode(members), Windows.of(windows.key, windows.start, windows.end, members=one_by_one)
        )
        for held in layout.objects:
            for result, spec in held.results:
                columns[result] = typed(result, found[result], stage.results.field(result).type, as_json=gives_json(spec))
        columns |= self._keys(windows)
        columns |= {"window": pa.repeat(name, n), "window_start": pa.array(windows.start), "window_end": pa.array(windows.end)}
        columns |= {"trigger": pa.nulls(n, pa.int64()), "revision": pa.repeat(0, n), "batch": pa.repeat(stage.batch, n)}
        return pa.table([columns[field.name].cast(field.type) for field in stage.results], schema=stage.results)

    def kept(self) -> pa.Table:
        """The open sessions that have new rows, as one fragment each."""
        stage, layout = self.stage, self.stage.layout
        counts = np.append(0, np.cumsum(self.new[self.open.members]))
        windows = _chosen(self.open, counts[self.open.member_offsets[1:]] > counts[self.open.member_offsets[:-1]])
        ints, floats = self._combined(windows)
        objects = stage.objects.fold(self._objects[windows.members], windows.member_offsets)
        columns = stored(layout, ints, floats, self.fragments) | stage.objects.write(objects) | self._keys(windows)
        columns |= {FIRST: pa.array(windows.start), LAST: pa.array(windows.end - self.gap)}
        columns |= {GAP: pa.repeat(self.gap, len(windows)), BATCH: pa.repeat(stage.batch, len(windows))}
        return pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)

    def _keys(self, windows: Windows) -> dict[str, pa.Array]:
        firsts = pa.array(windows.members[windows.member_offsets[:-1]])
        return {key: self.fragments.column(key).combine_chunks().take(firsts) for key in self.stage.keys}

    def _combined(self, windows: Windows) -> tuple[Ints, Floats]:
        """The numbers of each window's partial, as rows of two arenas."""
        ints, floats = self._numbers
        found: tuple[Ints, Floats] = combine_runs(
            self.stage.layout.program(), windows.member_offsets, ints[windows.members], floats[windows.members]
        )
        return found

    @cached_property
    def _numbers(self) -> tuple[Ints, Floats]:
        return arenas(self.stage.layout, self.fragments)

    @cached_property
    def _objects(self) -> Objects:
        return self.stage.objects.read(self.fragments)


def _fragments(stage: SessionStage, arrived: _Arrived, gap: int) -> tuple[pa.Table, Ints, Ints, Ints]:
    """Stored fragments, then new ones by key and first event time; for each, its key's code, its first row's number, and ``CLOSED``.

    For stored fragments, number and instant are before all others. They come first because their rows arrived first: that settles the order
    of rows that ``tie_break`` leaves open.
    """
    stored_ones = pa.array(int64_of(arrived.fragments.column(GAP).combine_chunks()) == gap)
    of_gap, codes = arrived.fragments.filter(stored_ones), arrived.codes[stored_ones.to_numpy(zero_copy_only=False)]
    latest = latest_fragments(of_gap, codes)
    of_gap, codes = of_gap.take(pa.array(latest)), codes[latest]
    bounds, order = arrived.groups(gap), arrived.order
    firsts, lasts = order[bounds[:-1]], order[bounds[1:] - 1]
    columns = lifted_groups(stage, arrived.rows, order, bounds)
    columns |= {FIRST: pa.array(arrived.times[firsts]), LAST: pa.array(arrived.times[lasts])}
    columns |= {GAP: pa.repeat(gap, len(firsts)), BATCH: pa.repeat(stage.batch, len(firsts))}
    new = pa.table([columns[field.name].cast(field.type) for field in stage.schema], schema=stage.schema)
    of_row = np.repeat(np.arange(arrived.n_keys), np.diff(arrived.offsets))
    both = pa.concat_tables([of_gap, new]).combine_chunks()
    before = np.full(len(of_gap), BEFORE, np.int64)
    numbers, marks = np.append(before, arrived.numbers[firsts]), np.append(before, arrived.closed[firsts])
    return both, np.append(codes, of_row[bounds[:-1]]), numbers, marks


def latest_fragments(fragments: pa.Table, codes: Ints) -> Ints:
    """Indices of the fragments that no later batch has superseded; fragments of one key and gap share one of the ``codes``.

    If one fragment lies within another, the outer one is the later.
    """
    first, last, batch = (int64_of(fragments.column(name).combine_chunks()) for name in (FIRST, LAST, BATCH))
    order = np.lexsort((-batch, -last, first, codes))
    _, rank = np.unique(last, return_inverse=True)
    # Greatest last event time of each code so far: a fragment that is not within an outer one ends after all that began before it.
    reach = codes[order] * (len(codes) + 1) + rank[order] + 1
    before = np.maximum.accumulate(np.append(0, reach))[:-1]
    return np.sort(order[reach > before])


def _windows(found: tuple[Ints, Ints, Ints, Ints], order: Ints) -> Windows:
    """The kernel's sessions as windows over members; the kernel's row i is the fragment ``order[i]``."""
    owner, key, start, end = found
    places = np.flatnonzero(owner >= 0)
    places = places[np.lexsort((order[places], owner[places]))]
    offsets = np.searchsorted(owner[places], np.arange(len(key) + 1)).astype(np.int64)
    return Windows.of(key, start, end, members=(offsets, order[places].astype(np.int64)))


def _chosen(windows: Windows, chosen: Bools) -> Windows:
    """The ``chosen`` windows with their members."""
    lengths = np.diff(windows.member_offsets)
    members = windows.members[np.repeat(chosen, lengths)]
    offsets = np.append(0, np.cumsum(lengths[chosen])).astype(np.int64)
    return Windows.of(windows.key[chosen], windows.start[chosen], windows.end[chosen], members=(offsets, members))
