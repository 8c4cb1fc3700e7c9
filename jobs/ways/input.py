"""The rows that a way works on, and what earlier batches have left: of a batch of a pipeline's runs, or a bounded DataFrame."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.batches import BackfillPlan, Plan
from windowmill.checkpoints.opening import open_state
from windowmill.checkpoints.runnable import Runnable
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.reading import reading_of
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.ways import limits
from windowmill.jobs.ways.emission import Emission, emission_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Input:
    """The rows of one batch. The defaults are those of a bounded input: it is the first batch and the last.

    Attributes
    ----------
    batch
        Number of the batch.
    seen, emitted
        Progress as the batch before left it; null if there is none.
    builds_state
        Whether later batches go on from the state that this one leaves.
    settled
        Number of leading files whose rows count as arrived in the order of event time.
    closed_by_file
        The instant through which windows were closed to the rows of each file, where the orchestrator vouches for that; null where rows
        move the watermark.
    expected_rows
        Number of rows by the source's log; 0 if it does not say.
    size_bytes
        Bytes of the rows' files; null if unknown.
    check
        How rows of the state are verified; null where there is no state.
    """

    pipeline: Pipeline
    columns: Columns
    batch: int = 0
    seen: int | None = None
    emitted: int | None = None
    builds_state: bool = False
    settled: int = 0
    closed_by_file: tuple[int, ...] | None = None
    expected_rows: int = 0
    size_bytes: int | None = None
    check: RowCheck | None = None

    @property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow types of the source's columns."""
        return self.columns.arrow

    @property
    def keys(self) -> dict[str, pa.DataType]:
        """Arrow types of the key columns."""
        return {key: self.types[key] for key in self.pipeline.keys}

    @property
    def sink_schema(self) -> pa.Schema:
        """Columns of a result row."""
        return result_schema(self.pipeline, self.types)

    @property
    def disorder(self) -> int:
        """How far rows may come behind the greatest event time, in ticks of the axis."""
        return self.pipeline.time.disorder.elapsed()

    @property
    def lateness(self) -> int:
        """How long windows stay open behind the watermark, in ticks of the axis."""
        return self.pipeline.time.lateness.elapsed()

    def partitions(self, spark: SparkSession) -> int:
        """Spark partitions for the windows: as many as the session shuffles into, for little data no more than there are cores."""
        configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
        if self.size_bytes is None or self.size_bytes >= limits.MOST_BYTES_OF_SHORT_RUN:
            return configured
        return min(configured, max(2, spark.sparkContext.defaultParallelism))


@dataclass(frozen=True, kw_only=True)
class TableInput(Input):
    """The rows that a plan reads from the source table."""

    check: RowCheck
    runnable: Runnable
    plan: Plan
    source: SourceTable
    reading: Reading

    @classmethod
    def of(cls, runnable: Runnable, plan: Plan, source: SourceTable, *, left_at: int | None) -> TableInput:
        """The input of ``plan``, of which the last batch left the state at version ``left_at``.

        Raises
        ------
        StateError
            If the state is not there, is damaged, or of a newer format.
        """
        pipeline, check = runnable.pipeline, open_state(runnable.places.state, left_at=left_at)
        # The table may have got other columns since.
        source = replace(source, schema_json=plan.source_schema)
        reading = reading_of(runnable, source, plan)
        return cls(
            pipeline=pipeline,
            columns=Columns.of(plan.source_schema),
            batch=plan.batch,
            seen=plan.seen,
            emitted=plan.emitted,
            builds_state=plan.builds_state,
            settled=reading.settled,
            closed_by_file=_closed_by_file(plan, reading) if pipeline.time.watermark == "data_interval_end" else None,
            expected_rows=sum(file.rows or 0 for file in reading.files),
            size_bytes=sum(file.size_bytes for file in reading.files),
            check=check,
            runnable=runnable,
            plan=plan,
            source=source,
            reading=reading,
        )

    @property
    def files(self) -> Sequence[AddedFile]:
        """The source's files, in the order in which their rows count as arrived."""
        return self.reading.files

    @property
    def instants(self) -> bool:
        """Whether the axis is time; else window bounds are integers."""
        return self.pipeline.time.unit is None

    @property
    def restores(self) -> bool:
        """Whether there is state to go on from; a backfill works from the source alone."""
        return not isinstance(self.plan, BackfillPlan) and self.plan.batch > 0

    def read(self, spark: SparkSession) -> DataFrame:
        """The new rows."""
        return read_rows(spark, self.source, self.reading, self.runnable, now_us=self.plan.now_us)

    def emission(self, seen: int | None, *, stops_at_range: bool = True) -> Emission:
        """How far the pipeline gets with these rows; as of :func:`.emission_of`."""
        return emission_of(self.pipeline, self.plan, seen, stops_at_range=stops_at_range)


def _closed_by_file(plan: Plan, reading: Reading) -> tuple[int, ...]:
    """The instant through which windows were closed to the rows of each file; in a backfill as when they first came."""
    if not isinstance(plan, BackfillPlan):
        return (AXIS_BEGIN if plan.emitted is None else plan.emitted,) * len(reading.files)
    if not plan.found_closed:
        return (AXIS_BEGIN,) * len(reading.files)
    through = [version for version, _ in plan.found_closed]
    later = [plan.found_closed[bisect_left(through, file.version)][1] for file in reading.files[reading.settled :]]
    return (*(AXIS_BEGIN,) * reading.settled, *(AXIS_BEGIN if instant is None else instant for instant in later))
