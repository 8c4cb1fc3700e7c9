"""Surveys the new rows of a batch whose windows depend on the order of arrival: in this process if they are few, else on Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from windowmill.jobs.ways import lateness_in_process as lateness
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.windowing.columnar.slices import Reading


@dataclass(frozen=True, slots=True)
class Surveyed:
    """New rows, null if the batch has none, and the windows that become complete."""

    new: NewRows | NumberedRows | None
    rows_read: int
    emission: Emission

    @classmethod
    def of(cls, spark: SparkSession, batch: TableInput, stage: Reading) -> Self:
        """Read the new rows of ``batch`` with the columns that ``stage`` reads."""
        if not batch.files:
            return cls(None, 0, batch.emission_by_arrival(batch.seen))
        rows = batch.read(spark)
        if limits.are_few(batch.files, stage.layout):
            few = NewRows.collected(rows, stage)
            return cls(few, len(few.table), batch.emission_by_arrival(lateness.seen_after(few.table, batch.seen)))
        many = NumberedRows.surveyed(rows, batch)
        return cls(many, many.survey.rows, batch.emission_by_arrival(many.survey.seen))
