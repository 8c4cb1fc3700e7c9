"""Computes a batch by slices on Spark, with the two passes of :mod:`windowmill.jobs.ways.slice_passes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import slice_passes as passes
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_passes import SlicesOfFiles, numbers_of_tasks
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.jobs.ways.restored import RestoredSlices
from windowmill.jobs.ways.task_output import Output, Targets
from windowmill.windowing.columnar import slice_windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.ways.slice_stages import Slicing
    from windowmill.windowing.columnar.slices import WindowStage


def load(
    spark: SparkSession, new: FileRows | NumberedRows | None, stored: DataFrame | None, slicing: Slicing, emission: Emission
) -> LoadedOnSpark:
    """New rows and restored slices, of which either may be null."""
    batch, grids = slicing.batch, slicing.slices.grids.grids
    judged: SlicesOfFiles | DataFrame | None = None
    if isinstance(new, FileRows):
        judged = SlicesOfFiles(new, slicing.stage, partial(new.judged, stage=slicing.stage, grids=grids))
    elif new is not None:
        judged = lateness.judged(new.arrived, new.survey, batch, grids)
    n = partitions_for(0 if new is None else new.survey.rows, batch.partitions(spark))
    return LoadedOnSpark(spark, judged, stored, slicing.window_stage(emission), n)


@dataclass(frozen=True)
class LoadedOnSpark:
    """Judged rows, in files or in Spark, and restored slices in Spark; either may be null."""

    spark: SparkSession
    judged: SlicesOfFiles | DataFrame | None
    stored: DataFrame | None
    stage: WindowStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        slices, stage, judged = self.stage.slices, self.stage, self.judged
        if isinstance(judged, SlicesOfFiles) and self.stored is None and (readers := judged.readers(self.spark, stage)):
            shares = numbers_of_tasks(self.spark, readers)
            return passes.written_by_tasks(shares, partial(judged.combined, stage, readers), stage, targets)
        restored = None if self.stored is None else RestoredSlices(self.stored)
        packed = [] if restored is None else [passes.pack(restored.rows, slices)]
        if judged is not None:
            packed.append(judged.packed(self.spark) if isinstance(judged, SlicesOfFiles) else passes.lift(judged, slices))
        if not packed:
            return Output()
        gathered = passes.by_bucket(reduce(DataFrame.unionByName, packed), stage, self.partitions)
        output = passes.written_by_tasks(gathered, partial(slice_windows.combined, stage), stage, targets)
        return output if restored is None else output + Output(restored=restored.kinds())
