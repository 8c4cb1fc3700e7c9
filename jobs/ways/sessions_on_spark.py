"""Computes a batch by sessions on Spark: one shuffle brings the new rows and open sessions of a key together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.ways import keyed_pass
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.pass_output import written_by_tasks
from windowmill.jobs.ways.task_output import Output, Targets
from windowmill.windowing.columnar.added_columns import SUM
from windowmill.windowing.columnar.joined_sessions import advance
from windowmill.windowing.columnar.session_partials import SessionStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows, and restored fragments in Spark; either may be null."""

    spark: SparkSession
    new: FileRows | NumberedRows | None
    stored: DataFrame | None
    stage: SessionStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        stage, new = self.stage, self.new
        if new is None and self.stored is None:
            return Output()
        schema = stage.schema.append(pa.field(SUM, pa.int64()))
        gathered, groups = keyed_pass.gathered(self.spark, new, self.stored, stage, stage.rows, schema, self.partitions)
        return written_by_tasks(gathered, groups, partial(advance, stage), targets)
