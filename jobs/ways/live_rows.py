"""The way by live rows: the state keeps rows that later windows may hold, and each batch reads them again. On Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark.sql import functions as F

from windowmill.checkpoints.state.base import is_overgrown
from windowmill.checkpoints.state.log import LogTable, compact_log
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.sources.rows import event_end
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.balance import settle
from windowmill.jobs.ways.base import Applied, Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import Input, TableInput
from windowmill.jobs.ways.lateness_on_spark import Survey
from windowmill.jobs.ways.pass_output import computed
from windowmill.windowing.columnar.log import UNTIL_OF

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Surveyed:
    """New rows with end of event, watermark at arrival, and number; null if the batch has none."""

    rows: DataFrame | None
    rows_read: int
    emission: Emission


class LiveRowWay:
    """A batch by live rows."""

    def __init__(self, spark: SparkSession, batch: TableInput, state: str) -> None:
        self._spark, self._batch, self._path = spark, batch, state
        self._rows = live.LiveRows.of(batch.pipeline, batch.types)
        log = self._rows.log
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in batch.pipeline.windows)
        self._table = LogTable(spark, state, log.schema, batch.check, may_lack=log.columns_of_rows if whole else ())

    def survey(self) -> Surveyed:
        batch = self._batch
        rows, rows_read, seen = None, 0, batch.seen
        if batch.files:
            arrived = batch.read(self._spark)
            survey = lateness.survey(arrived, batch, every=batch.revises)
            rows, rows_read, seen = numbered(arrived, survey, batch), survey.rows, survey.seen
        return Surveyed(rows, rows_read, batch.emission_by_arrival(seen))

    def restore(self, surveyed: Surveyed) -> DataFrame | None:
        """All entries of the keys that have new rows or are due by the watermark."""
        if not self._batch.restores:
            return None
        touched = None if surveyed.rows is None else surveyed.rows.where(F.col(REASON).isNull())
        watermark = self._batch.clock(surveyed.emission).watermark
        return self._table.restore(
            touched, self._rows.log.keys, n_touched=surveyed.rows_read, before_batch=self._batch.batch, watermark=watermark
        )

    def apply(self, surveyed: Surveyed, restored: DataFrame | None, staging: str) -> Applied:
        return settle(self._batch, surveyed.emission, self._compute(surveyed, restored), surveyed.rows_read, staging)

    def _compute(self, surveyed: Surveyed, restored: DataFrame | None) -> Computed:
        batch, rows = self._batch, surveyed.rows
        if rows is None and restored is None:
            return Computed()
        worked = self._rows.work(
            None if rows is None else self._rows.fresh(rows),
            restored,
            self._batch.clock(surveyed.emission),
            batch.batch,
            live.partitions(surveyed.rows_read, batch.partitions(self._spark)),
            keep=batch.builds_state,
            ends=surveyed.emission.ends(batch.plan),
            check=batch.check,
        )
        return computed(worked, rows, keeps=batch.builds_state)

    def remember(self, rows: DataFrame | pa.Table, count: int, *, app_id: str, metadata: str) -> int:
        return self._table.remember(rows, count, app_id=app_id, batch=self._batch.batch, metadata=metadata)

    def is_overgrown(self) -> bool:
        return DeltaTable.is_deltatable(self._path) and is_overgrown(self._path)

    def compact(self) -> None:
        compact_log(self._path, self._batch.batch + 1)


def numbered(rows: DataFrame, survey: Survey, batch: Input) -> DataFrame:
    """Add to ``rows`` the end of their event, the watermark at arrival, and a number in order of arrival over all batches."""
    ended = rows.withColumn(UNTIL_OF, event_end(batch.pipeline, batch.columns))
    return lateness.numbered(lateness.with_watermark_at_arrival(ended, survey, batch), survey, batch.batch)
