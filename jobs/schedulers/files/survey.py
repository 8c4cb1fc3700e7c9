"""Surveys the new rows of plain files: the watermark that each part of a file finds, and the greatest event time after the batch.

The statistics in the source's log give bounds of the event times of most files. Only where they do not decide, event times are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.layouts import row_numbers
from windowmill.jobs.layouts.lateness import watermarks_at_arrival
from windowmill.jobs.sources.columns import REASON, ROW
from windowmill.jobs.sources.statistics import span as span_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.watermark import BEFORE, first_of_commit, seen_before

if TYPE_CHECKING:
    from windowmill.jobs.layouts.input import TableInput
    from windowmill.jobs.sources.plain_files import FilePart
    from windowmill.jobs.sources.plain_rows import PlainRows
    from windowmill.windowing.kernels.combine import Ints


@dataclass(frozen=True, slots=True)
class Times:
    """Number and event times of the rows of a part of a file, as far as they are known.

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
    """

    rows: int
    last: int
    low: int
    high_at_least: int
    high_at_most: int


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
    watermarks
        For each part, the watermark that its rows find; null if none of them can be late.
    """

    rows: int
    seen: int | None
    starts: tuple[int, ...]
    low: int | None
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
    return Times(sum(table.num_rows for table in rows), last, min(lows, default=AXIS_END), high, high)


def bounds(batch: TableInput, plain: PlainRows, parts: Sequence[FilePart]) -> list[Times]:
    """The event times of ``parts`` by the source's log and the files' footers."""
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
        # Statistics cover all parts of a file: its greatest time is sure to have arrived only with the last one.
        found.append(Times(part.rows, part.first + part.rows, low, at_least if place == final[part.index] else BEFORE, at_most))
    return found


def surveyed(batch: TableInput, files: Sequence[int], times: Sequence[Times], *, every: bool) -> Survey:
    """Survey parts of ``files``, given by index in order of arrival, of whose rows ``times`` are known.

    ``every`` makes the watermark at each row's arrival known.
    """
    index, low, high = np.array(files, np.int64), _column(times, "low"), _column(times, "high_at_least")
    # Parts that were not read cannot raise the watermark beyond that of parts before them.
    watermarks = watermarks_at_arrival(index, np.array(batch.commits, np.int64)[index], high, batch)
    late = (low < watermarks) | (every & (index >= batch.snapshot_files))
    lows, highs = low[late & (low < AXIS_END)], high[high > BEFORE]
    counts = np.zeros(1 + max(files, default=-1), np.int64)
    np.maximum.at(counts, index, _column(times, "last"))
    return Survey(
        sum(each.rows for each in times),
        max((at for at in (batch.seen, *highs.tolist()) if at is not None), default=None),
        tuple(row_numbers.starts_of(counts.tolist(), batch.commits, batch.first_row).tolist()),
        int(lows.min()) if len(lows) else None,
        tuple(int(at) if may_be else None for at, may_be in zip(watermarks, late, strict=True)),
    )


def undecided(batch: TableInput, files: Sequence[int], times: Sequence[Times], *, every: bool) -> list[int]:
    """Which of the parts must be read, because ``times`` do not decide; parameters as of :func:`surveyed`."""
    index, least, most = np.array(files, np.int64), _column(times, "high_at_least"), _column(times, "high_at_most")
    commits = np.array(batch.commits, np.int64)[index]
    # Read parts of which nothing is known, and those that may hold the greatest event time so far.
    asked = (most == AXIS_END) | (most > max([BEFORE if batch.seen is None else batch.seen, *least.tolist()]))
    if batch.closed_by_file is None:
        late = (_column(times, "low") < watermarks_at_arrival(index, commits, most, batch)) | (every & (index >= batch.snapshot_files))
        first, seen = first_of_commit(commits), seen_before(commits, least, batch.seen)
        for number in np.flatnonzero(late).tolist():
            asked[: first[number]] |= most[: first[number]] > seen[number]
    return [int(number) for number in np.flatnonzero(asked)]


def _column(times: Sequence[Times], name: str) -> Ints:
    return np.array([getattr(each, name) for each in times], np.int64)
