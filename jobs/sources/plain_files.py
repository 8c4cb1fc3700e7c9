"""Reads plain Parquet files by Arrow, in this process or in tasks among which they are divided, with Spark's values.

Spark would make rows of Parquet's columns, and Arrow columns of the rows again for Python. A file is plain if each column that is read is
stored in a type from which Arrow gives the values that Spark gives, and counts days by the Gregorian calendar alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from windowmill.checkpoints.stores import filesystem_of
from windowmill.jobs.sources.base import PlainFile
from windowmill.jobs.sources.options import ddl_of
from windowmill.jobs.sources.parquet_columns import cast, may_not_fit
from windowmill.jobs.sources.unusable_rows import ExpectedColumns, unread_of
from windowmill.jobs.spark.file_ranges import FileRange
from windowmill.windowing.axis import to_us
from windowmill.windowing.columnar.added_columns import UNREAD
from windowmill.windowing.errors import SourceError, SourceFileError

#: Metadata keys. Spark 2 wrote dates and instants before 1582 by the Julian calendar, and later releases mark files that still do.
_LEGACY, _LEGACY_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_WRITER = b"org.apache.spark.version"
#: From this release on Spark writes INT96 by the Gregorian calendar alone, or marks the file.
_INT96_AGREES = b"3.1.0"
#: Files from other engines may count the days of INT96 before this instant by the Julian calendar.
_INT96_AGREES_SINCE = to_us(datetime(1900, 1, 1, tzinfo=UTC))
#: Before 4714 BC the days of INT96 are negative, or the time of day is, which Arrow takes for unsigned numbers.
_INT96_SURE_SINCE = to_us(datetime(1, 1, 1, tzinfo=UTC))
#: The last millisecond that Spark can hold.
_LAST_MS = (1 << 63) // 1_000
#: Rows of a record batch.
_BATCH_ROWS = 250_000
_WHOLE, _DAY = re.compile(r"-?\d{1,18}"), re.compile(r"\d{4}-\d\d-\d\d")
#: Footers that are read at a time: most of it is waiting for a store.
_AT_A_TIME = 16


class NotPlainError(Exception):
    """A file or value that Spark must read."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the columns of a source are read.

    ``types``: Arrow types of the source's columns.
    ``fixed_lengths``: as :attr:`.Columns.fixed_lengths`.
    """

    types: Mapping[str, pa.DataType]
    fixed_lengths: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file: number of rows, index of the first, bytes to be read before compression, and the byte in its middle.

    Spark gives a row group to the task whose range of the file holds that byte.
    """

    rows: int
    first: int
    bytes: int
    middle: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """Successive row groups of a file, which a task reads.

    ``index``: index of the file among those of the source that are read.
    ``first``: index of the first row in the file.
    ``rows``, ``bytes``: number of their rows, and of bytes in the columns that are read, before compression.
    ``examined``: size of the file, and when it was last changed (nanoseconds), if files may change.
    """

    index: int
    file: PlainFile
    row_groups: tuple[int, ...]
    first: int
    rows: int
    bytes: int
    examined: tuple[int, int] | None = None


class OpenFile(AbstractContextManager["OpenFile"]):
    """An open file; a context.

    Raises ``NotPlainError`` if it counts days by another calendar, or is no Parquet file.
    """

    def __init__(self, file: PlainFile, form: Form) -> None:
        if file.row_form is not None:
            raise NotPlainError(file.path)
        self._file, self._form = file, form
        store, path = filesystem_of(file.path)
        self._opened = pq.ParquetFile(path, filesystem=store, coerce_int96_timestamp_unit="us")
        self.metadata = self._opened.metadata
        own = self.metadata.metadata or {}
        if _LEGACY in own or own.get(_WRITER, b"3.0.0") < b"3.0.0":  # as Spark compares them
            self._opened.close()
            raise NotPlainError(file.path)
        kinds = map(self._opened.schema.column, range(len(self._opened.schema)))
        self._int96 = {column.path for column in kinds if column.physical_type == "INT96"}
        self._is_int96_sure = _LEGACY_INT96 not in own and own.get(_WRITER, b"") >= _INT96_AGREES

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def check(self, columns: Sequence[str]) -> None:
        """Raise ``NotPlainError`` if Arrow would read one of ``columns`` otherwise than Spark.

        Looks at values only of INT96, and only where the source does not know the least one.
        """
        doubtful, since = {}, _INT96_SURE_SINCE if self._is_int96_sure else _INT96_AGREES_SINCE
        for column, name in self.names(columns).items():
            if any(path.startswith(f"{name}.") for path in self._int96):
                raise NotPlainError(self._file.path)
            is_int96 = name in self._int96
            if self._file.casts is None:
                _check_type(self._opened.schema_arrow.field(name).type, self._type_of(column), int96=is_int96)
            if is_int96 and self._file.least.get(column, since - 1) < since:
                doubtful[name] = column
        if doubtful:
            self._check_int96(list(doubtful), since // 1_000)

    def _type_of(self, column: str) -> pa.DataType:
        return pa.string() if column == UNREAD else self._form.types[column]

    def _check_int96(self, names: Sequence[str], since_ms: int) -> None:
        """Raise ``NotPlainError`` if a column has an instant before ``since_ms``, or one that Arrow does not read as it is.

        Without its sign an instant wraps around to any other in microseconds; in milliseconds it is far beyond all that Spark can hold. The
        first of all days, 4714 BC, becomes the instant 0.
        """
        store, path = filesystem_of(self._file.path)
        with pq.ParquetFile(path, filesystem=store, coerce_int96_timestamp_unit="ms") as opened:
            for batch in opened.iter_batches(_BATCH_ROWS, columns=list(names), use_threads=False):
                for column in batch.columns:
                    whole = column.cast(pa.int64())
                    span = pc.min_max(whole).as_py()
                    if span["min"] is not None and (span["min"] < since_ms or span["max"] > _LAST_MS or pc.any(pc.equal(whole, 0)).as_py()):
                        raise NotPlainError(self._file.path)

    def names(self, columns: Sequence[str]) -> dict[str, str]:
        """The name in the file of each of ``columns`` that it stores."""
        there = self._opened.schema_arrow.names
        folded = [name.lower() for name in there]
        if self._file.casts is not None:
            # Another spelling is the same column; where a file has two, none of them is read.
            spelt = {name.lower(): name for name in there if folded.count(name.lower()) == 1}
            wanted = {column: name.lower() for column in columns if (name := self._file.names.get(column)) is not None}
            return {column: spelt[name] for column, name in wanted.items() if name in spelt}
        names = {}
        for column in columns:
            own = self._file.names.get(column)
            if own is None:
                continue
            # Spark ignores case; Arrow takes a dot for a step into a struct.
            if folded.count(own.lower()) > 1 or (own not in there and own.lower() in folded) or "." in own:
                raise NotPlainError(own)
            if own in there:
                names[column] = own
        return names

    def row_groups(self, columns: Sequence[str]) -> list[RowGroup]:
        """Its row groups, with the bytes of ``columns``."""
        stored, found, first = set(self.names(columns).values()), [], 0
        for number in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(number)
            every = [group.column(at) for at in range(group.num_columns)]
            size = sum(column.total_uncompressed_size for column in every if column.path_in_schema.partition(".")[0] in stored)
            begin = min(every[0].data_page_offset, every[0].dictionary_page_offset or every[0].data_page_offset)
            middle = begin + sum(column.total_compressed_size for column in every) // 2
            found.append(RowGroup(group.num_rows, first, size, int(middle)))
            first += group.num_rows
        return found

    def batches(self, columns: Sequence[str], row_groups: Sequence[int] | None = None) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of the rows of ``row_groups``, of all by default, which have been checked."""
        names, groups = self.names(columns), row_groups if row_groups is not None else range(self.metadata.num_row_groups)
        names |= self.names(self._doubtful) if UNREAD in columns else {}
        stored = list(dict.fromkeys(names.values()))
        if not stored:
            for number in groups:
                n_rows = self.metadata.row_group(number).num_rows
                yield from (self._batch({}, {}, columns, min(_BATCH_ROWS, n_rows - at)) for at in range(0, n_rows, _BATCH_ROWS))
            return
        if groups:  # Arrow takes an empty list for all
            for batch in self._opened.iter_batches(_BATCH_ROWS, row_groups=list(groups), columns=stored, use_threads=False):
                yield self._batch(dict(zip(batch.schema.names, batch.columns, strict=True)), names, columns, batch.num_rows)

    def _batch(self, stored: Mapping[str, pa.Array], names: Mapping[str, str], columns: Sequence[str], n_rows: int) -> pa.RecordBatch:
        cells = {column: self._values(column, stored[own], own) for column, own in names.items()}
        for column in columns:
            if column == UNREAD and column not in cells:
                cells[UNREAD] = self._unread({name: stored[names[name]] for name in self._doubtful if name in names}, cells, n_rows)
            elif column not in cells:
                cells[column] = pa.repeat(constant(self._file.constants.get(column), self._form.types[column]), n_rows)
            if column in self._form.fixed_lengths:
                cells[column] = pc.utf8_rpad(cells[column], self._form.fixed_lengths[column])
        return pa.record_batch([cells[column] for column in columns], names=list(columns))

    def _values(self, column: str, cell: pa.Array, own: str) -> pa.Array:
        """The values of a column that is stored by the name ``own``; with casts, null for one that does not fit its type."""
        kind, casts = self._type_of(column), self._file.casts
        if casts is None:
            _check_type(cell.type, kind, int96=own in self._int96)
            return cell if cell.type == kind else cell.cast(kind)
        try:
            return cast(cell, kind)
        except pa.ArrowNotImplementedError as err:
            if column not in casts.names:
                return pa.nulls(len(cell), kind)
            raise SourceFileError(
                f"source file {self._file.path}: column {column!r} is {cell.type}, which is not read as {ddl_of(kind)}; write it in "
                "another type, or give source.options.schema"
            ) from err

    @cached_property
    def _doubtful(self) -> list[str]:
        """Columns that the pipeline uses, and in which a value may not fit the type."""
        names = self.names(self._file.casts.names) if self._file.casts is not None else {}
        return [
            column
            for column, own in names.items()
            if own not in self._int96 and may_not_fit(self._opened.schema_arrow.field(own).type, self._form.types[column])
        ]

    def _unread(self, texts: Mapping[str, pa.Array], values: Mapping[str, pa.Array], n_rows: int) -> pa.Array:
        """For each row, which of the pipeline's columns could not be read, as by :func:`.unread_of`."""
        expected = (self._file.casts or ExpectedColumns()).among(texts)
        return unread_of(texts, values, expected, {}, lambda _: f"source file {self._file.path}", lambda _: b"", n_rows)


def _check_type(stored: pa.DataType, kind: pa.DataType, *, int96: bool) -> None:
    """Raise ``NotPlainError`` unless Arrow casts a ``stored`` column to the values that Spark gives for it in the type ``kind``."""
    if pa.types.is_nested(kind):
        # Fields that a struct lacks or has in another order, lists and maps are for Spark.
        if not (pa.types.is_struct(stored) and pa.types.is_struct(kind)) or [each.name for each in stored] != [each.name for each in kind]:
            raise NotPlainError(kind)
        for own, wanted in zip(stored, kind, strict=True):
            _check_type(own.type, wanted.type, int96=False)
        return
    if int96:
        if kind != pa.timestamp("us", "UTC") or stored != pa.timestamp("us"):
            raise NotPlainError(kind)
        return
    if stored == kind:
        return
    if pa.types.is_dictionary(stored):
        stored = stored.value_type
    # Arrow's own schema in the footer may name other forms of a text, and another zone for the same instants.
    texts = (pa.types.is_string(stored) or pa.types.is_large_string(stored) or pa.types.is_string_view(stored)) and pa.types.is_string(kind)
    octets = (pa.types.is_large_binary(stored) or pa.types.is_binary_view(stored)) and pa.types.is_binary(kind)
    instants = pa.types.is_timestamp(stored) and pa.types.is_timestamp(kind) and (stored.tz is None) == (kind.tz is None)
    if not (stored == kind or texts or octets or _is_narrower(stored, kind) or (instants and stored.unit in ("ms", "us"))):
        raise NotPlainError(kind)


def _is_narrower(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether a number is stored in a type from before a column was widened."""
    if pa.types.is_signed_integer(stored):
        holds = (
            stored.bit_width <= kind.bit_width if pa.types.is_signed_integer(kind) else pa.types.is_float64(kind) and stored.bit_width < 64
        )
    elif pa.types.is_decimal(stored) and pa.types.is_decimal(kind):
        holds = kind.scale >= stored.scale and kind.precision - kind.scale >= stored.precision - stored.scale
    else:
        holds = pa.types.is_float32(stored) and pa.types.is_float64(kind)
    return bool(holds)


def constant(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """A partition value of the log in the type ``kind``."""
    if text is None or pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_integer(kind) and _WHOLE.fullmatch(text):
        return pa.scalar(int(text), kind)  # beyond the type's range Arrow raises
    if pa.types.is_date32(kind) and _DAY.fullmatch(text):
        try:
            return pa.scalar(date.fromisoformat(text), kind)
        except ValueError:
            pass
    raise NotPlainError(text)


def read(part: FilePart, form: Form, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, np.ndarray]]:
    """The ``columns`` of the rows of ``part``, in order, and the index of each row in the file; runs in an executor.

    Raises ``SourceError`` if the file has changed since it was examined; ``ArrowInvalid`` if an instant in milliseconds does not fit
    microseconds.
    """
    if part.examined is not None and part.examined != status_of(part.file.path):
        raise SourceError(f"{part.file.path} has changed since `aggregate` was called; make the DataFrame again")
    first = part.first
    with OpenFile(part.file, form) as opened:
        for batch in opened.batches(columns, part.row_groups):
            yield batch, np.arange(first, first + batch.num_rows)
            first += batch.num_rows


def status_of(path: str) -> tuple[int, int] | None:
    """Size of a file, and when it was last changed (nanoseconds); null if it does not exist."""
    store, own = filesystem_of(path)
    info = store.get_file_info(own)
    return (info.size, info.mtime_ns) if info.is_file else None


#: The parts that each task reads.
Tasks = Sequence[Sequence[FilePart]]


def number_of_rows(tasks: Tasks) -> int:
    """Number of rows that ``tasks`` read, usable or not."""
    return sum(part.rows for task in tasks for part in task)


def number_of_bytes(tasks: Tasks) -> int:
    """Number of bytes that ``tasks`` read, before compression."""
    return sum(part.bytes for task in tasks for part in task)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file whose columns Arrow reads as Spark does; ``status`` is that of :func:`status_of`, null if the file cannot change."""

    row_groups: Sequence[RowGroup]
    status: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.row_groups)


def examined(file: PlainFile, form: Form, columns: Sequence[str]) -> CheckedFile | None:
    """What ``file`` holds of ``columns``; null if it cannot be opened here, or Arrow would read a column otherwise than Spark."""
    try:
        with OpenFile(file, form) as opened:
            opened.check(columns)
            return CheckedFile(opened.row_groups(columns))
    except (NotPlainError, OSError, pa.ArrowException):  # Spark reads it, or says what is wrong
        return None


def all_examined(files: Sequence[PlainFile], form: Form, columns: Sequence[str]) -> list[CheckedFile] | None:
    """:func:`examined` of all ``files``; null if one is not plain."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        found: list[CheckedFile] = []
        for each in pool.map(lambda file: examined(file, form, columns), files):
            if each is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            found.append(each)
    return found


def file_parts(ranges: Sequence[Sequence[FileRange]], form: Form, columns: Sequence[str]) -> Tasks | None:
    """The parts of each task of Spark's own scan, in the same order; null if a file has changed or is not plain."""
    sizes = {part.path: part.size for task in ranges for part in task}
    files = {path: PlainFile(path, {name: name for name in form.types}, {}) for path in sizes}
    statuses = {path: status_of(path) for path in sizes}
    if any(status is None or status[0] != sizes[path] for path, status in statuses.items()):
        return None
    every = all_examined(list(files.values()), form, columns)
    if every is None:
        return None
    found = {path: replace(own, status=statuses[path]) for path, own in zip(sizes, every, strict=True)}
    index = {path: number for number, path in enumerate(sizes)}

    def part(piece: FileRange) -> FilePart:
        own = found[piece.path]
        return _part(
            index[piece.path],
            files[piece.path],
            own,
            [n for n, group in enumerate(own.row_groups) if piece.start <= group.middle < piece.stop],
        )

    tasks = [[part(piece) for piece in task] for task in ranges]
    groups = sum(len(part.row_groups) for task in tasks for part in task)
    return tasks if groups == sum(len(own.row_groups) for own in found.values()) else None


def divided(files: Sequence[PlainFile], found: Sequence[CheckedFile], rows_of_task: int, fewest: int) -> Tasks:
    """The row groups of ``files`` in order, divided into tasks of about ``rows_of_task`` rows, or at least ``fewest`` tasks."""
    total = sum(own.rows for own in found)
    n_tasks = max(1, fewest, -(-total // rows_of_task))
    tasks: list[list[FilePart]] = [[] for _ in range(n_tasks)]
    before = 0
    for index, (file, own) in enumerate(zip(files, found, strict=True)):
        chosen: dict[int, list[int]] = {}
        for number, group in enumerate(own.row_groups):
            # A row group belongs to the task in whose stretch of all rows its middle lies.
            chosen.setdefault(min(n_tasks - 1, (before + group.rows // 2) * n_tasks // max(1, total)), []).append(number)
            before += group.rows
        for task, numbers in chosen.items():
            tasks[task].append(_part(index, file, own, numbers))
    return [task for task in tasks if task]


def _part(index: int, file: PlainFile, own: CheckedFile, numbers: Sequence[int]) -> FilePart:
    groups = [own.row_groups[number] for number in numbers]
    rows, size = sum(group.rows for group in groups), sum(group.bytes for group in groups)
    return FilePart(index, file, tuple(numbers), groups[0].first if groups else 0, rows, size, own.status)
