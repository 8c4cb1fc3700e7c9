"""Compares a changed spec with the one that runs, and plans its batch, from the stored state or from the source. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from windowmill.checkpoints.batches import ApplyPlan, Batch, Changes, Plan, effective_batches, format_instant, state_plans
from windowmill.checkpoints.committer import refuse_misfit
from windowmill.checkpoints.delta_tables import delta_rs_can_write, files_of, newest
from windowmill.checkpoints.ledger import NEW_SINK, Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.state.readers import DeltaState, MemoryState
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs import user_code
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.counted_rows import judged_otherwise, purged_since_read, refuse_uncounted
from windowmill.jobs.batch.job import parts_of, state_schema
from windowmill.jobs.batch.window_history import numbered_otherwise
from windowmill.jobs.conditions.expressions import Expressions
from windowmill.jobs.layouts.carried import CarriedPart, NotStoredError, carried_parts
from windowmill.jobs.layouts.input import Input
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import Columns, check_unchanged
from windowmill.jobs.sources.delta_log import first_time, times_from
from windowmill.jobs.sources.reading import History, VersionRange, backfill_versions, check_readable, reading_of
from windowmill.jobs.sources.table_rows import queried
from windowmill.jobs.sources.unusable_rows import TOO_LATE
from windowmill.jobs.spec_checks import problems_of
from windowmill.windowing.axis import AXIS_BEGIN, AXIS_END
from windowmill.windowing.columnar.added_columns import SLICE
from windowmill.windowing.columnar.hashes import RowCheck
from windowmill.windowing.errors import (
    ArrivalUnknownError,
    OutOfTurnError,
    SinkRefusedError,
    SpecChangedError,
    SpecError,
    StateError,
    UnsupportedError,
    WindowmillError,
    first_line,
)
from windowmill.windowing.grids import Grids
from windowmill.windowing.layouts import divide
from windowmill.windowing.slicing.edges import Edges
from windowmill.windowing.spec import Pipeline, SpecChanges, compare
from windowmill.windowing.watermark import LatenessRule

if TYPE_CHECKING:
    from windowmill.jobs.layouts.base import Part
    from windowmill.windowing.kernels.combine import Ints
    from windowmill.windowing.windows.base import Window

#: Greatest number of edges of new windows that are compared with those of stored slices.
_MAX_COMPARED_EDGES = 1 << 20
#: Greatest number of rows of a sink with revisions whose expressions are computed again: all of a window's are in memory at a time.
_MAX_REVISED_ROWS = 2_000_000


@dataclass(frozen=True, slots=True)
class Application:
    """A changed spec: its meaning and batch, what the batch reads, how it uses the stored state, or why it reads the source."""

    changes: SpecChanges
    plan: ApplyPlan
    reading: Reading
    state: FromState | NotStoredError


def changes_of(pipeline: Pipeline, ledger: Ledger) -> SpecChanges | None:
    """The differences between ``pipeline`` and the spec of the ledger's batches; null if there are none, or nothing ran yet."""
    last = ledger.newest_kept
    if last is None:
        return None
    edited, same = user_code.edited_parts(pipeline, last.plan), pipeline.means(last.plan.definition, last.plan.meaning)
    if same and not edited:
        return None
    same_variables = same or pipeline.has_variables_of(last.plan.definition, last.plan.meaning)
    return compare(last.plan.definition, pipeline, edited, same_variables=same_variables)


def next_apply(
    runnable: Runnable,
    ledger: Ledger,
    *,
    history: int | None,
    recompute: bool = False,
    accept_changes: bool = False,
    on_reading: planning.OnReading = planning.ignore,
) -> Application | None:
    """The batch of a changed spec, which publishes new values of windows that end after ``history``, if any; null if nothing is to do.

    The commits of the last batch must have been made. ``recompute``: whether all windows are recomputed by changed settings of time.
    ``accept_changes`` accepts that others have changed rows of the tables.
    """
    pipeline = runnable.pipeline
    planning.check_owner(pipeline, ledger)
    changes = changes_of(pipeline, ledger)
    if changes is None:
        return None
    refuse(pipeline, ledger, changes)
    if recompute and not changes.settings:
        raise SpecError(
            f"pipeline {pipeline.pipeline}: --recompute: no setting of time and no emit has changed since the last batch; leave it out, or "
            "recompute windows by the settings of now with `windowmill backfill`"
        )
    changes = changes.rejudging() if recompute else changes
    last = ledger.last_commit
    assert last is not None  # a batch that is not held has been committed
    _check_windows(pipeline, ledger, changes, history)
    source = planning.source_of(runnable, ledger)
    planning.check_tables(runnable, ledger, planning.Acceptance(changes=accept_changes, code=True))
    # Check this before parts are made, which assume that all columns of the spec exist.
    check_unchanged(last.plan.source_schema, source.schema_json, pipeline, source.path)
    Columns.of(source.schema_json).check(pipeline, f"the source {source.path}", source.unread, source.untyped)
    before = state_plans(ledger.batches())
    if history == AXIS_BEGIN and before[0].range is not None:
        history = before[0].range[0]  # what came before was never shown
    types, fills = Columns.of_source(source).arrow, () if history is None else changes.filled
    versions, reading, needed_from = VersionRange(last.plan.to_version, last.plan.to_version), Reading(()), None
    keeps, gaps = tuple[str, ...](), tuple[int, ...]()
    state: FromState | NotStoredError
    try:
        state = _from_state(runnable, ledger, source, changes, history, before)
    except NotStoredError as err:
        state = err.with_traceback(None)  # whose frame would keep all this in memory through the batch
    if isinstance(state, NotStoredError):
        versions, reading = _versions(runnable, source, before)
        needed_from = _needed_from(runnable, source, changes, history, last.outcome.emitted)
        reading = reading if needed_from is None else times_from(source, reading, pipeline.time, needed_from)
        on_reading(source, reading)
        keeps, gaps = _kept(runnable, ledger, changes, types)
        staying = kept_of_source(runnable, changes, fills, types, keeps, gaps)
        refuse_uncounted(runnable, ledger, source, before, versions, staying)
    plan = ApplyPlan(
        **planning.pinned(pipeline, ledger, source, versions)
        | {"from_version": versions.through}
        | _progress(pipeline, last, changes, history),
        seen=last.outcome.seen,
        read_from=versions.after,
        fills=fills,
        history=history,
        redefined=changes.redefined,
        found_closed=[(plan.to_version, plan.emitted) for plan in before] if pipeline.time.watermark == "data_interval_end" else [],
        carried=None if isinstance(state, NotStoredError) else last.plan.definition,
        needed_from=needed_from,
        keeps=keeps,
        keeps_gaps=gaps,
        kept_from=last.plan.definition if keeps or gaps else None,
        reads_others=changes.input_differs,
        rejudges=changes.rejudges,
        of_published=isinstance(state, FromState) and state.published,
    )
    planning.check_plan(runnable, ledger, source, plan)
    _check_columns(runnable, plan)
    return Application(changes, plan, reading, state)


def _progress(pipeline: Pipeline, last: Batch, changes: SpecChanges, history: int | None) -> dict[str, int | None]:
    """What the batch of ``changes`` goes on from: nothing that the ``last`` batch has reached by its settings goes back."""
    outcome, then, now = last.outcome, LatenessRule.of_meaning(pipeline.filled(last.plan.definition)), LatenessRule.of(pipeline)
    if not changes.settings or outcome.seen is None or outcome.emitted is None:
        return {}
    watermark = outcome.watermark_by(then)
    if outcome.watermark is None and not then.asserted and not last.plan.replaces_state:
        watermark = then.watermark(outcome.seen)
    shown = outcome.shown if outcome.shown is not None else watermark if then.revises else outcome.emitted
    # A window that has been shown is closed where none is revised.
    closed = outcome.emitted if now.revises else max(outcome.emitted, shown)
    if changes.rejudges and now.revises and history is not None and history <= closed:
        shown = watermark  # the batch shows what is complete
    return {"emitted": closed, "watermark": watermark, "shown": shown if now.revises and shown != watermark else None}


def refuse(pipeline: Pipeline, ledger: Ledger, changes: SpecChanges) -> None:
    """Refuse ``changes`` that no batch can carry out now."""
    if changes.others:
        raise SpecChangedError(
            f"pipeline {pipeline.pipeline}: keys or time differ from those that built {ledger.path}: "
            f"{'; '.join(changes.others)}; they make another pipeline: put the old ones back, or {NEW_SINK}"
        )
    if ledger.held_batch:
        raise OutOfTurnError(
            f"pipeline {pipeline.pipeline}: batch {ledger.held_batch.number} is held; release, discard or abandon it by the spec that it "
            "was made for, then change the spec"
        )


def _check_windows(pipeline: Pipeline, ledger: Ledger, changes: SpecChanges, history: int | None) -> None:
    """Refuse a spec that no batch could execute, and windows with policies whose triggers would have the numbers of triggers that stay."""
    problem = next(iter(problems_of(pipeline)), None)  # as of `windowmill validate`
    if problem is not None:
        raise SpecError(f"pipeline {pipeline.pipeline}: {problem[0]}: {problem[1]}")
    again = changed_windows(changes) & numbered_otherwise(pipeline.shown_meaning(), changes.redefined, ledger)
    if again and history != AXIS_BEGIN:
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: window {min(again)} has published triggers under its old definition, and new ones would reuse "
            "their numbers; rename the window, or replace all of its history (--history all)"
        )


def _from_state(
    runnable: Runnable, ledger: Ledger, source: SourceTable, changes: SpecChanges, history: int | None, before: Sequence[Plan]
) -> FromState:
    """How ``changes`` are applied from the state alone; raises ``NotStoredError`` if the source has to be read."""

    def begin() -> int | None:
        """An instant before which the source has no event; null if unknown."""
        if any(plan.restates for plan in before):
            return None
        try:  # by the log alone: files may be gone
            reading = reading_of(runnable, source, backfill_versions(runnable, source, before, "log"))
        except WindowmillError:
            return None
        return first_time(source, reading.files, runnable.pipeline.time)

    if changes.input_differs:
        raise NotStoredError("its rows go through another filter, other steps or another dedup")
    if changes.rejudges:
        raise NotStoredError("its rows are judged by other settings of time")
    published = history is not None and _are_in_rows(runnable, changes)
    fills = () if history is None or published else changes.filled
    new, old = _parts_of_stored(runnable, ledger, Columns.of_source(source).arrow)
    if changes.changes_emit and any(part.name != "positions" for part in new):  # emit makes no difference to policies
        raise NotStoredError("what it holds of windows depends on emit")
    cut = next((each for each in carried_parts(new, old, changed_windows(changes), fills) if each.recut), None)
    if cut is None:
        return FromState(None, recut=False, published=published)
    if changes.settings or judged_otherwise(runnable.pipeline, before):
        raise NotStoredError("slices hold rows that were judged by other settings of time")
    check = _SliceCheck.of(runnable, ledger, cut)
    check.edges()
    check.lateness(filled=bool(fills))
    return FromState(check.reach(AXIS_END if history is None else history, fills, begin), recut=True, published=published)


def _are_in_rows(runnable: Runnable, changes: SpecChanges) -> bool:
    """Whether all that ``changes`` fill follows from published rows, which this process can read: expressions over one."""
    own = [runnable.pipeline.aggregates[each.name].expr for each in changes.aggregates if each.fate == "filled"]
    if not own or None in own or changed_windows(changes) or not is_table(runnable.sink_path) or not delta_rs_can_write(runnable.sink_path):
        return False
    table = newest(runnable.sink_path)
    return not has_revisions(table) or sum(int(file["num_records"]) for file in files_of(table)) <= _MAX_REVISED_ROWS


def has_revisions(sink: DeltaTable) -> bool:
    """Whether a window may have several rows in ``sink``, of which the newest counts."""
    return any(file.get("max.revision") != 0 for file in files_of(sink))


def _needed_from(runnable: Runnable, source: SourceTable, changes: SpecChanges, history: int | None, emitted: int | None) -> int | None:
    """An instant before which no row counts in a filled or a later window; null if there is none.

    Rows before it cannot move the watermark so far that later rows are late, so files with only such rows need not be read.
    """
    slices = divide(runnable.pipeline, Columns.of_source(source).arrow).slices
    if slices is None or emitted is None or history == AXIS_BEGIN or len(slices.pipeline.windows) < len(runnable.pipeline.windows):
        return None
    grids = slices.grids
    # A duplicate has an earlier row that counts, about which still earlier ones decide.
    if grids.known or grids.intervals or runnable.pipeline.dedup is not None:
        return None
    begins = [grids.first_slice_after(emitted)]
    if history is not None:
        begins += [grid.first_start_after(history) for name, grid in grids.named if name in changes.filled]
    return min(begins)


def _versions(runnable: Runnable, source: SourceTable, before: Sequence[Plan]) -> tuple[VersionRange, Reading]:
    """The rows that batches have counted, in their order, or by event time where it is unknown; behind a purge those of the table now."""
    as_read: History = "counted" if purged_since_read(before) is None else "current"
    try:
        versions = backfill_versions(runnable, source, before, as_read)
        return versions, check_readable(runnable, source, versions, again=True)
    except ArrivalUnknownError:
        versions = backfill_versions(runnable, source, before, "event_time")
        return versions, check_readable(runnable, source, versions, again=True)


def _check_columns(runnable: Runnable, plan: ApplyPlan) -> None:
    """Refuse a spec by which a column of results or state has another type than in the existing table."""
    pipeline = runnable.pipeline
    types = Columns.of(plan.source_schema).seen_by(pipeline).arrow
    schemas = {"sink": Expressions.of(pipeline, types).schema, "state": state_schema(pipeline, types)}
    for role, place in (("sink", runnable.sink_path), ("state", runnable.places.state)):
        if not is_table(place):
            continue
        try:
            refuse_misfit(role, place, newest(place), Changes.of(schemas[role], widens=True))
        except (SinkRefusedError, StateError) as err:
            raise UnsupportedError(
                f"pipeline {pipeline.pipeline}: {err}; or give the window or the aggregate that has changed another name"
            ) from err


def lines_of(changes: SpecChanges) -> Iterator[str]:
    """A line for each window and aggregate that is not kept, and for each other difference, with its reason."""
    for kind, found in (("window", changes.windows), ("aggregate", changes.aggregates)):
        for each in found:
            if each.fate != "kept":
                yield f"{kind} {each.name}: {each.fate}: {each.why}"
    for setting in changes.settings:
        yield f"{setting}: from the next batch on"
    for other in changes.others:
        yield f"new generation: {other}"


@dataclass(frozen=True, slots=True)
class FromState:
    """How a changed spec is carried out from the stored state alone."""

    since: int | None  #: The instant from which on all slices are stored; null for always, and where no windows are made of slices.
    recut: bool  #: Whether windows are filled from slices, or these are cut at other edges.
    published: bool = False  #: Whether windows are filled from their published rows.


def _kept(
    runnable: Runnable, ledger: Ledger, changes: SpecChanges, types: Mapping[str, pa.DataType]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The layouts whose stored rows ``changes`` leave as they are; and the gaps of unchanged sessions if others change."""
    if changes.input_differs or changes.rejudges:
        return (), ()
    try:
        new, old = _parts_of_stored(runnable, ledger, types)
    except NotStoredError:
        return (), ()
    changed = {*changed_windows(changes), *changes.filled}
    layouts = tuple(part.name for part in new if _stays(part, old, changed))
    if changes.changes_emit:
        return tuple(name for name in layouts if name == "positions"), ()
    sessions = next((part for part in new if part.name == "sessions"), None)
    windows = () if sessions is None else sessions.batch.pipeline.windows
    others = {window.session_gap() for window in windows if window.name in changed}
    gaps = tuple(dict.fromkeys(gap for window in windows if (gap := window.session_gap()) not in others))
    if sessions is None or not others or not gaps:
        return layouts, ()
    staying = parts_of(Input(pipeline=with_gaps(runnable, gaps).pipeline, types=types, builds_state=True), MemoryState())
    own = next(part for part in staying if part.name == "sessions")  # those with greatest sizes may keep live rows
    return layouts, gaps if own.schema == sessions.schema and _stays(own, old, ()) else ()


def _stays(part: Part, old: Sequence[Part], changed: Collection[str]) -> bool:
    """Whether the rows that ``old`` parts have stored are those of ``part``, if these windows have ``changed``."""
    try:
        [carried] = carried_parts([part], old, changed, changed)
    except NotStoredError:
        return False
    return not carried.recut


def kept_of_source(
    runnable: Runnable,
    changes: SpecChanges,
    fills: Sequence[str],
    types: Mapping[str, pa.DataType],
    keeps: Sequence[str],
    gaps: Sequence[int],
) -> list[Window]:
    """Windows that ``changes`` keep, whose state comes from the source: it is not among the layouts ``keeps`` or the ``gaps``."""
    recomputed, parts = {*changed_windows(changes), *fills}, divide(runnable.pipeline, types).each
    windows = [window for part in parts if part.name not in keeps for window in part.pipeline.windows if window.name not in recomputed]
    return [window for window in windows if not (window.joins_by_gap and window.session_gap() in gaps)]


def with_gaps(runnable: Runnable, gaps: Sequence[int]) -> Runnable:
    """``runnable`` with its sessions of these ``gaps`` alone."""
    windows = tuple(window for window in runnable.pipeline.windows if window.joins_by_gap and window.session_gap() in gaps)
    return replace(runnable, pipeline=runnable.pipeline.model_copy(update={"windows": windows}))


def _parts_of_stored(runnable: Runnable, ledger: Ledger, types: Mapping[str, pa.DataType]) -> tuple[list[Part], list[Part]]:
    """As :func:`_parts`, for the pipeline as it last ran; raises ``NotStoredError`` if the state was made by other code or variables."""
    pipeline, last = runnable.pipeline, ledger.newest_kept
    assert last is not None  # a pipeline that never ran has no changes
    for (field, name), why in user_code.edited_parts(pipeline, last.plan).items():
        raise NotStoredError(f"of {field.removesuffix('s')} {name} {why}")
    if not pipeline.has_variables_of(last.plan.definition, last.plan.meaning):
        raise NotStoredError("variables of the spec have other values")
    return _parts(runnable, pipeline.meaning_as(last.plan.definition), types)


def changed_windows(changes: SpecChanges) -> set[str]:
    """Names of the windows that are new, or do not mean what they meant."""
    return {each.name for each in changes.windows if each.fate == "filled"}


def carried_of(
    runnable: Runnable,
    before: Pipeline,
    types: Mapping[str, pa.DataType],
    changed: set[str],
    fills: Sequence[str],
    batch: int = 0,
    only: Sequence[str] | None = None,
) -> list[CarriedPart]:
    """The parts of the pipeline, or ``only`` those of some layouts, as :func:`.carried_parts` continues them from those of ``before``."""
    parts, old = _parts(runnable, before, types, batch)
    return carried_parts([part for part in parts if only is None or part.name in only], old, changed, fills)


def _parts(runnable: Runnable, before: Pipeline, types: Mapping[str, pa.DataType], batch: int = 0) -> tuple[list[Part], list[Part]]:
    """The parts of the pipeline, over no state, and those of the pipeline ``before``, whose rows are stored."""
    new, old = (Input(pipeline=each, types=types, batch=batch, builds_state=True) for each in (runnable.pipeline, before))
    stored = DeltaState(runnable.places.state, RowCheck(runnable.places.state))
    try:
        return parts_of(new, MemoryState()), parts_of(old, stored)
    except SpecError as err:  # the source's columns have changed
        raise NotStoredError(first_line(err)) from err


@dataclass(frozen=True)
class _SliceCheck:
    """Checks that stored slices make up the windows of a changed part."""

    runnable: Runnable
    batches: Sequence[Batch]
    new: Grids
    old: Grids
    #: ``low``, ``high``: all stored slices start in [low, high), and all events that they hold lie there.
    low: int
    high: int
    since: int  #: The instant from which on all slices are stored.
    emitted: int | None  #: Windows that end at or before it have ended; null if none have.

    @classmethod
    def of(cls, runnable: Runnable, ledger: Ledger, part: CarriedPart) -> _SliceCheck:
        new, old = (Grids.of(each.batch.pipeline) for each in (part.part, part.before))
        shows_empty = next(iter((*new.known, *old.known)), None)
        if shows_empty is not None:
            raise NotStoredError(f"window {shows_empty} shows empty windows, which follow from the whole history of a key")
        if new.intervals:
            raise NotStoredError("events last, and the state holds those that reach into windows only where windows began")
        place, low, high = runnable.places.state, AXIS_END, AXIS_BEGIN
        for file in files_of(newest(place)) if is_table(place) else ():
            if file.get(f"null_count.{SLICE}") != file["num_records"]:
                least, greatest = (file.get(f"{bound}.{SLICE}") for bound in ("min", "max"))
                if least is None or greatest is None:
                    raise NotStoredError("the state's log does not record where its slices begin")
                low, high = min(low, least), max(high, greatest + 1)
        last = ledger.last_commit
        emitted = None if last is None else last.outcome.emitted
        if low < high and last is not None and last.outcome.seen is not None:
            high = max(high, last.outcome.seen + 1)  # the last slice reaches at least to there
        since = AXIS_BEGIN if emitted is None else old.first_slice_after(emitted)
        return cls(runnable, effective_batches(ledger.batches()), new, old, low, high, since, emitted)

    def edges(self) -> None:
        """Refuse windows that begin or end within a stored slice."""
        edges = Edges.of(self.new.grids)
        if self.low >= self.high:
            return
        if edges.most_in(self.high - self.low) > _MAX_COMPARED_EDGES:
            raise NotStoredError("the windows have too many edges to look up")
        wanted, stored = edges.between(self.low, self.high), Edges.of(self.old.grids)
        if (stored.slice_starts(wanted) != wanted).any():
            cut = set(wanted[stored.slice_starts(wanted) != wanted].tolist())
            named = next(name for name, grid in self.new.named if cut & set(Edges.of([grid]).between(self.low, self.high).tolist()))
            raise NotStoredError(f"window {named} begins or ends within stored slices")

    def lateness(self, *, filled: bool) -> None:
        """Refuse windows to which late rows would have counted otherwise than to stored slices; ``filled`` is whether some have ended."""
        if not any(batch.outcome.counts.rows_late or batch.outcome.counts.rows_quarantined for batch in self.batches):
            return
        if filled and self.runnable.pipeline.emit == "revise" and any(batch.outcome.counts.rows_late for batch in self.batches):
            raise NotStoredError("late rows have brought revisions, whose order only the source shows")
        known = set(self.old.grids)
        for name, grid in self.new.named:
            if grid in known or self.low >= self.high:
                continue
            if grid.count_ends(self.low, self.high) > _MAX_COMPARED_EDGES:
                raise NotStoredError(f"window {name} has too many ends to look up")
            _, ends = grid.ending_in(self.low, self.high)
            if len(ends) and (np.min([other.first_end_after(ends - 1) for other in self.old.grids], axis=0) != ends).any():
                raise NotStoredError(f"rows were late, and window {name} ends where no window ended")
        times = self._too_late()
        if len(times) and any(batch.plan.restates for batch in self.batches):
            raise NotStoredError("rows are in quarantine as too late, which count in new windows after a restatement")
        if len(times):
            new, old = (np.max([grid.last_end_holding(times) for grid in grids.grids], axis=0) for grids in (self.new, self.old))
            if ((new > old) & (new > times)).any():
                raise NotStoredError("rows are in quarantine as too late that would have counted in the new windows")

    def _too_late(self) -> Ints:
        """Event times of the rows that were quarantined as too late, as far as their slices would be stored."""
        place, found = self.runnable.places.quarantine, [np.empty(0, np.int64)]
        if is_table(place):
            types = {"event_time": pa.int64()}
            late = queried(table_at(place), types, f"reason = '{TOO_LATE}'", {"event_time": "event_time"})
            found += [rows.column("event_time").drop_null().to_numpy() for rows in late]
        times = np.concatenate(found)
        return np.asarray(times[times >= self.since], np.int64)

    def reach(self, history: int, fills: Sequence[str], begin: Callable[[], int | None]) -> int | None:
        """The instant from which on all slices are stored, null for always; refuses windows that need earlier ones."""
        if self.emitted is None:
            return None
        needs = [(self.new.first_slice_after(self.emitted), "windows that are still to come need")]
        needs += [(grid.first_start_after(history), f"window {name} needs") for name, grid in self.new.named if name in fills]
        earliest = min(needs)
        if earliest[0] >= self.since:
            return self.since
        first = begin()
        if first is not None and first >= self.since:
            return None
        since = format_instant(self.since, instants=not self.runnable.pipeline.time.integer_axis)
        raise NotStoredError(f"stored slices reach back to {since}, and {earliest[1]} earlier ones")
