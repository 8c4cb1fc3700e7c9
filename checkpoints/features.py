"""Which Delta table features can be read and written, and by which library; and the formats of a pipeline's own tables.

An unknown feature may change the meaning of a table's files, so features that are not listed are refused: one list for sources, sinks and
the pipeline's own tables. A format is a property of a table, 1 without it; it is increased when older code would misread the table. Ledger
records have their own format (:mod:`windowmill.checkpoints.records`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from windowmill.checkpoints.delta_tables import existing
from windowmill.checkpoints.stores import is_local, remedy
from windowmill.windowing.errors import (
    ForeignWriteError,
    SinkError,
    SinkRefusedError,
    SourceFeatureError,
    StateCorruptError,
    StateError,
    first_line,
)

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
FORMATS = {"state": 5, "quarantine": 1, "quality": 1, "held": 1}
#: Name of the table property with the format.
FORMAT = "windowmill.format"


@dataclass(frozen=True, slots=True)
class Features:
    """What a table's protocol requires of readers and writers."""

    reader_version: int
    writer_version: int
    reader: frozenset[str]
    writer: frozenset[str]
    #: Whether column names in the files differ from those in the schema.
    column_mapping: bool

    @classmethod
    def of(cls, table: DeltaTable) -> Features:
        protocol = table.protocol()
        mapping = table.metadata().configuration.get("delta.columnMapping.mode") or "none"
        reader, writer = frozenset(protocol.reader_features or ()), frozenset(protocol.writer_features or ())
        return cls(protocol.min_reader_version, protocol.min_writer_version, reader, writer, mapping != "none")

    @property
    def unreadable(self) -> list[str]:
        """Names of the features with which the files cannot be read correctly."""
        newer = [f"reader version {self.reader_version}"] if self.reader_version > NAMED_READER else []
        return newer + sorted(self.reader - READABLE)

    @property
    def unwritable(self) -> list[str]:
        """Names of the features with which neither delta-rs nor Delta for Spark can write."""
        newer = [f"writer version {self.writer_version}"] if self.writer_version > NAMED_WRITER else []
        return newer + sorted((self.reader | self.writer) - WRITABLE_BY_SPARK)

    @property
    def beyond_delta_rs(self) -> list[str]:
        """Names of the features with which delta-rs cannot append."""
        mapped = {"columnMapping"} if self.column_mapping else set()
        return sorted(((self.reader | self.writer | mapped) - WRITABLE_BY_DELTA_RS) | set(self.unwritable))


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
