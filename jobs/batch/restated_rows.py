"""Selects the source rows that a restatement computes: of which keys and times, as the source has them now, without those in quarantine.

They are written to plain files of their own, which the batch reads as those of any source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.data_files import FileWriter
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import RestatePlan
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.state.base import files_of
from windowmill.checkpoints.state.replacement import rows_numbered
from windowmill.checkpoints.stores import is_table, remove_folder, table_at
from windowmill.jobs.json_lines import spark_form
from windowmill.jobs.sources.base import AddedFile, Reading
from windowmill.jobs.sources.changed_rows import changed_rows, queried, rows_at
from windowmill.jobs.sources.columns import REASON, Columns
from windowmill.jobs.sources.delta_log import DeltaSource, without_mapping
from windowmill.jobs.sources.event_times import EventTimes
from windowmill.jobs.ways.lateness import TOO_LATE
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import TIME
from windowmill.windowing.columnar.rows import are_among
from windowmill.windowing.errors import UnsupportedError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.ways import divide

_QUARANTINED = {"row": pa.string(), "reason": pa.string(), "event_time": pa.int64()}


@dataclass(frozen=True)
class Scope:
    """What a restatement computes anew.

    Attributes
    ----------
    touched
        Keys and event times of the rows whose windows are computed anew; null for all keys and windows.
    begin, end
        Event times [begin, end) that are read; null for no bound.
    rebuilds
        Whether the state of these keys is built anew; else the windows of which it holds parts are not touched.
    """

    touched: pa.Table | None
    begin: int | None = None
    end: int | None = None
    rebuilds: bool = True

    @classmethod
    def of(cls, pipeline: Pipeline, plan: RestatePlan, types: Mapping[str, pa.DataType], touched: pa.Table | None) -> Scope:
        """The scope of ``plan``: of windows on grids alone only times near those ``touched``, or in the range of the plan, are read."""
        if touched is not None and not touched.num_rows:
            return cls(touched, rebuilds=False)
        slices = divide(pipeline, types).slices
        if slices is None or len(slices.pipeline.windows) < len(pipeline.windows) or slices.grids.known or slices.grids.lasting:
            return cls(touched)
        longest = max(grid.longest for grid in slices.grids.grids)
        begin, end = (None if plan.range_from is None else plan.range_from - longest), plan.range_to
        if touched is not None:
            times = pc.min_max(touched.column(TIME)).as_py()
            begin, end = times["min"] - longest, times["max"] + longest + 1
        kept = None if plan.emitted is None else slices.grids.first_slice_after(plan.emitted)
        last = end if touched is None or end is None else end - longest
        if kept is not None and last is not None and last <= kept:
            return cls(touched, begin, end, rebuilds=False)
        return cls(touched, begin if begin is None or kept is None else min(begin, kept))

    def condition(self, pipeline: Pipeline, types: Mapping[str, pa.DataType]) -> str:
        """The SQL condition for rows in its range of times; other conditions are left to the batch."""
        name = pipeline.time.column
        kind = types[name]
        instants = pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None
        if not instants and not pa.types.is_integer(kind):
            return "true"
        # Of whole numbers, those at or after a bound are those at or after the next multiple of what they count.
        form, tick_us = "arrow_cast({}, 'Timestamp(Microsecond, Some(\"UTC\"))')" if instants else "{}", pipeline.time.tick_us
        bounds = [(">=", self.begin), ("<", self.end)]
        return " AND ".join(f"{quoted(name)} {sign} {form.format(-(-at // tick_us))}" for sign, at in bounds if at is not None) or "true"

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
    """Rows of the quarantine table, to be found among those of the source by all their values."""

    def __init__(self, pipeline: Pipeline, rows: pa.Table) -> None:
        self._pipeline = pipeline
        self.left = Counter(map(_canonical, rows.column("row").to_pylist()))
        self._times = rows.column("event_time").combine_chunks()

    def split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """``rows`` that are not in quarantine, and those that are; each row in quarantine is found once."""
        if not self.left:
            return rows, rows.slice(0, 0)
        time = EventTimes(self._pipeline, None).of(rows).column(TIME)
        odd = pc.or_(pc.less(time, PRINTABLE[0]), pc.greater(time, PRINTABLE[1])).fill_null(False)
        places = np.flatnonzero(pc.or_(pc.is_in(time, self._times), odd).to_numpy())
        if not len(places):
            return rows, rows.slice(0, 0)
        if not spark_form.takes(rows.schema.types):
            raise UnsupportedError(
                f"pipeline {self._pipeline.pipeline}: rows in quarantine cannot be told among those of the source, because it has columns "
                "of nested types; select the other columns in a table or view of the source's owner, or backfill in a new sink"
            )
        found = np.zeros(len(rows), np.bool_)
        for place, text in zip(places, spark_form.to_json(rows.take(pa.array(places))), strict=True):
            known = _canonical(text)
            if self.left[known] > 0:
                self.left[known] -= 1
                found[place] = True
        return rows.filter(pa.array(~found)), rows.filter(pa.array(found))


def _canonical(row: str) -> str:
    """A row as JSON, whoever wrote it and whichever columns without values it had."""
    return json.dumps({name: value for name, value in json.loads(row).items() if value is not None}, sort_keys=True)


def quarantined(runnable: Runnable, *, late: bool) -> tuple[QuarantinedRows, QuarantinedRows]:
    """The rows in quarantine that stay there, and those that count from now on: with ``late`` those that came too late."""
    place = runnable.places.quarantine
    parts = [pa.table({name: pa.array([], kind) for name, kind in _QUARANTINED.items()})]
    if is_table(place):
        table = table_at(place)
        parts += queried(table, _QUARANTINED, "true", {name: name for name in _QUARANTINED})
    every = pa.concat_tables(parts)
    counts = pc.and_(pc.equal(every.column("reason"), TOO_LATE), late)
    return QuarantinedRows(runnable.pipeline, every.filter(pc.invert(counts))), QuarantinedRows(runnable.pipeline, every.filter(counts))


def touched_rows(runnable: Runnable, source: DeltaSource, plan: RestatePlan) -> tuple[pa.Table | None, Mapping[str, int]]:
    """Keys and event times of the rows that ``plan`` is about, null for all; and the rows that it takes out of quarantine."""
    pipeline = runnable.pipeline
    if plan.changed is None and not plan.late:
        return None, {}
    axis = EventTimes(pipeline, None)
    columns = list(dict.fromkeys([*pipeline.keys, *axis.axis]))
    parts = [] if plan.changed is None else [changed_rows(source, *plan.changed, columns)]
    taken: Mapping[str, int] = {}
    if plan.late:
        _, counting = quarantined(runnable, late=True)
        before = Counter(counting.left)
        parts += [counting.split(rows)[1].select(columns) for rows in rows_at(source, plan.to_version)]
        taken = before - counting.left
    empty = pa.schema([(name, Columns.of(source.schema_json).arrow[name]) for name in columns]).empty_table()
    rows = axis.of(pa.concat_tables([empty, *parts]))
    # A row without an event time is in no window.
    rows = rows.filter(pc.is_null(rows.column(REASON))).select([*pipeline.keys, TIME])
    return rows.group_by(rows.column_names, use_threads=False).aggregate([]), taken


def write_rows(runnable: Runnable, source: DeltaSource, plan: RestatePlan, scope: Scope) -> tuple[DeltaSource, Reading]:
    """Write the rows that ``plan`` computes to files of their own; returns the source that they make, and the reading of it."""
    pipeline, place = runnable.pipeline, runnable.places.restated
    types = Columns.of(source.schema_json).arrow
    staying, _ = quarantined(runnable, late=plan.late)
    remove_folder(place)
    with FileWriter(place, pa.schema(list(types.items())), batch=plan.batch, attempt=plan.attempt, task=0) as writer:
        if scope.touched is None or scope.touched.num_rows:
            for rows in rows_at(source, plan.to_version, scope.condition(pipeline, types)):
                writer.write(staying.split(scope.of_keys(rows, pipeline.keys))[0])
    files = tuple(AddedFile(file.path, plan.to_version, file.size, file.rows, stats=file.stats) for file in writer.close())
    written = replace(source, path=place, schema_json=without_mapping(source.schema_json), deletion_vectors=False)
    # Rows of keys that are not touched may have numbers of the same commit, by an earlier restatement or a changed spec.
    first_row = 0 if scope.touched is None else rows_numbered(runnable.places.state, plan.to_version)
    return written, Reading(files, len(files), first_row=first_row)


def untaken(place: str, taken: Counter[str]) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows of the quarantine table at ``place`` without those ``taken``, each so many times, and the paths of its files."""
    table = table_at(place)
    schema = pa.schema(table.schema().to_arrow())
    types = {field.name: field.type for field in schema}
    rows = pa.concat_tables([schema.empty_table(), *queried(table, types, "true", {name: name for name in types})])
    stays = np.ones(len(rows), np.bool_)
    for place_of, (reason, row) in enumerate(zip(rows.column("reason").to_pylist(), rows.column("row").to_pylist(), strict=True)):
        if reason == TOO_LATE and taken[known := _canonical(row)] > 0:
            taken[known] -= 1
            stays[place_of] = False
    return rows.filter(pa.array(stays)), tuple(str(file["path"]) for file in files_of(table))
