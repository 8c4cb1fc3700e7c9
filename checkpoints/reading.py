"""Reading a state table's files in this process, without leaving out what their statistics say is not wanted.

A flipped bit in a file's footer, or in the statistics of the table's log, would otherwise leave out rows unseen. Files are read whole, and
are what the log says of them: their size, their number of rows, the first and last batch and slice in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler

from windowing.columnar.checksums import REMEDY, SUM
from windowing.columnar.slices import BATCH, SLICE
from windowing.errors import StateCorruptError

#: Bytes of a table up to which it is read whole; so much takes about 0.1 s.
WHOLE_BYTES = 16 << 20


def read_whole(table: DeltaTable, files: Sequence[Mapping[str, Any]], schema: pa.Schema, where: pc.Expression) -> pa.Table:
    """The rows of ``files`` where ``where`` holds, with the columns of ``schema``.

    Parameters
    ----------
    files
        As of ``DeltaTable.get_add_actions(flatten=True)``.

    Raises
    ------
    StateCorruptError
        If a file is not as the table's log describes it. Errors of pyarrow where a file cannot be read.
    """
    store = pa_fs.PyFileSystem(DeltaStorageHandler(table.table_uri))
    found = [_rows_of(store, table.table_uri, file, schema).filter(where) for file in files]
    return pa.concat_tables(found) if found else schema.empty_table()


def _rows_of(store: pa_fs.FileSystem, uri: str, file: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    with store.open_input_file(file["path"]) as opened:
        # Before anything of it is believed, and memory taken for it.
        _same(uri, file["path"], "bytes", opened.size(), file["size_bytes"])
        parquet = pq.ParquetFile(opened, page_checksum_verification=True, coerce_int96_timestamp_unit="us")
        _same(uri, file["path"], "rows", parquet.metadata.num_rows, file["num_records"])
        stored = parquet.schema_arrow.names
        # Files of format 1 have no checksums; whether a row may be without is for its check to say.
        require_columns(uri, [*stored, SUM], schema.names)
        rows = parquet.read(columns=[name for name in schema.names if name in stored], use_threads=False)
        if SUM in schema.names and SUM not in stored:
            rows = rows.append_column(SUM, pa.nulls(rows.num_rows, pa.int64()))
        rows = rows.select(schema.names).cast(schema)
    _same(uri, file["path"], "rows", rows.num_rows, file["num_records"])
    for name in (BATCH, SLICE):
        if rows.num_rows and name in schema.names and file.get(f"min.{name}") is not None:
            span = pc.min_max(rows.column(name)).as_py()
            for bound in ("min", "max"):
                _same(uri, file["path"], f"{bound} of {name}", span[bound], file[f"{bound}.{name}"])
    return rows


def _same(uri: str, path: str, what: str, found: Any, told: Any) -> None:
    if told is not None and found != told:
        raise StateCorruptError(f"state {uri}: {path} has {found} {what}, by the table's log {told}; {REMEDY}")


def require_columns(path: str, found: Collection[str], wanted: Collection[str]) -> None:
    """Raise ``StateCorruptError`` where a column that was written is not there."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise StateCorruptError(f"state {path}: column {missing[0]!r} is missing; {REMEDY}")
