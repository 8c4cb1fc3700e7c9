"""Lifts rows into slices, over whole columns: an executor's work between Spark's scan and its shuffle.

::

    rows ─ lift ─▶ slices ─▶ │ exchange by key │ ─ merge ─▶ slices of whole keys ─▶ windows
                                                             └─▶ the batch's own slices, for the state

:mod:`windowmill.windowing.columnar.grid_windows` has the work after the exchange.

An *interval event* has partials of one family in the slice where it begins, of another where windows begin.

::

    slices       │   a   │   b   │   c   │   d   │
    an event         [---------------)
    begins in        a
    reaches into         b       c              where a window begins

A window [s, e) combines the partials of the events that begin in its slices with those of the events that reach into the slice at s. An
event is in exactly one of the two, so partials are combined as those of points are.

An aggregate that weighs events by time counts an event in each slice that it overlaps, clipped to the slice. So each slice that an event
crosses has a partial of the first family, which has the event's weight there and counts it in no other aggregate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.bounds import check_duration
from windowmill.windowing.columnar.added_columns import (
    ARRIVAL,
    BATCH,
    CLOSED,
    LATE,
    LEVEL,
    MISSED,
    ORDER,
    REACHED,
    REACHING,
    REFUSED,
    SLICE,
    TIME,
    UNTIL_OF,
)
from windowmill.windowing.columnar.hashes import CHECKSUM, RowCheck, Share, verify_once
from windowmill.windowing.columnar.known_spans import span_columns
from windowmill.windowing.columnar.objects import StoredObjects
from windowmill.windowing.columnar.rows import as_key, as_table, by_time, key_codes, reordered
from windowmill.windowing.columnar.slice_partials import IN_TIME, marks_of, places_of
from windowmill.windowing.grids import Nodes
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.layout import Layout
from windowmill.windowing.kernels.lift import WEIGHT, WHOLE, condition_column, int64_of, lift_runs, stored
from windowmill.windowing.kernels.slices import along_axis, by_key, runs
from windowmill.windowing.slicing.edges import Edges, Grid, WindowGrid, all_hopping, each_of
from windowmill.windowing.watermark import AFTER, BEFORE

if TYPE_CHECKING:
    from windowmill.windowing.slicing.edges import CalendarGrid
    from windowmill.windowing.windows.base import Window

#: Column of a bare result row: the index of its grid in the stage. The other columns are keys, window end and aggregates, and window start
#: where the end does not imply it.
GRID = "_ grid"

#: Number of rows lifted together; many, so that the rows of a slice meet. They take about 150 bytes each in memory.
CHUNK_ROWS = 1_000_000
#: Number of partials of interval events that are lifted together; as many as rows of points.
CHUNK_PARTIALS = 1_000_000
#: Number of slices gathered before windows are computed; large enough to amortise a call's fixed cost.
CHUNK_SLICES = 200_000
#: Greatest number of rows in an output Arrow batch.
BATCH_ROWS = 200_000


@dataclass(frozen=True)
class Crossings:
    """The edges of some grids, or only the starts of their windows."""

    sequences: tuple[tuple[int, int], ...]  #: Sequences of instants phase + k·period, as (period, phase).
    listed: tuple[CalendarGrid, ...]  #: Grids whose instants are no such sequences.
    of_starts: bool  #: Whether only the starts of these grids' windows count.

    @classmethod
    def of_edges(cls, edges: Edges) -> Self:
        return cls(edges.sequences, edges.listed, of_starts=False)

    @classmethod
    def of_windows(cls, grids: Sequence[WindowGrid]) -> Self:
        """The instants at which windows of ``grids`` begin."""
        sequences = {sequence for grid in grids if (sequence := grid.start_sequence) is not None}
        return cls(tuple(sorted(sequences)), tuple(dict.fromkeys(grid.listed for grid in grids if grid.listed is not None)), of_starts=True)

    def most_within(self, time: Ints, stop: Ints) -> Ints:
        """Upper bound on the number of instants within each span (time, stop); shape (n_spans,)."""
        return np.asarray(np.sum([count for _, _, count in self._runs(time, stop)], axis=0, dtype=np.int64))

    def within(self, time: Ints, stop: Ints) -> tuple[Ints, Ints]:
        """The instants within each span (time, stop), without its ends: index of the span, instant; ascending. Each pair once."""
        spans, instants = [], []
        for instant_at, first, count in self._runs(time, stop):
            span, nth = each_of(count)
            spans.append(span)
            instants.append(instant_at(first[span] + nth))
        span, instant = np.concatenate(spans), np.concatenate(instants)
        if len(spans) == 1:
            return span, instant
        order = np.lexsort((instant, span))
        span, instant = span[order], instant[order]
        new = np.append(True, (span[1:] != span[:-1]) | (instant[1:] != instant[:-1]))[: len(span)]
        return span[new], instant[new]

    def _runs(self, time: Ints, stop: Ints) -> Iterator[tuple[Callable[[Ints], Ints], Ints, Ints]]:
        """For each sequence and list: its instants by place, the place of the first one within each span, and how many there are in it."""
        for period, phase in self.sequences:
            first = (time - phase) // period + 1
            count = np.maximum((stop - 1 - phase) // period - first + 1, 0)
            yield partial(_instant_of, period, phase), first, count
        for grid in self.listed:
            known = grid.starts_over(time, stop) if self.of_starts else grid.edges_over(time, stop)
            first = np.searchsorted(known, time, side="right")
            yield known.__getitem__, first, np.maximum(np.searchsorted(known, stop, side="left") - first, 0)


def _instant_of(period: int, phase: int, place: Ints) -> Ints:
    return phase + place * period


@dataclass(frozen=True)
class IntervalLifting:
    """Settings for lifting interval events; small and picklable."""

    windows: tuple[Window, ...]
    edges: Edges
    starts: Crossings  #: Where windows begin.
    crossed: Crossings | None  #: Where slices begin, if an aggregate weighs events by time; null if none does.

    @classmethod
    def of(cls, windows: Sequence[Window], grids: Sequence[WindowGrid], *, clips: bool) -> IntervalLifting:
        """``clips`` is whether an aggregate weighs events by time."""
        edges = Edges.of(grids)
        return cls(tuple(windows), edges, Crossings.of_windows(grids), Crossings.of_edges(edges) if clips else None)

    def most_partials(self, rows: pa.Table) -> Ints:
        """Upper bound on the number of partials in which each event of ``rows`` counts.

        Raises ``LimitExceededError`` if an event is in too many windows.
        """
        time, stop = spans_of(rows)
        for window in self.windows if len(time) else ():
            check_duration(window, int((stop - time).max()))
        partials = np.ones(len(time), np.int64)
        for each in (self.starts,) if self.crossed is None else (self.starts, self.crossed):
            partials += each.most_within(time, stop)
        return partials

    def chunks(self, rows: pa.Table) -> Iterator[pa.Table]:
        """``rows`` in pieces with few partials each, except single events with many; raises as :meth:`most_partials`."""
        piece = np.cumsum(self.most_partials(rows)) // CHUNK_PARTIALS
        bounds = [0, *(np.flatnonzero(piece[1:] != piece[:-1]) + 1).tolist(), len(piece)]
        for first, last in pairwise(bounds):
            yield rows.slice(first, last - first)

    def lift(self, rows: pa.Table) -> tuple[pa.Table, Ints, Ints, Ints]:
        """A row for each partial in which an event of ``rows`` counts; those of one slice in the order of ``rows``. O(n log n) in partials.

        First come the slices in which events begin, then those that they cross, then those into which they reach.

        Returns the columns of the event, where an aggregate weighs by time also ``WEIGHT`` and ``WHOLE``; start of the slice; 1 if it
        reaches into the slice, 0 if it begins in it or crosses it; and the start of the event's last partial for the first partial of a
        late event, or else the partial's own start.
        """
        time, stop = spans_of(rows)
        reaches, into = self.starts.within(time, stop)
        crosses, at = (np.empty(0, np.int64),) * 2 if self.crossed is None else self.crossed.within(time, stop)
        event = np.concatenate((np.arange(len(time)), crosses, reaches))
        starts = np.concatenate((self.edges.slice_starts(time), at, into))
        begins, reaching = np.arange(len(event)) < len(time), np.arange(len(event)) >= len(time) + len(crosses)
        found, reached = rows.take(pa.array(event)), starts.copy()
        if CLOSED in found.column_names:
            closed = marks_of(found, CLOSED)
            for instants, of in ((at, crosses), (into, reaches)):
                late = closed[of] != BEFORE
                np.maximum.at(reached, of[late], instants[late])
            # Windows that hold an instant at or after the mark end after it.
            in_time = (closed == BEFORE) | (~begins & (starts >= closed))
            found = _without_marks(found, closed, in_time)
        if self.crossed is not None:
            weight = np.append(_clipped(time, stop, crosses, at), np.zeros(len(reaches), np.int64))
            found = found.append_column(WHOLE, pa.array(begins | reaching)).append_column(WEIGHT, pa.array(weight, mask=reaching))
        return found, starts, reaching.astype(np.int64), reached


def _without_marks(rows: pa.Table, closed: Ints, in_time: Bools) -> pa.Table:
    """``rows`` with the marks ``closed``, null for rows ``in_time``: these bring no revisions either."""
    marks = {CLOSED: pa.array(closed, mask=in_time | (closed == BEFORE))}
    if ARRIVAL in rows.column_names:
        marks[ARRIVAL] = pc.if_else(pa.array(in_time), pa.scalar(None, pa.int64()), rows.column(ARRIVAL).combine_chunks())
    for name, column in marks.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def spans_of(rows: pa.Table) -> tuple[Ints, Ints]:
    """Start and end of each event as a half-open interval: a point lasts one tick."""
    time, until = (int64_of(rows.column(name).combine_chunks()) for name in (TIME, UNTIL_OF))
    return time, np.maximum(until, time + 1)


def _clipped(time: Ints, stop: Ints, crosses: Ints, at: Ints) -> Ints:
    """How long each event lasts in its first slice, then in each slice that it crosses: event ``crosses``, slice that starts ``at``."""
    other = crosses[1:] != crosses[:-1]
    first, last = (np.append(*ends)[: len(crosses)] for ends in ((True, other), (other, True)))
    # An event leaves its first slice where it first crosses into another, and each later slice where the next one starts.
    left_first, left = stop.copy(), np.append(at[1:], 0)[: len(at)]
    left_first[crosses[first]] = at[first]
    left[last] = stop[crosses[last]]
    return np.append(left_first - time, left - at)


class RowColumns(Protocol):
    """The settings of a stage: which columns it reads of a row, in addition to event time, and what it makes of them.

    ``layout`` is that of the partials; null for rows that are kept as they are.
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def ties(self) -> tuple[str, ...]: ...

    @property
    def layout(self) -> Layout | None: ...

    @property
    def source_columns(self) -> Sequence[str]: ...

    @property
    def conditions(self) -> Sequence[str]: ...


def number_of_nodes(rows: pa.Table) -> int:
    """How many of the stored ``rows`` are nodes over slices."""
    return (pc.sum(pc.greater(rows.column(LEVEL), 0)).as_py() or 0) if LEVEL in rows.column_names else 0


@dataclass(frozen=True)
class LiftingStage:
    """Settings for lifting rows into partials."""

    keys: tuple[str, ...]
    ties: tuple[str, ...]
    layout: Layout

    @property
    def source_columns(self) -> Sequence[str]:
        return self.layout.source_columns

    @property
    def conditions(self) -> Sequence[str]:
        return self.layout.conditions

    @cached_property
    def objects(self) -> StoredObjects:
        return StoredObjects(self.layout.objects)


@dataclass(frozen=True)
class SliceStage(LiftingStage):
    """Settings for lifting a pipeline's rows into slices; small and picklable."""

    edges: Edges
    batch: int
    #: Columns of a slice: the keys, ``SLICE``, ``LEVEL`` if nodes are stored, ``REACHING`` for interval events, ``CLOSED``, ``ARRIVAL`` if
    #: late rows bring revisions, ``BATCH``, the partials.
    schema: pa.Schema
    check: RowCheck | None = None  #: Verifies slices read from the state; none if there is no state.
    #: Whether late rows bring revisions. If so, those that arrived together are lifted into partials of their own, with their ``ARRIVAL``.
    revises: bool = False
    known: tuple[str, ...] = ()  #: Names of the windows with ``empty: emit``. The schema has the columns of their :mod:`.known_spans`.
    intervals: IntervalLifting | None = None  #: How interval events are lifted; null if events are points.

    @cached_property
    def lifted_schema(self) -> pa.Schema:
        """Columns of a slice until it is stored."""
        own = [ORDER] if self.revises and self.known else []
        own += [REACHED] if self.known and self.intervals is not None else []
        return pa.schema([*self.schema, *((name, pa.int64()) for name in own)])

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """Columns of a slice in the state, with its checksum."""
        return self.schema.append(CHECKSUM)


@dataclass(frozen=True)
class Sliced:
    """Slices that were lifted, or read from the state, together."""

    slices: pa.Table  #: A row each, in order of (key, start), or as they were stored.
    #: Number of rows lifted into them, and of late ones among those.
    rows: int = 0
    late: int = 0
    #: For each grid, the number of rows, lifted or not, that came too late for one of its windows; empty if none is late.
    missed: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeStage:
    """Settings for the nodes that a batch stores; small and picklable."""

    nodes: Nodes
    #: Instants through which windows had been emitted before this batch, and are with it.
    before: int
    through: int
    #: Instants through which windows had been closed before this batch, and are with it.
    closed_before: int
    closed_through: int


@dataclass(frozen=True)
class Revising:
    """Settings for the revisions that a batch's late rows bring; small and picklable."""

    lateness: int  #: How long windows take rows after they are shown, in ticks of the axis.
    after: int  #: Only windows that end after this instant are revised.
    closings: tuple[int, int] = (BEFORE, AFTER)  #: As of :class:`.LatenessRule`.

    def closed_at(self, marks: Ints) -> Ints:
        """The instants through which windows were closed to rows with these ``marks``, the watermarks that they found."""
        return np.where(marks == BEFORE, BEFORE, np.clip(marks - self.lateness, *self.closings))


@dataclass(frozen=True)
class WindowStage:
    """Settings for combining slices into result rows; small and picklable."""

    slices: SliceStage
    grids: tuple[tuple[str, WindowGrid], ...]
    #: The batch emits the windows that end in (after, through], without the rows that came too late for them.
    after: int
    through: int
    keep_from: int | None  #: The state keeps the batch's slices that start at or after this instant; null if it keeps none.
    schema: pa.Schema  #: Columns of a result row.
    nodes: NodeStage | None = None  #: Nodes that the state keeps in addition to slices; null if it keeps none.
    revising: Revising | None = None  #: How late rows revise windows that end at or before ``through``; null if they revise none.
    continues: bool = False  #: Whether earlier batches emitted the windows that end at or before ``after``; if not, no batch emits them.

    @cached_property
    def hopping(self) -> Sequence[Grid] | None:
        """The grids, if the windows of each have one length; otherwise null."""
        return all_hopping(grid for _, grid in self.grids)

    @cached_property
    def known_grids(self) -> Sequence[WindowGrid]:
        """The grids of the windows that show empty ones, in the order of ``slices.known``."""
        grids = dict(self.grids)
        return [grids[name] for name in self.slices.known]

    @cached_property
    def bare_schema(self) -> pa.Schema:
        """Columns of a result row without those that its grid implies or that are constant."""
        implied = ["window", "trigger", "batch"]
        if self.revising is None:
            implied.append("revision")
        if self.hopping is not None:
            implied.append("window_start")
        return pa.schema([(GRID, pa.int32()), *(field for field in self.schema if field.name not in implied)])

    @cached_property
    def declared_schema(self) -> pa.Schema:
        """``bare_schema`` for Spark, which checks each value of a column for null unless the column is declared non-null."""
        return pa.schema([field.with_nullable(field.name not in (GRID, "window_start", "window_end")) for field in self.bare_schema])


def sliced(stage: SliceStage, batches: Iterable[pa.RecordBatch], share: Share | None = None) -> Iterator[Sliced]:
    """Lift rows into slices: those of all keys, or of a ``share`` of the keys. O(n log n) in rows."""
    # Shares are taken of chunks, so that the slices of a key do not depend on who lifts them.
    chunks = _chunks(batches) if share is None else (share.rows(table, stage.keys) for table in _chunks(batches))
    if stage.intervals is not None:
        chunks = (part for table in chunks for part in stage.intervals.chunks(table))
    for judged in chunks:
        table, missed = _without_refused(judged) if REFUSED in judged.column_names else (judged, ())
        late = pc.sum(table.column(LATE)).as_py() or 0 if LATE in table.column_names else 0
        slices = _lift(stage, table)
        counts = int64_of(slices.column(stage.layout.fields[0].name).combine_chunks())
        # An event counts once, where it begins.
        yield Sliced(slices, int(counts[marks_of(slices, REACHING) != 1].sum()), late, missed)


def _without_refused(rows: pa.Table) -> tuple[pa.Table, tuple[int, ...]]:
    """The ``rows`` that windows count; and for each grid, how many of all ``rows`` came too late for one of its windows."""
    names = [name for name in rows.column_names if name.startswith(f"{MISSED} ")]
    missed = tuple(pc.sum(rows.column(name)).as_py() or 0 for name in names)
    refused = rows.column(REFUSED)
    taken = rows.filter(pc.invert(refused)) if pc.any(refused).as_py() else rows
    return taken.drop_columns([REFUSED, *names]), missed


def restored(stage: SliceStage, batches: Iterable[pa.RecordBatch]) -> Iterator[Sliced]:
    """Verify slices that are read from the state; raises ``StateCorruptError`` if one differs from what was stored."""
    for table in _chunks(batches):
        verify_once(stage.check, table)
        rows = table.select(stage.schema.names)
        for name in stage.lifted_schema.names[len(stage.schema) :]:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
        yield Sliced(rows)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows of ``batches``, cut after every ``CHUNK_ROWS``, wherever a batch ends: float sums depend on the cuts."""
    waiting: list[pa.RecordBatch] = []
    room = CHUNK_ROWS
    for batch in batches:
        rest = batch
        while rest.num_rows >= room:
            yield pa.Table.from_batches([*waiting, rest.slice(0, room)])
            rest, waiting, room = rest.slice(room), [], CHUNK_ROWS
        if rest.num_rows:
            waiting.append(rest)
            room -= rest.num_rows
    if waiting:
        yield pa.Table.from_batches(waiting)


def _lift(stage: SliceStage, rows: pa.Table) -> pa.Table:
    """Lift ``rows`` into slices in (key, start, reaching, closed, arrival) order."""
    if stage.layout.ordered:
        rows = rows.take(pa.array(by_time(rows, TIME, stage.ties)))
    if stage.intervals is not None:
        rows, starts, reaching, reached = stage.intervals.lift(rows)
    else:
        starts, reaching = stage.edges.slice_starts(int64_of(rows.column(TIME).combine_chunks())), np.zeros(rows.num_rows, np.int64)
        reached = starts
    codes, n_keys = key_codes([rows.column(key) for key in stage.keys], rows.num_rows)
    order, offsets = by_key(codes, n_keys)
    places, marks = places_of(starts, reaching)[order], {CLOSED: marks_of(rows, CLOSED), ARRIVAL: marks_of(rows, ARRIVAL)}
    closed, arrivals = (mark[order] if name in rows.column_names else mark for name, mark in marks.items())
    if len(moved := along_axis(offsets, places, closed, arrivals)):
        order, places, closed, arrivals = order[moved], places[moved], closed[moved], arrivals[moved]
    bounds = runs(offsets, places, closed, arrivals)
    first, closed, arrivals = order[bounds[:-1]], closed[bounds[:-1]], arrivals[bounds[:-1]]
    columns = lifted_groups(stage, rows, order, bounds)
    columns |= {SLICE: pa.array(starts[first]), CLOSED: pa.array(closed, mask=closed == BEFORE)}
    columns[ARRIVAL] = pa.array(arrivals, mask=arrivals == IN_TIME)
    columns |= {BATCH: pa.repeat(stage.batch, len(bounds) - 1), LEVEL: pa.repeat(0, len(bounds) - 1), REACHING: pa.array(reaching[first])}
    columns |= dict.fromkeys(span_columns(stage.known), pa.nulls(len(bounds) - 1, pa.int64()))
    if ORDER in stage.lifted_schema.names:
        columns[ORDER] = pa.array(np.minimum.reduceat(marks_of(rows, ORDER)[order], bounds[:-1]) if len(order) else arrivals)
    if REACHED in stage.lifted_schema.names:
        columns[REACHED] = pa.array(np.maximum.reduceat(reached[order], bounds[:-1]) if len(order) else arrivals)
    return as_table(columns, stage.lifted_schema)


def lifted_groups(stage: LiftingStage, rows: pa.Table, order: Ints, bounds: Ints) -> dict[str, pa.Array]:
    """Lift groups of ``rows`` of one key each: group g has ``order[bounds[g]:bounds[g + 1]]``; returns columns of keys and partials."""
    layout = stage.layout
    conditions = [condition_column(text) for text in layout.conditions]
    weighed = (WHOLE, WEIGHT) if layout.clips else ()
    placed = (TIME, *stage.ties) if layout.ordered else ()
    # At least one column, because a table without columns has no number of rows.
    names = list(dict.fromkeys([*layout.source_columns, *conditions, *weighed, *placed])) or [TIME]
    ordered = reordered(rows.select(names), order).combine_chunks()
    ints, floats = lift_runs(layout.lifting, ordered, bounds)
    objects = stage.objects.lift(ordered, bounds, TIME, stage.ties)
    first = pa.array(order[bounds[:-1]])
    keys: dict[str, pa.Array] = {key: as_key(rows.column(key).combine_chunks().take(first)) for key in stage.keys}
    return keys | stored(layout, ints, floats, ordered, time=TIME, ties=stage.ties) | stage.objects.write(objects)
