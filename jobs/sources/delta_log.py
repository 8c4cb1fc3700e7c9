"""Reads a Delta table's log: the files that each version appended, their statistics, and versions that changed rows.

The log is read by its JSON entries, not a snapshot, so the cost depends on the number of new versions, not on the length of the history.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints.delta_tables import (
    CUT_OFF_US,
    Features,
    actions_of,
    at_version,
    catalog_managed,
    check_readable_features,
    entry_name,
    has_lost_its_beginning,
    newest,
)
from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.stores import is_unavailable, remedy, store_of, table_at
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, PlainFile, Reading, SourceTable
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import SourceError, SourceFeatureError, SourceMissingError, SourceRangeGoneError, first_line

if TYPE_CHECKING:
    from windowmill.jobs.spark.access import DataFrame, SparkSession
    from windowmill.windowing.fields import Source, Time

#: Key in a commit's information by which a version changes rows although it removes no file.
CORRECTION = "windowmillCorrection"
#: Row counts in a commit's operation metrics, as named by Delta for Spark and by delta-rs.
_CHANGED_ROWS = (
    *("numDeletedRows", "numUpdatedRows", "numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    *("num_deleted_rows", "num_updated_rows", "num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
)
#: Metadata of a column by which it is found in files.
_MAPPING = "delta.columnMapping."


def file_statistics(added: pa.Table) -> pa.Array:
    """For each file, the least and greatest values of integers and instants, as the JSON of a log; instants in microseconds."""
    bounds: dict[str, list[dict[str, int | None]]] = {}
    for key, name in (("minValues", "min"), ("maxValues", "max")):
        own = pa.table(added.select([name])).column(name).combine_chunks().flatten() if name in added.schema.names else []
        kinds = list(added.schema.field(name).type) if name in added.schema.names else []
        whole = {
            field.name: column.cast(pa.int64()).to_pylist()
            for field, column in zip(kinds, own, strict=True)
            if pa.types.is_integer(field.type) or (pa.types.is_timestamp(field.type) and field.type.unit == "us")
        }
        bounds[key] = [{column: values[row] for column, values in whole.items()} for row in range(added.num_rows)]
    return pa.array([json.dumps({key: rows[row] for key, rows in bounds.items()}) for row in range(added.num_rows)], pa.string())


def span(stats: str | None, name: str, *, instants: bool, tick_us: int = 1) -> tuple[int, int, int] | None:
    """A lower bound of the values of a column, and a lower and an upper bound of the greatest; null if ``stats`` do not contain them.

    ``name`` is that in the file. Instants are microseconds on the axis, as are numbers of ``tick_us`` microseconds.
    """
    try:
        found = json.loads(stats or "{}")
        low, high = found["minValues"][name], found["maxValues"][name]
        if found.get("tightBounds") is False:
            return None
        if not instants:
            return (low * tick_us, high * tick_us, high * tick_us) if isinstance(low, int) and isinstance(high, int) else None
        return _instant(low), _instant(high), _instant(high) + CUT_OFF_US
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def least_instants(stats: str | None, names: Iterable[str]) -> Mapping[str, int]:
    """A lower bound of the instants in each column for which ``stats`` contain one."""
    least = {}
    try:
        lows = json.loads(stats or "{}").get("minValues") or {}
    except ValueError:
        return {}
    for name in names:
        try:
            least[name] = _instant(lows[name])
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
    return least


def _instant(value: object) -> int:
    return value if isinstance(value, int) else to_us(datetime.fromisoformat(str(value)).astimezone(UTC))


def open_delta(settings: Source) -> DeltaSource:
    """The Delta table of a spec's source."""
    assert settings.path is not None  # `not_run` refuses a source without a path
    return read_source_table(settings.path)


def read_source_table(path: str, what: str = "source", field: str = "source.path") -> DeltaSource:
    """The Delta table at ``path``; ``what`` it is, and the ``field`` that names it, are for messages.

    Raises ``SourceMissingError`` if there is no table; ``SourceError`` if it cannot be opened; ``SourceFeatureError`` if it uses a table
    feature that cannot be read correctly.
    """
    try:
        table = newest(path)
        features = Features.of(table)
        metadata = table.metadata()
        schema_json = table.schema().to_json()
    except TableNotFoundError as err:
        raise SourceMissingError(f"{what} {path}: there is no Delta table; write the first rows or correct {field}") from err
    except (DeltaError, OSError, ValueError) as err:
        message = str(err).replace(path, "")
        if re.search(r"catalog.?(managed|owned)", message, re.IGNORECASE):
            raise SourceFeatureError(catalog_managed(path)) from err
        if re.search(r"\bfeatures?\b", message, re.IGNORECASE):
            raise SourceFeatureError(
                f"{what} {path}: uses a table feature that cannot be read ({first_line(err)}); "
                "drop the feature (ALTER TABLE … DROP FEATURE), or copy the rows into a table without it and read that"
            ) from err
        raise SourceError(f"{what} {path}: cannot be read ({first_line(err)}); check the path and its permissions") from err
    check_readable_features(features, path)
    if has_lost_its_beginning(table):
        raise SourceError(
            f"{what} {path}: the first entries of its log are gone, and no checkpoint replaces them, so the table's rows are not "
            "known; restore them from a copy"
        )
    return DeltaSource(
        path=path,
        table_id=str(metadata.id),
        version=table.version(),
        schema_json=schema_json,
        deletion_vectors="deletionVectors" in features.reader,
    )


def read_version(path: str, version: int | None, what: str = "source", field: str = "source.path") -> DeltaSource:
    """As :func:`read_source_table`, at ``version``; null for the newest."""
    newest_one = read_source_table(path, what, field)
    if version is None or version == newest_one.version:
        return newest_one
    try:
        table = table_at(path, version)
    except (DeltaError, OSError) as err:
        raise SourceError(f"{what} {path}: cannot be read at version {version} ({first_line(err)}); name a later version") from err
    return replace(newest_one, version=version, schema_json=table.schema().to_json())


@dataclass(frozen=True)
class DeltaSource(SourceTable):
    """A Delta table."""

    is_restatable: ClassVar[bool] = True

    def versions(self, after: int, through: int) -> Iterator[LoggedVersion]:
        for version in range(after + 1, through + 1):
            actions = self.actions(version)
            commit: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
            adds = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
            removes = [action["remove"] for action in actions if "remove" in action and action["remove"].get("dataChange", True)]
            operation = commit.get("operation", "?")
            # A RESTORE may add files back and remove none; their rows have been read before.
            comes_again = bool(adds) and (operation == "RESTORE" or CORRECTION in commit)
            changes = bool(removes) or any(add.get("deletionVector") for add in adds) or comes_again
            added = tuple(_file(add, version) for add in adds)
            yield LoggedVersion(version, operation, added, changes, _rows_changed(commit, added) if changes else 0, _pipeline(commit))

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of the log entry of ``version``; raises as :meth:`versions`."""
        entry = self._entry(version)
        if entry is None:
            files, later = store_of(self.path), range(version + 1, self.version + 1)
            first = next((v for v in later if files.get_file_info(entry_name(v)).is_file), None)
            raise SourceRangeGoneError(
                f"source {self.path}: the log of version {version} is gone"
                + (f" (the first one left is {first})" if first is not None else "")
                + "; raise delta.logRetentionDuration, and rebuild this pipeline in a new sink with backfill"
            )
        try:
            found = actions_of(entry)
        except ValueError:
            found = []
        if not found:
            raise SourceError(f"source {self.path}: the log entry of version {version} is damaged; restore {entry_name(version)}")
        return found

    def _entry(self, version: int) -> bytes | None:
        """The log entry of ``version``; null if it is gone.

        Raises ``SourceError`` if it cannot be read for another reason, which says nothing about whether it is there.
        """
        try:
            with store_of(self.path).open_input_file(entry_name(version)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except OSError as err:
            raise _unavailable(self.path, entry_name(version), err) from err

    def snapshot(self, version: int) -> list[AddedFile]:
        try:
            added = pa.table(at_version(self.path, version).get_add_actions(flatten=False))
        except (DeltaError, OSError) as err:
            if is_unavailable(err):
                raise _unavailable(self.path, f"version {version}", err) from err
            raise SourceRangeGoneError(
                f"source {self.path}: the log can no longer reconstruct the table at version {version} ({first_line(err)}); "
                "raise delta.logRetentionDuration, and rebuild this pipeline in a new sink with backfill"
            ) from err
        # Statistics may hold dates and instants before year 1, which Python cannot represent: convert only these columns.
        wanted = ("path", "size_bytes", "modification_time", "num_records", "partition")
        adds = (
            added.select([name for name in wanted if name in added.schema.names]).append_column("stats", file_statistics(added)).to_pylist()
        )
        adds.sort(key=lambda add: (add["modification_time"], add["path"]))
        physical = physical_names(self.schema_json)
        return [
            AddedFile(
                path=unquote(add["path"]),
                version=version,
                size_bytes=add["size_bytes"],
                rows=None if self.deletion_vectors else add.get("num_records"),
                partition={
                    physical.get(name, name): None if value is None else str(value) for name, value in (add.get("partition") or {}).items()
                },
                stats=add["stats"],
            )
            for add in adds
        ]

    def reading(self) -> Reading:
        """All rows of the table at its version."""
        files = self.snapshot(self.version)
        return Reading(tuple(files), len(files), self.version if self.deletion_vectors and files else None)

    def mark(self, version: int) -> str | None:
        # The entry names its files, whose names are random, and its time.
        entry = self._entry(version)
        return None if entry is None else hashlib.sha256(entry).hexdigest()[:16]

    def missing(self, files: Sequence[AddedFile]) -> AddedFile | None:
        # On object storage each lookup costs a request, so only files that are no longer part of the table are checked.
        local = local_path(self.path)
        if local is not None and not any("://" in file.path for file in files):
            paths = [file.path.removeprefix("file:") if file.path.startswith(("/", "file:/")) else f"{local}/{file.path}" for file in files]
            infos = pa_fs.LocalFileSystem().get_file_info(paths)
        else:
            live = {file.path for file in self.snapshot(self.version)}
            files = [file for file in files if file.path not in live and "://" not in file.path]
            infos = store_of(self.path).get_file_info([file.path for file in files])
        return next((file for file, info in zip(files, infos, strict=True) if not info.is_file), None)

    def first_version_at(self, instant: datetime) -> int | None:
        since_ms, found, version = instant.timestamp() * 1_000, None, self.version
        # Times within commits only go forward; those of log entries go back where a clock was set back.
        while version >= 0 and (at := self._recorded_ms(version)) is not None:
            if at < since_ms:
                return found
            found, version = version, version - 1
        times = self._written_ms(version)
        found = next((earlier for earlier, at in times.items() if at >= since_ms), found)
        first = next(iter(times), version + 1)
        if found == first and first > 0:
            raise SourceRangeGoneError(
                f"source {self.path}: the log of version {first - 1} is gone, so it is unknown whether it was committed before "
                f"{instant.isoformat()} (source.options.startingTimestamp); give a later instant, or a startingVersion after {first - 1}"
            )
        return found

    def _recorded_ms(self, version: int) -> int | None:
        """When ``version`` was committed, as its entry says it (``inCommitTimestamp``); null if it does not, or is gone."""
        entry = self._entry(version)
        actions = [] if entry is None else self.actions(version)
        return next((action["commitInfo"].get("inCommitTimestamp") for action in actions if "commitInfo" in action), None)

    def _written_ms(self, through: int) -> dict[int, float]:
        """When the versions whose entries are left, up to ``through``, were committed, by the times of the entries.

        As in Delta itself, a version counts as at least a millisecond later than the one before.
        """
        found = store_of(self.path).get_file_info(pa_fs.FileSelector("_delta_log", allow_not_found=True))
        by_name = {info.base_name: info.mtime.timestamp() * 1_000 for info in found if info.type == pa_fs.FileType.File and info.mtime}
        times: list[float] = []
        while (at := by_name.get(entry_name(through - len(times)).rpartition("/")[2])) is not None:
            times.append(at)
        at_least = accumulate(reversed(times), lambda before, at: max(at, before + 1))
        return dict(enumerate(at_least, through - len(times) + 1))

    def stored_names(self, version: int | None = None) -> dict[str, str]:
        """The name of each column in the Parquet files, of ``schema_json`` or at a version; see :func:`physical_names`."""
        if version is None:
            return physical_names(self.schema_json)
        return physical_names(table_at(self.path, version).schema().to_json())

    def plain_files(self, reading: Reading) -> list[PlainFile] | None:
        # A path in the log that is a URI may lead elsewhere.
        if any(":/" in file.path for file in reading.files) or (reading.as_of is not None and self._has_deleted_rows(reading.as_of)):
            return None
        local, stored = local_path(self.path), physical_names(self.schema_json)
        root = self.path.rstrip("/") if local is None else str(local)
        fields = json.loads(self.schema_json)["fields"]
        instants = {stored[field["name"]]: field["name"] for field in fields if field["type"] == "timestamp"}
        return [
            PlainFile(
                file.path if file.path.startswith("/") else f"{root}/{file.path}",
                {name: own for name, own in stored.items() if own not in file.partition},
                {name: file.partition[own] for name, own in stored.items() if own in file.partition},
                {instants[own]: least for own, least in least_instants(file.stats, instants).items()},
            )
            for file in reading.files
        ]

    def _has_deleted_rows(self, version: int) -> bool:
        """Whether files of the table at ``version`` hold rows that have been deleted."""
        vectors = table_at(self.path, version).deletion_vectors()
        return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(vectors))

    def when_changed(self, version: LoggedVersion) -> str:  # noqa: ARG002 - the same for all
        return (
            "`windowmill restate` recomputes the windows that they touch: run it, or set source.changes to restate, so that runs do, "
            "or to ignore, so that they leave results as they are"
        )

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from windowmill.jobs.sources.spark_files import rows_of  # imports pyspark, which planning does not need

        return rows_of(spark, self, reading)


def physical_names(schema_json: str) -> dict[str, str]:
    """The name of each top-level column in the Parquet files, which differs under column mapping."""
    fields = json.loads(schema_json)["fields"]
    return {field["name"]: (field.get("metadata") or {}).get("delta.columnMapping.physicalName", field["name"]) for field in fields}


def stored_as(schema_json: str, names: Mapping[str, str]) -> str:
    """The schema of a table that stores each column by its own name, or by another one of ``names``."""

    def plain(part: Any) -> Any:
        if isinstance(part, list):
            return [plain(each) for each in part]
        return {name: plain(each) for name, each in part.items() if not name.startswith(_MAPPING)} if isinstance(part, dict) else part

    schema = plain(json.loads(schema_json))
    for field in schema["fields"]:
        if names.get(field["name"], field["name"]) != field["name"]:
            field["metadata"] = {**(field.get("metadata") or {}), f"{_MAPPING}physicalName": names[field["name"]]}
    return json.dumps(schema)


def _unavailable(path: str, what: str, err: Exception) -> SourceError:
    return SourceError(f"source {path}: {what} cannot be read now ({first_line(err)}); {remedy(err, 'run again')}")


def _rows_changed(commit: Mapping[str, Any], added: Sequence[AddedFile]) -> int:
    metrics = commit.get("operationMetrics") or {}
    counts = [int(metrics[name]) for name in _CHANGED_ROWS if str(metrics.get(name, "")).isdigit()]
    return sum(counts) if counts else sum(file.rows or 0 for file in added)


def _pipeline(commit: Mapping[str, Any]) -> str | None:
    try:
        metadata = json.loads(commit.get("userMetadata") or "null")
    except ValueError:
        return None
    return metadata.get("pipeline") if isinstance(metadata, dict) and "generation" in metadata else None


def _file(add: Mapping[str, Any], version: int) -> AddedFile:
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    deleted = (add.get("deletionVector") or {}).get("cardinality", 0)
    rows = stats.get("numRecords")
    return AddedFile(
        path=unquote(add["path"]),
        version=version,
        size_bytes=add["size"],
        rows=None if rows is None else rows - deleted,
        partition=add.get("partitionValues") or {},
        stats=add.get("stats"),
    )


def first_time(source: SourceTable, files: Sequence[AddedFile], time: Time) -> int | None:
    """A lower bound of the event times in ``files``, on the axis; null where statistics are missing."""
    lows = [None if found is None else found[0] for found in spans(source, files, time.column, time.tick_us)]
    return None if None in lows else min((low for low in lows if low is not None), default=None)


def times_from(source: SourceTable, reading: Reading, time: Time, begin: int) -> Reading:
    """``reading`` without the files whose event times all lie before the instant ``begin``."""
    stays = [found is None or found[2] >= begin for found in spans(source, reading.files, time.column, time.tick_us)]
    files = tuple(file for file, kept in zip(reading.files, stays, strict=True) if kept)
    return replace(reading, files=files, snapshot_files=sum(stays[: reading.snapshot_files]))


def spans(source: SourceTable, files: Sequence[AddedFile], column: str, tick_us: int) -> list[tuple[int, int, int] | None]:
    """For each file a lower bound of the times in ``column``, and a lower and an upper bound of the greatest; null without statistics.

    Numbers count ``tick_us`` microseconds. Of a column that a step makes there are none.
    """
    if source.reader is not None and any(column in step.makes for step in source.reader.row_steps):
        return [None] * len(files)
    kind = next((field["type"] for field in json.loads(source.schema_json)["fields"] if field["name"] == column), None)
    if kind not in ("timestamp", "long", "integer", "short", "byte"):
        return [None] * len(files)
    name = physical_names(source.schema_json).get(column, column)
    return [span(file.stats, name, instants=kind == "timestamp", tick_us=tick_us) for file in files]
