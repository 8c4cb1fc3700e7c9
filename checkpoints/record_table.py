"""The ledger's records in a Delta table: appended one at a time behind a fence, and merged so that opening stays fast. No JVM.

Each record is first written to a file of its own. Every 32 such files are merged into one, and every 32 merged files into one that is
never rewritten. So a ledger of any length consists of large old files, whose batches the log's statistics give, and at most 64 small
ones. A merge changes no record, so it does not fence out a writer: the writer reloads and appends again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from operator import attrgetter

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from windowmill.checkpoints.committer import NO_HOOKS, checkpoint_if_due
from windowmill.checkpoints.data_files import remove
from windowmill.checkpoints.delta_tables import KeptTable, actions_of, entry_name, floor_of
from windowmill.checkpoints.records import (
    FAN,
    LAST_LEVEL,
    SCHEMA,
    LedgerRecord,
    RecordFile,
    decoded,
    merged_files,
    packed,
    read_bytes,
    sealed,
    to_merge,
)
from windowmill.checkpoints.stores import create_table, is_disk_full, remedy, store_of
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, StorageFullError, first_line

#: Number of newest batches read when the ledger is opened.
TAIL_BATCHES = 8
#: Attempts at an append that concurrent merges or vacuums make fail.
_ATTEMPTS = 5
#: Hours for which files superseded by a merge are kept for readers of older versions; a read takes seconds.
RETENTION_HOURS = 24
#: Each load reads the last Delta log checkpoint and the entries after it; older entries are redundant and only slow down listing.
CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
_NUMBER = attrgetter("number")
_FAILURES = (DeltaError, pa.ArrowException, OSError)


class DeltaRecords:
    """Records in the Delta table at ``path``; as :class:`windowmill.checkpoints.records.RecordStore`."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Not shared: if another caller updated it, an append that has to be fenced off would pass.
        self._kept = KeptTable(path)
        self._table: DeltaTable | None = None
        #: In append order of their records.
        self._files: list[RecordFile] = []
        #: Cached records of the newest files, by path; files are immutable.
        self._decoded: dict[str, list[LedgerRecord]] = {}
        self._newest: LedgerRecord | None = None

    def load(self) -> list[LedgerRecord]:
        """As :meth:`RecordStore.load`; empty if there is no table yet.

        Raises
        ------
        LedgerError
            If the table cannot be read.
        LedgerCorruptError
            If a record is damaged or missing.
        """
        with _readable(self._path):
            try:
                self._table = self._kept.newest()
            except TableNotFoundError:
                self._check_absent()
                self._table, self._files, self._newest = None, [], None
                return []
            self._files = _listed(self._table, self._path)
            recorded = _recorded_count(self._table, self._path)
        if recorded is not None and recorded != self._count:
            raise LedgerCorruptError(
                f"ledger {self._path}: its last commit left {recorded} records, its log lists {self._count}; restore the folder from a copy"
            )
        batches = max((file.last for file in self._files), default=-1) + 1
        first = max(0, batches - TAIL_BATCHES)
        tail = self.read(first, batches)
        if tail and tail[-1].number != self._count - 1:
            raise LedgerCorruptError(
                f"ledger {self._path}: its log lists {self._count} records, but the newest (of batch {tail[-1].batch}) is number "
                f"{tail[-1].number}; restore the folder from a copy"
            )
        self._newest = tail[-1] if tail else None
        return tail

    def read(self, first: int, before: int) -> list[LedgerRecord]:
        """As :meth:`RecordStore.read`; raises as :meth:`load`."""
        wanted = [file for file in self._files if file.last >= first and file.first < before]
        by_file = self._records(wanted)
        if any(file is self._files[-1] for file in wanted):
            self._decoded = dict(list(by_file.items())[-2 * FAN :])
        records = sorted((record for part in by_file.values() for record in part if first <= record.batch < before), key=_NUMBER)
        for one, later in pairwise(records):
            if later.number != one.number + 1:
                raise LedgerCorruptError(
                    f"ledger {self._path}: record {one.number + 1}, of batch {one.batch} or {later.batch}, is missing or duplicated; "
                    "restore the folder from a copy"
                )
        return records

    def append(self, record: LedgerRecord) -> None:
        """As :meth:`RecordStore.append`."""
        count = self._count
        numbered = sealed(record, count)
        properties = {"kind": record.kind, "batch": str(record.batch), "attempt": record.attempt}
        file, content = packed([numbered], 0)
        for _ in range(_ATTEMPTS):
            version = self._version
            try:
                self._commit([(file, content)], [], properties, data_change=True)
                break
            except _FAILURES as err:
                if self._was_written(file, record, count, version, err):
                    break
        else:
            raise LedgerError(f"ledger {self._path}: was changed repeatedly by a merge or a vacuum; wait for it to end, and run again")
        if to_merge([*self._files, file]):
            # The record is appended already; if the merge fails, a later append tries again.
            with suppress(*_FAILURES, LedgerError):
                self.merge()

    def add_files(self, files: Sequence[tuple[RecordFile, bytes]]) -> None:
        """Append whole files of records in one commit, to create a ledger in bulk; fenced like :meth:`append`."""
        self._commit(files, [], {"kind": "bulk"}, data_change=True)

    def merge(self) -> int:
        """Merge small files if there are enough; returns by how many their number fell. A concurrent append makes the merge fail."""
        self.load()
        chosen = to_merge(self._files)
        if not chosen:
            return 0
        records = sorted((record for part in self._records(chosen).values() for record in part), key=_NUMBER)
        merged = list(merged_files(records, last=any(file.level for file in chosen)))
        self._commit(merged, chosen, {"kind": "merge"}, data_change=False)
        if any(file.level == LAST_LEVEL for file, _ in merged):
            self.vacuum()
        return len(chosen) - len(merged)

    def rewrite(self, change: Callable[[LedgerRecord], LedgerRecord]) -> int:
        """Replace each record by what ``change`` makes of it, under the same number; returns how many files it rewrote."""
        self.load()
        added, removed = list[tuple[RecordFile, bytes]](), list[RecordFile]()
        for file in self._files:
            records = self._records([file])[file.path]
            changed = [change(record) for record in records]
            if changed != records:
                added.append(packed([sealed(record, record.number) for record in changed], file.level))
                removed.append(file)
        if removed:
            self._commit(added, removed, {"kind": "redaction"}, data_change=False)
        return len(removed)

    def vacuum(self, hours: int = RETENTION_HOURS) -> int:
        """Remove superseded and uncommitted files that are older than so many ``hours``; returns how many."""
        self.load()
        if self._table is None:
            return 0
        with _readable(self._path):
            properties = CommitProperties(custom_metadata={"records": str(self._count)})
            removed = self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False, commit_properties=properties, full=True)
            ahead = [] if hours else self._superseded()
            remove(self._path, ahead)
        return len(removed) + len(ahead)

    def _superseded(self) -> list[str]:
        """Files of records that the log does not list, as those that count as removed later than now, by a clock that is ahead."""
        there = store_of(self._path).get_file_info(pa_fs.FileSelector("", allow_not_found=True))
        return sorted({info.path for info in there if info.path.endswith(".parquet")} - {file.path for file in self._files})

    @property
    def _count(self) -> int:
        return sum(file.records for file in self._files)

    @property
    def _version(self) -> int | None:
        return None if self._table is None else self._table.version()

    def _records(self, files: Sequence[RecordFile]) -> dict[str, list[LedgerRecord]]:
        if self._table is None:
            return {}
        with _readable(self._path):
            store = _filesystem(self._table)
            return {
                file.path: self._decoded.get(file.path) or decoded(read_bytes(store, file, self._path), file, self._path) for file in files
            }

    def _check_absent(self) -> None:
        # Only log entries and checkpoints count: a killed writer may also have left a temporary file of an incomplete entry.
        log = store_of(self._path).get_file_info(pa_fs.FileSelector("_delta_log", allow_not_found=True))
        if any(file.extension in ("json", "parquet") for file in log):
            raise LedgerCorruptError(f"ledger {self._path}: its log holds no readable commit; restore the folder from a copy")

    def _was_written(self, file: RecordFile, record: LedgerRecord, count: int, version: int | None, failure: Exception) -> bool:
        """Whether ``record`` was written although an error was raised, as when the response is lost; false means that a retry is safe."""
        newest = self._newest
        self.load()
        if any(known.path == file.path for known in self._files):
            return True
        if self._count != count or self._newest != newest:
            raise FencedError(
                f"ledger {self._path}: another run wrote while this one was at its {record.kind} of batch {record.batch}; "
                "it stops without effect"
            ) from failure
        if self._version != version:
            return False  # a merge or vacuum: the records are the ones this writer has read
        failed = f"ledger {self._path}: the {record.kind} of batch {record.batch} could not be written ({first_line(failure)})"
        if is_disk_full(failure):
            raise StorageFullError(f"{failed}: the disk is full or a quota is used up; free some space, and run again") from failure
        raise LedgerError(f"{failed}; nothing has been changed, check the folder and run again") from failure

    def _commit(
        self, added: Sequence[tuple[RecordFile, bytes]], removed: Sequence[RecordFile], properties: dict[str, str], *, data_change: bool
    ) -> None:
        table = self._opened()
        store = _filesystem(table)
        for file, content in added:
            with store.open_output_stream(file.path, buffer_size=1 << 16) as stream:  # deltalake takes no unbuffered pyarrow writes
                stream.write(content)
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now, data_change, json.dumps(file.statistics)) for file, _ in added
        ]
        actions += [RemoveAction(file.path, data_change, now, file.size_bytes) for file in removed]
        count = self._count + sum(file.records for file, _ in added) - sum(file.records for file in removed)
        # No retries: a retry would rebase onto the other writer's record, and both would have planned or committed the same batch.
        fence = CommitProperties(max_commit_retries=0, custom_metadata=properties | {"records": str(count)})
        version = table.version() + 1
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=fence, post_commithook_properties=NO_HOOKS)
        if floor_of(self._path) >= version:
            # A log that was cleaned up lets a stalled writer make an old version again, which counts for nothing.
            raise OSError(f"version {version} is older than the last checkpoint of the log")
        checkpoint_if_due(self._path, version)

    def _opened(self) -> DeltaTable:
        """The table as loaded; created if missing."""
        if self._table is None:
            settings = {"mode": "error", "name": "windowmill ledger", "configuration": CONFIGURATION}
            self._table = create_table(self._path, SCHEMA, **settings)
        return self._table


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raise read errors of other libraries as ``LedgerError``."""
    try:
        yield
    except BaseException as err:
        # Some damaged files cause a Rust panic, which is not an ``Exception``.
        if not isinstance(err, _FAILURES) and type(err).__name__ != "PanicException":
            raise
        raise LedgerError(
            f"ledger {path}: cannot be read ({first_line(err)}); {remedy(err, 'restore the folder from a copy')}; nothing has been changed"
        ) from err


def _filesystem(table: DeltaTable) -> pa_fs.FileSystem:
    # Not deltalake's own pyarrow reader: it leaves threads behind that abort the interpreter at exit (1.6.6, exit code 134). Its SQL
    # engine takes half a second to start.
    return store_of(table.table_uri)


def _listed(table: DeltaTable, path: str) -> list[RecordFile]:
    actions = table.get_add_actions(flatten=True)
    if actions.num_rows == 0:
        return []
    wanted = ("path", "size_bytes", "num_records", "min.batch", "max.batch")
    if missing := sorted(set(wanted) - set(actions.schema.names)):
        raise LedgerCorruptError(f"ledger {path}: its log has no {missing[0]} of any file; restore the folder from a copy")
    columns = (actions.column(name).to_pylist() for name in wanted)
    files = [RecordFile(*values) for values in zip(*columns, strict=True)]
    for file in files:
        numbers = (file.size_bytes, file.records, file.first, file.last)
        if any(number is None or number < 0 for number in numbers) or file.first > file.last:
            raise LedgerCorruptError(f"ledger {path}: its log has invalid statistics of {file.path}; restore the folder from a copy")
    return sorted(files, key=lambda file: (file.first, file.last, file.path))


def _recorded_count(table: DeltaTable, path: str) -> int | None:
    """Number of records after the newest commit, as the commit recorded it; only this shows that its own file is missing from the log."""
    name = entry_name(table.version())
    try:
        with store_of(path).open_input_file(name) as stream:
            entry = stream.read()
    except FileNotFoundError:
        return None
    try:
        actions = actions_of(entry)
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if info.get("operation") == "WRITE" and not any("add" in action for action in actions):
            raise ValueError("it adds no file")
        return None if info.get("records") is None else int(info["records"])
    except (ValueError, TypeError, AttributeError) as err:
        raise LedgerCorruptError(
            f"ledger {path}: its last log entry {name} is damaged ({first_line(err)}); restore the folder from a copy"
        ) from err
