"""Computes a batch by live rows on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.pass_output import computed

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

    def compute(self) -> Computed:
        batch, new = self.batch, self.new
        if new is None and self.entries is None:
            return Computed()
        worked = self.rows.work(
            None if new is None else self.rows.fresh(new.rows),
            self.entries,
            batch.clock(self.emission),
            batch.batch,
            partitions_for(0 if new is None else new.survey.rows, self.partitions),
            keep=batch.builds_state,
            ends=self.emission.ends(batch.plan),
            check=batch.check,
        )
        return computed(worked, keeps=batch.builds_state)
