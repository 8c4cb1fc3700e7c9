"""Joins what the parts of a pipeline make of a batch: result rows, state, and the rows that came too late for all parts.

A row is too late if some window refuses it and no window counts it. A part whose windows are all on grids neither counts nor refuses a row
that lies between its windows, so for such parts the grids tell. Every other part refuses the rows that it does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windowmill.checkpoints.quoting import backquoted
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.spark.column_types import sql_type
from windowmill.jobs.ways import lateness_in_process
from windowmill.jobs.ways import lateness_on_spark as lateness
from windowmill.jobs.ways.base import Computed, Loaded, Part
from windowmill.jobs.ways.new_rows import NewRows
from windowmill.jobs.ways.numbered_rows import NumberedRows
from windowmill.windowing.columnar.added_columns import CLOSED, LATE, NUMBER_OF, TIME, UNTIL_OF
from windowmill.windowing.grids import closing_of

if TYPE_CHECKING:
    from windowmill.jobs.ways.counting import Windows
    from windowmill.jobs.ways.input import Input
    from windowmill.windowing.axis import WindowGrid
    from windowmill.windowing.kernels.combine import Ints

#: Columns of a new row that tell whether it is too late.
_JUDGED_BY = pa.schema([*((name, pa.int64()) for name in (NUMBER_OF, TIME, UNTIL_OF, CLOSED)), (LATE, pa.bool_())])


def joined(new: NewRows | NumberedRows | None, parts: Sequence[Part], loaded: Sequence[Loaded], batch: Input, state: pa.Schema) -> Computed:
    """Compute the ``loaded`` batch of each part, and join the results; ``state`` are the columns of the state table."""
    done: list[Computed] = []
    try:
        # Where one fails, those before it are in the list, and free what they have cached.
        done.extend(part.compute() for part in loaded)
        grids = [grid for part in parts for grid in part.grids]
        refusing = [each for part, each in zip(parts, done, strict=True) if not part.grids]
        judged, refused = None, 0
        if isinstance(new, NewRows):
            too_late = refused_in_process(new, refusing, grids, batch)
            judged, refused = new.without(too_late, batch).refused(), len(too_late)
        elif new is not None:
            judged, refused = _judged(new.rows, refusing, grids, many=len(parts) > 1)
    except BaseException:
        for each in done:
            each.release()
        raise
    windows: Windows = {name: span for each in done for name, span in each.windows.items()}
    states = [each.state for each in done]
    return replace(
        _counts(parts, done, refused),
        rows=_concatenated([each.rows for each in done]),
        state=states[0] if len(parts) == 1 else _concatenated([_with_columns(part, state) for part in states]),
        windows=windows,
        new_state=sum(each.new_state for each in done),
        judged=judged,
        cached=tuple(frame for each in done for frame in each.cached),
    )


def _counts(parts: Sequence[Part], done: Sequence[Computed], refused: int) -> Computed:
    """How many new rows count in a window, how many of these are late, and how many are ``refused``."""
    # Slices say nothing of the rows that they refuse. What any other part refuses is late.
    told = next((each for part, each in zip(parts, done, strict=True) if part.way != "slices"), None)
    if told is None:
        [told] = done
        return Computed(rows_applied=told.rows_applied, rows_late=told.rows_late)
    taken = told.rows_refused - refused
    return Computed(rows_applied=told.rows_applied + taken, rows_late=told.rows_late + taken)


def refused_in_process(new: NewRows, refusing: Sequence[Computed], grids: Sequence[WindowGrid], batch: Input) -> Ints:
    """Numbers of the new rows that came too late for all parts: those that are ``refusing``, and those with these ``grids``."""
    numbers: Ints | None = None
    for each in refusing:
        assert isinstance(each.refused, np.ndarray)
        numbers = each.refused if numbers is None else np.intersect1d(numbers, each.refused)
    if numbers is not None and (not grids or not len(numbers)):
        return numbers
    rows = new.usable(batch, _JUDGED_BY)
    rows = rows.filter(rows.column(LATE) if numbers is None else pc.is_in(rows.column(NUMBER_OF), pa.array(numbers)))
    number, time, closed = (rows.column(name).to_numpy() for name in (NUMBER_OF, TIME, CLOSED))
    if not len(number):
        return np.empty(0, np.int64)
    last_end = closing_of(grids, time, closed, lateness_in_process.last_instants(rows)).last_end
    uncounted = last_end <= np.maximum(time, closed)
    return np.asarray(number[uncounted if numbers is not None else uncounted & (last_end > time)], np.int64)


def _judged(rows: DataFrame, refusing: Sequence[Computed], grids: Sequence[WindowGrid], *, many: bool) -> tuple[DataFrame, int]:
    """As :func:`refused_in_process`, on Spark: ``rows`` with the reason ``too_late`` for these, and their number."""
    if any(each.refused is None for each in refusing):
        return rows, 0
    refused = F.col(REASON).isNull() & F.col(LATE)
    if refusing:
        frames = [each.refused for each in refusing if isinstance(each.refused, DataFrame)]
        common = reduce(lambda left, right: left.join(right, NUMBER_OF, "left_semi"), frames)
        rows = rows.join(common.withColumn("_refused", F.lit(True)), NUMBER_OF, "left")
        refused = F.col("_refused").isNotNull()
    if grids:
        time, closed = F.when(refused, F.col(TIME)), F.when(refused, F.col(CLOSED))
        last_end = lateness.last_end(grids, time, closed, lateness.last_instant(rows, refused))
        refused = F.coalesce(last_end <= F.greatest(time, closed), F.lit(False))
        refused = refused if refusing else refused & (last_end > time)
    judged = rows.withColumn(REASON, F.when(refused, F.lit("too_late")).otherwise(F.col(REASON)))
    if not many:
        return judged, refusing[0].rows_refused if refusing else 0
    return judged, judged.where(F.col(REASON) == "too_late").count()


def _concatenated(parts: Sequence[DataFrame | pa.Table | None]) -> DataFrame | pa.Table | None:
    tables = [part for part in parts if isinstance(part, pa.Table)]
    frames = [part for part in parts if isinstance(part, DataFrame)]
    if frames:
        return reduce(DataFrame.unionByName, frames)
    return pa.concat_tables(tables) if tables else None


def _with_columns(rows: DataFrame | pa.Table | None, schema: pa.Schema) -> DataFrame | pa.Table | None:
    """``rows`` with the columns of ``schema``; columns that ``rows`` lacks are null."""
    if isinstance(rows, pa.Table):
        columns = (rows.column(f.name) if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema)
        return pa.table(list(columns), schema=schema)
    if rows is None:
        return None
    return rows.select(
        *(
            F.col(backquoted(field.name)) if field.name in rows.columns else F.lit(None).cast(sql_type(field.dataType)).alias(field.name)
            for field in from_arrow_schema(schema)
        )
    )
