"""Computes batches of any size on Spark: surveys the new rows, and loads each part for the pass that tasks make over rows and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from windowmill.jobs.layouts.base import BatchSurvey, EntriesWanted, Part, PartialsWanted, StateWanted, stops_at_range
from windowmill.jobs.layouts.keyed_parts import KeyedPart
from windowmill.jobs.layouts.slices import SlicePart
from windowmill.jobs.schedulers.files.rows import FileRows
from windowmill.jobs.schedulers.spark.keyed_pass import KeyedFrames
from windowmill.jobs.schedulers.spark.numbered_rows import NumberedRows, read
from windowmill.jobs.schedulers.spark.packed_pass import PackedFrames
from windowmill.jobs.schedulers.spark.partitioning import shuffle_partitions
from windowmill.jobs.schedulers.spark.state_rows import restored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.layouts.emission import Emission
    from windowmill.jobs.layouts.input import TableInput


def survey(spark: SparkSession, batch: TableInput, parts: Sequence[Part]) -> BatchSurvey[FileRows | NumberedRows]:
    """Survey the new rows of ``batch``."""
    stops = stops_at_range(batch, parts)
    if not batch.files:
        return BatchSurvey(None, 0, batch.emission(batch.seen, stops_at_range=stops))
    every = batch.revises and any(part.revises_by_watermark for part in parts)
    new: FileRows | NumberedRows | None = FileRows.surveyed(spark, batch, [part.reading for part in parts], every=every)
    if new is None:
        new = NumberedRows.surveyed(read(batch, spark), batch, every=every)
    return BatchSurvey(new, new.survey.rows, batch.emission(new.survey.seen, stops_at_range=stops), new.survey.seen)


def load(
    part: Part, new: FileRows | NumberedRows | None, emission: Emission, state: str, spark: SparkSession
) -> PackedFrames | KeyedFrames:
    """Load a batch of any size of a part; ``state`` is the path of the state table."""
    batch, partitions = part.batch, shuffle_partitions(part.batch, spark)
    revised_after = new.survey.low if new is not None and batch.revises else None
    wanted = part.wanted(emission, has_rows=new is not None, revised_after=revised_after)
    stored = None if wanted is None else _restored(wanted, part, new, emission, state, spark)
    if isinstance(part, SlicePart):
        return PackedFrames(spark, new, stored, part.window_stage(emission), part.grids, partitions)
    return KeyedFrames(spark, new, stored, cast("KeyedPart", part).keyed(emission), partitions)


def _restored(
    wanted: StateWanted, part: Part, new: FileRows | NumberedRows | None, emission: Emission, state: str, spark: SparkSession
) -> DataFrame | None:
    """The ``wanted`` rows of the state; null for none."""
    if new is None or isinstance(wanted, PartialsWanted):
        return restored(spark, state, wanted, None, 0)
    keyed = cast("KeyedPart", part).keyed(emission)
    rows = pa.schema([keyed.rows.field(key) for key in keyed.keys]) if isinstance(wanted, EntriesWanted) else keyed.rows
    return restored(spark, state, wanted, new.frame(spark, keyed.reading, rows), new.survey.rows)
