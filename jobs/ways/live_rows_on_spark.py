"""Computes a batch by live rows on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.pass_output import written_by_tasks
from windowmill.jobs.ways.task_output import Output, Targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and entries of the log; either may be null."""

    new: NumberedRows | None
    entries: DataFrame | None
    rows: live.LiveRows
    batch: TableInput
    emission: Emission
    partitions: int

    def compute(self, targets: Targets) -> Output:
        batch, new = self.batch, self.new
        if new is None and self.entries is None:
            return Output()
        rows, partitions = self.rows, partitions_for(0 if new is None else new.survey.rows, self.partitions)
        gathered = rows.gathered(None if new is None else rows.fresh(new.rows), self.entries, partitions)
        task = rows.task(batch.clock(self.emission), batch.batch, keep=batch.builds_state)
        advance = partial(live.advance, task=task, ends=self.emission.ends(batch.plan), check=batch.check)
        return written_by_tasks(gathered, partial(live.groups, log=rows.log), advance, targets)
