"""Finds versions of a Delta source that append deleted rows again: together with the deletion they are one correction. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.jobs.sources.base import LoggedVersion
from windowmill.jobs.sources.changed_rows import changed_rows
from windowmill.jobs.sources.columns import REASON
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.sources.plain_files import NotPlainError
from windowmill.jobs.sources.table_rows import TableRows, live_rows
from windowmill.jobs.sources.time_bounds import first_time
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.rows import codes_of
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule


def last_redelivery(pipeline: Pipeline, source: DeltaSource, change: tuple[int, int], seen: int | None) -> int:
    """The last version of the correction that begins with the versions ``change``.

    A version that appends rows before the next change belongs to it, with the versions in between, if one of these rows takes the
    place of a deleted one: it is behind the watermark after ``seen``, and between the first and the last event time of the deleted
    rows of its key.
    """
    last, rows = change[1], TableRows.of(pipeline, source, _refuse)
    if seen is None:
        return last
    watermark = LatenessRule.of(pipeline).watermark(seen)
    try:
        gone = _timed(pipeline, rows, changed_rows(rows, *change, _columns(pipeline), only="before"))
        for version in source.versions(last, source.version) if len(gone) else ():
            if version.changes:
                break
            begins = first_time(source, version.added, pipeline.time) if version.added else watermark
            if begins is not None and begins >= watermark:  # no row is late, so the files need not be read
                continue
            if _takes_place(pipeline, _timed(pipeline, rows, appended_rows(rows, version, _columns(pipeline))), gone, watermark):
                last = version.version
    except NotPlainError:  # only Spark reads them: the rows are judged as any
        return change[1]
    return last


def appended_rows(rows: TableRows, version: LoggedVersion, columns: Sequence[str]) -> pa.Table:
    """The ``columns`` of the rows that ``version`` appended."""
    live = live_rows(rows.table, version.version) if rows.source.deletion_vectors else {}
    empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
    found: Iterator[pa.Table] = (part.select(list(columns)) for _, part in rows.of_files(version.added, live, columns))
    return pa.concat_tables([empty, *found])


def _refuse(why: str) -> Never:
    raise NotPlainError(why)


def _columns(pipeline: Pipeline) -> list[str]:
    return list(dict.fromkeys([*pipeline.keys, *EventTimes(pipeline, None).axis]))


def _timed(pipeline: Pipeline, rows: TableRows, found: pa.Table) -> pa.Table:
    """Keys and event times of the rows ``found`` that have one."""
    timed = EventTimes(pipeline, None).of(found) if len(found) else None
    if timed is None:
        return pa.table({**{key: pa.array([], rows.types[key]) for key in pipeline.keys}, TIME: pa.array([], pa.int64())})
    return timed.filter(pc.is_null(timed.column(REASON))).select([*pipeline.keys, TIME])


def _takes_place(pipeline: Pipeline, new: pa.Table, gone: pa.Table, watermark: int) -> bool:
    """Whether one of the ``new`` rows behind the ``watermark`` lies among those that are ``gone`` of its key; O(n log n)."""
    late = new.filter(pc.less(new.column(TIME), watermark))
    keys, n = list(pipeline.keys), len(gone)
    codes, n_keys = np.zeros(n + len(late), np.int64), 1
    if keys:
        codes, n_keys = codes_of([gone.select(keys), late.select(keys)], keys)
    first, last = np.full(n_keys, np.iinfo(np.int64).max), np.full(n_keys, np.iinfo(np.int64).min)
    np.minimum.at(first, codes[:n], gone.column(TIME).to_numpy())
    np.maximum.at(last, codes[:n], gone.column(TIME).to_numpy())
    times = late.column(TIME).to_numpy()
    return bool(((first[codes[n:]] <= times) & (times <= last[codes[n:]])).any())
