"""Delta tables of any owner: opens them, reads their logs, says which features are read and written by whom, and keeps them fast to open.

A table is opened once for the length of a run, since updating one costs a tenth of opening it.

A machine crash or a full disk can leave a log entry that is empty or truncated. Readers take an empty entry, or one truncated between two
lines, for a smaller commit, and skip lines of unknown kinds. But each entry begins with the number of files that the commit added and
removed, so truncation is detected.

An unknown feature may change the meaning of a table's files, so features that are not listed are refused: one list for sources, sinks and
the pipeline's own tables. A format is a property of a table, 1 without it; it is increased when older code would misread the table. Ledger
records have their own format (:mod:`windowmill.checkpoints.records`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError, TableNotFoundError

from windowmill.checkpoints.data_files import is_ours, remove
from windowmill.checkpoints.stores import FAILURES, is_local, is_table, remedy, store_of, table_at
from windowmill.windowing.axis import to_us
from windowmill.windowing.errors import (
    ForeignWriteError,
    SinkError,
    SinkRefusedError,
    SourceFeatureError,
    StateCorruptError,
    StateError,
    first_line,
)

#: Modification time and size of a file.
Mark = tuple[int | None, int | None]
#: Names the last checkpoint of the log.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"
#: Kinds of actions in the log entries of a pipeline's own tables.
_KINDS = {"commitInfo", "protocol", "metaData", "add", "remove", "txn", "domainMetadata", "cdc", "checkpointMetadata", "sidecar"}
#: Metrics in which delta-rs, its OPTIMIZE, and Spark record the numbers of files added and removed.
_ADDED = ("num_added_files", "numFilesAdded", "numFiles", "numAddedFiles")
_REMOVED = ("num_removed_files", "numFilesRemoved", "numRemovedFiles")
#: Only :func:`checkpoint_if_due` makes checkpoints: within a commit, their error would be returned as that of the commit.
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
#: Highest known protocol versions; from these on, a table lists its features by name.
NAMED_READER, NAMED_WRITER = 3, 7
#: Reader features with which a source is read correctly, from its Parquet files or by Delta's own reader.
READABLE = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
)
#: Writer features with which delta-rs appends correctly. It also appends to tables with column mapping, but with wrong column names.
WRITABLE_BY_DELTA_RS = frozenset({"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint"})
#: Writer features that the shipped version of Delta for Spark supports.
WRITABLE_BY_SPARK = WRITABLE_BY_DELTA_RS | {
    "allowColumnDefaults",
    "checkConstraints",
    "checkpointProtection",
    "clustering",
    "columnMapping",
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergWriterCompatV1",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "typeWidening",
    "typeWidening-preview",
    "vacuumProtocolCheck",
    "variantType",
}
_CATALOG = ("catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview")
#: The format that this release writes and reads, for each kind of table.
FORMATS = {"state": 5, "seen": 1, "quarantine": 1, "quality": 1, "held": 1}
#: Name of the table property with the format.
FORMAT = "windowmill.format"
#: Number of files above which a table is compacted.
FEW_FILES = 64
#: Target size of compacted files, small enough that rewriting one for every 64 new files is cheap.
MERGED_BYTES = 8 << 20
#: Hours after which uncommitted files are leftovers of dead attempts, and files of older versions are no longer read: longer than any
#: run, backfill or query takes.
RETENTION_HOURS = 168
#: What writers may cut off an instant in a statistic, as Delta has it in milliseconds.
CUT_OFF_US = 999
#: A file that delta-rs wrote, as a compaction does.
_BY_DELTA_RS = re.compile(r"part-\d{5}-[0-9a-f-]{36}-c\d{3}(?:\.\w+)?\.parquet")
#: A log entry or checkpoint, by its version.
_ENTRY = re.compile(r"(\d{20})\.")


class KeptTable:
    """The Delta table at ``path``, opened on first use."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: pa_fs.FileSystem | None = None
        self._table: DeltaTable | None = None
        self._earlier: DeltaTable | None = None
        #: Marks of the log when the table was opened or updated: its version's entry, and the pointer to the last Delta log checkpoint.
        self._seen: list[Mark | None] = []

    def newest(self) -> DeltaTable:
        """The table at its newest version; raises ``TableNotFoundError`` and other errors of ``DeltaTable``.

        Returns the same object each time, updated, as long as the log entry of its version is unchanged. If the entry is missing or
        different, the table was recreated or restored, or its log cleaned up; then it is opened again, as after a new Delta log checkpoint:
        older entries may be gone, which an open table would still read to look up a transaction.
        """
        later, *seen = [None] * 3 if self._table is None else self._marks(self._table.version())
        if self._table is None or seen[0] is None or seen != self._seen:
            self._table, self._earlier = table_at(self._path), None
        elif later is not None:
            self._table.update_incremental()
        else:
            return self._table
        _, *self._seen = self._marks(self._table.version())
        return self._table

    def at(self, version: int) -> DeltaTable:
        """The table at ``version``; the same object as before if the last call was for the same one."""
        if (newest := self.newest()).version() == version:
            return newest
        if self._earlier is None or self._earlier.version() != version:
            self._earlier = table_at(self._path, version)
        return self._earlier

    def _marks(self, version: int) -> list[Mark | None]:
        """Marks of the log entries of ``version + 1`` and ``version`` and of the last checkpoint; none for what does not exist."""
        if self._files is None:
            self._files = store_of(self._path)
        found = self._files.get_file_info([entry_name(version + 1), entry_name(version), LAST_CHECKPOINT])
        return [(info.mtime_ns, info.size) if info.type == pa_fs.FileType.File else None for info in found]


_KEPT: ContextVar[dict[str, KeptTable] | None] = ContextVar("kept_tables", default=None)


@contextmanager
def tables_kept(kept: dict[str, KeptTable] | None = None) -> Iterator[None]:
    """In this context and thread, :func:`newest` opens each table only once.

    ``kept`` holds tables by path. A caller that passes the same one again reuses the tables of its earlier contexts.
    """
    token = _KEPT.set({} if kept is None else kept)
    try:
        yield
    finally:
        _KEPT.reset(token)


def newest(path: str) -> DeltaTable:
    """The Delta table at ``path`` at its newest version; raises the same errors as ``DeltaTable``.

    Within :func:`tables_kept` all callers share one object, and a later call updates it. A caller that needs a fixed version keeps its
    own :class:`KeptTable`.
    """
    kept = _KEPT.get()
    return KeptTable(path).newest() if kept is None else kept.setdefault(path, KeptTable(path)).newest()


def at_version(path: str, version: int) -> DeltaTable:
    """The Delta table at ``path`` at ``version``, to be read at once: within :func:`tables_kept` a later call may update it."""
    kept = _KEPT.get()
    return table_at(path, version) if kept is None else kept.setdefault(path, KeptTable(path)).at(version)


def existing(path: str) -> DeltaTable | None:
    """:func:`newest`; none if there is no table at ``path``."""
    try:
        return newest(path)
    except TableNotFoundError:
        return None


def sizes_of(table: DeltaTable) -> dict[str, int]:
    """Size in bytes of each file of ``table``, by its path."""
    files = pa.table(table.get_add_actions(flatten=True))
    return dict(zip(files.column("path").to_pylist(), files.column("size_bytes").to_pylist(), strict=True))


def files_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The Delta log's entry of each file of ``table``: size, number of rows and statistics. Reads no data file."""
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def span_of(entry: Mapping[str, Any], name: str) -> tuple[int, int] | None:
    """Bounds of the numbers or instants, on the axis, in a column of a file, by its entry of :func:`files_of`; null if it has none."""
    low, high = entry.get(f"min.{name}"), entry.get(f"max.{name}")
    if low is None or high is None:
        return None
    return (to_us(low), to_us(high) + CUT_OFF_US) if isinstance(high, datetime) else (int(low), int(high))


def entry_name(version: int) -> str:
    """Path of a version's log entry below the table's folder."""
    return f"_delta_log/{version:020d}.json"


def actions_of(entry: bytes) -> list[dict[str, Any]]:
    """The actions of a log entry; raises ``ValueError`` if it is damaged."""
    # JSON texts, such as the least value of a column, may hold the other characters at which Python would split lines.
    return [json.loads(line) for line in entry.split(b"\n") if line.strip()]


def floor_of(place: str) -> int:
    """Version of the last checkpoint of the log of the table at ``place``; −1 if there is none.

    Entries of older versions may have been removed. A stalled writer can then create one of them again, which has no effect.
    """
    try:
        with store_of(place).open_input_file(LAST_CHECKPOINT) as file:
            return int(json.loads(file.read())["version"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return -1


def fault_of_log(table: DeltaTable) -> str | None:
    """Describe the fault of an incomplete log entry; none if all entries are complete or replaced by a checkpoint.

    On a local disk this checks each entry since the last checkpoint, on object storage, which verifies its content, only the last one.
    """
    store = store_of(table.table_uri)
    first = floor_of(table.table_uri) + 1 if table.table_uri.startswith("file://") else table.version()
    for version in range(table.version(), first - 1, -1):
        name = entry_name(version)
        try:
            with store.open_input_file(name) as file:
                fault = _fault(name, file.read())
        except FileNotFoundError:
            return None
        if fault is not None:
            return fault
    return None


def has_lost_its_beginning(table: DeltaTable) -> bool:
    """Whether the log's first entries are missing and no checkpoint replaces them.

    delta-rs would read such a table without the rows that the missing entries added.
    """
    store = store_of(table.table_uri)
    if any(info.type == pa_fs.FileType.File for info in store.get_file_info([entry_name(0), LAST_CHECKPOINT])):
        return False
    log = store.get_file_info(pa_fs.FileSelector("_delta_log"))
    return not any(".checkpoint." in info.base_name for info in log)


def _fault(name: str, entry: bytes) -> str | None:
    try:
        actions = actions_of(entry)
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        metrics = info.get("operationMetrics") or {}
        unknown = {kind for action in actions for kind in action} - _KINDS
        if unknown:
            return f"{name} holds {min(unknown)!r}, which no commit of this table has"
        for kind, names in (("add", _ADDED), ("remove", _REMOVED)):
            expected, listed = next((metrics[name] for name in names if name in metrics), None), sum(kind in action for action in actions)
            if expected is not None and int(expected) != listed:
                return f"{name} should {kind} {expected} files, and has {listed}"
        # A batch names itself; a compaction has neither metadata nor a transaction.
        if '"batch":' in str(info.get("userMetadata")) and not any("txn" in action for action in actions):
            return f"{name} lacks the transaction of its batch"
    except (ValueError, TypeError, AttributeError, StopIteration):
        return f"{name} is cut or damaged ({len(entry):,} bytes)"
    return None


@dataclass(frozen=True, slots=True)
class Features:
    """What a table's protocol requires of readers and writers."""

    #: Names of the reader features.
    reader: frozenset[str]
    #: Names of the features with which the files cannot be read correctly.
    unreadable: list[str]
    #: … with which neither delta-rs nor Delta for Spark can write.
    unwritable: list[str]
    #: … with which delta-rs cannot append.
    beyond_delta_rs: list[str]

    @classmethod
    def of(cls, table: DeltaTable) -> Features:
        protocol = table.protocol()
        # Whether column names in the files differ from those in the schema.
        is_mapped = (table.metadata().configuration.get("delta.columnMapping.mode") or "none") != "none"
        reader, used = frozenset(protocol.reader_features or ()), {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        to_read = [f"reader version {protocol.min_reader_version}"] if protocol.min_reader_version > NAMED_READER else []
        to_write = [f"writer version {protocol.min_writer_version}"] if protocol.min_writer_version > NAMED_WRITER else []
        unwritable = to_write + sorted(used - WRITABLE_BY_SPARK)
        beyond = ((used | {"columnMapping"} if is_mapped else used) - WRITABLE_BY_DELTA_RS) | set(unwritable)
        return cls(reader, to_read + sorted(reader - READABLE), unwritable, sorted(beyond))


def delta_rs_can_write(table: DeltaTable | str) -> bool:
    """Whether delta-rs can append to ``table``; if not, Spark does. True for a table that does not exist yet."""
    found = existing(table) if isinstance(table, str) else table
    return found is None or not Features.of(found).beyond_delta_rs


def check_readable_features(features: Features, path: str) -> None:
    """Raise ``SourceFeatureError``, naming the features, for a source that might not be read correctly."""
    unknown = features.unreadable
    if any(name in _CATALOG for name in unknown):
        raise SourceFeatureError(catalog_managed(path))
    if unknown:
        raise SourceFeatureError(
            f"source {path}: uses {_named(unknown)}, which cannot be read correctly here (readable: {', '.join(sorted(READABLE))}); "
            "drop the feature (ALTER TABLE … DROP FEATURE), or copy the rows into a table without it and read that"
        )


def check_writable_features(path: str) -> None:
    """Raise ``SinkRefusedError``, naming the features, for a sink that neither delta-rs nor Spark can write. A missing table is fine."""
    try:
        table = existing(path)
        features = None if table is None else Features.of(table)
    except DeltaError as err:
        raise SinkError(f"sink {path}: cannot be opened ({str(err).splitlines()[0]}); check the table's protocol and its log") from err
    if features is None:
        return
    if features.unwritable:
        raise SinkRefusedError(
            f"sink {path}: uses {_named(features.unwritable)}, under which neither delta-rs nor this version of Delta for Spark writes; "
            "drop the feature (ALTER TABLE … DROP FEATURE), then run again"
        )
    if features.beyond_delta_rs and not is_local(path):
        # In 200 races Spark overwrote 69 commits that delta-rs had made (docs/reliability.md).
        raise SinkRefusedError(
            f"sink {path}: uses {_named(features.beyond_delta_rs)}, under which only Spark writes, and Spark's commits to object storage "
            "may overwrite those of others; drop the feature (ALTER TABLE … DROP FEATURE), or give a new sink"
        )


def check_appendable(path: str) -> None:
    """Refuse one of the pipeline's own tables that only delta-rs writes, if it no longer can.

    Raises ``ForeignWriteError`` if someone added features that delta-rs does not support; ``StateCorruptError`` if it cannot be opened.
    """
    try:
        table = existing(path)
        beyond = [] if table is None else Features.of(table).beyond_delta_rs
    except DeltaError as err:
        advice = remedy(err, "restore the folder from a copy")
        raise StateCorruptError(f"table {path}: cannot be opened ({first_line(err)}); {advice}") from err
    if beyond:
        raise ForeignWriteError(
            f"table {path}: got {_named(beyond)}, under which its records cannot be appended; drop the feature "
            "(ALTER TABLE … DROP FEATURE), then run again"
        )


def catalog_managed(path: str) -> str:
    """The error message for a catalog-managed table."""
    return (
        f"source {path}: is a catalog-managed table: its commits go through its catalog, so its rows are not known from its path alone; "
        "copy it into a table of its own path (CREATE TABLE … DEEP CLONE, or INSERT INTO), and read that"
    )


def _named(features: Iterable[str]) -> str:
    names = list(features)
    return f"the table feature{'s' if len(names) > 1 else ''} {', '.join(names)}"


def own_commit(what: str) -> CommitProperties:
    """Commit properties that mark a commit as windowmill's own maintenance, not a batch."""
    return CommitProperties(custom_metadata={"userMetadata": f'{{"windowmill": "{what}"}}'}, max_commit_retries=0)


def check_format(table: DeltaTable, kind: str) -> None:
    """Raise ``StateError`` unless this release can read ``table``."""
    text = table.metadata().configuration.get(FORMAT, "1")
    if not text.isdecimal():
        raise StateError(f"{kind} {table.table_uri}: table property {FORMAT} is {text!r}, not a number; put it back")
    if int(text) > FORMATS[kind]:
        raise StateError(
            f"{kind} {table.table_uri}: format {text}, this windowmill reads format {FORMATS[kind]}; upgrade windowmill on this machine"
        )
    if int(text) < FORMATS[kind]:
        raise StateError(
            f"{kind} {table.table_uri}: format {text} of a version before the first release, this windowmill reads format {FORMATS[kind]}; "
            "give the pipeline a new sink and backfill it there"
        )


def checkpoint(table: DeltaTable) -> None:
    """Make a checkpoint of the log of ``table``, and remove entries that are older than its retention, where its owner allows both."""
    configuration = table.metadata().configuration
    if configuration.get("delta.checkpointPolicy", "classic") == "classic":
        table.create_checkpoint()
    if configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
        table.cleanup_metadata()


def checkpoint_if_due(place: str, version: int) -> None:
    """Make a checkpoint if one is due at ``version``; an error is ignored, as it only leaves the log longer."""
    if version % 10:
        return
    with suppress(*FAILURES, ValueError):
        table = newest(place)
        # Delta's own default. To open a table takes 0.3 ms an entry since the last checkpoint, and to make one 4 to 11 ms.
        interval = int(table.metadata().configuration.get("delta.checkpointInterval") or 10)
        if version % interval == 0:
            checkpoint(table)


def merge_if_many(path: str) -> bool:
    """Compact the Delta table at ``path`` if it has many files; returns whether it did. Rows do not change."""
    if not is_table(path):
        return False
    table = table_at(path)
    if len(table.file_uris()) <= FEW_FILES or not delta_rs_can_write(table):
        return False
    table.optimize.compact(target_size=MERGED_BYTES)
    return True


def shorten_log(path: str) -> None:
    """Checkpoint the log of the table at ``path``, and remove entries older than the table's log retention (30 days by default).

    Writers checkpoint only every 100 commits, which a rarely written table takes long to reach.
    """
    checkpoint(table_at(path))


def forget_log(path: str) -> int:
    """Checkpoint the log of the table at ``path``, and remove all earlier entries, ignoring the log's retention; returns how many.

    The statistics of removed files go with them, and older versions of the table can no longer be read.
    """
    checkpoint(table_at(path))
    store, newest = store_of(path), floor_of(path)
    names = [info.base_name for info in store.get_file_info(pa_fs.FileSelector("_delta_log")) if info.type == pa_fs.FileType.File]
    old = [name for name in names if (found := _ENTRY.match(name)) and int(found[1]) < newest]
    for name in old:
        store.delete_file(f"_delta_log/{name}")
    return len(old)


def vacuum(path: str, kept: Collection[str] = (), retention_hours: int = RETENTION_HOURS) -> int:
    """Remove files that no version within ``retention_hours`` needs; returns how many.

    Uncommitted files are removed, too, except those ``kept``; if the table's folder also contains other data, only uncommitted files of
    batches. Without a retention, files that a clock ahead of this one marked as removed later than now are removed, too.
    """
    table = table_at(path)
    every = table.vacuum(retention_hours, dry_run=True, enforce_retention_duration=False, full=True)
    # deltalake 1.6.6 does not know deletion vector files: a full vacuum would remove them as leftovers.
    mixed = "deletionVectors" in (table.protocol().reader_features or []) or _are_of_others(every, path)
    removed = len(table.vacuum(retention_hours, dry_run=False, enforce_retention_duration=False, full=not mixed and not kept))
    leftovers = [file for file in every if is_ours(file) and file not in kept] if mixed or kept else []
    remove(path, leftovers)
    ahead = [] if retention_hours else old_files(path, kept)
    remove(path, ahead)
    return removed + len(leftovers) + len(ahead)


def old_files(path: str, kept: Collection[str] = ()) -> list[str]:
    """Files of the table at ``path`` that its newest version does not need, and that are its own, except those ``kept``."""
    table, store = table_at(path), store_of(path)
    there = {info.path for info in store.get_file_info(pa_fs.FileSelector("", recursive=True)) if info.type == pa_fs.FileType.File}
    needed = {*map(unquote, sizes_of(table))}
    data = [file for file in sorted(there - needed - {*kept}) if file.endswith(".parquet") and not file.startswith("_")]
    return [file for file in data if is_ours(file) or _BY_DELTA_RS.fullmatch(file)]


def _are_of_others(files: Iterable[str], path: str) -> bool:
    """Whether any of ``files``, relative to the table at ``path``, is not a Parquet file or belongs to a table in a subfolder."""
    places = {PurePosixPath(file) for file in files}
    folders = {parent for place in places for parent in place.parents if parent.name}
    return any(place.suffix != ".parquet" for place in places) or any(is_table(f"{path}/{folder}") for folder in folders)
