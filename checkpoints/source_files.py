"""What a pipeline has seen in a source without a log, numbered in the order in which it counts as arrived. No JVM.

A folder keeps no log, so the pipeline keeps one: a Delta table with a row for each file, and for each later change of one. A row is
appended before a batch that reads the file is computed, and is never changed. So a number means the same file for ever, regardless of later
files and of the folder's clock. For topics of Kafka, a row has the ranges of offsets that a run planned to read.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from windowmill.checkpoints.delta_tables import NO_HOOKS, KeptTable, checkpoint_if_due, merge_if_many
from windowmill.checkpoints.records import CONFIGURATION
from windowmill.checkpoints.stores import FAILURES, create_table, is_disk_full, remedy, store_of
from windowmill.windowing.errors import FencedError, LedgerCorruptError, LedgerError, StorageFullError, first_line

#: Number of newest rows whose digests are computed again, at 3 µs a row.
_TAIL = 1_000
#: What has happened to a file; one is forgotten that was changed or removed before a batch that counts had read it.
Event = Literal["added", "changed", "removed", "forgotten"]


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file of the folder as it was first seen, or as it was found changed or removed later; or ranges of offsets, new or lost."""

    #: Its number, from 0 without gaps.
    version: int
    #: Relative to the folder. For topics, JSON: topic -> partition -> offsets [begin, end).
    path: str
    size_bytes: int
    #: When it was last changed, in nanoseconds since 1970 by the clock of its file system; of offsets, when a run planned them.
    mtime_ns: int
    event: Event
    #: Digest of this and of all earlier files, apart from ``rows``.
    digest: str
    #: Number of rows of a new file, null if they have not been counted; or number of offsets.
    rows: int | None = None

    @classmethod
    def after(cls, last: SeenFile | None, path: str, size_bytes: int, mtime_ns: int, event: Event) -> SeenFile:
        """What follows ``last``; null for the first one."""
        before = "" if last is None else last.digest
        digest = hashlib.sha256(json.dumps([before, path, size_bytes, mtime_ns, event]).encode()).hexdigest()[:16]
        return cls(0 if last is None else last.version + 1, path, size_bytes, mtime_ns, event, digest)


#: ``schema`` holds the columns of the source, as the JSON of a Spark ``StructType``, in the first row and where they change.
_SCHEMA = pa.schema(
    [
        *(("version", pa.int64()), ("path", pa.string()), ("size_bytes", pa.int64()), ("mtime_ns", pa.int64())),
        *(("event", pa.string()), ("digest", pa.string()), ("rows", pa.int64()), ("schema", pa.string())),
    ]
)


class SeenFiles:
    """The record in the Delta table at ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._table: DeltaTable | None = None
        self._schema: str | None = None

    def load(self) -> tuple[list[SeenFile], str | None]:
        """All files in order of their numbers, and the columns of the source; none and null if there is no table yet.

        Raises ``LedgerError`` if the table cannot be read; ``LedgerCorruptError`` if a row is damaged, missing or doubled.
        """
        with self._reporting("cannot be read"):
            try:
                # Not shared: an append must be refused if another process has appended since.
                self._table = KeptTable(self._path).newest()
            except TableNotFoundError:
                return [], None
            store, names = store_of(self._path), self._table.get_add_actions(flatten=True).column("path").to_pylist()
            parts = []
            for name in names:
                with store.open_input_file(name) as file:
                    parts.append(pq.read_table(file, schema=_SCHEMA))
        rows = pa.concat_tables(parts or [_SCHEMA.empty_table()]).sort_by("version").to_pylist()
        self._schema = next((row["schema"] for row in reversed(rows) if row["schema"] is not None), None)
        found = [SeenFile(**{field.name: row[field.name] for field in fields(SeenFile)}) for row in rows]
        _check(found, self._path)
        return found, self._schema

    def add(self, files: Sequence[SeenFile], schema: str, *, after: int) -> None:
        """As :meth:`append`, to a record that had ``after`` rows when ``files`` were numbered.

        Raises ``FencedError`` if it has others now.
        """
        if not files:
            return
        if len(self.load()[0]) != after:
            raise FencedError(f"source files {self._path}: another run has looked at the source meanwhile; run again")
        self.append(files, schema)

    def append(self, files: Sequence[SeenFile], schema: str) -> None:
        """Add ``files``, which follow those that :meth:`load` has given; ``schema`` are the columns of the source.

        Raises ``FencedError`` if another process has appended since.
        """
        columns = zip(*(astuple(file) for file in files), strict=True)
        # Not repeated: of a table with many columns it is as large as thousands of rows.
        first = pa.array([None if schema == self._schema or number else schema for number in range(len(files))], pa.string())
        rows = pa.table([*(pa.array(column, kind) for column, kind in zip(columns, _SCHEMA.types, strict=False)), first], schema=_SCHEMA)
        packed = io.BytesIO()
        pq.write_table(rows, packed, compression="zstd")
        content, name = packed.getvalue(), f"{files[0].version:012d}-{files[-1].digest}.parquet"
        with self._reporting("cannot be written"):
            if self._table is None:
                self._table = create_table(self._path, _SCHEMA, mode="error", name="windowmill source files", configuration=CONFIGURATION)
            with store_of(self._path).open_output_stream(name, buffer_size=1 << 16) as stream:
                stream.write(content)
            add = AddAction(name, len(content), {}, time.time_ns() // 1_000_000, True, json.dumps({"numRecords": len(files)}))
            fence, version = CommitProperties(max_commit_retries=0), self._table.version() + 1
            try:
                self._table.create_write_transaction(
                    [add], "append", self._table.schema(), commit_properties=fence, post_commithook_properties=NO_HOOKS
                )
            except DeltaError as err:
                if KeptTable(self._path).newest().version() < version:
                    raise
                raise FencedError(f"source files {self._path}: another run has listed the source; this one stops without effect") from err
            self._schema = schema
            checkpoint_if_due(self._path, version)
            merge_if_many(self._path)

    @contextmanager
    def _reporting(self, what: str) -> Iterator[None]:
        """Raise errors of other libraries as ``LedgerError``, which says ``what`` has failed."""
        try:
            yield
        except FAILURES as err:
            if is_disk_full(err):
                raise StorageFullError(f"source files {self._path}: the disk is full or a quota is used up; free some space") from err
            raise LedgerError(
                f"source files {self._path}: {what} ({first_line(err)}); {remedy(err, 'check the folder, or restore it from a copy')}"
            ) from err


def _check(found: Sequence[SeenFile], path: str) -> None:
    """Raise ``LedgerCorruptError`` if a row is missing or doubled, or one of the newest damaged."""
    tail = len(found) - _TAIL
    for place, each in enumerate(found):
        last = found[place - 1] if place else None
        is_next = place < tail or each.digest == SeenFile.after(last, each.path, each.size_bytes, each.mtime_ns, each.event).digest
        if each.version != place or not is_next:
            raise LedgerCorruptError(
                f"source files {path}: row {place} is damaged, missing or doubled; restore the folder {path} from a copy"
            )
