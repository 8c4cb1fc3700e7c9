"""A ledger record: its fields and checksum, the interface of the store that holds records, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from windowmill.windowing.errors import LedgerCorruptError, LedgerError, OutdatedLedgerError, first_line

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


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One record of the ledger; ``body`` is JSON.

    Attributes
    ----------
    number
        Position in the ledger, from 0; -1 until the record is sealed.
    sum
        Checksum of all other fields; null until the record is sealed.
    """

    format: int
    kind: str
    batch: int
    attempt: str
    at: datetime
    body: str
    number: int = -1
    sum: int | None = None


class RecordStore(Protocol):
    """Interface of the store in which the ledger keeps its records."""

    def load(self) -> list[LedgerRecord]:
        """The records of the newest batches, in order; later appends are fenced against this version of the store.

        Every returned batch has all its records. A short ledger is returned whole.
        """

    def read(self, first: int, before: int) -> list[LedgerRecord]:
        """The records of the batches [``first``, ``before``), in order, as of the last :meth:`load`."""

    def append(self, record: LedgerRecord) -> None:
        """Add ``record``.

        Raises
        ------
        FencedError
            If another record was appended since :meth:`load`.
        StorageFullError, LedgerError
            If ``record`` could not be written; the ledger is unchanged.
        """


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

    Raises
    ------
    LedgerError
        If a newer windowmill wrote it.
    OutdatedLedgerError
        If an older one did.
    LedgerCorruptError
        If it is damaged.
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

    @property
    def has_checksum(self) -> bool:
        """Whether its name has a checksum; a file that an ``OPTIMIZE`` by others made has none."""
        return _NAME.fullmatch(self.path) is not None

    @property
    def statistics(self) -> dict[str, object]:
        """The file's statistics in the Delta log."""
        ends = {"minValues": {"batch": self.first}, "maxValues": {"batch": self.last}}
        return {"numRecords": self.records, **ends, "nullCount": {"batch": 0}}


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

    Raises
    ------
    LedgerCorruptError
        If the bytes are damaged or do not match the log.
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
    """The ``files`` to merge now, in order; none while there are few appended files and all of them have checksums."""
    appended = [file for file in files if file.level == 0]
    if len(appended) < FAN and all(file.has_checksum for file in appended):
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
    columns = {name: _values(table.column(name)) for name in known}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    # pyarrow imports pandas to convert timestamps, which takes longer than the rest of a run that finds nothing new.
    instants = column.type == _AT
    values: list[Any] = (column.cast(pa.int64()) if instants else column).to_pylist()
    return [value if value is None else _EPOCH + timedelta(microseconds=value) for value in values] if instants else values
