"""Small tables written from Spark without a Spark-side Delta commit: rows are staged as Parquet, then appended by delta-rs.

A Spark-side commit costs about a second, an append by delta-rs milliseconds; and rows pass the driver as a stream, however many.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.fs as pa_fs
from deltalake import write_deltalake

from checkpoints.appending import append_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Staged:
    """Rows of a DataFrame in a folder of their own, readable as a stream; removed by :meth:`drop`."""

    def __init__(self, rows: DataFrame, folder: str) -> None:
        rows.write.mode("overwrite").parquet(folder)
        self._files, self._folder = _filesystem(folder)
        self._dataset = pa_dataset.dataset(self._folder, filesystem=self._files, format="parquet")
        self.rows: int = self._dataset.count_rows()

    def append_to(self, path: str, *, app_id: str, version: int) -> None:
        """Append to the Delta table at ``path`` in one commit; a version of ``app_id`` that is there already changes nothing."""
        append_once(path, self._stream(), app_id=app_id, version=version, widen=True)

    def replace(self, path: str) -> None:
        """Make the rows the whole content of the Delta table at ``path``."""
        if "://" not in path:
            Path(path).mkdir(parents=True, exist_ok=True)
        write_deltalake(path, self._stream(), mode="overwrite", schema_mode="overwrite")

    def drop(self) -> None:
        """Remove the staged files."""
        self._files.delete_dir(self._folder)

    def _stream(self) -> pa.RecordBatchReader:
        return self._dataset.scanner().to_reader()


def _filesystem(folder: str) -> tuple[pa_fs.FileSystem, str]:
    if "://" in folder:
        return pa_fs.FileSystem.from_uri(folder)
    return pa_fs.LocalFileSystem(), str(Path(folder).absolute())


def clear(folder: str) -> None:
    """Remove staged leftovers of attempts that died; only on a local file system, where a run holds the lease."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
