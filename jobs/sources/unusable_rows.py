"""Rows that cannot be used, each with its first reason; and the event times of the others.

The column ``UNREAD`` holds the reason for which a row could not be read and, after a space, JSON: a sentence for people, and the texts that
became no values, by column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.conditions.truths import required_columns
from windowmill.jobs.sources.options import ddl_of
from windowmill.jobs.sources.text_values import TextTimes
from windowmill.windowing.axis import AXIS_END, DAY_US
from windowmill.windowing.bounds import accepted_times
from windowmill.windowing.columnar.added_columns import CORRUPT, FAILED, REASON, TIME, UNREAD, UNTIL_OF

if TYPE_CHECKING:
    from windowmill.windowing.spec import Pipeline

#: Characters of a text that a sentence shows.
SHOWN = 200
#: Greatest distance of a date from 1970 whose microseconds fit into 64 bits.
_MAX_DAYS = ((1 << 63) - 1) // DAY_US


class Refusal(NamedTuple):
    """What the quarantine says of a row, and what its owner can do; null where that depends on the row, or on others."""

    detail: str | None = None
    remedy: str | None = None


BAD_ROW, CANNOT_CAST, BAD_COLUMN, BAD_CONDITION, NO_MATCH = "bad_row", "cannot_cast", "bad_column", "bad_condition", "no_match"
BAD_TIME, TOO_LATE = "bad_time", "too_late"
_BEYOND = "the row's windows would begin or end beyond the years 1 to 9999, or on an integer axis beyond ±2^62"
_TEXTS = "correct the source, say how texts of files and messages are written (source.options.timestampFormat)"
#: All reasons, in order of precedence; readers of texts find the first two, and BAD_TIME of texts; steps find the next three.
REASONS: Mapping[str, Refusal] = {
    BAD_ROW: Refusal(),
    CANNOT_CAST: Refusal(),
    BAD_COLUMN: Refusal(),
    BAD_CONDITION: Refusal(),
    NO_MATCH: Refusal(),
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
    """What to do about rows that are quarantined for ``reasons`` that do not depend on when rows came, a line for each."""
    fields = {"column": pipeline.time.column, "end": pipeline.time.end}
    return [f"{name}: {each.remedy.format(**fields)}" for name, each in REASONS.items() if each.remedy and reasons.get(name)]


@dataclass(frozen=True, slots=True)
class ExpectedColumns:
    """What a spec uses of a source's rows.

    ``names``: the columns; if several values do not fit, the first column gives the reason.
    ``times``: columns that are event times.
    """

    names: tuple[str, ...] = ()
    times: frozenset[str] = frozenset()

    @classmethod
    def by(cls, pipeline: Pipeline, columns: Sequence[str]) -> ExpectedColumns:
        """What ``pipeline`` uses of a source with these ``columns``."""
        used, _ = required_columns(pipeline)
        folded = {name.lower() for name in used if name not in columns}  # conditions ignore case
        every = any(window.reads_whole_rows for window in pipeline.windows)
        order = {name: place for place, name in enumerate(used)}
        names = [name for name in columns if every or name in used or name.lower() in folded]
        times = frozenset(filter(None, (pipeline.time.column, pipeline.time.end)))
        return cls(tuple(sorted(names, key=lambda name: order.get(name, len(order)))), times)

    def among(self, columns: Mapping[str, object]) -> ExpectedColumns:
        """What is used of rows that have only these ``columns``."""
        return ExpectedColumns(tuple(name for name in self.names if name in columns), self.times)


def unread_of(
    texts: Mapping[str, pa.Array],
    values: Mapping[str, pa.Array],
    expected: ExpectedColumns,
    bad: Mapping[int, str],
    where: Callable[[int], str],
    lines: Callable[[int], bytes],
    n_rows: int,
) -> pa.Array:
    """``UNREAD`` of rows: null where they could be read.

    ``texts``, ``values``: the columns before and after their values were parsed.
    ``bad``: why a row could not be read, by its index.
    ``where``, ``lines``: where a row is, and its bytes, by its index.
    """
    found = {
        index: unread_text(BAD_ROW, f"{where(index)}: {why}", {CORRUPT: lines(index).decode(errors="replace")})
        for index, why in bad.items()
    }
    wrong: dict[int, dict[str, str]] = {}
    for name in expected.names:
        if texts[name].null_count == values[name].null_count:
            continue
        for index in np.flatnonzero(pc.and_(pc.is_valid(texts[name]), pc.is_null(values[name])).to_numpy(zero_copy_only=False)).tolist():
            wrong.setdefault(index, {})[name] = _text_of(texts[name][index])
    for index, own in wrong.items():
        name, text = next(iter(own.items()))
        said = f"{name}: got {json.dumps(text[:SHOWN], ensure_ascii=False)}; expected {ddl_of(values[name].type)}"
        found[index] = unread_text(BAD_TIME if name in expected.times else CANNOT_CAST, f"{where(index)}: {said}", own)
    return pa.array([found.get(index) for index in range(n_rows)], pa.string()) if found else pa.nulls(n_rows, pa.string())


def _text_of(value: pa.Scalar) -> str:
    try:
        return str(value.as_py())
    except (OverflowError, ValueError):  # a date or an instant that Python has none for
        return str(value.value)


def unread_text(reason: str, detail: str, texts: Mapping[str, str]) -> str:
    """``UNREAD`` of a row."""
    return f"{reason} {json.dumps({'detail': detail, 'texts': texts}, ensure_ascii=False)}"


def failure_of(condition: str) -> str:
    """The sentence about a condition that fails on a row."""
    return f"condition {condition!r} fails on the row"


def reasons_of(unread: pa.ChunkedArray) -> pa.ChunkedArray:
    """The reasons in ``UNREAD``."""
    return pc.list_element(pc.split_pattern(unread, " ", max_splits=1), 0)


def details_of(unread: pa.ChunkedArray) -> list[str | None]:
    """The sentences in ``UNREAD``."""
    return [None if text is None else json.loads(text.partition(" ")[2])["detail"] for text in unread.to_pylist()]


def with_texts(rows: pa.ChunkedArray, unread: pa.ChunkedArray) -> list[str]:
    """``rows`` as JSON objects, each with the texts in ``UNREAD`` in the place of nulls."""
    found = []
    for row, problem in zip(rows.to_pylist(), unread.to_pylist(), strict=True):
        for name, text in ({} if problem is None else json.loads(problem.partition(" ")[2])["texts"]).items():
            lead, held = json.dumps(name, ensure_ascii=False), json.dumps(text, ensure_ascii=False)
            if f"{lead}:null" in row:
                row = row.replace(f"{lead}:null", f"{lead}:{held}", 1)  # noqa: PLW2901 - with each text
            elif f"{lead}:" not in row:
                row = f"{row[:-1]},{lead}:{held}}}"  # noqa: PLW2901
        found.append(row)
    return found


@dataclass(frozen=True, slots=True)
class EventTimes:
    """The event times of a pipeline's rows; picklable.

    ``latest``: greatest accepted event time; null for no bound.
    ``has_unread``: whether rows come with the column ``UNREAD``.
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

        ``rows``: rows with the columns of the axis. ``FAILED`` is whether a condition cannot be evaluated on a row; missing if none can
        fail.
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
        span = pc.min_max(time).as_py()
        are_within = not time.null_count and (not len(time) or (least <= span["min"] and span["max"] <= latest))
        if len(raw) > 1 or unread is not None or has_failed or not are_within:
            added[REASON] = why_unusable(self.pipeline, self.latest, (raw[0], raw[-1]), (time, until), failed)
        if unread is not None:
            added[REASON] = pc.coalesce(reasons_of(unread), added[REASON])
        for name, column in added.items():
            rows = rows.append_column(name, column)
        return rows if failed is None else rows.drop_columns([FAILED])


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
    return pc.multiply(pc.if_else(counted, days, pa.scalar(None, pa.int64())), DAY_US)


def _by_chunk(column: pa.ChunkedArray, function: Callable[[pa.Array], pa.Array]) -> pa.ChunkedArray:
    return pa.chunked_array([function(chunk) for chunk in column.chunks], pa.int64())
