"""Applying a batch: its rows judged by arrival, lifted into slices, and combined with restored slices into the windows now complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from checkpoints.ledger import Plan
from checkpoints.state import SliceTable, state_schema
from jobs import arrival, stages
from jobs.delta_log import AddedFile, SourceTable, added_files
from jobs.quarantine import set_aside
from jobs.sources import Columns, read_rows
from jobs.staging import Staged
from windowing.columnar.slices import SliceStage, WindowStage
from windowing.errors import WindowmillError
from windowing.hopping import Grids
from windowing.kernels.layout import Layout
from windowing.spec import Pipeline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_BEFORE_ALL = -(1 << 62)
#: Source bytes up to which a batch is little: starting tasks and JVMs costs more than the work itself.
LITTLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Batch:
    """What a batch works with: the spec's grids and layout, the source's files, and the windows that it may emit."""

    pipeline: Pipeline
    plan: Plan
    source: SourceTable
    files: Sequence[AddedFile]
    grids: Grids
    layout: Layout
    keys: dict[str, pa.DataType]

    @classmethod
    def of(cls, pipeline: Pipeline, plan: Plan, source: SourceTable) -> Batch:
        types = Columns.of(plan.source_schema).arrow
        files = added_files(source, plan.from_version, plan.to_version)
        keys = {key: types[key] for key in pipeline.keys}
        return cls(pipeline, plan, source, files, Grids.of(pipeline), Layout.of(pipeline, types), keys)

    @property
    def instants(self) -> bool:
        """Whether the axis is time; else window bounds are integers."""
        return self.pipeline.time.unit is None

    @property
    def sink_schema(self) -> pa.Schema:
        return stages.sink_schema(self.keys, self.layout, instants=self.instants)

    @property
    def state_schema(self) -> pa.Schema:
        return state_schema(self.keys, self.layout)

    @property
    def slice_stage(self) -> SliceStage:
        pipeline = self.pipeline
        return SliceStage(pipeline.keys, pipeline.time.tie_break, self.layout, self.grids.edges, self.plan.batch, self.state_schema)


@dataclass
class Applied:
    """A batch applied: result rows and new slices (one pass, cached in Spark), the rows set aside, and what was counted.

    ``seen`` and ``emitted`` are the pipeline's progress once the batch is committed; ``windows`` gives per window name the rows and the
    first and last window end, all of them in (``after``, ``through``].
    """

    seen: int | None
    emitted: int | None
    after: int
    through: int
    cached: DataFrame | None = None
    rows: DataFrame | None = None
    slices: DataFrame | None = None
    quarantined: Staged | None = None
    rows_read: int = 0
    rows_applied: int = 0
    rows_late: int = 0
    new_slices: int = 0
    windows: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        return sum(n for n, _, _ in self.windows.values())

    def release(self) -> None:
        """Free what Spark has cached and what was staged."""
        if self.cached is not None:
            self.cached.unpersist()
        if self.quarantined is not None:
            self.quarantined.drop()


@dataclass(frozen=True)
class Arrived:
    """A batch's rows, surveyed: what the watermark has become, and which windows that completes."""

    rows: DataFrame | None
    survey: arrival.Survey | None
    seen: int | None
    emitted: int | None
    after: int
    through: int


def arrive(spark: SparkSession, batch: Batch) -> Arrived:
    """Survey the batch's rows; decide which windows it emits."""
    plan, time = batch.plan, batch.pipeline.time
    rows = survey = None
    seen = plan.seen
    if batch.files:
        rows = read_rows(spark, batch.source, batch.files, batch.pipeline, now_us=plan.now_us)
        expected = sum(file.rows or 0 for file in batch.files)
        survey = arrival.survey(rows, seen=plan.seen, disorder=time.disorder.elapsed(), expected_rows=expected)
        seen = survey.seen
    lateness = time.lateness.elapsed()
    complete = None if seen is None else seen - time.disorder.elapsed() - lateness
    if plan.interval_end is not None:
        complete = plan.interval_end - lateness
    emitted = complete if plan.emitted is None or complete is None else max(plan.emitted, complete)
    if plan.action == "backfill":
        limit = emitted if plan.builds_state else plan.emitted
        begin, end = plan.range
        through = begin if limit is None else max(begin, min(end, limit))
        return Arrived(rows, survey, seen, through if plan.builds_state else plan.emitted, begin, through)
    after = _BEFORE_ALL if plan.emitted is None else plan.emitted
    return Arrived(rows, survey, seen, emitted if emitted is not None else plan.emitted, after, after if emitted is None else emitted)


def restore(batch: Batch, arrived: Arrived, table: SliceTable) -> DataFrame | None:
    """The slices that the windows now complete need; none for a backfill, which works from the source alone."""
    if batch.plan.action == "backfill" or arrived.after == _BEFORE_ALL or not batch.grids.any_end(arrived.after, arrived.through):
        return None
    return table.restore(
        before_batch=batch.plan.batch, first_slice=batch.grids.first_slice_after(arrived.after), last_slice=arrived.through
    )


def apply(batch: Batch, arrived: Arrived, restored: DataFrame | None, staging: str) -> Applied:
    """Lift the rows into slices, combine them with the restored ones into complete windows, set aside what cannot be applied."""
    plan, done = batch.plan, Applied(arrived.seen, arrived.emitted, arrived.after, arrived.through)
    slices = batch.slice_stage
    packed = [] if restored is None else [stages.pack(restored, slices)]
    judged = None
    if arrived.rows is not None and arrived.survey is not None:
        done.rows_read = arrived.survey.rows
        judged = _judge(batch, arrived)
        packed.append(stages.lift(judged, slices))
    if packed:
        stage = WindowStage(slices, batch.grids.named, arrived.after, arrived.through, _keep_from(batch, arrived), batch.sink_schema)
        every = reduce(DataFrame.unionByName, packed)
        done.cached = stages.windows_and_slices(every, stage, _partitions(every.sparkSession, batch)).persist()
        _count(done)
        if done.windows:
            done.rows = done.cached.where(F.col("window").isNotNull()).select(*map(stages.quoted, batch.sink_schema.names))
        if plan.builds_state and done.new_slices:
            done.slices = stages.unpacked(done.cached, slices)
    if judged is not None:
        if done.rows_applied < done.rows_read:
            done.quarantined = set_aside(judged, Columns.of(plan.source_schema).struct.names, batch.pipeline, plan, f"{staging}/quarantine")
        _check_balance(batch, done)
    return done


def _keep_from(batch: Batch, arrived: Arrived) -> int | None:
    """The earliest slice that later windows need."""
    if not batch.plan.builds_state:
        return None
    return _BEFORE_ALL if arrived.emitted is None else batch.grids.first_slice_after(arrived.emitted)


def _count(done: Applied) -> None:
    """Compute the batch: result rows by window, with their first and last end, and the rows and slices they come from."""
    assert done.cached is not None
    end = F.unix_micros("window_end") if dict(done.cached.dtypes)["window_end"] == "timestamp" else F.col("window_end")
    sums = [F.sum(name).alias(name) for name in (stages.ROWS, stages.LATE_ROWS, stages.SLICES)]
    spans = [F.count("*").alias("n"), F.min(end).alias("low"), F.max(end).alias("high")]
    for found in done.cached.groupBy("window").agg(*spans, *sums).collect():
        if found["window"] is not None:
            done.windows[found["window"]] = (found["n"], found["low"], found["high"])
        else:
            done.rows_applied, done.rows_late = found[stages.ROWS] or 0, found[stages.LATE_ROWS] or 0
            done.new_slices = found[stages.SLICES] or 0


def _partitions(spark: SparkSession, batch: Batch) -> int:
    """Spark partitions for the windows: as many as the session shuffles into, but for little data no more than there are cores."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    little = sum(file.size_bytes for file in batch.files) < LITTLE_BYTES
    return min(configured, max(2, spark.sparkContext.defaultParallelism)) if little else configured


def _judge(batch: Batch, arrived: Arrived) -> DataFrame:
    time = batch.pipeline.time
    assert arrived.rows is not None
    assert arrived.survey is not None
    if time.watermark == "data_interval_end":
        return arrival.judge_by(arrived.rows, batch.plan.emitted, lateness=time.lateness.elapsed(), grids=batch.grids.grids)
    return arrival.judge(
        arrived.rows, arrived.survey, disorder=time.disorder.elapsed(), lateness=time.lateness.elapsed(), grids=batch.grids.grids
    )


def _check_balance(batch: Batch, done: Applied) -> None:
    quarantined = done.quarantined.rows if done.quarantined else 0
    filtered = batch.pipeline.source is not None and batch.pipeline.source.filter is not None
    told = [file.rows for file in batch.files]
    by_log = sum(rows for rows in told if rows is not None)
    if done.rows_read != done.rows_applied + quarantined or (None not in told and not filtered and by_log != done.rows_read):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {done.rows_read} rows of {by_log} in the "
            f"log, applied {done.rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )
