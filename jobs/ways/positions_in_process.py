"""Computes a small batch over positions in this process."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.pass_output import written
from windowmill.jobs.ways.task_output import OutputWriter
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage


@dataclass(frozen=True)
class LoadedInProcess:
    """Usable new rows and the restored state of a small batch."""

    rows: pa.Table
    stored: pa.Table
    stage: PositionStage

    def compute(self, writer: OutputWriter) -> Computed:
        return written(writer, advance(self.stage, self.rows, self.stored))
