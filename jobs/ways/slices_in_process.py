"""Computes a small batch by slices in this process, with the kernels that executors run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.columns import FILE, REASON, ROW
from windowmill.jobs.ways import lateness, limits
from windowmill.jobs.ways.base import PartResult
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.slice_passes import write
from windowmill.windowing.columnar import known_spans, slices
from windowmill.windowing.columnar.added_columns import ARRIVAL, SLICE, TIME, UNTIL_OF
from windowmill.windowing.columnar.lasting import spans_of
from windowmill.windowing.columnar.packing import Sliced
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.columnar.slice_windows import Combined, combined_here
from windowmill.windowing.columnar.slices import Revising, SliceStage, WindowStage
from windowmill.windowing.kernels.columns import int64_of

if TYPE_CHECKING:
    from windowmill.jobs.ways.slice_stages import Slicing
    from windowmill.jobs.ways.task_output import OutputWriter
    from windowmill.windowing.axis import WindowGrid


def judged(new: NewRows, slicing: Slicing) -> NewRows:
    """The new rows, judged."""
    return replace(new, table=lateness.judged(new.table, slicing.batch, slicing.slices.grids.grids))


def revised_after(judged: NewRows | None, slicing: Slicing) -> int | None:
    """An instant after which all windows end that ``judged`` rows revise; null if they revise none."""
    return None if judged is None else lateness.revised_after(judged.table, slicing.batch.lateness)


def load(judged: NewRows | None, stored: pa.Table | None, slicing: Slicing, emission: Emission) -> LoadedInProcess:
    """Judged rows and restored slices, of which either may be null; raises ``TooLargeError`` if their windows are too many here."""
    stage, rows = slicing.window_stage(emission), None if judged is None else judged.table
    if stored is not None and stage.slices.known:
        stored = _without_idle_spans(stored, rows, stage)
    _check_fits(rows, stored, stage)
    return LoadedInProcess(judged, stored, stage)


@dataclass(frozen=True)
class LoadedInProcess:
    """Judged rows and restored slices of a small batch; either may be null."""

    judged: NewRows | None
    stored: pa.Table | None
    stage: WindowStage

    def compute(self, writer: OutputWriter) -> PartResult:
        return PartResult(write(self.stage, work(None if self.judged is None else self.judged.table, self.stored, self.stage), writer))


def work(rows: pa.Table | None, stored: pa.Table | None, stage: WindowStage) -> Iterator[Combined]:
    """Combine judged ``rows`` and ``stored`` slices; skips rows with a quarantine reason. O(n log n) in rows and slices."""
    parts: list[Sliced] = []
    if stored is not None:
        parts += slices.restored(stage.slices, stored.combine_chunks().to_batches())
    if rows is not None:
        usable = rows.filter(pc.is_null(rows.column(REASON))).drop_columns([FILE, ROW, REASON])
        parts += slices.sliced(stage.slices, usable.combine_chunks().to_batches())
    yield from combined_here(stage, parts)


def _without_idle_spans(stored: pa.Table, rows: pa.Table | None, stage: WindowStage) -> pa.Table:
    """``stored`` without the spans of keys of which the batch shows no windows."""
    slices, keys = stored.filter(pc.is_valid(stored.column(SLICE))), list(stage.slices.keys)
    touched = slices.select(keys) if rows is None else pa.concat_tables([slices.select(keys), _usable(rows).select(keys)])
    # Without key columns a table of keys would have no rows.
    needed = _spans(stored, stage).needed(touched, stage.after) if keys else stored.filter(pc.is_null(stored.column(SLICE)))
    return pa.concat_tables([slices, needed])


def _spans(stored: pa.Table, stage: WindowStage) -> known_spans.StoredSpans:
    own = stage.slices
    return known_spans.StoredSpans(own.known, stage.known_grids, own.keys, stored.filter(pc.is_null(stored.column(SLICE))))


def _usable(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_null(rows.column(REASON)))


def _check_fits(rows: pa.Table | None, stored: pa.Table | None, stage: WindowStage) -> None:
    """Raise ``TooLargeError`` if the partials of these rows, or the windows of rows and slices, are too many for this process."""
    tables = [table for table in (rows, stored) if table is not None and table.num_rows]
    if not tables:
        return
    if rows is not None:
        _check_partials(_usable(rows), stage.slices)
    instants = [
        *((rows, name) for name in (TIME, UNTIL_OF) if rows is not None and name in rows.column_names),
        (stored, SLICE),
        *((stored, name) for name in known_spans.columns_of(stage.slices.known)),
    ]
    times = [pc.min_max(table.column(name)) for table, name in instants if table is not None and table.num_rows]
    lows = [low for span in times if (low := span["min"].as_py()) is not None]
    highs = [high for span in times if (high := span["max"].as_py()) is not None]
    if not lows:
        return
    _, n_keys = codes_of(tables, stage.slices.keys)
    ends = sum(_ends(grid, max(stage.after, min(lows)), stage.through, max(highs)) for _, grid in stage.grids)
    revised = 0 if rows is None or stage.revising is None else _revised(rows, stage.revising, stage)
    later = 0
    if rows is not None and stored is not None and stage.slices.known:
        later = _spans(stored, stage).most_shown_later(_usable(rows), stage.after)
    most = limits.rows_within(limits.MAX_RESULTS, stage.slices.layout)
    most_results = n_keys * ends + revised + later
    if most_results > most and _most_with_rows(rows, stored, stage) + revised > most:
        raise limits.too_many(most_results, "result rows at most, as one for each key and window end", most)


def _most_with_rows(rows: pa.Table | None, stored: pa.Table | None, stage: WindowStage) -> float:
    """Upper bound on the number of windows that have rows.

    Infinite if empty windows are shown, too, or if a stored node or an event that lasts may be in windows of many slices.
    """
    own = stage.slices
    if own.known or own.lasting is not None or stage.nodes is not None:
        return inf
    n_slices = (0 if rows is None else _n_partials(_usable(rows), own)) + (0 if stored is None else stored.num_rows)
    # A window that holds a slice ends after the slice's start, and at most its own length after it.
    return n_slices * sum(grid.most_ends(grid.longest - 1) for _, grid in stage.grids)


def _check_partials(rows: pa.Table, stage: SliceStage) -> None:
    """Raise ``TooLargeError`` if the partials of usable ``rows`` are too many for this process."""
    n_rows, layout = rows.num_rows, stage.layout
    if stage.lasting is not None and (n := int(stage.lasting.most_partials(rows).sum())) > limits.MAX_PARTIALS:
        raise limits.too_many(n, "starts of windows that events cross", limits.MAX_PARTIALS)
    if limits.are_few_rows(n_rows, layout):
        return
    # Where events last or rows bring revisions, each row may have partials of its own.
    own = stage.lasting is not None or stage.revises
    if own or not limits.are_few_partials(_n_partials(rows, stage), n_rows, layout):
        raise limits.too_many(n_rows, "new rows with partials of this width", limits.rows_within(limits.MAX_ROWS, layout))


def _n_partials(rows: pa.Table, stage: SliceStage) -> int:
    """Number of pairs of a key and a slice that have ``rows``; O(n log n)."""
    codes, _ = codes_of([rows], stage.keys)
    starts, slices_of = np.unique(stage.edges.slice_starts(int64_of(rows.column(TIME).combine_chunks())), return_inverse=True)
    return len(np.unique(codes * len(starts) + slices_of))


def _revised(rows: pa.Table, revising: Revising, stage: WindowStage) -> int:
    """Upper bound on the number of revisions that judged ``rows`` bring."""
    if ARRIVAL not in rows.column_names:
        return 0
    late = rows.filter(pc.and_(pc.is_valid(rows.column(ARRIVAL)), pc.is_null(rows.column(REASON))))
    times, stops = spans_of(late) if UNTIL_OF in late.column_names else (np.zeros(len(late), np.int64),) * 2
    ends = (grid.most_ends(np.minimum(grid.longest + (stops - times), revising.lateness)) for _, grid in stage.grids)
    return sum(int(each.sum()) for each in ends)


def _ends(grid: WindowGrid, after: int, through: int, last: int) -> int:
    return grid.count_ends(after, min(through, grid.last_end_holding(last)))
