"""Which rows of windows over positions Spark reads for a batch: those of keys that have new rows or are due, as :class:`.PositionTable`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.schedulers.spark.position_deltas import greatest_column, is_needed, values, with_splits
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND, LEVEL, TIME
from windowmill.windowing.columnar.chunks import without_empty_chunks
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, LOWEST, POSITION
from windowmill.windowing.columnar.position_reads import evictable_in
from windowmill.windowing.columnar.positions import FRONT, HEAD, KEY_ROW, NEXT, SEQUENCE, THROUGH, WAITING, PositionStage, scalar_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Columns of the keys that a batch works on: how many of their rows in it, and of all their tuples, it may apply, and their newest ``key``
#: row. Their prefix distinguishes them from key columns.
_NEW, _APPLIED, _BOUNDS = "_ new", "_ applied", "_ bounds"
#: Number of keys and sequences up to which a join on Spark sends their bounds to the rows.
_FEW_BOUNDS = 100_000


def needed(stored: DataFrame, stage: PositionStage, touched: DataFrame | None) -> DataFrame:
    """Of the ``stored`` rows of the batches before that of ``stage``, those that its batch needs.

    ``touched`` are the usable new rows, null for none.
    """
    stored = stored.where((F.col(BATCH) < stage.batch) & F.col(SEQUENCE).isNotNull())
    keys = [backquoted(name) for name in (*stage.keys, SEQUENCE)]
    bounds = _few(_bounds(stage, stored, touched))
    known, kind = F.col(_BOUNDS), F.col(KIND)
    wanted = F.when(kind == KEY_ROW, F.col(BATCH) == known[BATCH]).when(kind == WAITING, F.col(TIME) >= known[THROUGH])
    # Rows that are no sound nodes have wrong checksums.
    nodes, rows = _make_up(stage), stored.join(bounds, _alike(stored, bounds, keys))
    if stage.state.deltas:
        rows = with_splits(stage, rows, keys)
        nodes = nodes | is_needed(stage, known[HEAD], known[NEXT])
    wanted = F.coalesce(wanted.otherwise(nodes), F.lit(True))
    return rows.where(wanted).select(*map(backquoted, stored.columns))


def _few(bounds: DataFrame) -> DataFrame:
    """``bounds``; if they are few, such that a join sends them to the rows, and does not shuffle these."""
    few = bounds.limit(_FEW_BOUNDS + 1).toArrow()
    if few.num_rows > _FEW_BOUNDS:
        return bounds
    return F.broadcast(bounds.sparkSession.createDataFrame(without_empty_chunks(few), bounds.schema))


def _bounds(stage: PositionStage, stored: DataFrame, touched: DataFrame | None) -> DataFrame:
    """Of each key and sequence that the batch works on: the key as by :func:`_renamed`, ``_BOUNDS`` and ``_APPLIED``.

    ``_BOUNDS`` is null for a key that is new. Reads no nodes.
    """
    keys = [backquoted(name) for name in (*stage.keys, SEQUENCE)]
    latest = F.max_by(F.struct(BATCH, DUE, THROUGH, NEXT, HEAD, *_fronts(stage)), F.when(F.col(KIND) == KEY_ROW, F.col(BATCH)))
    # A tuple that waits still came at or after the watermark before the batch.
    ready = (F.col(KIND) == WAITING) & (F.col(TIME) >= stage.clock.since) & (F.col(TIME) < stage.clock.watermark)
    entries = stored.where(F.col(KIND).isin(KEY_ROW, WAITING))
    waiting = [F.max(F.when(ready, value)).alias(greatest_column(name)) for name, value in values(stage, stored=True).items()]
    known = entries.groupBy(*keys).agg(latest.alias(_BOUNDS), F.count_if(ready).alias(_APPLIED), *waiting)
    greatest = [backquoted(greatest_column(name)) for name in sorted(stage.state.deltas)]
    known = known.select(*_renamed(keys), _BOUNDS, _APPLIED, *greatest)
    due = F.col(f"{_BOUNDS}.{DUE}") <= stage.clock.watermark
    if touched is None:
        return known.where(due)
    arriving = [F.max(value).alias(greatest_column(name)) for name, value in values(stage, stored=False).items()]
    new = F.count_if(F.col(TIME) < stage.clock.watermark)
    counts = touched.groupBy(*keys[:-1]).agg(new.alias(_NEW), *arriving)
    sequences = F.explode(F.array(*map(F.lit, stage.state.sequences))).alias(SEQUENCE)
    counts = counts.select("*", sequences)
    both = known.join(counts, _alike(counts, known, keys), "full_outer").where(F.col(_NEW).isNotNull() | due)
    named = [
        F.when(F.col(_NEW).isNull(), F.col(name)).otherwise(counts[key]).alias(name) for name, key in zip(known.columns, keys, strict=False)
    ]
    applied = F.coalesce(_NEW, F.lit(0)) + F.coalesce(_APPLIED, F.lit(0))
    found = [F.greatest(known[name], counts[name]).alias(name.strip("`")) for name in greatest]
    return both.select(*named[: len(keys)], _BOUNDS, applied.alias(_APPLIED), *found)


def _fronts(stage: PositionStage) -> list[str]:
    return [backquoted(scalar_of(window.name, FRONT)) for window in stage.pipeline.windows]


def _renamed(keys: Sequence[str]) -> list[Column]:
    """The columns ``keys`` with the names that :func:`_alike` compares with."""
    return [F.col(key).alias(f"_ key {number}") for number, key in enumerate(keys)]


def _alike(rows: DataFrame, others: DataFrame, keys: Sequence[str]) -> Column:
    """Whether the ``keys`` of ``rows`` are those of ``others``, which are named as by :func:`_renamed`; nulls are equal."""
    return reduce(and_, (rows[key].eqNullSafe(others[f"_ key {number}"]) for number, key in enumerate(keys)), F.lit(True))


def _make_up(stage: PositionStage) -> Column:
    """Whether a node is one of those that make up its key's windows, as :class:`.Stretch` tells; null for a key without a ``key`` row."""
    above = f"int(greatest({LEVEL} + 1, {LOWEST}))"
    begin, parent = F.col(POSITION), F.expr(f"shiftleft(shiftright({POSITION}, {above}), {above})")
    parent_end = parent + F.expr(f"shiftleft(1L, {above})")
    found = []
    for name, windows in stage.state.sequences.items():
        for window in () if name in stage.state.deltas else windows:
            evictable = evictable_in(stage, window)
            front = F.col(f"{_BOUNDS}.{backquoted(scalar_of(stage.pipeline.windows[window].name, FRONT))}")
            is_evictable = begin - front < F.col(_APPLIED) if evictable.by_count else F.col(FIRST) < evictable.before
            parents_first = parent - front < F.col(_APPLIED) if evictable.by_count else F.col(ABOVE) < evictable.before
            in_parent = F.col(ABOVE).isNotNull() & (parent >= front) & (parent_end <= F.col(f"{_BOUNDS}.{NEXT}")) & ~parents_first
            chosen = F.when(is_evictable, F.col(LEVEL) == 0).otherwise(~in_parent)
            found.append((F.col(SEQUENCE) == name) & (begin >= front) & chosen)
    # Leaves after the newest ``key`` row are damage, which is noticed only when they are read.
    found.append((F.col(LEVEL) == 0) & (begin >= F.col(f"{_BOUNDS}.{NEXT}")))
    return reduce(or_, found)
