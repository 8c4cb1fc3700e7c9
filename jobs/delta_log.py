"""What a Delta table's log says of a range of versions: which files were appended, in order. Read without a JVM.

The log's own JSON entries are read, not a snapshot: the cost is that of the new versions, however long the table's history is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from windowing.errors import NonAppendCommitError, SourceError, SourceRangeGoneError


@dataclass(frozen=True, slots=True)
class AddedFile:
    """One Parquet file that a version appended.

    ``rows`` and ``columns`` (lowest and highest value of a column) come from the file's statistics and may be missing.
    """

    path: str
    version: int
    size_bytes: int
    rows: int | None
    partition: dict[str, str | None]
    lowest: dict[str, Any]
    highest: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A source table as planning sees it."""

    path: str
    table_id: str
    version: int
    schema_json: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]


def read_source_table(path: str) -> SourceTable:
    """The Delta table at ``path``; raises ``SourceError`` with the path when there is none."""
    try:
        table = DeltaTable(path)
    except TableNotFoundError as err:
        raise SourceError(f"source {path}: there is no Delta table; write the first rows or correct source.path") from err
    except (DeltaError, OSError) as err:
        raise SourceError(f"source {path}: cannot be read ({str(err).splitlines()[0]}); check the path and its permissions") from err
    metadata = table.metadata()
    return SourceTable(
        path=path,
        table_id=str(metadata.id),
        version=table.version(),
        schema_json=table.schema().to_json(),
        partition_columns=tuple(metadata.partition_columns),
        configuration=dict(metadata.configuration),
    )


def added_files(table: SourceTable, after: int, through: int) -> list[AddedFile]:
    """Files appended by the versions (``after``, ``through``], oldest first.

    Raises
    ------
    SourceRangeGoneError
        If log entries of these versions have been cleaned up.
    NonAppendCommitError
        If one of these versions changed or removed rows.
    """
    log = _Log(table)
    if after < 0 and not log.has(0):
        return _snapshot_files(table, through)
    found: list[AddedFile] = []
    for version in range(after + 1, through + 1):
        found += _appended(log.actions(version), table, version)
    return found


def last_version_within(table: SourceTable, after: int, through: int, *, max_files: int, max_bytes: int) -> int:
    """The last version such that (``after``, version] stays within the limits; at least one version is taken."""
    log, files, size = _Log(table), 0, 0
    if after < 0 and not log.has(0):
        return through
    for version in range(after + 1, through + 1):
        added = _appended(log.actions(version), table, version)
        files, size = files + len(added), size + sum(file.size_bytes for file in added)
        if version > after + 1 and (files > max_files or size > max_bytes):
            return version - 1
    return through


class _Log:
    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._files = pa_fs.PyFileSystem(DeltaStorageHandler(table.path))

    def has(self, version: int) -> bool:
        info = self._files.get_file_info([f"_delta_log/{version:020d}.json"])[0]
        return bool(info.type == pa_fs.FileType.File)

    def actions(self, version: int) -> list[dict[str, Any]]:
        try:
            with self._files.open_input_stream(f"_delta_log/{version:020d}.json") as stream:
                text = stream.read().decode()
        except (FileNotFoundError, OSError) as err:
            first = next((v for v in range(version + 1, self._table.version + 1) if self.has(v)), None)
            raise SourceRangeGoneError(
                f"source {self._table.path}: the log of version {version} is gone"
                + (f" (the first one left is {first})" if first is not None else "")
                + "; raise delta.logRetentionDuration, and rebuild this pipeline in a new sink with backfill"
            ) from err
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _appended(actions: Iterable[dict[str, Any]], table: SourceTable, version: int) -> list[AddedFile]:
    actions = list(actions)
    operation = next((action["commitInfo"].get("operation", "?") for action in actions if "commitInfo" in action), "?")
    if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
        raise NonAppendCommitError(
            f"source {table.path}: version {version} ({operation}) changed or removed rows; windows are computed from appends only: "
            "rebuild this pipeline in a new sink with backfill, and keep the source append-only"
        )
    return [_file(action["add"], version) for action in actions if "add" in action and action["add"].get("dataChange", True)]


def _file(add: dict[str, Any], version: int) -> AddedFile:
    if add.get("deletionVector"):
        raise NonAppendCommitError(f"file {add['path']}: has a deletion vector; run REORG TABLE … APPLY (PURGE) on the source first")
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    return AddedFile(
        path=unquote(add["path"]),
        version=version,
        size_bytes=add["size"],
        rows=stats.get("numRecords"),
        partition=add.get("partitionValues") or {},
        lowest=stats.get("minValues", {}),
        highest=stats.get("maxValues", {}),
    )


def _snapshot_files(table: SourceTable, version: int) -> list[AddedFile]:
    """A first batch over a table whose early log is gone: the files that make it up at ``version``, by age."""
    rows = DeltaTable(table.path, version=version).get_add_actions(flatten=False)
    records = [
        dict(zip(rows.schema.names, values, strict=True))
        for values in zip(*(rows.column(i).to_pylist() for i in range(rows.num_columns)), strict=True)
    ]
    records.sort(key=lambda record: (record["modification_time"], record["path"]))
    return [
        AddedFile(
            path=unquote(record["path"]),
            version=version,
            size_bytes=record["size_bytes"],
            rows=record.get("num_records"),
            partition={name: None if value is None else str(value) for name, value in (record.get("partition") or {}).items()},
            lowest=record.get("min") or {},
            highest=record.get("max") or {},
        )
        for record in records
    ]
