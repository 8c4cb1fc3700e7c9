"""Reads a Delta table's log: which files each version appended, and which versions changed rows. No JVM.

It reads the log's JSON entries, not a snapshot, so the cost depends on the number of new versions, not on the length of the history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from windowmill.checkpoints.features import Features, catalog_managed, check_readable_features
from windowmill.checkpoints.kept_tables import newest
from windowmill.checkpoints.log_entries import has_lost_its_beginning
from windowmill.checkpoints.log_files import actions_of, entry_name, store_of
from windowmill.windowing.errors import SourceError, SourceFeatureError, SourceRangeGoneError, first_line

#: Row counts in a commit's operation metrics, as named by Delta for Spark and by delta-rs.
_CHANGED_ROWS = (
    "numDeletedRows",
    "numUpdatedRows",
    "numTargetRowsInserted",
    "numTargetRowsUpdated",
    "numTargetRowsDeleted",
    "num_deleted_rows",
    "num_updated_rows",
    "num_target_rows_inserted",
    "num_target_rows_updated",
    "num_target_rows_deleted",
)


@dataclass(frozen=True, slots=True)
class AddedFile:
    """One Parquet file of a source, appended by a version or part of a snapshot.

    ``path`` is relative to the table, or absolute. ``rows`` is the number of rows that are not deleted, null if the log does not give it.
    The keys of ``partition`` are physical column names.
    """

    path: str
    version: int
    size_bytes: int
    rows: int | None
    partition: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class LoggedVersion:
    """One version of a table, by its log entry.

    Attributes
    ----------
    added
        Files with new rows; files that were only rewritten (by OPTIMIZE and the like) are not included.
    changes
        Whether the version updated, removed or restored rows, so that ``added`` may contain rows that existed before.
    rows_changed
        Number of rows that such a version inserted, updated or removed according to its metrics; without metrics, the rows of ``added``.
    pipeline
        The windowmill pipeline that wrote the version, if one did.
    """

    version: int
    operation: str
    added: tuple[AddedFile, ...]
    changes: bool
    rows_changed: int
    pipeline: str | None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A source table as planning sees it."""

    path: str
    table_id: str
    version: int
    schema_json: str
    partition_columns: tuple[str, ...]
    #: Whether files may contain rows that deletion vectors delete.
    deletion_vectors: bool = False


def read_source_table(path: str) -> SourceTable:
    """The Delta table at ``path``.

    Raises
    ------
    SourceError
        If there is no table, or it cannot be opened.
    SourceFeatureError
        If it uses a table feature that cannot be read correctly.
    """
    try:
        table = newest(path)
        features = Features.of(table)
        metadata = table.metadata()
        schema_json = table.schema().to_json()
    except TableNotFoundError as err:
        raise SourceError(f"source {path}: there is no Delta table; write the first rows or correct source.path") from err
    except (DeltaError, OSError, ValueError) as err:
        told = str(err).replace(path, "")
        if re.search(r"catalog.?(managed|owned)", told, re.IGNORECASE):
            raise SourceFeatureError(catalog_managed(path)) from err
        if re.search(r"\bfeatures?\b", told, re.IGNORECASE):
            raise SourceFeatureError(
                f"source {path}: uses a table feature that cannot be read ({first_line(err)}); "
                "drop the feature (ALTER TABLE … DROP FEATURE), or copy the rows into a table without it and read that"
            ) from err
        raise SourceError(f"source {path}: cannot be read ({first_line(err)}); check the path and its permissions") from err
    check_readable_features(features, path)
    if has_lost_its_beginning(table):
        raise SourceError(
            f"source {path}: the first entries of its log are gone, and no checkpoint replaces them, so the table's rows are not "
            "known; restore them from a copy"
        )
    return SourceTable(
        path=path,
        table_id=str(metadata.id),
        version=table.version(),
        schema_json=schema_json,
        partition_columns=tuple(metadata.partition_columns),
        deletion_vectors="deletionVectors" in features.reader,
    )


def logged_versions(table: SourceTable, after: int, through: int) -> Iterator[LoggedVersion]:
    """The versions (``after``, ``through``], oldest first.

    Raises
    ------
    SourceRangeGoneError
        If the log entry of one of these versions has been cleaned up.
    """
    log = _Log(table)
    for version in range(after + 1, through + 1):
        yield _version(version, log.actions(version))


def first_version_at(table: SourceTable, instant: datetime) -> int | None:
    """The first version committed at ``instant`` or later; none if all are earlier.

    Raises
    ------
    SourceRangeGoneError
        If the log entries needed to find it have been cleaned up.
    """
    log = _Log(table)
    found = None
    for version in range(table.version, -1, -1):
        at = log.committed_at_ms(version)
        if at is None:
            raise SourceRangeGoneError(
                f"source {table.path}: the log of version {version} is gone, so it is unknown whether it was committed before "
                f"{instant.isoformat()} (source.options.startingTimestamp); give a later instant, or a startingVersion after {version}"
            )
        if at < instant.timestamp() * 1_000:
            break
        found = version
    return found


def snapshot_files(table: SourceTable, version: int) -> list[AddedFile]:
    """The files of the table at ``version``, in a deterministic order.

    Raises
    ------
    SourceRangeGoneError
        If the log can no longer reconstruct that version.
    """
    try:
        added = pa.table(DeltaTable(table.path, version=version).get_add_actions(flatten=False))
    except (DeltaError, OSError) as err:
        raise SourceRangeGoneError(
            f"source {table.path}: the log can no longer reconstruct the table at version {version} ({first_line(err)}); "
            "raise delta.logRetentionDuration, and rebuild this pipeline in a new sink with backfill"
        ) from err
    # Statistics hold dates and instants of any year, Python only those from year 1 on.
    wanted = ("path", "size_bytes", "modification_time", "num_records", "partition")
    found = added.select([name for name in wanted if name in added.schema.names]).to_pylist()
    found.sort(key=lambda add: (add["modification_time"], add["path"]))
    physical = physical_names(table.schema_json)
    return [
        AddedFile(
            path=unquote(add["path"]),
            version=version,
            size_bytes=add["size_bytes"],
            rows=None if table.deletion_vectors else add.get("num_records"),
            partition={physical.get(name, name): _text(value) for name, value in (add.get("partition") or {}).items()},
        )
        for add in found
    ]


def schema_at(table: SourceTable, version: int | None) -> str:
    """The table's Delta schema (JSON) at ``version``."""
    return str(DeltaTable(table.path, version=version).schema().to_json())


def physical_names(schema_json: str) -> dict[str, str]:
    """The name of each top-level column in the Parquet files, which differs under column mapping."""
    fields = json.loads(schema_json)["fields"]
    return {field["name"]: (field.get("metadata") or {}).get("delta.columnMapping.physicalName", field["name"]) for field in fields}


def missing_file(table: SourceTable, files: Sequence[AddedFile]) -> AddedFile | None:
    """The first of ``files`` that no longer exists in storage; none if all do.

    On object storage each lookup costs a request, so only files that are no longer part of the table are checked.
    """
    local = table.path.removeprefix("file://") if "://" not in table.path.removeprefix("file://") else None
    if local is not None and not any("://" in file.path for file in files):
        paths = [file.path.removeprefix("file:") if file.path.startswith(("/", "file:/")) else f"{local}/{file.path}" for file in files]
        infos = pa_fs.LocalFileSystem().get_file_info(paths)
        return next((file for file, info in zip(files, infos, strict=True) if info.type != pa_fs.FileType.File), None)
    live = {file.path for file in snapshot_files(table, table.version)}
    doubtful = [file for file in files if file.path not in live and "://" not in file.path]
    infos = pa_fs.PyFileSystem(DeltaStorageHandler(table.path)).get_file_info([file.path for file in doubtful])
    return next((file for file, info in zip(doubtful, infos, strict=True) if info.type != pa_fs.FileType.File), None)


class _Log:
    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._files = store_of(table.path)

    def has(self, version: int) -> bool:
        return bool(self._info(version).type == pa_fs.FileType.File)

    def committed_at_ms(self, version: int) -> float | None:
        """When ``version`` was committed: its ``inCommitTimestamp``, else the modification time of its log entry."""
        info = self._info(version)
        if info.type != pa_fs.FileType.File:
            return None
        told: int | None = next(
            (action["commitInfo"].get("inCommitTimestamp") for action in self.actions(version) if "commitInfo" in action), None
        )
        return info.mtime.timestamp() * 1_000 if told is None else float(told)

    def actions(self, version: int) -> list[dict[str, Any]]:
        try:
            with self._files.open_input_file(entry_name(version)) as stream:
                entry = stream.read()
        except (FileNotFoundError, OSError) as err:
            first = next((v for v in range(version + 1, self._table.version + 1) if self.has(v)), None)
            raise SourceRangeGoneError(
                f"source {self._table.path}: the log of version {version} is gone"
                + (f" (the first one left is {first})" if first is not None else "")
                + "; raise delta.logRetentionDuration, and rebuild this pipeline in a new sink with backfill"
            ) from err
        try:
            found = actions_of(entry)
        except ValueError:
            found = []
        if not found:
            raise SourceError(f"source {self._table.path}: the log entry of version {version} is damaged; restore {entry_name(version)}")
        return found

    def _info(self, version: int) -> pa_fs.FileInfo:
        return self._files.get_file_info([entry_name(version)])[0]


def _version(version: int, actions: Sequence[dict[str, Any]]) -> LoggedVersion:
    told: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    adds = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
    removes = [action["remove"] for action in actions if "remove" in action and action["remove"].get("dataChange", True)]
    operation = told.get("operation", "?")
    # A RESTORE may only add files back, whose rows have been read before.
    changes = bool(removes) or any(add.get("deletionVector") for add in adds) or (operation == "RESTORE" and bool(adds))
    added = tuple(_file(add, version) for add in adds)
    return LoggedVersion(version, operation, added, changes, _rows_changed(told, added) if changes else 0, _pipeline(told))


def _rows_changed(told: Mapping[str, Any], added: Sequence[AddedFile]) -> int:
    metrics = told.get("operationMetrics") or {}
    counts = [int(metrics[name]) for name in _CHANGED_ROWS if str(metrics.get(name, "")).isdigit()]
    return sum(counts) if counts else sum(file.rows or 0 for file in added)


def _pipeline(told: Mapping[str, Any]) -> str | None:
    try:
        metadata = json.loads(told.get("userMetadata") or "null")
    except ValueError:
        return None
    return metadata.get("pipeline") if isinstance(metadata, dict) and "generation" in metadata else None


def _file(add: Mapping[str, Any], version: int) -> AddedFile:
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    hidden = (add.get("deletionVector") or {}).get("cardinality", 0)
    rows = stats.get("numRecords")
    return AddedFile(
        path=unquote(add["path"]),
        version=version,
        size_bytes=add["size"],
        rows=None if rows is None else rows - hidden,
        partition=add.get("partitionValues") or {},
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
