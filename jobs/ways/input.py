"""Input of a way: new rows, and the progress of earlier batches; from a run of a pipeline or a bounded DataFrame."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from windowmill.checkpoints.batches import BackfillPlan, Plan
from windowmill.checkpoints.runnable import Runnable
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.rows import read_rows
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.spark.settings import is_short_run
from windowmill.jobs.ways.emission import Emission, emission_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import BEFORE, Clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True)
class Input:
    """The rows of one batch. The defaults are those of a bounded input, which is the only batch.

    Attributes
    ----------
    batch
        Number of the batch.
    seen, emitted
        Progress after the previous batch; null if there is none.
    builds_state
        Whether later batches continue from this batch's state.
    commits
        For each file, the number of its commit, ascending; empty if the input has no files.
    settled
        Number of leading files whose rows count as arrived in order of event time.
    closed_by_file
        For each file, the instant through which windows were closed when its rows arrived, by vouched time; null if rows move the
        watermark.
    expected_rows
        Number of rows by the source's log; 0 if unknown.
    size_bytes
        Size of the rows' files; null if unknown.
    check
        Verifies rows of the state; null if there is no state.
    """

    pipeline: Pipeline
    columns: Columns
    batch: int = 0
    seen: int | None = None
    emitted: int | None = None
    builds_state: bool = False
    commits: tuple[int, ...] = ()
    settled: int = 0
    closed_by_file: tuple[int, ...] | None = None
    expected_rows: int = 0
    size_bytes: int | None = None
    check: RowCheck | None = None

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        """Arrow types of the source's columns."""
        return self.columns.arrow

    @property
    def keys(self) -> dict[str, pa.DataType]:
        """Arrow types of the key columns."""
        return {key: self.types[key] for key in self.pipeline.keys}

    @cached_property
    def sink_schema(self) -> pa.Schema:
        """Columns of a result row."""
        return result_schema(self.pipeline, self.types)

    @property
    def restores(self) -> bool:
        """Whether the batch reads state: that of earlier batches, if there are any."""
        return self.batch > 0

    @property
    def revises(self) -> bool:
        """Whether late rows bring revisions."""
        return self.pipeline.emit == "revise"

    @property
    def by_row(self) -> bool:
        """Whether each row arrives by itself; otherwise the rows of a commit arrive together."""
        return self.pipeline.time.arrival == "row"

    @property
    def disorder(self) -> int:
        """Disorder in ticks of the axis."""
        return self.pipeline.time.disorder.elapsed()

    @property
    def lateness(self) -> int:
        """Lateness in ticks of the axis."""
        return self.pipeline.time.lateness.elapsed()

    def partitions(self, spark: SparkSession) -> int:
        """Number of Spark partitions for windows: the session's shuffle partitions, capped at the core count for small inputs."""
        configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
        if self.size_bytes is None or not is_short_run(self.size_bytes):
            return configured
        return min(configured, max(2, access_to(spark).cores()))


@dataclass(frozen=True, kw_only=True)
class TableInput(Input):
    """The rows that a plan reads from the source table.

    ``plain`` reads these rows from plain files in this process; null if Spark reads them.
    """

    check: RowCheck
    runnable: Runnable
    plan: Plan
    source: SourceTable
    reading: Reading
    plain: PlainRows | None

    @classmethod
    def of(
        cls, runnable: Runnable, plan: Plan, source: SourceTable, reading: Reading, plain: PlainRows | None, check: RowCheck
    ) -> TableInput:
        """The input of ``plan``, from a ``source`` with the columns that it has pinned; ``check`` verifies rows of the state."""
        pipeline = runnable.pipeline
        return cls(
            pipeline=pipeline,
            columns=Columns.of(plan.source_schema),
            batch=plan.batch,
            seen=plan.seen,
            emitted=plan.emitted,
            builds_state=plan.builds_state,
            commits=reading.commits,
            settled=reading.settled,
            closed_by_file=_closed_by_file(plan, reading) if pipeline.time.watermark == "data_interval_end" else None,
            expected_rows=sum(file.rows or 0 for file in reading.files),
            size_bytes=reading.size_bytes,
            check=check,
            runnable=runnable,
            plan=plan,
            source=source,
            reading=reading,
            plain=plain,
        )

    @property
    def files(self) -> Sequence[AddedFile]:
        """The source's files in order of arrival."""
        return self.reading.files

    @property
    def instants(self) -> bool:
        """Whether the axis is time; otherwise window bounds are integers."""
        return self.pipeline.time.unit is None

    @property
    def restores(self) -> bool:
        """Whether the batch reads state; a backfill reads only the source."""
        return super().restores and not isinstance(self.plan, BackfillPlan)

    def read(self, spark: SparkSession) -> DataFrame:
        """The new rows."""
        return read_rows(spark, self.source, self.reading, self.runnable, now_us=self.plan.now_us)

    @property
    def latest(self) -> int | None:
        """Greatest accepted event time; null for no bound."""
        return self.pipeline.time.latest(self.plan.now_us)

    def emission(self, seen: int | None, *, stops_at_range: bool = True) -> Emission:
        """The emission of this batch; see :func:`.emission_of`."""
        return emission_of(self.pipeline, self.plan, seen, stops_at_range=stops_at_range)

    def emission_by_arrival(self, seen: int | None) -> Emission:
        """As :meth:`emission`, for windows that judge rows by the watermark at their arrival.

        Rows of a backfill may have met windows that end after its range, so it also emits complete windows after it.
        """
        return self.emission(seen, stops_at_range=self.pipeline.time.watermark != "max_event_time")

    def clock(self, emission: Emission) -> Clock:
        """The clock after this batch, with the emission ``emission``."""
        since = BEFORE if self.emitted is None or isinstance(self.plan, BackfillPlan) else self.emitted + self.lateness
        if self.closed_by_file is not None:
            # Not the interval's own end: an earlier batch may have vouched for a later one.
            vouched = BEFORE if emission.emitted is None else emission.emitted + self.lateness
            return Clock(0, self.lateness, seen=vouched, since=since, by_row=self.by_row)
        seen = BEFORE if emission.seen is None else emission.seen
        return Clock(self.disorder, self.lateness, seen=seen, since=since, by_row=self.by_row)


def _closed_by_file(plan: Plan, reading: Reading) -> tuple[int, ...]:
    """For each file, the instant through which windows were closed when its rows arrived; in a backfill, when they first arrived."""
    if not isinstance(plan, BackfillPlan):
        return (AXIS_BEGIN if plan.emitted is None else plan.emitted,) * len(reading.files)
    if not plan.found_closed:
        return (AXIS_BEGIN,) * len(reading.files)
    through = [version for version, _ in plan.found_closed]
    later = [plan.found_closed[bisect_left(through, file.version)][1] for file in reading.files[reading.settled :]]
    return (*(AXIS_BEGIN,) * reading.settled, *(AXIS_BEGIN if instant is None else instant for instant in later))
