"""The way that a batch of a pipeline goes: all of its parts over the same new rows and one state table.

This process computes a small batch, Spark any other. The choice is final once the state has been restored. On Spark each part reads the
new rows from the source itself, and only the columns that it needs. A copy for all parts would have to hold every column, for quarantine,
and would spill for large batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windowmill.checkpoints.state.base import StateTable, is_overgrown, is_scattered
from windowmill.checkpoints.state.joint import compact_entries, joint_schema
from windowmill.checkpoints.state.partials import Needed, compact_partials
from windowmill.checkpoints.state.position_compaction import overgrown_from
from windowmill.checkpoints.stores import is_table
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Loaded, Part
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.joining import joined
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.surveyed import Surveyed, numbered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Restored:
    """New rows, null if there are none, and for each part what it loaded."""

    new: NewRows | NumberedRows | None
    loaded: Sequence[Loaded]


class Way:
    """Computes a batch step by step; its state table is at the path ``state``. ``spark`` gives the session when a step needs it."""

    def __init__(self, spark: Callable[[], SparkSession], batch: TableInput, parts: Sequence[Part], state: str) -> None:
        self._spark, self._batch, self._parts, self._path = spark, batch, parts, state
        self._ways, self._spans = [part.way for part in parts], [name for part in parts for name in part.spans]
        # Whether a small batch could not be computed in this process, because of its state or its results.
        self._is_beyond_process = False
        # A user's function sees all columns of the source, and the source may gain columns.
        widens = "live rows" in self._ways
        self._table = StateTable(spark, state, joint_schema(batch.pipeline, [part.schema for part in parts]), batch.check, widens=widens)

    def survey(self) -> Surveyed:
        """Read the new rows' event times, and decide which windows the batch completes."""
        return Surveyed.of(self._spark, self._batch, self._parts)

    def restore(self, surveyed: Surveyed) -> Restored:
        """Read the state that these rows and windows need, as the last batch left it."""
        new, emission = surveyed.new, surveyed.emission
        if not isinstance(new, NumberedRows):
            loaded = self._few(new, emission)
            if loaded is not None:
                return Restored(new, loaded)
            self._is_beyond_process = True
            new = None if new is None else numbered(new.in_spark(), self._batch, self._parts)
        return Restored(new, [part.on_spark(new, emission) for part in self._parts])

    def _few(self, new: NewRows | None, emission: Emission) -> list[Loaded] | None:
        """Load a small batch in this process; null if one part cannot."""
        loaded: list[Loaded] = []
        for part in self._parts:
            each = part.few(new, emission)
            if each is None:
                return None
            loaded.append(each)
        return loaded

    def apply(self, surveyed: Surveyed, restored: Restored, staging: str) -> Applied:
        """Combine rows and state into complete windows; stage rows that cannot be applied under the folder ``staging``."""
        computed = joined(restored.new, self._parts, restored.loaded, self._batch, self._table.schema)
        return settle(self._batch, surveyed.emission, computed, surveyed.rows_read, staging)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        """Append the batch's ``count`` new rows of state in one commit; returns the table's version."""
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        """Whether the state has grown enough to be compacted. Reads only its Delta log, and footers of large files.

        Of slices and sessions alone only spans have, which batches look for in all files: else ``windowmill maintain`` merges these.
        """
        if not (self._has_entries or self._spans) or not is_table(self._path):
            return False
        return self._merged_from() is not None if self._has_entries else is_scattered(self._path)

    def compact(self) -> None:
        """Compact the state, after the commit."""
        before = self._batch.batch + 1
        if self._has_entries:
            compact_entries(self._path, before, self._ways, spans=self._spans, first=self._merged_from() or None)
        else:
            compact_partials(self._path, Needed.all_but_old_spans(self._batch.pipeline.keys, self._spans, before))

    @property
    def _has_entries(self) -> bool:
        """Whether the state has rows that are compacted together with all others."""
        return bool({"positions", "live rows"} & set(self._ways))

    def _merged_from(self) -> int | None:
        """The first batch whose rows are worth merging with those of all later ones, 0 for all; null for none."""
        if self._ways == ["positions"]:
            return overgrown_from(self._path, lay_out=self._is_beyond_process)
        return 0 if is_overgrown(self._path) else None
