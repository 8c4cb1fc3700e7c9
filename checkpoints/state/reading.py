"""Which rows of the state a batch needs, and how this process reads a state table's files for them.

A condition is both SQL, for Spark and DataFusion, and an Arrow expression, for rows in memory.

With skipping, a flipped bit in a file's footer or in the log's statistics could silently drop rows. Each file is also compared with the
log: its size, its number of rows, and its first and last batch, bucket and slice. Damage, a table that is missing, and another format are
reported in one line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from windowmill.checkpoints.delta_tables import fault_of_log, newest
from windowmill.checkpoints.features import check_format
from windowmill.checkpoints.stores import remedy, says_missing, store_of
from windowmill.windowing.axis import AXIS_BEGIN
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, CLOSED, GAP, LAST, LEVEL, REACHING, SLICE
from windowmill.windowing.columnar.hashes import REMEDY, RowCheck
from windowmill.windowing.errors import StateCorruptError, StateMissingError, WindowmillError, first_line
from windowmill.windowing.grids import Selection, Span
from windowmill.windowing.kernels.layout import HIGH


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


@dataclass(frozen=True)
class Condition:
    """One condition on rows in two forms."""

    sql: str
    expression: pc.Expression


@dataclass(frozen=True, slots=True)
class ReadLimit:
    """Limits on what this process reads of the state table without Spark.

    Attributes
    ----------
    span_bytes
        Size of the files that may hold a span of slices, open sessions, or live rows; a read takes most of them.
    searched_bytes
        Size of the files that are searched for nodes; a read takes little of them, because a level's rows are stored together. Of windows
        over positions: size of the row groups that are searched, before compression.
    rows
        Number of rows read, or of rows in the files that may hold a span, open sessions or live rows, or in a row group that is searched.
    """

    span_bytes: int
    searched_bytes: int
    rows: int

    def is_exceeded(self, wanted: Wanted, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files``, which are all files that may hold ``wanted`` rows, exceed the limits."""
        size = sum(int(file["size_bytes"]) for file in files)
        if isinstance(wanted, WithSpans):
            # The spans of a file lie together: a read takes little of it besides.
            slices = wanted.slices
            few = slices is None or not self.is_exceeded(slices, [file for file in files if may_hold(file, slices)])
            return size > self.searched_bytes or not few
        if isinstance(wanted, Selection):
            return size > self.searched_bytes
        return self.is_exceeded_by(files)

    def is_exceeded_by(self, files: Sequence[Mapping[str, Any]]) -> bool:
        """Whether ``files`` are too large for this process to read most of them."""
        size = sum(int(file["size_bytes"]) for file in files)
        return size > self.span_bytes or sum(int(file["num_records"]) for file in files) > self.rows


def condition(wanted: Wanted, *, before_batch: int) -> Condition:
    """The condition for the ``wanted`` rows of the batches before ``before_batch``."""
    within = _within(wanted)
    return Condition(f"{BATCH} < {before_batch} AND {within.sql}", (pc.field(BATCH) < before_batch) & within.expression)


def rows_of_part(wanted: Wanted) -> pc.Expression:
    """The expression for all rows of the part that has the ``wanted`` ones, in a table that may have rows of others."""
    if isinstance(wanted, OpenSessions):
        return pc.field(GAP).is_valid()
    marks = (SLICE, *wanted.columns) if isinstance(wanted, WithSpans) else (SLICE,)
    return reduce(or_, (pc.field(name).is_valid() for name in marks))


def _within(wanted: Wanted) -> Condition:
    match wanted:
        case WithSpans():
            own = reduce(or_, (pc.field(column).is_valid() for column in wanted.columns)) & pc.field(SLICE).is_null()
            sql = span_condition(wanted.columns)
            if wanted.slices is None:
                return Condition(sql, own)
            slices = _within(wanted.slices)
            return Condition(f"({slices.sql} OR {sql})", slices.expression | own)
        case OpenSessions():
            return _open(wanted)
        case Selection():
            return _with_reaching(_selected(wanted), wanted)
        case Span():
            return _with_reaching(_starting_in(wanted), wanted)


def _with_reaching(begun: Condition, wanted: Span | Selection) -> Condition:
    """The condition for the ``wanted`` rows, given that for those whose events begin in their slice."""
    if wanted.reaching is None:
        return begun
    reaching, start = pc.field(REACHING), pc.field(SLICE)
    parts = [
        f"({REACHING} = 0 AND {begun.sql})",
        *(f"({REACHING} = 1 AND {SLICE} >= {low} AND {SLICE} < {high})" for low, high in wanted.reaching),
    ]
    within = [(reaching == 1) & (start >= low) & (start < high) for low, high in wanted.reaching]
    return Condition(f"({' OR '.join(parts)})", reduce(or_, within, (reaching == 0) & begun.expression))


def span_condition(columns: Sequence[str]) -> str:
    """The SQL condition for rows that hold spans, of which each has at least one of ``columns``."""
    return f"({SLICE} IS NULL AND ({' OR '.join(f'{column} IS NOT NULL' for column in columns)}))"


def _open(wanted: OpenSessions) -> Condition:
    gap, last = pc.field(GAP), pc.field(LAST)
    parts = [(gap == each) & (last > wanted.last_after(each)) for each in wanted.gaps]
    return Condition(f"({open_condition(wanted)})", reduce(or_, parts))


def open_condition(wanted: OpenSessions) -> str:
    """The SQL condition for the ``wanted`` fragments."""
    return " OR ".join(f"({GAP} = {gap} AND {LAST} > {wanted.last_after(gap)})" for gap in wanted.gaps)


def _starting_in(span: Span) -> Condition:
    start = pc.field(SLICE)
    return Condition(f"{SLICE} >= {span.low} AND {SLICE} < {span.high}", (start >= span.low) & (start < span.high))


def _selected(wanted: Selection) -> Condition:
    start, level = pc.field(SLICE), pc.field(LEVEL)
    slices = [(start >= low) & (start < high) for low, high in wanted.slices]
    slices.append((pc.field(CLOSED) > wanted.late_after) & (start >= wanted.late_from))
    parts = [(level == 0) & reduce(or_, slices)]
    parts += [(level == number) & start.isin(list(starts)) for number, starts in wanted.nodes]
    return Condition(f"({condition_of(wanted)})", reduce(or_, parts))


def condition_of(wanted: Selection) -> str:
    """The SQL condition for the ``wanted`` rows."""
    spans = [f"({SLICE} >= {low} AND {SLICE} < {high})" for low, high in wanted.slices]
    late = f"({CLOSED} > {wanted.late_after} AND {SLICE} >= {wanted.late_from})"
    slices = f"({LEVEL} = 0 AND ({' OR '.join([*spans, late])}))"
    nodes = [f"({LEVEL} = {level} AND {SLICE} IN ({', '.join(map(str, starts))}))" for level, starts in wanted.nodes]
    return " OR ".join([slices, *nodes])


def may_hold(file: Mapping[str, Any], wanted: Wanted) -> bool:
    """Whether the statistics of ``file`` allow ``wanted`` rows in it."""
    if isinstance(wanted, WithSpans):
        spans = any(file.get(f"null_count.{column}") != file["num_records"] for column in wanted.columns)
        return spans or (wanted.slices is not None and may_hold(file, wanted.slices))
    mark = GAP if isinstance(wanted, OpenSessions) else SLICE
    if file.get(f"null_count.{mark}") == file["num_records"]:
        return False  # all rows are of other parts
    if isinstance(wanted, OpenSessions):
        latest = file.get(f"max.{LAST}")
        return latest is None or any(latest > wanted.last_after(gap) for gap in wanted.gaps)
    if isinstance(wanted, Span):
        low, high = file.get(f"min.{SLICE}"), file.get(f"max.{SLICE}")
        return low is None or high is None or (low < wanted.high and high >= wanted.low)
    lowest, highest, first, last = (file.get(f"{bound}.{column}") for column in (LEVEL, SLICE) for bound in ("min", "max"))
    if lowest is None or highest is None or first is None or last is None:
        return True
    if any(low <= last and high > first for low, high in wanted.reaching or ()):
        return True
    if lowest == 0:
        latest = file.get(f"max.{CLOSED}")
        has_late = file.get(f"null_count.{CLOSED}") != file["num_records"] and (latest is None or latest > wanted.late_after)
        if (has_late and last >= wanted.late_from) or any(low <= last and high > first for low, high in wanted.slices):
            return True
    return any(lowest <= level <= highest and any(first <= start <= last for start in starts) for level, starts in wanted.nodes)


#: Size in bytes up to which a table is read whole; that takes about 0.1 s.
WHOLE_BYTES = 16 << 20


def read_whole(
    table: DeltaTable, files: Sequence[Mapping[str, Any]], schema: pa.Schema, where: pc.Expression, *, may_lack: Collection[str] = ()
) -> pa.Table:
    """The rows of ``files`` for which ``where`` holds, with the columns of ``schema``.

    Parameters
    ----------
    files
        Rows of ``DeltaTable.get_add_actions(flatten=True)``.
    may_lack
        Columns that are null in files without them.

    Raises
    ------
    StateCorruptError
        If a file does not match the table's log.
    pyarrow.ArrowException, OSError
        If a file cannot be read.
    """
    parts = [read_file(table.table_uri, file, schema, may_lack).filter(where) for file in files]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def open_file(store: pa_fs.FileSystem, uri: str, file: Mapping[str, Any]) -> pq.ParquetFile:
    """The Parquet file of the log's entry ``file`` in the table at ``uri``; raises as :func:`read_whole`. The caller closes it."""
    opened = store.open_input_file(file["path"])
    # Compare the size before trusting the footer or allocating memory for it.
    _same(uri, file["path"], "bytes", opened.size(), file["size_bytes"])
    parquet = pq.ParquetFile(opened, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
    _same(uri, file["path"], "rows", parquet.metadata.num_rows, file["num_records"])
    return parquet


def read_file(uri: str, file: Mapping[str, Any], schema: pa.Schema, may_lack: Collection[str]) -> pa.Table:
    """All rows of a file of the table at ``uri``; raises as :func:`read_whole`."""
    parquet = open_file(store_of(uri), uri, file)
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


def _same(uri: str, path: str, what: str, actual: Any, logged: Any) -> None:
    if logged is not None and actual != logged:
        raise StateCorruptError(f"state {uri}: {path} has {actual} {what}, by the table's log {logged}; {REMEDY}")


def require_columns(path: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise ``StateCorruptError`` if a ``wanted`` column is not among those ``found``, unless it is one that may be lacking."""
    missing = [name for name in wanted if name not in found and not may_lack(name)]
    if missing:
        raise StateCorruptError(f"state {path}: column {missing[0]!r} is missing, perhaps because another release made the table; {REMEDY}")


def may_lack(column: str) -> bool:
    """Whether tables may lack the ``column``, which is null there: files that were written before sums had high bits."""
    return column.endswith(f"__{HIGH}")


def open_state(path: str, *, left_at: int | None) -> RowCheck:
    """Check the state table at ``path``, if it exists; returns the check for its rows.

    Parameters
    ----------
    left_at
        Version of the table after the last batch that wrote to it, from the ledger; null if no batch has.

    Raises
    ------
    StateMissingError
        If a batch has written state, but the table is missing or at an older version.
    StateCorruptError
        If its log cannot be read.
    StateError
        If its format is another.
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
def reporting_damage(path: str) -> Iterator[None]:
    """Raise errors of libraries that read the state at ``path`` as ``StateMissingError`` or ``StateCorruptError``."""
    try:
        yield
    except WindowmillError:
        raise
    except TableNotFoundError as err:
        raise StateMissingError(f"state {path}: there is no table; {REMEDY}") from err
    except FileNotFoundError as err:
        raise StateMissingError(f"state {path}: a file is gone ({first_line(err)}); {REMEDY}") from err
    except Exception as err:
        if says_missing(err):
            raise StateMissingError(f"state {path}: a file is gone ({_excerpt(err)}); {REMEDY}") from err
        raise StateCorruptError(f"state {path}: cannot be read ({_excerpt(err)}); {remedy(err, REMEDY)}") from err
    except BaseException as err:
        # A Rust panic is not an ``Exception``.
        if type(err).__name__ == "PanicException":
            raise StateCorruptError(f"state {path}: cannot be read ({_excerpt(err)}); {REMEDY}") from err
        raise


def _excerpt(err: BaseException) -> str:
    return first_line(err)[:300]
