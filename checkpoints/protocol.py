"""What makes a batch happen exactly once: verify what earlier batches left, write each table once, and never mix two attempts.

1. Before a plan is recorded, :func:`verify` compares the pipeline's tables with what the last commit recorded of them, and
   :func:`refuse_landed` makes sure that the new batch's number has landed in none: else the ledger is an older copy.
2. An :class:`Attempt` writes each table by :meth:`Attempt.write`, which asks first what has landed. A commit of an earlier attempt is
   adopted if its rows are those that this attempt computed, and never mixed with others. A failed write is asked for too: its response
   may have been lost after the commit had landed.
3. Only the ledger's commit record makes the batch count. It tells table id, version, rows and digest of everything that was written.

The same code runs over Delta tables and, in the simulator, over tables in memory.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from checkpoints.batches import Commit, Plan, Written
from checkpoints.failpoints import reach
from checkpoints.full_disk import is_disk_full
from checkpoints.ledger import Ledger
from checkpoints.own_tables import Change, Landed, OwnTable, Standing
from windowing.errors import (
    ForeignWriteError,
    LedgerBehindError,
    LedgerError,
    MixedAttemptError,
    SinkError,
    StateCorruptError,
    StateError,
    StateMissingError,
    StorageFullError,
    first_line,
)

REBUILD = "restore the folder from a copy, or give the pipeline a new sink and backfill it there"
ACCEPT = "windowmill run --accept-changes"


def verify(ledger: Ledger, tables: Mapping[str, OwnTable], *, accept_changes: bool = False) -> None:
    """Compare ``tables`` with what the ledger's last commit recorded of them.

    Parameters
    ----------
    accept_changes
        Whether rows that others added to, or removed from, the sink, quarantine or quality table are accepted, and that the quarantine or
        quality table is gone; never changes of the state.

    Raises
    ------
    StateMissingError
        If a table is gone or older than the last batch left it.
    ForeignWriteError
        If it is another table, or somebody else changed its rows.
    StateCorruptError
        If the log tells another commit than the one recorded.
    LedgerBehindError
        If there are tables and the ledger is empty.
    """
    recorded = ledger.written()
    if not ledger.count:
        _refuse_orphans(ledger, tables)
    for role, written in recorded.items():
        table = tables.get(role)
        if table is not None:
            _verify_table(ledger, table, written, accept_changes=accept_changes and role != "state")


def _refuse_orphans(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    for table in tables.values():
        standing = table.standing()
        if standing is None:
            continue
        if table.role == "sink":
            raise SinkError(
                f"sink {table.place}: a table is there already (version {standing.version}), but the pipeline's ledger {ledger.path} is "
                "empty; restore the ledger, or choose another sink.path"
            )
        raise LedgerBehindError(
            f"{table.role} {table.place}: a table is there already (version {standing.version}), but the pipeline's ledger {ledger.path} "
            "is empty; restore the ledger, or choose another sink.path and checkpoints.path and backfill there"
        )


def _verify_table(ledger: Ledger, table: OwnTable, written: Written, *, accept_changes: bool) -> None:
    standing, place = table.standing(), f"{table.role} {table.place}"
    # No batch reads these two: a pipeline can do without what they held.
    expendable = table.role in ("quarantine", "quality")
    if accept_changes and expendable and not _goes_on_from(standing, written):
        ledger.accept(table.role, None)
        return
    remedy = f"restore the folder from a copy, or accept it by `{ACCEPT}`" if expendable else REBUILD
    if standing is None:
        raise StateMissingError(f"{place}: there is no table, but batch {written.batch} left version {written.version} of it; {remedy}")
    if written.table_id is not None and standing.table_id != written.table_id:
        raise ForeignWriteError(
            f"{place}: this is another table (Delta id {standing.table_id}) than the one that batch {written.batch} wrote "
            f"({written.table_id}); put the old table back: {remedy}"
        )
    if standing.version < written.version:
        raise StateMissingError(
            f"{place}: stands at version {standing.version}, but batch {written.batch} left version {written.version}; its log has been "
            f"cut off or restored from an older copy: {remedy}"
        )
    change = table.change_at(written.version) if written.digest else None
    if change is not None and change.digest != written.digest:
        raise StateCorruptError(
            f"{place}: version {written.version} is not the commit that batch {written.batch} recorded (digest {change.digest} instead of "
            f"{written.digest}); {REBUILD}"
        )
    changes = list(table.changes_after(written.version))
    for change in changes:
        batch = _batch_of(change, ledger)
        # A batch that was abandoned may have been validated, but it has written no rows.
        if batch is not None and (batch >= ledger.count or (table.role != "quality" and ledger.is_abandoned(batch))):
            raise LedgerBehindError(
                f"{table.role} {table.place}: version {change.version} holds batch {batch}, which the ledger {ledger.path} does not know "
                f"or has dropped; {REBUILD}"
            )
    foreign = _foreign_change(ledger, table.role, written, changes)
    if foreign is None:
        return
    if not accept_changes:
        raise _refused(table, written, foreign)
    ledger.accept(table.role, replace(written, version=standing.version, digest=None))


def _goes_on_from(standing: Standing | None, written: Written) -> bool:
    """Whether the table that stands there is the one that was ``written``, or a later version of it."""
    return standing is not None and written.table_id in (None, standing.table_id) and standing.version >= written.version


def _foreign_change(ledger: Ledger, role: str, written: Written, changes: Iterable[Change]) -> Change | None:
    """The first of the ``changes`` since ``written`` by which somebody else's rows came or went, if they are not as they were again."""
    # The maintenance of format 1 did not mark its commits; it rewrote the rows of the state alone.
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
    # A restored table has the files of before the foreign change, or those of before what rewrote them meanwhile.
    return first if any(foreign.values()) and any(every.values()) else None


def _batch_of(change: Change, ledger: Ledger) -> int | None:
    """The batch of this ledger that made ``change``, if one did."""
    batch = change.note.get("batch")
    mine = (change.added or change.removed) and "windowmill" not in change.note and change.note.get("generation") == ledger.generation
    return batch if mine and isinstance(batch, int) else None


def _refused(table: OwnTable, written: Written, foreign: Change) -> ForeignWriteError:
    # Not to the version of ``written``: an open batch may have written since, which has to stay.
    advice = f"undo it by RESTORE TABLE … TO VERSION AS OF {foreign.version - 1}"
    if table.role != "state":
        advice += f", or accept it by `{ACCEPT}`"
    return ForeignWriteError(
        f"{table.role} {table.place}: version {foreign.version} ({foreign.operation}) was not written by this pipeline; batch "
        f"{written.batch} left version {written.version}: {advice}"
    )


def refuse_landed(plan: Plan, pipeline: str, tables: Mapping[str, OwnTable]) -> None:
    """Refuse to record ``plan`` if its number has landed already; raises ``LedgerBehindError``."""
    for role, table in tables.items():
        for app in {plan.app_id(pipeline, role), plan.legacy_app_id(pipeline, role)}:
            if table.landed(app, plan.batch) is not None:
                raise LedgerBehindError(
                    f"{role} {table.place}: batch {plan.batch} has landed already, but the ledger does not know it; the ledger has been "
                    "restored from an older copy: restore the newest copy, or give the pipeline a new sink and backfill it there"
                )


class Attempt:
    """One attempt at carrying out ``plan``: a process that may die at any instant, or be overtaken by another.

    Parameters
    ----------
    rules
        Identifies the expectations by which this attempt validates.

    Attributes
    ----------
    id
        Tells this attempt from others at the same plan.
    written
        What is known of each table, by role: what earlier batches left, and in time what this batch wrote.
    """

    def __init__(self, plan: Plan, pipeline: str, ledger: Ledger, tables: Mapping[str, OwnTable], *, rules: str = "") -> None:
        self.plan, self.id = plan, self.new_id()
        self._validation = f"{ledger.open_batch.holds if ledger.open_batch else 0}/{rules}"
        self._pipeline, self._ledger, self._tables = pipeline, ledger, tables
        self.written: dict[str, Written] = dict(ledger.written())

    @staticmethod
    def new_id() -> str:
        """A name for an attempt, or a plan: 12 hexadecimal digits."""
        return uuid.uuid4().hex[:12]

    def app_id(self, role: str) -> str:
        """Name of the batch's Delta transaction in the table of this role."""
        name = self.plan.app_id(self._pipeline, role)
        # A batch that was held is validated anew, and so is one whose rules have changed since an attempt died.
        return f"{name}/{self._validation}" if role == "quality" else name

    def metadata(self, **more: str) -> str:
        """What the commits of this attempt say in their ``userMetadata``; ids only, since it stays in the table's history."""
        plan = self.plan
        told = {"pipeline": self._pipeline, "generation": plan.generation, "batch": plan.batch, "attempt": self.id}
        return json.dumps(told | more)

    def landed(self, role: str) -> Landed | None:
        """What this or another attempt has written for this batch."""
        return self._tables[role].landed(self.app_id(role), self.plan.batch)

    def verdict(self) -> str | None:
        """The verdict with which the batch has been published; none if its rows are not in the sink."""
        found = self.landed("sink")
        return None if found is None else str(found.note.get("verdict", "passed"))

    def write(self, role: str, write: Callable[[], object], same: Callable[[], bool]) -> Landed:
        """Let ``write`` commit the batch's rows to a table, unless they are there; the commit that counts.

        Parameters
        ----------
        write
            Commits the rows under :meth:`app_id` and :meth:`metadata`.
        same
            Whether the batch's rows in the table are those that ``write`` would have written; asked when another attempt wrote them.

        Raises
        ------
        MixedAttemptError
            If another attempt wrote other rows.
        StorageFullError, SinkError, StateError
            If the commit did not land.
        """
        table = self._tables[role]
        found = self.landed(role)
        if found is None:
            reach(f"{role}.before")
            try:
                write()
                reach(f"{role}.lost")
            except Exception as err:
                found = self.landed(role)
                if found is None:
                    if is_disk_full(err):
                        raise StorageFullError(
                            f"{role} {table.place}: no room to write batch {self.plan.batch} ({first_line(err)}); free some space and "
                            "run again"
                        ) from err
                    raise
            found = found or self.landed(role)
            if found is None:
                kind = SinkError if role == "sink" else StateError
                raise kind(f"{role} {table.place}: the commit of batch {self.plan.batch} did not land; run again")
        if found.attempt != self.id and not same():
            raise MixedAttemptError(
                f"{role} {table.place}: an earlier attempt at batch {self.plan.batch} (version {found.version}) wrote other rows than "
                "this one computed; run again with the code, modules and source of that attempt, or give the pipeline a new sink and "
                "backfill it there"
            )
        standing = table.standing() or Standing("", found.version)
        mine = Written(self.plan.batch, standing.table_id, found.version, found.rows, found.digest, found.attempt)
        accepted = self.written.get(role)
        if accepted is not None and accepted.version > found.version:  # others' later changes
            mine = replace(mine, version=accepted.version, digest=None)
        self.written[role] = mine
        reach(f"{role}.after")
        return found

    def require(self, ruling: str) -> None:
        """Refuse a ruling that contradicts what has landed; raises ``LedgerError``."""
        if ruling == "discard" and self.landed("sink") is not None:
            raise LedgerError(
                f"pipeline {self._pipeline}: the rows of batch {self.plan.batch} have been published already, so they cannot be "
                "discarded; finish the batch with `windowmill run`"
            )

    def hold(self, outcome: Commit, at: datetime) -> None:
        """Record that a critical expectation failed; the batch stays open."""
        self._ledger.record_held(self.plan, outcome, at)

    def commit(self, outcome: Commit, at: datetime) -> None:
        """Record that the batch has happened; raises ``ForeignWriteError`` if others changed rows of its tables meanwhile."""
        for role, before in self._ledger.written().items():
            if role in self._tables:
                table = self._tables[role]
                foreign = _foreign_change(self._ledger, role, before, table.changes_after(before.version))
                if foreign is not None:
                    raise _refused(table, before, foreign)
        self._ledger.record_commit(self.plan, outcome, at)


def abandon(plan: Plan, pipeline: str, ledger: Ledger, tables: Mapping[str, OwnTable], at: datetime) -> None:
    """Drop the open ``plan``; raises ``LedgerError`` if any of its rows have landed."""
    for role, table in tables.items():
        if role != "quality" and table.landed(plan.app_id(pipeline, role), plan.batch) is not None:
            raise LedgerError(
                f"pipeline {pipeline}: batch {plan.batch} has written to its {role} {table.place}, so it cannot be abandoned; finish it "
                "with `windowmill run`"
            )
    ledger.record_abandoned(plan, at)
