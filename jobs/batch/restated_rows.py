"""Selects the source rows that a restatement computes, among them rows that a source deleted and appended again.

The selected rows are written to plain files of their own, which the batch reads as those of any source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import RestatePlan
from windowmill.checkpoints.state.compaction import rows_numbered
from windowmill.checkpoints.state.tables import files_of
from windowmill.checkpoints.stores import filesystem_of, is_local, is_table, table_at
from windowmill.jobs import json_lines
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource, first_time, spans, without_mapping
from windowmill.jobs.sources.plain_files import Form, NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, local_conditions
from windowmill.jobs.sources.table_rows import Side, TableRows, WrittenRows, changed_rows, live_rows, queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE, EventTimes, with_texts
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import REASON, ROW, TIME, UNREAD
from windowmill.windowing.columnar.rows import are_among, codes_of
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.fields import Time
from windowmill.windowing.layouts import divide
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule

#: Longer than any restatement takes.
_LONGEST = timedelta(days=7)
#: What identifies a row of the quarantine: its file and its number in it, or its values as JSON.
Known = tuple[str, int] | str
_QUARANTINED = {
    "row": pa.string(),
    "reason": pa.string(),
    "event_time": pa.int64(),
    "source_file": pa.string(),
    "source_row": pa.int64(),
}


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


@dataclass(frozen=True)
class Scope:
    """What a restatement recomputes."""

    #: Keys and event times of the rows whose windows are recomputed; null for all keys and windows.
    touched: pa.Table | None
    #: ``begin``, ``end``: event times [begin, end) that are read; null for no bound.
    begin: int | None = None
    end: int | None = None
    #: Whether the state of these keys is rebuilt; else the windows of which it holds parts are not touched.
    rebuilds: bool = True

    @classmethod
    def of(
        cls, pipeline: Pipeline, plan: RestatePlan, types: Mapping[str, pa.DataType], touched: pa.Table | None, *, ignored: bool
    ) -> Scope:
        """The scope of ``plan``: of windows on grids alone only times near those ``touched``, or in the range of the plan, are read.

        ``ignored`` says whether batches have ignored changes that the plan does not name: the state of its keys has to include them.
        """
        if touched is not None and not touched.num_rows:
            return cls(touched, rebuilds=False)
        slices = divide(pipeline, types).slices
        if (
            plan.passes_over
            or slices is None
            or len(slices.pipeline.windows) < len(pipeline.windows)
            or slices.grids.known
            or slices.grids.intervals
        ):
            return cls(touched)
        longest = max(grid.longest for grid in slices.grids.grids)
        begin, end = (None if plan.range_from is None else plan.range_from - longest), plan.range_to
        if touched is not None:
            times = pc.min_max(touched.column(TIME)).as_py()
            begin, end = times["min"] - longest, times["max"] + longest + 1
        kept = None if plan.emitted is None else slices.grids.first_slice_after(plan.emitted)
        last = end if touched is None or end is None else end - longest
        if kept is not None and last is not None and last <= kept and not ignored:
            return cls(touched, begin, end, rebuilds=False)
        return cls(touched, begin if begin is None or kept is None else min(begin, kept))

    def files(self, source: SourceTable, time: Time) -> Callable[[AddedFile], bool]:
        """Whether a file of ``source`` may hold rows in its range of times, according to statistics."""

        def may_hold(file: AddedFile) -> bool:
            [found] = spans(source, [file], time.column, time.tick_us)
            return found is None or ((self.end is None or found[0] < self.end) and (self.begin is None or found[2] >= self.begin))

        return may_hold

    def within(self, rows: pa.Table, time: Time) -> pa.Table:
        """Those of ``rows`` in its range of times, as far as the type of their column allows; the batch decides."""
        kind = rows.schema.field(time.column).type
        bounds = [(pc.greater_equal, self.begin), (pc.less, self.end)]
        if not pa.types.is_integer(kind) and kind != pa.timestamp("us", "UTC"):
            return rows
        for holds, at in bounds:
            # Of whole numbers, those at or after a bound are those at or after the next multiple of what they count.
            rows = rows if at is None else rows.filter(holds(rows.column(time.column).cast(pa.int64()), -(-at // time.tick_us)))
        return rows

    def of_keys(self, rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
        """Those of ``rows`` whose keys are touched."""
        if self.touched is None:
            return rows
        if not keys:
            return rows if self.touched.num_rows else rows.slice(0, 0)
        return rows.filter(pa.array(are_among(rows, self.keys(keys), keys)))

    def keys(self, keys: tuple[str, ...]) -> pa.Table:
        """The keys that are touched, each once."""
        assert self.touched is not None
        return self.touched.select(list(keys)).group_by(list(keys), use_threads=False).aggregate([])


class QuarantinedRows:
    """Rows of the quarantine table, to be found among those of ``files`` of the source.

    A row is known by its file and its number in it; where others have rewritten the file since, or the entry does not name it, by its
    event time and the values of the columns that the pipeline uses.
    """

    def __init__(self, pipeline: Pipeline, used: Sequence[str], files: Collection[str], rows: pa.Table) -> None:
        self._pipeline, self._used = pipeline, used
        known = _known(rows, used, files)
        self.left = Counter(known)
        self._by_file: dict[str, list[int]] = {}
        for key in known:
            if isinstance(key, tuple):
                self._by_file.setdefault(key[0], []).append(key[1])
        moved = [not isinstance(key, tuple) for key in known]
        self._times = rows.column("event_time").filter(pa.array(moved, pa.bool_())).combine_chunks()

    def split(self, file: AddedFile, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """``rows`` of ``file`` that are not in quarantine, and those that are; each row in quarantine is found once."""
        found = pc.is_in(rows.column(ROW), pa.array(self._by_file.get(file.path, []), pa.int64())).to_numpy().copy()
        for number in rows.column(ROW).filter(pa.array(found)).to_pylist():
            self.left[file.path, number] -= 1
        if len(self._times):
            self._find_moved(rows, found)
        return rows.filter(pa.array(~found)), rows.filter(pa.array(found))

    def _find_moved(self, rows: pa.Table, found: np.ndarray) -> None:
        """Mark as ``found`` those of ``rows`` that are known by their values."""
        time = EventTimes(self._pipeline, None).of(rows).column(TIME)
        odd = pc.or_(pc.less(time, PRINTABLE[0]), pc.greater(time, PRINTABLE[1])).fill_null(False)
        time = pc.if_else(odd, pa.scalar(None, pa.int64()), time)
        places = np.flatnonzero(pc.is_in(time, self._times).to_numpy() & ~found)
        own = rows.select(list(self._used)).take(pa.array(places))
        if not len(places):
            return
        if not json_lines.has_spark_json(own.schema.types):
            raise UnsupportedError(
                f"pipeline {self._pipeline.pipeline}: rows in quarantine cannot be identified among those of the source, because the spec "
                "uses columns of nested types; write their parts to columns of a table, or backfill in a new sink"
            )
        texts = json_lines.to_json(own)
        if UNREAD in rows.column_names:
            chosen = rows.column(UNREAD).take(pa.array(places))
            texts = with_texts(pa.chunked_array([pa.array(texts, pa.string())]), chosen)
        for place, at, text in zip(places, time.take(pa.array(places)).to_pylist(), texts, strict=True):
            known = _by_values(at, text, self._used)
            if self.left[known] > 0:
                self.left[known] -= 1
                found[place] = True


def _known(rows: pa.Table, used: Sequence[str], files: Collection[str]) -> list[Known]:
    """What identifies each of the ``rows`` of a quarantine table: its file, if that is one of ``files``, and number; or its values."""
    names = ("source_file", "source_row", "event_time", "row")
    return [
        (file, number) if number is not None and file in files else _by_values(at, text, used)
        for file, number, at, text in zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    ]


def _by_values(at: int | None, row: str, used: Sequence[str]) -> str:
    """The event time and the columns ``used`` of a row as JSON, whoever wrote it and whichever columns without values it had."""
    values = json.loads(row)
    return json.dumps([at, {name: values[name] for name in used if values.get(name) is not None}], sort_keys=True)


def quarantined(
    runnable: Runnable, rows: TableRows, version: int, *, late: bool, delivered_again: Collection[str] = ()
) -> tuple[QuarantinedRows, QuarantinedRows]:
    """The rows in quarantine that stay there, and those that count from now on: with ``late`` those that came too late.

    Rows of files ``delivered_again`` are left out: the files have others now.
    """
    every, files = _read_quarantine(runnable.places.quarantine, _QUARANTINED), {file.path for file in rows.source.snapshot(version)}
    if delivered_again:
        again = pc.is_in(every.column("source_file"), pa.array(list(delivered_again), pa.string()))
        every = every.filter(pc.invert(again))
    counts = pc.and_(pc.equal(every.column("reason"), TOO_LATE), late)
    kinds = (every.filter(pc.invert(counts)), every.filter(counts))
    stays, taken = (QuarantinedRows(runnable.pipeline, rows.used, files, kind) for kind in kinds)
    return stays, taken


def kept_out(runnable: Runnable, used: Sequence[str], files: Collection[str], reasons: Collection[str]) -> QuarantinedRows:
    """The rows in quarantine for one of ``reasons``, to be found among those of ``files``; the pipeline uses the columns ``used``."""
    rows = _read_quarantine(runnable.places.quarantine, _QUARANTINED)
    return QuarantinedRows(
        runnable.pipeline, used, files, rows.filter(pc.is_in(rows.column("reason"), pa.array(list(reasons), pa.string())))
    )


def _read_quarantine(place: str, types: Mapping[str, pa.DataType]) -> pa.Table:
    """All rows of the quarantine table at ``place``, with columns of ``types``, of which an older table may lack some."""
    parts = [pa.table({name: pa.array([], kind) for name, kind in types.items()})]
    if is_table(place):
        table = table_at(place)
        there = pa.schema(table.schema().to_arrow()).names
        parts += queried(table, types, "true", {name: name for name in types if name in there})
    return pa.concat_tables(parts)


def touched_rows(
    runnable: Runnable, rows: TableRows, plan: RestatePlan, delivered_again: Collection[str]
) -> tuple[pa.Table | None, Mapping[Known, int]]:
    """Keys and event times of the rows that ``plan`` restates, null for all; and the rows that it takes out of quarantine.

    ``delivered_again`` is as of :func:`quarantined`.
    """
    pipeline = runnable.pipeline
    if plan.changed is None and not plan.late:
        return None, {}
    axis = EventTimes(pipeline, None)
    columns = list(dict.fromkeys([*pipeline.keys, *axis.axis]))
    parts = [] if plan.changed is None else [_chosen_by_filter(pipeline, rows, plan, plan.changed, columns)]
    taken: Mapping[Known, int] = {}
    if plan.late:
        _, counting = quarantined(runnable, rows, read_as_of(plan), late=True, delivered_again=delivered_again)
        before = Counter(counting.left)
        every = rows.at(read_as_of(plan), rows.used) if before else iter(())
        parts += [counting.split(file, part)[1].select(columns) for file, part in every]
        taken = before - counting.left
    empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
    found = axis.of(pa.concat_tables([empty, *parts]))
    # A row without an event time is in no window.
    found = found.filter(pc.is_null(found.column(REASON))).select([*pipeline.keys, TIME])
    return found.group_by(found.column_names, use_threads=False).aggregate([]), taken


def latest_inserted(pipeline: Pipeline, rows: TableRows, plan: RestatePlan, changed: tuple[int, int]) -> int | None:
    """The greatest event time that versions have brought; rows that they removed may be later, and none of the pipeline's."""
    axis = EventTimes(pipeline, pipeline.time.latest(plan.now_us))
    found = axis.of(_chosen_by_filter(pipeline, rows, plan, changed, list(axis.axis), only="after"))
    latest: int | None = pc.max(found.filter(pc.is_null(found.column(REASON))).column(TIME)).as_py()
    return latest


def _chosen_by_filter(
    pipeline: Pipeline, rows: TableRows, plan: RestatePlan, changed: tuple[int, int], columns: list[str], *, only: Side | None = None
) -> pa.Table:
    """The ``columns`` of the rows that versions changed, without those that the filter leaves out; all where only Spark evaluates it.

    ``only`` is as of :func:`.changed_rows`.
    Rows that unread versions among these have appended were deleted before, and are delivered again; so they are among the rows.
    """
    plain = _filtering(pipeline, rows.source)
    needed = columns if plain is None else plain.needed(columns)
    appended = [each for each in rows.source.versions(plan.from_version, changed[1]) if each.added and not each.changes]
    found = pa.concat_tables(
        [changed_rows(rows, *changed, needed, only=only), *(appended_rows(rows, version, needed) for version in appended)]
    )
    found = found.append_column(ROW, pa.array(np.arange(len(found))))
    return found.select(columns) if plain is None else plain.evaluated(found, columns, [], None).select(columns)


def _filtering(pipeline: Pipeline, source: SourceTable) -> PlainRows | None:
    """Evaluates the filter in this process; null if there is no filter, or only Spark can evaluate it."""
    columns = Columns.of(source.schema_json)
    if pipeline.source is None or pipeline.source.filter is None:
        return None
    try:
        conditions = local_conditions(pipeline, columns)
    except NotPlainError:
        return None
    return PlainRows(pipeline, (), (), Form(columns.arrow, columns.fixed_lengths), conditions)


def only_of_filter(pipeline: Pipeline, source: SourceTable) -> bool:
    """Whether :func:`touched_rows` leaves out rows that the filter excludes."""
    return pipeline.source is None or pipeline.source.filter is None or _filtering(pipeline, source) is not None


def write_rows(
    runnable: Runnable, rows: TableRows, plan: RestatePlan, scope: Scope, delivered_again: Collection[str]
) -> tuple[DeltaSource, Reading]:
    """Write the rows that ``plan`` computes to files of their own; returns a source of these files, and a reading of all of them.

    ``delivered_again`` is as of :func:`quarantined`.
    """
    pipeline, place, source = runnable.pipeline, runnable.places.restated, rows.source
    staying, _ = quarantined(runnable, rows, read_as_of(plan), late=plan.late, delivered_again=delivered_again)
    unread = {UNREAD: pa.string()} if source.has_unread else {}
    with FileWriter(place, pa.schema([*rows.types.items(), *unread.items()]), batch=plan.batch, attempt=plan.attempt, task=0) as writer:
        if scope.touched is None or scope.touched.num_rows:
            for file, part in rows.at(read_as_of(plan), rows.used, rows.others, chosen=scope.files(source, pipeline.time)):
                own = scope.of_keys(scope.within(part, pipeline.time), pipeline.keys)
                left = staying.split(file, own)[0]
                writer.write(_with_unread(left).select([*rows.types, *unread]))
    files = tuple(AddedFile(file.path, plan.to_version, file.size, file.rows, stats=file.stats) for file in writer.close())
    # Texts of fixed length have been padded.
    kind = WrittenRows if unread else DeltaSource
    written = kind(place, source.table_id, source.version, without_mapping(source.schema_json))
    # Rows of keys that are not touched may have numbers of the same commit, by an earlier restatement or a changed spec.
    first_row = 0 if scope.touched is None else rows_numbered(runnable.places.state, plan.to_version)
    return written, Reading(files, len(files), first_row=first_row)


def _with_unread(rows: pa.Table) -> pa.Table:
    """``rows`` of a folder with the column ``UNREAD``, which rows that Spark reads lack."""
    return rows if UNREAD in rows.column_names else rows.append_column(UNREAD, pa.nulls(len(rows), pa.string()))


def read_as_of(plan: RestatePlan) -> int:
    """The version of the source that ``plan`` reads: its last version, or another one with the same rows."""
    return plan.to_version if plan.snapshot is None else plan.snapshot


def remove_rows(runnable: Runnable, plan: RestatePlan) -> None:
    """Remove the files of :func:`write_rows`, and those of attempts that have died; in object storage another attempt may still run."""
    files, root = filesystem_of(runnable.places.restated)
    alone, since = is_local(runnable.places.restated), datetime.now(UTC) - _LONGEST
    for info in files.get_file_info(pa_fs.FileSelector(root, allow_not_found=True)):
        if info.type == pa_fs.FileType.File and (alone or f"-{plan.attempt}-" in info.base_name or (info.mtime and info.mtime < since)):
            files.delete_file(info.path)


def remaining_quarantine(place: str, rows: TableRows, version: int, taken: Counter[Known]) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows of the quarantine table at ``place`` without those ``taken``, each so many times, and the paths of its files.

    ``version`` is that of the source in which they were found.
    """
    table, files = table_at(place), {file.path for file in rows.source.snapshot(version)}
    schema = pa.schema(table.schema().to_arrow())
    every = _read_quarantine(place, {field.name: field.type for field in schema})
    if {"source_file", "source_row"} - set(every.column_names):
        known = _known(_read_quarantine(place, _QUARANTINED), rows.used, files)
    else:
        instants = every.set_column(every.schema.get_field_index("event_time"), "event_time", every.column("event_time").cast(pa.int64()))
        known = _known(instants, rows.used, files)
    stays = np.ones(len(every), np.bool_)
    for at, (reason, key) in enumerate(zip(every.column("reason").to_pylist(), known, strict=True)):
        if reason == TOO_LATE and taken[key] > 0:
            taken[key] -= 1
            stays[at] = False
    return every.filter(pa.array(stays)), tuple(str(file["path"]) for file in files_of(table))
