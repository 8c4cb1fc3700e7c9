"""A folder of Parquet, CSV or JSON files as a source: each file is a version, in the order in which the pipeline has first seen them.

Files that appeared since the last listing follow those before by (time of change, path). A table of the pipeline keeps the order
(:mod:`windowmill.checkpoints.source_files`), so a file that comes later with an older time of change is read like any new one. Links are
not followed: files within the folder are read at their own path, and a link out of it is refused.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow.fs as pa_fs

from windowmill.checkpoints.places import local_path
from windowmill.checkpoints.quoting import backquoted
from windowmill.checkpoints.source_files import SeenFile, SeenFiles
from windowmill.checkpoints.stores import store_of
from windowmill.jobs.sources.base import AddedFile, LoggedVersion, PlainFile, Reading, SourceTable
from windowmill.jobs.sources.options import LOGICAL, declared, lacks_column, name_pattern, partition_of
from windowmill.jobs.sources.parquet_columns import Footer, footer_of, footers_of
from windowmill.jobs.sources.text_files import rows_in_text, text_form
from windowmill.jobs.sources.unusable_rows import ExpectedColumns
from windowmill.windowing.columnar.added_columns import UNREAD
from windowmill.windowing.errors import SourceError, SourceFileError, SourceMissingError, SourceSchemaError, SpecError, first_line

if TYPE_CHECKING:
    from windowmill.checkpoints.batches import Plan
    from windowmill.jobs.spark.access import DataFrame, SparkSession
    from windowmill.windowing.fields import Source
    from windowmill.windowing.spec import Pipeline

#: Number of files whose rows are counted before any of them is planned; and of those counted at once, as most of the time is waiting.
_COUNTED_AT_A_TIME, _COUNTED_AT_ONCE = 256, 16
#: Files that a message names.
_NAMED = 5
#: Suffixes of files that are still being written, or are no data.
_UNFINISHED = (".tmp", ".crc", "._COPYING_")


class Stat(NamedTuple):
    """Size of a file, and when it was last changed."""

    size: int
    mtime_ns: int


def listed_files(root: str, names: re.Pattern[str] | None = None) -> dict[str, Stat]:
    """The files of the folder that are data, and whose names fit ``names``, by path.

    Raises ``SourceMissingError`` if there is no such folder; ``SourceFileError`` if a link among them leads out of the folder, or the name
    of one cannot be written in one line; ``SourceError`` if it cannot be listed.
    """
    local = local_path(root)
    try:
        if local is not None and local.exists() and not local.is_dir():
            raise SourceError(f"source {root}: is a file; source.path names the folder in which files arrive")
        found = _stored(root) if local is None else _local(root, local)
        files = {path: own for path, own in found if own.size and (names is None or names.fullmatch(path.rpartition("/")[2]))}
    except FileNotFoundError as err:
        raise SourceMissingError(f"source {root}: there is no such folder; make it, or correct source.path") from err
    except (OSError, UnicodeDecodeError) as err:
        raise SourceError(f"source {root}: cannot be listed ({first_line(err)}); check the path and its permissions") from err
    odd = next((path for path in files if not path.isprintable()), None)
    if odd is not None:
        raise SourceFileError(
            f"source {root}: the name {odd!r} is not UTF-8, or has characters that end a line or control a terminal; rename it"
        )
    return files


def data_files(root: str) -> list[str]:
    """The files of a folder that are data, in order of their time of change; raises as :func:`listed_files`."""
    listed = listed_files(root)
    return sorted(listed, key=lambda path: (listed[path].mtime_ns, path))


def check_folders(root: str, listed: Mapping[str, Stat]) -> None:
    """Refuse files if only some lie in folders ``name=value``, or if these folders have different names."""
    first: str | None = None
    for path in listed:
        first = first or path
        if partition_of(path).keys() != partition_of(first).keys():
            raise SourceSchemaError(f"source {root}: {path!r} lies in folders of other columns (name=value) than {first!r}; move it away")


def _stored(root: str) -> Iterator[tuple[str, Stat]]:
    """The data files in object storage."""
    for info in store_of(root).get_file_info(pa_fs.FileSelector("", recursive=True)):
        path = info.path.strip("/")
        if info.type == pa_fs.FileType.File and _is_data(path):
            yield path, Stat(info.size, info.mtime_ns)


def _local(root: str, folder: Path, below: str = "") -> Iterator[tuple[str, Stat]]:
    """The data files of a ``folder`` of this machine, or of its folder ``below``."""
    with os.scandir(folder / below) as entries:
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_symlink():
                if _is_data(path) and not Path(entry.path).resolve().is_relative_to(folder.resolve()):
                    raise SourceFileError(
                        f"source {root}: {path!r} is a link that leads out of the folder; put the file itself there, or remove the link"
                    )
            elif entry.is_dir():
                if _is_data(f"{path}/x"):
                    yield from _local(root, folder, path)
            elif _is_data(path):
                own = entry.stat()
                if S_ISREG(own.st_mode):
                    yield path, Stat(own.st_size, own.st_mtime_ns)


def _is_data(path: str) -> bool:
    *folders, name = path.split("/")
    hidden = any(folder.startswith((".", "_")) and "=" not in folder for folder in folders)
    return not hidden and not name.startswith((".", "_")) and not name.endswith(_UNFINISHED)


def probe_folder(settings: Source) -> Mapping[str, Stat]:
    """The files of the folder that are data, by path."""
    assert settings.path is not None  # `not_run` refuses a source without a path
    return listed_files(settings.path, name_pattern(settings.options.get("pathGlobFilter", "*")))


def open_folder(settings: Source, record: str | None, listed: Mapping[str, Stat] | None = None) -> FolderSource:
    """The folder of a spec's source.

    ``record``: place of the table of the files that the pipeline has seen; null for a pipeline without a place for it.
    ``listed``: its files, as :func:`probe_folder` finds them.
    """
    assert settings.path is not None  # `not_run` refuses a source without a path
    listed = probe_folder(settings) if listed is None else listed
    check_folders(settings.path, listed)
    known, schema = ([], None) if record is None else SeenFiles(record).load()
    events = _events(known, listed)
    seen = [*known, *events]
    schema_json, unread, untyped = _columns(settings, schema, listed, [file.path for file in events if file.event != "removed"])
    return FolderSource(
        path=settings.path,
        table_id=f"files/{settings.format}",
        version=len(seen) - 1,
        schema_json=schema_json,
        unread=unread,
        untyped=untyped,
        settings=settings,
        seen=tuple(seen),
        recorded=len(known),
        listed=listed,
        record=record,
    )


def _events(
    known: Sequence[SeenFile], listed: Mapping[str, Stat], read_through: int | None = None, first: Collection[str] = ()
) -> list[SeenFile]:
    """The changes of the folder since ``known``: changed, removed and new files; those at the paths ``first`` come before others.

    ``read_through`` is the last version read by a batch that counts: later files that have changed or gone are forgotten, and count as new
    if they are there.
    """
    latest = {file.path: file for file in known}
    found, new = [], [path for path in listed if path not in latest]
    for path, file in latest.items():
        stat, was_there = listed.get(path), file.event in ("added", "changed")
        if (stat is None and not was_there) or (was_there and stat == (file.size_bytes, file.mtime_ns)):
            continue
        is_unread = file.event == "added" and read_through is not None and file.version > read_through
        if is_unread:
            found.append((file.mtime_ns, path, file.size_bytes, "forgotten"))
        elif stat is None:
            found.append((file.mtime_ns, path, file.size_bytes, "removed"))
        elif file.event != "forgotten":
            found.append((stat.mtime_ns, path, stat.size, "changed"))
        if stat is not None and (is_unread or file.event == "forgotten"):
            new.append(path)
    added = sorted((stat.mtime_ns, path, stat.size, "added") for path in new if (stat := listed[path]))
    last, events = (known[-1] if known else None), []
    for mtime_ns, path, size, event in [*sorted(found, key=lambda event: (event[1] not in first, event)), *added]:
        last = SeenFile.after(last, path, size, mtime_ns, event)  # type: ignore[arg-type]
        events.append(last)
    return events


def _columns(
    settings: Source, recorded: str | None, listed: Mapping[str, Stat], new: Sequence[str]
) -> tuple[str, Mapping[str, str], frozenset[str]]:
    """The columns of the source as JSON, given those ``recorded`` and the ``new`` files; those not read, with why; those with no value."""
    given, root = settings.options.get("schema"), settings.path.rstrip("/") if settings.path else ""
    is_parquet = settings.format == "parquet" and given is None
    if recorded is not None and given is None and not is_parquet:
        return recorded, {}, frozenset()
    if recorded is not None and is_parquet and not new:
        return recorded, {}, frozenset()
    from windowmill.jobs.sources import folder_columns  # loads what a run without new files does not need

    if not listed and recorded is None:
        if given is None:
            raise SourceMissingError(
                f"source {settings.path}: there are no {settings.format} files in the folder yet; write the first one, correct "
                "source.path, or give the columns as source.options.schema"
            )
        from windowmill.jobs.sources.columns import Columns

        return Columns.of_arrow(declared(given)).json, {}, frozenset()
    paths = sorted(listed, key=lambda path: (listed[path].mtime_ns, path))
    if not is_parquet:
        schema_json, untyped = folder_columns.schema_of(settings, root, paths)
        return schema_json, {}, untyped
    footers = footers_of(root, ((path, *listed[path]) for path in (paths if recorded is None else new)))
    if recorded is None:
        for each in footers:
            if isinstance(each, SourceError):
                raise each
    return folder_columns.of_parquet([each for each in footers if isinstance(each, Footer)], paths, recorded)


@dataclass(frozen=True)
class FolderSource(SourceTable):
    """A folder as it is listed now.

    ``seen``: the changes of its files, by version.
    ``recorded``: how many of them the record holds.
    ``listed``: the files that are there, by path.
    ``record``: place of the record; null if there is none.
    ``counts``: rows of those files that have been counted since.
    """

    names_files: ClassVar[bool] = True
    has_unread: ClassVar[bool] = True

    settings: Source = field(kw_only=True)
    seen: tuple[SeenFile, ...] = field(repr=False, kw_only=True)
    recorded: int = field(kw_only=True)
    listed: Mapping[str, Stat] = field(repr=False, kw_only=True)
    record: str | None = field(kw_only=True)
    counts: dict[str, int | None] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def used_by(self, pipeline: Pipeline) -> FolderSource:
        # Recorded files stay: their results may have been published.
        schema_json, days = (self.schema_json, self.days) if self.recorded else self._with_wider_types(self.schema_json, pipeline)
        names = [column["name"] for column in json.loads(schema_json)["fields"]]
        return replace(self, schema_json=schema_json, days=days, expected=ExpectedColumns.by(pipeline, names))

    def _with_wider_types(self, schema_json: str, pipeline: Pipeline) -> tuple[str, frozenset[str]]:
        is_found = self.settings.format != "parquet" and "schema" not in self.settings.options
        if not is_found:
            return schema_json, frozenset()
        from windowmill.jobs.sources.folder_columns import with_wider_types

        return with_wider_types(schema_json, pipeline, self.listed)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the list of files: tasks get the files that they read."""
        return self.__dict__ | {"seen": (), "listed": {}, "counts": {}}

    @cached_property
    def _forgotten(self) -> set[int]:
        """Versions that added a file which was forgotten later."""
        added, found = {}, set()
        for file in self.seen:
            if file.event == "added":
                added[file.path] = file.version
            elif file.event == "forgotten":
                found.add(added[file.path])
        return found

    def versions(self, after: int, through: int) -> Iterator[LoggedVersion]:
        before = {file.path: file for file in self.seen if file.event == "added"}
        for begin in range(after + 1, through + 1, _COUNTED_AT_A_TIME):
            files = self.seen[begin : min(begin + _COUNTED_AT_A_TIME, through + 1)]
            for file, rows in zip(files, self._rows(files), strict=True):
                if file.event == "forgotten" or file.version in self._forgotten:
                    yield LoggedVersion(file.version, f"{file.path}: {file.event}", ())
                elif file.event == "added":
                    yield LoggedVersion(file.version, "new file", (self._added(file, rows),))
                else:
                    rows = before[file.path].rows or 1  # noqa: PLW2901 - those that were read
                    yield LoggedVersion(file.version, f"{file.path}: {file.event}", (), changes=True, rows_changed=rows)

    def snapshot(self, version: int) -> list[AddedFile]:
        latest = {file.path: file for file in self.seen[: version + 1]}.values()
        there = [file for file in latest if file.event in ("added", "changed") and file.version not in self._forgotten]
        return [self._added(file, rows) for file, rows in zip(there, self._rows(there), strict=True)]

    def _added(self, file: SeenFile, rows: int | None) -> AddedFile:
        # For text, the number of lines is known: some may be empty, and several may form one row.
        return AddedFile(
            file.path, file.version, file.size_bytes, rows, partition_of(file.path), is_counted=self.settings.format == "parquet"
        )

    def remember(self, through: int) -> None:
        if self.record is not None:
            new = [replace(file, rows=self.counts.get(file.path)) for file in self.seen[self.recorded : through + 1]]
            SeenFiles(self.record).add(new, self.schema_json, after=self.recorded)

    def _rows(self, files: Sequence[SeenFile]) -> list[int | None]:
        """Number of rows of each new or changed one of ``files``; null if it has not been counted and would take long to count."""
        root = self.path.rstrip("/")
        counted = [
            file for file in files if file.event in ("added", "changed") and file.version not in self._forgotten and file.rows is None
        ]
        wanted = list(dict.fromkeys(file.path for file in counted if file.path not in self.counts and file.path in self.listed))

        def count(path: str) -> int | None:
            size, mtime_ns = self.listed[path]
            if self.settings.format != "parquet":
                return rows_in_text(f"{root}/{path}", self.settings, size)
            try:
                return footer_of(f"{root}/{path}", size, mtime_ns).rows
            except SourceError:  # whoever reads it says what is wrong
                return None

        if wanted:
            with ThreadPoolExecutor(_COUNTED_AT_ONCE) as pool:
                self.counts.update(zip(wanted, pool.map(count, wanted), strict=True))
        return [self.counts.get(file.path) if file.rows is None else file.rows for file in files]

    def mark(self, version: int) -> str | None:
        return self.seen[version].digest if 0 <= version < len(self.seen) else None

    def missing(self, files: Sequence[AddedFile]) -> AddedFile | None:
        """The error for a file that is gone, or has changed since its version."""
        was = (self.seen[file.version] for file in files)
        return next(
            (file for file, seen in zip(files, was, strict=True) if self.listed.get(file.path) != (seen.size_bytes, seen.mtime_ns)), None
        )

    def when_missing(self) -> str:
        return (
            "(removed from the folder, or changed); bring it back, or take that as a correction by `windowmill restate SPEC --file NAME`, "
            "which takes several files at once: name each that has changed or gone; keep files as long as backfills read them"
        )

    def first_version_at(self, instant: datetime) -> int | None:
        at = int(instant.timestamp() * 1_000_000) * 1_000
        return next((file.version for file in self.seen if file.mtime_ns >= at), None)

    def plain_files(self, reading: Reading) -> list[PlainFile]:
        names, root = [column["name"] for column in json.loads(self.schema_json)["fields"]], self.path.rstrip("/")
        found = []
        for file in reading.files:
            folders = partition_of(file.path)
            own = [name for name in names if name not in folders]
            found.append(
                PlainFile(
                    f"{root}/{file.path}",
                    {name: name for name in own},
                    {name: folders[name] for name in names if name in folders},
                    row_form=text_form(self.settings, own, self.expected),
                    casts=self.expected,
                )
            )
        return found

    def check(self, reading: Reading) -> None:
        if self.settings.format != "parquet":
            return
        may_lack = LOGICAL[self.settings.options.get("mergeSchema", "false").lower()]
        for file, each in zip(reading.files, self._footers(reading.files), strict=True):
            if isinstance(each, SourceError):
                raise each
            there = {name.lower() for name in (*each.columns, *each.doubled, *partition_of(file.path))}
            missing = next((name for name in self.expected.names if name.lower() not in there), None)
            if missing is not None and not may_lack:
                raise lacks_column(each.path, missing)

    def fitted(self, pipeline: Pipeline, last: Plan | None, read_through: int) -> FolderSource:
        known = self.seen[: self.recorded]
        seen = (*known, *_events(known, self.listed, read_through))
        schema_json, unread, untyped = self.schema_json, self.unread, self.untyped
        if last is None and known:
            # The files by which columns were found may be among those that are forgotten.
            if self.listed:
                schema_json, unread, untyped = _columns(self.settings, None, self.listed, ())
            schema_json, _ = self._with_wider_types(schema_json, pipeline)
        elif last is not None and last.source_schema != schema_json and "schema" not in self.settings.options:
            from windowmill.jobs.sources.columns import unchanged_types  # loads what a run without new files does not need

            schema_json = unchanged_types(last.source_schema, schema_json, pipeline, self.path)
        return replace(self, seen=seen, version=len(seen) - 1, schema_json=schema_json, unread=unread, untyped=untyped)

    def corrected(self, names: Sequence[str], read_through: int) -> tuple[FolderSource, list[str], int]:
        """The source with changes of the files ``names`` first among the new versions; the files' paths, and the last of their changes.

        ``names`` are paths of files that batches have read, relative to the folder or as a whole; ``read_through`` is the last version that
        a batch which counts has read, and the version that is given is at least this one. Raises ``SpecError`` if no batch has read one of
        them, or all rows of one count as they are.
        """
        known, root = self.seen[: self.recorded], self.path.rstrip("/")
        paths = list(dict.fromkeys(name.removeprefix(f"{root}/") for name in names))
        seen = (*known, *_events(known, self.listed, read_through, paths))
        changes = [file.version for file in seen if file.path in paths and file.event in ("changed", "removed")]
        read = {file.path for file in seen[: read_through + 1]}
        for path in paths:
            if path not in read:
                raise SpecError(f"--file: no batch has read a file {path!r} of {self.path}; name one by its path below the folder")
            if not any(file.path == path and file.event in ("changed", "removed") for file in seen):
                raise SpecError(f"--file: {path!r} of {self.path} is as batches have read it; nothing of it is to be restated")
        return replace(self, seen=seen, version=len(seen) - 1), paths, max(read_through, *changes)

    def removed(self, through: int) -> set[str]:
        """Paths of the files that were there at a version through this one, and are not at it."""
        return {file.path for file in {file.path: file for file in self.seen[: through + 1]}.values() if file.event == "removed"}

    def when_changed(self, version: LoggedVersion) -> str:
        paths = dict.fromkeys(file.path for file in self.seen[version.version :] if file.event in ("changed", "removed"))
        named = " ".join(f"--file {shlex.quote(path)}" for path in islice(paths, _NAMED)) + (" …" if len(paths) > _NAMED else "")
        return (
            f"take that as a correction by `windowmill restate SPEC {named}`, put the file back as it was, or set "
            "source.changes to ignore, so that such files leave results as they are"
        )

    def _footers(self, files: Sequence[AddedFile]) -> list[Footer | SourceError]:
        return footers_of(self.path.rstrip("/"), ((file.path, *self.listed.get(file.path, (0, 0))) for file in files))

    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from windowmill.jobs.sources import spark_files

        if self.settings.format == "parquet" and self._is_read_by_spark(reading.files):
            return spark_files.rows_of(spark, self, reading).selectExpr("*", f"CAST(NULL AS STRING) AS {backquoted(UNREAD)}")
        return spark_files.rows_by_arrow(spark, self, self.plain_files(reading), reading)

    def _is_read_by_spark(self, files: Sequence[AddedFile]) -> bool:
        """Whether Spark reads all of the Parquet ``files``, which then have the names and types of the source's columns."""
        from windowmill.jobs.sources.columns import Columns

        kinds = Columns.of(self.schema_json).arrow
        return all(isinstance(each, Footer) and each.has_exactly(kinds) for each in self._footers(files))

    def stored_names(self, version: int | None = None) -> dict[str, str]:  # noqa: ARG002 - as of a Delta table
        """The name of each column in the files."""
        return {column["name"]: column["name"] for column in json.loads(self.schema_json)["fields"]}
