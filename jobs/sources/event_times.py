"""Gives the rows of an Arrow table their event times, and the reason why a row is unusable, as :func:`.rows.event_time` does in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.column_names import REASON
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline


def timed(rows: pa.Table, pipeline: Pipeline, failed: pa.Array | None, latest: int | None) -> pa.Table:
    """``rows`` with event time, end if events last, and the reason if a row is unusable.

    Parameters
    ----------
    failed
        Whether a condition cannot be evaluated on each row; null for none.
    latest
        Greatest accepted event time; null for no bound.
    """
    end = pipeline.time.end
    time = _on_axis(rows.column(pipeline.time.column))
    until = time if end is None else _on_axis(rows.column(end))
    least, greatest = accepted_times(pipeline)
    added = {TIME: time, REASON: pa.nulls(rows.num_rows, pa.string())} | ({} if end is None else {UNTIL_OF: until})
    if failed is not None or end is not None or not _are_all_within(time, least, greatest if latest is None else min(greatest, latest)):
        added[REASON] = _reasons(time, until, pa.repeat(False, rows.num_rows) if failed is None else failed, least, greatest, latest)
    for name, column in added.items():
        rows = rows.append_column(name, column)
    return rows


def _are_all_within(time: pa.ChunkedArray, least: int, greatest: int) -> bool:
    if time.null_count:
        return False
    span = pc.min_max(time)
    return not len(time) or (least <= span["min"].as_py() and span["max"].as_py() <= greatest)


def _reasons(
    time: pa.ChunkedArray, until: pa.ChunkedArray, failed: pa.Array, least: int, greatest: int, latest: int | None
) -> pa.Array | pa.ChunkedArray:
    low, high = (pa.scalar(bound, pa.int64()) for bound in (least, greatest))
    within = [pc.and_(pc.greater_equal(at, low), pc.less_equal(at, high)) for at in (time, until)]
    reasons = {
        "bad_condition": failed,
        "null_time": pc.or_(pc.is_null(time), pc.is_null(until)),
        "time_out_of_range": pc.invert(pc.and_(*within)),
        "end_before_time": pc.less(until, time),
    }
    if latest is not None:
        reasons["future_time"] = pc.greater(time, pa.scalar(latest, pa.int64()))
    return pc.case_when(pc.make_struct(*map(_in_one_chunk, reasons.values()), field_names=list(reasons)), *map(pa.scalar, reasons))


def _on_axis(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.int64())


def _in_one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
