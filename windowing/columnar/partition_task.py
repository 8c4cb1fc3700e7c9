"""The work of a batch on the keys of one Spark partition: takes log entries and fresh rows, returns result rows and new entries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.added_columns import NUMBER_OF
from windowmill.windowing.columnar.keyed import KeyedWindows, Step
from windowmill.windowing.columnar.results import result_rows
from windowmill.windowing.columnar.rows import ROW_NUMBER, ROW_TIME, ROW_WATERMARK
from windowmill.windowing.columnar.state_log import StateLog
from windowmill.windowing.counts import Counts
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE, Clock


@dataclass(frozen=True)
class PartitionTask:
    """Settings of one Spark partition's work; small, and equal for all partitions of a batch.

    Attributes
    ----------
    schema
        Schema of result rows; it may omit some of their columns.
    clock
        The clock after the batch; ``since`` is the watermark before it.
    batch
        Number of the batch.
    keep
        Whether later batches continue from this one's state.
    """

    pipeline: Pipeline
    log: StateLog
    schema: pa.Schema
    clock: Clock
    batch: int
    keep: bool = True

    def work(self, entries: pa.Table, fresh: pa.Table) -> PartitionResult:
        """Apply ``fresh`` rows to the state in ``entries``; O(n log n) in live rows.

        Parameters
        ----------
        entries
            All log entries of some keys, with the columns of ``log.schema``.
        fresh
            New rows in any order, with the columns of ``log.fresh_schema``.
        """
        windows = KeyedWindows(self.pipeline)
        stored = self.log.read(entries)
        if stored.tables:
            windows.restore(stored.tables)
        rows = self._arrived(fresh, windows)
        first = int(rows.column(ROW_NUMBER)[0].as_py()) if rows.num_rows else np.iinfo(np.int64).max
        step = windows.advance(rows, first, self.clock)
        keys = windows.keys.table if windows.keys is not None else pa.table({})
        changes = None
        if self.keep:
            changes = self.log.changes(stored, windows.snapshot(), step.due, self.batch)
        taken = ~np.isin(rows.column(ROW_NUMBER).to_numpy(), step.refused)
        late = _late(rows) & taken
        counts = Counts(rows_applied=int(taken.sum()), rows_late=int(late.sum()), late_missed=step.missed)
        return PartitionResult(self, step, keys, changes, counts)

    def _arrived(self, fresh: pa.Table, windows: KeyedWindows) -> pa.Table:
        """``fresh`` as live rows in order of arrival; a null watermark becomes that of the row before."""
        number = fresh.column(NUMBER_OF).to_numpy()
        if (number[1:] < number[:-1]).any():
            fresh = fresh.sort_by(NUMBER_OF)
        rows = self.log.rows(fresh, windows.learn(self.log.key_columns(fresh), fresh.num_rows))
        known = pc.fill_null(rows.column(ROW_WATERMARK), BEFORE).to_numpy()
        watermark_at_arrival = np.maximum.accumulate(np.concatenate(([self.clock.since], known)))[1:]
        return rows.set_column(rows.schema.get_field_index(ROW_WATERMARK), ROW_WATERMARK, pa.array(watermark_at_arrival))


@dataclass(frozen=True)
class PartitionResult:
    """The result of a partition's work.

    Attributes
    ----------
    keys
        Key columns; row k is the key of index k.
    changes
        Entries for the log; none if no state is kept.
    counts
        The fresh rows that were not refused, and those behind the watermark among them; those that missed windows.
    """

    task: PartitionTask
    step: Step
    keys: pa.Table
    changes: pa.Table | None
    counts: Counts

    def results(self, ends: tuple[int, int] | None = None) -> Iterator[pa.Table]:
        """Result rows, one table per chunk of windows; only those that end in the range (begin, end], if ``ends`` is given."""
        for chunk in self.step.chunks:
            rows = result_rows(chunk, self.task.pipeline, self.keys, self.task.schema, self.task.batch)
            yield rows if ends is None else _ending_in(rows, *ends)

    @property
    def refused(self) -> Ints:
        """Numbers of the fresh rows that came too late."""
        return self.step.refused


def _ending_in(rows: pa.Table, begin: int, end: int) -> pa.Table:
    at = rows.column("window_end").cast(pa.int64())
    return rows.filter(pc.and_(pc.greater(at, begin), pc.less_equal(at, end)))


def _late(rows: pa.Table) -> Bools:
    return np.asarray(rows.column(ROW_TIME).to_numpy() < rows.column(ROW_WATERMARK).to_numpy(), np.bool_)
