"""Computes a batch by live rows on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_passes import RowsByKey
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.live_rows_in_process import LiveRowReading
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.pass_output import written_by_tasks
from windowmill.jobs.ways.task_output import Output, Targets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and entries of the log; either may be null."""

    spark: SparkSession
    new: FileRows | NumberedRows | None
    entries: DataFrame | None
    rows: live.LiveRows
    batch: TableInput
    emission: Emission
    partitions: int

    def compute(self, targets: Targets) -> Output:
        batch, new, rows = self.batch, self.new, self.rows
        if new is None and self.entries is None:
            return Output()
        if isinstance(new, FileRows):
            log = rows.log
            by_key = RowsByKey(new, partial(_fresh, new, rows), log.fresh_schema, log.schema, list(log.keys.values()))
            gathered, groups = by_key.gathered(self.spark, self.entries, self.partitions)
        else:
            n = partitions_for(0 if new is None else new.survey.rows, self.partitions)
            gathered, groups = (
                rows.gathered(None if new is None else rows.fresh(new.rows), self.entries, n),
                partial(live.groups, log=rows.log),
            )
        task = rows.task(batch.clock(self.emission), batch.batch, keep=batch.builds_state)
        advance = partial(live.advance, task=task, ends=self.emission.ends(batch.plan), check=batch.check)
        return written_by_tasks(gathered, groups, advance, targets)


def _fresh(new: FileRows, rows: live.LiveRows, task: int) -> Iterator[pa.Table]:
    """Runs in an executor: the usable new rows of a task with the columns of the log that they fill."""
    reading = LiveRowReading(rows.pipeline, rows.types, rows.log)
    return (reading.labelled(marked) for marked in new.marked(task, reading, reading.schema))
