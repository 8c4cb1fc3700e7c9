"""Surveys the new rows of plain files: the watermark that each part of a file finds, and the greatest event time after the batch.

The statistics in the source's log give bounds of the event times of most files. Only where they do not decide, event times are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.columns import REASON, ROW
from windowmill.jobs.sources.statistics import span as span_of
from windowmill.jobs.ways import row_numbers
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.watermark import BEFORE

if TYPE_CHECKING:
    from windowmill.jobs.sources.plain_files import FilePart
    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.jobs.ways.input import TableInput
    from windowmill.windowing.kernels.combine import Bools, Ints


@dataclass(frozen=True, slots=True)
class Times:
    """What is known of the rows of a part of a file.

    Attributes
    ----------
    rows
        Number of rows that are not left out by the filter.
    last
        One more than the index in the file of the last of these rows.
    low
        An instant before which no usable row is.
    high_at_least, high_at_most
        Bounds of the greatest event time of usable rows; ``BEFORE`` if there is none.
    known
        Whether the values are those of the rows; otherwise they are bounds, or say nothing.
    """

    rows: int
    last: int
    low: int
    high_at_least: int
    high_at_most: int
    known: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """Survey of a batch's rows.

    Attributes
    ----------
    rows
        Number of rows read.
    seen
        Greatest event time after the batch; null if no row ever had one.
    starts
        Number before the first row of each file.
    low
        An event time that no late row is before; null if there are no late rows.
    """

    rows: int
    seen: int | None
    starts: tuple[int, ...]
    low: int | None


@dataclass(frozen=True, slots=True)
class FileSurvey(Survey):
    """Survey of a batch's rows in plain files.

    Attributes
    ----------
    watermarks
        For each part, the watermark that its rows find; null if none of them can be late.
    """

    watermarks: tuple[int | None, ...]

    @property
    def has_late(self) -> bool:
        """Whether some row may be late."""
        return any(watermark is not None for watermark in self.watermarks)


def times_of(rows: Sequence[pa.Table]) -> Times:
    """What is known of a part from its ``rows``, as :meth:`.PlainRows.read_part` gives them."""
    usable = [pc.min_max(table.filter(pc.is_null(table.column(REASON))).column(TIME)).as_py() for table in rows]
    lows = [span["min"] for span in usable if span["min"] is not None]
    highs = [span["max"] for span in usable if span["max"] is not None]
    last = max((table.column(ROW)[-1].as_py() + 1 for table in rows if table.num_rows), default=0)
    high = max(highs, default=BEFORE)
    return Times(sum(table.num_rows for table in rows), last, min(lows, default=AXIS_END), high, high, known=True)


def bounds(batch: TableInput, plain: PlainRows, parts: Sequence[FilePart]) -> list[Times]:
    """What the source's log and the files' footers say about ``parts``."""
    pipeline = batch.pipeline
    decides = pipeline.time.end is None and not (pipeline.source and pipeline.source.filter)
    decides = decides and not plain.conditions.may_fail
    least, greatest = accepted_times(pipeline)
    greatest = greatest if batch.latest is None else min(greatest, batch.latest)
    axis = batch.types[pipeline.time.column]
    instants, tick_us = pa.types.is_timestamp(axis), pipeline.time.tick_us
    # The log writes dates and times without a zone in forms of their own.
    decides = decides and (pa.types.is_integer(axis) or (instants and axis.tz is not None))
    final = {part.index: place for place, part in enumerate(parts)}
    spans: dict[int, tuple[int, int, int] | None] = {}
    found = []
    for place, part in enumerate(parts):
        if part.index not in spans:
            name = part.file.names.get(pipeline.time.column)
            span = None if name is None or not decides else span_of(batch.files[part.index].stats, name, instants=instants, tick_us=tick_us)
            spans[part.index] = span if span is not None and least <= span[0] and span[2] <= greatest else None
        low, at_least, at_most = spans[part.index] or (AXIS_BEGIN, BEFORE, AXIS_END)
        # Of several parts of a file any may hold its greatest time: the last one tells that all of them have been passed.
        found.append(Times(part.rows, part.first + part.rows, low, at_least if place == final[part.index] else BEFORE, at_most))
    return found


def surveyed(
    batch: TableInput, parts: Sequence[FilePart], told: Sequence[Times], read: Callable[[Sequence[int]], Sequence[Times]], *, every: bool
) -> FileSurvey:
    """Survey ``parts``, of which ``told`` is known; ``read`` reads the event times of those of given numbers.

    ``every`` makes the watermark at each row's arrival known.
    """
    order, seen = _Order(batch, parts), BEFORE if batch.seen is None else batch.seen
    times = list(told)
    unclear = np.flatnonzero(order.unclear(times, seen, every=every)).tolist()
    for number, found in zip(unclear, read(unclear) if unclear else (), strict=True):
        times[number] = found
    watermarks = order.watermarks(times, seen, every=every)
    lows = [each.low for each, watermark in zip(times, watermarks, strict=True) if watermark is not None and each.low < AXIS_END]
    last, counts = max([seen, *(each.high_at_least for each in times)]), [0] * len(batch.files)
    for part, each in zip(parts, times, strict=True):
        counts[part.index] = max(counts[part.index], each.last)
    starts = row_numbers.starts_of(counts, batch.commits, batch.first_row).tolist()
    rows = sum(each.rows for each in times)
    return FileSurvey(rows, None if last == BEFORE else last, tuple(starts), min(lows, default=None), tuple(watermarks))


class _Order:
    """The order in which the parts of a batch arrive."""

    def __init__(self, batch: TableInput, parts: Sequence[FilePart]) -> None:
        files = np.array([part.index for part in parts], np.int64)
        self._disorder = batch.disorder
        self._settled = files < batch.snapshot_files
        self._vouched = None
        if batch.closed_by_file is not None:
            self._vouched = np.array(batch.closed_by_file, np.int64)[files] + batch.lateness
        commits = np.array(batch.commits, np.int64)[files]
        #: For each part, the number of parts of earlier commits.
        self._before = np.searchsorted(commits, commits)

    def _seen(self, highs: Ints, seen: int) -> Ints:
        """Greatest of ``highs``, and of ``seen``, before each part's commit."""
        return np.maximum.accumulate(np.concatenate(([seen], highs)))[self._before]

    def _late(self, times: Sequence[Times], highs: Ints, seen: int) -> Bools:
        """Whether rows of each part may be late, if its parts reach up to ``highs``."""
        low = np.array([each.low for each in times], np.int64)
        if self._vouched is not None:
            return np.asarray(low < self._vouched)
        found = self._seen(highs, seen)
        return np.asarray((found > BEFORE) & (low < np.maximum(found, BEFORE + self._disorder) - self._disorder) & ~self._settled)

    def unclear(self, times: Sequence[Times], seen: int, *, every: bool) -> Bools:
        """Which parts must be read."""
        least = np.array([each.high_at_least for each in times], np.int64)
        most = np.array([each.high_at_most for each in times], np.int64)
        # Of these nothing is known, or only the greatest of them tells how far the watermark has come.
        unclear = (most == AXIS_END) | (most > max([seen, *least.tolist()]))
        if self._vouched is not None:
            return np.asarray(unclear)
        late = self._late(times, most, seen) | (every & ~self._settled)
        before = self._seen(least, seen)
        for number in np.flatnonzero(late).tolist():
            unclear[: self._before[number]] |= most[: self._before[number]] > before[number]
        return np.asarray(unclear)

    def watermarks(self, times: Sequence[Times], seen: int, *, every: bool) -> list[int | None]:
        """The watermark that the rows of each part find; null if none of them can be late."""
        # A part that was not read reaches no further than others before it that matter.
        least = np.array([each.high_at_least for each in times], np.int64)
        found = self._seen(least, seen)
        watermark = np.maximum(found, BEFORE + self._disorder) - self._disorder if self._vouched is None else self._vouched
        watermark = np.maximum(np.where(self._settled & (self._vouched is None), AXIS_BEGIN, watermark), AXIS_BEGIN)
        late = self._late(times, least, seen) | (every & ~self._settled)
        return [int(at) if may_be else None for at, may_be in zip(watermark, late, strict=True)]
