"""Compares the pipeline's own tables with the ledger: each is the one that the last batch left, and others have not changed its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from windowmill.checkpoints.batches import LastWrite
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import Change, OwnTable, TableVersion
from windowmill.checkpoints.plans import Plan
from windowmill.windowing.errors import (
    FencedError,
    ForeignWriteError,
    LedgerBehindError,
    SinkRefusedError,
    StateCorruptError,
    StateMissingError,
    WindowmillError,
)

REBUILD = "restore the folder from a copy, or give the pipeline a new sink and backfill it there"
ACCEPT = "windowmill run --accept-changes"
#: No batch reads these two tables, so a pipeline can go on without their contents.
EXPENDABLE = ("quarantine", "quality")
#: The tables to which a batch commits, in this order; a batch that is held, abandoned or discarded leaves some out.
ORDER = ("quality", "sink", "quarantine", "state")


def verify(ledger: Ledger, tables: Mapping[str, OwnTable], *, accept_changes: bool = False) -> None:
    """Compare ``tables`` with the ledger, after :func:`windowmill.checkpoints.protocol.publish_pending`.

    Parameters
    ----------
    accept_changes
        Whether to accept rows that others added to or removed from the sink, quarantine or quality table, and a missing or replaced
        quarantine or quality table. Changes to the state are never accepted.

    Raises
    ------
    StateMissingError
        If a table is missing, or older than the version that the last batch left.
    ForeignWriteError
        If a table was replaced, or someone else changed its rows.
    StateCorruptError
        If the recorded version holds another commit than the one recorded.
    LedgerBehindError
        If a table contains a batch that the ledger does not, or exists although the ledger is empty.
    SinkRefusedError
        If the sink exists although the ledger is empty.
    """
    with reread(ledger):
        if not ledger.count:
            _refuse_orphans(ledger, tables)
        for role, written in ledger.written().items():
            _verify_table(ledger, tables[role], written, accept_changes=accept_changes and role != "state")


def verify_table_versions(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    """Look cheaply, where there is nothing new to do, whether sink and state are still there; raises as :func:`verify`."""
    with reread(ledger):
        for role in ("sink", "state"):
            written = ledger.written().get(role)
            # One small read of the last write's log entry shows table and commit; where it has been cleaned up, the table is opened.
            if written is not None and not _is_last_write(tables[role].change_at(written.version), written):
                check_table_version(tables[role], written)


def _is_last_write(change: Change | None, written: LastWrite) -> bool:
    return change is not None and written.digest in (None, change.digest)


def _refuse_orphans(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    for table in (tables[role] for role in ORDER):
        current = table.table_version()
        if current is None:
            continue
        if table.role == "sink":
            raise SinkRefusedError(
                f"sink {table.place}: a table is there already (version {current.version}), but the pipeline's ledger {ledger.path} is "
                "empty; restore the ledger, or choose another sink.path"
            )
        raise LedgerBehindError(
            f"{table.role} {table.place}: a table is there already (version {current.version}), but the pipeline's ledger {ledger.path} "
            "is empty; restore the ledger, or choose another sink.path and checkpoints.path and backfill there"
        )


def _verify_table(ledger: Ledger, table: OwnTable, written: LastWrite, *, accept_changes: bool) -> None:
    if accept_changes and table.role in EXPENDABLE and not _goes_on_from(table.table_version(), written):
        ledger.note(table.role, None)
        return
    current = check_table_version(table, written)
    changes = list(table.changes_after(_since(ledger, table.role, written)))
    for change in changes:
        batch = _batch_of(change, ledger)
        # An abandoned batch has published validation results, but no rows.
        if batch is not None and (batch >= ledger.count or (table.role != "quality" and ledger.is_abandoned(batch))):
            raise LedgerBehindError(
                f"{table.role} {table.place}: version {change.version} holds batch {batch}, which the ledger {ledger.path} does not "
                "contain or has abandoned; restore the newest copy of the ledger, or give the pipeline a new sink and backfill it there"
            )
    foreign = foreign_change(ledger, changes)
    if foreign is None:
        return
    if not accept_changes:
        raise refused(table, written, foreign)
    ledger.note(table.role, replace(written, version=current.version, digest=None))


def _since(ledger: Ledger, role: str, written: LastWrite) -> int:
    """The version after which others may have changed the table: the last batch found its own place among their commits."""
    before = ledger.newest.outcome.written.get(role) if ledger.newest else None
    if before is not None and written.digest is not None:
        return before.version
    # A table made by the last batch. Of a table whose past was given up, what came before does not count.
    return -1 if written.digest is not None and role in ("sink", "state") else written.version - (written.digest is not None)


def check_table_version(table: OwnTable, written: LastWrite) -> TableVersion:
    """The version of ``table``; refuses one that is not the one last ``written``, or is older."""
    current, place = table.table_version(), f"{table.role} {table.place}"
    remedy = f"restore the folder from a copy, or accept it by `{ACCEPT}`" if table.role in EXPENDABLE else REBUILD
    if current is None:
        raise StateMissingError(f"{place}: there is no table, but batch {written.batch} left version {written.version} of it; {remedy}")
    if current.table_id != written.table_id:
        raise ForeignWriteError(
            f"{place}: this is another table (Delta id {current.table_id}), not the one that batch {written.batch} wrote "
            f"({written.table_id}); put the old table back: {remedy}"
        )
    if current.version < written.version:
        raise StateMissingError(
            f"{place}: is at version {current.version}, but batch {written.batch} left version {written.version}; its log was "
            f"truncated, or restored from an older copy: {remedy}"
        )
    change = table.change_at(written.version) if written.digest else None
    if change is not None and change.digest != written.digest:
        raise StateCorruptError(
            f"{place}: version {written.version} is not the commit that batch {written.batch} recorded (digest {change.digest} instead of "
            f"{written.digest}); {REBUILD}"
        )
    return current


def _goes_on_from(current: TableVersion | None, written: LastWrite) -> bool:
    """Whether the existing table is the one that was ``written``, at that version or a later one."""
    return current is not None and written.table_id == current.table_id and current.version >= written.version


def foreign_change(ledger: Ledger, changes: Iterable[Change]) -> Change | None:
    """The first of the ``changes`` in which someone else added or removed rows; none if that has been undone."""
    foreign, every = Counter[str](), Counter[str]()
    first: Change | None = None
    for change in changes:
        if _batch_of(change, ledger) is not None:
            continue
        every.update(change.added | change.moved_in)
        every.subtract(change.removed | change.moved_out)
        if "windowmill" not in change.note and (change.added or change.removed):
            foreign.update(change.added)
            foreign.subtract(change.removed)
            first = first or change
    # After a RESTORE the table has the same files as before the foreign change, or as before a rewrite that followed the last batch.
    return first if any(foreign.values()) and any(every.values()) else None


def _batch_of(change: Change, ledger: Ledger) -> int | None:
    """The batch of this ledger that made ``change``; null if it was made by anything else."""
    batch = change.note.get("batch")
    mine = (change.added or change.removed) and "windowmill" not in change.note and change.note.get("generation") == ledger.generation
    return batch if mine and isinstance(batch, int) else None


def refuse_foreign(ledger: Ledger, table: OwnTable, before: LastWrite) -> None:
    """Raise ``ForeignWriteError`` if someone else has changed rows of ``table`` since the write ``before``."""
    foreign = foreign_change(ledger, table.changes_after(before.version))
    if foreign is not None:
        raise refused(table, before, foreign)


def refused(table: OwnTable, written: LastWrite, foreign: Change) -> ForeignWriteError:
    """The error for a ``foreign`` change of ``table``."""
    # A RESTORE to before the foreign commit would also undo the later commit of a batch.
    overtaken = foreign.version < written.version
    undo = REBUILD if overtaken else f"undo it by RESTORE TABLE … TO VERSION AS OF {foreign.version - 1}"
    accept = "" if table.role == "state" else f"accept it by `{ACCEPT}`"
    remedies = ([accept, undo] if overtaken else [undo, accept]) if accept else [undo]
    return ForeignWriteError(
        f"{table.role} {table.place}: version {foreign.version} ({foreign.operation}) was not written by this pipeline; batch "
        f"{written.batch} left version {written.version}: {', or '.join(remedies)}"
    )


@contextmanager
def reread(ledger: Ledger) -> Iterator[None]:
    """Read the ledger again before a table is said not to fit it, which is read after it: another run may have gone on since.

    Raises
    ------
    FencedError
        If one has.
    """
    count, attempt = ledger.count, ledger.newest.attempt if ledger.newest else None
    try:
        yield
    except FencedError:
        raise
    except WindowmillError as err:
        ledger.refresh()
        if (ledger.count, ledger.newest.attempt if ledger.newest else None) != (count, attempt):
            raise FencedError(
                f"ledger {ledger.path}: another run has recorded batch {ledger.count - 1} meanwhile, and this one stops without effect; "
                "run again"
            ) from err
        raise


def refuse_committed(plan: Plan, ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    """Raise ``LedgerBehindError`` if a table already contains the batch number of ``plan``."""
    with reread(ledger):
        for role in ORDER:
            found = tables[role].newest_batch(plan.app_id(role))
            if found is not None and found >= plan.batch:
                raise LedgerBehindError(
                    f"{role} {tables[role].place}: batch {found} is committed already, but the ledger does not contain it; the ledger was "
                    "restored from an older copy: restore the newest copy, or give the pipeline a new sink and backfill it there"
                )
