"""Computes a batch by slices on Spark, with the two passes of :mod:`windowmill.jobs.ways.slice_passes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from windowmill.jobs.ways import slice_passes as passes
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_passes import SlicesOfFiles, numbers_of_tasks
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.lateness import counted
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
    grids = slicing.slices.grids.grids
    found: SlicesOfFiles | DataFrame | None = None
    if isinstance(new, FileRows):
        found = SlicesOfFiles(new, slicing.stage, partial(new.judged, stage=slicing.stage, grids=grids))
    elif new is not None:
        judge = None if new.rule is None else partial(counted, rule=new.rule, grids=grids)
        found = passes.lift(new.rows, slicing.stage, judge)
    n = partitions_for(0 if new is None else new.survey.rows, slicing.batch.partitions(spark))
    return LoadedOnSpark(spark, found, stored, slicing.window_stage(emission), n)


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows in files, or packed slices of them in Spark, and restored slices in Spark; either may be null."""

    spark: SparkSession
    new: SlicesOfFiles | DataFrame | None
    stored: DataFrame | None
    stage: WindowStage
    partitions: int

    def compute(self, targets: Targets) -> Output:
        slices, stage, new = self.stage.slices, self.stage, self.new
        if isinstance(new, SlicesOfFiles) and self.stored is None and (readers := new.readers(self.spark, stage)):
            shares = numbers_of_tasks(self.spark, readers)
            return passes.written_by_tasks(shares, partial(new.combined, stage, readers), stage, targets)
        restored = None if self.stored is None else RestoredSlices(self.stored)
        packed = [] if restored is None else [passes.pack(restored.rows, slices)]
        if new is not None:
            packed.append(new.packed(self.spark) if isinstance(new, SlicesOfFiles) else new)
        if not packed:
            return Output()
        gathered = passes.by_bucket(reduce(DataFrame.unionByName, packed), stage, self.partitions)
        output = passes.written_by_tasks(gathered, partial(slice_windows.combined, stage), stage, targets)
        return output if restored is None else output + Output(restored=restored.kinds())
