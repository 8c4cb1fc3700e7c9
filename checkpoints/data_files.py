"""Data files of a table: any number of tasks write them to its folder, and a commit names them later. Needs only pyarrow, as executors do.

A file that no commit names is not part of the table. Its name holds the batch and the attempt that wrote it, and a token of its writer,
so that a task that is repeated never writes to the file of another.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from windowmill.checkpoints.stores import filesystem_of, is_local, make_folder
from windowmill.windowing.errors import NotTextError

#: Rows of a full file.
ROWS_PER_FILE = 1_000_000
#: Rows of a row group, and bytes of rows that are gathered for one at most.
ROWS_PER_GROUP, BYTES_PER_GROUP = 128 << 10, 64 << 20
#: Delta keeps statistics of so many columns, from the first on.
COLUMNS_WITH_STATISTICS = 32
#: Key in a footer of the place of the file's index.
_INDEX = "windowmill.index"
#: Characters of a text in a statistic.
_PREFIX = 32
_NAME = re.compile(r"part-b\d{6,}-[0-9a-f]+-\d+-[0-9a-f]+-\d+\.snappy\.parquet")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Microseconds of the years that a timestamp in a statistic can have.
_YEARS = tuple((datetime(year, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) for year in (1, 9999))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file as a commit names it."""

    #: Relative to the table's folder.
    path: str
    size: int
    rows: int
    #: When it was written, in milliseconds since 1970.
    modified_ms: int
    #: Delta's statistics, as JSON: rows, and for each column its least and greatest value and number of nulls, where known.
    stats: str


@dataclass(frozen=True, slots=True)
class Packing:
    """How the files of a table are written whose columns have few equal values: without dictionaries and compression."""

    encodings: Mapping[str, str]  #: Parquet's encoding of each column.
    group_rows: int  #: Rows of a row group.
    index: Callable[[pa.Table], bytes]  #: Bytes by which readers search a file with these rows; :func:`index_of` reads them.


class FileWriter(AbstractContextManager["FileWriter"]):
    """Writes the rows of one task and table: a context manager; after an error nothing that it wrote is left.

    Files have the columns of ``schema``, and their rows are sorted by ``order``, if given: then up to :data:`ROWS_PER_FILE` rows are kept
    in memory. ``packing`` is null for tables in general.
    """

    def __init__(
        self,
        table: str,
        schema: pa.Schema,
        *,
        batch: int,
        attempt: str,
        task: int,
        order: Sequence[str] = (),
        packing: Packing | None = None,
    ) -> None:
        self._table, (self._fs, self._root) = table, filesystem_of(table)
        self._schema = pa.schema([field.with_type(stored_type(field.type)) for field in schema])
        self._texts = [field.name for field in self._schema if pa.types.is_string(field.type) or pa.types.is_nested(field.type)]
        self._name = f"part-b{batch:06d}-{attempt}-{task}-{uuid.uuid4().hex[:8]}"
        self._order, self._packing = [(name, "ascending") for name in order], packing
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._with_nan: set[str] = set()
        self._footer: list[pq.FileMetaData] = []
        self._paths: list[str] = []
        self._files: list[DataFile] = []

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            try:
                self.close()
            except BaseException:
                self._give_up()
                raise
        else:
            self._give_up()

    def _give_up(self) -> None:
        """Remove what has been written. The error that led here is reported, not that of a store which refuses this too."""
        with suppress(Exception):
            if self._writer is not None and self._sink is not None:
                self._writer.close()
                self._sink.close()
        with suppress(OSError):
            _delete(self._fs, [f"{self._root}/{path}" for path in self._paths])

    def write(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add ``rows``, which have the columns of the schema, in any order.

        Raises ``NotTextError`` if a text is not UTF-8: neither delta-rs nor most others would read the table again.
        """
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        table = table.select(self._schema.names)
        table = table if table.schema.equals(self._schema) else table.cast(self._schema)
        for name in self._texts:
            try:
                table.column(name).validate(full=True)
            except pa.ArrowInvalid as err:
                raise NotTextError(
                    f"column {name!r}: holds a text that is not UTF-8, as Spark makes texts of bytes; correct the source, or leave such "
                    "rows out by source.filter: is_valid_utf8(COLUMN)"
                ) from err
        while table.num_rows:
            room = ROWS_PER_FILE - self._rows - self._waiting_rows
            part, table = table.slice(0, room), table.slice(room)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            if self._rows + self._waiting_rows >= ROWS_PER_FILE:
                self._end_file()
            elif not self._order and (self._waiting_rows >= ROWS_PER_GROUP or self._waiting_bytes >= BYTES_PER_GROUP):
                self._flush()

    def close(self) -> tuple[DataFile, ...]:
        """Finish the last file; returns all files, none if there were no rows."""
        self._end_file()
        return tuple(self._files)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        table = table.sort_by(self._order) if self._order else table
        floats = [field.name for field in self._schema if pa.types.is_floating(field.type)]
        if self._writer is None:
            path = f"{self._name}-{len(self._paths)}.snappy.parquet"
            make_folder(self._table)
            self._paths.append(path)
            # All columns but floats, most of which differ. A writer has other names for nested columns.
            nested = any(map(pa.types.is_nested, self._schema.types))
            dictionaries = True if nested else [name for name in self._schema.names if name not in floats]
            self._sink = self._fs.open_output_stream(f"{self._root}/{path}")
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                use_dictionary=dictionaries if self._packing is None else False,
                column_encoding=None if self._packing is None else dict(self._packing.encodings),
                compression="snappy" if self._packing is None else "none",
                sorting_columns=pq.SortingColumn.from_ordering(self._schema, self._order) if self._order else None,
                write_page_checksum=True,
                store_schema=False,
                metadata_collector=self._footer,
            )
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP if self._packing is None else self._packing.group_rows)
        if self._packing is not None and self._sink is not None:
            index = self._packing.index(table)
            self._writer.add_key_value_metadata({_INDEX: f"{self._sink.tell()} {len(index)} {zlib.crc32(index)}"})
            self._sink.write(index)  # between the last rows and the footer
        self._rows += table.num_rows
        self._with_nan |= {name for name in floats if pc.any(pc.is_nan(table.column(name))).as_py()}

    def _end_file(self) -> None:
        self._flush()
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        path, [footer] = self._paths[-1], self._footer
        size = self._fs.get_file_info(f"{self._root}/{path}").size
        stats = json.dumps(_statistics(footer, self._schema, self._with_nan))
        self._files.append(DataFile(path, size, self._rows, time.time_ns() // 1_000_000, stats))
        self._writer, self._sink, self._rows, self._with_nan = None, None, 0, set()
        self._footer.clear()


def index_of(file: pa.NativeFile, footer: pq.FileMetaData) -> bytes | None:
    """The index of a ``file`` that :class:`Packing` has made; null if there is none. Raises ``ValueError`` if it is damaged."""
    place = (footer.metadata or {}).get(_INDEX.encode())
    if place is None:
        return None
    begin, size, checksum = map(int, place.split())
    index: bytes = file.read_at(size, begin)
    if zlib.crc32(index) != checksum:
        raise ValueError("the index of the file is damaged")
    return index


def write_files(
    table: str,
    schema: pa.Schema,
    parts: Iterable[pa.Table],
    *,
    batch: int,
    attempt: str,
    task: int = 0,
    order: Sequence[str] = (),
    packing: Packing | None = None,
) -> tuple[DataFile, ...]:
    """Write the rows of ``parts`` as :class:`FileWriter` does; returns the files."""
    with FileWriter(table, schema, batch=batch, attempt=attempt, task=task, order=order, packing=packing) as writer:
        for rows in parts:
            writer.write(rows)
    return writer.close()


def read_files(table: str, files: Iterable[DataFile], columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of ``files`` of ``table``, a part at a time."""
    fs, root = filesystem_of(table)
    for file in files:
        with pq.ParquetFile(f"{root}/{file.path}", filesystem=fs) as opened:
            yield from opened.iter_batches(columns=None if columns is None else list(columns), use_threads=False)


def rows_of(table: str, paths: Iterable[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of the files ``paths`` of ``table``, a part at a time, with the columns of ``schema``: null where a file lacks one.

    They have its types, too, whoever wrote the files: delta-rs writes texts as views, which Arrow does not filter.
    """
    fs, root = filesystem_of(table)
    for path in paths:
        with pq.ParquetFile(f"{root}/{path}", filesystem=fs, coerce_int96_timestamp_unit="us") as file:
            there = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=there, use_threads=False):
                cells = [
                    batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(batch), field.type)
                    for field in schema
                ]
                yield pa.table(cells, schema=schema)


def remove(table: str, files: Collection[DataFile | str]) -> None:
    """Delete ``files`` of ``table``, entries or their paths; those that are gone already are fine."""
    fs, root = filesystem_of(table)
    _delete(fs, [f"{root}/{file if isinstance(file, str) else file.path}" for file in files])


def missing(table: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Those of ``files`` that are not in the folder of ``table``, or have another size."""
    fs, root = filesystem_of(table)
    found = fs.get_file_info([f"{root}/{file.path}" for file in files])
    return [file for file, info in zip(files, found, strict=True) if info.type != pa_fs.FileType.File or info.size != file.size]


def copy(source: str, target: str, files: Sequence[DataFile]) -> None:
    """Copy ``files`` from the folder ``source`` to the folder ``target``; a copy appears whole or not at all."""
    if not files:
        return
    make_folder(target)
    (fs, root), (into, below) = filesystem_of(source), filesystem_of(target)
    for file in files:
        whole = f"{below}/{file.path}"
        # On object storage an object is there only once it is complete.
        partial = f"{below}/.{file.path}.{uuid.uuid4().hex[:8]}" if is_local(target) else whole
        pa_fs.copy_files(f"{root}/{file.path}", partial, source_filesystem=fs, destination_filesystem=into, use_threads=False)
        if partial != whole:
            into.move(partial, whole)


def is_ours(path: str) -> bool:
    """Whether a file of a table has the name of one that :class:`FileWriter` wrote."""
    return _NAME.fullmatch(path) is not None


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type with which a column is stored: instants in microseconds and UTC, the only ones that Delta has."""
    return pa.timestamp("us", "UTC" if kind.tz else None) if pa.types.is_timestamp(kind) else kind


def _delete(fs: pa_fs.FileSystem, paths: Sequence[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            fs.delete_file(path)


def _statistics(footer: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[str]) -> dict[str, Any]:
    """Delta's statistics from a Parquet ``footer``. Columns of nested values have none, and those ``with_nan`` no bounds."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    kinds = {field.name: field.type for field in schema}
    leaves = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    for name in list(kinds)[:COLUMNS_WITH_STATISTICS]:
        if pa.types.is_nested(kinds[name]):
            continue
        parts = [footer.row_group(n).column(leaves[name]) for n in range(footer.num_row_groups)]
        found = [part.statistics for part in parts]
        if all(one is not None and one.has_null_count for one in found):
            nulls[name] = sum(one.null_count for one in found)
        bounded = [one for one, part in zip(found, parts, strict=True) if one is None or one.null_count != part.num_values]
        bounds = None if name in with_nan else _bounds(bounded, kinds[name])
        if bounds is not None:
            low[name], high[name] = bounds
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bounds(found: Sequence[Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Least and greatest value in JSON; none if they are not known, or a statistic has no exact form of them."""
    if not found or any(one is None or not one.has_min_max for one in found):
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        high = _at_least(max(one.max for one in found))
        return None if high is None else (min(one.min for one in found)[:_PREFIX], high)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return None
    low, high = min(one.min_raw for one in found), max(one.max_raw for one in found)
    if pa.types.is_floating(kind):
        return (low, high) if math.isfinite(low) and math.isfinite(high) else None
    if pa.types.is_date(kind):
        low, high = (number + date(1970, 1, 1).toordinal() for number in (low, high))
        in_range = date(1, 1, 1).toordinal() <= low <= high <= date(9999, 1, 1).toordinal()
        return (str(date.fromordinal(low)), str(date.fromordinal(high))) if in_range else None
    if pa.types.is_timestamp(kind):
        if not _YEARS[0] <= low <= high <= _YEARS[1]:
            return None
        zone = "Z" if kind.tz else ""
        instants = (_EPOCH + timedelta(milliseconds=ms) for ms in (low // 1_000, -(-high // 1_000)))
        low, high = (at.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone for at in instants)
    return low, high


def _at_least(text: str) -> str | None:
    """A short text that is not less than ``text``; none if there is none."""
    if len(text) <= _PREFIX:
        return text
    for length in range(_PREFIX, 0, -1):
        code = ord(text[length - 1]) + 1
        code = 0xE000 if 0xD800 <= code <= 0xDFFF else code  # no character has one of these numbers
        if code <= 0x10FFFF:
            return text[: length - 1] + chr(code)
    return None
