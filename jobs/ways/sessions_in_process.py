"""Computes a small batch by sessions in this process, and by slices if the pipeline also has windows on grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windowmill.jobs.ways import slices_in_process
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.new_rows import NewRows, counted
from windowmill.windowing.columnar.log import NUMBER_OF
from windowmill.windowing.columnar.session_partials import SessionStage, advance
from windowmill.windowing.columnar.slices import CLOSED, TIME
from windowmill.windowing.grids import Grids

if TYPE_CHECKING:
    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.columnar.slices import WindowStage
    from windowmill.windowing.kernels.combine import Bools, Ints


@dataclass(frozen=True)
class LoadedInProcess:
    """New rows, null for none, and restored fragments of a small batch. ``slices`` is for windows on grids; null if there are none."""

    new: NewRows | None
    stored: pa.Table
    batch: Input
    slices: slices_in_process.LoadedInProcess | None

    def compute(self, stage: SessionStage, state: pa.Schema) -> Computed:
        rows = stage.rows.empty_table() if self.new is None else self.new.usable(self.batch, stage.rows)
        done = advance(stage, rows, self.stored)
        on_grids = Computed() if self.slices is None else self.slices.compute()
        refused = done.refused
        if self.slices is not None and len(refused):
            refused = refused[~_counted_on_grids(self.slices.stage, rows, refused)]
        taken = len(done.refused) - len(refused)
        results = [*done.results, *([on_grids.rows] if isinstance(on_grids.rows, pa.Table) else [])]
        kept = [part for part in (done.state, on_grids.state) if isinstance(part, pa.Table) and len(part)]
        return Computed(
            rows=pa.concat_tables(results) if results else None,
            state=pa.concat_tables([_with_columns(part, state) for part in kept]) if kept else None,
            windows=counted(done.results) | on_grids.windows,
            rows_applied=done.applied + taken,
            rows_late=done.late + taken,
            new_state=(0 if done.state is None else len(done.state)) + on_grids.new_state,
            judged=None if self.new is None else self.new.without(refused, self.batch.batch).refused(),
            rows_refused=len(refused),
        )


def _counted_on_grids(stage: WindowStage, rows: pa.Table, numbers: Ints) -> Bools:
    """Whether the ``rows`` of these ``numbers`` count in a window on a grid."""
    chosen = rows.take(pa.array(np.searchsorted(rows.column(NUMBER_OF).to_numpy(), numbers)))
    time, closed = (chosen.column(name).to_numpy() for name in (TIME, CLOSED))
    return Grids(stage.grids).any_open(time, closed)


def _with_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` with the columns of ``schema``; columns that ``rows`` lacks are null."""
    columns = (rows.column(f.name) if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema)
    return pa.table(list(columns), schema=schema)
