"""``windowmill maintain`` and ``savepoint``: drops state that no window needs, tidies tables, keeps named states."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group

from windowmill.checkpoints import delta_tables, ledger
from windowmill.checkpoints.delta_tables import delta_rs_can_write
from windowmill.checkpoints.ledger import Ledger, Notes
from windowmill.checkpoints.own_tables import OwnTable, own_tables
from windowmill.checkpoints.protocol import check_conditional_writes, lease, publish_pending
from windowmill.checkpoints.records import DeltaRecords
from windowmill.checkpoints.state.compaction import NeededPartials, compact
from windowmill.checkpoints.state.tables import is_log
from windowmill.checkpoints.stores import FAILURES, is_table, remedy, table_at
from windowmill.jobs.batch import maintenance_batches as savepoints
from windowmill.jobs.batch.finishing import forget
from windowmill.jobs.batch.loop import LEASE_WAIT_SECONDS, Turn
from windowmill.jobs.batch.maintenance_batches import fold_revisions, keep_periodic
from windowmill.jobs.batch.planning import Acceptance, check_owner, has_unread_rows
from windowmill.jobs.batch.progress import Progress
from windowmill.jobs.commands.summaries import bound, new_progress, titled
from windowmill.jobs.commands.terminal import AcceptChanges, AcceptCode, Answer, AsJson, Spec, duration_of, in_bytes, load_pipeline, show
from windowmill.jobs.runnables import runnable_of
from windowmill.windowing.axis import Duration, to_us
from windowmill.windowing.columnar.known_spans import last_of
from windowmill.windowing.errors import SinkError, SpecError, StateError, first_line
from windowmill.windowing.grids import Grids
from windowmill.windowing.layouts import windows_by_layout
from windowmill.windowing.spec import Pipeline, describe_difference

if TYPE_CHECKING:
    from windowmill.checkpoints.savepoints import Savepoint

Action = Literal["create", "list", "restore", "drop"]
#: Fields of an entry that ``--json`` shows; the others are facts about files.
_SHOWN = ("name", "created_at", "batch", "to_version", "size")


@dataclass(frozen=True, slots=True)
class TableMaintenance:
    """The result of maintenance on one table."""

    table: str
    rows_expired: int = 0
    files_before: int = 0
    files_after: int = 0
    files_vacuumed: int = 0
    files_left: int = 0


def maintain(pipeline: Pipeline, progress: Progress, *, now: bool = False, fold: Duration | None = None) -> Answer:
    """Expire, compact and vacuum. Holds the lease: it waits for a run in progress, and later runs wait for it.

    ``now`` removes files and log entries of older versions whatever their age; readers of these versions lose them. ``fold`` is the age
    from which on only the newest revision of a window stays; null for what the spec says.
    """
    runnable = runnable_of(pipeline)
    places, done = runnable.places, []
    check_conditional_writes(places.root, [runnable.sink_path, places.root], progress.say)
    with lease(places.root, wait_seconds=LEASE_WAIT_SECONDS, on_wait=progress.say):
        ledger = Ledger.open(pipeline)
        check_owner(pipeline, ledger)
        owned = own_tables(runnable)
        publish_pending(ledger, owned)
        forget(runnable, ledger)
        stored = ledger.as_computed(pipeline)
        if stored is None:
            progress.say("  variables in the spec have other values than when the state was made, so none of the state expires")
            folded = None
        else:
            folded = fold_revisions(Turn(replace(runnable, pipeline=stored), ledger, progress), fold or pipeline.fold_revisions)
        held = ledger.held_batch
        kept = {file.path for each in ledger.changes_of(held).values() for file in each.files} if held else set()
        tables = {
            "state": places.state,
            "seen": places.seen,
            "sink": runnable.sink_path,
            "quarantine": places.quarantine,
            "quality": places.quality,
            "source files": places.source_files,
        }
        if runnable.source.pipeline is not None and is_table(places.input) and not has_unread_rows(runnable, ledger):
            # A file of an unread version must not be removed.
            tables["input"] = places.input
        # Files of current rows are small, so that a change of few rows rewrites few others.
        compacting: dict[str, Callable[[str], int]] = {"state": partial(_compact_state, pipeline=stored, ledger=ledger)}
        # Batches merge files of remembered rows, in the order in which they are searched.
        compacting |= {"current": _leave, "seen": _leave, "input": _compact_input}
        if runnable.current_path is not None:
            tables["current"] = runnable.current_path
        for name, path in tables.items():
            with _failing_by_name(name, path):
                if not is_table(path):
                    continue
                if name in owned and _is_of_others(ledger, owned[name]):
                    progress.say(f"  {name} {path}: no batch of this pipeline has written the table, so it stays as it is")
                    continue
                with progress.step(name, f"tidy {path}"):
                    done.append(_tidy(name, path, compacting.get(name, _compact), kept, now=now))
        if now and held is None and is_table(places.held):
            with progress.step("held", f"tidy {places.held}"):
                # A ruling looks for its files by their names, so they are not compacted.
                done.append(_tidy("held", places.held, _leave, (), now=True))
        if is_table(places.ledger):
            with progress.step("ledger", f"tidy {places.ledger}"):
                done.append(_tidy_ledger(places.ledger, now=now))
        Notes(places.finished).expire(ledger.count)
        made, dropped = keep_periodic(runnable, ledger)
    lines = [
        f"{each.table}: {each.rows_expired:,} rows expired, {each.files_before} files now {each.files_after}, "
        f"{each.files_vacuumed} old files removed" + (f", {each.files_left} stay" if each.files_left else "")
        for each in done
    ]
    lines += [folded.describe()] if folded is not None else []
    lines += [f"savepoint {name}: {what}" for what, names in (("made", made), ("dropped", dropped)) for name in names]
    data = [asdict(each) for each in done]
    return Answer(data, "\n".join(lines) or f"{pipeline.pipeline}: no tables yet, nothing to tidy")


def _is_of_others(ledger: Ledger, table: OwnTable) -> bool:
    """Whether the table at the place of ``table``, which exists, is none that the pipeline has written."""
    written = ledger.written().get(table.role)
    if written is None:
        return not ledger.count or table.role == "current"
    there = table.table_version()
    return there is not None and there.table_id != written.table_id


@contextmanager
def _failing_by_name(name: str, path: str) -> Iterator[None]:
    """Raise errors of other libraries with the table's name; diagnosing the damage is left to the next run."""
    try:
        yield
    except FAILURES as err:
        kind = SinkError if name == "sink" else StateError
        raise kind(
            f"{name} {path}: cannot be tidied ({first_line(err)}); its rows have not changed: "
            + remedy(err, "see what `windowmill run` reports, or restore the folder from a copy")
        ) from err


def _compact_state(path: str, *, pipeline: Pipeline | None, ledger: Ledger) -> int:
    if pipeline is None:
        return 0
    if is_log(path):
        return compact(path, ledger.next_commit, ["live rows"]) + _compact(path)
    parts, last = windows_by_layout(pipeline), ledger.last_commit
    known = Grids.of(parts["slices"]).known if "slices" in parts else ()
    needed = NeededPartials.after(last.outcome.emitted if last and last.outcome else None, parts)
    removed = compact(path, ledger.next_commit, list(parts), needed, spans=tuple(map(last_of, known)))
    # Another rewrite would undo the order and the row groups in which nodes over positions are searched.
    return removed + _compact(path) if "live rows" in parts and "positions" not in parts else removed


def _compact(path: str) -> int:
    if delta_rs_can_write(path):
        table_at(path).optimize.compact()
    return 0


def _compact_input(path: str) -> int:
    """Compact to files that are small, as a correction rewrites those with rows of its windows."""
    table_at(path).optimize.compact(target_size=delta_tables.MERGED_BYTES)
    return 0


def _leave(_: str) -> int:
    return 0


def _tidy(name: str, path: str, compact: Callable[[str], int], kept: Collection[str], *, now: bool) -> TableMaintenance:
    """Compact, vacuum and shorten the log of one table; ``compact`` rewrites its files and returns how many rows expired.

    Files ``kept`` are not published yet.
    """
    before = len(table_at(path).file_uris())
    rows = compact(path)
    removed = delta_tables.vacuum(path, kept, 0 if now else delta_tables.RETENTION_HOURS)
    _shorten(name, path, now=now)
    left = len(delta_tables.old_files(path, kept)) if now else 0
    return TableMaintenance(name, rows, before, len(table_at(path).file_uris()), removed, left)


def _shorten(name: str, path: str, *, now: bool) -> None:
    # Runs read the log of the input from the version on that they have read.
    if now and name != "input":
        delta_tables.forget_log(path)
    else:
        delta_tables.shorten_log(path)


def _tidy_ledger(path: str, *, now: bool) -> TableMaintenance:
    """Maintain the ledger. Only its own merge may rewrite files, because their names contain checksums."""
    records = DeltaRecords(path)
    before = len(table_at(path).file_uris())
    records.merge()
    removed = records.vacuum(0) if now else records.vacuum()
    removed += ledger.prune_manifests(path, 0 if now else delta_tables.RETENTION_HOURS)
    _shorten("ledger", path, now=now)
    return TableMaintenance("ledger", 0, before, len(table_at(path).file_uris()), removed)


def maintain_command(
    spec: Spec,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Remove files and log entries of older versions whatever their age, as after a purge. Running queries, time travel and "
            "pipelines that have not read the sink's newest version lose them.",
        ),
    ] = False,
    fold_revisions: Annotated[
        str | None,
        typer.Option(
            help="Keep only the newest revision of a window from this age on, such as `30 days`; by default the spec's fold_revisions."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Drop expired slices, compact and vacuum the pipeline's own tables."""
    fold = None if fold_revisions is None else duration_of("--fold-revisions", fold_revisions)
    show(maintain(load_pipeline(spec), new_progress(), now=now, fold=fold), as_json)


def savepoint_of(pipeline: Pipeline, progress: Progress, action: Action, name: str | None, accepted: Acceptance) -> Answer:
    """Do ``action`` with the savepoint ``name``, which all but ``list`` need."""
    if action == "list":
        if name is not None:
            raise SpecError(f"savepoint list: got the name {name!r}; leave it out, or say create, restore or drop")
        return _list(pipeline)
    if name is None:
        raise SpecError(f"savepoint {action}: a name is missing, as in `windowmill savepoint SPEC {action} before-migration`")
    if action == "restore":
        return _restore(pipeline, progress, name, accepted)
    entry = savepoints.create(pipeline, progress, name) if action == "create" else savepoints.drop(pipeline, progress, name)
    done = "made" if action == "create" else "dropped"
    if entry is None:
        data = {"pipeline": pipeline.pipeline, "status": done, "name": name}
        return Answer(data, f"{pipeline.pipeline}: savepoint {name} {done}: it was damaged")
    text = f"{pipeline.pipeline}: savepoint {name} {done}: batch {entry.batch}, source version {entry.to_version}, {in_bytes(entry.size)}"
    return Answer({"pipeline": pipeline.pipeline, "status": done, **_entry(entry, pipeline)}, text)


def _restore(pipeline: Pipeline, progress: Progress, name: str, accepted: Acceptance) -> Answer:
    done = savepoints.restore(pipeline, progress, name, accepted=accepted)
    plan = done.plan
    differs = None
    if not pipeline.means(plan.definition, plan.meaning):
        differs = describe_difference(plan.definition, pipeline.shown_meaning(), pipeline.meaning())
    data = {
        "pipeline": pipeline.pipeline,
        "status": "restored",
        "name": name,
        "batch": plan.batch,
        "from_version": plan.from_version,
        "to_version": plan.to_version,
    } | ({} if differs is None else {"spec_differs": differs})
    text = (
        f"{pipeline.pipeline}: back at the savepoint {name} (batch {plan.batch} of the ledger); the next run reads the source's versions "
        f"after {plan.to_version}, of which {plan.from_version} had been read last"
    )
    if differs is not None:
        text += f"; the spec meant something else then: {differs}; put the old values into its file before the next run, or apply it again"
    return Answer(data, text)


def _list(pipeline: Pipeline) -> Answer:
    runnable = runnable_of(pipeline)
    entries, damaged = savepoints.listed(runnable).values(), savepoints.damaged(runnable)
    data = [_entry(entry, pipeline) for entry in entries] + [{"name": name, "damaged": why} for name, why in damaged.items()]
    if not data:
        return Answer(data, f"{pipeline.pipeline}: no savepoints; make one by `windowmill savepoint SPEC create NAME`")
    columns = ("name", "made", "batch", "version", "results through", "size")
    table = titled(f"savepoints of {pipeline.pipeline}", columns, ("name", "made", "results through"), narrow=True)
    for entry, row in zip(entries, data, strict=False):
        emitted = "–" if row["emitted"] is None else str(row["emitted"])[:16].replace("T", " ")
        made = entry.created_at[:16].replace("T", " ")
        table.add_row(entry.name, made, f"{entry.batch}", f"{entry.to_version}", emitted, in_bytes(entry.size))
    lines = (f"{name}: damaged; `windowmill savepoint SPEC drop {name}`" for name in damaged)
    return Answer(data, Group(table, *lines))


def _entry(entry: Savepoint, pipeline: Pipeline) -> dict[str, Any]:
    instants = {name: bound(getattr(entry, name), not pipeline.time.integer_axis) for name in ("seen", "emitted")}
    return {name: asdict(entry)[name] for name in _SHOWN} | {"created_at": bound(to_us(entry.at), True)} | instants


def savepoint(
    spec: Spec,
    action: Annotated[Action, typer.Argument(metavar="create|list|restore|drop", help="What to do.")],
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The savepoint; list takes none.")] = None,
    accept_changes: AcceptChanges = False,
    accept_code: AcceptCode = False,
    as_json: AsJson = False,
) -> None:
    """Make, list or drop a named state of the pipeline, or go back to one: the next run reads what came after it."""
    accepted = Acceptance(changes=accept_changes, code=accept_code)
    show(savepoint_of(load_pipeline(spec), new_progress(), action, name, accepted), as_json)
