"""The part that goes by live rows: the state keeps rows that later windows may hold, and each batch reads them again. On Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from windowmill.checkpoints.state.joint import own_rows
from windowmill.checkpoints.state.log import LogTable
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.jobs.ways.pass_output import computed
from windowmill.windowing.ways import Parts, Rows, WayName

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.windowing.axis import WindowGrid


class LiveRowPart:
    """Computes a batch by live rows; ``parts`` are all parts of the pipeline."""

    way: WayName = "live rows"
    reading = None
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    by_arrival = True

    def __init__(self, spark: SparkSession, batch: TableInput, rows: Rows, parts: Parts, state: str) -> None:
        self._spark, self._batch = spark, replace(batch, pipeline=rows.pipeline)
        self._rows = live.LiveRows.of(rows.pipeline, batch.types, beside=rows.beside)
        log = self._rows.log
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in rows.pipeline.windows)
        may_lack = log.columns_of_rows if whole else ()
        self._table = LogTable(spark, state, log.schema, batch.check, may_lack=may_lack, own=own_rows(self.way, parts.ways))

    @property
    def schema(self) -> pa.Schema:
        return self._rows.log.schema

    def few(self, new: NewRows | None, emission: Emission) -> None:  # noqa: ARG002 - only Spark computes live rows
        return None

    def on_spark(self, new: NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        """New rows, and all entries of the keys that have new rows or are due by the watermark."""
        batch, entries = self._batch, None
        if batch.restores:
            touched = None if new is None else new.rows.where(F.col(REASON).isNull())
            watermark = batch.clock(emission).watermark
            n_touched = 0 if new is None else new.survey.rows
            entries = self._table.restore(touched, self._rows.log.keys, n_touched=n_touched, before_batch=batch.batch, watermark=watermark)
        return LoadedOnSpark(new, entries, self._rows, batch, emission, batch.partitions(self._spark))


@dataclass(frozen=True)
class LoadedOnSpark:
    """New rows and entries of the log; either may be null."""

    new: NumberedRows | None
    entries: DataFrame | None
    rows: live.LiveRows
    batch: TableInput
    emission: Emission
    partitions: int

    def compute(self) -> Computed:
        batch, new = self.batch, self.new
        if new is None and self.entries is None:
            return Computed()
        worked = self.rows.work(
            None if new is None else self.rows.fresh(new.rows),
            self.entries,
            batch.clock(self.emission),
            batch.batch,
            live.partitions(0 if new is None else new.survey.rows, self.partitions),
            keep=batch.builds_state,
            ends=self.emission.ends(batch.plan),
            check=batch.check,
        )
        return computed(worked, keeps=batch.builds_state)
