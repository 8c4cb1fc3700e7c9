"""Writes small tables from Spark without a Delta commit by Spark: rows are staged as Parquet, then appended by delta-rs.

A commit by Spark takes about a second, an append by delta-rs milliseconds. The rows stream through the driver, so its memory does not limit
their number. Spark itself appends only to tables with features that delta-rs does not support.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from windowmill.checkpoints.appending import append_once, writer_once
from windowmill.checkpoints.features import delta_rs_can_write
from windowmill.checkpoints.stores import filesystem_of, table_at, write_table
from windowmill.checkpoints.upkeep import RETENTION_HOURS
from windowmill.windowing.columnar.chunks import without_empty_chunks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Folder beside a pipeline's tables in which each attempt stages its rows.
STAGING = ".staging"


NO_COLUMNS: Mapping[str, pa.DataType] = MappingProxyType({})


class Staged:
    """Rows that can be read as a stream more than once; :meth:`drop` frees them.

    Parameters
    ----------
    folder
        Folder of their own in which Spark has staged them; null if ``dataset`` holds them in memory.
    """

    def __init__(self, dataset: pa_dataset.Dataset, schema: pa.Schema, folder: str | None) -> None:
        self._dataset, self._uri = dataset, folder
        # All columns are nullable: Spark cannot read non-nullable ones as delta-rs writes them.
        self._schema = pa.schema([field.with_nullable(True) for field in schema])
        self.rows: int = dataset.count_rows()

    @classmethod
    def of(cls, rows: DataFrame, folder: str) -> Staged:
        """Stage ``rows`` in ``folder``."""
        rows.write.mode("overwrite").parquet(folder)
        files, path = filesystem_of(folder)
        # Spark writes timestamps as INT96, which Arrow reads as nanoseconds without a zone by default.
        parquet = pa_dataset.ParquetFileFormat(coerce_int96_timestamp_unit="us")
        return cls(pa_dataset.dataset(path, filesystem=files, format=parquet), to_arrow_schema(rows.schema, timezone="UTC"), folder)

    @classmethod
    def of_table(cls, rows: pa.Table) -> Staged:
        """Few rows, in memory."""
        return cls(pa_dataset.dataset(rows), rows.schema, None)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self._schema

    def append_to(self, path: str, *, app_id: str, version: int, metadata: str) -> None:
        """Append to the Delta table at ``path`` in one commit; does nothing if ``version`` of ``app_id`` has landed already."""
        if delta_rs_can_write(path):
            append_once(path, self._stream(_schema_at(path)), app_id=app_id, version=version, metadata=metadata, widen=True)
            return
        session = SparkSession.active()
        stored, rows = session.read.format("delta").load(path).schema, self._in_spark(session)
        # A table of an older release may store timestamps without a zone.
        kinds = {field.name: field.dataType for field in (*rows.schema, *stored)}
        rows = rows.select(*(F.col(name).cast(kinds[name]) for name in rows.columns))
        writer = writer_once(rows, self.rows, app_id=app_id, version=version, metadata=metadata)
        writer.mode("append").option("mergeSchema", True).save(path)

    def table(self) -> pa.Table:
        """All rows in memory."""
        return self._stream().read_all()

    def replace(self, path: str) -> None:
        """Overwrite the Delta table at ``path`` with the rows."""
        write_table(path, self._stream(), mode="overwrite", schema_mode="overwrite")

    def read(self, columns: list[str]) -> pa.Table:
        """The given columns of all rows, in memory."""
        return self._dataset.to_table(columns=columns)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The given columns of all rows, a part at a time."""
        return iter(self._dataset.to_batches(columns=columns))

    def drop(self) -> None:
        """Remove the staged files."""
        if self._uri is not None:
            files, path = filesystem_of(self._uri)
            files.delete_dir(path)

    def _in_spark(self, session: SparkSession) -> DataFrame:
        return session.createDataFrame(without_empty_chunks(self.table())) if self._uri is None else session.read.parquet(self._uri)

    def _stream(self, stored_types: Mapping[str, pa.DataType] = NO_COLUMNS) -> pa.RecordBatchReader:
        """The rows, cast to the types of the existing columns ``stored_types``."""
        schema = pa.schema([pa.field(field.name, stored_types.get(field.name, field.type)) for field in self._schema])
        batches = (batch.cast(schema) for batch in self._dataset.scanner().to_batches())
        return pa.RecordBatchReader.from_batches(schema, batches)


def _schema_at(path: str) -> Mapping[str, pa.DataType]:
    try:
        table = table_at(path)
    except TableNotFoundError:
        return NO_COLUMNS
    return {field.name: field.type for field in pa.schema(table.schema().to_arrow())}


def clear(folder: str) -> None:
    """Remove an attempt's staged files in ``folder``; :func:`clear_leftovers` retries files that cannot be removed."""
    with suppress(OSError):
        files, path = filesystem_of(folder)
        files.delete_dir(path)


def clear_leftovers(root: str, *, running: bool) -> None:
    """Remove the staged files of dead attempts below ``root``: by age if an attempt may be ``running``, else all."""
    if not running:
        shutil.rmtree(f"{root}/{STAGING}", ignore_errors=True)
        return
    files, folder = filesystem_of(f"{root}/{STAGING}")
    infos = files.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True, recursive=True))
    newest: dict[str, datetime] = {}
    for info in infos:
        attempt = info.path.removeprefix(folder).lstrip("/").split("/")[0]
        if info.type == pa_fs.FileType.File:
            newest[attempt] = max(info.mtime, newest.get(attempt, info.mtime))
    for attempt, at in newest.items():
        if at < datetime.now(UTC) - timedelta(hours=RETENTION_HOURS):
            files.delete_dir(f"{folder}/{attempt}")
