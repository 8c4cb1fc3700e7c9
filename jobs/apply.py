"""Applying a batch: its rows judged by arrival, and brought together with restored state into the windows that are now complete.

Windows that a fixed grid cuts, and aggregates whose partials are numbers, go by slices; all others by live rows
(:mod:`windowmill.jobs.live`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windowmill.checkpoints.batches import Plan
from windowmill.checkpoints.opening import open_state
from windowmill.checkpoints.state import LogTable, SliceTable, has_nodes, state_schema
from windowmill.jobs import arrival, little, live, stages
from windowmill.jobs.counting import Windows, count
from windowmill.jobs.quarantine import check_bad_rows, set_aside
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import FILE, REASON, Columns
from windowmill.jobs.sources.reading import reading_of
from windowmill.jobs.sources.rows import event_end, read_rows
from windowmill.jobs.staging import Staged
from windowmill.windowing.columnar.checksums import RowCheck
from windowmill.windowing.columnar.output import result_schema
from windowmill.windowing.columnar.packing import LATE_ROWS, ROWS
from windowmill.windowing.columnar.slices import GRID, NodeStage, SliceStage, WindowStage, result_rows
from windowmill.windowing.errors import WindowmillError
from windowmill.windowing.nodes import Nodes
from windowmill.windowing.spec import Custom, Pipeline
from windowmill.windowing.watermark import BEFORE, Clock
from windowmill.windowing.ways import Slices, slices_of

if TYPE_CHECKING:
    from pyspark.sql import Column

_BEFORE_ALL, _AFTER_ALL = -(1 << 62), 1 << 62
#: Source bytes up to which a batch is little: starting tasks and JVMs costs more than the work itself.
LITTLE_BYTES = 64 << 20


@dataclass(frozen=True)
class Batch:
    """What a batch works with: what it reads of the source, and how the spec is computed: by ``slices``, or by ``live`` rows.

    ``nodes`` are those that the state holds over the slices, if it does; ``check`` is how the state's rows are verified.
    """

    pipeline: Pipeline
    plan: Plan
    source: SourceTable
    reading: Reading
    columns: Columns
    slices: Slices | None
    live: live.LiveRows | None
    nodes: Nodes | None
    check: RowCheck

    @classmethod
    def of(cls, pipeline: Pipeline, plan: Plan, source: SourceTable, state: str, *, left_at: int | None) -> Batch:
        """The batch of ``plan``, of which the state is at the path ``state``, where the last batch left it ``left_at`` this version.

        Raises
        ------
        StateError
            If the state is not there, is damaged, or of a newer format.
        """
        check = open_state(state, left_at=left_at)
        columns = Columns.of(plan.source_schema)
        # The table may have got other columns since.
        source = replace(source, schema_json=plan.source_schema)
        reading = reading_of(pipeline, source, plan)
        slices = slices_of(pipeline, columns.arrow)
        nodes = None if slices is None else Nodes.of(slices.grids.grids)
        if nodes is not None and DeltaTable.is_deltatable(state) and not has_nodes(state):
            nodes = None
        way = None if slices else live.LiveRows.of(pipeline, columns.arrow)
        return cls(pipeline, plan, source, reading, columns, slices, way, nodes, check)

    @property
    def files(self) -> Sequence[AddedFile]:
        """The source's files, in the order in which their rows count as arrived."""
        return self.reading.files

    @property
    def instants(self) -> bool:
        """Whether the axis is time; else window bounds are integers."""
        return self.pipeline.time.unit is None

    @property
    def sink_schema(self) -> pa.Schema:
        return result_schema(self.pipeline, self.columns.arrow)

    def state(self, spark: SparkSession, path: str) -> SliceTable | LogTable:
        """The pipeline's state table."""
        if self.live is not None:
            log = self.live.log
            # A function of the user's is told all columns of the source, also those that it gets later.
            custom = any(isinstance(window, Custom) for window in self.pipeline.windows)
            return LogTable(spark, path, log.schema, self.check, may_lack=log.columns_of_rows if custom else ())
        assert self.slices is not None
        return SliceTable(spark, path, self.slice_stage.storing.schema, self.check)

    @property
    def slice_stage(self) -> SliceStage:
        assert self.slices is not None
        pipeline, layout = self.pipeline, self.slices.layout
        schema = state_schema(self._keys, layout, nodes=self.nodes is not None)
        return SliceStage(pipeline.keys, pipeline.time.tie_break, layout, self.slices.grids.edges, self.plan.batch, schema, self.check)

    @property
    def _keys(self) -> dict[str, pa.DataType]:
        return {key: self.columns.arrow[key] for key in self.pipeline.keys}


@dataclass
class Applied:
    """A batch applied: result rows and new rows of state (tables, or one pass cached in Spark), the rows set aside, and what was counted.

    ``seen`` and ``emitted`` are the pipeline's progress once the batch is committed; ``windows`` gives per window name the rows and the
    first and last window end, all of them in (``after``, ``through``].
    """

    seen: int | None
    emitted: int | None
    after: int
    through: int
    cached: DataFrame | None = None
    rows: DataFrame | pa.Table | None = None
    state: DataFrame | pa.Table | None = None
    quarantined: Staged | None = None
    rows_read: int = 0
    rows_applied: int = 0
    rows_late: int = 0
    new_state: int = 0
    windows: Windows = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        return sum(n for n, _, _ in self.windows.values())

    @property
    def rows_quarantined(self) -> int:
        return self.quarantined.rows if self.quarantined else 0

    def release(self) -> None:
        """Free what Spark has cached and what was staged."""
        if self.cached is not None:
            self.cached.unpersist()
        if self.quarantined is not None:
            self.quarantined.drop()


@dataclass(frozen=True)
class Arrived:
    """A batch's rows, surveyed: what the watermark has become, and which windows that completes; of a little batch ``here`` too."""

    rows: DataFrame | None
    here: pa.Table | None
    survey: arrival.Survey | None
    seen: int | None
    emitted: int | None
    after: int
    through: int

    @property
    def is_little(self) -> bool:
        """Whether its rows, if there are any, have come to this process."""
        return self.here is not None or self.rows is None


def arrive(spark: SparkSession, batch: Batch) -> Arrived:
    """Survey the batch's rows; decide which windows it emits."""
    plan, time = batch.plan, batch.pipeline.time
    rows = here = survey = None
    seen = plan.seen
    if batch.files:
        rows = read_rows(spark, batch.source, batch.reading, batch.pipeline, now_us=plan.now_us)
        if batch.slices is not None and little.is_little(batch.files, batch.slices.layout):
            here = little.collect(rows, batch.slice_stage)
            survey = arrival.survey_here(here, seen=plan.seen)
        else:
            survey = _survey(batch, rows)
        seen = survey.seen
    lateness = time.lateness.elapsed()
    complete = None if seen is None else seen - time.disorder.elapsed() - lateness
    if plan.action == "run" and time.watermark == "data_interval_end":
        # A batch that leaves a backlog vouches for nothing: what had been emitted stays as it was.
        complete = plan.emitted if plan.interval_end is None else plan.interval_end - lateness
    emitted = complete if plan.emitted is None or complete is None else max(plan.emitted, complete)
    if plan.action == "backfill":
        limit = emitted if plan.builds_state else plan.emitted
        begin, end = plan.range
        if batch.live is not None and plan.builds_state and time.watermark == "max_event_time":
            # Live rows cannot stop before what they have seen: windows after the range that are complete come with it.
            return Arrived(rows, here, survey, seen, emitted, begin, begin if emitted is None else max(begin, emitted))
        through = begin if limit is None else max(begin, min(end, limit))
        return Arrived(rows, here, survey, seen, through if plan.builds_state else plan.emitted, begin, through)
    after = _BEFORE_ALL if plan.emitted is None else plan.emitted
    return Arrived(rows, here, survey, seen, emitted if emitted is not None else plan.emitted, after, after if emitted is None else emitted)


def _survey(batch: Batch, rows: DataFrame) -> arrival.Survey:
    expected = sum(file.rows or 0 for file in batch.files)
    # A revision is brought by a row at the watermark that it met.
    every = batch.pipeline.emit == "revise"
    disorder = batch.pipeline.time.disorder.elapsed()
    settled = batch.reading.settled
    return arrival.survey(rows, seen=batch.plan.seen, disorder=disorder, expected_rows=expected, every=every, settled=settled)


def restore(batch: Batch, arrived: Arrived, table: SliceTable | LogTable) -> DataFrame | pa.Table | None:
    """The state that the new rows and the windows now complete need; none for a backfill, which works from the source alone.

    A table where the batch is little and the state too.
    """
    plan = batch.plan
    if plan.action == "backfill" or plan.batch == 0:
        return None
    if isinstance(table, LogTable):
        touched = None if arrived.rows is None else arrived.rows.where(F.col(REASON).isNull())
        assert batch.live is not None
        return table.restore(touched, batch.live.log.keys, before_batch=plan.batch, watermark=_clock(batch, arrived).watermark)
    # Where nothing has been emitted, no nodes have been stored, and windows still to come hold all slices.
    begun = arrived.after != _BEFORE_ALL
    if batch.nodes is not None and begun:
        return _restore_nodes(batch, batch.nodes, arrived, table)
    assert batch.slices is not None
    grids = batch.slices.grids
    if arrived.after >= arrived.through or (begun and not grids.any_end(arrived.after, arrived.through)):
        return None
    first, last = grids.first_slice_after(arrived.after) if begun else _BEFORE_ALL, arrived.through
    if arrived.is_little:
        found = table.restore_here(
            before_batch=plan.batch,
            first_slice=first,
            last_slice=last,
            most_bytes=little.MOST_STATE_BYTES,
            most_rows=little.most(little.MOST_STATE_ROWS, batch.slices.layout),
        )
        if found is not None:
            return found
    return table.restore(before_batch=plan.batch, first_slice=first, last_slice=last)


def _restore_nodes(batch: Batch, nodes: Nodes, arrived: Arrived, table: SliceTable) -> DataFrame | pa.Table | None:
    wanted = nodes.selection(arrived.after, arrived.through)
    if wanted is None:
        return None
    if arrived.is_little:
        assert batch.slices is not None
        most_rows = little.most(little.MOST_STATE_ROWS, batch.slices.layout)
        found = table.restore_nodes_here(wanted, before_batch=batch.plan.batch, most_bytes=little.MOST_SEARCHED_BYTES, most_rows=most_rows)
        if found is not None:
            return found
    return table.restore_nodes(wanted, before_batch=batch.plan.batch)


def apply(batch: Batch, arrived: Arrived, restored: DataFrame | pa.Table | None, staging: str) -> Applied:
    """Bring rows and restored state together in complete windows, and set aside what cannot be applied."""
    plan, done = batch.plan, Applied(arrived.seen, arrived.emitted, arrived.after, arrived.through)
    done.rows_read = arrived.survey.rows if arrived.survey is not None else 0
    try:
        judged = _by_slices(batch, arrived, restored, done) if batch.live is None else _by_live_rows(batch, arrived, restored, done)
        if judged is not None:
            if done.rows_applied < done.rows_read:
                names = Columns.of(plan.source_schema).struct.names
                done.quarantined = set_aside(judged, names, batch.pipeline, plan, f"{staging}/quarantine")
                check_bad_rows(done.quarantined, done.rows_read, batch.pipeline, plan.batch)
            _check_balance(batch, done)
    except BaseException:
        # Spark takes what it has cached for a later reading of the same tables, though they have been repaired since.
        done.release()
        raise
    return done


def _by_slices(batch: Batch, arrived: Arrived, restored: DataFrame | pa.Table | None, done: Applied) -> DataFrame | None:
    """The rows judged, if there are any."""
    assert batch.slices is not None
    slices = batch.slice_stage
    stage = WindowStage(
        slices,
        batch.slices.grids.named,
        arrived.after,
        arrived.through,
        _keep_from(batch, arrived),
        batch.sink_schema,
        _nodes(batch, arrived),
    )
    if arrived.is_little and not isinstance(restored, DataFrame):
        if little.fits(arrived.here, restored, stage):
            return _here(batch, arrived, restored, done, stage)
        if restored is not None:
            restored = SparkSession.active().createDataFrame(restored)
    packed = [] if restored is None else [stages.pack(restored, slices)]
    judged = None
    if arrived.rows is not None:
        judged = _judge(batch, arrived if arrived.here is None else replace(arrived, survey=_survey(batch, arrived.rows)))
        packed.append(stages.lift(judged, slices))
    if packed:
        every = reduce(DataFrame.unionByName, packed)
        done.cached = stages.windows_and_slices(every, stage, _partitions(every.sparkSession, batch)).persist()
        counted = (ROWS, LATE_ROWS, stages.SLICES)
        windows, totals = count(done.cached.withColumnRenamed(GRID, "window"), {name: F.sum(name) for name in counted})
        done.windows = {stage.grids[number][0]: span for number, span in windows.items()}
        done.rows_applied, done.rows_late, done.new_state = (totals[name] for name in counted)
        if done.windows:
            done.rows = stages.results(done.cached, stage)
        if batch.plan.builds_state and done.new_state:
            done.state = stages.unlisted(done.cached, slices)
    return judged


def _here(batch: Batch, arrived: Arrived, restored: pa.Table | None, done: Applied, stage: WindowStage) -> DataFrame | None:
    """A little batch in this process; the rows that have a reason, if there are any rows."""
    judged = None if arrived.here is None else _judge_here(batch, arrived)
    found = list(little.work(judged, restored, stage))
    tables = [result_rows(stage, bare) for part in found for bare in part.windows]
    for table in tables:
        ends = pc.min_max(table.column("window_end").cast(pa.int64())).as_py()
        name = table.column("window")[0].as_py()
        n, low, high = done.windows.get(name, (0, ends["min"], ends["max"]))
        done.windows[name] = (n + table.num_rows, min(low, ends["min"]), max(high, ends["max"]))
    done.rows = pa.concat_tables(tables) if tables else None
    done.rows_applied, done.rows_late = sum(part.rows for part in found), sum(part.late_rows for part in found)
    done.new_state = sum(part.n_slices for part in found)
    if batch.plan.builds_state and done.new_state:
        done.state = pa.concat_tables([part.slices for part in found if part.slices is not None])
    return None if judged is None or arrived.rows is None else little.set_aside(arrived.rows, judged)


def _by_live_rows(batch: Batch, arrived: Arrived, restored: DataFrame | None, done: Applied) -> DataFrame | None:
    """The rows judged, if there are any."""
    assert batch.live is not None
    rows = None if arrived.rows is None else _numbered(batch, arrived)
    some = rows if rows is not None else restored
    if some is None:
        return None
    plan = batch.plan
    worked = batch.live.work(
        None if rows is None else batch.live.fresh(rows),
        restored,
        _clock(batch, arrived),
        plan.batch,
        max(_partitions(some.sparkSession, batch), -(-done.rows_read // live.ROWS_PER_PARTITION)),
        keep=plan.builds_state,
        ends=_ends(arrived, plan),
        check=batch.check,
    )
    done.cached = worked.persist()
    done.windows, totals = live.count(done.cached)
    done.rows_applied, done.rows_late, done.new_state = (totals[name] for name in (live.APPLIED, live.LATE, live.ENTRY))
    if done.windows:
        done.rows = live.results(done.cached)
    if plan.builds_state and done.new_state:
        done.state = live.entries(done.cached)
    if rows is None or not totals[live.REFUSED]:
        return rows
    late = done.cached.where(F.col(live.REFUSED).isNotNull()).select(
        F.col(live.REFUSED).alias("_number"), F.lit("too_late").alias("_refused")
    )
    return rows.join(late, "_number", "left").withColumn(REASON, F.coalesce(REASON, "_refused"))


def _ends(arrived: Arrived, plan: Plan) -> tuple[int, int] | None:
    """The window ends that a backfill gives; policies trigger up to the watermark, which is after ``through``."""
    if plan.action != "backfill":
        return None
    return arrived.after, _AFTER_ALL if plan.builds_state else arrived.through


def _numbered(batch: Batch, arrived: Arrived) -> DataFrame:
    """The rows with the end of their event, the watermark that they met, and their number in the order of all that have ever arrived."""
    survey, time = arrived.survey, batch.pipeline.time
    assert survey is not None
    assert arrived.rows is not None
    rows = arrived.rows.withColumn("_until", event_end(batch.pipeline, batch.columns))
    if time.watermark == "data_interval_end":
        rows = rows.withColumn("_watermark", _found_closed(batch) + F.lit(time.lateness.elapsed()))
    else:
        rows = arrival.met(rows, survey, disorder=time.disorder.elapsed())
    return rows.withColumn("_number", arrival.number(survey, batch.plan.batch))


def _clock(batch: Batch, arrived: Arrived) -> Clock:
    """Progress as the batch leaves it, over live rows."""
    plan, time = batch.plan, batch.pipeline.time
    lateness = time.lateness.elapsed()
    since = BEFORE if plan.emitted is None or plan.action == "backfill" else plan.emitted + lateness
    if time.watermark == "data_interval_end":
        # Not the interval's own end: a later one may have been vouched for before.
        return Clock(0, lateness, seen=BEFORE if arrived.emitted is None else arrived.emitted + lateness, since=since)
    return Clock(time.disorder.elapsed(), lateness, seen=BEFORE if arrived.seen is None else arrived.seen, since=since)


def _keep_from(batch: Batch, arrived: Arrived) -> int | None:
    """The earliest slice that later windows need."""
    if not batch.plan.builds_state:
        return None
    assert batch.slices is not None
    return _BEFORE_ALL if arrived.emitted is None else batch.slices.grids.first_slice_after(arrived.emitted)


def _nodes(batch: Batch, arrived: Arrived) -> NodeStage | None:
    """The nodes that the state gets; none before any window could be emitted."""
    if batch.nodes is None or arrived.emitted is None or not batch.plan.builds_state:
        return None
    before = batch.plan.emitted
    return NodeStage(batch.nodes, _BEFORE_ALL if before is None else before, arrived.emitted)


def _partitions(spark: SparkSession, batch: Batch) -> int:
    """Spark partitions for the windows: as many as the session shuffles into, but for little data no more than there are cores."""
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    small = sum(file.size_bytes for file in batch.files) < LITTLE_BYTES
    return min(configured, max(2, spark.sparkContext.defaultParallelism)) if small else configured


def _judge(batch: Batch, arrived: Arrived) -> DataFrame:
    time = batch.pipeline.time
    assert batch.slices is not None
    assert arrived.rows is not None
    assert arrived.survey is not None
    if time.watermark == "data_interval_end":
        return arrival.judge_by(arrived.rows, _found_closed(batch), lateness=time.lateness.elapsed(), grids=batch.slices.grids.grids)
    return arrival.judge(
        arrived.rows, arrived.survey, disorder=time.disorder.elapsed(), lateness=time.lateness.elapsed(), grids=batch.slices.grids.grids
    )


def _judge_here(batch: Batch, arrived: Arrived) -> pa.Table:
    assert batch.slices is not None
    assert arrived.here is not None
    time, grids = batch.pipeline.time, batch.slices.grids.grids
    if time.watermark == "data_interval_end":
        closed = np.array(_closed_by_file(batch), np.int64)[arrived.here.column(FILE).to_numpy()]
        return arrival.judge_by_here(arrived.here, closed, lateness=time.lateness.elapsed(), grids=grids)
    disorder, lateness = time.disorder.elapsed(), time.lateness.elapsed()
    settled = batch.reading.settled
    return arrival.judge_here(arrived.here, seen=batch.plan.seen, disorder=disorder, lateness=lateness, grids=grids, settled=settled)


def _found_closed(batch: Batch) -> Column:
    """Through which instant each row found windows closed, where the orchestrator vouches."""
    return F.lit(_closed_by_file(batch))[F.col(FILE)].cast("long")


def _closed_by_file(batch: Batch) -> list[int]:
    """Through which instant windows were closed to a file's rows, where the orchestrator vouches; in a backfill as when they first came."""
    plan = batch.plan
    if plan.action == "run" or not plan.found_closed:
        return [_BEFORE_ALL if plan.emitted is None or plan.action == "backfill" else plan.emitted] * len(batch.files)
    through = [version for version, _ in plan.found_closed]
    settled = batch.reading.settled
    closed = [None] * settled + [plan.found_closed[bisect_left(through, file.version)][1] for file in batch.files[settled:]]
    return [_BEFORE_ALL if instant is None else instant for instant in closed]


def _check_balance(batch: Batch, done: Applied) -> None:
    quarantined = done.rows_quarantined
    filtered = batch.pipeline.source is not None and batch.pipeline.source.filter is not None
    told = [file.rows for file in batch.files]
    by_log = sum(rows for rows in told if rows is not None)
    if done.rows_read != done.rows_applied + quarantined or (None not in told and not filtered and by_log != done.rows_read):
        raise WindowmillError(
            f"pipeline {batch.pipeline.pipeline}: batch {batch.plan.batch} read {done.rows_read} rows of {by_log} in the "
            f"log, applied {done.rows_applied} and "
            f"quarantined {quarantined}: they must balance, so nothing was published; please report this"
        )
