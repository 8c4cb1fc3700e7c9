"""The commit protocol that makes each batch exactly-once: verify the tables, write each one once, and never mix two attempts.

1. Before a plan is recorded, :func:`verify` compares the pipeline's tables with the last commit record, and :func:`refuse_landed` checks
   that no table contains the new batch's number already. If one does, the ledger is an older copy.
2. An :class:`Attempt` writes each table with :meth:`Attempt.write`, which first checks whether the batch's commit has landed. The commit
   of an earlier attempt is adopted if it has the rows that this attempt computed; otherwise the attempt stops. After a failed write it
   checks again, because the commit may have landed and only its response been lost.
3. Only the commit record in the ledger makes the batch count. It holds the table id, version, row count and digest of every write.

The same code runs on Delta tables and, in the simulator, on in-memory tables.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from windowmill.checkpoints.batches import Commit, Plan, Written
from windowmill.checkpoints.failpoints import reach
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.own_tables import Change, Landed, OwnTable, Standing
from windowmill.checkpoints.storage_errors import is_disk_full, is_forbidden
from windowmill.windowing.errors import (
    ForeignWriteError,
    LedgerBehindError,
    MixedAttemptError,
    OutOfTurnError,
    SinkError,
    SinkRefusedError,
    StateCorruptError,
    StateError,
    StateMissingError,
    StorageFullError,
    WindowmillError,
    first_line,
)

REBUILD = "restore the folder from a copy, or give the pipeline a new sink and backfill it there"
ACCEPT = "windowmill run --accept-changes"


def verify(ledger: Ledger, tables: Mapping[str, OwnTable], *, accept_changes: bool = False) -> None:
    """Compare ``tables`` with the ledger's last commit record.

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
    recorded = ledger.written()
    if not ledger.count:
        _refuse_orphans(ledger, tables)
    for role, written in recorded.items():
        table = tables.get(role)
        if table is not None:
            _verify_table(ledger, table, written, accept_changes=accept_changes and role != "state")


def verify_standing(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    """Look cheaply, where there is nothing new to do, whether sink and state are still there; raises as :func:`verify`."""
    for role in ("sink", "state"):
        written = ledger.written().get(role)
        # The log entry of the last write tells of table and commit in one small read; where it has been cleaned up, the table does.
        if written is not None and not _is_last_write(tables[role].change_at(written.version), written):
            _check_standing(tables[role], written, REBUILD)


def _is_last_write(change: Change | None, written: Written) -> bool:
    return change is not None and written.digest in (None, change.digest)


def _refuse_orphans(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    for table in tables.values():
        standing = table.standing()
        if standing is None:
            continue
        if table.role == "sink":
            raise SinkRefusedError(
                f"sink {table.place}: a table is there already (version {standing.version}), but the pipeline's ledger {ledger.path} is "
                "empty; restore the ledger, or choose another sink.path"
            )
        raise LedgerBehindError(
            f"{table.role} {table.place}: a table is there already (version {standing.version}), but the pipeline's ledger {ledger.path} "
            "is empty; restore the ledger, or choose another sink.path and checkpoints.path and backfill there"
        )


def _verify_table(ledger: Ledger, table: OwnTable, written: Written, *, accept_changes: bool) -> None:
    # No batch reads these two tables, so a pipeline can continue without their contents.
    expendable = table.role in ("quarantine", "quality")
    if accept_changes and expendable and not _goes_on_from(table.standing(), written):
        ledger.accept(table.role, None)
        return
    standing = _check_standing(table, written, f"restore the folder from a copy, or accept it by `{ACCEPT}`" if expendable else REBUILD)
    changes = list(table.changes_after(written.version))
    for change in changes:
        batch = _batch_of(change, ledger)
        # An abandoned batch may have written validation results, but no rows.
        if batch is not None and (batch >= ledger.count or (table.role != "quality" and ledger.is_abandoned(batch))):
            raise LedgerBehindError(
                f"{table.role} {table.place}: version {change.version} holds batch {batch}, which the ledger {ledger.path} does not "
                "contain or has abandoned; restore the newest copy of the ledger, or give the pipeline a new sink and backfill it there"
            )
    foreign = _foreign_change(ledger, table.role, written, changes)
    if foreign is None:
        return
    if not accept_changes:
        raise _refused(table, written, foreign)
    ledger.accept(table.role, replace(written, version=standing.version, digest=None))


def _check_standing(table: OwnTable, written: Written, remedy: str) -> Standing:
    """Refuse a table that is not the one last ``written``, or is older; ``remedy`` is what to do about it."""
    standing, place = table.standing(), f"{table.role} {table.place}"
    if standing is None:
        raise StateMissingError(f"{place}: there is no table, but batch {written.batch} left version {written.version} of it; {remedy}")
    if written.table_id is not None and standing.table_id != written.table_id:
        raise ForeignWriteError(
            f"{place}: this is another table (Delta id {standing.table_id}), not the one that batch {written.batch} wrote "
            f"({written.table_id}); put the old table back: {remedy}"
        )
    if standing.version < written.version:
        raise StateMissingError(
            f"{place}: is at version {standing.version}, but batch {written.batch} left version {written.version}; its log was "
            f"truncated, or restored from an older copy: {remedy}"
        )
    change = table.change_at(written.version) if written.digest else None
    if change is not None and change.digest != written.digest:
        raise StateCorruptError(
            f"{place}: version {written.version} is not the commit that batch {written.batch} recorded (digest {change.digest} instead of "
            f"{written.digest}); {REBUILD}"
        )
    return standing


def _goes_on_from(standing: Standing | None, written: Written) -> bool:
    """Whether the existing table is the one that was ``written``, at that version or a later one."""
    return standing is not None and written.table_id in (None, standing.table_id) and standing.version >= written.version


def _foreign_change(ledger: Ledger, role: str, written: Written, changes: Iterable[Change]) -> Change | None:
    """The first of the ``changes`` since ``written`` in which someone else added or removed rows; none if that has been undone."""
    # Maintenance in format 1 did not mark its commits, but it rewrote only the state.
    if role == "state" and written.table_id is None:
        return None
    foreign, every = Counter[str](), Counter[str]()
    first: Change | None = None
    for change in changes:
        every.update(change.added | change.moved_in)
        every.subtract(change.removed | change.moved_out)
        ours = "windowmill" in change.note or _batch_of(change, ledger) is not None
        if not ours and (change.added or change.removed):
            foreign.update(change.added)
            foreign.subtract(change.removed)
            first = first or change
    # After a RESTORE the table has the same files as before the foreign change, or as before a rewrite that followed ``written``.
    return first if any(foreign.values()) and any(every.values()) else None


def _batch_of(change: Change, ledger: Ledger) -> int | None:
    """The batch of this ledger that made ``change``; null if it was made by anything else."""
    batch = change.note.get("batch")
    mine = (change.added or change.removed) and "windowmill" not in change.note and change.note.get("generation") == ledger.generation
    return batch if mine and isinstance(batch, int) else None


def _refused(table: OwnTable, written: Written, foreign: Change) -> ForeignWriteError:
    # Not to the version of ``written``: that would also undo later commits of an open batch.
    advice = f"undo it by RESTORE TABLE … TO VERSION AS OF {foreign.version - 1}"
    if table.role != "state":
        advice += f", or accept it by `{ACCEPT}`"
    return ForeignWriteError(
        f"{table.role} {table.place}: version {foreign.version} ({foreign.operation}) was not written by this pipeline; batch "
        f"{written.batch} left version {written.version}: {advice}"
    )


def refuse_landed(plan: Plan, pipeline: str, tables: Mapping[str, OwnTable]) -> None:
    """Raise ``LedgerBehindError`` if a table already contains the batch number of ``plan``."""
    for role, table in tables.items():
        for app in {plan.app_id(pipeline, role), plan.legacy_app_id(pipeline, role)}:
            if table.landed(app, plan.batch) is not None:
                raise LedgerBehindError(
                    f"{role} {table.place}: batch {plan.batch} has landed already, but the ledger does not contain it; the ledger was "
                    "restored from an older copy: restore the newest copy, or give the pipeline a new sink and backfill it there"
                )


class Attempt:
    """One attempt at executing ``plan``: a process that may die at any time, or be overtaken by another attempt.

    Parameters
    ----------
    rules
        Identifies the expectations that this attempt validates with.

    Attributes
    ----------
    id
        Distinguishes this attempt from others at the same plan.
    written
        The last write to each table, by role; starts with those of earlier batches and is updated by :meth:`write`.
    """

    def __init__(self, plan: Plan, pipeline: str, ledger: Ledger, tables: Mapping[str, OwnTable], *, rules: str = "") -> None:
        self.plan, self.id = plan, self.new_id()
        self._validation = f"{ledger.open_batch.holds if ledger.open_batch else 0}/{rules}"
        self._pipeline, self._ledger, self._tables = pipeline, ledger, tables
        self.written: dict[str, Written] = dict(ledger.written())

    @staticmethod
    def new_id() -> str:
        """A random id for an attempt or a plan: 12 hexadecimal digits."""
        return uuid.uuid4().hex[:12]

    def app_id(self, role: str) -> str:
        """Application id of the batch's Delta transaction in the table of this role."""
        name = self.plan.app_id(self._pipeline, role)
        # A held batch is validated again, and so is one whose rules changed after an attempt died; each validation is recorded.
        return f"{name}/{self._validation}" if role == "quality" else name

    def metadata(self, **more: str) -> str:
        """The ``userMetadata`` of this attempt's commits; ids only, since it stays in the table's history."""
        plan = self.plan
        metadata = {"pipeline": self._pipeline, "generation": plan.generation, "batch": plan.batch, "attempt": self.id}
        return json.dumps(metadata | more)

    def landed(self, role: str) -> Landed | None:
        """The commit of this batch in the table of this role, by this or another attempt; none if it has not landed."""
        return self._tables[role].landed(self.app_id(role), self.plan.batch)

    def verdict(self) -> str | None:
        """The verdict with which the batch was published; none if its rows are not in the sink."""
        found = self.landed("sink")
        return None if found is None else str(found.note.get("verdict", "passed"))

    def write(self, role: str, write: Callable[[], object], same: Callable[[], bool], *, count: int | None = None) -> Landed:
        """Call ``write`` to commit the batch's rows to a table, unless they have landed already; returns the commit that counts.

        Parameters
        ----------
        write
            Commits the rows with :meth:`app_id` and :meth:`metadata`.
        same
            Whether the batch's rows in the table equal those that ``write`` would commit; called only if another attempt wrote them.
        count
            Number of rows that ``write`` adds; null if that is not known, or if the commit may also rewrite rows of other batches.

        Raises
        ------
        MixedAttemptError
            If another attempt wrote other rows.
        StorageFullError, SinkError, StateError
            If the commit did not land, or holds another number of rows.
        Exception
            Whatever ``write`` raised, if its commit did not land for another reason than a full disk or a lack of permission.
        """
        table = self._tables[role]
        found = self.landed(role)
        if found is None:
            self._refuse_strange_sink(table)
            reach(f"{role}.before")
            try:
                write()
                reach(f"{role}.lost")
            except Exception as err:
                found = self.landed(role)
                if found is None:
                    storage = self._storage_error(table, err)
                    if storage is not None:
                        raise storage from err
                    raise
            found = found or self.landed(role)
            if found is None:
                raise _error_of(role)(f"{role} {table.place}: the commit of batch {self.plan.batch} did not land; run again")
        if found.attempt == self.id and None not in (count, found.rows) and found.rows != count:
            raise _error_of(role)(
                f"{role} {table.place}: the commit of batch {self.plan.batch} (version {found.version}) holds {found.rows} rows instead of "
                f"the {count} computed; the batch stays open: give the pipeline a new sink, and backfill it there"
            )
        if found.attempt != self.id and not same():
            raise MixedAttemptError(
                f"{role} {table.place}: an earlier attempt at batch {self.plan.batch} (version {found.version}) wrote other rows than "
                "this one computed; run again with the code, modules and source of that attempt, or give the pipeline a new sink and "
                "backfill it there"
            )
        standing = table.standing() or Standing("", found.version)
        mine = Written(self.plan.batch, standing.table_id, found.version, found.rows or 0, found.digest, found.attempt)
        accepted = self.written.get(role)
        if accepted is not None and accepted.version > found.version:  # accepted later changes by others
            mine = replace(mine, version=accepted.version, digest=None)
        self.written[role] = mine
        reach(f"{role}.after")
        return found

    def _refuse_strange_sink(self, table: OwnTable) -> None:
        """Refuse a sink that has appeared since the plan was made; every first batch makes its own."""
        is_there = table.role == "sink" and table.role not in self.written and table.standing() is not None
        # Another attempt at this batch may have made it just now.
        if is_there and self.landed(table.role) is None:
            raise SinkError(
                f"sink {table.place}: a table is there since batch {self.plan.batch} was planned, which another pipeline or writer made; "
                "choose another sink.path"
            )

    def _storage_error(self, table: OwnTable, err: Exception) -> WindowmillError | None:
        """The error to raise for ``err``, if a full disk or a lack of permission has caused it."""
        where = f"{table.role} {table.place}"
        if is_disk_full(err):
            return StorageFullError(f"{where}: no room to write batch {self.plan.batch} ({first_line(err)}); free some space and run again")
        if is_forbidden(err):
            return _error_of(table.role)(
                f"{where}: must not be written ({first_line(err)}); give the user of this run the permission, or mount it writable, and "
                "run again"
            )
        return None

    def require(self, ruling: str) -> None:
        """Refuse a ruling that contradicts what has landed; raises ``OutOfTurnError``."""
        if ruling == "discard" and self.landed("sink") is not None:
            raise OutOfTurnError(
                f"pipeline {self._pipeline}: the rows of batch {self.plan.batch} have been published already, so they cannot be "
                "discarded; finish the batch with `windowmill run`"
            )

    def hold(self, outcome: Commit, at: datetime) -> None:
        """Record that a critical expectation failed; the batch stays open."""
        self._ledger.record_held(self.plan, outcome, at)

    def commit(self, outcome: Commit, at: datetime) -> None:
        """Record the commit of the batch; raises ``ForeignWriteError`` if others changed rows of its tables in the meantime."""
        for role, before in self._ledger.written().items():
            if role in self._tables:
                table = self._tables[role]
                foreign = _foreign_change(self._ledger, role, before, table.changes_after(before.version))
                if foreign is not None:
                    raise _refused(table, before, foreign)
        self._ledger.record_commit(self.plan, outcome, at)


def _error_of(role: str) -> type[WindowmillError]:
    return SinkError if role == "sink" else StateError


def abandon(plan: Plan, pipeline: str, ledger: Ledger, tables: Mapping[str, OwnTable], at: datetime) -> None:
    """Abandon the open ``plan``; raises ``OutOfTurnError`` if any of its rows have landed."""
    for role, table in tables.items():
        if role != "quality" and table.landed(plan.app_id(pipeline, role), plan.batch) is not None:
            raise OutOfTurnError(
                f"pipeline {pipeline}: batch {plan.batch} has written to its {role} {table.place}, so it cannot be abandoned; finish it "
                "with `windowmill run`"
            )
    ledger.record_abandoned(plan, at)
