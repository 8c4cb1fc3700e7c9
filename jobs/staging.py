"""Small tables written from Spark without a Spark-side Delta commit: rows are staged as Parquet, then appended by delta-rs.

A Spark-side commit costs about a second, an append by delta-rs milliseconds; and rows pass the driver as a stream, however many. Only a
table that got features which delta-rs does not write is appended to by Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from checkpoints.appending import append_once, writer_once
from checkpoints.features import delta_rs_can_write
from checkpoints.upkeep import RETENTION_HOURS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Folder beside a pipeline's tables in which each attempt stages its rows.
STAGING = ".staging"


NO_COLUMNS: Mapping[str, pa.DataType] = MappingProxyType({})


class Staged:
    """Rows of a DataFrame in a folder of their own, readable as a stream; removed by :meth:`drop`."""

    def __init__(self, rows: DataFrame, folder: str) -> None:
        rows.write.mode("overwrite").parquet(folder)
        self._place = folder
        self._files, self._folder = _filesystem(folder)
        # Spark writes timestamps as INT96, which Arrow reads as nanoseconds without a zone unless told otherwise.
        parquet = pa_dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        self._dataset = pa_dataset.dataset(self._folder, filesystem=self._files, format=parquet)
        # Every column may be null: delta-rs writes others in a way that Spark refuses to read.
        self._schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(rows.schema, timezone="UTC")])
        self.rows: int = self._dataset.count_rows()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows."""
        return self._schema

    def append_to(self, path: str, *, app_id: str, version: int, metadata: str) -> None:
        """Append to the Delta table at ``path`` in one commit; a version of ``app_id`` that is there already changes nothing."""
        if delta_rs_can_write(path):
            append_once(path, self._stream(_schema_at(path)), app_id=app_id, version=version, metadata=metadata, widen=True)
            return
        session = SparkSession.active()
        held, rows = session.read.format("delta").load(path).schema, session.read.parquet(self._place)
        # A table of an older release may hold the instants without their zone.
        kinds = {field.name: field.dataType for field in (*rows.schema, *held)}
        rows = rows.select(*(F.col(name).cast(kinds[name]) for name in rows.columns))
        writer = writer_once(rows, self.rows, app_id=app_id, version=version, metadata=metadata)
        writer.mode("append").option("mergeSchema", True).save(path)

    def table(self) -> pa.Table:
        """The rows."""
        return self._stream().read_all()

    def replace(self, path: str) -> None:
        """Make the rows the whole content of the Delta table at ``path``."""
        if "://" not in path:
            Path(path).mkdir(parents=True, exist_ok=True)
        write_deltalake(path, self._stream(), mode="overwrite", schema_mode="overwrite")

    def read(self, columns: list[str]) -> pa.Table:
        """Some columns of all rows."""
        return self._dataset.to_table(columns=columns)

    def drop(self) -> None:
        """Remove the staged files."""
        self._files.delete_dir(self._folder)

    def _stream(self, there: Mapping[str, pa.DataType] = NO_COLUMNS) -> pa.RecordBatchReader:
        """The rows, in the types that a table which is ``there`` already has."""
        schema = pa.schema([pa.field(field.name, there.get(field.name, field.type)) for field in self._schema])
        batches = (batch.cast(schema) for batch in self._dataset.scanner().to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)


def _schema_at(path: str) -> Mapping[str, pa.DataType]:
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return NO_COLUMNS
    return {field.name: field.type for field in pa.schema(table.schema().to_arrow())}


def _filesystem(folder: str) -> tuple[pa_fs.FileSystem, str]:
    if "://" in folder:
        files, place = pa_fs.FileSystem.from_uri(folder)
        return files, place
    return pa_fs.LocalFileSystem(), str(Path(folder).absolute())


def clear(folder: str) -> None:
    """Remove what an attempt has staged in ``folder``; what cannot be removed is left to :func:`clear_leftovers`."""
    with suppress(OSError):
        files, place = _filesystem(folder)
        files.delete_dir(place)


def clear_leftovers(root: str, *, running: bool) -> None:
    """Remove what dead attempts have staged below ``root``: by age, or all of it where no attempt can be ``running``."""
    if not running:
        shutil.rmtree(f"{root}/{STAGING}", ignore_errors=True)
        return
    files, place = _filesystem(f"{root}/{STAGING}")
    found = files.get_file_info(pa_fs.FileSelector(place, allow_not_found=True, recursive=True))
    newest: dict[str, datetime] = {}
    for info in found:
        attempt = info.path.removeprefix(place).lstrip("/").split("/")[0]
        if info.type == pa_fs.FileType.File:
            newest[attempt] = max(info.mtime, newest.get(attempt, info.mtime))
    for attempt, at in newest.items():
        if at < datetime.now(UTC) - timedelta(hours=RETENTION_HOURS):
            files.delete_dir(f"{place}/{attempt}")
