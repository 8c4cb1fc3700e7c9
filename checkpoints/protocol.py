"""The commit protocol that makes each batch exactly-once: files first, one record, then one commit to each table.

1. Before a batch is planned, :func:`publish_pending` makes the missing commits of the last recorded batch, and the pipeline's tables are
   compared with the ledger (:mod:`windowmill.checkpoints.own_tables`).
2. The batch is computed into data files, which no table contains yet, and validated. A crash up to here leaves only these files.
3. :func:`record` writes one record, the commit point: plan, outcome, and the files of each table. If two attempts race, one wins, and the
   other deletes its files.
4. :func:`publish_pending` makes one commit to each table that lacks the batch's transaction. After a crash the next process makes the
   missing commits; nothing is computed again. The files of a held batch wait for a ruling (:func:`rule`).

The same code runs on Delta tables and, in the simulator, on in-memory tables.

If two processes write one pipeline, the ledger's fence lets only one of them commit. The lease (:func:`lease`) keeps the other from
computing in vain. It also serialises the commits of two JVMs on a local file system, where Delta has no mutual exclusion. The lease is a
lock on the pipeline's folder, which the operating system releases even after ``kill -9``. In object storage the fence rests on conditional
writes; a store without them is refused (:func:`check_conditional_writes`).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from windowmill.checkpoints.batches import Batch, Changes, LastWrite, Outcome, Plan, PurgePlan, RestorePlan
from windowmill.checkpoints.committer import Publication, Rewritten, error_of
from windowmill.checkpoints.current import MadeOfSink, opened
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.delta_tables import actions_of, entry_name
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import (
    EXPENDABLE,
    ORDER,
    REBUILD,
    REMEMBERED,
    BatchCommit,
    OwnTable,
    check_table_version,
    is_made_again,
    is_own,
    refuse_foreign,
    reread,
)
from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.rewriting import ErasedFiles, KeysFile, UndoneFiles
from windowmill.checkpoints.stores import (
    FAILURES,
    create_table,
    endpoint_of,
    filesystem_of,
    is_disk_full,
    is_forbidden,
    is_local,
    store_of,
    table_at,
)
from windowmill.windowing.errors import (
    FencedError,
    ForeignWriteError,
    LeaseTakenError,
    LedgerError,
    MachineError,
    OutOfTurnError,
    StateCorruptError,
    StateMissingError,
    StorageFullError,
    WindowmillError,
    first_line,
)
from windowmill.windowing.paths import normalised
from windowmill.windowing.redaction import redacted

#: Schemes whose clients can create an object on condition that it is absent.
_SCHEMES = ("s3", "s3a", "gs", "abfss", "abfs", "az")
#: Number of races for a version, and of writers in each. In half of them a store that checks before it writes lets several writers win.
_RACES, _WRITERS = 12, 6
_PATIENCE_SECONDS = 60.0
#: Name of the file, below the folder of the pipeline's own tables, that lists the stores that have passed.
MARK = "conditional-writes.json"

#: Stores that have passed in this process.
_PASSED: set[str] = set()


def record(
    ledger: Ledger,
    plan: Plan,
    outcome: Outcome,
    changes: Mapping[str, Changes],
    tables: Mapping[str, OwnTable],
    at: datetime,
    *,
    shared: bool = False,
) -> None:
    """Record a batch whose files have been written; files ``shared`` with other attempts are never deleted.

    Raises ``FencedError`` if another attempt has recorded a batch first; the files are deleted if they are certainly not those of the
    record. Raises ``ForeignWriteError`` if others have changed rows of the tables since :func:`.verify`, and ``SinkError`` if the sink does
    not take the rows.
    """
    begun = False
    try:
        _check_tables(ledger, plan, changes, tables)
        begun = True
        ledger.record(plan, outcome, changes, at)
    except Exception as err:
        lost = _is_lost(ledger, plan)
        if (lost or not begun) and not shared:
            discard_files(changes, tables)
        if lost and not isinstance(err, FencedError):
            raise FencedError(f"ledger {ledger.path}: batch {plan.batch} has been recorded by another attempt; nothing more to do") from err
        raise


def _check_tables(ledger: Ledger, plan: Plan, changes: Mapping[str, Changes], tables: Mapping[str, OwnTable]) -> None:
    """Refuse tables that others have changed since :func:`.verify`, or that do not take the rows."""
    for role, before in ledger.written().items():
        if role in tables:
            refuse_foreign(ledger, tables[role], before)
    for role, each in changes.items():
        tables[role].refuse_misfit(each)
        gone = tables[role].missing(each.files)
        if gone:
            raise error_of(role)(
                f"{role} {tables[role].place}: {gone[0].path}, which batch {plan.batch} has just written, is gone, as after a VACUUM "
                "without retention by others; nothing was recorded, run again"
            )
        if role in ("sink", "current") and role not in ledger.written():
            _refuse_strange(ledger, plan, tables[role])


def _is_lost(ledger: Ledger, plan: Plan) -> bool:
    """Whether it is certain that another attempt has recorded the batch."""
    with suppress(WindowmillError):
        ledger.refresh()
        return ledger.count > plan.batch and ledger.since(plan.batch)[0].attempt != plan.attempt
    return False


def discard_files(changes: Mapping[str, Changes], tables: Mapping[str, OwnTable]) -> None:
    """Delete the files of ``changes``: no record names them, or the record leaves them out."""
    for role, each in changes.items():
        tables[role].remove(each.files)


def publish_pending(ledger: Ledger, tables: Mapping[str, OwnTable], *, accept_changes: bool = False) -> int:
    """Make the commits of the last recorded batch that are missing; returns how many.

    ``accept_changes`` commits on top of changes by others, and accepts a missing, replaced or damaged quarantine or quality table.

    Raises ``SinkError``, ``StateError`` or ``StateCorruptError`` if a commit cannot be made, or a recorded file is gone;
    ``StateMissingError`` or ``ForeignWriteError`` if a table that lacks the commit is not the one that earlier batches have written, or
    others have changed its rows since; ``LedgerBehindError`` if a table contains a later batch than the ledger.
    """
    made = 0
    with reread(ledger):
        batch = ledger.newest
        if batch is None:
            return 0
        changes = ledger.changes_of(batch)
        if batch.status == "held":
            _copy_to_held(tables, changes)
        for publication in _due(ledger, batch, tables, changes):
            try:
                made += _publish(ledger, batch, tables, publication, accept_changes=accept_changes)
            except (StateCorruptError, StateMissingError, ForeignWriteError) as err:
                again = is_made_again(ledger, tables[publication.role], err)
                if not again and not (accept_changes and publication.role in EXPENDABLE):
                    raise
                ledger.note(publication.role, None)
                if again:
                    _make_again(ledger, batch, tables, publication)
                    made += 1
        _clear(batch, tables, changes)
    return made


def outstanding(ledger: Ledger, tables: Mapping[str, OwnTable]) -> list[str]:
    """Roles of the tables that lack a commit of the last recorded batch; changes no table, and notes the commits that it finds."""
    batch, lacking = ledger.newest, list[str]()
    if batch is None:
        return []
    for publication in _due(ledger, batch, tables, ledger.changes_of(batch)):
        found = _found(batch, tables[publication.role], publication)
        if found is None:
            lacking.append(publication.role)
        elif publication.role != "held":
            _note(ledger, batch, tables[publication.role], publication, found)
    return lacking


def rule(
    ledger: Ledger, verdict: str, tables: Mapping[str, OwnTable], at: datetime, *, validation: Changes | None = None, by: str | None = None
) -> Outcome:
    """Record a ruling on the held batch, and publish or drop its files; returns the outcome.

    The verdict ``released``, or that of a repeated validation, publishes the batch; ``discarded`` publishes it without its results;
    ``abandoned`` drops it, and its number is not used again; ``held`` leaves it held. ``validation`` has what a repeated validation adds to
    the quality table; ``by`` says who ruled.
    """
    held = ledger.held_batch
    if held is None:
        raise OutOfTurnError(f"ledger {ledger.path}: no batch is held, so there is nothing to rule on; see `windowmill status`")
    outcome = replace(held.outcome, verdict=verdict)
    ledger.rule(outcome, validation, at, by)
    publish_pending(ledger, tables)
    return outcome


def _due(ledger: Ledger, batch: Batch, tables: Mapping[str, OwnTable], changes: Mapping[str, Changes]) -> list[Publication]:
    """The commits that follow from the records of ``batch``, in order."""
    plan = batch.plan
    note = {"generation": plan.generation, "batch": plan.batch, "attempt": plan.attempt, "verdict": batch.verdict}

    def of(role: str, each: Changes, name: str = "", **more: Any) -> Publication:
        rewrites: Callable[[str, DeltaTable], Rewritten] | None = None  # finds the files with rows that the plan removes
        if role in ("current", "seen"):  # windows do not divide their rows
            more |= {"replaces_all": each.replaces is not None}
        match plan:
            case _ if role == "current":
                rewrites = partial(MadeOfSink.of, sink=tables["sink"].place, view=tables[role].view)
            case RestorePlan() if role in ("sink", "quarantine"):
                rewrites = partial(UndoneFiles.of, plan=plan, role=role)
            case PurgePlan():
                rewrites = partial(ErasedFiles.of, role=role, keys=KeysFile(ledger.path, plan.attempt).read)
        return Publication(role, plan.app_id(name or role), plan.batch, each, note | {"digest": each.digest}, rewrites=rewrites, **more)

    due = [of("quality", changes["quality"])] if "quality" in changes else []
    due += [of("quality", each, f"quality/{n}") for n, each in enumerate(batch.validations, start=1)]
    if batch.status == "committed":
        left_out = ("quality", *batch.left_out)
        due += [of(role, changes[role]) for role in (*ORDER, "held") if role in changes and role in tables and role not in left_out]
    elif batch.status == "held" and "sink" in changes:
        due.append(of("held", replace(changes["sink"], kept=(), removes=(), replaces=None), replaces_all=True))
    return due


def _found(batch: Batch, table: OwnTable, publication: Publication, *, anywhere: bool = False) -> BatchCommit | None:
    """The commit of ``publication`` after the recorded version of the table, or ``anywhere`` in it; null if it has not been made."""
    before = batch.outcome.written.get(publication.role)
    paths = [file.path for file in publication.changes.files]
    after = -1 if before is None or anywhere else before.version
    found = table.commit_of(publication.app_id, publication.batch, after=after, paths=paths)
    if found is None and after >= 0 and publication.role == "current" and table.newest_batch(publication.app_id) == publication.batch:
        return table.commit_of(publication.app_id, publication.batch, after=-1)  # of a table that has been made again
    return found


def _publish(ledger: Ledger, batch: Batch, tables: Mapping[str, OwnTable], publication: Publication, *, accept_changes: bool) -> bool:
    """Make a commit, unless it was made before; returns whether it was made now."""
    role = publication.role
    table, where = tables[role], f"{role} {tables[role].place}"
    found = earlier = _found(batch, table, publication)
    if found is None:
        before = batch.outcome.written.get(role)
        if before is not None:
            check_table_version(table, before)
            if not accept_changes or role in REMEMBERED:
                # Whoever undoes the foreign change later would also undo a commit on top of it.
                refuse_foreign(ledger, table, before)
        elif role in ("sink", "current"):
            _refuse_strange(ledger, batch.plan, table)
        if batch.holds and role not in ("quality", "held"):
            for files, folder in _held_copies(role, publication.changes):  # copied back if they are gone here
                table.fetch(files, f"{tables['held'].place}/{folder}".rstrip("/"))
        else:
            table.fetch(publication.changes.files)
        reach(f"{role}.before")
        try:
            table.commit(publication)
            reach(f"{role}.lost")
        except Exception as err:
            found = _found(batch, table, publication, anywhere=True)
            if found is None:
                raise _storage_error(table, batch, err) or err from err
        found = found or _found(batch, table, publication, anywhere=True)
        if found is None:
            raise error_of(role)(f"{where}: the commit of batch {batch.number} is not in the table; run again")
    if role != "held":
        _note(ledger, batch, table, publication, found)
    if earlier is None:
        reach(f"{role}.after")
    return earlier is None


def _make_again(ledger: Ledger, batch: Batch, tables: Mapping[str, OwnTable], publication: Publication) -> None:
    """Make the current table of the published sink: it is missing, older or elsewhere, or recorded files are gone."""
    table = tables[publication.role]
    whole = MadeOfSink.of(table.place, opened(table.place), sink=tables["sink"].place, view=table.view)
    changes = whole.changes(batch=batch.number, attempt=batch.attempt)
    table.commit(replace(publication, changes=changes, note={**publication.note, "rewritten": True}, replaces_all=True))
    found = _found(batch, table, publication, anywhere=True)
    if found is None:
        raise error_of(table.role)(f"{table.role} {table.place}: the commit of batch {batch.number} is not in the table; run again")
    _note(ledger, batch, table, publication, found)


def _note(ledger: Ledger, batch: Batch, table: OwnTable, publication: Publication, found: BatchCommit) -> None:
    """Check that the commit ``found`` is the recorded one, and note it for the next record."""
    expected = publication.changes.digest
    same = found.note.get("digest") == expected and (found.digest == expected or bool(found.note.get("rewritten")))
    if found.digest is not None and not same:
        raise StateCorruptError(
            f"{table.role} {table.place}: version {found.version} is not the commit that batch {batch.number} recorded (digest "
            f"{found.digest} instead of {expected}); {REBUILD}"
        )
    before = ledger.written().get(table.role)
    if before is not None and before.version >= found.version and _is_made_again(table, before):
        before = None
    if before is None or before.version < found.version:  # else the user has accepted later changes by others
        current = table.table_version() if before is None else None
        table_id = before.table_id if before else current.table_id if current else ""
        ledger.note(table.role, LastWrite(batch.number, table_id, found.version, found.digest))


def _is_made_again(table: OwnTable, before: LastWrite) -> bool:
    """Whether ``table`` is a current table that was made after the one that had been written ``before``."""
    there = table.table_version() if table.role == "current" else None
    return there is not None and there.table_id != before.table_id


def _copy_to_held(tables: Mapping[str, OwnTable], changes: Mapping[str, Changes]) -> None:
    """Copy all files of a held batch, which may have no results: a VACUUM by others would remove files that no commit names."""
    for role in (changes.keys() & tables.keys()) - {"quality"}:  # the spec may want no current table any more
        for files, folder in _held_copies(role, changes[role]):
            tables["held"].fetch(files, tables[role].place, folder)


def _held_copies(role: str, changes: Changes) -> list[tuple[Sequence[DataFile], str]]:
    """Files to copy, and their folders below the table of held results: results in the table itself, others where no VACUUM sees them."""
    return [(changes.adds, ""), (changes.kept, f"_{role}")] if role == "sink" else [(changes.files, f"_{role}")]


def _clear(batch: Batch, tables: Mapping[str, OwnTable], changes: Mapping[str, Changes]) -> None:
    """Delete the files that a ruling has left out, and copies that are no longer needed."""
    if not batch.holds or batch.status == "held":
        return
    for role, each in changes.items():
        if role not in tables:
            continue
        for files, folder in _held_copies(role, each):
            if folder:
                tables["held"].remove(files, folder)
        if (batch.status == "abandoned" and role != "quality") or role in batch.left_out:
            tables[role].remove(each.files)


def _refuse_strange(ledger: Ledger, plan: Plan, table: OwnTable) -> None:
    """Refuse a sink that has appeared since the first batch was planned, and a current table that the pipeline has not made."""
    if table.table_version() is None or is_own(ledger, table):
        return
    since, field = (f" since batch {plan.batch} was planned", "sink.path") if table.role == "sink" else ("", "sink.current")
    raise error_of(table.role)(
        f"{table.role} {table.place}: another pipeline or writer has made a table there{since}; move it away, or choose another {field}, "
        "and run again"
    )


def _storage_error(table: OwnTable, batch: Batch, err: Exception) -> WindowmillError | None:
    """The error to raise for ``err``, if a full disk or a lack of permission has caused it."""
    where = f"{table.role} {table.place}"
    if is_disk_full(err):
        return StorageFullError(f"{where}: no room to publish batch {batch.number} ({first_line(err)}); free some space and run again")
    if is_forbidden(err):
        return error_of(table.role)(
            f"{where}: must not be written ({first_line(err)}); give the user of this run the permission, or mount it writable, and "
            "run again"
        )
    return None


def check_scheme(path: str) -> None:
    """Refuse a place whose scheme is not known to have conditional writes; raises ``MachineError``. Makes no request."""
    if not is_local(path) and urlsplit(path).scheme.lower() not in _SCHEMES:
        raise MachineError(
            f"{redacted(path)}: {urlsplit(path).scheme}:// is not known to keep two writers apart, so a batch could be lost or committed "
            f"twice; use a local folder, or one of {', '.join(f'{name}://' for name in _SCHEMES)}"
        )


def check_conditional_writes(root: str, places: Sequence[str], say: Callable[[str], None]) -> None:
    """Refuse object storage that lets two writers create the same version of a table.

    Writers race for versions of a small table below each place, unless its store has passed before: in this process, or according to
    the file :data:`MARK` below ``root``.

    Raises ``MachineError`` if two writers have created the same version, or the store cannot be used.
    """
    waiting = {_store(place): place for place in places if not is_local(place)}
    if not waiting.keys() - _PASSED:
        return
    mark = None if is_local(root) else f"{root}/{MARK}"
    _PASSED.update(_recorded(mark))
    unknown = waiting.keys() - _PASSED
    for store in unknown:
        say(f"{redacted(store)}: testing whether it keeps two writers apart")
        _race(waiting[store])
    _PASSED.update(unknown)
    if unknown and mark:
        files, path = filesystem_of(mark)
        with suppress(OSError, pa.ArrowException), files.open_output_stream(path) as stream:
            stream.write(json.dumps(sorted(_PASSED)).encode())


def _store(place: str) -> str:
    """Name of the bucket or container of ``place``, and of the server that has it."""
    scheme, _, rest = normalised(place).partition("://")
    endpoint = endpoint_of(place)
    return f"{scheme}://{rest.partition('/')[0]}" + (f" at {endpoint}" if endpoint else "")


def _recorded(mark: str | None) -> set[str]:
    if mark is None:
        return set()
    files, path = filesystem_of(mark)
    try:
        with files.open_input_stream(path) as stream:
            return set(map(str, json.loads(stream.read())))
    except (OSError, pa.ArrowException, ValueError, TypeError):
        return set()


def _race(place: str) -> None:
    # Readers of a Delta table ignore folders whose names begin with an underscore.
    probe = f"{place}/_windowmill-{uuid.uuid4().hex[:12]}"
    try:
        create_table(probe, pa.schema([("n", pa.int64())]), mode="error")
        stale = table_at(probe)
        tables = [table_at(probe) for _ in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as threads:
            for number in range(1, _RACES + 1):
                start = Barrier(_WRITERS)
                won = [name for name in threads.map(lambda table, start=start: _commit(table, start), tables) if name]
                _check(place, probe, number, won)
                for table in tables:
                    table.update_incremental()
        # A commit to a version that has long existed.
        _check(place, probe, 1, [_writer(probe, 1), *filter(None, [_commit(stale)])])
    except FAILURES as err:
        raise MachineError(f"{redacted(place)}: cannot be used ({first_line(err)}); {_advice(err)}") from err
    finally:
        with suppress(OSError, pa.ArrowException):
            files, path = filesystem_of(probe)
            files.delete_dir(path)


def _commit(table: DeltaTable, start: Barrier | None = None) -> str | None:
    """Commit the next version; returns the name of the commit, or none if another writer was first."""
    name = uuid.uuid4().hex
    once = CommitProperties(max_commit_retries=0, custom_metadata={"writer": name})
    if start:
        start.wait(_PATIENCE_SECONDS)
    try:
        table.create_write_transaction([], "append", table.schema(), commit_properties=once)
    except CommitFailedError:
        return None
    return name


def _writer(probe: str, version: int) -> str:
    with store_of(probe).open_input_file(entry_name(version)) as stream:
        return next(str(action["commitInfo"]["writer"]) for action in actions_of(stream.read()) if "commitInfo" in action)


def _check(place: str, probe: str, version: int, won: Sequence[str]) -> None:
    if len(won) > 1 or (won and _writer(probe, version) != won[0]):
        raise MachineError(
            f"{redacted(place)}: the store let {max(len(won), 2)} writers create one version of a table, so a batch could be lost; use "
            "one with conditional writes (If-None-Match), as S3, Google Cloud Storage, Azure and current versions of MinIO and Ceph have"
        )


def _advice(err: Exception) -> str:
    text = str(err)
    if "URL scheme is not allowed" in text:
        return "set AWS_ALLOW_HTTP=true if its address is to be http://"
    if "169.254." in text or "Missing" in text or "credential" in text.lower():
        return "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name variables in storage_options"
    return "check its address, credentials and permissions (docs/writing-a-pipeline.md, 'Object storage')"


@contextmanager
def lease(root: str, *, wait_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the lease of the pipeline whose folder is ``root``; object storage has no lease, only the ledger's fence.

    Waits for another run to end; calls ``on_wait`` once, with a message, when it begins to wait.

    Raises ``LeaseTakenError`` if the other run has not ended in time; ``LedgerError`` if the folder cannot be written.
    """
    path = local_path(root)
    if path is None:
        yield
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
        # Lock the folder itself: a lock file could be removed, and a second process could lock its replacement.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        holder_file = path / ".lease"
        holder_file.touch()
    except OSError as err:
        raise LedgerError(f"{root}: cannot be written ({err.strerror}); correct sink.path, or the permissions of its folder") from err
    try:
        deadline, waiting = time.monotonic() + wait_seconds, False
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = _holder(holder_file)
                if time.monotonic() >= deadline:
                    raise LeaseTakenError(
                        f"{root}: another run is under way ({holder}); wait for it to end, or stop it, and run again"
                    ) from None
                if not waiting:
                    on_wait(f"another run of this pipeline is under way ({holder}); waiting for it to end")
                    waiting = True
                time.sleep(0.2)
        holder_file.write_text(f"process {os.getpid()}")
        yield
    finally:
        os.close(folder)


def _holder(file: Path) -> str:
    try:
        return file.read_text().strip() or "unknown process"
    except OSError:
        return "unknown process"
