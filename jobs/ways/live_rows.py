"""The part that goes by live rows: the state keeps rows that later windows may hold, and each batch reads them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from windowmill.checkpoints.state.log import LogTable
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.ways import limits, live_rows_in_process
from windowmill.jobs.ways import live_row_pass as live
from windowmill.jobs.ways.emission import Emission
from windowmill.jobs.ways.file_rows import FileRows
from windowmill.jobs.ways.input import TableInput
from windowmill.jobs.ways.live_rows_in_process import LiveRowReading, LoadedInProcess
from windowmill.jobs.ways.live_rows_on_spark import LoadedOnSpark
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.windowing.ways import Rows, WayName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.windowing.axis import WindowGrid


class LiveRowPart:
    """Computes a batch by live rows."""

    way: WayName = "live rows"
    grids: Sequence[WindowGrid] = ()
    spans: Sequence[str] = ()
    by_arrival = True

    def __init__(self, spark: Callable[[], SparkSession], batch: TableInput, rows: Rows, state: str) -> None:
        self._spark, self._batch, self._state = spark, replace(batch, pipeline=rows.pipeline), state
        self._rows = live.LiveRows.of(rows.pipeline, batch.types, beside=rows.beside)
        log = self._rows.log
        # A user's function sees all columns of the source, also those added later.
        whole = any(window.reads_whole_rows for window in rows.pipeline.windows)
        self._table = LogTable(spark, state, log.schema, batch.check, may_lack=log.columns_of_rows if whole else ())

    @property
    def schema(self) -> pa.Schema:
        return self._rows.log.schema

    @property
    def reading(self) -> LiveRowReading:
        return LiveRowReading(self._rows.pipeline, self._rows.types, self._rows.log)

    def here(self, new: NewRows | None, emission: Emission) -> LoadedInProcess:
        batch, reading, log = self._batch, self.reading, self._rows.log
        clock, fresh = batch.clock(emission), reading.fresh(new, batch)
        stored: pa.Table | None = log.schema.empty_table()
        if batch.restores:
            limit = limits.state_read(reading.layout)
            stored = self._table.read(fresh, log.keys, before_batch=batch.batch, watermark=clock.watermark, limit=limit)
        if stored is None:
            raise limits.state_beyond(self._state)
        live_rows_in_process.check_fits(fresh, stored, reading, clock)
        return LoadedInProcess(fresh, stored, self._rows.task(clock, batch.batch, keep=batch.builds_state), emission.ends(batch.plan))

    def on_spark(self, new: FileRows | NumberedRows | None, emission: Emission) -> LoadedOnSpark:
        """New rows, and all entries of the keys that have new rows or are due by the watermark."""
        batch, spark, entries = self._batch, self._spark(), None
        if batch.restores:
            touched: DataFrame | None
            if isinstance(new, FileRows):
                touched = new.frame(spark, self.reading, pa.schema(batch.keys.items()))
            else:
                touched = None if new is None else new.rows.where(F.col(REASON).isNull())
            watermark = batch.clock(emission).watermark
            n_touched = 0 if new is None else new.survey.rows
            entries = self._table.restore(touched, self._rows.log.keys, n_touched=n_touched, before_batch=batch.batch, watermark=watermark)
        return LoadedOnSpark(spark, new, entries, self._rows, batch, emission, batch.partitions(spark))
