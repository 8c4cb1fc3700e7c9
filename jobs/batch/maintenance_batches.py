"""Batches of maintenance: folds old revisions, makes savepoints of a pipeline, and restores one.

Folding removes rows that later revisions have superseded. The latest view stays as it is, and so does the latest view as of the last folded
batch or of any later one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from windowmill.checkpoints import savepoints, seen
from windowmill.checkpoints.batches import (
    BackfillPlan,
    Batch,
    Changes,
    FoldPlan,
    Outcome,
    Plan,
    PurgePlan,
    RestatePlan,
    RestorePlan,
    effective_batches,
)
from windowmill.checkpoints.committer import ReplacedRange, beyond_delta_rs, widens
from windowmill.checkpoints.data_files import DataFile, FileWriter, rows_of, write_files
from windowmill.checkpoints.delta_tables import files_of, newest
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.rewriting import UndoneFiles
from windowmill.checkpoints.savepoints import Savepoint, replaced_files
from windowmill.checkpoints.state.tables import replacing
from windowmill.checkpoints.stores import is_table, table_at
from windowmill.jobs.batch import planning
from windowmill.jobs.batch.corrections import superseded
from windowmill.jobs.batch.counted_rows import table_rows
from windowmill.jobs.batch.job import state_schema
from windowmill.jobs.batch.loop import Turn, leased
from windowmill.jobs.batch.progress import CommittedBatch, Progress
from windowmill.jobs.sources.base import SourceTable
from windowmill.jobs.sources.columns import Columns
from windowmill.jobs.sources.delta_log import DeltaSource
from windowmill.jobs.sources.reading import VersionRange, check_readable, next_change
from windowmill.jobs.sources.table_rows import changed_rows, queried
from windowmill.windowing.axis import Duration
from windowmill.windowing.columnar.added_columns import RETRACTED
from windowmill.windowing.columnar.rows import are_among
from windowmill.windowing.errors import NonAppendCommitError, OutOfTurnError, RefusedError, SavepointError, SourceError, first_line
from windowmill.windowing.fields import SavepointPolicy
from windowmill.windowing.spec import Pipeline, describe_difference

_PLACE = ("window", "window_start", "window_end", "trigger", "revision", "batch")
#: Prefix of the names of savepoints that maintenance makes.
_PERIODIC = "auto-"


@dataclass(frozen=True)
class Folded:
    """The result of a fold: it removed ``rows`` rows of batches through ``through``."""

    batch: int
    rows: int
    through: int

    def describe(self) -> str:
        """The result in a line.

        >>> Folded(7, 1200, 5).describe()
        'revisions: 1,200 rows folded (batch 7), of batches through 5'
        """
        return f"revisions: {self.rows:,} row{'' if self.rows == 1 else 's'} folded (batch {self.batch}), of batches through {self.through}"


def fold_revisions(turn: Turn, age: Duration | None) -> Folded | None:
    """Remove rows superseded more than ``age`` ago; null if there are none, a batch is held, or delta-rs cannot write the sink."""
    runnable, ledger, progress = turn.runnable, turn.ledger, turn.progress
    if age is None or ledger.held_batch is not None or not is_table(runnable.sink_path):
        return None
    limit = datetime.now(UTC) - timedelta(microseconds=age.elapsed())
    # The newest batch that was committed before that.
    through = max((batch.number for batch in ledger.batches() if batch.status == "committed" and batch.ended_at <= limit), default=None)
    if through is None:
        return None
    table = newest(runnable.sink_path)
    if all(file.get("max.revision") == 0 for file in files_of(table)):
        return None
    reason = beyond_delta_rs("sink", table, Changes(removes=("*",)))
    if reason is not None:
        progress.say(f"  sink {runnable.sink_path}: {reason}, so its revisions are not folded")
        return None
    with progress.step("fold", f"revisions of batches through {through}"):
        gone = _superseded(runnable, table, through)
        return _carried_out(turn, table, gone, through) if len(gone) else None


def _superseded(runnable: Runnable, table: DeltaTable, through: int) -> pa.Table:
    """Keys of the rows of batches through ``through`` that later ones of these have superseded, or that are retracted."""
    schema = pa.schema(table.schema().to_arrow())
    names = [*runnable.pipeline.keys, *_PLACE]
    # A column that the table lacks is read as nulls.
    types = {name: schema.field(name).type for name in names} | {RETRACTED: pa.bool_()}
    here = {name: name for name in types if name in schema.names}
    empty = pa.schema(list(types.items())).empty_table()
    newer = pa.concat_tables([empty, *queried(table, types, f"revision > 0 AND batch <= {through}", here)])
    if not len(newer):
        return newer.select(names)
    shown = pa.concat_tables([empty, *queried(table, types, f"batch <= {through}", here)])
    return shown.take(superseded(runnable.pipeline, shown)).select(names)


def _carried_out(turn: Turn, table: DeltaTable, gone: pa.Table, through: int) -> Folded:
    """Record and publish the batch that removes the rows ``gone``: it replaces the range of window ends that contains them."""
    plan, sink = _plan(turn.ledger, through), turn.runnable.sink_path
    bounds = pc.min_max(gone.column("window_end").cast(pa.int64())).as_py()
    replaced = ReplacedRange.of(sink, table, (bounds["min"] - 1, bounds["max"]))

    def changes() -> Iterator[tuple[str, Changes]]:
        adds = write_files(sink, replaced.schema, _staying(replaced, gone), batch=plan.batch, attempt=plan.attempt)
        yield "sink", Changes(adds)
        kept = replaced.keep(replaced.partly, batch=plan.batch, attempt=plan.attempt, task=1)
        yield "sink", Changes(adds, kept, replaced.files, (replaced.begin, replaced.end))

    turn.rewrite(plan, Outcome(plan.seen, plan.emitted, "passed", watermark=plan.watermark, shown=plan.shown), changes(), quietly=True)
    return Folded(plan.batch, len(gone), through)


def _plan(ledger: Ledger, through: int) -> FoldPlan:
    last = ledger.last_commit
    assert last is not None  # some batch has been folded
    known = {field.name: getattr(last.plan, field.name) for field in fields(Plan)}
    known |= {"batch": ledger.count, "attempt": uuid.uuid4().hex[:12], "now_us": time.time_ns() // 1_000, "snapshot": None}
    known |= {"from_version": last.to_version, "seen": last.outcome.seen, "emitted": last.outcome.emitted}
    known |= {"watermark": last.outcome.watermark, "shown": last.outcome.shown}
    return FoldPlan(**known, through=through)


def _staying(replaced: ReplacedRange, gone: pa.Table) -> Iterator[pa.Table]:
    """The rows of the range ``replaced`` without those ``gone``."""
    names = gone.column_names
    gone = gone.cast(pa.schema([replaced.schema.field(name) for name in names]))
    for rows in rows_of(replaced.table, replaced.files, replaced.schema):
        within = rows.filter(replaced.within(rows))
        yield within.filter(pa.array(~are_among(within, gone, names)))


def _now() -> datetime:
    return datetime.now(UTC)


def create(pipeline: Pipeline, progress: Progress, name: str) -> Savepoint:
    """Make the savepoint ``name`` of the pipeline as it is now; raises ``SavepointError`` if the name is taken.

    Raises ``OutOfTurnError`` if no batch has been committed, or one is held.
    """
    savepoints.check_name(name)
    with leased(pipeline, progress) as turn:
        if name in savepoints.savepoint_names(turn.runnable.places.savepoints):
            raise SavepointError(f"savepoint {name}: {turn.runnable.name} has one of this name; drop it, or choose another name")
        return _create(turn.runnable, turn.ledger, name)


def keep_periodic(runnable: Runnable, ledger: Ledger) -> tuple[list[str], list[str]]:
    """Make a savepoint if it is due by the spec, unless a batch is held, and drop old ones, under the lease; returns the names of both."""
    policy, folder, now = runnable.pipeline.savepoints, runnable.places.savepoints, _now()
    if policy is None:
        return [], []
    own = [entry for name, entry in listed(runnable).items() if name.startswith(_PERIODIC)]
    made = list[str]()
    last = own[-1] if own else None
    if ledger.held_batch is None and ledger.last_commit is not None and _is_due(policy, last, ledger, now):
        own.append(_create(runnable, ledger, f"{_PERIODIC}{now:%Y%m%dT%H%M%SZ}"))
        made = [own[-1].name]
    dropped = [entry.name for entry in own[: -policy.keep]]
    for name in dropped:
        savepoints.drop(folder, name)
    return made, dropped


def _is_due(policy: SavepointPolicy, last: Savepoint | None, ledger: Ledger, now: datetime) -> bool:
    if last is None:
        return True
    age = (now - last.at) / timedelta(microseconds=1)
    # A savepoint from the future was made by a clock that was ahead.
    return not 0 <= age < policy.every.elapsed() and last.batch < ledger.next_commit - 1


def _create(runnable: Runnable, ledger: Ledger, name: str) -> Savepoint:
    last = ledger.last_commit
    if ledger.held_batch is not None or last is None:
        what = "has committed no batch" if last is None else f"holds batch {ledger.count - 1}"
        raise OutOfTurnError(f"pipeline {runnable.name}: {what}; `windowmill run` first, or release, discard or abandon it")
    newest = next(batch for batch in reversed(ledger.since(last.number)) if batch.status == "committed")
    facts = {
        "name": name,
        "created_at": _now().isoformat(),
        "pipeline": runnable.name,
        "batch": newest.number,
        "generation": ledger.generation,
        "to_version": last.plan.to_version,
        "source_id": last.plan.source_id,
        "source_mark": last.plan.source_mark,
        "seen": last.outcome.seen,
        "emitted": last.outcome.emitted,
        "meaning": last.plan.meaning,
        "modules": last.plan.modules,
        "totals": ledger.totals,
    }
    return savepoints.save(runnable.places.savepoints, runnable.places.state, runnable.places.seen, facts)


def listed(runnable: Runnable) -> Mapping[str, Savepoint]:
    """The pipeline's savepoints by name, oldest first, without those that can only be dropped."""
    return savepoints.savepoints_in(runnable.places.savepoints)[0]


def damaged(runnable: Runnable) -> Mapping[str, str]:
    """By name, what is wrong with those savepoints that can only be dropped."""
    return savepoints.savepoints_in(runnable.places.savepoints)[1]


def drop(pipeline: Pipeline, progress: Progress, name: str) -> Savepoint | None:
    """Remove the savepoint ``name``; returns what it was, null if it was damaged."""
    with leased(pipeline, progress) as turn:
        entry = None if name in damaged(turn.runnable) else _named(turn.runnable, name)
        savepoints.drop(turn.runnable.places.savepoints, name)
        return entry


def restore(
    pipeline: Pipeline, progress: Progress, name: str, *, accepted: planning.Acceptance = planning.NOTHING_ACCEPTED
) -> CommittedBatch:
    """Restore the savepoint ``name``: the next run reads what came after it.

    The state is the savepoint's again, and rows that later batches have published or quarantined go. All of it is one batch: before its
    record nothing has changed, after it commits follow from the record.
    """
    with leased(pipeline, progress, changes=accepted.changes) as turn:
        plan, entry, meant, applied = _planned(turn, name, accepted)
        turn.announce(plan)
        then = next(batch.outcome for batch in turn.ledger.since(entry.batch) if batch.number == entry.batch)
        outcome = Outcome(entry.seen, entry.emitted, "passed", compute={"engine": "local"}, watermark=then.watermark, shown=then.shown)
        changes = _changes(turn.runnable, turn.ledger, plan, entry, meant, applied)
        return turn.rewrite(plan, outcome, changes, f"the state and position of batch {entry.batch}")


def _named(runnable: Runnable, name: str) -> Savepoint:
    found, broken = savepoints.savepoints_in(runnable.places.savepoints)
    if name in broken:
        raise SavepointError(broken[name])
    if name not in found:
        known = f"it has {', '.join(found)}" if found else "it has none; `windowmill savepoint … create` makes one"
        raise SavepointError(f"savepoint {name}: {runnable.name} has no such savepoint; {known}")
    return found[name]


def _planned(turn: Turn, name: str, accepted: planning.Acceptance) -> tuple[RestorePlan, Savepoint, Pipeline, list[Batch]]:
    """The plan, the savepoint, the pipeline as it was then, and the batches whose replaced rows are restored."""
    runnable, pipeline, ledger = turn.runnable, turn.pipeline, turn.ledger
    entry, last = _named(runnable, name), ledger.last_commit
    planning.refuse_held(runnable, ledger, "restore")
    batches = ledger.batches()
    _check_savepoint(ledger, entry, batches)
    assert last is not None  # the savepoint is of a batch of this ledger
    own = next(batch.plan for batch in batches if batch.number == entry.batch)
    meant = _meant(pipeline, ledger, own)
    undone = [batch for batch in effective_batches(batches, in_sink=True) if batch.number > entry.batch]
    _check_undone(meant, entry, undone)
    applied = min((batch.number for batch in undone if batch.plan.changes_spec), default=ledger.count)
    # Rows of later ones mean something else: what these have replaced comes back instead.
    backfills = [batch.number for batch in undone if batch.is_backfill and batch.number < applied]
    source = planning.source_of(runnable, ledger)
    planning.check_tables(runnable, ledger, accepted)
    _check_source(runnable, source, entry, last.plan.to_version, turn.progress)
    pinned = planning.pinned(meant, ledger, source, VersionRange(last.plan.to_version, entry.to_version))
    plan = RestorePlan(
        **pinned | {"meaning": own.meaning, "definition": own.definition, "modules": entry.modules, "source_schema": own.source_schema},
        seen=last.outcome.seen,
        savepoint=name,
        kept_batch=entry.batch,
        spared=backfills,
        through=entry.emitted,
        totals=entry.totals,
    )
    later = [batch for batch in undone if batch.plan.recomputes and batch.number >= applied and "sink" not in batch.left_out]
    return plan, entry, meant, later


def _meant(pipeline: Pipeline, ledger: Ledger, own: Plan) -> Pipeline:
    """The pipeline as it was when it made the batch of ``own``; refuses a spec that means neither this nor what runs now."""
    if pipeline.means(own.definition, own.meaning):
        return pipeline
    ledger.check_meaning(pipeline)
    try:
        meant = pipeline.meaning_as(own.definition)
    except ValueError:
        meant = None
    if meant is None or not meant.means(own.definition, own.meaning):
        differs = describe_difference(own.definition, pipeline.shown_meaning(), pipeline.meaning())
        raise SavepointError(
            f"pipeline {pipeline.pipeline}: what the spec meant at batch {own.batch} needs variables that it does not name any more: "
            f"{differs}; put the old ones back, and restore again"
        )
    return meant


def _check_savepoint(ledger: Ledger, entry: Savepoint, batches: list[Batch]) -> None:
    where = f"savepoint {entry.name}"
    if entry.generation != ledger.generation:
        raise SavepointError(f"{where}: it is of another ledger than {ledger.path}, which has been created since; drop it")
    if entry.batch not in {batch.number for batch in effective_batches(batches, restorations=True)}:
        raise SavepointError(
            f"{where}: batch {entry.batch}, of which it is, was undone by a restoration since, and its rows are gone; restore an older one"
        )
    for batch in batches:  # also a fold that a restoration has undone: that has brought no row back
        match batch.plan:
            case FoldPlan(through=through) if through > entry.batch:
                raise SavepointError(
                    f"{where}: batch {batch.number} has folded revisions of batches through {through} since, so rows that it would show "
                    "again are gone; restore a later one"
                )


def _check_undone(pipeline: Pipeline, entry: Savepoint, undone: list[Batch]) -> None:
    """Refuse to undo batches whose rows cannot be distinguished from those that they replaced."""
    plain = pipeline.emit == "final" and all(window.on_grid for window in pipeline.windows)
    for batch in undone:
        match batch.plan:
            case PurgePlan():
                why = (
                    f"batch {batch.number} has purged keys since, whose rows a restoration would bring back; drop it, and restore a "
                    "later one"
                )
            case RestatePlan(late=late, lookup=lookup) if late or lookup is not None:
                what, how = ("as too late", "--late") if late else ("without a match", "--lookup")
                why = (
                    f"batch {batch.number} has restated rows that were quarantined {what} ({how}), which the savepoint does not hold; "
                    "restore a later one, or rebuild in a new sink"
                )
            case BackfillPlan() if not plain:
                why = (
                    f"the backfill of batch {batch.number} has replaced rows that were published before, and which of them is not known "
                    "where windows are not on a grid, or are revised; restore a later savepoint, or rebuild in a new sink"
                )
            case _:
                continue
        raise SavepointError(f"savepoint {entry.name}: {why}")


def _check_source(runnable: Runnable, source: SourceTable, entry: Savepoint, through: int, progress: Progress) -> None:
    """Refuse a source that no longer has what the next runs would read."""
    try:
        _check_versions(runnable, source, entry.to_version, through, progress)
    except SourceError as err:
        what = first_line(err).removeprefix(f"source {source.path}: ").partition(";")[0]
        if not isinstance(err, RefusedError):
            raise  # it may pass
        if not isinstance(err, NonAppendCommitError):
            raise SavepointError(
                f"savepoint {entry.name}: the source {source.path} no longer gives what came after version {entry.to_version} ({what}); "
                "restore a later savepoint"
            ) from err
        next_steps = "restore a later savepoint, or rebuild in a new sink"
        if source.is_restatable:
            next_steps = (
                "set source.changes to restate, so that runs after the restoration take it up in its turn, and restore again; or restore a "
                "later savepoint"
            )
        raise SavepointError(f"savepoint {entry.name}: {what} after it was made; {next_steps}") from err


def _check_versions(runnable: Runnable, source: SourceTable, after: int, through: int, progress: Progress) -> None:
    """Raise as the runs would that read the versions (``after``, ``through``]: appended rows, and in their turn changed ones."""
    restatable = source if runnable.source.changes == "restate" and isinstance(source, DeltaSource) else None
    while after < through:
        change = None if restatable is None else next_change(restatable, after)
        until = through if change is None else min(through, change[0] - 1)
        if until > after:
            check_readable(runnable, source, VersionRange(after, until), again=False)
        if restatable is None or change is None or until == through:
            return
        changed_rows(table_rows(runnable.pipeline, restatable, progress), *change, [runnable.pipeline.time.column])
        after = change[1]
        check_readable(runnable, source, VersionRange(after, after, after), again=False)


def _changes(
    runnable: Runnable, ledger: Ledger, plan: RestorePlan, entry: Savepoint, meant: Pipeline, applied: list[Batch]
) -> Iterator[tuple[str, Changes]]:
    places = runnable.places
    built = savepoints.restored(places.savepoints, entry, places.state, batch=plan.batch, attempt=plan.attempt)
    if built is None and is_table(places.state):
        built = Changes.of(_emptied_schema(places.state, entry, meant, plan.source_schema))
    state = replacing(places.state, built)
    if state is not None:
        yield "state", state
    remembered = seen.restored(places.savepoints, entry, places.seen, batch=plan.batch, attempt=plan.attempt)
    if remembered is not None:
        yield "seen", remembered
    for role, path in (("sink", runnable.sink_path), ("quarantine", places.quarantine)):
        own = {} if role != "sink" else {each.number: found for each in applied if (found := ledger.changes_of(each).get("sink"))}
        undone = _undone(role, path, plan, places.savepoints, own)
        if undone is not None:
            yield role, undone


def _emptied_schema(path: str, entry: Savepoint, meant: Pipeline, source_schema: str) -> pa.Schema:
    """The state's columns behind the restoration of a savepoint that has none.

    The table is of a batch since, by another spec: it may lack columns of the one that comes back. Raises ``SavepointError`` for a type
    that its spec cannot use.
    """
    written = Changes.of(state_schema(meant, Columns.of(source_schema).seen_by(meant).arrow)).schema
    assert written is not None
    stored, own = (pa.schema(each.to_arrow()) for each in (newest(path).schema(), Schema.from_json(written)))
    known = {field.name.lower(): field.type for field in stored}
    for field in own:
        kind = known.get(field.name.lower(), field.type)
        if kind != field.type and not widens(field.type, kind):
            raise SavepointError(
                f"savepoint {entry.name}: the column {field.name} of the state {path} is of type {kind} since, and was {field.type}; "
                "restore a later savepoint, or rebuild in a new sink"
            )
    return pa.schema([*stored, *(field for field in own if field.name.lower() not in known)])


def _undone(role: str, path: str, plan: RestorePlan, folder: str, replacing: Mapping[int, Changes]) -> Changes | None:
    """The changes that remove the rows of later batches from a table and bring back those that they replaced; null if there are none."""
    if not is_table(path):
        return None
    table = table_at(path)
    files = UndoneFiles.of(path, table, plan, role=role)
    if not files.files and not any(each.removes for each in replacing.values()):
        return None
    reason = beyond_delta_rs(role, table, Changes(removes=files.files))
    if reason is not None:
        raise SavepointError(
            f"savepoint {plan.savepoint}: {role} {path}: {reason}, so rows of later batches cannot be removed from it; drop the feature "
            "(ALTER TABLE … DROP FEATURE), and restore again"
        )
    back = _brought_back(folder, path, files, plan, replacing)
    return Changes(kept=(*files.keep(batch=plan.batch, attempt=plan.attempt), *back), removes=files.files)


def _brought_back(folder: str, path: str, files: UndoneFiles, plan: RestorePlan, replacing: Mapping[int, Changes]) -> tuple[DataFile, ...]:
    """Write the rows that stay of those that batches of a changed spec have replaced."""
    with FileWriter(path, files.schema, batch=plan.batch, attempt=plan.attempt, task=1) as writer:
        for number, changes in replacing.items():
            kept, names = replaced_files(folder, number)
            if len(names) != len(changes.removes):
                raise SavepointError(
                    f"savepoint {plan.savepoint}: batch {number} has replaced rows since, by a changed spec, and {len(names)} of their "
                    f"{len(changes.removes)} files are in {kept}; restore a later savepoint, or rebuild in a new sink"
                )
            assert changes.replaces is not None or not names
            begin, end = changes.replaces or (0, 0)
            replaced = ReplacedRange(path, files.schema, begin, end, changes.windows)
            for rows in rows_of(kept, names, files.schema):
                writer.write(rows.filter(pc.and_(replaced.within(rows), files.stays(rows))))
    return writer.close()
