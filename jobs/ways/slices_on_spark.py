"""Computes a batch by slices on Spark, with the two passes of :mod:`windowmill.jobs.ways.slice_passes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import slice_passes as passes
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.restored import RestoredSlices
from windowmill.jobs.ways.task_output import Output, Targets
from windowmill.windowing.columnar import slice_windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.ways.slice_stages import Slicing
    from windowmill.windowing.columnar.slices import WindowStage


def load(spark: SparkSession, new: NumberedRows | None, stored: DataFrame | None, slicing: Slicing, emission: Emission) -> LoadedOnSpark:
    """New rows and restored slices, of which either may be null."""
    batch = slicing.batch
    judged = None if new is None else lateness.judged(new.arrived, new.survey, batch, slicing.slices.grids.grids)
    n = partitions_for(0 if new is None else new.survey.rows, batch.partitions(spark))
    return LoadedOnSpark(judged, stored, slicing.window_stage(emission), n)


@dataclass(frozen=True)
class LoadedOnSpark:
    """Judged rows and restored slices in Spark; either may be null."""

    judged: DataFrame | None
    stored: DataFrame | None
    stage: WindowStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        slices, stage = self.stage.slices, self.stage
        restored = None if self.stored is None else RestoredSlices(self.stored)
        packed = [] if restored is None else [passes.pack(restored.rows, slices)]
        packed += [] if self.judged is None else [passes.lift(self.judged, slices)]
        if not packed:
            return Output()
        gathered = passes.by_bucket(reduce(DataFrame.unionByName, packed), stage, self.partitions)
        output = passes.written_by_tasks(gathered, partial(slice_windows.combined, stage), stage, targets)
        return output if restored is None else output + Output(restored=restored.kinds())
