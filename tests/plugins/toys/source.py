"""A kind of source: a folder of Parquet files ``0.parquet``, ``1.parquet``, … of the same columns, each a version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from deltalake import Schema

from windowmill.plugins import AddedFile, LoggedVersion, Reading, SourceKind, SourceTable, register_source
from windowmill.windowing.errors import SourceError, SourceRangeGoneError
from windowmill.windowing.fields import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class NumberedFiles(SourceTable):
    def versions(self, after: int, through: int) -> Iterator[LoggedVersion]:
        for version in range(after + 1, through + 1):
            yield LoggedVersion(version, "file", (self._file(version),))

    def snapshot(self, version: int) -> list[AddedFile]:
        return [self._file(number) for number in range(version + 1)]

    def missing(self, files: Sequence[AddedFile]) -> AddedFile | None:
        return next((file for file in files if not Path(self.path, file.path).is_file()), None)

    def first_version_at(self, instant: datetime) -> int | None:
        times = [datetime.fromtimestamp(Path(self.path, file.path).stat().st_mtime, UTC) for file in self.snapshot(self.version)]
        return next((version for version, at in enumerate(times) if at >= instant), None)

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from pyspark.sql import DataFrame
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(self.schema_json))
        parts = [
            spark.read.schema(schema)
            .parquet(str(Path(self.path, file.path)))
            .selectExpr("*", f"{index} AS _file", "_metadata.row_index AS _row", f"{file.version}L AS _version")
            for index, file in enumerate(reading.files)
        ]
        return reduce(DataFrame.unionByName, parts)

    def _file(self, version: int) -> AddedFile:
        path = Path(self.path, f"{version}.parquet")
        if not path.is_file():
            raise SourceRangeGoneError(f"source {self.path}: {path.name} is gone; bring it back")
        return AddedFile(path.name, version, path.stat().st_size, pq.read_metadata(path).num_rows)


def open_folder(settings: Source) -> NumberedFiles:
    files = sorted((int(path.stem), path) for path in Path(settings.path).glob("*.parquet"))
    if not files:
        raise SourceError(f"source {settings.path}: there are no Parquet files; write 0.parquet")
    newest, path = files[-1]
    schema = Schema.from_arrow(pq.read_schema(path)).to_json()
    # The folder's own number stays when files come, and is another one when the folder is made anew.
    return NumberedFiles(settings.path, str(Path(settings.path).stat().st_ino), newest, schema)


register_source(SourceKind("numbered_parquet", open_folder, options=("compression",)))
