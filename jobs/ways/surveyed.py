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

    from windowmill.windowing.columnar.slices import Reading


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
        if cls._is_small(batch, stages):
            few = NewRows.of(batch, stages, spark)
            seen = lateness.seen_after(few.table, batch.seen)
            return cls(few, len(few.table), batch.emission(seen, stops_at_range=stops))
        many = numbered(batch.read(spark()), batch, parts)
        return cls(many, many.survey.rows, batch.emission(many.survey.seen, stops_at_range=stops))

    @staticmethod
    def _is_small(batch: TableInput, stages: Sequence[Reading]) -> bool:
        """Whether this process takes the new rows for all ``stages``.

        Spark reads only rows that are few enough for the partials of all ``stages``. Plain files cost little to read, so of their rows
        each part counts afterwards whether they are too many for it.
        """
        return batch.plain is not None or all(limits.are_few(batch.files, stage.layout) for stage in stages)


def numbered(rows: DataFrame, batch: TableInput, parts: Sequence[Part]) -> NumberedRows:
    """Survey ``rows`` on Spark."""
    # Revisions of windows over live rows need the watermark that each row met.
    return NumberedRows.surveyed(rows, batch, every=batch.revises and any(part.way == "live rows" for part in parts))
