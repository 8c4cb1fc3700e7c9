"""The ledger's records in a Delta table: appended one by one behind a fence, and merged so that reading the newest stays quick. No JVM.

Each record begins as a file of its own. After 32 appends these files are merged into one, and 32 of those into one that is never
rewritten again; so a ledger of any length is its large old files, of which the log's statistics tell what they hold, and at most 64 small
ones. A merge changes no record: it is no reason to fence a writer, who reads anew and appends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from checkpoints.full_disk import is_disk_full
from checkpoints.kept_tables import KeptTable
from checkpoints.record_files import SCHEMA, RecordFile, decoded, ordered, packed, read_bytes
from checkpoints.record_merging import FAN, LAST_LEVEL, merged_files, to_merge
from checkpoints.records import Record, sealed
from windowing.errors import FencedError, LedgerCorruptError, LedgerError, StorageFullError, first_line

#: Newest batches that are read whenever the ledger is opened.
TAIL_BATCHES = 8
#: How often an append is tried again because a merge or a vacuum came between.
_ATTEMPTS = 5
#: Files that a merge has superseded are kept so long for whoever still reads an older version: a read takes seconds.
RETENTION_HOURS = 24
#: Each load reads a Delta log checkpoint and the entries since; older entries say the same again and would only be listed.
CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
_FAILURES = (DeltaError, pa.ArrowException, OSError)


class DeltaRecords:
    """Records in the Delta table at ``path``; as :class:`checkpoints.records.RecordStore`."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Its own, since a version that others have moved on would let an append pass that has to be refused.
        self._kept = KeptTable(path)
        self._table: DeltaTable | None = None
        #: In the order in which their records were appended.
        self._files: list[RecordFile] = []
        #: Records of the newest files, by path: a file never changes.
        self._decoded: dict[str, list[Record]] = {}
        self._newest: Record | None = None

    def load(self) -> list[Record]:
        """As :meth:`RecordStore.load`; none where there is no table yet.

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
            told = _told_count(self._table, self._path)
        if told is not None and told != self._count:
            raise LedgerCorruptError(
                f"ledger {self._path}: its last commit left {told} records, its log tells of {self._count}; restore the folder from a copy"
            )
        batches = max((file.last for file in self._files), default=-1) + 1
        first = max(0, batches - TAIL_BATCHES)
        tail = self.read(first, batches)
        if tail and tail[-1].number is not None and tail[-1].number != self._count - 1:
            raise LedgerCorruptError(
                f"ledger {self._path}: its log tells of {self._count} records, the newest (of batch {tail[-1].batch}) is number "
                f"{tail[-1].number}; restore the folder from a copy"
            )
        self._newest = tail[-1] if tail else None
        return tail

    def read(self, first: int, before: int) -> list[Record]:
        """As :meth:`RecordStore.read`; raises as :meth:`load`."""
        wanted = [file for file in self._files if file.last >= first and file.first < before]
        found = self._records(wanted)
        if any(file is self._files[-1] for file in wanted):
            self._decoded = dict(list(found.items())[-2 * FAN :])
        records = ordered([record for part in found.values() for record in part if first <= record.batch < before])
        for one, later in pairwise(records):
            if one.number is not None and later.number != one.number + 1:
                raise LedgerCorruptError(
                    f"ledger {self._path}: record {one.number + 1}, of batch {one.batch} or {later.batch}, is missing or doubled; "
                    "restore the folder from a copy"
                )
        return records

    def append(self, record: Record) -> None:
        """As :meth:`RecordStore.append`."""
        count = self._count
        numbered = sealed(record, count)
        told = {"kind": record.kind, "batch": str(record.batch), "attempt": record.attempt}
        file, content = packed([numbered], 0)
        for _ in range(_ATTEMPTS):
            version = self._version
            try:
                self._commit([(file, content)], [], told, data_change=True)
                break
            except _FAILURES as err:
                if self._has_landed(file, record, count, version, err):
                    break
        else:
            raise LedgerError(f"ledger {self._path}: was changed by a merge or a vacuum again and again; wait for it to end, and run again")
        if to_merge([*self._files, file]):
            # The record has been appended: what fails here is left to a later append.
            with suppress(*_FAILURES, LedgerError):
                self.merge()

    def add_files(self, files: Sequence[tuple[RecordFile, bytes]]) -> None:
        """Append whole files of records in one commit, as for a ledger that is made in bulk; fenced like :meth:`append`."""
        self._commit(files, [], {"kind": "bulk"}, data_change=True)

    def merge(self) -> int:
        """Merge small files if there are enough of them; how many files went. What is appended meanwhile prevents the merge."""
        self.load()
        chosen = to_merge(self._files)
        if not chosen:
            return 0
        records = ordered([record for part in self._records(chosen).values() for record in part])
        merged = list(merged_files(records, last=any(file.level for file in chosen)))
        self._commit(merged, chosen, {"kind": "merge"}, data_change=False)
        if any(file.level == LAST_LEVEL for file, _ in merged):
            self.vacuum()
        return len(chosen) - len(merged)

    def vacuum(self) -> int:
        """Remove files that merges superseded, and those that no commit names, :data:`RETENTION_HOURS` ago; how many."""
        self.load()
        if self._table is None:
            return 0
        with _readable(self._path):
            told = CommitProperties(custom_metadata={"records": str(self._count)})
            removed = self._table.vacuum(
                RETENTION_HOURS, dry_run=False, enforce_retention_duration=False, commit_properties=told, full=True
            )
        return len(removed)

    @property
    def _count(self) -> int:
        return sum(file.records for file in self._files)

    @property
    def _version(self) -> int | None:
        return None if self._table is None else self._table.version()

    def _records(self, files: Sequence[RecordFile]) -> dict[str, list[Record]]:
        if self._table is None:
            return {}
        with _readable(self._path):
            place = _filesystem(self._table)
            return {
                file.path: self._decoded.get(file.path) or decoded(read_bytes(place, file, self._path), file, self._path) for file in files
            }

    def _check_absent(self) -> None:
        # Log entries and checkpoints: a writer that died may also have left an entry under the name that it has before it is whole.
        if "://" not in self._path and any(file.suffix in (".json", ".parquet") for file in Path(self._path, "_delta_log").glob("*")):
            raise LedgerCorruptError(f"ledger {self._path}: its log holds no readable commit; restore the folder from a copy")

    def _has_landed(self, file: RecordFile, record: Record, count: int, version: int | None, failure: Exception) -> bool:
        """Whether ``record`` is in the ledger although writing it failed, as when an answer is lost; if not, it may be tried again."""
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
            return False  # merged or vacuumed: the records are those that the writer has seen
        told = f"ledger {self._path}: the {record.kind} of batch {record.batch} could not be written ({first_line(failure)})"
        if is_disk_full(failure):
            raise StorageFullError(f"{told}: the disk is full or a quota is used up; free some space, and run again") from failure
        raise LedgerError(f"{told}; nothing has been changed, check the folder and run again") from failure

    def _commit(
        self, added: Sequence[tuple[RecordFile, bytes]], removed: Sequence[RecordFile], told: dict[str, str], *, data_change: bool
    ) -> None:
        table = self._opened()
        place = _filesystem(table)
        for file, content in added:
            with place.open_output_stream(file.path, buffer_size=1 << 16) as stream:  # deltalake takes no unbuffered pyarrow writes
                stream.write(content)
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, {}, now, data_change, json.dumps(file.statistics)) for file, _ in added
        ]
        actions += [RemoveAction(file.path, data_change, now, file.size_bytes) for file in removed]
        count = self._count + sum(file.records for file, _ in added) - sum(file.records for file in removed)
        # No retries: a retry would rebase onto the other writer's record, and both would have planned or committed the same batch.
        fence = CommitProperties(max_commit_retries=0, custom_metadata=told | {"records": str(count)})
        table.create_write_transaction(actions, "append", table.schema(), commit_properties=fence)

    def _opened(self) -> DeltaTable:
        """The table as it was loaded; made where there is none, and given what an older windowmill did not know."""
        if self._table is None:
            if "://" not in self._path:
                Path(self._path).mkdir(parents=True, exist_ok=True)
            self._table = DeltaTable.create(self._path, schema=SCHEMA, mode="error", name="windowmill ledger", configuration=CONFIGURATION)
        known = {field.name for field in self._table.schema().fields}
        missing = [field for field in DeltaSchema.from_arrow(SCHEMA).fields if field.name not in known]
        if missing:
            fence = CommitProperties(max_commit_retries=0, custom_metadata={"records": str(self._count)})
            self._table.alter.add_columns(missing, commit_properties=fence)
            self._table.alter.set_table_properties(CONFIGURATION, commit_properties=fence)
        return self._table


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Other libraries' failures to read, as ``LedgerError``."""
    try:
        yield
    except BaseException as err:
        # A panic of Rust code, as some damaged files cause, is no Exception.
        if not isinstance(err, _FAILURES) and type(err).__name__ != "PanicException":
            raise
        raise LedgerError(
            f"ledger {path}: cannot be read ({first_line(err)}); restore the folder from a copy, nothing has been changed"
        ) from err


def _filesystem(table: DeltaTable) -> pa_fs.FileSystem:
    # Not deltalake's own pyarrow reader: it leaves threads behind that abort the interpreter at its exit (1.6.6, exit code 134), and its
    # SQL takes half a second to start.
    return pa_fs.PyFileSystem(DeltaStorageHandler(table.table_uri))


def _listed(table: DeltaTable, path: str) -> list[RecordFile]:
    actions = table.get_add_actions(flatten=True)
    if actions.num_rows == 0:
        return []
    wanted = ("path", "size_bytes", "num_records", "min.batch", "max.batch")
    if missing := sorted(set(wanted) - set(actions.schema.names)):
        raise LedgerCorruptError(f"ledger {path}: its log does not tell {missing[0]} of any file; restore the folder from a copy")
    columns = (actions.column(name).to_pylist() for name in wanted)
    files = [RecordFile(*values) for values in zip(*columns, strict=True)]
    for file in files:
        numbers = (file.size_bytes, file.records, file.first, file.last)
        if any(number is None or number < 0 for number in numbers) or file.first > file.last:
            raise LedgerCorruptError(f"ledger {path}: its log tells of {file.path} what cannot be; restore the folder from a copy")
    return sorted(files, key=lambda file: (file.first, file.last, file.path))


def _told_count(table: DeltaTable, path: str) -> int | None:
    """How many records the newest commit says that it left: if its own file was dropped from the log, nothing else would tell."""
    name = f"_delta_log/{table.version():020d}.json"
    place = _filesystem(table)
    if place.get_file_info([name])[0].type != pa_fs.FileType.File:
        return None
    with place.open_input_file(name) as stream:
        lines = bytes(stream.readall()).splitlines()
    try:
        actions = [json.loads(line) for line in lines]
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        if info.get("operation") == "WRITE" and not any("add" in action for action in actions):
            raise ValueError("it adds no file")
        return None if info.get("records") is None else int(info["records"])
    except (ValueError, TypeError, AttributeError) as err:
        raise LedgerCorruptError(
            f"ledger {path}: its last log entry {name} is damaged ({first_line(err)}); restore the folder from a copy"
        ) from err
