"""Computes a batch over positions on Spark: one shuffle brings the new rows and the restored state of a key together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from windowmill.jobs.ways import keyed_pass
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.pass_output import written_by_tasks
from windowmill.jobs.ways.task_output import Output, Targets
from windowmill.windowing.columnar.position_batch import advance
from windowmill.windowing.columnar.positions import PositionStage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and the restored state in Spark; either may be null."""

    new: NumberedRows | None
    stored: DataFrame | None
    stage: PositionStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        stage, new = self.stage, self.new
        rows = None if new is None else new.read_by(stage)
        if rows is None and self.stored is None:
            return Output()
        both = keyed_pass.by_key(rows, self.stored, stage.keys, partitions_for(0 if new is None else new.survey.rows, self.partitions))
        return written_by_tasks(
            both, partial(keyed_pass.groups, new=stage.state.rows, stored=stage.state.stored_schema), partial(advance, stage), targets
        )
