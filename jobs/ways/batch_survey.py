"""Surveys the new rows of a batch: in this process if they are few, else on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from windowmill.jobs.ways import lateness, limits
from windowmill.jobs.ways.base import Part
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import SourceRows
from windowmill.jobs.ways.numbered_rows import NumberedRows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class BatchSurvey:
    """New rows, null if the batch has none, and the windows that become complete."""

    new: SourceRows | FileRows | NumberedRows | None
    rows_read: int
    emission: Emission

    @classmethod
    def here(cls, batch: TableInput, parts: Sequence[Part], given: pa.Table | None) -> Self:
        """Survey the new rows of a small ``batch`` in this process: those ``given`` by Spark, null to read them.

        Raises
        ------
        TooLargeError
            If the rows are too many for this process, or only Spark can read them.
        """
        stages = [part.reading for part in parts]
        if not batch.files:
            return cls(None, 0, batch.emission(batch.seen, stops_at_range=_stops_at_range(batch, parts)))
        # Plain files cost little to read, so of their rows each part counts afterwards whether they are too many for it.
        limits.check_files(batch.files, None)
        new = SourceRows.of_files(batch, stages) if given is None else SourceRows.of_spark(batch, stages, given)
        seen = lateness.seen_after(new.table, batch.seen)
        return cls(new, len(new.table), batch.emission(seen, stops_at_range=_stops_at_range(batch, parts)))

    @classmethod
    def on_spark(cls, spark: SparkSession, batch: TableInput, parts: Sequence[Part]) -> Self:
        """Survey the new rows of ``batch`` on Spark."""
        stops = _stops_at_range(batch, parts)
        if not batch.files:
            return cls(None, 0, batch.emission(batch.seen, stops_at_range=stops))
        every = batch.revises and any(part.revises_by_watermark for part in parts)
        many: FileRows | NumberedRows | None = FileRows.surveyed(spark, batch, [part.reading for part in parts], every=every)
        if many is None:
            many = NumberedRows.surveyed(batch.read(spark), batch, every=every)
        return cls(many, many.survey.rows, batch.emission(many.survey.seen, stops_at_range=stops))


def _stops_at_range(batch: TableInput, parts: Sequence[Part]) -> bool:
    """Whether a backfill emits no windows after its range; a row may have met such windows, and those that are complete are emitted."""
    return batch.pipeline.time.watermark != "max_event_time" or not any(part.by_arrival for part in parts)
