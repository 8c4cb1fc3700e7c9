"""The state table of windows over positions: rows of keys, waiting tuples, and nodes of a FlatFAT; batches only append.

See :mod:`windowmill.windowing.columnar.positions` for the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from windowmill.checkpoints.appending import SMALL_BATCH_ROWS
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.opening import reporting_damage
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.reading import require_columns
from windowmill.checkpoints.state.base import (
    COMPACTED_BYTES,
    FEW_ENTRIES,
    FEW_FILES,
    BatchFiles,
    StateTable,
    batches_of,
    by_batches,
    files_of,
)
from windowmill.checkpoints.state.position_deltas import greatest_column, is_needed, values, with_splits
from windowmill.checkpoints.state.searched_files import SearchedFiles, footer
from windowmill.checkpoints.state.wanted import ReadLimit
from windowmill.windowing.columnar.added_columns import BATCH, DUE, KIND, TIME
from windowmill.windowing.columnar.position_delta_reads import arriving_values, split_nodes
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, LEVEL, POSITION
from windowmill.windowing.columnar.position_reads import Demand, alone_in
from windowmill.windowing.columnar.positions import (
    FRONT,
    HEAD,
    KEY_ROW,
    LIVE,
    NEXT,
    NODE,
    SEQUENCE,
    THROUGH,
    WAITING,
    PositionStage,
    scalar_of,
)
from windowmill.windowing.columnar.rows import keys_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Columns of the keys that a batch works on: how many of their rows in it, and of all their tuples, it may apply, and their newest ``key``
#: row. Their prefix distinguishes them from key columns.
_NEW, _APPLIED, _BOUNDS = "_ new", "_ applied", "_ bounds"
#: Number of keys and sequences up to which a join on Spark sends their bounds to the rows.
_FEW_BOUNDS = 100_000
#: Levels of which nodes are stored beside the leaves under them, and rows and bytes of a row group: the nodes at either end of a window
#: lie in one or two row groups, and the rest of a key's nodes in few.
NEAR_LEVELS, GROUP_ROWS, GROUP_BYTES = 10, 8_192, 1 << 20
#: Columns beside those of the state in :func:`needed_rows`, quoted.
_AGE, _NEWEST, _LEAST, _PASSED, _VERSION = '"_ age"', '"_ newest"', '"_ head"', '"_ through"', '"_ version"'


class PositionTable(StateTable):
    """The table at ``path`` of one pipeline's windows over positions, with the columns of ``schema``, which include checksums."""

    def empty(self) -> pa.Table:
        """A table without rows."""
        return self._schema.empty_table()

    def read(self, stage: PositionStage, rows: pa.Table, limit: ReadLimit) -> pa.Table | None:
        """The rows of the batches before that of ``stage`` that new ``rows`` need, read by this process; none if they exceed ``limit``.

        The caller verifies the checksums.
        """
        if not self._exists:
            return self.empty()
        with reporting_damage(self._path):
            files = SearchedFiles(newest(self._path), stage, limit)
            entries = files.entries()
            if entries is None:
                return None
            keys, codes, n_keys = keys_of([entries, rows], stage.keys)
            demand = Demand.of(stage, entries, rows, codes, n_keys)
            nodes = files.nodes(demand, keys)
            if nodes is None:
                return None
            parts = [entries.filter(pa.array(demand.entries)), nodes]
            if stage.state.deltas:
                arriving = arriving_values(stage, rows, codes[len(entries) :], n_keys)
                node_keys = keys_of([keys, nodes], stage.keys)[1][len(keys) :] if stage.keys else np.zeros(len(nodes), np.int64)
                of_entries = codes[: len(entries)]
                kept, demand = split_nodes(stage, entries, of_entries, nodes, node_keys, arriving, demand.active)
                leaves = files.nodes(demand, keys)
                if leaves is None:
                    return None
                parts = [parts[0], nodes.filter(pa.array(kept)), leaves]
        found = pa.concat_tables(parts)
        return found if len(found) <= limit.rows else None

    def restore(self, stage: PositionStage, touched: DataFrame | None) -> DataFrame | None:
        """As :meth:`read`, on Spark; ``touched`` are the usable new rows, null for none."""
        if not self._exists:
            return None
        from pyspark.sql import functions as F

        stored = self._on_spark().where((F.col(BATCH) < stage.batch) & F.col(SEQUENCE).isNotNull())
        require_columns(self._path, stored.columns, self._schema.names)
        stored = stored.select(*map(backquoted, self._schema.names))
        keys = [backquoted(name) for name in (*stage.keys, SEQUENCE)]
        bounds = self._few(_bounds(stage, stored, touched))
        known, kind = F.col(_BOUNDS), F.col(KIND)
        wanted = F.when(kind == KEY_ROW, F.col(BATCH) == known[BATCH]).when(kind == WAITING, F.col(TIME) >= known[THROUGH])
        # The checksums tell of rows that are no sound nodes.
        nodes, rows = _make_up(stage), stored.join(bounds, _alike(stored, bounds, keys))
        if stage.state.deltas:
            rows = with_splits(stage, rows, keys)
            nodes = nodes | is_needed(stage, known[HEAD], known[NEXT])
        wanted = F.coalesce(wanted.otherwise(nodes), F.lit(True))
        return rows.where(wanted).select(*map(backquoted, self._schema.names))

    def _few(self, bounds: DataFrame) -> DataFrame:
        """``bounds``; if they are few, such that a join sends them to the rows, and does not shuffle these."""
        from pyspark.sql import functions as F

        few = bounds.limit(_FEW_BOUNDS + 1).toArrow()
        if few.num_rows > _FEW_BOUNDS:
            return bounds
        return F.broadcast(self._spark.createDataFrame(few, bounds.schema))


def _bounds(stage: PositionStage, stored: DataFrame, touched: DataFrame | None) -> DataFrame:
    """Of each key and sequence that the batch works on: the key as by :func:`_renamed`, ``_BOUNDS`` and ``_APPLIED``.

    ``_BOUNDS`` is null for a key that is new. Reads no nodes.
    """
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

    return [F.col(key).alias(f"_ key {number}") for number, key in enumerate(keys)]


def _alike(rows: DataFrame, others: DataFrame, keys: Sequence[str]) -> Column:
    """Whether the ``keys`` of ``rows`` are those of ``others``, which are named as by :func:`_renamed`; nulls are equal."""
    from pyspark.sql import functions as F

    return reduce(and_, (rows[key].eqNullSafe(others[f"_ key {number}"]) for number, key in enumerate(keys)), F.lit(True))


def _make_up(stage: PositionStage) -> Column:
    """Whether a node is one of those that make up its key's windows, as :class:`.Stretch` tells; null for a key without a ``key`` row."""
    from pyspark.sql import functions as F

    begin, parent = F.col(POSITION), F.expr(f"shiftleft(shiftright({POSITION}, int({LEVEL} + 1)), int({LEVEL} + 1))")
    parent_end = parent + F.expr(f"shiftleft(2L, int({LEVEL}))")
    found = []
    for name, windows in stage.state.sequences.items():
        for window in () if name in stage.state.deltas else windows:
            alone, front = alone_in(stage, window), F.col(f"{_BOUNDS}.{backquoted(scalar_of(stage.pipeline.windows[window].name, FRONT))}")
            leaves_alone = begin - front < F.col(_APPLIED) if alone.by_count else F.col(FIRST) < alone.before
            parents_first = parent - front < F.col(_APPLIED) if alone.by_count else F.col(ABOVE) < alone.before
            in_parent = F.col(ABOVE).isNotNull() & (parent >= front) & (parent_end <= F.col(f"{_BOUNDS}.{NEXT}")) & ~parents_first
            chosen = F.when(leaves_alone, F.col(LEVEL) == 0).otherwise(~in_parent)
            found.append((F.col(SEQUENCE) == name) & (begin >= front) & chosen)
    # Leaves after the newest ``key`` row are damage, which is noticed only when they are read.
    found.append((F.col(LEVEL) == 0) & (begin >= F.col(f"{_BOUNDS}.{NEXT}")))
    return reduce(or_, found)


def overgrown_from(path: str, *, lay_out: bool = False) -> int | None:
    """The first batch of the newest files at ``path`` that are worth merging; null for none.

    Reads only the Delta log, and with ``lay_out`` footers of large files.

    Files are merged with newer ones if these together have at least half as many rows. So each row is rewritten a logarithmic number of
    times, and at most about half of the rows of an old file are superseded.

    Parameters
    ----------
    lay_out
        Whether also a large file of one batch is to be rewritten in the order in which it is searched.
    """
    table = DeltaTable(path)
    groups = by_batches(files_of(table))
    many = sum(len(group.files) for group in groups) > FEW_FILES
    first, taken = len(groups), BatchFiles(0, 0, [])
    while first and (taken + groups[first - 1]).bytes <= COMPACTED_BYTES:
        outside = sum(len(group.files) for group in groups[:first])
        if taken.files and groups[first - 1].rows > 2 * taken.rows and not (many and outside > FEW_FILES // 2):
            break
        first, taken = first - 1, taken + groups[first - 1]
    if len(taken.files) > 1 and (many or taken.rows > 2 * groups[first].rows + FEW_ENTRIES):
        return groups[first].first
    if lay_out:
        unsorted = (number for number, group in enumerate(groups) if any(_is_unsorted(table, file) for file in group.files))
        from_here = next(unsorted, len(groups))
        if from_here < len(groups) and sum(group.bytes for group in groups[from_here:]) <= COMPACTED_BYTES:
            return groups[from_here].first
    return None


def rows_of_group(files: Sequence[Mapping[str, Any]]) -> int:
    """Rows of a row group in a table of ``files``: fewer if they are wide, but not so few that footers are long."""
    rows, size = (sum(int(file[name]) for file in files) for name in ("num_records", "size_bytes"))
    return min(GROUP_ROWS, max(GROUP_ROWS // 16, GROUP_BYTES * rows // max(1, size), 1))


def _is_unsorted(table: DeltaTable, file: Mapping[str, Any]) -> bool:
    """Whether ``file`` is one of a large batch, of which a search reads more than it needs, because its row groups are large."""
    first, last = batches_of(file)
    if first != last or file["num_records"] <= SMALL_BATCH_ROWS:
        return False
    metadata = footer(table, file)
    return bool(metadata.num_rows > 4 * GROUP_ROWS * metadata.num_row_groups)


def search_order(keys: Sequence[str], *, live: bool) -> list[str]:
    """The sort order in SQL of rows that are searched: low levels of a key by their positions, and then high levels.

    Rows of other parts in the table do not take part. ``live`` is as for :func:`needed_rows`.
    """
    of_keys = [f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {quoted(key)} END" for key in keys]
    far = f"{LEVEL} >= {NEAR_LEVELS}"
    if live:
        # Of windows that evict by a delta, inner nodes are read before leaves.
        far += f" OR ({LIVE} IS NOT NULL AND {LEVEL} > 0)"
    return [KIND, SEQUENCE, f"CASE WHEN {SEQUENCE} IS NOT NULL THEN {far} END", *of_keys, POSITION, LEVEL]


def needed_rows(state: str, keys: Sequence[str], where: str, *, live: bool, removes: bool = True) -> str:
    """The SQL query for the rows of ``state`` that satisfy ``where`` and that a batch after them all may need.

    Parameters
    ----------
    live
        Whether the table has windows that evict by a delta, whose nodes supersede one another.
    removes
        Whether no older rows are left that a node without live tuples supersedes, so that it is not needed.
    """
    of_key = [*keys, SEQUENCE]
    renamed = [f'"_ key {number}"' for number in range(len(of_key))]
    named = ", ".join(f"{quoted(name)} AS {alias}" for name, alias in zip(of_key, renamed, strict=True))
    age = f"row_number() OVER (PARTITION BY {', '.join(map(quoted, of_key))} ORDER BY {BATCH} DESC) AS {_AGE}"
    known = f"SELECT {named}, {BATCH} AS {_NEWEST}, {HEAD} AS {_LEAST}, {THROUGH} AS {_PASSED}, {age} FROM {state}"
    newest = f"SELECT * FROM ({known} WHERE {KIND} = '{KEY_ROW}' AND {where}) WHERE {_AGE} = 1"
    same = " AND ".join(f"(s.{quoted(name)} IS NOT DISTINCT FROM n.{alias})" for name, alias in zip(of_key, renamed, strict=True))
    # What of a key lacks its ``key`` row is kept, so that the next batch of the key tells of it.
    nodes, rows = f"{POSITION} >= {_LEAST}", f"SELECT * FROM {state} WHERE {where}"
    if live:
        of_node = ", ".join([*map(quoted, of_key), KIND, LEVEL, POSITION])
        rows = f"SELECT *, row_number() OVER (PARTITION BY {of_node} ORDER BY {BATCH} DESC) AS {_VERSION} FROM {state} WHERE {where}"
        is_latest = f"{_VERSION} = 1 AND {POSITION} + (1 << {LEVEL}) > {_LEAST}" + (f" AND {LIVE} > 0" if removes else "")
        nodes = f"CASE WHEN {LIVE} IS NULL THEN {nodes} ELSE {is_latest} END"
    kinds = {
        KEY_ROW: f"{BATCH} = {_NEWEST}",
        WAITING: f"({TIME} >= {_PASSED} OR {_PASSED} IS NULL)",
        NODE: f"({nodes} OR {_LEAST} IS NULL)",
    }
    chosen = " OR ".join(f"({KIND} = '{kind}' AND {condition})" for kind, condition in kinds.items())
    return f"SELECT s.* FROM ({rows}) AS s LEFT JOIN ({newest}) AS n ON {same} WHERE {chosen}"
