"""The interface of a source, which is a table whose versions add files, and the kinds of sources by their names in a spec.

A kind of source opens the table that a spec names. Planning lists its versions and files without a JVM. Spark reads the rows of the files
that the plan selects, or this process if they are few and in plain files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from windowmill.checkpoints.places import Places
from windowmill.jobs.sources.options import FOLDER_OPTIONS, KAFKA_OPTIONS, common_problems, folder_problems, kafka_problems
from windowmill.jobs.sources.unusable_rows import ExpectedColumns
from windowmill.windowing.errors import SourceError, UnsupportedError
from windowmill.windowing.fields import DELTA_OPTIONS, PUBLISHED, Source
from windowmill.windowing.registry import Registry, resolve
from windowmill.windowing.spec import Pipeline

if TYPE_CHECKING:
    import pyarrow as pa

    from windowmill.checkpoints.batches import Plan
    from windowmill.jobs.spark.access import DataFrame, SparkSession

#: Prefix of the caveat of a Delta table that a spec names by a catalog.
_BY_NAME = "a table of the catalog, read where it lay when a run first asked; "


@dataclass(frozen=True, slots=True)
class AddedFile:
    """One file of a source, or another unit that is read as a whole, appended by a version or part of a snapshot.

    ``path`` is relative to the table, or absolute. ``rows`` is the number of rows that are not deleted, null if the source does not record
    it; without ``is_counted`` there may be fewer. The keys of ``partition`` are physical column names. ``stats`` are Delta's statistics of
    the file, as JSON; null if there are none.
    """

    path: str
    version: int
    size_bytes: int
    rows: int | None
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = field(default=None, repr=False, compare=False)
    is_counted: bool = field(default=True, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class LoggedVersion:
    """One version of a source, as recorded in its log.

    Attributes
    ----------
    operation
        The operation that made it, for messages.
    added
        Files with new rows; files that were only rewritten (by OPTIMIZE and the like) are not included.
    changes
        Whether the version updated, removed or restored rows, so that ``added`` may contain rows that existed before.
    rows_changed
        Number of rows that such a version inserted, updated or removed according to its metrics; without metrics, the rows of ``added``.
        Of a source that does not count rows, the number of files.
    pipeline
        The windowmill pipeline that wrote the version, if one did.
    """

    version: int
    operation: str
    added: tuple[AddedFile, ...]
    changes: bool = False
    rows_changed: int = 0
    pipeline: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The files that a batch reads, in the order in which their rows count as arrived.

    Attributes
    ----------
    snapshot_files
        The number of leading files that come from a snapshot; their rows count as arrived in event-time order.
    as_of
        The version as of which the snapshot's files must be read, because rows in them may be deleted; null if all their rows count.
    rows_ignored
        Rows inserted, updated or removed by the versions that ``source.changes: ignore`` skips.
    first_row
        The place of the first row among those of its commit.
    """

    files: tuple[AddedFile, ...]
    snapshot_files: int = 0
    as_of: int | None = None
    rows_ignored: int = 0
    first_row: int = 0

    @property
    def commits(self) -> tuple[int, ...]:
        """For each file, the number of the commit with which its rows arrived, ascending; a snapshot counts as one."""
        snapshot = max((file.version for file in self.files[: self.snapshot_files]), default=0)
        return (*(snapshot,) * self.snapshot_files, *(file.version for file in self.files[self.snapshot_files :]))

    @property
    def size_bytes(self) -> int:
        """Size of the files."""
        return sum(file.size_bytes for file in self.files)


class RowForm(Protocol):
    """How the rows of a text file, or of messages, are read."""

    def batches(self, file: PlainFile, form: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The ``columns`` of all rows, in order; ``form`` is the :class:`.Form` of the source's columns."""


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A Parquet file that this process and tasks can open, or a text file, or messages of a topic, that this process can.

    Attributes
    ----------
    path
        A local path, or a URI.
    names
        For each column of the source that the file may store, its name in the file. A column that it lacks is null.
    constants
        For each other column, its value in all rows of the file, as a text.
    least
        For columns of instants, as far as the source knows, an instant (µs) before which no value is.
    row_form
        How the rows of a text file, or messages, are read; null for Parquet.
    casts
        What is used of rows whose values are cast to the source's types, as those of a folder's files, whose types and spellings of
        columns may differ; null where values are read as they are.
    """

    path: str
    names: Mapping[str, str]
    constants: Mapping[str, str | None]
    least: Mapping[str, int] = field(default_factory=dict)
    row_form: RowForm | None = None
    casts: ExpectedColumns | None = None


@dataclass(frozen=True)
class SourceTable(ABC):
    """A source at the time of opening. Versions are numbered from 0; the files that a version added never change.

    Attributes
    ----------
    path
        Its location, for messages.
    table_id
        Its identity: plans refuse a table with another id at the same path.
    version
        The newest version.
    schema_json
        Its columns, as the JSON of a Spark ``StructType``. A batch replaces them with those that its plan has pinned.
    deletion_vectors
        Whether files may contain rows that have been deleted.
    unread
        Columns that files have, and that are not read, each with why.
    untyped
        Columns of which files hold no value yet: they are read as text, which says nothing of the values to come.
    expected
        What the spec uses of its rows.
    days
        Columns of instants that are days in all files from which columns were found.
    reader
        The pipeline whose steps its rows go through; null if they go through none.
    complete
        The least time that rows of later versions have, if the source knows; else null.
    """

    path: str
    table_id: str
    version: int
    schema_json: str
    deletion_vectors: bool = False
    unread: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    untyped: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    expected: ExpectedColumns = field(default_factory=ExpectedColumns, repr=False, compare=False)
    days: frozenset[str] = field(default=frozenset(), repr=False, compare=False, kw_only=True)
    reader: Pipeline | None = field(default=None, repr=False, compare=False, kw_only=True)
    complete: int | None = field(default=None, repr=False, compare=False, kw_only=True)
    #: What a file of it is called, for messages.
    unit: ClassVar[str] = "file"
    #: Whether the rows that a version changed can be found, so that ``windowmill restate`` takes them up.
    is_restatable: ClassVar[bool] = False
    #: Whether its files may be restated by their names.
    names_files: ClassVar[bool] = False
    #: Whether rows of its files come with the column ``UNREAD``; all do that have gone through steps.
    has_unread: ClassVar[bool] = False

    def used_by(self, pipeline: Pipeline) -> Self:  # noqa: ARG002 - for kinds whose values are texts
        """The source as ``pipeline`` uses it."""
        return self

    @abstractmethod
    def versions(self, after: int, through: int) -> Iterator[LoggedVersion]:
        """The versions (``after``, ``through``], oldest first.

        Raises
        ------
        SourceRangeGoneError
            If the files that one of these versions added are no longer known.
        """

    @abstractmethod
    def snapshot(self, version: int) -> list[AddedFile]:
        """The files of the table at ``version``, in a deterministic order.

        Raises
        ------
        SourceRangeGoneError
            If that version can no longer be reconstructed.
        """

    def mark(self, version: int) -> str | None:  # noqa: ARG002 - for kinds whose ids are copied with a table
        """What differs between the commit of ``version`` and that of a copy of the table with commits of its own; null if unknown."""
        return None

    def check(self, reading: Reading) -> None:  # noqa: B027 - for kinds whose files are not those of a table
        """Raise ``SourceError``, naming the file, if one of ``reading`` is none of its files' kind."""

    def fitted(self, pipeline: Pipeline, last: Plan | None, read_through: int) -> SourceTable:  # noqa: ARG002 - for kinds without a log
        """The source as the next batch of ``pipeline`` finds it, for kinds that number their versions, and find their columns, themselves.

        Parameters
        ----------
        last
            Plan of the newest batch that has not been abandoned; null for none.
        read_through
            The last version that a batch which counts has read; −1 for none.
        """
        return self

    def remember(self, through: int) -> None:  # noqa: B027 - for kinds that number their versions themselves
        """Make sure that each version up to ``through`` is the same at all later openings; called before a batch that reads them."""

    @property
    def place(self) -> str:
        """What messages about its rows call it."""
        return self.path

    def covered(self, after: int, through: int, before: int) -> dict[str, Any]:  # noqa: ARG002 - for kinds that are another pipeline
        """The other pipeline, and which of its batches the versions (``after``, ``through``] hold; ``before`` is the last one covered."""
        return {}

    def when_missing(self) -> str:
        """What to do about a file that :meth:`missing` gives, for messages."""
        return (
            "(VACUUM); bring it back, or rebuild this pipeline in a new sink with backfill; keep delta.deletedFileRetentionDuration longer "
            "than runs may pause"
        )

    def when_changed(self, version: LoggedVersion) -> str:  # noqa: ARG002 - for kinds that take changes as corrections
        """What to do about a ``version`` that changed rows, for messages."""
        return "put them back, or set source.changes to ignore, so that they leave results as they are"

    @abstractmethod
    def missing(self, files: Sequence[AddedFile]) -> AddedFile | None:
        """The first of ``files`` that no longer exists; null if all exist."""

    @abstractmethod
    def first_version_at(self, instant: datetime) -> int | None:
        """The first version committed at ``instant`` or later; null if all are earlier.

        Raises
        ------
        SourceRangeGoneError
            If the time of a version is no longer known.
        """

    def plain_files(self, reading: Reading) -> Sequence[PlainFile] | None:  # noqa: ARG002 - for kinds that have such files
        """Files that hold exactly the rows of ``reading``, one for each of its files; null if only :meth:`rows` can read them."""
        return None

    @abstractmethod
    def rows(self, spark: SparkSession, reading: Reading) -> DataFrame:
        """The rows of the files in ``reading``: the columns of ``schema_json``, and three more.

        These are ``_file`` (INT, index of the row's file in ``reading.files``), ``_row`` (BIGINT, index of the row in the file, the same
        at each read), and ``_version`` (BIGINT, the file's version).
        """


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source.

    Attributes
    ----------
    name
        Name in ``source.format``.
    open
        Function that opens the source that a spec describes (``path``, ``options``) in its present version, and raises ``SourceError`` if
        there is none; or ``"module:name"`` of such a function, imported when the first source is opened.
    records
        Whether ``open`` takes a second argument, the place of a table that records the versions of a source without a log; null if the
        pipeline has no place for it.
    probe
        Function that reads from the source what ``open`` takes as its last argument (null: ``open`` reads it itself), or ``"module:name"``
        of such a function. Its result is the same for all pipelines over the source. Null for a kind whose ``open`` takes no such argument.
    probe_options
        Names of the options on which the result of a probe depends, in addition to the source's location; null for all.
    options
        Names of its own ``source.options``.
    common
        Names of options that it has in common with other kinds: unless given, all that choose versions (``startingVersion``,
        ``startingTimestamp``) and limit a batch (``maxFilesPerTrigger``, ``maxBytesPerTrigger``).
    problems
        Gives problems with the values of its options, as pairs (path of the field, problem and remedy).
    is_located
        Whether ``source.path`` says where it is; else its options do.
    caveat
        A sentence on what it does not promise of the order of rows, and of reading them again; null for none.
    """

    name: str
    open: Callable[..., SourceTable] | str
    options: tuple[str, ...] = ()
    records: bool = False
    probe: Callable[[Source], Any] | str | None = None
    probe_options: tuple[str, ...] | None = None
    common: tuple[str, ...] = DELTA_OPTIONS
    problems: Callable[[Source], Iterator[tuple[str, str]]] | None = None
    is_located: bool = True
    caveat: str | None = None


_FOLDERS = {
    name: SourceKind(
        name,
        "windowmill.jobs.sources.folder:open_folder",
        options,
        records=True,
        probe="windowmill.jobs.sources.folder:probe_folder",
        probe_options=("pathGlobFilter",),
        problems=folder_problems,
        caveat="files count in the order in which a run has first seen them; backfills read them again as long as they are there",
    )
    for name, options in FOLDER_OPTIONS.items()
}
_KAFKA = SourceKind(
    "kafka",
    "windowmill.jobs.sources.kafka:open_kafka",
    KAFKA_OPTIONS,
    records=True,
    probe="windowmill.jobs.sources.kafka:probe_topics",
    probe_options=("subscribe", *(name for name in KAFKA_OPTIONS if name.startswith("kafka."))),
    common=("startingTimestamp",),
    problems=kafka_problems,
    is_located=False,
    caveat="messages keep their order within a partition only; backfills and verify read them again as long as the topic keeps all of them",
)
_DELTA = SourceKind(
    "delta",
    "windowmill.jobs.sources.delta_log:open_delta",
    probe_options=(),
    caveat="versions count in the order of the log, and rows of one version are ordered by time and time.tie_break only; runs need the log "
    "and files of versions that they have not read yet, and backfills read the table as it is now",
)
_PUBLISHED = SourceKind(
    PUBLISHED,
    "windowmill.jobs.sources.chains:open_input",
    records=True,
    probe_options=(),
    common=(),
    is_located=False,
    caveat="the newest revision of each window counts; what the other pipeline corrects later is restated",
)
KINDS: Registry[SourceKind] = Registry("source kind", {"delta": _DELTA, **_FOLDERS, "kafka": _KAFKA, PUBLISHED: _PUBLISHED})


def formats(kinds: Iterable[str] = KINDS) -> list[str]:
    """Those of the ``kinds`` that a spec names as the format of its source."""
    return [name for name in kinds if name != PUBLISHED]


def caveat_of(settings: Source | None) -> str | None:
    """A sentence on what the source does not promise of the order and rereading of rows; null for none, and for unknown kinds."""
    if settings is None or settings.format not in KINDS:
        return None
    caveat = KINDS[settings.format].caveat
    return caveat if caveat is None or settings.table is None else _BY_NAME + caveat


def kind_problems(settings: Source) -> Iterator[tuple[str, str]]:
    """Problems with the kind of a source and its options, as pairs (path of the field, problem and remedy)."""
    if settings.format not in KINDS or (settings.format == PUBLISHED and settings.pipeline is None):
        others = ", ".join(formats())
        yield "source.format", f"got {settings.format!r}; runs read Delta tables, write the data to one first, or name one of {others}"
        return
    kind = KINDS[settings.format]
    known = (*kind.common, *kind.options)
    for name in settings.options:
        if name not in known:
            yield f"source.options.{name}", f"unknown; the options of a source of format {settings.format} are {', '.join(known)}"
    yield from common_problems(settings.options)
    if kind.problems is not None:
        yield from kind.problems(settings)


def is_located(settings: Source | None) -> bool:
    """Whether the spec says where its source is, which a table of a catalog does not until a run has found it."""
    if settings is None or settings.format not in KINDS:
        return False
    return settings.path is not None or not KINDS[settings.format].is_located


def probe_source(settings: Source) -> Any:
    """Read from a source what is the same for all pipelines over it, for :func:`open_source`; null if nothing is."""
    kind = KINDS[settings.format]
    if kind.probe is not None:
        return resolve(kind.probe)(settings)
    return None if kind.records else resolve(kind.open)(settings)


def shared_identity(settings: Source) -> Hashable:
    """Equal for sources that have the same result of :func:`probe_source`."""
    probe_options = KINDS[settings.format].probe_options
    options = sorted((name, value) for name, value in settings.options.items() if probe_options is None or name in probe_options)
    return settings.format, settings.path, tuple(sorted(settings.storage_options.items())), tuple(options)


def open_source(pipeline: Pipeline, probed: Any = None) -> SourceTable:
    """The source of ``pipeline`` in its present version.

    Parameters
    ----------
    probed
        The present result of :func:`probe_source`; null to probe the source.

    Raises
    ------
    SourceError
        If it is missing, or cannot be read.
    UnsupportedError
        If the spec names an unknown kind of source, or an option that the kind does not have.
    """
    settings = pipeline.source
    if settings is None or (settings.path is None and settings.format in KINDS and KINDS[settings.format].is_located):
        raise SourceError(f"pipeline {pipeline.pipeline}: source.path: missing; give the path of the table or folder")
    for where, problem in kind_problems(settings):
        raise UnsupportedError(f"pipeline {pipeline.pipeline}: {where}: {problem}")
    kind = KINDS[settings.format]
    reader = pipeline if pipeline.steps else None
    if settings.pipeline is not None:
        published: SourceTable = resolve(kind.open)(pipeline)
        return replace(published, reader=reader)
    if not kind.records:
        found: SourceTable = resolve(kind.open)(settings) if probed is None else probed
        return found if reader is None else replace(found, reader=reader)  # all values of a Delta table fit their columns
    has_place = pipeline.sink is not None or pipeline.checkpoints is not None
    record = Places.of(pipeline).source_files if has_place else None
    opened: SourceTable = resolve(kind.open)(settings, record, *(() if kind.probe is None else (probed,)))
    return replace(opened.used_by(pipeline), reader=reader)
