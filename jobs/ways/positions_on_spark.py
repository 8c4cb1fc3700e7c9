"""Computes a batch over positions on Spark: one shuffle brings the new rows and the restored state of a key together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from windowmill.jobs.ways import keyed_pass
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.pass_output import written_by_tasks
from windowmill.jobs.ways.task_output import Output, Targets
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows, and the restored state in Spark; either may be null."""

    spark: SparkSession
    new: FileRows | NumberedRows | None
    stored: DataFrame | None
    stage: PositionStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        stage, new = self.stage, self.new
        if new is None and self.stored is None:
            return Output()
        rows, stored = stage.state.rows, stage.state.stored_schema
        gathered, groups = keyed_pass.gathered(self.spark, new, self.stored, stage, rows, stored, self.partitions)
        return written_by_tasks(gathered, groups, partial(advance, stage), targets)
