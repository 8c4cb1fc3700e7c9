"""Why rows are refused: the table of reasons, and the functions that give rows theirs. A row has the first reason that applies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.column_names import REASON
from windowmill.windowing.bounds import accepted_times

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline


class Refusal(NamedTuple):
    """What the quarantine says of a row, and what its owner can do; null where that depends on the row, or on others."""

    detail: str | None = None
    remedy: str | None = None


BAD_ROW, CANNOT_CAST, BAD_CONDITION, BAD_TIME, TOO_LATE = "bad_row", "cannot_cast", "bad_condition", "bad_time", "too_late"
_BEYOND = "the row's windows would begin or end beyond the years 1 to 9999, or on an integer axis beyond ±2^62"
_TEXTS = "correct the source, say how texts of files and messages are written (source.options.timestampFormat)"
#: All reasons, in order of precedence; readers of texts find the first two, and BAD_TIME of texts.
REASONS: Mapping[str, Refusal] = {
    BAD_ROW: Refusal(),
    CANNOT_CAST: Refusal(),
    BAD_CONDITION: Refusal(),
    "null_time": Refusal(
        "the time column is null", "fill {column} in the source, or leave such rows out (source.filter: {column} is not null)"
    ),
    BAD_TIME: Refusal(
        "the time column cannot be read as a timestamp",
        f"{{column}} is not everywhere a timestamp; {_TEXTS}, or name another column in time.column",
    ),
    "time_out_of_range": Refusal(_BEYOND, "correct {column} in the source, or time.unit"),
    "end_before_time": Refusal("the event ends before it begins", "correct {end} in the source, or name another column in time.end"),
    "future_time": Refusal(
        "later than max_future_skew after the run's own time",
        "correct {column} in the source (its unit, its time zone), or raise time.max_future_skew",
    ),
    TOO_LATE: Refusal("every window that holds the row had been closed, or its place in the order had been passed, when it arrived"),
}
#: Those about the event time.
OF_TIME = tuple(name for name, reason in REASONS.items() if reason.remedy)
#: Begin and end of each event, which are the same for points.
Span = tuple[pa.ChunkedArray, pa.ChunkedArray]


def why_unusable(pipeline: Pipeline, latest: int | None, raw: Span, on_axis: Span, failed: pa.ChunkedArray | None) -> pa.ChunkedArray:
    """The reason why each row that could be read is unusable; null for a usable one.

    ``latest`` is the greatest accepted event time, ``raw`` and ``on_axis`` are the event's span in the source and on the axis, and
    ``failed`` is whether a condition cannot be evaluated on the row; null for no bound, and if no condition fails.
    """
    (time, until), (least, greatest) = on_axis, accepted_times(pipeline)
    within = [pc.and_(pc.greater_equal(at, least), pc.less_equal(at, greatest)) for at in on_axis]
    applies = {
        BAD_CONDITION: pa.repeat(False, len(time)) if failed is None else failed,
        "null_time": pc.or_(*map(pc.is_null, raw)),
        BAD_TIME: pc.or_(*map(pc.is_null, on_axis)),
        "time_out_of_range": pc.invert(pc.and_(*within)),
        "end_before_time": pc.less(until, time),
    }
    if latest is not None:
        applies["future_time"] = pc.greater(time, latest)
    whole = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in applies.values()]
    return pc.case_when(pc.make_struct(*whole, field_names=list(applies)), *map(pa.scalar, applies))


def with_too_late(rows: pa.Table, late: pa.Array | pa.ChunkedArray) -> pa.Table:
    """``rows`` with the reason ``too_late`` for those that ``late`` marks."""
    return rows.set_column(rows.schema.get_field_index(REASON), REASON, pc.if_else(late, TOO_LATE, rows.column(REASON)))


def remedies_of(reasons: Mapping[str, int], pipeline: Pipeline) -> list[str]:
    """What to do about rows that are quarantined for these ``reasons``, by themselves and not by when they came."""
    fields = {"column": pipeline.time.column, "end": pipeline.time.end}
    return [f"{name}: {each.remedy.format(**fields)}" for name, each in REASONS.items() if each.remedy and reasons.get(name)]
