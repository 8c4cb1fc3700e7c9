"""The protocol's view of a pipeline's own Delta tables: identity, version, committed batches, and later changes by others. No JVM."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints import data_files
from windowmill.checkpoints.batches import Changes, digest_of, identity_of
from windowmill.checkpoints.committer import Committer, DeltaRsCommitter, Publication
from windowmill.checkpoints.data_files import DataFile
from windowmill.checkpoints.delta_tables import actions_of, entry_name, has_lost_its_beginning, newest
from windowmill.checkpoints.places import Runnable
from windowmill.checkpoints.stores import remedy, store_of
from windowmill.windowing.errors import LedgerBehindError, SinkError, StateCorruptError, WindowmillError, first_line


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The Delta id and the current version of a table."""

    table_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One commit to a table.

    ``added`` and ``removed`` identify the files whose rows it added and removed; ``moved_in`` and ``moved_out`` are the files that it
    rewrote without changing rows (``dataChange`` false). ``rows`` is the number of rows added, null if a file's statistics do not give
    it. ``note`` is windowmill's ``userMetadata`` of the commit, empty if someone else made it. ``digest`` identifies ``added``.
    """

    version: int
    operation: str
    added: frozenset[str]
    removed: frozenset[str]
    rows: int | None
    note: Mapping[str, Any]
    transactions: Mapping[str, int]
    moved_in: frozenset[str] = frozenset()
    moved_out: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """As :attr:`.Changes.digest`."""
        return digest_of(self.added)


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """A batch's commit in a table, which added ``rows``.

    If its log entry has been cleaned up, ``rows`` and ``digest`` are null, and ``version`` is the table's newest.
    """

    version: int
    rows: int | None
    digest: str | None
    note: Mapping[str, Any]


class OwnTable(Protocol):
    """The interface of a table in the protocol; implemented by :class:`DeltaOwnTable`, and in memory by the simulator."""

    role: str
    place: str

    def table_version(self) -> TableVersion | None:
        """The current id and version; none if there is no table."""

    def commit_of(self, app_id: str, batch: int, *, after: int, paths: Collection[str] = ()) -> BatchCommit | None:
        """The commit of ``batch`` under ``app_id``; none if it was not made.

        ``after`` is a version that is older than the commit, and ``paths`` are files that it adds. Raises ``LedgerBehindError`` if a
        later batch is committed.
        """

    def newest_batch(self, app_id: str) -> int | None:
        """The newest batch that is committed under ``app_id``."""

    def changes_after(self, version: int) -> Iterator[Change]:
        """The commits after ``version`` that the log still contains, oldest first."""

    def change_at(self, version: int) -> Change | None:
        """The commit that created ``version``; none if the log no longer contains it."""

    def refuse_misfit(self, changes: Changes) -> None:
        """Raise an error if ``changes`` could not be committed."""

    def missing(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Those of ``files`` that are not here."""

    def fetch(self, files: Sequence[DataFile], source: str | None = None, folder: str = "") -> None:
        """Copy those of ``files`` that are missing here, or in a ``folder`` below, from the folder ``source``; raises an error without."""

    def commit(self, publication: Publication) -> None:
        """As :meth:`.Committer.commit`."""

    def remove(self, files: Sequence[DataFile], folder: str = "") -> None:
        """Delete files that no commit names, here or in a ``folder`` below; what cannot be deleted is left to ``maintain``."""


class DeltaOwnTable:
    """The Delta table at ``place``; its ``role`` in the pipeline is sink, state, quarantine or quality, or held."""

    def __init__(self, role: str, place: str, committer: Committer | None = None) -> None:
        self.role, self.place = role, place
        self._committer = DeltaRsCommitter() if committer is None else committer

    def table_version(self) -> TableVersion | None:
        """As :meth:`OwnTable.table_version`."""
        table = self._load()
        if table is None:
            return None
        if has_lost_its_beginning(table):
            raise self._unreadable(SinkError("the first entries of its log are gone"))
        return TableVersion(str(table.metadata().id), table.version())

    def commit_of(self, app_id: str, batch: int, *, after: int, paths: Collection[str] = ()) -> BatchCommit | None:
        """As :meth:`OwnTable.commit_of`. Usually reads only the log entry after ``after``, without opening the table."""
        for version in count(after + 1):
            change = self.change_at(version)
            if change is None:
                break
            if self._checked(change.transactions.get(app_id), batch) == batch:
                return BatchCommit(version, change.rows, change.digest, change.note)
        table = self._load()
        if table is None or table.version() < version:
            return None  # the log holds every entry since
        if self._checked(table.transaction_version(app_id), batch) == batch or (paths and not set(paths).isdisjoint(_paths(table))):
            return BatchCommit(table.version(), None, None, {})
        if "delta.setTransactionRetentionDuration" in table.metadata().configuration:
            raise self._unreadable(
                SinkError(f"its log was cleaned up, and its transactions expire, so whether batch {batch} is committed is not known")
            )
        return None

    def newest_batch(self, app_id: str) -> int | None:
        """As :meth:`OwnTable.newest_batch`."""
        table = self._load()
        return None if table is None else table.transaction_version(app_id)

    def changes_after(self, version: int) -> Iterator[Change]:
        """As :meth:`OwnTable.changes_after`."""
        table = self._load()
        for later in range(version + 1, 0 if table is None else table.version() + 1):
            change = self.change_at(later)
            if change is not None:
                yield change

    def change_at(self, version: int) -> Change | None:
        """As :meth:`OwnTable.change_at`."""
        try:
            with self._files.open_input_file(entry_name(version)) as stream:
                return _change(version, actions_of(stream.read()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
            raise self._unreadable(err) from err

    def refuse_misfit(self, changes: Changes) -> None:
        """As :meth:`OwnTable.refuse_misfit`."""
        self._committer.check(self.place, self.role, changes)

    def missing(self, files: Sequence[DataFile]) -> list[DataFile]:
        """As :meth:`OwnTable.missing`."""
        return data_files.missing(self.place, files)

    def fetch(self, files: Sequence[DataFile], source: str | None = None, folder: str = "") -> None:
        """As :meth:`OwnTable.fetch`."""
        target = f"{self.place}/{folder}".rstrip("/")
        absent = data_files.missing(target, files)
        lost = absent if source is None else data_files.missing(source, absent)
        if lost:
            raise StateCorruptError(
                f"{self.role} {self.place}: {lost[0].path}, which the ledger records for the last batch and the table does not hold, is "
                "gone; restore the folder from a copy, or give the pipeline a new sink and backfill it there"
            )
        if source is not None:
            data_files.copy(source, target, absent)

    def commit(self, publication: Publication) -> None:
        """As :meth:`OwnTable.commit`."""
        self._committer.commit(self.place, publication)

    def remove(self, files: Sequence[DataFile], folder: str = "") -> None:
        """As :meth:`OwnTable.remove`."""
        with suppress(OSError):
            data_files.remove(f"{self.place}/{folder}".rstrip("/"), files)

    def _checked(self, found: int | None, batch: int) -> int | None:
        """The batch ``found``; raises ``LedgerBehindError`` if it is a later one than ``batch``."""
        if found is not None and found > batch:
            raise LedgerBehindError(
                f"{self.role} {self.place}: batch {found} is committed, but the ledger is at batch {batch}; the ledger was restored from "
                "an older copy: restore the newest copy, or give the pipeline a new sink and backfill it there"
            )
        return found

    @cached_property
    def _files(self) -> pa_fs.FileSystem:
        return store_of(self.place)

    def _load(self) -> DeltaTable | None:
        try:
            return newest(self.place)
        except TableNotFoundError:
            return None
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
    paths = {name: getattr(places, name) for name in ("state", "quarantine", "quality", "held")} | {"sink": runnable.sink_path}
    return {role: DeltaOwnTable(role, path, DeltaRsCommitter(beyond)) for role, path in paths.items()}


def _paths(table: DeltaTable) -> list[str]:
    return [str(path) for path in pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()]


def _change(version: int, actions: list[dict[str, Any]]) -> Change:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    files: dict[tuple[str, bool], set[str]] = {(kind, changes): set() for kind in ("add", "remove") for changes in (True, False)}
    counts: list[int | None] = []
    for action in actions:
        for kind in ("add", "remove"):
            if kind not in action:
                continue
            changes = bool(action[kind].get("dataChange", True))
            files[kind, changes].add(identity_of(action[kind]))
            if kind == "add" and changes:
                counts.append(json.loads(action[kind].get("stats") or "{}").get("numRecords"))
    transactions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
    rows = None if None in counts else sum(count for count in counts if count is not None)
    added, moved_in, removed, moved_out = map(frozenset, files.values())
    return Change(version, str(info.get("operation", "?")), added, removed, rows, _note(info), transactions, moved_in, moved_out)


def _note(info: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) and ("generation" in note or "windowmill" in note) else {}
