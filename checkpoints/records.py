"""Ledger records: their fields and checksums, and the Delta table to which they are appended one at a time behind a fence.

Each record is first written to a file of its own. Every 32 such files are merged into one, and every 32 merged files into one that is
never rewritten. So a ledger of any length consists of large old files, whose batches the log's statistics give, and at most 64 small
ones. A merge changes no record, so it does not fence out a writer: the writer reloads and appends again.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from windowmill.checkpoints.data_files import remove
from windowmill.checkpoints.delta_tables import NO_HOOKS, KeptTable, actions_of, checkpoint_if_due, entry_name, floor_of
from windowmill.checkpoints.stores import FAILURES, create_table, is_disk_full, remedy, store_of
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, OutdatedLedgerError, StorageFullError, first_line

#: The format that this release writes and reads; increased when the meaning of records changes.
FORMAT = 5
SCHEMA = pa.schema(
    [
        ("format", pa.int32()),
        ("kind", pa.string()),
        ("batch", pa.int64()),
        ("attempt", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("body", pa.string()),
        ("number", pa.int64()),
        ("sum", pa.int64()),
    ]
)
_AT, _EPOCH = SCHEMA.field("at").type, datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"records-\d+-(?P<level>\d)-[0-9a-f]{8}-(?P<crc>[0-9a-f]{8})\.parquet")
#: A file without a checksum may declare so many bytes plus so many times its own size.
_DECLARED_BYTES, _DECLARED_TIMES = 64 << 20, 64
#: Number of files of one level merged into one of the next; files of the last level are final.
FAN, LAST_LEVEL = 32, 2
#: Maximum number of files in one merge.
_MERGED_FILES = 2_048
#: Maximum number of characters of record bodies in a merged file, unless a single record has more.
_MERGED_CHARACTERS = 16 << 20
#: Number of newest batches read when the ledger is opened.
TAIL_BATCHES = 8
#: Attempts at an append that concurrent merges or vacuums make fail.
_ATTEMPTS = 5
#: Hours for which files superseded by a merge are kept for readers of older versions; a read takes seconds.
RETENTION_HOURS = 24
#: Each load reads the last Delta log checkpoint and the entries after it; older entries are redundant and only slow down listing.
CONFIGURATION = {
    "delta.checkpointInterval": "10",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
_NUMBER = attrgetter("number")


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One record of the ledger; ``body`` is JSON."""

    format: int
    kind: str
    batch: int
    attempt: str
    at: datetime
    body: str
    #: Position in the ledger, from 0; -1 until the record is sealed.
    number: int = -1
    #: Checksum of all other fields; null until the record is sealed.
    sum: int | None = None


def sealed(record: LedgerRecord, number: int) -> LedgerRecord:
    """``record`` with its ``number`` in the ledger and its checksum."""
    numbered = replace(record, number=number)
    return replace(numbered, sum=checksum(numbered))


def checksum(record: LedgerRecord) -> int:
    """64-bit checksum over all other fields of ``record``, as a signed integer."""
    instant = (record.at - _EPOCH) // timedelta(microseconds=1)
    fields = [record.format, record.kind, record.batch, record.attempt, instant, record.body, record.number]
    return int.from_bytes(hashlib.blake2b(json.dumps(fields).encode(), digest_size=8).digest(), "big", signed=True)


def check_record(record: LedgerRecord, place: str) -> None:
    """Check that ``record`` is as it was written; ``place`` names its file in messages.

    Raises ``LedgerError`` if a newer windowmill wrote it; ``OutdatedLedgerError`` if an older one did; ``LedgerCorruptError`` if it is
    damaged.
    """
    expected = {"format": int, "kind": str, "batch": int, "attempt": str, "at": datetime, "body": str}
    wrong = [name for name, kind in expected.items() if not isinstance(getattr(record, name), kind)]
    if wrong:
        raise LedgerCorruptError(f"{place}: a record of batch {record.batch} has no {wrong[0]}; restore the folder from a copy")
    if record.format > FORMAT:
        raise LedgerError(f"{place}: format {record.format}, this windowmill reads format {FORMAT}; upgrade windowmill on this machine")
    if record.format < FORMAT:
        raise OutdatedLedgerError(
            f"{place}: format {record.format} of a version before the first release, this windowmill reads format {FORMAT}; give the "
            "pipeline a new sink and backfill it there"
        )
    if record.sum != checksum(record):
        raise LedgerCorruptError(
            f"{place}: the {record.kind} of batch {record.batch} is damaged (its checksum does not match); restore the folder from a copy"
        )


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file of the ledger as the Delta log describes it: the number of ``records``, and their ``first`` and ``last`` batch."""

    path: str
    size_bytes: int
    records: int
    first: int
    last: int

    @property
    def level(self) -> int:
        """How often its records have been merged; 0 for a file as appended."""
        match = _NAME.fullmatch(self.path)
        return int(match["level"]) if match else 0


def packed(records: Sequence[LedgerRecord], level: int) -> tuple[RecordFile, bytes]:
    """A new file of ``records`` and its bytes; its unique name contains the CRC-32 of the bytes."""
    columns = {name: [getattr(record, name) for record in records] for name in SCHEMA.names}
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, schema=SCHEMA), buffer, compression="zstd", write_page_checksum=True)
    content = buffer.getvalue().to_pybytes()
    name = f"records-{records[0].number:012d}-{level}-{uuid.uuid4().hex[:8]}-{zlib.crc32(content):08x}.parquet"
    batches = [record.batch for record in records]
    return RecordFile(name, len(content), len(records), min(batches), max(batches)), content


def decoded(content: bytes, file: RecordFile, ledger: str) -> list[LedgerRecord]:
    """The records of ``file``, each checked, and compared with what the log says about the file.

    Raises ``LedgerCorruptError`` if the bytes are damaged or do not match the log.
    """
    place = f"ledger {ledger}: {file.path} (batches {file.first} to {file.last})"
    match = _NAME.fullmatch(file.path)
    if match and zlib.crc32(content) != int(match["crc"], 16):
        raise LedgerCorruptError(f"{place}: the file is damaged (its checksum does not match); restore the folder from a copy")
    try:
        records = [LedgerRecord(**row) for row in _rows(content, trusted=match is not None)]
    except Exception as err:  # damaged bytes can raise anything, an unknown time zone for one
        raise LedgerCorruptError(f"{place}: cannot be read ({first_line(err)}); restore the folder from a copy") from err
    for record in records:
        check_record(record, place)
    batches = [record.batch for record in records]
    if len(records) != file.records or min(batches, default=0) != file.first or max(batches, default=0) != file.last:
        raise LedgerCorruptError(f"{place}: holds other records than the ledger's log lists; restore the folder from a copy")
    return records


def read_bytes(files: pa_fs.FileSystem, file: RecordFile, ledger: str) -> bytes:
    """The bytes of ``file``; raises ``LedgerCorruptError`` before reading if its size is not the one in the log."""
    with files.open_input_file(file.path) as stream:
        if stream.size() != file.size_bytes:
            raise LedgerCorruptError(
                f"ledger {ledger}: {file.path}: batches {file.first} to {file.last}: {stream.size():,} bytes instead of "
                f"{file.size_bytes:,}; restore the folder from a copy"
            )
        return bytes(stream.read(file.size_bytes))


def to_merge(files: Sequence[RecordFile]) -> list[RecordFile]:
    """The ``files`` to merge now, in order; none while there are few appended files and the names of all of them have checksums.

    A file that an ``OPTIMIZE`` by others made has none.
    """
    appended = [file for file in files if file.level == 0]
    if len(appended) < FAN and all(_NAME.fullmatch(file.path) for file in appended):
        return []
    merged = [file for file in files if 0 < file.level < LAST_LEVEL]
    chosen = [*merged, *appended] if len(merged) >= FAN - 1 else appended
    return chosen[:_MERGED_FILES]


def merged_files(records: Sequence[LedgerRecord], *, last: bool) -> Iterator[tuple[RecordFile, bytes]]:
    """Pack ``records`` into files of up to ``FAN * FAN`` records; ``last`` says that some were merged before."""
    start = size = 0
    for n, record in enumerate(records):
        if n > start and (n - start >= FAN * FAN or size + len(record.body) > _MERGED_CHARACTERS):
            yield packed(records[start:n], LAST_LEVEL)
            start, size = n, 0
        size += len(record.body)
    yield packed(records[start:], LAST_LEVEL if last or len(records) - start >= FAN * FAN else 1)


def _rows(content: bytes, *, trusted: bool) -> list[dict[str, Any]]:
    # Nothing in a footer is longer than the file, and a file of one record is small when decompressed. A file that declares more is
    # damaged, and trusting it could allocate gigabytes.
    limits = {"thrift_string_size_limit": max(1, len(content)), "thrift_container_size_limit": max(1, len(content))}
    reader = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, **limits)
    metadata = reader.metadata
    # Row groups, not columns: on some damaged column metadata pyarrow 26 ends the process instead of raising.
    declared = sum(max(0, metadata.row_group(n).total_byte_size) for n in range(metadata.num_row_groups))
    if not trusted and (declared > _DECLARED_BYTES + _DECLARED_TIMES * len(content) or metadata.num_rows > declared):
        raise ValueError(f"it declares {declared:,} bytes and {metadata.num_rows:,} rows")
    known = [name for name in SCHEMA.names if name in reader.schema_arrow.names]
    table = reader.read(columns=known, use_threads=False)
    columns = {name: table.column(name) for name in known}
    instants = {name for name, column in columns.items() if column.type == _AT}
    # pyarrow imports pandas to convert timestamps, which takes longer than the rest of a run that finds nothing new.
    values = {name: (column.cast(pa.int64()) if name in instants else column).to_pylist() for name, column in columns.items()}
    for name in instants:
        values[name] = [at if at is None else _EPOCH + timedelta(microseconds=at) for at in values[name]]
    return [dict(zip(known, cells, strict=True)) for cells in zip(*values.values(), strict=True)]


class DeltaRecords:
    """Records in the Delta table at ``path``; the simulator of the tests has some in memory, with ``load``, ``read`` and ``append``."""

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
        """The records of the newest batches, in order, each batch with all of its records; none if there is no table yet.

        Later appends are fenced against this version of the table. A short ledger is returned whole.

        Raises ``LedgerError`` if the table cannot be read; ``LedgerCorruptError`` if a record is damaged or missing.
        """
        with _readable(self._path):
            try:
                self._table = self._kept.newest()
            except TableNotFoundError:
                # Only log entries and checkpoints count: a killed writer may also have left a temporary file of an incomplete entry.
                log = store_of(self._path).get_file_info(pa_fs.FileSelector("_delta_log", allow_not_found=True))
                if any(file.extension in ("json", "parquet") for file in log):
                    raise LedgerCorruptError(
                        f"ledger {self._path}: its log holds no readable commit; restore the folder from a copy"
                    ) from None
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
        """The records of the batches [``first``, ``before``), in order, as of the last :meth:`load`; raises as that."""
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
        """Add ``record``.

        Raises ``FencedError`` if another record was appended since :meth:`load`; ``StorageFullError`` or ``LedgerError`` if ``record``
        could not be written; the ledger is unchanged.
        """
        count = self._count
        numbered = sealed(record, count)
        properties = {"kind": record.kind, "batch": str(record.batch), "attempt": record.attempt}
        file, content = packed([numbered], 0)
        for _ in range(_ATTEMPTS):
            version = None if self._table is None else self._table.version()
            try:
                self._commit([(file, content)], [], properties, data_change=True)
                break
            except FAILURES as err:
                if self._was_written(file, record, count, version, err):
                    break
        else:
            raise LedgerError(f"ledger {self._path}: was changed repeatedly by a merge or a vacuum; wait for it to end, and run again")
        if to_merge([*self._files, file]):
            # The record is appended already; if the merge fails, a later append tries again.
            with suppress(*FAILURES, LedgerError):
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
            ahead: list[str] = []
            if not hours:
                # The vacuum leaves files that it takes as removed later than now, by a clock ahead.
                there = store_of(self._path).get_file_info(pa_fs.FileSelector("", allow_not_found=True))
                ahead = sorted({info.path for info in there if info.path.endswith(".parquet")} - {file.path for file in self._files})
            remove(self._path, ahead)
        return len(removed) + len(ahead)

    @property
    def _count(self) -> int:
        return sum(file.records for file in self._files)

    def _records(self, files: Sequence[RecordFile]) -> dict[str, list[LedgerRecord]]:
        if self._table is None:
            return {}
        with _readable(self._path):
            # Not deltalake's own pyarrow reader: it leaves threads behind that abort the interpreter at exit (1.6.6, exit code 134).
            # Its SQL engine takes half a second to start.
            store = store_of(self._table.table_uri)
            return {
                file.path: self._decoded.get(file.path) or decoded(read_bytes(store, file, self._path), file, self._path) for file in files
            }

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
        if (None if self._table is None else self._table.version()) != version:
            return False  # a merge or vacuum: the records are the ones this writer has read
        failed = f"ledger {self._path}: the {record.kind} of batch {record.batch} could not be written ({first_line(failure)})"
        if is_disk_full(failure):
            raise StorageFullError(f"{failed}: the disk is full or a quota is used up; free some space, and run again") from failure
        raise LedgerError(f"{failed}; nothing has been changed, check the folder and run again") from failure

    def _commit(
        self, added: Sequence[tuple[RecordFile, bytes]], removed: Sequence[RecordFile], properties: dict[str, str], *, data_change: bool
    ) -> None:
        if self._table is None:
            settings = {"mode": "error", "name": "windowmill ledger", "configuration": CONFIGURATION}
            self._table = create_table(self._path, SCHEMA, **settings)
        table, store = self._table, store_of(self._table.table_uri)
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for file, content in added:
            with store.open_output_stream(file.path, buffer_size=1 << 16) as stream:  # deltalake takes no unbuffered pyarrow writes
                stream.write(content)
            ends = {"minValues": {"batch": file.first}, "maxValues": {"batch": file.last}}
            statistics = json.dumps({"numRecords": file.records, **ends, "nullCount": {"batch": 0}})
            actions.append(AddAction(file.path, file.size_bytes, {}, now, data_change, statistics))
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


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Raise read errors of other libraries as ``LedgerError``."""
    try:
        yield
    except BaseException as err:
        # Some damaged files cause a Rust panic, which is not an ``Exception``.
        if not isinstance(err, FAILURES) and type(err).__name__ != "PanicException":
            raise
        raise LedgerError(
            f"ledger {path}: cannot be read ({first_line(err)}); {remedy(err, 'restore the folder from a copy')}; nothing has been changed"
        ) from err


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
