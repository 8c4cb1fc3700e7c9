"""Whether rows that are read again have counted: some were late, are in quarantine, are duplicates, or have changed since. No JVM."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowmill.checkpoints.batches import BackfillPlan, Plan, PurgePlan, RestatePlan, effective_batches
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs import json_lines
from windowmill.jobs.batch.engine import compute_of, never_spark
from windowmill.jobs.conditions.truths import Conditions, every_condition
from windowmill.jobs.layouts.base import columns_read
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.layouts.lateness import with_arrival
from windowmill.jobs.layouts.unique import Deduplication
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.folder import FolderSource
from windowmill.jobs.sources.plain_files import Form
from windowmill.jobs.sources.plain_rows import PlainRows
from windowmill.jobs.sources.reading import VersionRange, backfill_versions
from windowmill.jobs.sources.table_rows import TableRows, ends_in_sql, queried
from windowmill.jobs.sources.unusable_rows import NO_MATCH, TOO_LATE, EventTimes, with_texts
from windowmill.jobs.spark.session import start_spark
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.bounds import PRINTABLE
from windowmill.windowing.columnar.added_columns import FILE, ID_HIGH, NUMBER_OF, ROW, TIME, UNREAD
from windowmill.windowing.columnar.duplicates import ENTRIES, half_of_ids, has_each
from windowmill.windowing.columnar.rows import are_among, grouped, without
from windowmill.windowing.errors import SourceRangeGoneError, UnsupportedError
from windowmill.windowing.spec import Pipeline
from windowmill.windowing.watermark import LatenessRule
from windowmill.windowing.windows.base import Window

if TYPE_CHECKING:
    from windowmill.jobs.batch.progress import Progress
    from windowmill.jobs.spark.access import SparkSession
    from windowmill.windowing.kernels.combine import Ints


def judged_otherwise(pipeline: Pipeline, before: Sequence[Plan]) -> bool:
    """Whether plans ``before`` have judged rows by other settings of time than those of the spec now."""
    # Behind a change a run finds what earlier settings have reached.
    return bool(_other_rules(pipeline, before)) or any(plan.advances and plan.watermark is not None for plan in before)


def _other_rules(pipeline: Pipeline, before: Sequence[Plan]) -> list[LatenessRule]:
    """The rules of plans ``before`` by which rows are judged otherwise than now, since all windows were recomputed by one."""
    since = max((place for place, plan in enumerate(before) if plan.rejudges and plan.history == AXIS_BEGIN), default=0)
    rules = list(dict.fromkeys(LatenessRule.of_meaning(pipeline.filled(plan.definition)) for plan in before[since:]))
    now = LatenessRule.of(pipeline)
    # What is shown early or late judges no row, but a change of it closes windows that are shown.
    varied = len({rule.revises for rule in rules}) > 1
    return [rule for rule in rules if varied or (rule.disorder, rule.lateness) != (now.disorder, now.lateness)]


def were_missed(ledger: Ledger) -> bool:
    """Whether rows have come too late for a window, by any spec, and no restatement of all windows has counted them since."""
    batches = effective_batches(ledger.batches())
    whole = [place for place, batch in enumerate(batches, 1) if _is_whole(batch.plan)]
    since = batches[max(whole, default=0) :]
    return any(batch.counts.late_missed and batch.plan.builds_state for batch in since if batch.status == "committed")


def _is_whole(plan: Plan) -> bool:
    """Whether this plan recomputed all windows that late rows may have missed."""
    match plan:
        case RestatePlan(late=True) | RestatePlan(changed=None, range_from=None, range_to=None, files=[], lookup=None):
            return True
    return False


def _is_of_all_rows(plan: Plan) -> bool:
    """Whether the state after this plan reflects all rows that the source then had."""
    match plan:
        case RestatePlan(changed=None, range_to=None, late=False, files=[], lookup=None):
            return True
        case BackfillPlan(read_from=int(), snapshot=int()):
            return True
    return False


def uncounted_changes(building: Sequence[Plan], source: SourceTable, through: int, *, ahead: bool = True) -> list[LoggedVersion]:
    """The versions up to ``through`` that changed rows and that no plan ``building`` the state has counted.

    Without ``ahead`` these are also versions that a backfill has read before the runs: it leaves out those of their rows that are later
    than all that runs have seen.
    """
    begin, counted = building[0].from_version, list[tuple[int, int]]()
    for plan in building:
        read = -1 if plan.snapshot is None else plan.snapshot
        match plan:
            case _ if plan is building[0]:
                begin = max(begin, read)
            case _ if _is_of_all_rows(plan):
                begin, counted = read if ahead else min(read, plan.to_version), []
            case PurgePlan() if not plan.ignores_others:
                begin = plan.to_version
            case RestatePlan():
                # A restatement without versions has read the table after all that it skipped, but not what a backfill has read ahead.
                begin = min(begin, read)
                counted.append(plan.changed or (plan.from_version + 1, plan.to_version))
    changed = [version for version in source.versions(begin, through) if version.changes] if through > begin else []
    return [each for each in changed if not any(first <= each.version <= last for first, last in counted)]


def purged_since_read(before: Sequence[Plan]) -> Plan | None:
    """The last purge after all plans that have read the whole source again; null if there is none."""
    last = next((plan for plan in reversed(before) if plan.purges or plan.recounts), None)
    return last if last is not None and last.purges else None


def refuse_uncounted(
    runnable: Runnable, ledger: Ledger, source: SourceTable, before: Sequence[Plan], versions: VersionRange, kept: Sequence[Window]
) -> None:
    """Refuse a changed spec by which rows of ``versions`` count otherwise than before in windows that stay, or are ``kept``."""
    others, same = _other_rules(runnable.pipeline, before), versions == backfill_versions(runnable, source, before, "log")
    if same and not judged_otherwise(runnable.pipeline, before):
        return
    purge = None if same else purged_since_read(before)
    change = _change_within(runnable, source, before, versions) if not same and (purge is not None or kept) else None
    if purge is not None and change is not None:
        raise _refused(
            runnable,
            f"batch {purge.batch} has purged keys, so a changed spec reads the table as it is now, including {change}",
            "restate --from BEGIN",
        )
    if kept and change is not None:
        raise _refused(runnable, f"window {kept[0].name} would continue from a state that includes {change}", "restate --from BEGIN")
    late = next((window.name for window in kept if not window.on_grid or window.fills_gaps), None)
    now = LatenessRule.of(runnable.pipeline)
    if late is not None and any(now.disorder < rule.disorder or now.lateness < rule.lateness for rule in others):
        raise UnsupportedError(
            f"pipeline {runnable.name}: window {late} would continue from a state without rows that have counted, but are too late by the "
            "settings of time as they are now; put new windows and aggregates into a pipeline of their own, or change emit and settings of "
            "time by `windowmill apply --recompute`, which recomputes all windows"
        )
    if late is not None and (were_missed(ledger) or _are_quarantined(runnable.places.quarantine)):
        raise _refused(runnable, f"window {late} would continue from a state that includes rows which came too late", "restate --late")


def _refused(runnable: Runnable, why: str, command: str) -> UnsupportedError:
    return UnsupportedError(
        f"pipeline {runnable.name}: {why}: put the old spec back, run `windowmill {command}` to count them, and then change it; or put new "
        "windows and aggregates into a pipeline of their own"
    )


def _change_within(runnable: Runnable, source: SourceTable, before: Sequence[Plan], versions: VersionRange) -> str | None:
    """The changes within ``versions`` that no batch has counted, in words; null if there are none."""
    ignores, through = runnable.source.changes == "ignore", versions.through if versions.snapshot is None else versions.snapshot
    try:
        # Unread changes are counted by the next run, unless they are ignored.
        found = uncounted_changes(before, source, through if ignores else min(through, versions.through))
    except SourceRangeGoneError:
        return "changes that no batch may have counted" if ignores else None
    return f"the changes of version {found[0].version} ({found[0].operation}), which no batch has counted" if found else None


def _are_quarantined(place: str) -> bool:
    """Whether rows are in quarantine because they came too late."""
    if not is_table(place):
        return False
    names = {"reason": pa.string()}
    return any(len(rows) for rows in queried(table_at(place), names, f"reason = '{TOO_LATE}'", {"reason": "reason"}))


def check_range(runnable: Runnable, begin: int, end: int, versions: VersionRange, *, is_judged_otherwise: bool) -> None:
    """Refuse to recompute some windows, those in (``begin``, ``end``], from other rows than earlier batches read, unless they are on grids.

    Triggers are counted from a key's first tuple on, and where a window ends that is not on a grid follows from the rows. Rows outside
    the range keep the numbers and bounds that they have: one window could be shown twice, or not at all.
    """
    windows = runnable.pipeline.windows
    numbered = [window.name for window in windows if window.follows_policies]
    moving = [window.name for window in windows if not (window.follows_policies or window.on_grid)]
    so = []
    if _shown_outside(runnable, numbered, begin, end):
        so.append(f"triggers of {', '.join(numbered)} would be numbered again in the range, and not outside it")
    if _shown_outside(runnable, moving, begin, end):
        so.append(f"windows of {', '.join(moving)} could move into the range or out of it, and rows outside it stay as they are")
    if so:
        why = versions.why or "rows count in event-time order"
        instead = ", and --as-arrived reads what earlier batches read"
        if versions.snapshot is None:
            why, instead = "--as-arrived reads rows as they came, but batches have counted them as they were restated since", ""
        if is_judged_otherwise:
            why, instead = "rows are late by the settings of time as they are now, and were late to runs by others", ""
        raise UnsupportedError(
            f"pipeline {runnable.name}: {why}, so {'; '.join(so)}; `windowmill restate` recomputes what has changed, a backfill of all "
            f"windows everything{instead}"
        )


def _shown_outside(runnable: Runnable, names: Sequence[str], begin: int, end: int) -> bool:
    """Whether the sink has rows of the windows ``names`` that end outside of (``begin``, ``end``]."""
    if not names or not is_table(runnable.sink_path):
        return False
    ends = ends_in_sql(timed=not runnable.pipeline.time.integer_axis)
    listed = ", ".join(f"'{name}'" for name in names)  # identifiers
    others = queried(
        newest(runnable.sink_path),
        {"window": pa.string()},
        f'"window" IN ({listed}) AND NOT ({ends} > {begin} AND {ends} <= {end})',
        {"window": "window"},
    )
    return any(rows.num_rows for rows in others)


def table_rows(pipeline: Pipeline, source: DeltaSource | FolderSource, progress: Progress) -> TableRows:
    """The rows of ``source``, for corrections and purges; starts Spark, or refuses to by ``compute: local``, where only it reads them."""
    start = cache(partial(start_spark, pipeline, progress))

    def needed(why: str) -> SparkSession:
        if compute_of(pipeline) == "local":
            raise never_spark(f"pipeline {pipeline.pipeline}: source {source.path}: {why}")
        return start()

    return TableRows.of(pipeline, source, needed)


def with_ids(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """``rows`` with the high halves of the ids of their values of ``by``; null where one of these is null."""
    ids = pc.if_else(has_each(rows, by), half_of_ids(rows.select(list(by)), "high"), pa.scalar(None, pa.int64()))
    return rows.append_column(ID_HIGH, ids)


@dataclass(frozen=True)
class Copies:
    """The duplicates among the rows of a source, which count as arrived together, and what is remembered of the others."""

    #: By path of the file, the numbers of the rows that are duplicates or stay in quarantine, ascending.
    numbers: Mapping[str, Ints]
    since: int  #: No later row is a duplicate of one whose time lies before it.
    entries: pa.Table  #: As of :data:`.duplicates.ENTRIES`.
    #: Keys, event time and ``ID_HIGH`` of the rows that have an id in common with a row of another key or time, or with a touched one.
    related: pa.Table

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        plan: RestatePlan,
        types: Columns,
        parts: Iterable[tuple[str, pa.Table, pa.Table]],
        touched: pa.Table | None,
    ) -> Copies:
        """Of the rows that ``plan`` reads: ``parts``, each with the path of their file, and its rows that stay in quarantine.

        ``touched`` are rows that it restates, null for all. About 80 bytes of each row are in memory.
        """
        texts = every_condition(pipeline)
        conditions = Conditions.of(texts, types.in_conditions if texts else {})
        if (why := conditions.outside.get(pipeline.own_filter or "")) is not None:
            raise UnsupportedError(
                f"pipeline {pipeline.pipeline}: source.filter: {why}, and a restatement finds duplicates without Spark; write the filter "
                "otherwise, or backfill in a new sink"
            )
        plain, rule = PlainRows(pipeline, (), (), Form(types.arrow, types.fixed_lengths), conditions), LatenessRule.of(pipeline)
        passed = plan.watermark_by(rule) if rule.asserted or plan.seen is None or plan.watermark is not None else rule.watermark(plan.seen)
        since = max(AXIS_BEGIN, passed - pipeline.remembers_for)
        work = Deduplication.of(Input(pipeline=pipeline, types=types.arrow), None, since)
        columns = list(dict.fromkeys([*pipeline.keys, *columns_read(work.reading)]))
        files, judged, known, left, n, before = dict[str, int](), list[pa.Table](), list[pa.Table](), list[pa.Table](), 0, 0
        for path, part, staying in parts:
            file = pa.scalar(files.setdefault(path, len(files)))
            chosen = [(part, n)]
            if not work.grids:  # runs have remembered rows that came too late: they come before the others, as of an earlier commit
                before -= len(staying)
                chosen.append((staying, before))
            for rows, first in chosen:
                whole = replace(plain, has_unread=UNREAD in rows.column_names)
                seen = whole.evaluated(rows, columns, [], pipeline.time.latest(plan.now_us), 0)
                judged.append(work.judged(with_arrival(seen, np.arange(first, first + len(seen)), None)))
                own = seen.take(pc.subtract(judged[-1].column(NUMBER_OF), first)).select([*pipeline.keys, TIME, ROW])
                known.append(own.append_column(FILE, pa.repeat(file, len(own))))
            left.append(pa.table({FILE: pa.repeat(file, len(staying)), ROW: staying.column(ROW)}))
            n += len(part)
        if not judged:
            return cls({}, since, ENTRIES.empty_table(), pa.table({}))
        every = pa.concat_tables(judged)
        found = work.found(every)
        rows = pa.concat_tables(known).append_column(ID_HIGH, every.column(ID_HIGH))
        copies = rows.filter(pc.is_in(every.column(NUMBER_OF), pa.array(found.numbers, pa.int64())))
        places = pa.concat_tables([copies.select([FILE, ROW]), *left]).sort_by(ROW)
        of_files = grouped(places.column(FILE).to_numpy(), places.column(ROW).to_numpy())
        numbers = {path: of_files[number] for path, number in files.items() if number in of_files}
        rows = rows.drop_columns([FILE, ROW])
        distinct = rows.group_by(rows.column_names, use_threads=False).aggregate([])
        counts = distinct.column(ID_HIGH).value_counts()
        shared = [counts.field("values").filter(pc.greater(counts.field("counts"), 1))]
        shared += [] if touched is None else touched.column(ID_HIGH).drop_null().chunks
        related = distinct.filter(pc.is_in(distinct.column(ID_HIGH), pa.concat_arrays(shared)))
        return cls(numbers, since, found.entries, related)

    def left(self, path: str, rows: pa.Table) -> pa.Table:
        """Those of ``rows`` of the file at ``path`` that count."""
        return without(rows, ROW, self.numbers.get(path, np.empty(0, np.int64)))

    def touched_with(self, touched: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Keys and times of the ``touched`` rows, and of those that have an id in common with rows of touched keys: another may count."""
        ids, own, related = touched.column(ID_HIGH).drop_null().combine_chunks(), touched.drop_columns([ID_HIGH]), self.related
        while len(related) and len(own):
            joins = pc.is_in(related.column(ID_HIGH), ids)
            of_keys = are_among(related, own.select(list(keys)), list(keys)) if keys else np.ones(len(related), np.bool_)
            chosen = related.filter(pc.or_(joins, pa.array(of_keys))).column(ID_HIGH).combine_chunks()
            same = pc.is_in(related.column(ID_HIGH), chosen)
            if not len(chosen):
                break
            own = pa.concat_tables([own, related.filter(same).select(own.column_names).cast(own.schema)])
            related = related.filter(pc.invert(same))
        return own.group_by(own.column_names, use_threads=False).aggregate([])


#: What identifies a row of the quarantine: its file and row number, or its values as JSON.
Known = tuple[str, int] | str
_QUARANTINED = {
    "row": pa.string(),
    "reason": pa.string(),
    "event_time": pa.int64(),
    "source_file": pa.string(),
    "source_row": pa.int64(),
}


class QuarantinedRows:
    """Rows of the quarantine table, to be found among those of ``files`` of the source.

    A row is identified by its file and row number. If others have rewritten the file since, or the entry does not name it, the row's event
    time and its values of the columns that the pipeline uses identify it.
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
    """What identifies each of the ``rows`` of a quarantine table: file and row number, if it is one of ``files``; else its values."""
    names = ("source_file", "source_row", "event_time", "row")
    return [
        (file, number) if number is not None and file in files else _by_values(at, text, used)
        for file, number, at, text in zip(*(rows.column(name).to_pylist() for name in names), strict=True)
    ]


def _by_values(at: int | None, row: str, used: Sequence[str]) -> str:
    """The event time and the columns ``used`` of a row, as JSON that depends neither on its writer nor on null columns."""
    values = json.loads(row)
    return json.dumps([at, {name: values[name] for name in used if values.get(name) is not None}], sort_keys=True)


def staying_and_counting(
    runnable: Runnable,
    rows: TableRows,
    version: int,
    *,
    reasons: Collection[str],
    delivered_again: Collection[str] = (),
    among: Set[Known] | None = None,
) -> tuple[QuarantinedRows, QuarantinedRows]:
    """Quarantined rows that stay, and those that may count from now on; neither from files ``delivered_again``.

    The latter are there for one of the ``reasons``, and are ``among`` those, null for all.
    """
    every, files = _read_quarantine(runnable.places.quarantine, _QUARANTINED), {file.path for file in rows.source.snapshot(version)}
    if delivered_again:
        again = pc.is_in(every.column("source_file"), pa.array(list(delivered_again), pa.string()))
        every = every.filter(pc.invert(again))
    counts = pc.is_in(every.column("reason"), pa.array(list(reasons), pa.string())).to_numpy()
    if among is not None:
        counts &= np.array([key in among for key in _known(every, rows.known_by, files)], np.bool_)
    kinds = (every.filter(pa.array(~counts)), every.filter(pa.array(counts)))
    stays, taken = (QuarantinedRows(runnable.pipeline, rows.known_by, files, kind) for kind in kinds)
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


def remaining_quarantine(place: str, rows: TableRows, version: int, taken: Set[Known]) -> tuple[pa.Table, tuple[str, ...]]:
    """The quarantine's rows at ``place`` without those ``taken`` from this source ``version``, and the paths of its files.

    Late rows with the values of one that is taken go with it: the source deleted them and delivered them again. If they stayed, later
    restatements would know the row that counts by its values, and leave it out.
    """
    table, files = table_at(place), {file.path for file in rows.source.snapshot(version)}
    schema = pa.schema(table.schema().to_arrow())
    every = _read_quarantine(place, {field.name: field.type for field in schema})
    if {"source_file", "source_row"} - set(every.column_names):
        entries = _read_quarantine(place, _QUARANTINED)
    else:
        entries = every.set_column(every.schema.get_field_index("event_time"), "event_time", every.column("event_time").cast(pa.int64()))
    goes = pc.is_in(every.column("reason"), pa.array([TOO_LATE, NO_MATCH])).to_numpy().copy()
    late = entries.filter(pa.array(goes))
    counts = [key in taken for key in _known(late, rows.known_by, files)]
    if not all(counts):
        values = _known(late, rows.known_by, ())
        again = set(compress(values, counts))
        counts = [each in again for each in values]
    goes[goes] = counts
    return every.filter(pa.array(~goes)), tuple(str(file["path"]) for file in files_of(table))
