"""Reads a state table's files in this process, whole: statistics are not used to skip row groups or pages.

With skipping, a flipped bit in a file's footer or in the log's statistics could silently drop rows. Each file is also compared with the
log: its size, its number of rows, and its first and last batch, bucket and slice. Damage, a table that is missing, and another format are
reported in one line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from windowmill.windowing.columnar.added_columns import BATCH, BUCKET, LAST, SLICE
from windowmill.windowing.columnar.checksums import REMEDY, RowCheck
from windowmill.windowing.errors import StateCorruptError, StateMissingError, WindowmillError, first_line
from windowmill.windowing.kernels.layout import HIGH

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
