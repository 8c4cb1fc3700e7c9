"""The new rows of a small batch in this process, and the result rows computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.sources.columns import FILE, REASON, ROW, VERSION
from windowmill.jobs.spark.access import access_to
from windowmill.jobs.ways import lateness_in_process as lateness
from windowmill.jobs.ways import limits
from windowmill.jobs.ways import slice_passes as passes
from windowmill.jobs.ways.base import Computed
from windowmill.jobs.ways.quarantine import TOO_LATE
from windowmill.jobs.ways.row_numbers import numbers_of
from windowmill.windowing.columnar.added_columns import NUMBER_OF, TIME, UNTIL_OF, WATERMARK_OF
from windowmill.windowing.columnar.chunks import without_empty_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.jobs.ways.counting import Windows
    from windowmill.jobs.ways.input import Input, TableInput
    from windowmill.windowing.columnar.advanced import Advanced
    from windowmill.windowing.columnar.slices import Reading
    from windowmill.windowing.kernels.combine import Ints


def _unread() -> None:
    """The default of ``whole``."""


@dataclass(frozen=True)
class NewRows:
    """New rows in this process.

    Attributes
    ----------
    table
        The columns that lifting reads, in order of arrival; includes unusable rows.
    in_spark
        Gives the rows in Spark, with all columns; called only for quarantined rows, and where Spark has to do the rest of the work.
    whole
        Reads the rows with all columns in this process; gives null if it cannot, and by default.
    """

    table: pa.Table
    in_spark: Callable[[], DataFrame]
    whole: Callable[[], pa.Table | None] = _unread

    @classmethod
    def of_files(cls, batch: TableInput, stages: Sequence[Reading], spark: Callable[[], SparkSession]) -> NewRows | None:
        """The new rows of ``batch``, with the columns that the ``stages`` read, from plain files; null if only Spark can read them."""
        if batch.plain is None:
            return None
        names = [name for stage in stages for name in (*stage.keys, *stage.ties, *stage.source_columns)]
        conditions = list(dict.fromkeys(text for stage in stages for text in stage.conditions))
        read = batch.plain.read(names, conditions, latest=batch.latest)
        if read is None:
            return None
        return cls(read.drop_columns([VERSION]), lambda: batch.read(spark()), partial(_whole, batch.plain, batch.latest))

    @classmethod
    def of_spark(cls, batch: TableInput, stages: Sequence[Reading], spark: SparkSession) -> NewRows:
        """As :meth:`of_files`, read by Spark in one job."""
        rows = batch.read(spark)
        return cls(_collected(rows, stages, batch.expected_rows), lambda: rows)

    def usable(self, batch: Input, schema: pa.Schema) -> pa.Table:
        """The rows without a quarantine reason, numbered in order of arrival over all batches, with the columns of ``schema``.

        The end of an event that is a point is its time.
        """
        marked = lateness.marked(self.table, batch).append_column(NUMBER_OF, pa.array(numbers_of(self.table, batch)))
        if UNTIL_OF not in marked.column_names:
            marked = marked.append_column(UNTIL_OF, marked.column(TIME))
        return marked.filter(pc.is_null(marked.column(REASON))).select(schema.names).cast(schema)

    def without(self, too_late: Ints, batch: Input) -> NewRows:
        """These rows, with the reason ``too_late`` for those of these numbers, and the watermark that they found."""
        late = np.isin(numbers_of(self.table, batch), too_late)
        reasons = pc.if_else(pa.array(late), TOO_LATE, self.table.column(REASON))
        table = self.table.set_column(self.table.schema.get_field_index(REASON), REASON, reasons)
        if late.any():
            table = table.append_column(WATERMARK_OF, lateness.marked(self.table, batch).column(WATERMARK_OF))
        return replace(self, table=table)

    def refused(self) -> DataFrame | pa.Table | None:
        """The rows with a quarantine reason, with all columns; null if there are none."""
        told = [name for name in (FILE, ROW, REASON, WATERMARK_OF) if name in self.table.column_names]
        refused = self.table.filter(pc.is_valid(self.table.column(REASON))).select(told)
        if not refused.num_rows:
            return None
        here = self.whole() if refused.num_rows <= limits.MOST_REFUSED else None
        if here is not None:
            return here.drop_columns([REASON]).join(refused, [FILE, ROW], join_type="inner")
        rows = self.in_spark()
        return rows.drop(REASON).join(F.broadcast(rows.sparkSession.createDataFrame(without_empty_chunks(refused))), [FILE, ROW])


def _whole(plain: PlainRows, latest: int | None) -> pa.Table | None:
    """The rows with all columns; null if this process cannot read them, or write them as JSON."""
    return plain.read(list(plain.types), [], latest=latest) if spark_form.takes(plain.types.values()) else None


def _collected(rows: DataFrame, stages: Sequence[Reading], n_rows: int) -> pa.Table:
    """The columns of ``rows`` that the ``stages`` read, in order of arrival; ``n_rows`` is their number by the source's log."""
    own = [name for name in (FILE, ROW, REASON, TIME, UNTIL_OF) if name in rows.columns]
    chosen = rows.select(*own, *passes.inputs(rows, *stages, where=F.col(REASON).isNull()))
    with access_to(rows.sparkSession).interpreting() if n_rows <= limits.MOST_INTERPRETED else nullcontext():
        table = chosen.toArrow()
    return table.sort_by([(FILE, "ascending"), (ROW, "ascending")])


def computed(done: Advanced) -> Computed:
    """What a part makes of a small batch."""
    state = done.state if done.state is not None and len(done.state) else None
    return Computed(
        rows=pa.concat_tables(done.results) if done.results else None,
        state=state,
        windows=counted(done.results),
        rows_applied=done.applied,
        rows_late=done.late,
        new_state=0 if state is None else len(state),
        refused=done.refused,
        rows_refused=len(done.refused),
    )


def counted(tables: Sequence[pa.Table]) -> Windows:
    """Number of result rows by window name, with the first and last window end; each table has rows of one window."""
    windows: Windows = {}
    for table in tables:
        ends = pc.min_max(table.column("window_end").cast(pa.int64())).as_py()
        name = table.column("window")[0].as_py()
        n, low, high = windows.get(name, (0, ends["min"], ends["max"]))
        windows[name] = (n + table.num_rows, min(low, ends["min"]), max(high, ends["max"]))
    return windows
