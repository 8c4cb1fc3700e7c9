"""Computes a small batch over positions in this process."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.new_rows import NewRows, counted
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage


@dataclass(frozen=True)
class LoadedInProcess:
    """New rows, null for none, the usable ones of them, and the restored state of a small batch."""

    new: NewRows | None
    rows: pa.Table
    stored: pa.Table
    stage: PositionStage

    def compute(self) -> Computed:
        done = advance(self.stage, self.rows, self.stored)
        found = [table for table in done.results if len(table)]
        return Computed(
            rows=pa.concat_tables(found) if found else None,
            state=done.state if done.state is not None and len(done.state) else None,
            windows=counted(found),
            rows_applied=done.applied,
            rows_late=done.late,
            new_state=0 if done.state is None else len(done.state),
            judged=None if self.new is None else self.new.without(done.refused, self.stage.batch).refused(),
            rows_refused=len(done.refused),
        )
