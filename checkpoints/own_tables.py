"""A pipeline's own Delta tables as the protocol uses them, and their comparison with the ledger. No JVM.

The protocol asks a table for its id and version, for the commits of batches, and for later changes by others. The comparison checks that
each table is the one that the last batch left, and that nobody else has changed its rows since.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windowmill.checkpoints import data_files
from windowmill.checkpoints.batches import Changes, LastWrite, Plan, digest_of, identity_of
from windowmill.checkpoints.committer import Committer, DeltaRsCommitter, Publication
from windowmill.checkpoints.current import CurrentView
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.delta_tables import actions_of, entry_name, existing, has_lost_its_beginning, sizes_of
from windowmill.checkpoints.ledger import Ledger
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import remedy, store_of
from windowmill.windowing.errors import (
    FencedError,
    ForeignWriteError,
    LedgerBehindError,
    SinkError,
    SinkRefusedError,
    StateCorruptError,
    StateMissingError,
    WindowmillError,
    first_line,
)

#: Remedies, for messages.
REBUILD = "restore the folder from a copy, or give the pipeline a new sink and backfill it there"
BRING_NEWEST = "restore the newest copy, or give the pipeline a new sink and backfill it there"
ACCEPT = "windowmill run --accept-changes"
#: No batch needs what these tables contain, so a pipeline can go on without it; the current table is made of the sink again.
EXPENDABLE = ("quarantine", "quality", "current")
#: The tables to which a batch commits, in this order; a batch that is held, abandoned or discarded leaves some out.
ORDER = ("quality", "sink", "current", "quarantine", "seen", "state")
#: The tables that later batches read: a change of them by others is never accepted.
REMEMBERED = ("state", "seen")

_NO_KEYS = CurrentView(())


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The Delta id and the current version of a table."""

    table_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to a table.

    ``added`` and ``removed`` identify the files whose rows it added and removed; ``moved_in`` and ``moved_out`` are the files that it
    rewrote without changing rows (``dataChange`` false). ``note`` is windowmill's ``userMetadata`` of the commit, empty if someone else
    made it. ``digest`` identifies ``added``, as :attr:`.Changes.digest`.
    """

    version: int
    operation: str
    added: frozenset[str]
    removed: frozenset[str]
    note: Mapping[str, Any]
    transactions: Mapping[str, int]
    moved_in: frozenset[str] = frozenset()
    moved_out: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return digest_of(self.added)


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """A batch's commit in a table; if its log entry has been cleaned up, ``digest`` is null, and ``version`` is the table's newest."""

    version: int
    digest: str | None
    note: Mapping[str, Any]


@dataclass(frozen=True)
class OwnTable:
    """The Delta table at ``place``; its ``role`` in the pipeline is sink, current, state, seen, quarantine or quality, or held.

    The simulator of the tests has tables in memory with the same methods.
    """

    role: str
    place: str
    committer: Committer = field(default_factory=DeltaRsCommitter)
    #: How the current table follows from the sink; only that table needs it.
    view: CurrentView = _NO_KEYS

    def table_version(self) -> TableVersion | None:
        """The current id and version; none if there is no table."""
        table = self._load()
        if table is None:
            return None
        if has_lost_its_beginning(table):
            raise self._unreadable(SinkError("the first entries of its log are gone"))
        return TableVersion(str(table.metadata().id), table.version())

    def commit_of(self, app_id: str, batch: int, *, after: int, paths: Collection[str] = ()) -> BatchCommit | None:
        """The commit of ``batch`` under ``app_id``; none if it was not made.

        ``after`` is a version that is older than the commit, and ``paths`` are files that it adds. Usually reads only the log entry after
        ``after``, without opening the table. Raises ``LedgerBehindError`` if a later batch is committed.
        """
        for version in count(after + 1):
            change = self.change_at(version)
            if change is None:
                break
            if self._checked(change.transactions.get(app_id), batch) == batch:
                return BatchCommit(version, change.digest, change.note)
        table = self._load()
        if table is None or table.version() < version:
            return None  # the log holds every entry since
        if self._checked(table.transaction_version(app_id), batch) == batch or (paths and not sizes_of(table).keys().isdisjoint(paths)):
            return BatchCommit(table.version(), None, {})
        if "delta.setTransactionRetentionDuration" in table.metadata().configuration:
            raise self._unreadable(
                SinkError(f"its log was cleaned up, and its transactions expire, so whether batch {batch} is committed is not known")
            )
        return None

    def newest_batch(self, app_id: str) -> int | None:
        table = self._load()
        return None if table is None else table.transaction_version(app_id)

    def changes_after(self, version: int) -> Iterator[Change]:
        """The commits after ``version`` that the log still contains, oldest first."""
        table = self._load()
        for later in range(version + 1, 0 if table is None else table.version() + 1):
            change = self.change_at(later)
            if change is not None:
                yield change

    def change_at(self, version: int) -> Change | None:
        """The commit that created ``version``; none if the log no longer contains it."""
        try:
            with store_of(self.place).open_input_file(entry_name(version)) as stream:
                return _change(version, actions_of(stream.read()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise self._unreadable(err) from err

    def refuse_misfit(self, changes: Changes) -> None:
        """Raise an error if ``changes`` could not be committed."""
        self.committer.check(self.place, self.role, changes)

    def missing(self, files: Sequence[DataFile]) -> list[DataFile]:
        return data_files.missing(self.place, files)

    def fetch(self, files: Sequence[DataFile], source: str | None = None, folder: str = "") -> None:
        """Copy those of ``files`` that are missing here, or in a ``folder`` below, from the folder ``source``; raises an error without."""
        target = f"{self.place}/{folder}".rstrip("/")
        absent = data_files.missing(target, files)
        lost = absent if source is None else data_files.missing(source, absent)
        if lost:
            raise StateCorruptError(
                f"{self.role} {self.place}: {lost[0].path}, which the ledger records for the last batch and the table does not hold, is "
                f"gone; {REBUILD}"
            )
        if source is not None:
            data_files.copy(source, target, absent)

    def commit(self, publication: Publication) -> None:
        self.committer.commit(self.place, publication)

    def remove(self, files: Sequence[DataFile], folder: str = "") -> None:
        """Delete files that no commit names, here or in a ``folder`` below; what cannot be deleted is left to ``maintain``."""
        with suppress(OSError):
            data_files.remove(f"{self.place}/{folder}".rstrip("/"), files)

    def _checked(self, found: int | None, batch: int) -> int | None:
        """The batch ``found``; raises ``LedgerBehindError`` if it is a later one than ``batch``."""
        if found is not None and found > batch:
            raise LedgerBehindError(
                f"{self.role} {self.place}: batch {found} is committed, but the ledger is at batch {batch}; the ledger was restored from "
                f"an older copy: {BRING_NEWEST}"
            )
        return found

    def _load(self) -> DeltaTable | None:
        try:
            return existing(self.place)
        except (DeltaError, OSError) as err:
            raise self._unreadable(err) from err

    def _unreadable(self, err: Exception) -> WindowmillError:
        kind = SinkError if self.role == "sink" else StateCorruptError
        return kind(
            f"{self.role} {self.place}: cannot be read ({first_line(err)}); "
            f"{remedy(err, 'check its permissions, or restore the folder from a copy')}; nothing has been changed"
        )


def own_tables(runnable: Runnable, beyond: Committer | None = None) -> dict[str, OwnTable]:
    """The tables that the pipeline writes, by role; ``beyond`` commits to those that delta-rs cannot write."""
    places = runnable.places
    paths = {name: getattr(places, name) for name in (*REMEMBERED, "quarantine", "quality", "held")} | {"sink": runnable.sink_path}
    found = {role: OwnTable(role, path, DeltaRsCommitter(beyond)) for role, path in paths.items()}
    if runnable.current_path is not None:
        found["current"] = OwnTable("current", runnable.current_path, DeltaRsCommitter(), CurrentView.of(runnable.pipeline))
    return found


def _change(version: int, actions: list[dict[str, Any]]) -> Change:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    files: dict[tuple[str, bool], set[str]] = {(kind, changes): set() for kind in ("add", "remove") for changes in (True, False)}
    for action in actions:
        for kind in ("add", "remove"):
            if kind in action:
                files[kind, bool(action[kind].get("dataChange", True))].add(identity_of(action[kind]))
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        note = {}
    if not isinstance(note, dict) or note.keys().isdisjoint(("generation", "windowmill")):
        note = {}
    transactions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
    added, moved_in, removed, moved_out = map(frozenset, files.values())
    return Change(version, str(info.get("operation", "?")), added, removed, note, transactions, moved_in, moved_out)


def verify(ledger: Ledger, tables: Mapping[str, OwnTable], *, accept_changes: bool = False) -> None:
    """Compare ``tables`` with the ledger, after :func:`windowmill.checkpoints.protocol.publish_pending`.

    ``accept_changes`` accepts rows that others added to or removed from the sink, quarantine or quality table, and a missing or replaced
    quarantine or quality table. Changes to the state are never accepted. A current table is made of the sink again if it is missing, or
    was moved, or if others have changed its rows and that is accepted.

    Raises ``StateMissingError`` if a table is missing, or older than the version that the last batch left; ``ForeignWriteError`` if a table
    was replaced, or someone else changed its rows; ``StateCorruptError`` if the recorded version holds another commit than the one
    recorded; ``LedgerBehindError`` if a table contains a batch that the ledger does not, or exists although the ledger is empty;
    ``SinkRefusedError`` if the sink exists although the ledger is empty.
    """
    with reread(ledger):
        if not ledger.count:
            _refuse_orphans(ledger, tables)
        for role, written in ledger.written().items():
            if role in tables:  # the spec may want no current table any more
                _verify_table(ledger, tables[role], written, accept_changes=accept_changes and role not in REMEMBERED)


def verify_table_versions(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    """A cheap check, for runs without new rows, that sink and state still exist; raises as :func:`verify`."""
    with reread(ledger):
        for role in ("sink", *REMEMBERED):
            written = ledger.written().get(role)
            # One small read of the last write's log entry shows table and commit; if the entry has been cleaned up, the table is opened.
            change = None if written is None else tables[role].change_at(written.version)
            if written is not None and (change is None or written.digest not in (None, change.digest)):
                check_table_version(tables[role], written)


def _refuse_orphans(ledger: Ledger, tables: Mapping[str, OwnTable]) -> None:
    for table in (tables[role] for role in ORDER if role in tables):
        current = table.table_version()
        if current is None:
            continue
        if table.role in ("sink", "current"):
            field = "sink.path" if table.role == "sink" else "sink.current"
            raise SinkRefusedError(
                f"{table.role} {table.place}: a table is there already (version {current.version}), but the pipeline's ledger "
                f"{ledger.path} is empty; restore the ledger, or choose another {field}"
            )
        raise LedgerBehindError(
            f"{table.role} {table.place}: a table is there already (version {current.version}), but the pipeline's ledger {ledger.path} "
            "is empty; restore the ledger, or choose another sink.path and checkpoints.path and backfill there"
        )


def _verify_table(ledger: Ledger, table: OwnTable, written: LastWrite, *, accept_changes: bool) -> None:
    try:
        current = check_table_version(table, written)
    except (StateMissingError, ForeignWriteError, StateCorruptError) as err:
        accepted = accept_changes and table.role in EXPENDABLE and not isinstance(err, StateCorruptError)
        if not accepted and not is_made_again(ledger, table, err):
            raise
        ledger.note(table.role, None)
        return
    before = ledger.newest.outcome.written.get(table.role) if ledger.newest else None
    if before is not None and written.digest is not None:
        since = before.version  # the last batch found its own place among the commits of others
    else:
        # The last batch made the table; or its past was given up, so that earlier versions do not count.
        since = -1 if written.digest is not None and table.role in ("sink", *REMEMBERED) else written.version - (written.digest is not None)
    changes = list(table.changes_after(since))
    for change in changes:
        batch = _batch_of(change, ledger)
        # An abandoned batch has published validation results, but no rows.
        if batch is not None and (batch >= ledger.count or (table.role != "quality" and ledger.since(batch)[0].status == "abandoned")):
            raise LedgerBehindError(
                f"{table.role} {table.place}: version {change.version} holds batch {batch}, which the ledger {ledger.path} does not "
                "contain or has abandoned; restore the newest copy of the ledger, or give the pipeline a new sink and backfill it there"
            )
    foreign = foreign_change(ledger, changes)
    if foreign is None:
        return
    if not accept_changes:
        raise refused(table, written, foreign)
    # The next batch makes a current table of the sink again.
    ledger.note(table.role, None if table.role == "current" else replace(written, version=current.version, digest=None))


def is_made_again(ledger: Ledger, table: OwnTable, err: WindowmillError) -> bool:
    """Whether ``table`` is a current table in which no one else's rows are lost if it is made of the sink again, in spite of ``err``."""
    if table.role != "current":
        return False
    # Another table may be one that the pipeline made before the spec named the place of this one.
    return not isinstance(err, ForeignWriteError) or _has_moved(ledger, table)


def _has_moved(ledger: Ledger, table: OwnTable) -> bool:
    """Whether the pipeline has made ``table`` and then another one at another place."""
    written, there = ledger.written().get(table.role), table.table_version()
    return written is not None and there is not None and there.table_id != written.table_id and is_own(ledger, table)


def is_own(ledger: Ledger, table: OwnTable) -> bool:
    """Whether the pipeline of ``ledger`` has made ``table``."""
    first = table.change_at(0)
    made = first is not None and first.note.get("generation") == ledger.generation
    return made or table.newest_batch(f"windowmill/{ledger.generation}/{table.role}") is not None


def check_table_version(table: OwnTable, written: LastWrite) -> TableVersion:
    """The version of ``table``; refuses a table other than the one last ``written``, and an older version."""
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
    # A RESTORE to before the foreign commit would also undo the later commit of a batch.
    overtaken = foreign.version < written.version
    undo = REBUILD if overtaken else f"undo it by RESTORE TABLE … TO VERSION AS OF {foreign.version - 1}"
    accept = "" if table.role in REMEMBERED else f"accept it by `{ACCEPT}`"
    remedies = ([accept, undo] if overtaken else [undo, accept]) if accept else [undo]
    return ForeignWriteError(
        f"{table.role} {table.place}: version {foreign.version} ({foreign.operation}) was not written by this pipeline; batch "
        f"{written.batch} left version {written.version}: {', or '.join(remedies)}"
    )


@contextmanager
def reread(ledger: Ledger) -> Iterator[None]:
    """Before an error says that a table does not fit the ledger, read the ledger again: another run may have added to both since.

    Raises ``FencedError`` if one has.
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
            found = tables[role].newest_batch(plan.app_id(role)) if role in tables else None
            if found is not None and found >= plan.batch:
                raise LedgerBehindError(
                    f"{role} {tables[role].place}: batch {found} is committed already, but the ledger does not contain it; the ledger was "
                    f"restored from an older copy: {BRING_NEWEST}"
                )
