"""A batch's work on a share of the keys: entries of the state's log and fresh rows in, result rows and new entries out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.windowing.columnar.keyed import KeyedWindows, Step
from windowmill.windowing.columnar.log import StateLog
from windowmill.windowing.columnar.output import result_rows
from windowmill.windowing.columnar.rows import NUMBER, TIME, WATERMARK
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE, Clock


@dataclass(frozen=True)
class Share:
    """What every share of a batch's keys is worked on by; small, and the same for all of them.

    Attributes
    ----------
    schema
        Of result rows; it may have less than all of their columns.
    clock
        As the batch leaves it; ``since`` is the watermark as the batch found it.
    batch
        Number of the batch.
    keep
        Whether later batches go on from this one's state.
    final
        Whether the input ends with the batch.
    """

    pipeline: Pipeline
    log: StateLog
    schema: pa.Schema
    clock: Clock
    batch: int
    keep: bool = True
    final: bool = False

    def work(self, entries: pa.Table, fresh: pa.Table) -> Worked:
        """Apply ``fresh`` rows to the state that ``entries`` tell of.

        Parameters
        ----------
        entries
            All that the log has of some keys; columns as ``log.schema``.
        fresh
            Rows that have arrived, in any order; columns as ``log.fresh_schema``.
        """
        windows = KeyedWindows(self.pipeline)
        stored = self.log.read(entries)
        if stored.tables:
            windows.restore(stored.tables)
        rows = self._arrived(fresh, windows)
        first = int(rows.column(NUMBER)[0].as_py()) if rows.num_rows else np.iinfo(np.int64).max
        step = windows.advance(rows, first, self.clock.end() if self.final else self.clock)
        keys = windows.keys.table if windows.keys is not None else pa.table({})
        changes = None
        if self.keep:
            changes = self.log.changes(stored, windows.snapshot(), step.due, self.batch)
        taken = ~np.isin(rows.column(NUMBER).to_numpy(), step.refused)
        late = _late(rows) & taken
        return Worked(self, step, keys, changes, int(taken.sum()), int(late.sum()))

    def _arrived(self, fresh: pa.Table, windows: KeyedWindows) -> pa.Table:
        """``fresh`` as live rows in the order of arrival; a watermark that is not told is at least that of the row before."""
        fresh = fresh.sort_by("_number")
        rows = self.log.rows(fresh, windows.learn(self.log.key_columns(fresh), fresh.num_rows))
        told = pc.fill_null(rows.column(WATERMARK), BEFORE).to_numpy()
        met = np.maximum.accumulate(np.concatenate(([self.clock.since], told)))[1:]
        return rows.set_column(rows.schema.get_field_index(WATERMARK), WATERMARK, pa.array(met))


@dataclass(frozen=True)
class Worked:
    """What a share of the keys has come to.

    Attributes
    ----------
    keys
        Key columns by key index.
    changes
        Entries for the log; none where no state is kept.
    applied, late
        How many fresh rows were not refused, and how many of those were behind the watermark.
    """

    share: Share
    step: Step
    keys: pa.Table
    changes: pa.Table | None
    applied: int
    late: int

    def results(self) -> Iterator[pa.Table]:
        """Result rows, in pieces."""
        for chunk in self.step.chunks:
            yield result_rows(chunk, self.share.pipeline, self.keys, self.share.schema, self.share.batch)

    @property
    def refused(self) -> Ints:
        """Numbers of the fresh rows that came too late."""
        return self.step.refused


def _late(rows: pa.Table) -> Bools:
    return np.asarray(rows.column(TIME).to_numpy() < rows.column(WATERMARK).to_numpy(), np.bool_)
