"""The protocol's view of a pipeline's own Delta tables: identity, version, landed batches, and later changes by others. No JVM."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints.delta_log_faults import has_lost_its_beginning
from windowmill.checkpoints.delta_log_files import actions_of, entry_name
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.runnable import Runnable
from windowmill.checkpoints.stores import store_of
from windowmill.windowing.errors import LedgerBehindError, SinkError, StateCorruptError, WindowmillError, first_line


@dataclass(frozen=True, slots=True)
class Standing:
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
        """SHA-256 of ``added``, 16 hexadecimal digits."""
        return hashlib.sha256("\n".join(sorted(self.added)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Landed:
    """A batch's commit in a table.

    ``attempt`` made it and added ``rows``. If its log entry has been cleaned up, ``attempt``, ``rows`` and ``digest`` are null, and
    ``version`` is the table's newest.
    """

    version: int
    attempt: str | None
    rows: int | None
    digest: str | None
    note: Mapping[str, Any]


class OwnTable(Protocol):
    """The interface of a table in the protocol; implemented by :class:`DeltaOwnTable`, and in memory by the simulator."""

    role: str
    place: str

    def standing(self) -> Standing | None:
        """The current id and version; none if there is no table."""

    def landed(self, app_id: str, batch: int) -> Landed | None:
        """The commit of ``batch`` under ``app_id``; none if it has not landed. Raises ``LedgerBehindError`` if a later batch has."""

    def changes_after(self, version: int) -> Iterator[Change]:
        """The commits after ``version`` that the log still contains, oldest first."""

    def change_at(self, version: int) -> Change | None:
        """The commit that created ``version``; none if the log no longer contains it."""


class DeltaOwnTable:
    """The Delta table at ``place``; its ``role`` in the pipeline is sink, state, quarantine or quality."""

    def __init__(self, role: str, place: str) -> None:
        self.role, self.place = role, place

    def standing(self) -> Standing | None:
        """As :meth:`OwnTable.standing`."""
        table = self._load()
        if table is None:
            return None
        if has_lost_its_beginning(table):
            raise self._unreadable(SinkError("the first entries of its log are gone"))
        return Standing(str(table.metadata().id), table.version())

    def landed(self, app_id: str, batch: int) -> Landed | None:
        """As :meth:`OwnTable.landed`."""
        table = self._load()
        found = None if table is None else table.transaction_version(app_id)
        if table is None or found is None or found < batch:
            return None
        if found > batch:
            raise LedgerBehindError(
                f"{self.role} {self.place}: batch {found} has landed, but the ledger is at batch {batch}; the ledger was restored from an "
                "older copy: restore the newest copy, or give the pipeline a new sink and backfill it there"
            )
        for version in range(table.version(), -1, -1):
            change = self.change_at(version)
            if change is None:
                return Landed(table.version(), None, None, None, {})
            if change.transactions.get(app_id) == batch:
                return Landed(version, change.note.get("attempt"), change.rows, change.digest, change.note)
        return None

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
            f"{self.role} {self.place}: cannot be read ({first_line(err)}); check its permissions, or restore the folder from a copy; "
            "nothing has been changed"
        )


def own_tables(runnable: Runnable) -> dict[str, OwnTable]:
    """The tables that the pipeline writes, by role."""
    places = runnable.places
    paths = {"state": places.state, "quarantine": places.quarantine, "quality": places.quality, "sink": runnable.sink_path}
    return {role: DeltaOwnTable(role, path) for role, path in paths.items()}


def _change(version: int, actions: list[dict[str, Any]]) -> Change:
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    files: dict[tuple[str, bool], set[str]] = {(kind, changes): set() for kind in ("add", "remove") for changes in (True, False)}
    counts: list[int | None] = []
    for action in actions:
        for kind in ("add", "remove"):
            if kind not in action:
                continue
            changes = bool(action[kind].get("dataChange", True))
            files[kind, changes].add(_identity(action[kind]))
            if kind == "add" and changes:
                counts.append(json.loads(action[kind].get("stats") or "{}").get("numRecords"))
    transactions = {action["txn"]["appId"]: int(action["txn"]["version"]) for action in actions if "txn" in action}
    rows = None if None in counts else sum(count for count in counts if count is not None)
    added, moved_in, removed, moved_out = map(frozenset, files.values())
    return Change(version, str(info.get("operation", "?")), added, removed, rows, _note(info), transactions, moved_in, moved_out)


def _identity(file: Mapping[str, Any]) -> str:
    # With another deletion vector, the same path holds other rows.
    deleted = file.get("deletionVector") or {}
    return f"{file['path']} {deleted.get('storageType', '')}{deleted.get('pathOrInlineDv', '')}@{deleted.get('offset', '')}"


def _note(info: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) and ("generation" in note or "windowmill" in note) else {}
