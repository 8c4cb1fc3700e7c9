"""Gives rows their event times, and the reason why a row is unusable: the same function for this process and for tasks of Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.column_names import FAILED, REASON, UNREAD
from windowmill.jobs.reasons import why_unusable
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.jobs.sources.unread_rows import reasons_of
from windowmill.windowing.axis import AXIS_END
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME, UNTIL_OF

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

_DAY_US = 86_400_000_000
#: Greatest distance of a date from 1970 whose microseconds fit into 64 bits.
_MAX_DAYS = ((1 << 63) - 1) // _DAY_US


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event times of a pipeline's rows; picklable.

    Attributes
    ----------
    latest
        Greatest accepted event time; null for no bound.
    has_unread
        Whether rows come with the column ``UNREAD``.
    """

    pipeline: Pipeline
    latest: int | None
    has_unread: bool = False

    @property
    def axis(self) -> list[str]:
        """Columns of the source that give a row's time and, of interval events, its end."""
        return [name for name in (self.pipeline.time.column, self.pipeline.time.end) if name is not None]

    @property
    def columns(self) -> list[str]:
        """Columns that :meth:`of` reads."""
        return [*self.read, FAILED]

    @property
    def read(self) -> list[str]:
        """Those of :attr:`columns` that reading gives."""
        return [*self.axis, *([UNREAD] if self.has_unread else [])]

    def of(self, rows: pa.Table) -> pa.Table:
        """``rows`` with event time, end of interval events, and the reason if a row is unusable; without ``FAILED``.

        Parameters
        ----------
        rows
            Rows with the columns of the axis. ``FAILED`` is whether a condition cannot be evaluated on a row; missing if none can fail.
        """
        raw = [rows.column(name) for name in self.axis]
        texts, tick_us = TextTimes.of(self.pipeline.source), self.pipeline.time.tick_us
        time, until = (on_axis(column, texts, tick_us) for column in (raw[0], raw[-1]))
        least, greatest = accepted_times(self.pipeline)
        added = {TIME: time, REASON: pa.nulls(rows.num_rows, pa.string())} | ({UNTIL_OF: until} if len(raw) > 1 else {})
        latest = greatest if self.latest is None else min(greatest, self.latest)
        failed = rows.column(FAILED) if FAILED in rows.column_names else None
        unread = rows.column(UNREAD) if self.has_unread and rows.column(UNREAD).null_count < rows.num_rows else None
        has_failed = failed is not None and pc.any(failed).as_py()
        if len(raw) > 1 or unread is not None or has_failed or not _are_all_within(time, least, latest):
            added[REASON] = why_unusable(self.pipeline, self.latest, (raw[0], raw[-1]), (time, until), failed)
        if unread is not None:
            added[REASON] = pc.coalesce(reasons_of(unread), added[REASON])
        for name, column in added.items():
            rows = rows.append_column(name, column)
        return rows if failed is None else rows.drop_columns([FAILED])


def _are_all_within(time: pa.ChunkedArray, least: int, greatest: int) -> bool:
    if time.null_count:
        return False
    span = pc.min_max(time)
    return not len(time) or (least <= span["min"].as_py() and span["max"].as_py() <= greatest)


def on_axis(column: pa.ChunkedArray, texts: TextTimes, tick_us: int = 1) -> pa.ChunkedArray:
    """Values of a time column on the axis; null for a text that is no instant, and for a date that 64 bits cannot count.

    ``texts`` says which texts are instants, ``tick_us`` how many microseconds a number counts; one beyond the axis stays beyond it.
    """
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _by_chunk(column, texts.on_axis)
    if pa.types.is_date(kind):
        return _by_chunk(column, _begins)
    values = column.cast(pa.int64())
    if tick_us == 1:
        return values
    most = AXIS_END // tick_us + 1
    return pc.multiply(pc.max_element_wise(pc.min_element_wise(values, most, skip_nulls=False), -most, skip_nulls=False), tick_us)


def _begins(dates: pa.Array) -> pa.Array:
    days = dates.cast(pa.int32()).cast(pa.int64())
    counted = pc.and_(pc.greater_equal(days, -_MAX_DAYS), pc.less_equal(days, _MAX_DAYS))
    return pc.multiply(pc.if_else(counted, days, pa.scalar(None, pa.int64())), _DAY_US)


def _by_chunk(column: pa.ChunkedArray, function: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    return pa.chunked_array([function(chunk) for chunk in column.chunks], pa.int64())
