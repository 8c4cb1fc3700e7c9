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
from windowmill.jobs.ways.lateness_on_spark import Survey
from windowmill.windowing.columnar.packing import LATE_ROWS, ROWS
from windowmill.windowing.columnar.slices import GRID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.checkpoints.state.partials import PartialTable
    from windowmill.checkpoints.state.wanted import Wanted
    from windowmill.jobs.ways.slice_stages import Slicing
    from windowmill.windowing.columnar.slices import WindowStage


@dataclass(frozen=True)
class OnSpark:
    """New rows in Spark with their survey."""

    rows: DataFrame
    survey: Survey
    slicing: Slicing

    @classmethod
    def surveyed(cls, rows: DataFrame, slicing: Slicing) -> OnSpark:
        return cls(rows, lateness.survey(rows, slicing.batch), slicing)

    @property
    def rows_read(self) -> int:
        return self.survey.rows

    @property
    def seen(self) -> int | None:
        return self.survey.seen

    @property
    def revised_after(self) -> int | None:
        return self.survey.low if self.slicing.batch.revises else None

    def load(self, table: PartialTable, wanted: Wanted | None, stage: WindowStage) -> LoadedOnSpark:
        judged = lateness.judged(self.rows, self.survey, self.slicing.batch, self.slicing.slices.grids.grids)
        return load(self.rows.sparkSession, judged, self.slicing, table, wanted, stage)


def load(
    spark: SparkSession, judged: DataFrame | None, slicing: Slicing, table: PartialTable, wanted: Wanted | None, stage: WindowStage
) -> LoadedOnSpark:
    """Combine ``judged`` rows, if there are any, with the ``wanted`` rows of the state."""
    stored = None if wanted is None else table.restore(wanted, before_batch=slicing.batch.batch)
    return LoadedOnSpark(judged, stored, stage, slicing.batch.partitions(spark), slicing.batch.builds_state)


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
            judged=self.judged,
            cached=(cached,),
        )
