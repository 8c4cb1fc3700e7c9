"""Which Delta table features can be read and written, and by whom: one list for sources, sinks and the pipeline's own tables.

A feature that a reader or writer does not know may change what the table's files mean, so what is not listed is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from checkpoints.kept_tables import newest
from windowing.errors import ForeignWriteError, SinkError, SourceFeatureError, StateCorruptError, first_line

#: Highest versions of the protocol that are known; from these on, features are named one by one.
NAMED_READER, NAMED_WRITER = 3, 7
#: Reader features under which the files of a source are read rightly: by their Parquet files, or by Delta's own reader.
READABLE = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
)
#: Writer features under which delta-rs appends rightly. It also appends to tables with column mapping, but under the wrong names.
WRITABLE_BY_DELTA_RS = frozenset({"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint"})
#: Writer features that Delta for Spark, in the version that is shipped, honours.
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


@dataclass(frozen=True, slots=True)
class Features:
    """What a table's protocol asks of its readers and writers."""

    reader_version: int
    writer_version: int
    reader: frozenset[str]
    writer: frozenset[str]
    #: Whether columns have other names in the files than in the schema.
    column_mapping: bool

    @classmethod
    def of(cls, table: DeltaTable) -> Features:
        protocol = table.protocol()
        mapping = table.metadata().configuration.get("delta.columnMapping.mode") or "none"
        reader, writer = frozenset(protocol.reader_features or ()), frozenset(protocol.writer_features or ())
        return cls(protocol.min_reader_version, protocol.min_writer_version, reader, writer, mapping != "none")

    @property
    def unreadable(self) -> list[str]:
        """Features of which the files cannot be read rightly, by name."""
        newer = [f"reader version {self.reader_version}"] if self.reader_version > NAMED_READER else []
        return newer + sorted(self.reader - READABLE)

    @property
    def unwritable(self) -> list[str]:
        """Features under which nobody of ours can write, by name."""
        newer = [f"writer version {self.writer_version}"] if self.writer_version > NAMED_WRITER else []
        return newer + sorted((self.reader | self.writer) - WRITABLE_BY_SPARK)

    @property
    def beyond_delta_rs(self) -> list[str]:
        """Features under which delta-rs cannot append, by name."""
        mapped = {"columnMapping"} if self.column_mapping else set()
        return sorted(((self.reader | self.writer | mapped) - WRITABLE_BY_DELTA_RS) | set(self.unwritable))


def delta_rs_can_write(table: DeltaTable | str) -> bool:
    """Whether delta-rs may append to ``table``; where it may not, Spark does. A table that is still to be made may be written."""
    try:
        return not Features.of(newest(table) if isinstance(table, str) else table).beyond_delta_rs
    except TableNotFoundError:
        return True


def check_readable_features(features: Features, path: str) -> None:
    """Refuse a source whose files could be read wrongly; raises ``SourceFeatureError`` that names the features."""
    unknown = features.unreadable
    if any(name in _CATALOG for name in unknown):
        raise SourceFeatureError(catalog_managed(path))
    if unknown:
        raise SourceFeatureError(
            f"source {path}: uses {_named(unknown)}, which cannot be read rightly here (readable: {', '.join(sorted(READABLE))}); "
            "drop the feature (ALTER TABLE … DROP FEATURE), or copy the rows into a table without it and read that"
        )


def check_writable_features(path: str) -> None:
    """Refuse a sink that nobody of ours can write; raises ``SinkError`` that names the features. A missing table is fine."""
    try:
        unknown = Features.of(newest(path)).unwritable
    except TableNotFoundError:
        return
    except DeltaError as err:
        raise SinkError(f"sink {path}: cannot be opened ({str(err).splitlines()[0]}); check the table's protocol and its log") from err
    if unknown:
        raise SinkError(
            f"sink {path}: uses {_named(unknown)}, under which neither delta-rs nor this version of Delta for Spark writes; "
            "drop the feature (ALTER TABLE … DROP FEATURE), then run again"
        )


def check_appendable(path: str) -> None:
    """Refuse a table of the pipeline's own that only delta-rs appends to and no longer can.

    Raises
    ------
    ForeignWriteError
        If it got features that delta-rs does not write.
    StateCorruptError
        If it cannot be opened.
    """
    try:
        beyond = Features.of(newest(path)).beyond_delta_rs
    except TableNotFoundError:
        return
    except DeltaError as err:
        raise StateCorruptError(f"table {path}: cannot be opened ({first_line(err)}); restore the folder from a copy") from err
    if beyond:
        raise ForeignWriteError(
            f"table {path}: got {_named(beyond)}, under which its records cannot be appended; drop the feature "
            "(ALTER TABLE … DROP FEATURE), then run again"
        )


def catalog_managed(path: str) -> str:
    """What is wrong with a table whose commits a catalog keeps, and what helps."""
    return (
        f"source {path}: is a catalog-managed table: its commits go through its catalog, so its path alone does not tell its rows; "
        "copy it into a table of its own path (CREATE TABLE … DEEP CLONE, or INSERT INTO), and read that"
    )


def _named(features: Iterable[str]) -> str:
    names = list(features)
    return f"the table feature{'s' if len(names) > 1 else ''} {', '.join(names)}"
