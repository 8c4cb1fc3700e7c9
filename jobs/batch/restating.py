"""A restatement: selects the source rows to recompute, keeps the state of other keys, and publishes the windows that changed.

The selected rows, including rows that the source deleted and appended again, are written to plain files, which the batch reads like those
of any source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs

from windowmill.checkpoints.batches import Changes, Outcome, RestatePlan, effective_batches, state_plans
from windowmill.checkpoints.data_files import DataFile, FileWriter, read_files, remove, write_files
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.quoting import sql_text
from windowmill.checkpoints.seen import SeenTable
from windowmill.checkpoints.state.tables import replacing, rows_numbered, taken_out
from windowmill.checkpoints.stores import filesystem_of, is_local, is_table
from windowmill.jobs.batch.corrections import Corrections, corrections
from windowmill.jobs.batch.counted_rows import (
    Copies,
    Known,
    QuarantinedRows,
    remaining_quarantine,
    staying_and_counting,
    table_rows,
    uncounted_changes,
    were_missed,
    with_ids,
)
from windowmill.jobs.batch.job import ComputedBatch
from windowmill.jobs.batch.progress import Progress, Restated
from windowmill.jobs.batch.window_history import Stretch, left_out
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.layouts.unique import refuse_divided
from windowmill.jobs.sources.base import AddedFile, Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource, first_time, spans, stored_as
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.plain_files import Form, NotPlainError
from windowmill.jobs.sources.plain_rows import PlainRows, local_conditions
from windowmill.jobs.sources.table_rows import Side, TableRows, WrittenRows, appended_rows, changed_rows, ends_in_sql, queried
from windowmill.jobs.sources.unusable_rows import NO_MATCH, TOO_LATE, EventTimes
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import ID_HIGH, REASON, RETRACTED, ROW, SLICE, TIME, UNREAD
from windowmill.windowing.columnar.rows import are_among, codes_of, distinct_values
from windowmill.windowing.counts import WindowRows
from windowmill.windowing.errors import OutOfTurnError, SourceRangeGoneError, UnsupportedError
from windowmill.windowing.fields import Time
from windowmill.windowing.grids import Nodes, greatest_reach
from windowmill.windowing.kernels.combine import Bools, Ints
from windowmill.windowing.kernels.lift import int64_of
from windowmill.windowing.layouts import divide
from windowmill.windowing.registry import imported
from windowmill.windowing.slicing.edges import Edges
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule

#: Longer than any restatement takes.
_LONGEST = timedelta(days=7)
#: Its module loads what a spec without lookups does without.
_EACH_VALUE = "windowmill.jobs.sources.lookups:with_each_value"


def last_redelivery(pipeline: Pipeline, source: DeltaSource, change: tuple[int, int], progress: Outcome) -> int:
    """The last version of the correction that begins with the versions ``change``.

    A version before the next change belongs to the correction, with the versions in between, if it appends a row that takes the place of a
    deleted one. Such a row is behind the watermark, as of ``progress``, and between the first and the last event time of its key's deleted
    rows.
    """
    last, rows = change[1], TableRows.of(pipeline, source, _refuse)
    if progress.seen is None:
        return last
    watermark = LatenessRule.of(pipeline).watermark(progress.seen)
    watermark = watermark if progress.watermark is None else max(watermark, progress.watermark)
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
    except NotPlainError:  # only Spark can read these files: their rows are judged like any others
        return change[1]
    return last


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
    """Whether a ``new`` row behind the ``watermark`` lies between the first and last ``gone`` row of its key; O(n log n)."""
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
    """What a restatement recomputes from the source: everything, all rows of some keys, or only those near touched rows of these keys.

    A touched row changes only windows that hold it. On grids all slices of these windows begin less than the length of the longest window
    before or after the slice of the row. They are recomputed, and others stay in the state as they are.
    """

    touched: pa.Table | None  #: Keys and event times of the rows whose windows are recomputed; null for all keys and windows.
    #: ``begin``, ``end``: event times [begin, end) that are read; null for no bound.
    begin: int | None = None
    end: int | None = None
    rebuilds: bool = True  #: Whether the state in the scope is rebuilt; else it holds no parts of touched windows.
    edges: Edges | None = None  #: Where slices begin, if only slices near touched rows are recomputed; else null.
    longest: int = 0  #: With ``edges``, the length of the longest window.

    @classmethod
    def of(
        cls, pipeline: Pipeline, plan: RestatePlan, types: Mapping[str, pa.DataType], touched: pa.Table | None, *, ignored: bool
    ) -> Scope:
        """The scope of ``plan``.

        ``ignored`` says whether batches have ignored changes that the plan does not name: then the state of whole keys is rebuilt to
        include these.
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
        grids, edges = slices.grids.grids, slices.grids.edges
        longest = max(grid.longest for grid in grids)
        kept = None if plan.emitted is None else slices.grids.first_slice_after(plan.emitted)
        if touched is None:
            begin, end = (None if plan.range_from is None else plan.range_from - longest), plan.range_to
            if kept is not None and end is not None and end <= kept and not ignored:
                return cls(None, begin, end, rebuilds=False)
            return cls(None, begin if begin is None or kept is None else min(begin, kept))
        times = pc.min_max(touched.column(TIME)).as_py()
        begin = int(edges.slice_starts(np.array([times["min"]], np.int64))[0]) - longest
        rebuilds = kept is None or times["max"] >= kept or ignored
        # Nodes over slices are of whole keys.
        if rebuilds and (ignored or Nodes.of(grids) is not None):
            return cls(touched, begin if kept is None else min(begin, kept))
        # An end of windows, so that each slice is read as a whole.
        end = min(int(grid.first_end_after(times["max"] + longest)) for grid in grids)
        return cls(touched, begin, end, rebuilds, edges, longest)

    def files(self, source: SourceTable, time: Time, changed: Collection[str]) -> Callable[[AddedFile], bool]:
        """A predicate: whether a file of ``source`` is among those ``changed``, or may hold rows in the scope by statistics of times."""
        none = self.touched is not None and not self.touched.num_rows

        def may_hold(file: AddedFile) -> bool:
            if none or file.path in changed:
                return file.path in changed
            [found] = spans(source, [file], time.column, time.tick_us)
            return found is None or self._may_hold(found[0], found[2])

        return may_hold

    def _may_hold(self, first: int, last: int) -> bool:
        """Whether rows or slices with times from ``first`` through ``last`` may be in the scope."""
        if (self.end is not None and first >= self.end) or (self.begin is not None and last < self.begin):
            return False
        if self.edges is None or self.begin is None or self.end is None:
            return True
        # Statistics of a source may have any value, beyond 64 bits too, once units are microseconds.
        low = int(self.edges.slice_starts(np.array([max(first, self.begin)], np.int64))[0]) - self.longest
        return bool(np.searchsorted(self._starts, low, "right") < np.searchsorted(self._starts, min(last, self.end) + self.longest))

    @cached_property
    def _slices(self) -> pa.Table:
        """Keys and starts of the slices that hold touched rows, each once."""
        assert self.edges is not None
        assert self.touched is not None
        starts = self.edges.slice_starts(self.touched.column(TIME).to_numpy())
        own = self.touched.drop_columns([TIME]).append_column(SLICE, pa.array(starts))
        return own.group_by(own.column_names, use_threads=False).aggregate([])

    @cached_property
    def _starts(self) -> Ints:
        return distinct_values(self._slices.column(SLICE).to_numpy())

    def of_source(self, rows: pa.Table, pipeline: Pipeline, *, is_changed: bool) -> pa.Table:
        """Those of the source's ``rows`` that are in the scope, and if a change has written them (``is_changed``) all unusable ones.

        Other unusable rows out of the scope are in quarantine already.
        """
        judged = EventTimes(pipeline, None, UNREAD in rows.column_names).of(rows)
        time, chosen = judged.column(TIME), np.ones(len(rows), np.bool_)
        for holds, at in ((pc.greater_equal, self.begin), (pc.less, self.end)):
            chosen &= True if at is None else pc.fill_null(holds(time, at), False).to_numpy()
        within = pa.array(chosen)
        if self.edges is not None:
            starts = self.edges.slice_starts(int64_of(time.filter(within).combine_chunks()))
            chosen[chosen] = self._near(rows.filter(within), starts, self._slices, pipeline.keys)
        else:
            chosen[chosen] = self._has_touched_key(rows.filter(within), pipeline.keys)
        return rows.filter(pc.or_(pa.array(chosen), pc.and_(is_changed, pc.is_valid(judged.column(REASON)))))

    def _near(self, rows: pa.Table, starts: Ints, slices: pa.Table, keys: tuple[str, ...]) -> Bools:
        """Mask of the ``rows``, of slices with these ``starts``, that are near one of ``slices`` of their key."""
        return _with_one_within(rows, starts - self.longest + 1, starts + self.longest, slices, slices.column(SLICE).to_numpy(), keys)

    def of_state(self, rows: pa.Table, keys: tuple[str, ...]) -> Bools:
        """Mask of the ``rows`` of the state that are in the scope; their first columns are the ``keys``, under any names."""
        if self.touched is None or not (keys or self.edges):
            return np.ones(len(rows), np.bool_)
        own = rows.select(range(len(keys))).rename_columns(list(keys))
        if self.edges is None:
            return are_among(own, self.keys(keys).cast(own.schema), keys)
        starts = self.edges.slice_starts(int64_of(rows.column(SLICE).combine_chunks()))
        return self._near(own, starts, self._slices.cast(own.schema.append(pa.field(SLICE, pa.int64()))), keys)

    def of_state_file(self, file: Mapping[str, Any]) -> bool:
        """Whether a ``file`` of the state may hold rows in the scope, according to statistics of its slices."""
        first, last = file.get(f"min.{SLICE}"), file.get(f"max.{SLICE}")
        return self.edges is None or first is None or last is None or self._may_hold(first, last)

    def of_keys(self, rows: pa.Table, keys: tuple[str, ...]) -> pa.Table:
        """Those of ``rows`` whose keys are touched."""
        return rows.filter(pa.array(self._has_touched_key(rows, keys)))

    def _has_touched_key(self, rows: pa.Table, keys: tuple[str, ...]) -> Bools:
        if self.touched is None or not keys:
            return np.full(len(rows), self.touched is None or bool(self.touched.num_rows))
        return are_among(rows, self.keys(keys), keys)

    def keys(self, keys: tuple[str, ...]) -> pa.Table:
        """The keys that are touched, each once."""
        assert self.touched is not None
        return self.touched.select(list(keys)).group_by(list(keys), use_threads=False).aggregate([])


def _staying(
    runnable: Runnable, rows: TableRows, plan: RestatePlan, delivered_again: Collection[str], taken: Set[Known]
) -> QuarantinedRows:
    """The quarantined rows that stay so by ``plan``, which takes out those ``taken``."""
    # Without bounds all late rows count, also those of a file that has been rewritten since.
    among = None if plan.lookup is None and plan.range_from is None and plan.range_to is None else taken
    reasons = counting_reasons(plan)
    return staying_and_counting(runnable, rows, read_as_of(plan), reasons=reasons, delivered_again=delivered_again, among=among)[0]


def touched_rows(
    runnable: Runnable, rows: TableRows, plan: RestatePlan, delivered_again: Collection[str]
) -> tuple[pa.Table | None, Set[Known]]:
    """Keys and event times of the rows that ``plan`` restates, null for all; and which rows it takes out of quarantine.

    With ``dedup`` also the values that make a row a duplicate, and of these the columns ``ID_HIGH``, null where one is null.
    """
    pipeline = runnable.pipeline
    if plan.changed is None and not plan.late and plan.lookup is None:
        return None, set()
    axis, by = EventTimes(pipeline, None), () if pipeline.dedup is None else pipeline.dedup.by
    columns = list(dict.fromkeys([*pipeline.keys, *axis.axis, *by]))
    parts = [] if plan.changed is None else [_chosen_by_filter(pipeline, rows, plan, plan.changed, columns)]
    taken: Set[Known] = set()
    if counting_reasons(plan):
        _, counting = staying_and_counting(
            runnable, rows, read_as_of(plan), reasons=counting_reasons(plan), delivered_again=delivered_again
        )
        before = Counter(counting.left)
        others = tuple(name for name in rows.known_by if name not in rows.used)
        every = rows.at(read_as_of(plan), rows.used, others) if before else iter(())
        parts += [counting.split(file, _in_reach(pipeline, plan, _usable(part)))[1].select(columns) for file, part in every]
        taken = (before - counting.left).keys()
    empty = pa.schema([(name, rows.types[name]) for name in columns]).empty_table()
    if len(plan.lookups_changed) > 1:  # rows have had values of each together with those of the others
        return None, taken
    try:
        parts += _looking_up_changes(pipeline, rows, plan, columns)
    except SourceRangeGoneError:  # what has changed in the table is no longer known
        return None, taken
    found = axis.of(pa.concat_tables([empty, *parts]))
    # A row without an event time is in no window.
    found = found.filter(pc.is_null(found.column(REASON)))
    found = found.select([*pipeline.keys, TIME]) if not by else with_ids(found, by).select([*pipeline.keys, TIME, ID_HIGH])
    return found.group_by(found.column_names, use_threads=False).aggregate([]), taken


def counting_reasons(plan: RestatePlan) -> tuple[str, ...]:
    """Reasons for which rows are in quarantine that may count by ``plan``."""
    return (*([TOO_LATE] if plan.late else []), *([NO_MATCH] if plan.lookup is not None else []))


def _usable(rows: pa.Table) -> pa.Table:
    """Those of ``rows`` that could be read, and that no step refuses."""
    return rows.filter(pc.is_null(rows.column(UNREAD))) if UNREAD in rows.column_names else rows


def _in_reach(pipeline: Pipeline, plan: RestatePlan, rows: pa.Table) -> pa.Table:
    """Those of ``rows`` of which a window may end in the range of ``plan``: others stay in quarantine, as no window would show them."""
    begin, end = plan.range_from, plan.range_to
    if not len(rows) or (begin is None and end is None):
        return rows
    time, reach = EventTimes(pipeline, None).of(rows).column(TIME), greatest_reach(pipeline)
    reaches = pc.less(time, AXIS_END if end is None else end)
    if begin is not None and reach is not None:
        reaches = pc.and_(reaches, pc.greater(time, begin - reach))
    return rows.filter(pc.fill_null(reaches, False))


def _looking_up_changes(pipeline: Pipeline, rows: TableRows, plan: RestatePlan, columns: list[str]) -> Iterator[pa.Table]:
    """The ``columns`` of rows that look up what has changed in other tables, with each of the values that it has had.

    By a restatement for a lookup these are all such rows; by one for changed versions of the source, the changed ones.
    """
    for name, versions in plan.lookups_changed.items():
        if plan.changed is None:
            yield from looking_up_changes(pipeline, rows, read_as_of(plan), name, versions, columns)
            continue
        for other in imported(_EACH_VALUE)(pipeline, name, versions)[0]:
            of_other = replace(rows, source=replace(rows.source, reader=other))
            yield _chosen_by_filter(other, of_other, plan, plan.changed, columns)


def looking_up_changes(
    pipeline: Pipeline, rows: TableRows, version: int, lookup: str, changed: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """The ``columns`` of rows of the source at ``version`` that look up what has changed, with each of the values that it has had.

    ``changed``: the first and the last of the looked-up table's versions. Raises ``SourceRangeGoneError`` if it is no longer known what
    they changed.
    """
    each, since = imported(_EACH_VALUE)(pipeline, lookup, changed)
    for other in each:
        of_other = replace(rows, source=replace(rows.source, reader=other))
        for _, part in of_other.at(version, rows.used):
            found = EventTimes(pipeline, None).of(_usable(part).select(list(columns)))
            late_enough = pc.greater_equal(found.column(TIME), AXIS_BEGIN if since is None else since)
            yield found.filter(pc.fill_null(late_enough, False)).select(list(columns))


def latest_inserted(pipeline: Pipeline, rows: TableRows, plan: RestatePlan, changed: tuple[int, int]) -> int | None:
    """The greatest event time of rows that the ``changed`` versions inserted; rows that they removed may be later."""
    axis = EventTimes(pipeline, pipeline.time.latest(plan.now_us))
    found = axis.of(_chosen_by_filter(pipeline, rows, plan, changed, list(axis.axis), only="after"))
    latest: int | None = pc.max(found.filter(pc.is_null(found.column(REASON))).column(TIME)).as_py()
    return latest


def _chosen_by_filter(
    pipeline: Pipeline, rows: TableRows, plan: RestatePlan, changed: tuple[int, int], columns: list[str], *, only: Side | None = None
) -> pa.Table:
    """The ``columns`` of the rows that versions changed and the filter keeps; of all changed rows if only Spark can evaluate the filter.

    ``only`` is as for :func:`.changed_rows`. Rows that unread versions in this range append had been deleted before; they are delivered
    again, and so are included.
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
    if pipeline.own_filter is None:
        return None
    try:
        conditions = local_conditions(pipeline, columns)
    except NotPlainError:
        return None
    if pipeline.own_filter in conditions.outside:
        return None
    return PlainRows(pipeline, (), (), Form(columns.arrow, columns.fixed_lengths), conditions)


def read_as_of(plan: RestatePlan) -> int:
    """The version of the source that ``plan`` reads: its last version, or another one with the same rows."""
    return plan.to_version if plan.snapshot is None else plan.snapshot


@dataclass(frozen=True)
class Restatement:
    """A restatement by ``plan``."""

    runnable: Runnable
    plan: RestatePlan
    source: SourceTable
    scope: Scope  #: The keys and times that it recomputes.
    taken: Set[Known]  #: The rows that it takes out of quarantine.
    state_is_current: bool  #: Whether the state already reflects the source's rows.
    rows: TableRows  #: Reads the source.
    left_out: Mapping[str, Sequence[Stretch]]  #: As of :func:`.left_out`.
    delivered_again: frozenset[str]  #: Files of a folder whose quarantined rows are of an earlier delivery.
    copies: Copies | None = None  #: Duplicates among the rows of the source; null without ``dedup``.

    @classmethod
    def of(cls, runnable: Runnable, plan: RestatePlan, source: SourceTable, ledger: Ledger, progress: Progress) -> Restatement:
        """The restatement of ``plan``; finds the rows that the plan restates, if they can still be read."""
        if not isinstance(source, DeltaSource | FolderSource) or (plan.changed is not None and not isinstance(source, DeltaSource)):
            raise UnsupportedError(
                f"source {source.path}: `windowmill restate` takes up changed versions of a Delta table only, and of a folder of files "
                "--file, --late, --from and --to; compute it in a new sink instead, with a longer lateness if rows came too late"
            )
        if plan.lookups:
            runnable = replace(runnable, pipeline=imported("windowmill.jobs.sources.lookups:pinned")(runnable.pipeline, plan.lookups))
            source = replace(source, reader=runnable.pipeline)
        rows = table_rows(runnable.pipeline, replace(source, schema_json=plan.source_schema), progress)
        again = frozenset({*plan.files, *restated_files(ledger)})
        touched, taken = touched_rows(runnable, rows, plan, again)
        if plan.late and were_missed(ledger):
            touched = None  # the keys of rows that missed windows are not stored
        copies = None
        if runnable.pipeline.dedup is not None and (touched is None or len(touched)):
            others = tuple(name for name in rows.known_by if name not in rows.used)
            staying = _staying(runnable, rows, plan, again, taken)
            parts = ((file.path, *staying.split(file, part)) for file, part in rows.at(read_as_of(plan), rows.used, others))
            copies = Copies.of(runnable.pipeline, plan, Columns.of_source(rows.source), parts, touched)
            if plan.leaves_through is None and len(copies.related):
                refuse_divided(runnable.pipeline, copies.related, [at for at in (plan.range_from, plan.range_to) if at is not None])
            touched = None if touched is None else copies.touched_with(touched, runnable.pipeline.keys)
        types = Columns.of(plan.source_schema).seen_by(runnable.pipeline).arrow
        uncounted = _uncounted(source, ledger, plan.to_version)
        current, (first, last) = not taken and uncounted == [] and plan.lookup is None, plan.changed or (0, -1)
        # Whether earlier batches have ignored changes that the plan does not name.
        ignored = uncounted is None or any(each <= plan.from_version and not first <= each <= last for each in uncounted)
        scope = Scope.of(runnable.pipeline, plan, types, touched, ignored=ignored)
        return cls(runnable, plan, rows.source, scope, taken, current, rows, left_out(runnable.pipeline, ledger), again, copies)

    @property
    def touches_nothing(self) -> bool:
        """Whether it has no rows to restate, and no version to read."""
        unread = self.plan.to_version > self.plan.from_version and not self.plan.late
        return self.scope.touched is not None and not self.scope.touched.num_rows and not unread

    def changes_nothing(self, finished: ComputedBatch) -> bool:
        """Whether the ``finished`` batch leaves the pipeline's tables, and its progress, as they are."""
        plan = self.plan
        return not finished.changes and plan.to_version == plan.from_version and finished.emission.seen == plan.seen

    def write_rows(self) -> tuple[DeltaSource, Reading]:
        """Write the rows that the batch reads to files of their own; returns a source of these files, and a reading of all of them."""
        plan, rows, scope = self.plan, self.rows, self.scope
        place, source = self.runnable.places.restated, rows.source
        if self.copies is None:
            staying = _staying(self.runnable, rows, plan, self.delivered_again, self.taken)
        unread = {UNREAD: pa.string()} if source.has_unread or source.reader is not None else {}
        names = [*rows.types, *unread]
        # A name with a dot would be a step into a struct.
        stored = {name: f"_field_{number}" if "." in name else name for number, name in enumerate(names)}
        schema = pa.schema([(stored[name], kind) for name, kind in [*rows.types.items(), *unread.items()]])
        with FileWriter(place, schema, batch=plan.batch, attempt=plan.attempt, task=0) as writer:
            changed = self._changed_files()
            chosen = scope.files(source, self._pipeline.time, changed)
            for file, part in rows.at(read_as_of(plan), rows.used, rows.others, chosen=chosen):
                left = scope.of_source(part, self._pipeline, is_changed=file.path in changed)
                left = staying.split(file, left)[0] if self.copies is None else self.copies.left(file.path, left)
                if unread and UNREAD not in left.column_names:  # of a folder, read by Spark
                    left = left.append_column(UNREAD, pa.nulls(len(left), pa.string()))
                writer.write(left.select(names).rename_columns(schema.names))
        files = tuple(AddedFile(file.path, plan.to_version, file.size, file.rows, stats=file.stats) for file in writer.close())
        # Texts of fixed length have been padded.
        kind = WrittenRows if unread else DeltaSource
        written = kind(place, source.table_id, source.version, stored_as(Columns.of_source(source).json, stored))
        # Rows of other keys may have numbers in the same commit, from an earlier restatement or a changed spec.
        first_row = 0 if scope.touched is None else rows_numbered(self.runnable.places.state, plan.to_version)
        return written, Reading(files, len(files), first_row=first_row)

    def _changed_files(self) -> Collection[str]:
        """Paths of the files that the restated versions have written."""
        if self.plan.changed is None:
            return ()
        first, last = self.plan.changed
        return {file.path for each in self.source.versions(min(first - 1, self.plan.from_version), last) for file in each.added}

    def remove_rows(self) -> None:
        """Remove the files of :meth:`write_rows`, and those of dead attempts; in object storage another attempt may still run."""
        place, attempt = self.runnable.places.restated, self.plan.attempt
        files, root = filesystem_of(place)
        alone, since = is_local(place), datetime.now(UTC) - _LONGEST
        for info in files.get_file_info(pa_fs.FileSelector(root, allow_not_found=True)):
            if info.type == pa_fs.FileType.File and (alone or f"-{attempt}-" in info.base_name or (info.mtime and info.mtime < since)):
                files.delete_file(info.path)

    def finished(self, computed: ComputedBatch) -> tuple[ComputedBatch, Restated]:
        """The ``computed`` batch with the changes to publish: without result rows of windows that have not changed."""
        changes, place = dict(computed.changes), self.runnable.places.state
        built = changes.pop("state", None)
        found = self._corrections(changes.get("sink", Changes()).adds)
        remove(self.runnable.sink_path, changes.pop("sink", Changes()).adds)
        differs = bool(len(found.changed) or len(found.retracted))
        if self.scope.rebuilds and (differs or not self.state_is_current):
            replaced = self._replacing_state(built)
            changes |= {} if replaced is None else {"state": replaced}
        elif built is not None:
            remove(place, built.files)
        if differs:
            retracted = self._written(found.retracted)
            changes["sink"] = Changes.of(found.retracted.schema, self._written(found.changed), kept=retracted, widens=True)
        if self.copies is not None and (changes or self.plan.to_version > self.plan.from_version):
            table, entries = SeenTable(self.runnable.places.seen), self.copies.entries
            # The row that runs have applied may be a later one than the one that counts by event time: it stays remembered, too.
            known = table.matching(distinct_values(entries.column(ID_HIGH).to_numpy()), self.copies.since)
            entries = pa.concat_tables([entries, known]).group_by(entries.column_names, use_threads=False).aggregate([])
            remembered = table.replaced_by(table.written(entries, batch=self.plan.batch, attempt=self.plan.attempt))
            changes |= {} if remembered is None else {"seen": remembered}
        if self.taken:
            changes["quarantine"] = self._quarantine(changes.get("quarantine", Changes()).adds)
        restated = Restated(self._n_keys, len(found.changed) + len(found.retracted), len(found.retracted))
        emission = replace(computed.emission, seen=self._seen(computed))
        return replace(computed, emission=emission, changes=changes, counts=replace(computed.counts, windows=_windows(found))), restated

    def _replacing_state(self, built: Changes | None) -> Changes | None:
        """Changes that replace the state in the scope by the one that the batch has ``built``; null for none."""
        place, scope, keys = self.runnable.places.state, self.scope, self._pipeline.keys
        if scope.touched is None:
            return replacing(place, built)
        of_state = partial(scope.of_state, keys=keys)
        return replacing(place, built, taken_out(place, scope.of_state_file, of_state, batch=self.plan.batch, attempt=self.plan.attempt))

    def _seen(self, computed: ComputedBatch) -> int | None:
        """The greatest event time of the batch and of the rows that the plan's versions inserted."""
        seen, touched, inserted = computed.emission.seen, self.scope.touched, computed.seen
        if touched is None or self.plan.changed is None:
            return seen
        is_filtered = self._pipeline.own_filter is not None
        if not is_filtered or _filtering(self._pipeline, self.source) is not None:  # so no touched row is one that the filter excludes
            greatest = pc.max(touched.column(TIME)).as_py()
            if greatest is None or (seen is not None and greatest <= seen):
                return seen
            inserted = latest_inserted(self._pipeline, self.rows, self.plan, self.plan.changed)
        return max((at for at in (seen, inserted) if at is not None), default=None)

    @property
    def _pipeline(self) -> Pipeline:
        return self.runnable.pipeline

    @property
    def _n_keys(self) -> int | None:
        touched = self.scope.touched
        if touched is None:
            return None
        return len(self.scope.keys(self._pipeline.keys)) if self._pipeline.keys else min(1, len(touched))

    @cached_property
    def _schema(self) -> pa.Schema:
        return Expressions.of(self._pipeline, Columns.of(self.plan.source_schema).seen_by(self._pipeline).arrow).schema

    def _corrections(self, files: tuple[DataFile, ...]) -> Corrections:
        schema = self._schema.insert(self._schema.get_field_index("revision") + 1, pa.field(RETRACTED, pa.bool_()))
        found = read_files(self.runnable.sink_path, files, self._schema.names)
        new = pa.Table.from_batches([rows.cast(self._schema) for rows in found], self._schema)
        types = {field.name: field.type for field in schema}
        parts = [schema.empty_table()]
        if is_table(self.runnable.sink_path):
            table = newest(self.runnable.sink_path)
            there = {name: name for name in pa.schema(table.schema().to_arrow()).names}
            parts += (self.scope.of_keys(rows, self._pipeline.keys) for rows in queried(table, types, self._shown_where(), there))
        shown = pa.concat_tables(parts)
        begin, end = self.plan.range_from, self.plan.range_to
        within = AXIS_BEGIN if begin is None else begin, AXIS_END if end is None else end
        return corrections(self._pipeline, self._restated(new), self._restated(shown), self.plan.batch, within)

    def _shown_where(self) -> str:
        """The SQL condition for rows of the sink that the restatement may change."""
        end = ends_in_sql(timed=not self._pipeline.time.integer_axis)
        # Rows of windows that the spec has dropped stay.
        named = f"window IN ({', '.join(sql_text(window.name) for window in self._pipeline.windows)})"
        scope = self.scope
        bounds: list[tuple[str, int | None]] = [(">", scope.begin)] if scope.edges is not None or not scope.rebuilds else []
        bounds += [("<=", scope.end)] if scope.edges is not None else []
        # Other windows are identified by trigger or start alone: their row in the sink may end outside the range.
        if all(window.on_grid for window in self._pipeline.windows):
            bounds += [("<=", self.plan.range_to), (">", self.plan.range_from)]
        return " AND ".join([named, *(f"{end} {sign} {at}" for sign, at in bounds if at is not None)])

    def _restated(self, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` whose windows have been shown; if they are on grids, only windows that hold a touched row."""
        ends, after = rows.column("window_end").cast(pa.int64()), self.plan.shown_after
        chosen = np.ones(len(rows), np.bool_) if after is None else pc.greater(ends, after).to_numpy()
        for name, first, last in ((name, *stretch) for name, stretches in self.left_out.items() for stretch in stretches):
            within = pc.and_(pc.greater(ends, first), pc.less_equal(ends, last))
            chosen = chosen & ~pc.and_(pc.equal(rows.column("window"), name), within).to_numpy()
        touched = self.scope.touched
        if touched is not None and self._pipeline.time.end is None:
            # A window on a grid has a row only if it holds an event, unless it fills gaps.
            grids = [window.name for window in self._pipeline.windows if window.on_grid and not window.fills_gaps]
            of_grid = pc.is_in(rows.column("window"), pa.array(grids, pa.string())).to_numpy()
            begins, ends = (pc.fill_null(rows.column(name).cast(pa.int64()), 0).to_numpy() for name in ("window_start", "window_end"))
            holds = _with_one_within(rows, begins, ends, touched, touched.column(TIME).to_numpy(), self._pipeline.keys)
            chosen &= ~of_grid | holds
        return rows.filter(pa.array(chosen))

    def _written(self, rows: pa.Table) -> tuple[DataFile, ...]:
        return write_files(self.runnable.sink_path, rows.schema, [rows], batch=self.plan.batch, attempt=self.plan.attempt)

    def _quarantine(self, added: tuple[DataFile, ...]) -> Changes:
        """Changes of the quarantine: without rows that count from now on, and with those that the batch has ``added``."""
        place = self.runnable.places.quarantine
        rows, paths = remaining_quarantine(place, self.rows, read_as_of(self.plan), self.taken)
        kept = write_files(place, rows.schema, [rows], batch=self.plan.batch, attempt=self.plan.attempt)
        return Changes.of(rows.schema, added, kept=kept, removes=paths)


def _uncounted(source: SourceTable, ledger: Ledger, through: int) -> list[int] | None:
    """The versions up to ``through`` with changes that no batch has counted; null if the log is gone."""
    try:
        return [each.version for each in uncounted_changes(state_plans(ledger.batches()), source, through, ahead=False)]
    except SourceRangeGoneError:
        return None


def _with_one_within(rows: pa.Table, begins: Ints, ends: Ints, touched: pa.Table, instants: Ints, keys: tuple[str, ...]) -> Bools:
    """Mask of the ``rows`` for which a ``touched`` row of their key has its instant in [begin, end); O(n log n).

    ``begins``, ``ends``: shape (n_rows,). ``instants``: shape (n_touched,).
    """
    names, n = list(keys), len(instants)
    codes = codes_of([touched.select(names), rows.select(names)], names)[0] if keys else np.zeros(n + len(begins), np.int64)
    points = distinct_values(instants)
    held = np.sort(codes[:n] * (len(points) + 1) + np.searchsorted(points, instants))
    first, last = (np.searchsorted(held, codes[n:] * (len(points) + 1) + np.searchsorted(points, at)) for at in (begins, ends))
    return np.asarray(first < last, np.bool_)


def _windows(found: Corrections) -> dict[str, WindowRows]:
    """Number of rows to publish, and range of their ends, by window."""
    columns = [
        pa.table({"window": rows.column("window"), "end": rows.column("window_end").cast(pa.int64())})
        for rows in (found.changed, found.retracted)
    ]
    grouped = pa.concat_tables(columns).group_by("window").aggregate([("end", "count"), ("end", "min"), ("end", "max")])
    return {row["window"]: WindowRows(row["end_count"], row["end_min"], row["end_max"]) for row in grouped.to_pylist()}


def corrected(
    runnable: Runnable, ledger: Ledger, source: SourceTable, files: Sequence[str], after: int, ends: tuple[int | None, int | None]
) -> tuple[FolderSource, Sequence[str], int]:
    """The source, the paths of ``files`` in it, and the last version that changed one of them; ``after`` is the last version read."""
    if not isinstance(source, FolderSource):
        raise UnsupportedError(
            f"pipeline {runnable.name}: --file names files of a folder, but the source {source.path} is no folder; `windowmill restate` by "
            "--versions, or without options, takes up what versions of a table changed"
        )
    through, paths = after, list[str]()
    if files:
        source, paths, through = source.corrected(files, after)
    other = next((file for file in source.seen[after + 1 : through + 1] if file.path not in paths and file.event != "forgotten"), None)
    if other is not None:
        first = "name it by --file, too" if other.event in ("changed", "removed") else "`windowmill run --max-batches 1` reads it"
        raise OutOfTurnError(f"pipeline {runnable.name}: {other.path} ({other.event}) comes before; {first}, then restate")
    lost = sorted(source.removed(through) - {*paths, *restated_files(ledger)})
    if lost and ends == (None, None):
        more = f" and {len(lost) - 1:,} more" if len(lost) > 1 else ""
        raise UnsupportedError(
            f"pipeline {runnable.name}: {lost[0]}{more} of {source.path} were removed after batches had read them, and windows that hold "
            "their rows would lose these; name such files by --file if that is right, or the windows to recompute by --from and --to"
        )
    return source, paths, through


def restated_files(ledger: Ledger) -> set[str]:
    """Paths of the files that were delivered again, or removed, and that restatements have taken account of."""
    return {path for batch in effective_batches(ledger.batches()) for path in batch.plan.files}
