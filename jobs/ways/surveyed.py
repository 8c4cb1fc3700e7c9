"""Surveys the new rows of a batch: in this process if they are few, else on Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from windowmill.jobs.ways import lateness_in_process as lateness
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.base import Part
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Surveyed:
    """New rows, null if the batch has none, and the windows that become complete."""

    new: NewRows | NumberedRows | None
    rows_read: int
    emission: Emission

    @classmethod
    def of(cls, spark: Callable[[], SparkSession], batch: TableInput, parts: Sequence[Part]) -> Self:
        """Read the new rows of ``batch`` once: in this process the columns that ``parts`` read, on Spark their times."""
        # A row of a backfill may have met windows after its range. Those that are complete are then emitted with it.
        stops = batch.pipeline.time.watermark != "max_event_time" or not any(part.by_arrival for part in parts)
        if not batch.files:
            return cls(None, 0, batch.emission(batch.seen, stops_at_range=stops))
        stages = [part.reading for part in parts]
        # Plain files cost little to read, so of their rows each part counts afterwards whether they are too many for it.
        few = NewRows.of_files(batch, stages, spark)
        if few is None and not batch.by_tasks and all(limits.are_few(batch.files, stage.layout) for stage in stages):
            few = NewRows.of_spark(batch, stages, spark())
        if few is not None:
            seen = lateness.seen_after(few.table, batch.seen)
            return cls(few, len(few.table), batch.emission(seen, stops_at_range=stops))
        many = numbered(batch.read(spark()), batch, parts)
        return cls(many, many.survey.rows, batch.emission(many.survey.seen, stops_at_range=stops))


def numbered(rows: DataFrame, batch: TableInput, parts: Sequence[Part]) -> NumberedRows:
    """Survey ``rows`` on Spark."""
    # Revisions of windows over live rows need the watermark that each row met.
    return NumberedRows.surveyed(rows, batch, every=batch.revises and any(part.way == "live rows" for part in parts))
