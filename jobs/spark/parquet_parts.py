"""Parquet files that a task reads by Arrow. Read by the JVM, their columns would become rows, and Arrow columns again for Python.

Which row groups a task reads is what Spark would give it to read, in the same order. A file qualifies only if Arrow reads its columns as
exactly the types that Spark gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from windowmill.jobs.spark.file_ranges import FileRange
from windowmill.windowing.errors import SourceError

#: Metadata keys. Spark 2 wrote dates and instants before 1582 by the Julian calendar, and later releases mark files that still do.
_LEGACY, _WRITER = b"org.apache.spark.legacyDateTime", b"org.apache.spark.version"
#: Rows of a record batch.
_BATCH_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class FilePart:
    """Row groups of a file, which had ``size`` bytes, and was last ``changed`` (nanoseconds), when it was examined.

    Attributes
    ----------
    rows, bytes
        Number of their rows, and of bytes in the columns that are read, before compression.
    """

    path: str
    size: int
    changed: int
    row_groups: tuple[int, ...]
    rows: int
    bytes: int


#: The parts that each task reads.
Tasks = Sequence[Sequence[FilePart]]


def parts_of(ranges: Sequence[Sequence[FileRange]], types: Mapping[str, pa.DataType]) -> Tasks | None:
    """The parts of each task; null if this process cannot read a file, or Arrow would read a column otherwise than as ``types`` say."""
    if any("." in name or pa.types.is_nested(kind) for name, kind in types.items()):  # Arrow would take a dot for a step into a struct
        return None
    whole = {part.path: part.size for task in ranges for part in task}
    examined: dict[str, tuple[int, pq.FileMetaData]] = {}
    for path, size in whole.items():
        found = _examined(path, size, types)
        if found is None:
            return None
        examined[path] = found
    tasks = [[_part(part, *examined[part.path], types) for part in task] for task in ranges]
    groups = sum(len(part.row_groups) for task in tasks for part in task)
    return tasks if groups == sum(metadata.num_row_groups for _, metadata in examined.values()) else None


def _examined(path: str, size: int, types: Mapping[str, pa.DataType]) -> tuple[int, pq.FileMetaData] | None:
    """When the file was last changed (nanoseconds since 1970), and its metadata; ``None`` if Arrow would not read what Spark reads."""
    try:
        status = Path(path).stat()
        if status.st_size != size:
            return None
        with pq.ParquetFile(path) as file:
            schema, metadata = file.schema_arrow, file.metadata
    except (OSError, pa.ArrowException):  # Spark reads it, or says what is wrong
        return None
    if not counts_days_as_arrow(metadata):
        return None
    names = [name.lower() for name in schema.names]
    known = all(
        names.count(name.lower()) == 1 and name in schema.names and _type_once_read(schema.field(name).type) == kind
        for name, kind in types.items()
    )
    return (status.st_mtime_ns, metadata) if known else None


def counts_days_as_arrow(metadata: pq.FileMetaData) -> bool:
    """Whether the file's writer counted days and instants by the Gregorian calendar alone."""
    own = metadata.metadata or {}
    return _LEGACY not in own and own.get(_WRITER, b"3.0.0") >= b"3.0.0"  # as Spark compares them


def _type_once_read(kind: pa.DataType) -> pa.DataType:
    """The type of a column of ``kind`` once it has been read: Spark counts milliseconds as microseconds."""
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) and kind.unit == "ms" else kind


def _part(part: FileRange, changed: int, metadata: pq.FileMetaData, names: Collection[str]) -> FilePart:
    every = {number: metadata.row_group(number) for number in range(metadata.num_row_groups)}
    groups = {number: group for number, group in every.items() if part.start <= _middle(group) < part.stop}
    read = [column for group in groups.values() for column in _columns(group) if column.path_in_schema in names]
    rows, size = sum(group.num_rows for group in groups.values()), sum(column.total_uncompressed_size for column in read)
    return FilePart(part.path, part.size, changed, tuple(groups), rows, size)


def _columns(group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    return [group.column(number) for number in range(group.num_columns)]


def _middle(group: pq.RowGroupMetaData) -> int:
    """The byte that decides which part of a file a row group belongs to."""
    columns = _columns(group)
    first = columns[0]
    begin = min(first.data_page_offset, first.dictionary_page_offset or first.data_page_offset)
    return int(begin + sum(column.total_compressed_size for column in columns) // 2)


def read(parts: Sequence[FilePart], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The ``columns`` of the rows of ``parts``, in order; runs in an executor.

    Raises
    ------
    SourceError
        If a file has changed since it was examined.
    ArrowInvalid
        If an instant in milliseconds does not fit microseconds.
    """
    for part in parts:
        path = Path(part.path)
        if not path.is_file() or (path.stat().st_size, path.stat().st_mtime_ns) != (part.size, part.changed):
            raise SourceError(f"{path} has changed since `aggregate` was called; make the DataFrame anew")
        if part.row_groups:
            with pq.ParquetFile(part.path) as file:
                batches = file.iter_batches(_BATCH_ROWS, row_groups=list(part.row_groups), columns=list(columns), use_threads=False)
                for batch in batches:
                    cells = [batch.column(name).cast(_type_once_read(batch.schema.field(name).type)) for name in columns]
                    yield pa.record_batch(cells, names=list(columns))
