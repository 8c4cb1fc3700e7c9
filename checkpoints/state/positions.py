"""The state table of windows over positions: rows of keys, waiting tuples, and nodes of a FlatFAT; batches only append.

See :mod:`windowmill.windowing.columnar.positions` for the kinds of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.opening import reporting_damage
from windowmill.checkpoints.quoting import backquoted, quoted
from windowmill.checkpoints.reading import require_columns
from windowmill.checkpoints.state.base import StateTable, files_of
from windowmill.checkpoints.state.wanted import Condition, ReadLimit
from windowmill.windowing.columnar.log import BATCH, DUE, KIND
from windowmill.windowing.columnar.position_nodes import ABOVE, FIRST, LEVEL, POSITION
from windowmill.windowing.columnar.position_reads import alone_in, needed
from windowmill.windowing.columnar.positions import FRONT, HEAD, KEY_ROW, NEXT, NODE, SEQUENCE, THROUGH, WAITING, PositionStage, scalar_of
from windowmill.windowing.columnar.rows import key_codes
from windowmill.windowing.columnar.slices import TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Columns of the keys that a batch works on: their rows in it, how many tuples it may apply, and their latest ``key`` row. Their prefix
#: distinguishes them from key columns.
_NEW, _APPLIED, _LATEST, _BOUNDS = "_ new", "_ applied", "_ latest", "_ bounds"
#: Columns beside those of the state in :func:`needed_rows`, quoted.
_AGE, _LEAST, _PASSED = '"_ age"', '"_ head"', '"_ through"'


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
            table = newest(self._path)
            files = files_of(table)
            if sum(file["size_bytes"] for file in files) > limit.span_bytes:
                return None
            before = Condition(
                f"{BATCH} < {stage.batch} AND {SEQUENCE} IS NOT NULL", (pc.field(BATCH) < stage.batch) & pc.field(SEQUENCE).is_valid()
            )
            stored = self._rows(table, files, before, limit.rows)
        if stored is None:
            return None
        columns = [pa.chunked_array([*stored.column(key).chunks, *rows.column(key).chunks]) for key in stage.keys]
        codes, n_keys = key_codes(columns, len(stored) + len(rows))
        n_new = np.bincount(codes[len(stored) :], minlength=n_keys)
        return stored.filter(pa.array(needed(stage, stored, codes[: len(stored)], n_new)))

    def restore(self, stage: PositionStage, touched: DataFrame | None) -> DataFrame | None:
        """As :meth:`read`, on Spark; ``touched`` are the usable new rows, null for none."""
        if not self._exists:
            return None
        from pyspark.sql import functions as F

        stored = self._on_spark().where((F.col(BATCH) < stage.batch) & F.col(SEQUENCE).isNotNull())
        require_columns(self._path, stored.columns, self._schema.names)
        stored = stored.select(*map(backquoted, self._schema.names))
        keys = [backquoted(name) for name in (*stage.keys, SEQUENCE)]
        latest = F.max_by(F.struct(DUE, NEXT, *_fronts(stage)), F.when(F.col(KIND) == KEY_ROW, F.col(BATCH)))
        # A tuple that waits still came at or after the watermark before the batch.
        ready = (F.col(KIND) == WAITING) & (F.col(TIME) >= stage.clock.since) & (F.col(TIME) < stage.clock.watermark)
        known = stored.groupBy(*keys).agg(latest.alias(_LATEST), F.count_if(ready).alias(_APPLIED))
        new = F.lit(None).cast("long")
        if touched is not None:
            counts = touched.groupBy(*keys[:-1]).agg(F.count("*").alias(_NEW)).select(*_renamed(keys[:-1]), _NEW)
            known = known.join(counts, _alike(known, counts, keys[:-1]), "left")
            new = F.col(_NEW)
        active = known.where(new.isNotNull() | (F.col(f"{_LATEST}.{DUE}") <= stage.clock.watermark))
        applied = F.coalesce(new, F.lit(0)) + F.col(_APPLIED)
        bounds = active.select(*_renamed(keys), F.col(_LATEST).alias(_BOUNDS), applied.alias(_APPLIED))
        # The checksums tell of rows that are no sound nodes.
        wanted = (F.col(KIND) != NODE) | F.coalesce(_make_up(stage), F.lit(True))
        return stored.join(bounds, _alike(stored, bounds, keys)).where(wanted).select(*map(backquoted, self._schema.names))


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
    """Whether a node is one of those that make up its key's windows, as :func:`.needed` tells."""
    from pyspark.sql import functions as F

    begin, parent = F.col(POSITION), F.expr(f"shiftleft(shiftright({POSITION}, int({LEVEL} + 1)), int({LEVEL} + 1))")
    parent_end = parent + F.expr(f"shiftleft(2L, int({LEVEL}))")
    found = []
    for name, windows in stage.state.sequences.items():
        for window in windows:
            alone, front = alone_in(stage, window), F.col(f"{_BOUNDS}.{backquoted(scalar_of(stage.pipeline.windows[window].name, FRONT))}")
            leaves_alone = begin - front < F.col(_APPLIED) if alone.by_count else F.col(FIRST) < alone.before
            parents_first = parent - front < F.col(_APPLIED) if alone.by_count else F.col(ABOVE) < alone.before
            in_parent = F.col(ABOVE).isNotNull() & (parent >= front) & (parent_end <= F.col(f"{_BOUNDS}.{NEXT}")) & ~parents_first
            chosen = F.when(leaves_alone, F.col(LEVEL) == 0).otherwise(~in_parent)
            found.append((F.col(SEQUENCE) == name) & (begin >= front) & chosen)
    return reduce(or_, found)


def needed_rows(state: str, keys: Sequence[str], where: str) -> str:
    """The SQL query for the rows of ``state`` that satisfy ``where`` and that a batch after them all may need."""
    of_key, is_key = ", ".join(map(quoted, [*keys, SEQUENCE])), f"{KIND} = '{KEY_ROW}'"
    age = f"row_number() OVER (PARTITION BY {of_key}, {is_key} ORDER BY {BATCH} DESC)"
    head, through = (f"max(CASE WHEN {is_key} AND {_AGE} = 1 THEN {name} END) OVER (PARTITION BY {of_key})" for name in (HEAD, THROUGH))
    known = f"SELECT *, {head} AS {_LEAST}, {through} AS {_PASSED} FROM (SELECT *, {age} AS {_AGE} FROM {state} WHERE {where})"
    return (
        f"SELECT * FROM ({known}) WHERE ({is_key} AND {_AGE} = 1) OR ({KIND} = '{WAITING}' AND {TIME} >= {_PASSED}) "
        f"OR ({KIND} = '{NODE}' AND {POSITION} >= {_LEAST})"
    )
