"""Computes batches of any size on Spark: surveys the new rows, and loads each part for the pass that tasks make over rows and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from windowmill.checkpoints.stores import is_table
from windowmill.jobs.layouts.base import BatchSurvey, Part, PartialsWanted, emits_within_range_only
from windowmill.jobs.schedulers.files.rows import FileRows
from windowmill.jobs.schedulers.spark.exchange import Exchange, StoredRows
from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows, read
from windowmill.jobs.schedulers.spark.partitioning import shuffle_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from windowmill.checkpoints.state.readers import DeltaState
    from windowmill.jobs.layouts.emission import Emission
    from windowmill.jobs.layouts.input import TableInput


def survey(spark: SparkSession, batch: TableInput, parts: Sequence[Part]) -> BatchSurvey[FileRows | NumberedRows]:
    """Survey the new rows of ``batch``."""
    stops = emits_within_range_only(batch, parts)
    if not batch.files:
        return BatchSurvey(None, 0, batch.emission(batch.seen, emits_within_range_only=stops))
    every = batch.revises and any(part.needs_arrival_watermark for part in parts)
    new: FileRows | NumberedRows | None = FileRows.surveyed(spark, batch, [part.reading for part in parts], every=every)
    if new is None:
        new = NumberedRows.surveyed(read(batch, spark), batch, every=every)
    return BatchSurvey(new, new.survey.rows, batch.emission(new.survey.seen, emits_within_range_only=stops), new.survey.seen)


def load(part: Part, new: FileRows | NumberedRows | None, emission: Emission, state: DeltaState, spark: SparkSession) -> Exchange:
    """Load a batch of any size of a part."""
    batch, survey = part.batch, None if new is None else new.survey
    revised_after = survey.low if survey is not None and batch.revises else None
    wanted = part.wanted(emission, has_rows=new is not None, revised_after=revised_after)
    stored = None
    if wanted is not None and is_table(state.name):
        most = 0
        if isinstance(wanted, PartialsWanted):
            most = sum(int(file["num_records"]) for file in state.partials(wanted.schema).files_with(wanted.wanted))
        stored = StoredRows(state, wanted, most)
    work = part.map_reduce(emission, has_late=survey is not None and survey.has_late)
    return Exchange(spark, work, None if new is None else new.source(work), stored, shuffle_partitions(batch, spark))
