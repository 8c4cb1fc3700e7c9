"""Computes a small batch by sessions in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.pass_output import written
from windowmill.jobs.ways.task_output import OutputWriter
from windowmill.windowing.columnar.joined_sessions import advance
from windowmill.windowing.columnar.session_partials import SessionStage

if TYPE_CHECKING:
    from windowmill.jobs.ways.input import Input


@dataclass(frozen=True)
class LoadedInProcess:
    """New rows, null for none, and restored fragments of a small batch."""

    new: NewRows | None
    stored: pa.Table
    stage: SessionStage
    batch: Input

    def compute(self, writer: OutputWriter) -> Computed:
        stage = self.stage
        rows = stage.rows.empty_table() if self.new is None else self.new.usable(self.batch, stage.rows)
        return written(writer, advance(stage, rows, self.stored))
