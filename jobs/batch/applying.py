"""Compares a changed spec with the one that runs, and plans the batch that carries it out. Writes nothing. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from windowmill.checkpoints.batches import Changes, state_plans
from windowmill.checkpoints.committer import refuse_misfit
from windowmill.checkpoints.delta_tables import newest
from windowmill.checkpoints.ledger import NEW_SINK, Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.plans import ApplyPlan, Plan
from windowmill.checkpoints.stores import is_table
from windowmill.jobs import user_code
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.counted_rows import purged_since_read, refuse_uncounted
from windowmill.jobs.batch.from_state import FromState, changed_windows, from_state, kept_gaps, kept_layouts, kept_of_source
from windowmill.jobs.batch.window_history import numbered_otherwise
from windowmill.jobs.layouts.carried import NotStoredError
from windowmill.jobs.layouts.choose import state_schema
from windowmill.jobs.sources.base import Reading, SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import first_time, times_from
from windowmill.jobs.sources.reading import History, VersionRange, backfill_versions, check_readable, reading_of
from windowmill.jobs.spec_checks import problems_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.changes import SpecChanges, compare
from windowmill.windowing.columnar.results import result_schema
from windowmill.windowing.errors import (
    ArrivalUnknownError,
    OutOfTurnError,
    SinkRefusedError,
    SpecChangedError,
    SpecError,
    StateError,
    UnsupportedError,
    WindowmillError,
)
from windowmill.windowing.layouts import divide
from windowmill.windowing.spec import Pipeline


@dataclass(frozen=True, slots=True)
class Application:
    """A changed spec: what it means for the pipeline, the batch that carries it out, and what that batch reads.

    ``state`` says how the batch does so from the stored state, or why it reads the source.
    """

    changes: SpecChanges
    plan: ApplyPlan
    reading: Reading
    state: FromState | NotStoredError


def changes_of(pipeline: Pipeline, ledger: Ledger) -> SpecChanges | None:
    """The differences between ``pipeline`` and the spec that the ledger's batches ran by; null for none, or if nothing ran yet."""
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
    accept_changes: bool = False,
    on_reading: planning.OnReading = planning.ignore,
) -> Application | None:
    """The batch that carries out a changed spec; null if there is nothing to do. The commits of the last batch must have been made.

    Parameters
    ----------
    history
        Windows that are new, or get new values, are published where they end after this instant; null for none.
    accept_changes
        Whether to go on although others have changed rows of the pipeline's tables.
    """
    pipeline = runnable.pipeline
    planning.check_owner(pipeline, ledger)
    changes = changes_of(pipeline, ledger)
    if changes is None:
        return None
    refuse(pipeline, ledger, changes)
    last = ledger.last_commit
    assert last is not None  # a batch that is not held has been committed
    _check_windows(pipeline, ledger, changes, history)
    source = planning.source_of(runnable, ledger)
    planning.check_tables(runnable, ledger, planning.Acceptance(changes=accept_changes, code=True))
    before = state_plans(ledger.batches())
    if history == AXIS_BEGIN and before[0].range is not None:
        history = before[0].range[0]  # what came before was never shown
    state, fills = _from_state(runnable, ledger, source, changes, history, before), () if history is None else changes.filled
    versions, reading, needed_from = VersionRange(last.plan.to_version, last.plan.to_version), Reading(()), None
    keeps, gaps = tuple[str, ...](), tuple[int, ...]()
    if isinstance(state, NotStoredError):
        versions, reading = _versions(runnable, source, before)
        needed_from = _needed_from(runnable, source, changes, history, last.outcome.emitted)
        reading = reading if needed_from is None else times_from(source, reading, pipeline.time, needed_from)
        on_reading(source, reading)
        schema = source.schema_json
        keeps, gaps = kept_layouts(runnable, ledger, changes, schema), kept_gaps(runnable, ledger, changes, schema)
        staying = kept_of_source(runnable, changes, fills, schema, keeps, gaps)
        refuse_uncounted(runnable, ledger, source, before, versions, staying)
    plan = ApplyPlan(
        **planning.pinned(pipeline, ledger, source, versions) | {"from_version": versions.through},
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
    )
    planning.check_plan(runnable, ledger, source, plan)
    _check_columns(runnable, plan)
    return Application(changes, plan, reading, state)


def refuse(pipeline: Pipeline, ledger: Ledger, changes: SpecChanges) -> None:
    """Refuse ``changes`` that no batch can carry out now."""
    if changes.others:
        raise SpecChangedError(
            f"pipeline {pipeline.pipeline}: keys, time, filter or emit differ from those that built {ledger.path}: "
            f"{'; '.join(changes.others)}; they make another pipeline: put the old ones back, or {NEW_SINK}"
        )
    if ledger.held_batch:
        raise OutOfTurnError(
            f"pipeline {pipeline.pipeline}: batch {ledger.held_batch.number} is held; release, discard or abandon it by the spec that it "
            "was made for, then change the spec"
        )


def _check_windows(pipeline: Pipeline, ledger: Ledger, changes: SpecChanges, history: int | None) -> None:
    """Refuse a spec that no batch could execute, and windows with policies whose triggers would have the numbers of triggers that stay."""
    _check_spec(pipeline)
    again = changed_windows(changes) & numbered_otherwise(pipeline.shown_meaning(), changes.redefined, ledger)
    if again and history != AXIS_BEGIN:
        raise UnsupportedError(
            f"pipeline {pipeline.pipeline}: window {min(again)} has published triggers under its old definition, and new ones would reuse "
            "their numbers; rename the window, or replace all of its history (--history all)"
        )


def _check_spec(pipeline: Pipeline) -> None:
    """Refuse a spec that no batch could execute, as ``windowmill validate`` does."""
    problem = next(iter(problems_of(pipeline)), None)
    if problem is not None:
        raise SpecError(f"pipeline {pipeline.pipeline}: {problem[0]}: {problem[1]}")


def _from_state(
    runnable: Runnable, ledger: Ledger, source: SourceTable, changes: SpecChanges, history: int | None, before: Sequence[Plan]
) -> FromState | NotStoredError:
    def begin() -> int | None:
        if any(plan.restates for plan in before):
            return None
        try:  # by the log alone: files may be gone
            reading = reading_of(runnable, source, backfill_versions(runnable, source, before, "log"))
        except WindowmillError:
            return None
        return first_time(source, reading.files, runnable.pipeline.time)

    try:
        return from_state(runnable, ledger, changes, source.schema_json, history, begin)
    except NotStoredError as err:
        return err


def _needed_from(runnable: Runnable, source: SourceTable, changes: SpecChanges, history: int | None, emitted: int | None) -> int | None:
    """An instant before which rows count neither in what is filled nor in later windows; null for none.

    A row before it moves the watermark only to where rows after it are not late, so files with such rows alone can be left out.
    """
    slices = divide(runnable.pipeline, Columns.of(source.schema_json).arrow).slices
    if slices is None or emitted is None or history == AXIS_BEGIN or len(slices.pipeline.windows) < len(runnable.pipeline.windows):
        return None
    grids = slices.grids
    if grids.known or grids.intervals:
        return None
    begins = [grids.first_slice_after(emitted)]
    if history is not None:
        begins += [grid.first_start_after(history) for name, grid in grids.named if name in changes.filled]
    return min(begins)


def _versions(runnable: Runnable, source: SourceTable, before: Sequence[Plan]) -> tuple[VersionRange, Reading]:
    """The rows that earlier batches have counted, in the order in which they read them, or by event time where that order is unknown.

    Behind a purge these are the rows that the table holds now.
    """
    as_read: History = "counted" if purged_since_read(before) is None else "current"
    try:
        versions = backfill_versions(runnable, source, before, as_read)
        return versions, check_readable(runnable, source, versions, again=True)
    except ArrivalUnknownError:
        versions = backfill_versions(runnable, source, before, "event_time")
        return versions, check_readable(runnable, source, versions, again=True)


def _check_columns(runnable: Runnable, plan: ApplyPlan) -> None:
    """Refuse a spec whose results or state have a column that is of another type in their table."""
    pipeline, types = runnable.pipeline, Columns.of(plan.source_schema).arrow
    schemas = {"sink": result_schema(pipeline, types), "state": state_schema(pipeline, types)}
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
    for other in changes.others:
        yield f"new generation: {other}"
