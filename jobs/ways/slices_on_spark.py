"""Computes a batch by slices on Spark, with the two passes of :mod:`windowmill.jobs.ways.slice_passes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import slice_passes as passes
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.counting import count
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.partitioning import partitions_for
from windowmill.windowing.columnar.packing import LATE_ROWS, ROWS
from windowmill.windowing.columnar.slices import GRID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.jobs.ways.slice_stages import Slicing
    from windowmill.windowing.columnar.slices import WindowStage


def load(spark: SparkSession, new: NumberedRows | None, stored: DataFrame | None, slicing: Slicing, emission: Emission) -> LoadedOnSpark:
    """New rows and restored slices, of which either may be null."""
    batch = slicing.batch
    judged = None if new is None else lateness.judged(new.arrived, new.survey, batch, slicing.slices.grids.grids)
    n = partitions_for(0 if new is None else new.survey.rows, batch.partitions(spark))
    return LoadedOnSpark(judged, stored, slicing.window_stage(emission), n, batch.builds_state)


@dataclass(frozen=True)
class LoadedOnSpark:
    """Judged rows and restored slices in Spark; either may be null."""

    judged: DataFrame | None
    stored: DataFrame | None
    stage: WindowStage
    partitions: int
    keep: bool

    def compute(self) -> Computed:
        slices, stage = self.stage.slices, self.stage
        packed = [] if self.stored is None else [passes.pack(self.stored, slices)]
        packed += [] if self.judged is None else [passes.lift(self.judged, slices)]
        if not packed:
            return Computed()
        cached = passes.windows_and_slices(reduce(DataFrame.unionByName, packed), stage, self.partitions).persist()
        try:
            counted = (ROWS, LATE_ROWS, passes.SLICES)
            spans, totals = count(cached.withColumnRenamed(GRID, "window"), {name: F.sum(name) for name in counted})
        except BaseException:
            cached.unpersist()
            raise
        rows_applied, rows_late, new_state = (totals[name] for name in counted)
        return Computed(
            rows=passes.results(cached, stage) if spans else None,
            state=passes.unlisted(cached, slices) if self.keep and new_state else None,
            windows={stage.grids[number][0]: span for number, span in spans.items()},
            rows_applied=rows_applied,
            rows_late=rows_late,
            new_state=new_state,
            cached=(cached,),
        )
