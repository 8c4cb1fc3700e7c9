"""Which rows of the state a batch needs, as conditions, and how this process reads a state table's files for them.

A condition (:class:`Where`) has three forms: SQL, an expression over Arrow tables, and a test of a file's statistics, by which reads leave
out files.

A flipped bit in a file's footer, or in the log's statistics, could make a read leave out rows silently. So each file is also compared with
the log: its size, its number of rows, and its first and last batch, bucket and slice. Damage, a table that is missing, and another format
are reported in one line.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.delta_tables import check_format, fault_of_log, newest
from windowmill.checkpoints.quoting import quoted
from windowmill.checkpoints.stores import remedy, says_missing, store_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, CLOSED, GAP, LAST, LEVEL, REACHING, SLICE
from windowmill.windowing.columnar.hashes import REMEDY, RowCheck
from windowmill.windowing.errors import StateCorruptError, StateMissingError, WindowmillError, first_line
from windowmill.windowing.grids import Selection, Span
from windowmill.windowing.kernels.layout import HIGH

#: The comparisons, by their signs in SQL.
_COMPARISONS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}
#: Size in bytes up to which a table is read whole; that takes about 0.1 s.
WHOLE_BYTES = 16 << 20


class Where(ABC):
    """A condition on rows; where it is null for a row, it does not hold."""

    @property
    @abstractmethod
    def sql(self) -> str:
        """The condition in DataFusion's SQL, in parentheses if it has parts."""

    @property
    @abstractmethod
    def expression(self) -> pc.Expression:
        """The condition as an expression over Arrow tables."""

    @abstractmethod
    def may_hold(self, file: Mapping[str, Any]) -> bool:
        """Whether it may hold for a row of ``file``, a Delta log's entry with statistics; true if these do not decide."""

    def __and__(self, other: Where) -> Where:
        return Every((self, other))

    def __or__(self, other: Where) -> Where:
        return Either((self, other))


@dataclass(frozen=True, slots=True)
class ColumnComparison(Where):
    """The values of a column compared with one value by ``<``, ``<=``, ``=``, ``>=`` or ``>``."""

    column: str
    sign: str
    value: int

    @property
    def sql(self) -> str:
        return f"{quoted(self.column)} {self.sign} {self.value}"

    @property
    def expression(self) -> pc.Expression:
        return _COMPARISONS[self.sign](pc.field(self.column), self.value)

    def may_hold(self, file: Mapping[str, Any]) -> bool:
        if _only_nulls(file, self.column):
            return False
        compare, bounds = _COMPARISONS[self.sign], [file.get(f"{bound}.{self.column}") for bound in ("min", "max")]
        if self.sign == "=":
            return _may_lie(self.value, bounds)
        bound = bounds[0] if self.sign in ("<", "<=") else bounds[1]
        return bound is None or compare(bound, self.value)


@dataclass(frozen=True, slots=True)
class Among(Where):
    """The values of a column are some of ``values``."""

    column: str
    values: Collection[int]

    @property
    def sql(self) -> str:
        return f"{quoted(self.column)} IN ({', '.join(map(str, self.values))})"

    @property
    def expression(self) -> pc.Expression:
        return pc.field(self.column).isin(list(self.values))

    def may_hold(self, file: Mapping[str, Any]) -> bool:
        bounds = [file.get(f"{bound}.{self.column}") for bound in ("min", "max")]
        return not _only_nulls(file, self.column) and any(_may_lie(value, bounds) for value in self.values)


@dataclass(frozen=True, slots=True)
class Present(Where):
    """Rows whose value in a column is not null; if not ``present``, rows in which it is null."""

    column: str
    present: bool = True

    @property
    def sql(self) -> str:
        return f"{quoted(self.column)} IS {'NOT ' * self.present}NULL"

    @property
    def expression(self) -> pc.Expression:
        field = pc.field(self.column)
        return field.is_valid() if self.present else field.is_null()

    def may_hold(self, file: Mapping[str, Any]) -> bool:
        return not _only_nulls(file, self.column) if self.present else file.get(f"null_count.{self.column}") != 0


@dataclass(frozen=True, slots=True)
class Every(Where):
    """All ``parts`` hold; without parts it holds for every row."""

    parts: tuple[Where, ...] = ()

    @property
    def sql(self) -> str:
        return f"({' AND '.join(part.sql for part in self.parts)})" if self.parts else "true"

    @property
    def expression(self) -> pc.Expression:
        return reduce(operator.and_, (part.expression for part in self.parts)) if self.parts else pc.scalar(pa.scalar(True))

    def may_hold(self, file: Mapping[str, Any]) -> bool:
        return all(part.may_hold(file) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Either(Where):
    """One of ``parts`` holds at least; without parts it holds for no row."""

    parts: tuple[Where, ...] = ()

    @property
    def sql(self) -> str:
        return f"({' OR '.join(part.sql for part in self.parts)})" if self.parts else "false"

    @property
    def expression(self) -> pc.Expression:
        return reduce(operator.or_, (part.expression for part in self.parts)) if self.parts else pc.scalar(pa.scalar(False))

    def may_hold(self, file: Mapping[str, Any]) -> bool:
        return any(part.may_hold(file) for part in self.parts)


#: Conditions that hold for every row, and for none.
EVERYTHING, NOTHING = Every(), Either()


def between(column: str, low: int, high: int) -> Where:
    """The values of ``column`` in [low, high)."""
    return ColumnComparison(column, ">=", low) & ColumnComparison(column, "<", high)


def _may_lie(value: int, bounds: list[Any]) -> bool:
    low, high = bounds
    return (low is None or low <= value) and (high is None or high >= value)


def _only_nulls(file: Mapping[str, Any], column: str) -> bool:
    return bool(file.get(f"null_count.{column}") == file["num_records"])


@dataclass(frozen=True, slots=True)
class OpenSessions:
    """The stored fragments of sessions with these ``gaps`` that are not closed at the instant ``closed``."""

    gaps: tuple[int, ...]
    closed: int

    def last_after(self, gap: int) -> int:
        """The instant after which the last event of an open session of ``gap`` lies."""
        # No event comes before the axis; further back a long gap would leave 64 bits.
        return max(self.closed - gap, AXIS_BEGIN) - 1


@dataclass(frozen=True, slots=True)
class WithSpans:
    """Stored slices and nodes, null for none, and the spans of all keys; a row of spans has at least one of ``columns``."""

    slices: Span | Selection | None
    columns: tuple[str, ...]


Wanted = Span | Selection | OpenSessions | WithSpans


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """Limits on what this process reads of the state table without Spark."""

    #: Size of the files that may hold a span of slices, open sessions, or live rows; a read takes most of them.
    span_bytes: int
    #: Size of the files that are searched for nodes; a read takes little of them, because a level's rows are stored together. For windows
    #: over positions: uncompressed size of the row groups that are searched.
    searched_bytes: int
    #: Number of rows read, or of rows in the files that may hold a span, open sessions or live rows, or in a row group that is searched.
    rows: int

    def is_exceeded(self, wanted: Wanted, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files``, which are all files that may hold ``wanted`` rows, exceed the limits."""
        size = sum(int(file["size_bytes"]) for file in files)
        if isinstance(wanted, WithSpans):
            # The spans of a file lie together: a read takes little of it besides.
            slices = wanted.slices
            few = slices is None or not self.is_exceeded(slices, [file for file in files if rows_of(slices).may_hold(file)])
            return size > self.searched_bytes or not few
        if isinstance(wanted, Selection):
            return size > self.searched_bytes
        return self.is_exceeded_by(files)

    def is_exceeded_by(self, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files`` are too large for this process to read most of them."""
        size = sum(int(file["size_bytes"]) for file in files)
        return size > self.span_bytes or sum(int(file["num_records"]) for file in files) > self.rows


def rows_before(batch: int) -> Where:
    """The rows of the batches before ``batch``. An attempt at ``batch`` itself that failed may have left rows."""
    return ColumnComparison(BATCH, "<", batch)


def rows_of_part(wanted: Wanted) -> Where:
    """All rows of the part that has the ``wanted`` ones, in a table that may have rows of others."""
    if isinstance(wanted, OpenSessions):
        return Present(GAP)
    return Either(tuple(map(Present, (SLICE, *(wanted.columns if isinstance(wanted, WithSpans) else ())))))


def rows_of_spans(columns: Collection[str]) -> Where:
    """The rows of spans: each has a value in at least one of ``columns``."""
    return Present(SLICE, present=False) & Either(tuple(map(Present, columns)))


def rows_of(wanted: Wanted) -> Where:
    match wanted:
        case WithSpans():
            spans = rows_of_spans(wanted.columns)
            return spans if wanted.slices is None else rows_of(wanted.slices) | spans
        case OpenSessions():
            return Either(
                tuple(ColumnComparison(GAP, "=", gap) & ColumnComparison(LAST, ">", wanted.last_after(gap)) for gap in wanted.gaps)
            )
        case Selection():
            late = ColumnComparison(CLOSED, ">", wanted.late_after) & ColumnComparison(SLICE, ">=", wanted.late_from)
            slices = ColumnComparison(LEVEL, "=", 0) & Either((*(between(SLICE, low, high) for low, high in wanted.slices), late))
            nodes = (ColumnComparison(LEVEL, "=", level) & Among(SLICE, starts) for level, starts in wanted.nodes)
            begun: Where = Either((slices, *nodes))
        case Span():
            begun = between(SLICE, wanted.low, wanted.high)
    if wanted.reaching is None:
        return begun
    reaching = (ColumnComparison(REACHING, "=", 1) & between(SLICE, low, high) for low, high in wanted.reaching)
    return Either((ColumnComparison(REACHING, "=", 0) & begun, *reaching))


def read_whole(
    table: DeltaTable, files: Sequence[Mapping[str, Any]], schema: pa.Schema, where: pc.Expression, *, may_lack: Collection[str] = ()
) -> pa.Table:
    """The rows of ``files``, entries of the log, for which ``where`` holds; columns that they ``may_lack`` are null there.

    Raises ``StateCorruptError`` if a file does not match the table's log; ``ArrowException`` or ``OSError`` if a file cannot be read.
    """
    parts = [read_file(table.table_uri, file, schema, may_lack).filter(where) for file in files]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def open_file(uri: str, file: Mapping[str, Any], role: str = "state", opened: pa.NativeFile | None = None) -> pq.ParquetFile:
    """The Parquet file of the log's entry ``file`` in the table at ``uri``, of this ``role``; raises as :func:`read_whole`.

    The caller closes it. ``opened``: the file, if it is open.
    """
    opened = store_of(uri).open_input_file(file["path"]) if opened is None else opened
    # Compare the size before trusting the footer or allocating memory for it.
    _same(uri, file["path"], "bytes", opened.size(), file["size_bytes"], role)
    parquet = pq.ParquetFile(opened, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
    _same(uri, file["path"], "rows", parquet.metadata.num_rows, file["num_records"], role)
    return parquet


def footer(table: DeltaTable, file: Mapping[str, Any]) -> pq.FileMetaData:
    parquet = open_file(table.table_uri, file)
    try:
        return parquet.metadata
    finally:
        parquet.close(force=True)


def read_file(uri: str, file: Mapping[str, Any], schema: pa.Schema, may_lack: Collection[str]) -> pa.Table:
    """All rows of a file of the table at ``uri``; raises as :func:`read_whole`."""
    parquet = open_file(uri, file)
    try:
        stored = parquet.schema_arrow.names
        require_columns(uri, [*stored, *may_lack], schema.names)
        read = [name for name in stored if name in schema.names or name == BUCKET]
        rows = parquet.read(columns=read, use_threads=False)
    finally:
        parquet.close(force=True)
    _same(uri, file["path"], "rows", rows.num_rows, file["num_records"])
    for name in (BATCH, BUCKET, SLICE, LAST):
        if rows.num_rows and name in read and file.get(f"min.{name}") is not None:
            span = pc.min_max(rows.column(name)).as_py()
            for bound in ("min", "max"):
                _same(uri, file["path"], f"{bound} of {name}", span[bound], file[f"{bound}.{name}"])
    for field in schema:
        if field.name not in read:
            rows = rows.append_column(field.name, pa.nulls(rows.num_rows, field.type))
    return rows.select(schema.names).cast(schema)


def _same(uri: str, path: str, what: str, actual: Any, logged: Any, role: str = "state") -> None:
    if logged is not None and actual != logged:
        raise StateCorruptError(f"{role} {uri}: {path} has {actual} {what}, by the table's log {logged}; {REMEDY}")


def require_columns(path: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise ``StateCorruptError`` if a ``wanted`` column is not among those ``found``, unless it is one that may be lacking."""
    missing = [name for name in wanted if name not in found and not may_lack(name)]
    if missing:
        raise StateCorruptError(f"state {path}: column {missing[0]!r} is missing, perhaps because another release made the table; {REMEDY}")


def may_lack(column: str) -> bool:
    """Whether tables may lack the ``column``, which is null there: files that were written before sums had high bits."""
    return column.endswith(f"__{HIGH}")


def open_state(path: str, *, left_at: int | None) -> RowCheck:
    """Check the state table at ``path``, if it exists; ``left_at`` is the version that a batch wrote last, null if none has.

    Returns the check for its rows.

    Raises ``StateMissingError`` if a batch has written state, but the table is missing or at an older version; ``StateCorruptError`` if its
    log cannot be read; ``StateError`` if its format is another.
    """
    with reporting_damage(path):
        try:
            table = newest(path)
        except TableNotFoundError as err:
            if left_at is None:
                return RowCheck(path)
            raise StateMissingError(f"state {path}: there is no table, but committed batches have written to it; {REMEDY}") from err
        version = table.version()
        if left_at is not None and version < left_at:
            raise StateMissingError(f"state {path}: at version {version}, but committed batches left it at version {left_at}; {REMEDY}")
        fault = fault_of_log(table)
        if fault is not None:
            raise StateCorruptError(f"state {path}: {fault}; {REMEDY}")
        check_format(table, "state")
        return RowCheck(path)


@contextmanager
def reporting_damage(path: str, role: str = "state") -> Iterator[None]:
    """Raise errors of libraries that read the table of this ``role`` at ``path`` as ``StateMissingError`` or ``StateCorruptError``."""
    try:
        yield
    except WindowmillError:
        raise
    except TableNotFoundError as err:
        raise StateMissingError(f"{role} {path}: there is no table; {REMEDY}") from err
    except FileNotFoundError as err:
        raise StateMissingError(f"{role} {path}: a file is gone ({first_line(err)}); {REMEDY}") from err
    except Exception as err:
        if says_missing(err):
            raise StateMissingError(f"{role} {path}: a file is gone ({_excerpt(err)}); {REMEDY}") from err
        raise StateCorruptError(f"{role} {path}: cannot be read ({_excerpt(err)}); {remedy(err, REMEDY)}") from err
    except BaseException as err:
        # A Rust panic is not an ``Exception``.
        if type(err).__name__ == "PanicException":
            raise StateCorruptError(f"{role} {path}: cannot be read ({_excerpt(err)}); {REMEDY}") from err
        raise


def _excerpt(err: BaseException) -> str:
    return first_line(err)[:300]
